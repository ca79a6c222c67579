// Random traffic on all queue pairs of the device at once: 4 queue pairs, 2 functions, 4 workers.
module rl_runtime_top_q4_tb;
  import bench_pkg::*;

  top_bench #(.Queues(4), .Functions(2), .Workers(4), .FetchDepth(64), .CompletionDepth(32)) bench ();

  initial begin
    @(posedge bench.rst_n);
    @(posedge bench.clk);
    bench.faults = chance(30);
    bench.share(drawn(2, 4), drawn(80, 120));
    finish_bench("rl_runtime_top_q4_tb");
  end
endmodule
