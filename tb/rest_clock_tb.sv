// rest_clock: an edge in each cycle with a move or a reset and in the 64 cycles behind one, none in the others, and no pulse is cut, whenever
// within the cycle a move comes and goes.
module rest_clock_tb;
  import bench_pkg::*;

  logic clk, rst_n, rests;
  int   cycle;
  clock_reset #(.Limit(60000)) u_clock (.clk_o(clk), .rst_no(rst_n), .cycle_o(cycle));

  logic moves = 1'b1;
  int   still = 0, edges = 0, expected = 0, rested = 0, resets = 0, busy;
  rest_clock u_rest_clock (.clk_i(clk), .rst_ni(rst_n), .moves_i(moves), .clk_o(rests));

  always @(posedge rests) begin
    edges = edges + 1;
    if (clk !== 1'b1) fail("an edge while the clock is low");
  end
  always @(negedge rests) if (clk !== 1'b0) fail("a pulse is cut");

  always @(posedge clk) begin
    if (moves || !rst_n || still < 64) expected = expected + 1;
    else rested = rested + 1;
    if (!rst_n) resets = resets + 1;
    still = (moves || !rst_n) ? 0 : still + 1;
    // Behind the edge, while the clock is high: as a register's output does.
    moves <= #1 chance(busy);
  end
  always @(negedge clk) begin
    if (edges != expected) fail($sformatf("%0d edges in cycle %0d, expected %0d", edges, cycle, expected));
  end

  initial begin
    for (int m = 0; m < 9; m++) begin
      busy = (m % 3 == 0) ? 0 : (m % 3 == 1) ? 1 : 30;
      repeat (3000) begin
        // As an input's way through logic does, while the clock is low.
        @(negedge clk);
        if (chance(busy)) #1 moves = !moves;
        // Of a part that rests: the others' resets change nothing that the moves do not.
        if (still > 80 && chance(1)) u_clock.reset(1 + below(3));
      end
    end
    if (resets < 20) fail($sformatf("it was reset for %0d cycles alone", resets));
    if (rested < 3000) fail($sformatf("it rested for %0d cycles alone", rested));
    finish_bench("rest_clock_tb");
  end
endmodule
