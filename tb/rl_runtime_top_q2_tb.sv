// Random traffic on all queue pairs of the device at once: 2 queue pairs, 1 function, 4 workers.
module rl_runtime_top_q2_tb;
  import bench_pkg::*;

  top_bench #(.Queues(2), .Functions(1), .Workers(4), .FetchDepth(32), .CompletionDepth(16)) bench ();

  initial begin
    @(posedge bench.rst_n);
    @(posedge bench.clk);
    bench.faults = chance(30);
    bench.share(4, drawn(70, 150));
    finish_bench("rl_runtime_top_q2_tb");
  end
endmodule
