// Random traffic on all queue pairs of the device at once: 16 queue pairs, 4 functions, 16 workers. Before it, what a
// descriptor takes on the idle device, on the first and the last queue pair: as long as where there is only one.
module rl_runtime_top_q16_tb;
  import bench_pkg::*;
  import desc_pkg::*;

  top_bench #(.Queues(16), .Functions(4), .Workers(16), .FetchDepth(128), .CompletionDepth(64)) bench ();

  int doorbell_at, ar_at, assigned_at, visible_at;
  always @(posedge bench.clk) begin
    if (bench.s_axil_wvalid && bench.s_axil_wready && bench.s_axil_awaddr[17:16] == 2'b10 && bench.s_axil_awaddr[11:0] == REG_DOORBELL[11:0])
      doorbell_at = bench.cycle;
    if (bench.m_axi_arvalid && bench.m_axi_arready)  ar_at       = bench.cycle;
    if (bench.u_device.assign_work != 0)             assigned_at = bench.cycle;
    if (bench.m_axi_bvalid && bench.m_axi_bid >= 16) visible_at  = bench.cycle;
  end

  task automatic expect_latency(input int n);
    expect_eq("cycles to AR", 64'(ar_at - doorbell_at), 64'd4);
    expect_eq("cycles to the assignment", 64'(assigned_at - doorbell_at), 64'd10);
    expect_eq($sformatf("cycles to the completion of %0d tokens", n), 64'(visible_at - doorbell_at), 64'(21 + n));
  endtask

  task automatic latency_of(input int n);
    bench.host.default_config;
    bench.host.enable;
    bench.host.put_decode(1, n);
    bench.host.ring;
    bench.host.await_completions(1, 3000);
    expect_latency(n);
    bench.host.disable_device;
    bench.gen_host[15].host.default_config;
    bench.gen_host[15].host.enable;
    bench.gen_host[15].host.put_decode(1, n);
    bench.gen_host[15].host.ring;
    bench.gen_host[15].host.await_completions(1, 3000);
    expect_latency(n);
    bench.gen_host[15].host.disable_device;
  endtask

  initial begin
    @(posedge bench.rst_n);
    @(posedge bench.clk);
    latency_of(1);
    if (drawn(0, 1) == 1) latency_of(16);
    latency_of(40);
    bench.faults = chance(30);
    bench.share(drawn(1, 2), drawn(30, 60));
    finish_bench("rl_runtime_top_q16_tb");
  end
endmodule
