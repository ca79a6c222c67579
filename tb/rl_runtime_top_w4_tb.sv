// Random traffic on the whole device with 4 workers.
module rl_runtime_top_w4_tb;
  import bench_pkg::*;

  top_bench #(.Workers(4), .FetchDepth(16), .CompletionDepth(8)) bench ();

  initial begin
    bench.host.traffic.all(drawn(4, 7), drawn(110, 150));
    finish_bench("rl_runtime_top_w4_tb");
  end
endmodule
