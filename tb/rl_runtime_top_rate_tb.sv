// Throughput as behaviour, in cycles. One worker changes descriptors without losing a cycle; at one token per
// descriptor the write port's beats are the limit: one per token line and half a one per completion. Work conservation:
// what is short does not wait behind what may run long while a worker idles.
module rl_runtime_top_rate_tb;
  import bench_pkg::*;
  import desc_pkg::*;

  localparam int Skip  = 40;            // descriptors until the pipeline is full
  localparam int Slack = 2;             // cycles that a completion beat may push a token line at either end

  top_bench #(.Workers(4)) bench ();

  // Cycle of each token line on the bus.
  int line_at [0:4095];
  int lines = 0;
  always @(posedge bench.clk) if (bench.accept && bench.accept_id != 16) begin
    line_at[lines] = bench.cycle;
    lines = lines + 1;
  end

  hw_desc_t desc;
  int       tokens [0:255];             // of each descriptor

  // Submits 'count' descriptors at once, of n tokens each (0: of 2 to 16), each in lines of its own.
  task automatic submit(input int count, input int n, input logic one_rollout, input logic [7:0] flags);
    for (int k = 0; k < count; k++) begin
      tokens[k] = (n == 0) ? between(2, 16) : n;
      bench.host.make_decode(one_rollout ? 5 : k, tokens[k], (16 - bench.host.token_next % 16) % 16, desc);
      desc.seq_len = below(1000);
      desc.flags   = flags;
      bench.host.put(desc);
    end
    lines = 0;
    bench.host.ring;
  endtask

  task automatic finish(input int count);
    repeat (count) bench.host.await_completion(20000);
    bench.host.release_seen;
    bench.host.expect_all_done;
    bench.host.disable_device;
    bench.host.check_counters;
  endtask

  task automatic begin_run(input int workers, input int latency, input int waits);
    bench.host.default_config;
    bench.host.sq_size     = 256;
    bench.host.cq_size     = 256;
    bench.host.token_base  = bench.host.Base + 64 * 600;
    bench.host.workers     = workers;
    bench.host.wait_states = waits;
    bench.u_memory.read_latency  = latency;
    bench.u_memory.write_latency = latency;
    bench.host.enable;
  endtask

  // Cycles from the last line of descriptor Skip to that of the last one, against 'limit' (in half cycles per
  // descriptor of one token, in cycles per token otherwise).
  task automatic one_worker(input int latency, input int n, input int waits, input logic one_rollout,
                            input logic [7:0] flags);
    int each;                           // beats of a line, with its log-probabilities
    int count, last, taken, expected, skipped;
    count = (n > 16) ? drawn(52, 70) : drawn(80, 120);
    begin_run(1, latency, waits);
    submit(count, n, one_rollout, flags);
    each     = flags[FLAG_LOGP_BIT] ? 2 : 1;
    finish(count);
    skipped  = 0;
    last     = 0;
    expected = 0;
    for (int k = 0; k < count; k++) begin
      last = last + each * ((tokens[k] + 15) / 16);
      if (k == Skip) skipped = last - 1;
      if (k > Skip)  expected = expected + tokens[k] * (1 + waits);
    end
    if (n == 1 && waits == 0) expected = expected + (count - Skip) / 2;
    if (lines != last) fail($sformatf("%0d token lines, expected %0d", lines, last));
    taken = line_at[last - 1] - line_at[skipped];
    if (taken > expected + Slack)
      fail($sformatf("latency %0d, %0d tokens, %0d wait states: %0d descriptors took %0d cycles, expected %0d",
                     latency, n, waits, count - Skip - 1, taken, expected));
    $display("latency %2d, tokens %2d, wait states %0d: %0d cycles, expected %0d", latency, n, waits, taken, expected);
  endtask

  // N workers give N tokens per cycle.
  task automatic all_workers(input int latency);
    int taken, from, measured;          // descriptors
    begin_run(4, latency, 0);
    measured = drawn(24, 64);
    submit(measured + 32, 64, 1'b0, 8'h00);
    finish(measured + 32);
    from  = 16 * 4;
    taken = line_at[(measured + 16) * 4] - line_at[from];
    if (taken > measured * 64 / 4 + 16) fail($sformatf("4 workers took %0d cycles for %0d tokens", taken, 64 * measured));
    $display("latency %2d, 4 workers: %0d cycles for %0d tokens", latency, taken, 64 * measured);
  endtask

  // Work conservation: short descriptors do not wait behind a long one while a worker idles, whatever may end the long
  // one early. Round robin alone would give all three long ones, and what follows them, to one worker.
  task automatic mixed(input int workers, input logic [7:0] flags, input int waits, output int taken);
    int from;
    begin_run(workers, 0, waits);
    for (int k = 0; k < 12; k++) begin
      bench.host.make_decode(k, (k % workers == 0) ? 300 : 4 + k, 0, desc);
      desc.flags = flags;
      if (flags[FLAG_RESIDENT_BIT]) desc.checkpoint = 3;
      bench.host.put(desc);
    end
    bench.host.ring;
    from = bench.cycle;
    finish(12);
    taken = last_done_at - from;
  endtask

  int last_done_at;
  always @(posedge bench.clk) if (bench.effect && bench.effect_id == 16) last_done_at = bench.cycle;

  task automatic late_binding(input int waits);
    int plain, eos_stops, resident;
    mixed(4, 8'h00, waits, plain);
    mixed(4, FLAG_EOS_STOPS, waits, eos_stops);
    mixed(4, FLAG_RESIDENT, waits, resident);
    $display("12 descriptors, 3 of 300 tokens, 4 workers, wait states %0d: %0d cycles, %0d with EOS_STOPS, %0d RESIDENT",
             waits, plain, eos_stops, resident);
    if (plain > 360 * (1 + waits)) fail($sformatf("12 descriptors took %0d cycles", plain));
    if (eos_stops > plain) fail($sformatf("with EOS_STOPS 12 descriptors took %0d cycles, without %0d", eos_stops, plain));
    if (resident > plain + 8 * (1 + waits)) fail($sformatf("with RESIDENT 12 descriptors took %0d cycles, without %0d", resident, plain));
  endtask

  // What a descriptor that ends before its certain end costs: the next one is bound only then.
  task automatic early_end;
    begin_run(1, 0, 0);
    bench.host.disable_device;
    bench.host.eos_threshold = 16'd3000;
    bench.host.enable;
    for (int k = 0; k < 40; k++) begin
      bench.host.make_decode(k, 200, (16 - bench.host.token_next % 16) % 16, desc);
      desc.flags = FLAG_EOS_STOPS;
      bench.host.put(desc);
    end
    bench.host.ring;
    started = 1'b1;
    finish(40);
    started = 1'b0;
    if (ends_seen != 40 || idle_seen > 39 * EarlyEnd)
      fail($sformatf("%0d early ends left the worker idle for %0d cycles", ends_seen, idle_seen));
    $display("%0d early ends: %0d idle cycles between them", ends_seen, idle_seen);
  endtask

  localparam int EarlyEnd = 2;          // cycles that an early end may cost
  logic started = 1'b0;
  int   ends_seen, idle_seen;
  always @(posedge bench.clk) begin
    if (!started) begin
      ends_seen = 0;
      idle_seen = 0;
    end else begin
      if (ends_seen != 0 && ends_seen != 40 && !bench.u_device.running[0]) idle_seen = idle_seen + 1;
      if (bench.u_device.ended[0]) ends_seen = ends_seen + 1;
    end
  end

  // Latency of a descriptor alone, in cycles from the W beat of its doorbell to its AR, its assignment and the B of its
  // completion, with a memory of one cycle.
  int doorbell_at, ar_at, assigned_at, visible_at;
  always @(posedge bench.clk) begin
    if (bench.s_axil_wvalid && bench.s_axil_wready && bench.s_axil_awaddr == REG_DOORBELL) doorbell_at = bench.cycle;
    if (bench.m_axi_arvalid && bench.m_axi_arready)        ar_at       = bench.cycle;
    if (bench.u_device.assign_work != 0)                   assigned_at = bench.cycle;
    if (bench.m_axi_bvalid && bench.m_axi_bid == 16)       visible_at  = bench.cycle;
  end

  task automatic latency_of(input int n, input logic [7:0] flags);
    begin_run(4, 0, 0);
    submit(1, n, 1'b0, flags);
    finish(1);
    expect_eq("cycles to AR", 64'(ar_at - doorbell_at), 64'd4);
    expect_eq("cycles to the assignment", 64'(assigned_at - doorbell_at), 64'd10);
    expect_eq($sformatf("cycles to the completion of %0d tokens", n), 64'(visible_at - doorbell_at),
              64'(21 + n + int'(flags[FLAG_LOGP_BIT])));      // one more for the last line of log-probabilities
  endtask

  initial begin
    @(posedge bench.rst_n);
    @(posedge bench.clk);
    latency_of(1, 8'h00);
    latency_of(5, 8'h00);
    latency_of(16, 8'h00);
    latency_of(40, 8'h00);
    latency_of(1, FLAG_LOGP);
    latency_of(16, FLAG_LOGP);
    latency_of(40, FLAG_LOGP);
    late_binding(0);
    if (drawn(0, 1) == 1) late_binding(1);
    late_binding(6);
    early_end;
    for (int k = 0; k < 3; k++) begin
      int latency;
      latency = (k == 0) ? 0 : (k == 1) ? 16 : 64;
      one_worker(latency, 1, 0, 1'b0, 8'h00);
      one_worker(latency, 2, 0, 1'b0, 8'h00);
      one_worker(latency, 0, 0, 1'b0, 8'h00);
      if (latency != 16) begin
        one_worker(latency, 3, 0, 1'b1, 8'h00);
        if (latency == drawn(64, latency)) one_worker(latency, 20, 0, 1'b0, 8'h00);
        if (latency == drawn(0, latency))  one_worker(latency, 2, 1, 1'b0, 8'h00);
        // Two beats for each descriptor and half a completion: from three tokens on no cycle is lost.
        one_worker(latency, 3, 0, 1'b0, FLAG_LOGP);
        if (latency == drawn(64, latency)) one_worker(latency, 20, 0, 1'b0, FLAG_LOGP);
        all_workers(latency);
      end
    end
    finish_bench("rl_runtime_top_rate_tb");
  end
endmodule
