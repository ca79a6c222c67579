// npu_sfu against the interpreter: vectors, heads, gains and turns of any bytes, on-chip memory that stalls, and now and then takes
// no line for so long that all of the unit must wait.
// vectors: sfu 250
module npu_sfu_tb;
  import bench_pkg::*;
  import npu_unit_pkg::*;

  logic clk, rst_n, over, start, idle, done;
  int   cycle;
  clock_reset #(.Limit(150000)) u_clock (.clk_o(clk), .rst_no(rst_n), .cycle_o(cycle));

  npu_op_t              op;
  npu_end_t             ended;
  logic                 read_valid, read_ready, read_answer, write_valid, write_ready;
  logic [CHIP_BITS-1:0] read_line, write_line;
  logic [511:0]         read_data, write_data;
  logic                 open = 1'b1, room;
  int                   shut = 0;

  npu_unit_harness u_harness (
    .clk_i(clk), .rst_ni(rst_n), .over_o(over), .start_o(start), .op_o(op), .step_o(), .output_lines_o(), .idle_i(idle), .done_i(done),
    .end_i(ended), .sample_valid_i(1'b0), .sample_token_i(32'd0), .sample_logp_i(32'd0),
    .read_valid_i(read_valid), .read_line_i(read_line), .read_ready_o(read_ready), .read_answer_o(read_answer), .read_data_o(read_data),
    .write_valid_i(write_valid && open), .write_line_i(write_line), .write_data_i(write_data), .write_ready_o(room),
    .fetch_valid_i(1'b0), .fetch_line_i(34'd0), .fetch_lines_i(16'd0), .fetch_ready_o(), .beat_valid_o(), .beat_data_o(), .beat_fault_o(),
    .beat_ready_i(1'b0), .store_valid_i(1'b0), .store_output_i(1'b0), .store_line_i(34'd0), .store_data_i(512'd0), .store_strobe_i(64'd0),
    .store_ready_o(), .stored_o(), .store_fault_o(), .block_ask_i(1'b0), .block_entry_i(11'd0), .block_answer_o(), .block_line_o(),
    .block_end_o()
  );

  // The memory is another unit's.
  assign write_ready = room && open;
  always @(posedge clk) begin
    shut <= (shut != 0) ? shut - 1 : (!$test$plusargs("calm") && chance(1)) ? between(10, 80) : 0;
    open <= shut == 0;
  end

  npu_sfu u_sfu (
    .clk_i(clk), .rst_ni(rst_n), .start_i(start), .op_i(op), .idle_o(idle), .done_o(done), .end_o(ended),
    .read_valid_o(read_valid), .read_line_o(read_line), .read_ready_i(read_ready), .read_answer_i(read_answer), .read_data_i(read_data),
    .write_valid_o(write_valid), .write_line_o(write_line), .write_data_o(write_data), .write_ready_i(write_ready)
  );

  always @(posedge clk) if (rst_n && over) finish_bench("npu_sfu_tb");
endmodule
