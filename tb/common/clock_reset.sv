// Clock, reset, seed, watchdog and waveform of a bench.
//   +seed=N     seed of the bench's random numbers
//   +errors=N   errors at which the bench gives up
//   +wave=FILE  writes a waveform
module clock_reset #(
  parameter int Limit = 100000,         // cycles after which the bench hangs
  parameter int Seed  = 1               // without +seed
) (
  output logic clk_o,
  output logic rst_no,
  output int   cycle_o
);
  import bench_pkg::*;

  int    seed;
  string wave;

  initial begin
    if (!$value$plusargs("seed=%d", seed)) seed = Seed;
    $display("seed %0d", seed);
    if (!$value$plusargs("errors=%d", most_errors)) most_errors = 10;
    state = seed * 32'h9E37_79B9;       // spreads neighbouring seeds
    if ($value$plusargs("wave=%s", wave)) begin
      $dumpfile(wave);
      $dumpvars;
    end
  end

  initial begin
    clk_o   = 1'b0;
    rst_no  = 1'b0;
    cycle_o = 0;
    repeat (4) @(posedge clk_o);
    rst_no <= 1'b1;
  end

  always #5 clk_o = !clk_o;

  always @(posedge clk_o) begin
    cycle_o <= cycle_o + 1;
    if (cycle_o == Limit) $fatal(1, "hang: after %0d cycles, %0s", Limit, waits_for);
  end

  // Reset in the middle of a run.
  task automatic reset(input int cycles);
    rst_no <= 1'b0;
    repeat (cycles) @(posedge clk_o);
    rst_no <= 1'b1;
    @(posedge clk_o);
  endtask
endmodule
