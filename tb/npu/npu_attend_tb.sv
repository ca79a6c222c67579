// ATTN against the interpreter: words, memories and faults of a script.
// vectors: attend 30 60
module npu_attend_tb;
  import bench_pkg::*;
  import npu_unit_pkg::*;

  logic clk, rst_n, over;
  int   cycle;
  clock_reset #(.Limit(400_000)) u_clock (.clk_o(clk), .rst_no(rst_n), .cycle_o(cycle));

  logic         start, idle, done;
  npu_op_t      op;
  npu_step_t    step;
  logic [15:0]  output_lines;
  logic [3:0]   ended, block_end;

  logic                 read_valid, read_ready, read_answer, write_valid, write_ready;
  logic [CHIP_BITS-1:0] read_line, write_line;
  logic [511:0]         read_data, write_data;
  logic                   fetch_valid, fetch_ready, beat_valid, beat_fault, beat_ready;
  logic [MEMORY_BITS-1:0] fetch_line, block_line;
  logic [15:0]            fetch_lines;
  logic [511:0]           beat_data;
  logic                   store_ready, stored, store_fault, block_ask, block_answer;
  logic [10:0]            block_entry;

  npu_unit_harness #(.Arena(1)) harness (
    .clk_i(clk), .rst_ni(rst_n), .over_o(over),
    .start_o(start), .op_o(op), .step_o(step), .output_lines_o(output_lines), .idle_i(idle), .done_i(done), .end_i(ended),
    .sample_valid_i(1'b0), .sample_token_i(32'd0), .sample_logp_i(32'd0),
    .read_valid_i(read_valid), .read_line_i(read_line), .read_ready_o(read_ready), .read_answer_o(read_answer), .read_data_o(read_data),
    .write_valid_i(write_valid), .write_line_i(write_line), .write_data_i(write_data), .write_ready_o(write_ready),
    .fetch_valid_i(fetch_valid), .fetch_line_i(fetch_line), .fetch_lines_i(fetch_lines), .fetch_ready_o(fetch_ready),
    .beat_valid_o(beat_valid), .beat_data_o(beat_data), .beat_fault_o(beat_fault), .beat_ready_i(beat_ready),
    .store_valid_i(1'b0), .store_output_i(1'b0), .store_line_i({MEMORY_BITS{1'b0}}), .store_data_i(512'd0), .store_strobe_i(64'd0),
    .store_ready_o(store_ready), .stored_o(stored), .store_fault_o(store_fault),
    .block_ask_i(block_ask), .block_entry_i(block_entry), .block_answer_o(block_answer), .block_line_o(block_line), .block_end_o(block_end)
  );

  npu_attend dut (
    .clk_i(clk), .rst_ni(rst_n),
    .start_i(start), .op_i(op), .idle_o(idle), .done_o(done), .end_o(ended),
    .position_i(step.position),
    .read_valid_o(read_valid), .read_line_o(read_line), .read_ready_i(read_ready), .read_answer_i(read_answer), .read_data_i(read_data),
    .write_valid_o(write_valid), .write_line_o(write_line), .write_data_o(write_data), .write_ready_i(write_ready),
    .fetch_valid_o(fetch_valid), .fetch_line_o(fetch_line), .fetch_lines_o(fetch_lines), .fetch_ready_i(fetch_ready),
    .beat_valid_i(beat_valid), .beat_data_i(beat_data), .beat_fault_i(beat_fault), .beat_ready_o(beat_ready),
    .block_ask_o(block_ask), .block_entry_o(block_entry), .block_answer_i(block_answer), .block_line_i(block_line), .block_end_i(block_end)
  );

  initial begin
    @(posedge over);
    finish_bench("npu_attend_tb");
  end
endmodule
