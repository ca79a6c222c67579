// Directed cases of a device of four queue pairs and two functions: what one queue pair does to another, which is nothing.
// Latencies of an idle device, the same rollout number twice, fences, STOPs, a host that never reaps, weights; and a disable,
// a drain and a function's reset in mid-run, against a run without it, cycle by cycle.
module rl_runtime_top_pairs_tb;
  import bench_pkg::*;
  import desc_pkg::*;

  top_bench #(.Queues(4), .Functions(2), .Workers(4), .FetchDepth(128)) bench ();

  hw_desc_t desc;

  // ---------------------------------------------------------------- frame of a case
  int sq_size, cq_size, wait_states;

  // All queue pairs of function 0, or the last two of function 1, whose workers are the other two.
  task automatic begin_case(input string name, input logic split);
    $display("case %0s", name);
    bench.u_memory.read_latency  = 0;
    bench.u_memory.write_latency = 0;
    bench.u_registers.write(REG_WINDOW_2_SIZE_LO + BLOCK_DEVICE_FUNCTION_PER_FUNCTION, '1);
    bench.u_registers.write(REG_WINDOW_2_SIZE_HI + BLOCK_DEVICE_FUNCTION_PER_FUNCTION, '1);
    bench.u_protocol.quiet = 1'b0;
    wait_states = 0;
    bench.host.default_config;             bench.gen_host[1].host.default_config;
    bench.gen_host[2].host.default_config; bench.gen_host[3].host.default_config;
    bench.host.alone = 1'b0;               bench.gen_host[1].host.alone = 1'b0;
    bench.gen_host[2].host.alone = 1'b0;   bench.gen_host[3].host.alone = 1'b0;
    bench.host.own_device = 1'b1;          bench.gen_host[1].host.own_device = 1'b0;
    bench.gen_host[2].host.own_device = split; bench.gen_host[3].host.own_device = 1'b0;
    bench.host.own_function = 1'b1;        bench.gen_host[1].host.own_function = 1'b0;
    bench.gen_host[2].host.own_function = split; bench.gen_host[3].host.own_function = 1'b0;
    bench.host.mask = split ? 4'b0011 : 4'b1111;
    bench.gen_host[1].host.mask = bench.host.mask;
    bench.gen_host[2].host.mask = split ? 4'b1100 : 4'b1111;
    bench.gen_host[3].host.mask = bench.gen_host[2].host.mask;
    bench.gen_host[2].host.owner = split;
    bench.gen_host[3].host.owner = split;
    bench.u_registers.write(REG_QUEUE_FUNCTION + 2 * BLOCK_DEVICE_QUEUE_PER_QUEUE, split);
    bench.u_registers.write(REG_QUEUE_FUNCTION + 3 * BLOCK_DEVICE_QUEUE_PER_QUEUE, split);
  endtask

  task automatic enable_all;
    bench.u_registers.write(REG_WAIT_STATES, wait_states);
    bench.host.enable;
    bench.gen_host[1].host.enable;
    bench.gen_host[2].host.enable;
    bench.gen_host[3].host.enable;
  endtask

  task automatic end_case;
    bench.host.release_seen;             bench.host.expect_all_done;             bench.host.disable_device;
    bench.gen_host[1].host.release_seen; bench.gen_host[1].host.expect_all_done; bench.gen_host[1].host.disable_device;
    bench.gen_host[2].host.release_seen; bench.gen_host[2].host.expect_all_done; bench.gen_host[2].host.disable_device;
    bench.gen_host[3].host.release_seen; bench.gen_host[3].host.expect_all_done; bench.gen_host[3].host.disable_device;
    bench.u_registers.expect_read(BLOCK_FUNCTION, 0);
  endtask

  // ---------------------------------------------------------------- latency of an idle device
  int doorbell_at, ar_at, assigned_at, visible_at;
  always @(posedge bench.clk) begin
    if (bench.s_axil_wvalid && bench.s_axil_wready && bench.s_axil_awaddr[17:16] == 2'b10 && bench.s_axil_awaddr[11:0] == REG_DOORBELL[11:0])
      doorbell_at = bench.cycle;
    if (bench.m_axi_arvalid && bench.m_axi_arready)  ar_at       = bench.cycle;
    if (bench.u_device.assign_work != 0)             assigned_at = bench.cycle;
    if (bench.m_axi_bvalid && bench.m_axi_bid >= 16) visible_at  = bench.cycle;
  end

  task automatic expect_latency(input string what, input int n);
    expect_eq({"cycles to AR of ", what}, 64'(ar_at - doorbell_at), 64'd4);
    expect_eq({"cycles to the assignment of ", what}, 64'(assigned_at - doorbell_at), 64'd10);
    expect_eq({"cycles to the completion of ", what}, 64'(visible_at - doorbell_at), 64'(21 + n));
  endtask

  task automatic case_latency(input int n);
    begin_case("latency", 1'b0);
    enable_all;
    bench.host.put_decode(1, n);
    bench.host.ring;
    bench.host.await_completions(1, 3000);
    expect_latency("queue pair 0", n);
    bench.gen_host[2].host.put_decode(1, n);
    bench.gen_host[2].host.ring;
    bench.gen_host[2].host.await_completions(1, 3000);
    expect_latency("queue pair 2", n);
    bench.gen_host[3].host.put_decode(1, n);
    bench.gen_host[3].host.ring;
    bench.gen_host[3].host.await_completions(1, 3000);
    expect_latency("queue pair 3", n);
    end_case;
  endtask

  // ---------------------------------------------------------------- R5, R7, R8 look at their own queue pair only
  task automatic case_same_rollout;
    begin_case("the same rollout in two queue pairs", 1'b0);
    wait_states = 20;
    enable_all;
    bench.host.put_decode(7, 40);
    bench.host.ring;
    bench.gen_host[1].host.put_decode(7, 5);
    bench.gen_host[1].host.ring;
    // Two rollouts: the short one does not wait for the long one.
    bench.gen_host[1].host.await_completions(1, 600);
    if (bench.host.u_score.cq_visible != 0) fail("R5: the rollout of queue pair 1 waited for that of queue pair 0");
    bench.gen_host[1].host.put_decode(7, 40);
    bench.gen_host[1].host.ring;
    repeat (100) @(posedge bench.clk);
    // R8: a STOP ends that of its own queue pair, at the workers and waiting.
    bench.host.put(bench.host.blank(OP_STOP, 7));
    bench.host.ring;
    bench.host.await_completions(1, 3000);
    expect_eq("status of the stopped one", bench.host.last_done.status, STATUS_STOPPED);
    bench.host.await_completions(1, 3000);
    bench.gen_host[1].host.await_completions(1, 3000);
    expect_eq("status of the other queue pair's", bench.gen_host[1].host.last_done.status, STATUS_DONE);
    end_case;
  endtask

  task automatic case_fence;
    begin_case("a fence", 1'b0);
    wait_states = 20;
    enable_all;
    bench.host.put_decode(1, 40);
    desc       = bench.host.blank(OP_NOP, 2);
    desc.flags = FLAG_FENCE;
    bench.host.put(desc);
    bench.host.put_decode(3, 2);
    bench.host.ring;
    repeat (40) @(posedge bench.clk);
    for (int k = 0; k < 6; k++) bench.gen_host[1].host.put_decode(k, 2);
    desc       = bench.gen_host[1].host.blank(OP_NOP, 2);
    desc.flags = FLAG_FENCE;
    bench.gen_host[1].host.put(desc);
    bench.gen_host[1].host.ring;
    bench.gen_host[1].host.await_completions(7, 600);
    if (bench.host.u_score.cq_visible != 0) fail("R7: queue pair 1 waited for a fence of queue pair 0");
    bench.host.await_completions(3, 3000);
    end_case;
  endtask

  // ---------------------------------------------------------------- R4: credits
  // A host that never reaps fills its completion queue, and holds up nobody; nothing of it occupies a worker.
  task automatic case_no_reaping;
    int waited;
    begin_case("a host that never reaps", 1'b0);
    bench.host.cq_size = 4;
    enable_all;
    for (int k = 0; k < 40; k++) bench.host.put_decode(k, 3);
    bench.host.ring;
    repeat (400) @(posedge bench.clk);
    expect_eq("completions in a queue of 4", bench.host.u_score.cq_visible, 4);
    if (bench.u_device.free !== '1) fail("R4: a worker waits for a slot of a completion queue");
    expect_own("STALL_CQ of a queue pair that is held", 0, CNT_QUEUE_STALL_CQ, 300, 500);
    for (int q = 1; q < 4; q++) expect_own("STALL_CQ of a queue pair that is not", q, CNT_QUEUE_STALL_CQ, 0, 0);
    for (int k = 0; k < 60; k++) bench.gen_host[1].host.put_decode(k, 20);
    bench.gen_host[1].host.ring;
    waited = bench.cycle;
    bench.gen_host[1].host.await_completions(60, 3000);
    waited = bench.cycle - waited;
    if (waited > 60 * 20 / 4 + 200) fail($sformatf("60 descriptors took %0d cycles beside a full queue", waited));
    bench.host.await_completions(40, 3000);
    end_case;
  endtask

  // ---------------------------------------------------------------- counters
  task automatic expect_own(input string what, input int q, input logic [17:0] addr, input int least, input int most);
    logic [63:0] value;
    bench.u_registers.read64(addr + BLOCK_QUEUE_PER_QUEUE * q, value);
    if (value < 64'(least) || value > 64'(most))
      fail($sformatf("%0s: counter 0x%05h of queue pair %0d is %0d, expected %0d to %0d", what, addr, q, value, least, most));
  endtask

  // Each counts for itself, from its own ENABLE to the next; the device's go on.
  task automatic case_counters;
    logic [63:0] device;
    begin_case("counters of each queue pair", 1'b0);
    enable_all;
    for (int k = 0; k < 5; k++) bench.host.put_decode(k, 7 + 9 * k);
    desc            = bench.host.blank(OP_DECODE, 9);             // no tokens: an error
    bench.host.put(desc);
    bench.host.ring;
    // Log-probabilities are no tokens; its first line and its last one are not whole.
    bench.gen_host[1].host.make_decode(1, 40, 5, desc);
    desc.flags = FLAG_LOGP;
    bench.gen_host[1].host.put(desc);
    bench.gen_host[1].host.put(bench.gen_host[1].host.blank(OP_NOP, 2));
    bench.gen_host[1].host.ring;
    bench.host.await_completions(6, 3000);
    bench.gen_host[1].host.await_completions(2, 3000);
    bench.host.expect_all_done;
    bench.gen_host[1].host.expect_all_done;
    expect_own("TOKENS", 0, CNT_QUEUE_TOKENS, 125, 125);
    expect_own("ERRORS", 0, CNT_QUEUE_ERRORS, 1, 1);
    expect_own("TOKENS", 1, CNT_QUEUE_TOKENS, 40, 40);
    expect_own("DESCRIPTORS of one without any", 2, CNT_QUEUE_DESCRIPTORS, 0, 0);
    bench.gen_host[1].host.disable_device;
    expect_own("TOKENS behind a disable", 1, CNT_QUEUE_TOKENS, 40, 40);
    bench.gen_host[1].host.enable;
    for (int k = 0; k < 5; k++) expect_own("at ENABLE", 1, CNT_QUEUE_DESCRIPTORS + 8 * k, 0, 0);
    expect_own("TOKENS beside an ENABLE", 0, CNT_QUEUE_TOKENS, 125, 125);
    bench.u_registers.read64(CNT_TOKENS, device);
    expect_eq("TOKENS of the device", device, 165);
    end_case;
  endtask

  // ---------------------------------------------------------------- weights
  // One worker, four queue pairs that always have something: shares as the weights, whole rounds.
  int shares [0:3];
  logic counting = 1'b0;
  always @(posedge bench.clk) if (counting && bench.u_device.taken) shares[bench.u_device.look_queue] = shares[bench.u_device.look_queue] + 1;

  task automatic case_weights;
    begin_case("weights", 1'b0);
    bench.host.mask = 1; bench.gen_host[1].host.mask = 1; bench.gen_host[2].host.mask = 1; bench.gen_host[3].host.mask = 1;
    bench.host.weight = 5; bench.gen_host[1].host.weight = 1; bench.gen_host[2].host.weight = 3; bench.gen_host[3].host.weight = 2;
    enable_all;
    for (int k = 0; k < 60; k++) begin
      bench.host.put_decode(k, 10);
      bench.gen_host[1].host.put_decode(k, 10);
      bench.gen_host[2].host.put_decode(k, 10);
      bench.gen_host[3].host.put_decode(k, 10);
    end
    bench.host.ring;
    bench.gen_host[1].host.ring;
    bench.gen_host[2].host.ring;
    bench.gen_host[3].host.ring;
    repeat (50) @(posedge bench.clk);
    for (int q = 0; q < 4; q++) shares[q] = 0;
    counting = 1'b1;
    while (shares[0] + shares[1] + shares[2] + shares[3] < 88) @(posedge bench.clk);
    counting = 1'b0;
    expect_eq("share of weight 5", shares[0], 40);
    expect_eq("share of weight 1", shares[1], 8);
    expect_eq("share of weight 3", shares[2], 24);
    expect_eq("share of weight 2", shares[3], 16);
    bench.host.await_completions(60, 3000);
    bench.gen_host[1].host.await_completions(60, 3000);
    bench.gen_host[2].host.await_completions(60, 3000);
    bench.gen_host[3].host.await_completions(60, 3000);
    end_case;
  endtask

  // ---------------------------------------------------------------- R12: what becomes of the others
  localparam int Span = 700;
  int   trace_2 [0:Span-1], trace_3 [0:Span-1];    // tokens of workers 2 and 3 up to each cycle
  int   made_2, made_3, traced = Span, lost, gained;
  logic recording = 1'b0;
  always @(posedge bench.clk) if (traced < Span) begin
    made_2 = made_2 + int'(bench.u_device.token[2]);
    made_3 = made_3 + int'(bench.u_device.token[3]);
    if (recording) begin
      trace_2[traced] = made_2;
      trace_3[traced] = made_3;
    end else begin
      if (made_2 < trace_2[traced] || made_3 < trace_3[traced]) lost   = lost + 1;
      if (made_2 > trace_2[traced] || made_3 > trace_3[traced]) gained = gained + 1;
    end
    traced = traced + 1;
  end

  // Four full queue pairs; in mid-run something happens to queue pair 0, or to function 0. No register is written for the
  // others behind their doorbells.
  task automatic run_full(input int event_kind, input int after);
    begin_case($sformatf("full load, event %0d after %0d cycles", event_kind, after), 1'b1);
    // The same state at every start.
    bench.reset;
    begin_case("again", 1'b1);
    state = 32'h1234_5678;
    enable_all;
    for (int k = 0; k < 40; k++) begin
      bench.host.put_decode(k, 40);
      bench.gen_host[1].host.put_decode(k, 13);
      // Whole lines: what shares the write port with others can wait for it without a loss.
      bench.gen_host[2].host.make_decode(k, 32 + 16 * (k % 3), (16 - bench.gen_host[2].host.token_next % 16) % 16, desc);
      bench.gen_host[2].host.put(desc);
      bench.gen_host[3].host.make_decode(k, 32, (16 - bench.gen_host[3].host.token_next % 16) % 16, desc);
      bench.gen_host[3].host.put(desc);
    end
    bench.gen_host[2].host.ring;
    bench.gen_host[3].host.ring;
    bench.host.ring;
    bench.gen_host[1].host.ring;
    lost   = 0;
    gained = 0;
    made_2 = 0;
    made_3 = 0;
    traced = 0;
    repeat (after) @(posedge bench.clk);
    case (event_kind)
      1: bench.host.write(REG_CONTROL, 0);
      2: bench.host.write(REG_FN_CONTROL, FN_CONTROL_RESET);
      3: bench.host.write(REG_CONTROL, CONTROL_ENABLE | CONTROL_DRAIN);
      default: ;
    endcase
    waits_for = "the bench waits for the end of the trace";
    while (traced < Span) @(posedge bench.clk);
    if (event_kind == 1) begin
      bench.host.await_state(STATE_ACTIVE, 0, "STATE.ACTIVE = 0 of the queue pair that was disabled");
      bench.host.u_score.end_of_life;
      bench.host.expect_read(REG_CONTROL, 0);
      bench.gen_host[1].host.expect_read(REG_CONTROL, CONTROL_ENABLE);
    end
    if (event_kind == 2) begin
      bench.host.await_state(STATE_ACTIVE, 0, "STATE.ACTIVE = 0 of the first queue pair of the function");
      bench.gen_host[1].host.await_state(STATE_ACTIVE, 0, "STATE.ACTIVE = 0 of the second queue pair of the function");
      bench.host.u_score.end_of_life;
      bench.gen_host[1].host.u_score.end_of_life;
      bench.host.expect_read(REG_FN_CONTROL, 0);
    end
    if (event_kind == 3) begin
      bench.u_registers.refuse(REG_DOORBELL, bench.host.sq_tail);
      repeat (40) bench.host.await_completion(5000);        // it is inactive behind the last one, and takes no CQ_HEAD
      bench.host.await_state(STATE_ACTIVE, 0, "STATE.ACTIVE = 0 of the queue pair that drains");
      bench.host.u_score.end_of_life;
      bench.host.expect_read(REG_CONTROL, 0);
    end
    bench.gen_host[2].host.expect_read(REG_CONTROL, CONTROL_ENABLE);
    bench.gen_host[2].host.await_completions(40, 3000);
    bench.gen_host[3].host.await_completions(40, 3000);
    if (event_kind != 2) bench.gen_host[1].host.await_completions(40, 3000);
    if (event_kind == 0) bench.host.await_completions(40, 3000);
    // What was turned off starts anew, clean, beside the others.
    if (event_kind != 0) begin
      bench.host.own_device = 1'b0;
      bench.host.own_function = 1'b0;
      if (event_kind == 2) bench.gen_host[1].host.enable;
      bench.host.enable;
      bench.host.put_decode(5, 20);
      bench.host.ring;
      bench.host.await_completions(1, 3000);
    end
    end_case;
    if (!recording && lost != 0)
      fail($sformatf("R12: event %0d after %0d cycles: the workers of the other function are behind in %0d of %0d cycles",
                     event_kind, after, lost, Span));
    $display("%0d tokens of the other function; behind in %0d cycles, ahead in %0d", made_2 + made_3, lost, gained);
  endtask

  task automatic case_isolation;
    recording = 1'b1;
    run_full(0, 0);
    recording = 1'b0;
    run_full(0, 0);                       // nothing happens, nothing differs
    for (int k = 1; k <= 3; k++) begin
      if (drawn(0, 1) == 1) begin
        run_full(k, 100);
        run_full(k, 137);
      end
      run_full(k, drawn(100, 200) + below(drawn(300, 200)));
    end
  endtask

  initial begin
    @(posedge bench.rst_n);
    @(posedge bench.clk);
    case_latency(1);
    case_latency(5);
    case_latency(16);
    case_latency(40);
    case_same_rollout;
    case_fence;
    case_no_reaping;
    case_counters;
    case_weights;
    case_isolation;
    finish_bench("rl_runtime_top_pairs_tb");
  end
endmodule
