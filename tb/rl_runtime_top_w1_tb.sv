// Random traffic on the whole device with 1 worker.
module rl_runtime_top_w1_tb;
  import bench_pkg::*;

  top_bench #(.Workers(1), .FetchDepth(8), .CompletionDepth(4)) bench ();

  initial begin
    bench.host.traffic.all(drawn(4, 7), drawn(90, 120));
    finish_bench("rl_runtime_top_w1_tb");
  end
endmodule
