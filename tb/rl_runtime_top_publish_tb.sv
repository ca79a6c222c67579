// 80 publishes, or a thousand with +long, with KEEP under load, by the queue pair that runs the rollouts: every token is of the version that its
// descriptor names (the scoreboard compares each with that version's), no rollout is lost or ended, and behind a switch a
// worker adds one token at most under the version that was retired (R18 to R20).
module rl_runtime_top_publish_tb;
  import bench_pkg::*;
  import bench_reference_pkg::*;
  import desc_pkg::*;

  int publishes;                         // with +long a thousand

  top_bench #(.Workers(4), .FetchDepth(32), .Limit(400000)) bench ();

  logic [3:0]  counting = '0;            // workers, of what runs under the version that was retired last
  logic        retired_slot;
  int          behind [0:3];
  int          switches = 0, cut = 0;
  always @(posedge bench.clk) if (bench.rst_n) begin
    if (bench.u_device.switched) begin
      switches     = switches + 1;
      retired_slot = !bench.u_device.switch_slot;
      counting     = '1;
      for (int w = 0; w < 4; w++) behind[w] = 0;
    end
    for (int w = 0; w < 4; w++) begin
      if (counting[w] && bench.u_device.token[w] && bench.u_device.u_rollout_worker_fsm.slot_run_q[w] == retired_slot
          && !bench.u_device.u_rollout_worker_fsm.resident_q[w]) begin
        behind[w] = behind[w] + 1;
        cut       = cut + 1;
        if (behind[w] > 1) fail($sformatf("R20: worker %0d adds %0d tokens under a version that was retired", w, behind[w]));
      end
    end
  end

  task automatic step;
    bench.host.load.step;
    repeat (6) @(posedge bench.clk);
  endtask

  hw_desc_t    desc;
  logic [15:0] version;
  initial begin
    publishes = drawn(80, 1000);
    @(posedge bench.rst_n);
    @(posedge bench.clk);
    bench.host.begin_case("publishes under load");
    bench.host.reward_threshold = 32'h1000;
    bench.host.enable;
    bench.host.load.start(8, 30);
    version = 16'hFFC0;                  // which wraps
    for (int n = 0; n < publishes; n++) begin
      waits_for = $sformatf("the bench waits for publish %0d", n);
      // R19: what it replaces is complete.
      step;
      while (bench.host.u_score.in_use_yet(1 - bench.host.u_score.slot_last)) step;
      version = version + 1;
      if (version == 0) version = 1;
      bench.host.make_policy(32'h9000, version, POLICY_KEEP, 0, desc);
      bench.host.put(desc);
      bench.host.ring;
      while (bench.host.u_score.policy_pending) step;
    end
    bench.host.load.draining = 1'b1;
    waits_for = "the bench waits for the last rollouts";
    while (bench.host.outstanding() != 0) step;
    if (bench.host.load.aborted != 0) fail("R20: a rollout ends as STOPPED, with KEEP");
    if (bench.host.u_score.published_versions != publishes || switches != publishes)
      fail($sformatf("R19: %0d and %0d of %0d publishes", bench.host.u_score.published_versions, switches, publishes));
    if (bench.host.load.superseded < publishes || cut < publishes / 2)
      fail($sformatf("only %0d cuts, %0d tokens behind a switch", bench.host.load.superseded, cut));
    $display("cycle %0d: %0d publishes, %0d rollouts whole, %0d cuts, %0d rejected, %0d tokens behind a switch", bench.cycle, switches,
             bench.host.load.finished, bench.host.load.superseded, bench.host.load.rejected, cut);
    bench.host.end_case;
    finish_bench("rl_runtime_top_publish_tb");
  end
endmodule
