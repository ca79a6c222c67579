// vectors: gemv 50 100
// GEMV and HEAD: npu_gemv and, behind it, npu_sampler, against the interpreter.
module npu_gemv_tb;
  import bench_pkg::*;
  import npu_unit_pkg::*;

  logic clk, rst_n;
  int   cycle_unused;
  clock_reset #(.Limit(300000)) u_clock (.clk_o(clk), .rst_no(rst_n), .cycle_o(cycle_unused));

  logic                   over, start, idle, done, sample_valid;
  npu_op_t                op;
  npu_step_t              step;
  npu_end_t               ended;
  logic [31:0]            sample_token, sample_logp;
  logic                   read_valid, read_ready, read_answer, write_valid, write_ready;
  logic [CHIP_BITS-1:0]   read_line, write_line;
  logic [511:0]           read_data, write_data, beat_data;
  logic                   fetch_valid, fetch_ready, beat_valid, beat_fault, beat_ready;
  logic [MEMORY_BITS-1:0] fetch_line;
  logic [15:0]            fetch_lines;
  logic                   sampler_begin, sampler_begun, sampler_idle, logit_valid, logit_last, logit_ready;
  logic [2:0]             read_context_unused, write_context_unused;
  logic [31:0]            logit;

  // Other units have the ports of on-chip memory for longer than the harness shuts them, now and then; and the sampler takes nothing for
  // longer than its four cycles.
  logic read_granted, write_granted, sampler_ready, read_open = 1'b1, write_open = 1'b1, logit_open = 1'b1;
  int   read_shut = 0, write_shut = 0, logit_shut = 0;
  bit   calm;
  assign read_ready  = read_granted && read_open;
  assign write_ready = write_granted && write_open;
  assign logit_ready = sampler_ready && logit_open;
  initial calm = $test$plusargs("calm");

  always @(posedge clk) begin
    read_shut  <= (read_shut != 0) ? read_shut - 1 : (!calm && chance(2)) ? below(60) : 0;
    write_shut <= (write_shut != 0) ? write_shut - 1 : (!calm && chance(2)) ? below(60) : 0;
    read_open  <= read_shut == 0;
    write_open <= write_shut == 0;
    logit_shut <= (logit_shut != 0) ? logit_shut - 1 : (!calm && chance(2)) ? below(60) : 0;
    logit_open <= logit_shut == 0;
  end

  npu_unit_harness u_harness (
    .clk_i(clk), .rst_ni(rst_n), .over_o(over),
    .start_o(start), .op_o(op), .step_o(step), .output_lines_o(), .idle_i(idle), .done_i(done), .end_i(ended),
    .sample_valid_i(sample_valid), .sample_token_i(sample_token), .sample_logp_i(sample_logp),
    .read_valid_i(read_valid && read_open), .read_line_i(read_line), .read_ready_o(read_granted), .read_answer_o(read_answer),
    .read_data_o(read_data), .write_valid_i(write_valid && write_open), .write_line_i(write_line),
    .write_data_i(write_data), .write_ready_o(write_granted),
    .fetch_valid_i(fetch_valid), .fetch_line_i(fetch_line), .fetch_lines_i(fetch_lines), .fetch_ready_o(fetch_ready),
    .beat_valid_o(beat_valid), .beat_data_o(beat_data), .beat_fault_o(beat_fault), .beat_ready_i(beat_ready),
    .store_valid_i(1'b0), .store_output_i(1'b0), .store_line_i(34'd0), .store_data_i(512'd0), .store_strobe_i(64'd0),
    .store_ready_o(), .stored_o(), .store_fault_o(),
    .block_ask_i(1'b0), .block_entry_i(11'd0), .block_answer_o(), .block_line_o(), .block_end_o()
  );

  npu_gemv u_gemv (
    .clk_i(clk), .rst_ni(rst_n), .start_i(start), .op_i(op), .mask_i(1'b1), .give_up_i(1'b0), .idle_o(idle), .done_o(done), .end_o(ended),
    .read_valid_o(read_valid), .read_context_o(read_context_unused), .read_line_o(read_line), .read_ready_i(read_ready), .read_answer_i(read_answer),
    .read_data_i(read_data), .write_valid_o(write_valid), .write_context_o(write_context_unused), .write_line_o(write_line), .write_data_o(write_data),
    .write_ready_i(write_ready),
    .fetch_valid_o(fetch_valid), .fetch_line_o(fetch_line), .fetch_lines_o(fetch_lines), .fetch_ready_i(fetch_ready),
    .beat_valid_i(beat_valid), .beat_data_i(beat_data), .beat_fault_i(beat_fault), .beat_ready_o(beat_ready),
    .sampler_begin_o(sampler_begin), .sampler_begun_i(sampler_begun), .sampler_idle_i(sampler_idle),
    .logit_valid_o(logit_valid), .logit_o(logit), .logit_last_o(logit_last), .logit_ready_i(logit_ready)
  );

  npu_sampler u_sampler (
    .clk_i(clk), .rst_ni(rst_n), .step_i(step), .forget_i(1'b0),
    .begin_i(sampler_begin), .begun_o(sampler_begun), .idle_o(sampler_idle),
    .logit_valid_i(logit_valid && logit_open), .logit_i(logit), .logit_last_i(logit_last), .logit_ready_o(sampler_ready),
    .done_i(done), .end_i(ended),
    .sample_valid_o(sample_valid), .sample_token_o(sample_token), .sample_logp_o(sample_logp)
  );

  initial begin
    @(posedge clk);
    while (!over) @(posedge clk);
    finish_bench("npu_gemv_tb");
  end
endmodule
