// Random traffic on all queue pairs of the device at once: 16 queue pairs, 4 functions, 16 workers.
module rl_runtime_top_q16_tb;
  import bench_pkg::*;

  top_bench #(.Queues(16), .Functions(4), .Workers(16), .FetchDepth(128), .CompletionDepth(64)) bench ();

  initial begin
    @(posedge bench.rst_n);
    @(posedge bench.clk);
    bench.faults = chance(30);
    bench.share(2, 60);
    finish_bench("rl_runtime_top_q16_tb");
  end
endmodule
