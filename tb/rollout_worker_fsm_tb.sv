// rollout_worker_fsm against the reference: tokens, positions, ends and how they come about, for random descriptors
// with checkpoints, resident scoring, ends of sequence and STOPs; the consumer with and without stalls. Then its
// speed: a descriptor of n tokens takes n cycles, also for n = 1, and one of none takes one. One of three workers is
// used; the others must stay silent. Rollouts of two queue pairs, with the same numbers: a STOP ends those of its own, and
// a queue pair that is being disabled all of its.
module rollout_worker_fsm_tb;
  import bench_pkg::*;
  import bench_reference_pkg::*;
  import desc_pkg::*;
  import core_pkg::*;

  logic clk, rst_n;
  int   cycle;
  clock_reset #(.Limit(120000)) u_clock (.clk_o(clk), .rst_no(rst_n), .cycle_o(cycle));

  localparam int Queues = 2;
  logic        clear = 1'b0, start = 1'b0;
  logic [3:0]  start_queue = '0;
  queue_config_t start_config = '0;
  logic [Queues-1:0] drain = '0, drained = '0;
  logic [15:0] wait_states = '0;
  // Of each queue pair.
  logic [15:0] eos_threshold_of [0:Queues-1];
  logic [31:0] reward_threshold_of [0:Queues-1];

  task automatic set_thresholds(input logic [15:0] eos_threshold, input logic [31:0] reward_threshold);
    for (int q = 0; q < Queues; q++) begin
      eos_threshold_of[q]    = eos_threshold + (eos_threshold == 0 ? 0 : 400 * q);
      reward_threshold_of[q] = reward_threshold + 32'h2000 * q;
      start       <= 1'b1;
      start_queue <= q;
      start_config.eos_threshold    <= eos_threshold_of[q];
      start_config.reward_threshold <= reward_threshold_of[q];
      @(posedge clk);
    end
    start <= 1'b0;
    @(posedge clk);
  endtask

  logic        assign_now, assign_q = 1'b0, probe = 1'b0, holds, joins, wants, free, ready, token, finish, done;
  logic        abort = 1'b0;
  logic [3:0]  abort_queue = '0;
  logic [31:0] abort_rollout = '0;
  logic        stop = 1'b0, stop_group = 1'b0, refused = 1'b0;
  logic [31:0] retires;
  logic        retire = 1'b0, retire_slot = 1'b0, retire_abort = 1'b0;
  logic [Queues-1:0] retire_pairs = '0;
  logic [3:0]  stop_queue = '0, probe_queue = '0, prepare_queue = '0;
  logic [31:0] stop_rollout = '0, probe_rollout = '0, token_data, position, digest;
  logic [3:0]  how;
  logic        delivered, run, waiting;
  work_t       work;
  // What the engine prepares three cycles after this, and the same for descriptors that follow without a gap.
  logic        prepare = 1'b0;
  logic [31:0] prepare_salt = '0, prepare_rollout, prepare_seed, prepare_seq_len, counter_now, hash_now;

  // The worker under test is the middle one; its lane of every vector.
  localparam int Workers = 3;
  localparam int Lane    = 1;
  logic [Workers-1:0]    holds_all, joins_all, wants_all, free_all, moved_all, token_all, finish_all, done_all, run_all, wait_all;
  logic [Workers-1:0]    with_logp_all;
  logic [Workers*32-1:0] token_data_all, logp_all, position_all, digest_all;
  logic                  with_logp;
  logic [31:0]           logp;
  logic [Workers*4-1:0]  how_all;
  assign holds      = holds_all[Lane];
  assign joins      = joins_all[Lane];
  assign wants      = wants_all[Lane];
  assign free       = free_all[Lane];
  assign token      = token_all[Lane];
  assign token_data = token_data_all[Lane*32 +: 32];
  assign position   = position_all[Lane*32 +: 32];
  assign finish     = finish_all[Lane];
  assign done       = done_all[Lane];
  assign digest     = digest_all[Lane*32 +: 32];
  assign with_logp  = with_logp_all[Lane];
  assign logp       = logp_all[Lane*32 +: 32];
  assign how        = how_all[Lane*4 +: 4];
  assign run        = run_all[Lane];
  assign waiting    = wait_all[Lane];

  // The engine, and one that at times takes no start and no step and gives no token.
  logic                   load, slow_start = 1'b0, slow_step = 1'b0, slow_token = 1'b0;
  logic [4:0]             load_place;
  logic [Workers-1:0]     engine_start, engine_place, start_ready, step, step_ready, token_valid, eos_all, token_take;
  logic [Workers*32-1:0]  engine_token;
  logic [ENGINE_BITS-1:0] prepared;
  int                     slow = 0;
  logic                   streaming = 1'b0;   // an ideal dispatcher gives the next as soon as the worker wants it

  rollout_worker_fsm #(.Queues(Queues), .Workers(Workers)) u_workers (
    .clk_i(clk), .rst_ni(rst_n), .start_i(start), .start_queue_i(start_queue), .start_config_i(start_config), .drain_i(drain),
    .wait_states_i(wait_states), .assign_i({1'b0, assign_now, 1'b0}), .assign_worker_i(4'd1), .work_i(work), .stopped_i(1'b0),
    .refused_i(refused), .stop_i(stop), .stop_queue_i(stop_queue), .stop_group_i(stop_group), .stop_rollout_i(stop_rollout),
    .abort_i(abort), .abort_queue_i(abort_queue), .abort_rollout_i(abort_rollout),
    .retire_i(retire), .retire_pairs_i(retire_pairs), .retire_slot_i(retire_slot), .retire_abort_i(retire_abort), .probe_i(probe), .probe_queue_i(probe_queue),
    .probe_rollout_i(probe_rollout), .holds_o(holds_all), .joins_o(joins_all), .wants_o(wants_all), .free_o(free_all),
    .moved_o(moved_all), .slow_i(3'd0), .fault_i(3'd0), .fault_memory_i(3'd0),
    .ready_i({1'b1, ready, 1'b1}), .token_o(token_all), .token_data_o(token_data_all), .logp_o(with_logp_all), .position_o(position_all),
    .finish_o(finish_all), .done_o(done_all), .digest_o(digest_all), .how_o(how_all),
    .delivered_i({1'b0, delivered, 1'b0}), .run_o(run_all), .wait_o(wait_all),
    .load_o(load), .load_place_o(load_place), .begin_o(engine_start), .begin_place_o(engine_place),
    .begin_ready_i(start_ready & {Workers{!slow_start}}), .step_o(step), .step_ready_i(step_ready & {Workers{!slow_step}}),
    .token_valid_i(token_valid & {Workers{!slow_token}}), .engine_token_i(engine_token), .eos_i(eos_all),
    .token_take_o(token_take)
  );

  engine_hash #(.Queues(Queues), .Workers(Workers)) u_engine (
    .clk_i(clk), .rst_ni(rst_n), .start_i(start), .start_queue_i(start_queue), .start_config_i(start_config),
    .prepare_i(prepare), .queue_i(prepare_queue),
    .rollout_i(prepare_rollout), .seed_i(prepare_seed), .seq_len_i(prepare_seq_len), .salt_i(prepare_salt), .prepared_o(prepared),
    .load_i(load), .load_place_i(load_place), .load_prepared_i(streaming ? {16'd0, counter_now, hash_now} : prepared),
    .begin_i(engine_start), .begin_place_i(engine_place),
    .begin_ready_o(start_ready), .step_i(step & {Workers{!slow_step}}), .step_ready_o(step_ready),
    .token_valid_o(token_valid), .token_o(engine_token), .eos_o(eos_all), .logp_i(with_logp_all), .logp_o(logp_all), .token_take_i(token_take)
  );

  always @(posedge clk) begin
    slow_start <= chance(slow);
    slow_step  <= chance(slow);
    slow_token <= chance(slow);
  end

  always @(posedge clk) if (rst_n) begin
    if ({holds_all[2], holds_all[0], joins_all[2], joins_all[0], token_all[2], token_all[0], finish_all[2], finish_all[0], done_all[2],
         done_all[0], run_all[2], run_all[0], wait_all[2], wait_all[0]} !== '0)
      fail("a worker without a descriptor does something");
    if ({wants_all[2], wants_all[0], free_all[2], free_all[0]} !== '1)
      fail("a worker without a descriptor is not free");
  end

  // ---------------------------------------------------------------- descriptors given, oldest first
  localparam int Many = 64;
  logic [$bits(work_t)-1:0] given [0:Many-1];
  logic        adds [0:Many-1], stopped [0:Many-1];
  // R20: a DECODE whose version was retired: with KEEP, and before it had started.
  logic        kept [0:Many-1], called_off [0:Many-1];
  int          kept_seen = 0, resident_kept_seen = 0, called_off_seen = 0;
  logic [31:0] salt [0:Many-1];
  logic [31:0] seed [0:Many-1], seq_len [0:Many-1];
  int          first = 0, last = 0;     // given, not yet ended: first to last
  int          produced = 0;            // tokens of the first
  logic [31:0] my_digest, my_since, to_checkpoint;
  logic        my_eos;
  logic [31:0] rollout_of [0:Many-1];
  logic [3:0]  queue_of [0:Many-1];

  // The result buffer: two items, taken at random.
  int   stall_out, stall_in, items = 0, ends_held = 0;
  logic item_is_end [0:1];
  int   ended = 0, tokens = 0, aborts_seen = 0, together_seen = 0, stops_seen = 0, groups_seen = 0, drained_seen = 0;
  int   first_done = 0, last_done = 0;  // cycles of ends

  // Registers for the wires.
  int   items_q = 0;
  logic end_q = 1'b0, want_take = 1'b0, take;
  assign ready     = items_q < 2;
  assign take      = want_take && items_q != 0;
  assign delivered = take && end_q;


  work_t       now;
  logic [31:0] hash;
  logic        eos, ends, rejected, was_done;
  logic [1:0]  reason;
  logic        expect_finish;

  task automatic check_token;
    now = given[first % Many];
    if (produced == 0) begin
      my_digest     = 32'h811C9DC5;
      my_since      = 32'h811C9DC5;
      my_eos        = 1'b0;
      to_checkpoint = now.checkpoint;
    end
    hash      = ref_salted(seed[first % Many], now.rollout_id, seq_len[first % Many] + produced, salt[first % Many]);
    if (called_off[first % Many]) fail("R20: a DECODE adds a token that was called off before it started");
    eos       = hash[31:17] < {1'b0, eos_threshold_of[now.pair]};
    my_eos    = my_eos || eos;
    my_digest = ref_digest(my_digest, {15'd0, hash[16:0]});
    my_since  = ref_digest(my_since, {15'd0, hash[16:0]});
    expect_eq("token", token_data, {15'd0, hash[16:0]});
    expect_eq("R11: logp", with_logp, now.logp);
    expect_eq("R11: log-probability", logp, now.logp ? ref_logp(hash) : 0);
    expect_eq("position", position, now.start_word + produced);
    produced      = produced + 1;
    to_checkpoint = to_checkpoint - 1;
    tokens        = tokens + 1;
    ends = 1'b1; reason = END_DONE; rejected = 1'b0;
    if (eos && now.eos_stops) ;
    else if (produced == now.max_tokens) ;
    else if (stopped[first % Many]) reason = END_STOPPED;
    else if (kept[first % Many] && !now.resident) reason = END_SUPERSEDED;
    else if (to_checkpoint == 0 && !now.resident) reason = END_REWARD_NEEDED;
    else if (to_checkpoint == 0 && ref_below(my_since, reward_threshold_of[now.pair])) rejected = 1'b1;
    else if (to_checkpoint == 0 && kept[first % Many]) reason = END_SUPERSEDED;
    else ends = 1'b0;
    if (ends && reason == END_SUPERSEDED) begin
      if (now.resident) resident_kept_seen = resident_kept_seen + 1;
      else              kept_seen = kept_seen + 1;
    end
    if (to_checkpoint == 0) begin
      to_checkpoint = now.checkpoint;
      my_since      = 32'h811C9DC5;
    end
    if (done !== ends) fail($sformatf("token %0d of %0d: done is %b", produced, now.max_tokens, done));
    expect_eq("finish", finish, done || position[3:0] == 4'd15);
    if (done) begin
      expect_eq("how", how, {rejected, my_eos, reason});
      expect_eq("digest", digest, my_digest);
    end
  endtask

  always @(posedge clk) if (rst_n && !clear) begin
    was_done = done;
    if ((token || finish || done) && !ready) fail("R4: a result with no place for it");
    if (probe) begin
      expect_finish = 1'b0;
      for (int k = first - ends_held; k < last; k++) if (rollout_of[k % Many] == probe_rollout && queue_of[k % Many] == probe_queue) expect_finish = 1'b1;
      if (holds !== expect_finish) fail($sformatf("R5: holds is %b for rollout %h", holds, probe_rollout));
      if (joins !== (first != last && last - first - int'(run || waiting) < 2 && rollout_of[(last - 1) % Many] == probe_rollout && queue_of[(last - 1) % Many] == probe_queue))
        fail($sformatf("R5: joins is %b for rollout %h, %0d are held", joins, probe_rollout, last - first));
    end
    if (free !== (first == last && !waiting && !run)) fail("free_o is wrong");
    // R20: the token of this cycle is the last of what runs; what is queued adds none.
    if (retire) for (int k = first; k < last; k++) begin
      now = given[k % Many];
      if (retire_pairs[queue_of[k % Many]] && now.slot == retire_slot && adds[k % Many]) begin
        if (retire_abort) stopped[k % Many] = 1'b1;
        else              kept[k % Many] = 1'b1;
        if (!(k == first && (run || waiting))) called_off[k % Many] = 1'b1;
      end
    end
    if (token && first == last) fail("a token of no descriptor");
    else if (token) check_token;
    else if (done) begin
      if (first == last || (adds[first % Many] && !called_off[first % Many])) fail("an end without a token");
      if (first != last && adds[first % Many]) begin
        expect_eq("how of what was called off", how, {2'b10, stopped[first % Many] ? END_STOPPED : END_SUPERSEDED});
        called_off_seen = called_off_seen + 1;
      end
    end else if (finish) fail("a line is finished without a token");

    if (take) begin
      if (item_is_end[0]) ends_held = ends_held - 1;
      item_is_end[0] = item_is_end[1];
      items = items - 1;
    end
    if (finish) begin
      item_is_end[items] = done;
      items = items + 1;
    end
    if (was_done) begin
      first     = first + 1;
      produced  = 0;
      ended     = ended + 1;
      ends_held = ends_held + 1;
      last_done = cycle;
      if (ended == 1) first_done = cycle;
    end
    // R8: a STOP ends what is here; what comes in this cycle is not.
    if (stop) for (int k = first; k < last; k++) begin
      now = given[k % Many];
      if (queue_of[k % Many] == stop_queue
          && (stop_group ? now.cow_prefix && now.prefix_id == stop_rollout : rollout_of[k % Many] == stop_rollout)) begin
        stopped[k % Many] = 1'b1;
        stops_seen = stops_seen + 1;
        if (stop_group) groups_seen = groups_seen + 1;
      end
    end
    // An ABORT does, beside a STOP too.
    if (abort) for (int k = first; k < last; k++) begin
      if (queue_of[k % Many] == abort_queue && rollout_of[k % Many] == abort_rollout) begin
        stopped[k % Many] = 1'b1;
        aborts_seen = aborts_seen + 1;
        if (stop) together_seen = together_seen + 1;
      end
    end
    // R12: all that is here of a queue pair that is being disabled.
    if (drain != 0) for (int k = first; k < last; k++) if (drain[queue_of[k % Many]]) begin
      if (!stopped[k % Many]) drained_seen = drained_seen + 1;
      stopped[k % Many] = 1'b1;
    end
    if (moved_all[0] || moved_all[2]) fail("a worker without a descriptor moved");
    if (delivered && !moved_all[1]) fail("an end was taken, and that moved nothing");
    // The descriptor that was shown in this cycle is in.
    if (assign_now) begin
      if (refused) adds[last % Many] = 1'b0;
      last = last + 1;
    end
    if (streaming && assign_now) begin
      to_give <= to_give - 1;
      make_work(stream_tokens);
    end
    items_q   <= items;
    end_q     <= item_is_end[0];
    want_take <= !chance(stall_out);
  end

  // ---------------------------------------------------------------- the dispatcher's side
  int   pool = 4, longest = 40;
  logic plain = 1'b0;                   // no checkpoint, no flag
  int   to_give = 0, stream_tokens;
  assign assign_now = streaming ? (wants && to_give != 0) : assign_q;

  // n tokens; negative: any number. Shown from the next cycle on.
  task automatic make_work(input int n);
    work_t next;
    int k;
    k = last % Many;
    next            = '0;
    next.rollout_id = below(pool);
    seed[k]         = rnd();
    seq_len[k]      = below(1000);
    next.pair       = plain ? 4'd0 : below(Queues);
    rollout_of[k]   = next.rollout_id;
    queue_of[k]     = next.pair;
    prepare_queue   <= next.pair;
    counter_now     <= ref_mix(seed[k] ^ ref_mix(next.rollout_id + 32'h9E3779B9)) + seq_len[k] * 32'h9E3779B9;
    hash_now        <= ref_hash(seed[k], next.rollout_id, seq_len[k]);
    prepare         <= 1'b1;
    prepare_rollout <= next.rollout_id;
    prepare_seed    <= seed[k];
    prepare_seq_len <= seq_len[k];
    salt[k]         = plain ? 32'd0 : rnd();
    prepare_salt    <= salt[k];
    next.slot       = rnd();
    next.logp       = seed[k][7];
    kept[k]         = 1'b0;
    called_off[k]   = 1'b0;
    next.start_word = rnd();
    next.max_tokens = (n >= 0) ? n : between(1, longest);
    next.checkpoint = (plain || chance(50)) ? CHECKPOINT_NEVER : between(1, 12);
    next.resident   = !plain && chance(30);
    next.eos_stops  = !plain && chance(40);
    next.adds_tokens = plain ? n != 0 : chance(75);
    next.cow_prefix  = chance(60);
    next.prefix_id   = below(pool);
    work    <= next;
    // R17: what is refused adds no tokens either.
    refused <= !plain && chance(10);
    given[k] = next;
    adds[k]  = next.adds_tokens;
    stopped[k] = 1'b0;
  endtask

  always @(posedge clk) begin
    probe         <= rst_n && chance(50);
    probe_rollout <= below(pool);
    stop          <= rst_n && !plain && chance(6);
    stop_rollout  <= below(pool);
    stop_group    <= chance(50);
    stop_queue    <= below(Queues);
    abort         <= rst_n && !plain && chance(stop ? 40 : 4);
    abort_rollout <= below(pool);
    abort_queue   <= below(Queues);
    probe_queue   <= below(Queues);
    retires       = rnd();
    retire        <= rst_n && !plain && chance(7);
    retire_pairs  <= rnd();
    // A version is retired once: that of slot 0 with KEEP, that of slot 1 with ABORT.
    retire_abort  <= retires[0];
    retire_slot   <= retires[0];
    // A disable takes some cycles, in which nothing of its queue pair comes.
    if (rst_n && !plain && drain == 0 && below(150) == 0) drain[below(Queues)] <= 1'b1;
    else if (chance(30)) drain <= '0;
  end

  // One at a time, with a cycle in between, as the dispatcher would: what joins the youngest, or what the worker asks
  // for.
  task automatic feed(input int count);
    int waited;
    repeat (count) begin
      waited = 0;
      waits_for = "the bench waits for wants_o or for room behind the youngest";
      make_work(-1);
      @(posedge clk);
      prepare <= 1'b0;
      repeat (3) @(posedge clk);
      while (drain[queue_of[last % Many]] || !(wants || (first != last && last - first - int'(run || waiting) < 2 && rollout_of[last % Many] == rollout_of[(last - 1) % Many]
                        && queue_of[last % Many] == queue_of[(last - 1) % Many]))
             || chance(stall_in)) @(posedge clk);
      assign_q <= 1'b1;
      @(posedge clk);
      assign_q <= 1'b0;
      @(posedge clk);
    end
    waits_for = "the bench waits for the worker to become free";
    while (first != last || items != 0) @(posedge clk);
    repeat (3) @(posedge clk);
  endtask

  // Cycles from the first end to the last.
  task automatic stream(input int n);
    stream_tokens = n;
    make_work(n);
    ended   = 0;
    to_give <= 40;
    streaming <= 1'b1;
    waits_for = "the bench waits for a streamed descriptor";
    while (ended < 40) @(posedge clk);
    if (last_done - first_done != 39 * (n == 0 ? 1 : n))
      fail($sformatf("39 descriptors of %0d tokens took %0d cycles", n, last_done - first_done));
    streaming <= 1'b0;
    repeat (4) @(posedge clk);
  endtask

  // Whether something was seen too seldom.
  function automatic logic lacks();
    lacks = stops_seen < 50 || aborts_seen < 50 || together_seen < 10 || kept_seen < 20 || resident_kept_seen < 1 || called_off_seen < 5 || groups_seen < 20 || drained_seen < 20;
  endfunction

  initial begin
    @(posedge rst_n);
    @(posedge clk);
    // Goes on until everything was seen often enough, for four times as many rounds at most.
    for (int k = 0; k < 16 || (k < 64 && lacks()); k++) begin
      stall_out        = k[0] ? 60 : 0;
      stall_in         = k[1] ? 80 : 0;
      wait_states      = k[2] ? 16'd2 : 16'd0;
      // A threshold below zero rejects nothing, one above all scores everything.
      set_thresholds(k[3] ? 16'd2500 : 16'd0, k[2:0] == 3'd5 ? 32'h8000_0000 : k[2:0] == 3'd6 ? 32'h7FFF_0000 : 32'h5000);
      longest          = k[1] ? 60 : 12;
      slow             = k[1:0] == 2'b10 ? 50 : 0;
      feed(120);
    end
    // No cycle is lost between descriptors.
    slow = 0; stall_out = 0; wait_states = 0; plain = 1'b1; pool = 1000;
    drain <= '0;
    set_thresholds(0, 0);
    repeat (4) @(posedge clk);
    for (int n = 0; n <= 20; n++) stream(n);
    if (stops_seen < 50) fail($sformatf("only %0d descriptors were stopped", stops_seen));
    if (kept_seen < 20 || resident_kept_seen < 1 || called_off_seen < 5)
      fail($sformatf("only %0d superseded, %0d resident ones, %0d called off", kept_seen, resident_kept_seen, called_off_seen));
    if (aborts_seen < 50 || together_seen < 10) fail($sformatf("only %0d descriptors were aborted, %0d beside a STOP", aborts_seen, together_seen));
    if (groups_seen < 20) fail($sformatf("only %0d descriptors were stopped with their group", groups_seen));
    if (drained_seen < 20) fail($sformatf("only %0d descriptors were ended by a disable", drained_seen));
    if (tokens < 5000) fail($sformatf("only %0d tokens", tokens));
    finish_bench("rollout_worker_fsm_tb");
  end
endmodule
