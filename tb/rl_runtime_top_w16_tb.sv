// Random traffic on the whole device with 16 workers.
module rl_runtime_top_w16_tb;
  import bench_pkg::*;

  top_bench #(.Workers(16)) bench ();

  initial begin
    bench.host.traffic.all(drawn(4, 5), drawn(90, 200));
    finish_bench("rl_runtime_top_w16_tb");
  end
endmodule
