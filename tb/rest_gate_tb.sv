// rest_gate: an edge in each cycle with a move or a reset and in the cycle after a reset, none in the others, and no pulse is cut, whenever
// within the cycle a move comes and goes.
module rest_gate_tb;
  import bench_pkg::*;

  logic clk, rst_n, rests;
  int   cycle;
  clock_reset #(.Limit(60000)) u_clock (.clk_o(clk), .rst_no(rst_n), .cycle_o(cycle));

  logic moves = 1'b1, was_reset = 1'b1;
  int   edges = 0, expected = 0, rested = 0, behind = 0, busy;
  rest_gate u_rest_gate (.clk_i(clk), .rst_ni(rst_n), .moves_i(moves), .clk_o(rests));

  always @(posedge rests) begin
    edges = edges + 1;
    if (clk !== 1'b1) fail("an edge while the clock is low");
  end
  always @(negedge rests) if (clk !== 1'b0) fail("a pulse is cut");

  always @(posedge clk) begin
    if (moves || !rst_n || was_reset) expected = expected + 1;
    else rested = rested + 1;
    if (rst_n && was_reset && !moves) behind = behind + 1;
    was_reset = !rst_n;
    // Behind the edge, while the clock is high: as a register's output does.
    moves <= #1 chance(busy);
  end
  always @(negedge clk) begin
    if (edges != expected) fail($sformatf("%0d edges in cycle %0d, expected %0d", edges, cycle, expected));
  end

  initial begin
    for (int m = 0; m < 9; m++) begin
      busy = (m % 3 == 0) ? 1 : (m % 3 == 1) ? 20 : 60;
      repeat (3000) begin
        // As an input's way through logic does, while the clock is low.
        @(negedge clk);
        if (chance(busy)) #1 moves = !moves;
        if (chance(1)) u_clock.reset(1 + below(3));
      end
    end
    if (behind < 20) fail($sformatf("only %0d resets were behind a cycle without a move", behind));
    if (rested < 3000) fail($sformatf("it rested for only %0d cycles", rested));
    finish_bench("rest_gate_tb");
  end
endmodule
