// sync_fifo against a queue: depth 2 and 8, each side with and without stalls, cleared in between.
module sync_fifo_tb;
  import bench_pkg::*;

  logic clk, rst_n;
  int   cycle;
  clock_reset #(.Limit(30000)) u_clock (.clk_o(clk), .rst_no(rst_n), .cycle_o(cycle));

  int   stall_in, stall_out;
  logic clear = 1'b0;
  logic want_push = 1'b0, want_pop = 1'b0;

  for (genvar g = 0; g < 2; g++) begin : gen_depth
    localparam int Depth = (g == 0) ? 2 : 8;
    logic        full, valid, push, pop;
    logic [31:0] data_in, data_out;
    logic [$clog2(Depth):0] count;
    logic [31:0] expected[$];
    int          moved = 0;

    assign push = want_push && !full;
    assign pop  = want_pop && valid;

    sync_fifo #(.Width(32), .Depth(Depth)) u_fifo (
      .clk_i(clk), .rst_ni(rst_n), .clear_i(clear), .push_i(push), .data_i(data_in), .full_o(full),
      .valid_o(valid), .data_o(data_out), .pop_i(pop), .count_o(count)
    );

    always @(posedge clk) begin
      data_in <= rnd();
      if (rst_n) begin
        if (int'(count) != expected.size()) fail($sformatf("depth %0d: count %0d, expected %0d", Depth, count, expected.size()));
        if (full !== (expected.size() == Depth)) fail($sformatf("depth %0d: full is %b with %0d", Depth, full, expected.size()));
        if (valid !== (expected.size() != 0)) fail($sformatf("depth %0d: valid is %b with %0d", Depth, valid, expected.size()));
        if (valid) if (data_out !== expected[0]) fail($sformatf("depth %0d: %h, expected %h", Depth, data_out, expected[0]));
        if (clear) expected = {};
        else begin
          if (pop) begin
            expected.delete(0);
            moved = moved + 1;
          end
          if (push) expected.push_back(data_in);
        end
      end
    end
  end

  always @(posedge clk) begin
    want_push <= !chance(stall_in);
    want_pop  <= !chance(stall_out);
    clear     <= rst_n && below(300) == 0;
  end

  initial begin
    for (int k = 0; k < 4; k++) begin
      stall_in  = k[0] ? 50 : 0;
      stall_out = k[1] ? 50 : 0;
      repeat (2000) @(posedge clk);
    end
    if (gen_depth[0].moved < 3000 || gen_depth[1].moved < 3000) fail("too few words moved");
    finish_bench("sync_fifo_tb");
  end
endmodule
