// completion_ring: records of three queue pairs, run by four workers whose lines mix, come out once each, in the order in which they came
// in of their queue pair, each in its slot with its phase; not before its token lines are acknowledged, both across 2^32 (R13). A slot is given away only when there is
// one (R4), and slot_o says so. A faulty line marks the record of the descriptor that it belongs to, and no other (R6).
// Releases good and bad, what is visible and what asked, by queue pair. Responses of different queue pairs come in any order.
// Completions of a queue pair that is turned off are dropped, each told once, and those of the others go on. What belongs to a group is told as it takes its slot, and whether it ends its member; what is said
// to close its group has GROUP_DONE and asks. Source, write port, acknowledgements and host with and without stalls.
module completion_ring_tb;
  import bench_pkg::*;
  import desc_pkg::*;
  import core_pkg::*;

  localparam int          Workers = 4;
  localparam int          Many    = 1024;
  localparam logic [63:0] Base    = 64'h5_0000_0FC0;
  localparam int          Rollout = DONE_BITS - 156;     // place of rollout_id in done_t

  logic clk, rst_n;
  int   cycle;
  clock_reset #(.Limit(120000)) u_clock (.clk_o(clk), .rst_no(rst_n), .cycle_o(cycle));

  localparam int          Queues  = 3;
  logic                       start = 1'b0;
  logic [3:0]                 start_queue = '0, release_queue = '0, reserve_queue = '0, state_queue = '0, posted_queue,
                              beat_queue, answered_queue, dropped_queue, flushed_queue;
  queue_config_t              start_config = '0;
  logic [Queues-1:0]          on = '0, slot_free, record_free, line_fault, write_fault;
  logic [31:0]                answered_to, asked_to, arm_visible;
  logic                       asks;
  logic [31:0]                release_head = '0, sq_head = '0, head, tail;
  logic                       release_now = 1'b0, release_ok, reserve, done_valid, want_done = 1'b0, posted, dropped;
  done_t                      done = '0;
  logic                       line = 1'b0, last_line = 1'b0;   // a line goes; the record's last goes with it
  logic [3:0]                 line_worker = '0, line_queue = '0;
  logic                       beat_valid, beat_urgent, beat_ready, want_beat = 1'b0;
  logic [63:0]                beat_addr;
  logic [3:0]                 beat_first, beat_last;
  logic [511:0]               beat_data;
  logic                       ack = 1'b0, ack_error = 1'b0;
  logic [5:0]                 ack_id = '0;
  logic [1:0]                 answered, visible, flushed;
  logic                       finish, finish_slot;
  logic [3:0]                 finish_queue;

  // Readback: one of each queue pair, with an answer some cycles later.
  logic                       read_valid, read_publishes, read_model, answer_taken;
  logic [Queues-1:0]          answer = '0, reading = '0;
  logic [3:0]                 read_queue, answer_queue;
  logic [31:0]                read_what, answer_result;
  logic [63:0]                done_addr = '0, read_addr;
  logic [7:0]                 answer_error;
  int                         read_record [0:Queues-1], reads_seen = 0, reads_dropped = 0, reads_together = 0;
  logic [63:0]                addr_of [0:Many-1];
  logic                       error_done;
  logic                       group, group_fills, group_ends, group_all, closes, coin = 1'b0;
  logic [ENTRY_BITS-1:0]      group_entry;
  logic [5:0]                 group_member;
  assign closes = group && coin;
  logic [8*Queues-1:0]        errors = '0;
  logic [32*Queues-1:0]       results = '0;
  assign answer_error  = answer[answer_queue] ? errors[8*answer_queue +: 8] : 8'd0;
  assign answer_result = answer[answer_queue] ? results[32*answer_queue +: 32] : 32'd0;

  // A slot and a record are given away, and a worker ends what they are for later.
  assign done_valid = want_done;
  assign reserve    = want_reserve && slot_free[reserve_queue] && record_free[reserve_queue] && on[reserve_queue];
  logic want_reserve = 1'b0;

  completion_ring #(.Queues(Queues), .Workers(Workers), .Depth(16)) u_ring (
    .clk_i(clk), .rst_ni(rst_n), .bus_rst_ni(rst_n), .start_i(start), .start_queue_i(start_queue),
    .start_config_i(start_config), .on_i(on), .enabled_i(on), .release_i(release_now), .release_queue_i(release_queue),
    .release_head_i(release_head), .release_ok_o(release_ok), .slot_o(slot_free), .record_o(record_free), .reserve_i(reserve),
    .reserve_queue_i(reserve_queue), .line_i(line || (last_line && done_valid)), .line_worker_i(line_worker), .line_queue_i(line_queue),
    .done_valid_i(done_valid), .done_i(done),
    .done_addr_i(done_addr), .read_valid_o(read_valid), .read_queue_o(read_queue), .read_publishes_o(read_publishes),
    .read_model_o(read_model), .read_what_o(read_what), .read_addr_o(read_addr), .answer_i(answer), .answer_queue_o(answer_queue),
    .answer_error_i(answer_error), .answer_result_i(answer_result), .answer_taken_o(answer_taken),
    .posted_o(posted), .posted_queue_o(posted_queue), .sq_head_i(sq_head + 32'd1000 * posted_queue),
    .group_o(group), .group_entry_o(group_entry), .group_fills_o(group_fills), .group_ends_o(group_ends), .group_all_o(group_all),
    .group_member_o(group_member), .group_closes_i(closes),
    .beat_valid_o(beat_valid), .beat_urgent_o(beat_urgent), .beat_queue_o(beat_queue), .beat_addr_o(beat_addr),
    .beat_first_o(beat_first), .beat_last_o(beat_last), .beat_data_o(beat_data), .beat_ready_i(beat_ready),
    .ack_i(ack), .ack_id_i(ack_id), .ack_error_i(ack_error), .state_queue_i(state_queue), .head_o(head), .tail_o(tail),
    .answered_o(answered), .answered_queue_o(answered_queue), .visible_o(visible), .dropped_o(dropped),
    .dropped_queue_o(dropped_queue), .flushed_o(flushed), .flushed_queue_o(flushed_queue), .answered_to_o(answered_to), .asks_o(asks), .asked_to_o(asked_to),
    .arm_i(1'b1), .arm_visible_o(arm_visible),
    .finish_o(finish), .finish_queue_o(finish_queue), .finish_slot_o(finish_slot), .error_done_o(error_done), .line_fault_o(line_fault), .write_fault_o(write_fault)
  );

  // As the write port does: with token lines waiting, half a beat does not go.
  logic lines_wait = 1'b0;
  assign beat_ready = want_beat && (beat_urgent || !lines_wait);

  int stall_source, stall_port, stall_ack, stall_host, fault_percent;

  // ---------------------------------------------------------------- records, in the order in which they come in
  logic [DONE_BITS-1:0] record [0:Many-1];
  int                   run_of [0:Many-1];                         // the run that it ends
  logic                 gone [0:Many-1];
  int                   oldest = 0;                                // record that has not gone
  int                   list [0:Queues*Many-1];                    // records of each queue pair
  int                   into [0:Queues-1], out_of [0:Queues-1];
  int                   pushed = 0;
  // What each worker runs, and lines of it that are to go before its end.
  logic [DONE_BITS-1:0] run_done [0:Workers-1];
  logic [63:0]          run_addr [0:Workers-1];
  int                   run_number [0:Workers-1], run_left [0:Workers-1], runs = 0;
  logic                 run_some [0:Workers-1], run_last [0:Workers-1];
  int                   run_to [0:Many-1];                         // its last line, by its queue pair's count; 0: it has none
  logic                 run_faulty [0:Many-1];
  // Lines of each queue pair, by number: the run that they belong to.
  int                   due [0:Queues-1];          // lines whose acknowledgement was shown
  int                   issued [0:Queues-1], acked [0:Queues-1];
  int                   line_run [0:Queues*Many-1];
  // Of each queue pair.
  logic [16:0]          size [0:Queues-1];
  logic [31:0]          start_index [0:Queues-1], my_head [0:Queues-1], last_sq_head [0:Queues-1];
  int                   reserved [0:Queues-1], given [0:Queues-1], sent [0:Queues-1], seen [0:Queues-1], left [0:Queues-1];
  logic                 out_asked [0:Queues*Many-1];               // as it went out
  int                   beat_count [0:Queues*Many-1];              // completions of each beat that waits for its response
  int                   beats_out [0:Queues-1], beats_acked [0:Queues-1], beats_due [0:Queues-1];
  logic [31:0]          index, expect_asked;
  logic                 asked_now;
  int                   w, n, q, patience = 0, errors_told = 0, errors_out = 0, drops_seen = 0, joined = 0, total_sent = 0;
  done_t                next;
  hw_completion_t       slot;
  logic                 blamed, resting = 1'b1;

  function automatic logic [63:0] base_of(input int pair);
    base_of = Base + 64'h10_0000 * pair;
  endfunction

  initial begin
    for (int k = 0; k < Workers; k++) run_some[k] = 1'b0;
    for (int k = 0; k < Queues; k++) begin
      issued[k] = 0; acked[k] = 0; into[k] = 0; out_of[k] = 0; due[k] = 0;
      beats_out[k] = 0; beats_acked[k] = 0; beats_due[k] = 0; left[k] = 0; reserved[k] = 0; given[k] = 0; sent[k] = 0; seen[k] = 0;
      size[k] = 2; start_index[k] = 0; my_head[k] = 0; last_sq_head[k] = 0;
    end
  end

  // A worker begins with the next record, of a queue pair that has given away a slot for it, whether that is on or not. Its lines go one by one before it, among
  // those of the others, the last with it or not.
  task automatic begin_run(input int worker);
    q = below(Queues);
    run_some[worker] = given[q] < reserved[q];
    if (run_some[worker]) begin
      given[q] = given[q] + 1;
      left[q]  = left[q] + 1;
      next = {rnd(), rnd(), rnd(), rnd(), rnd(), rnd(), rnd(), rnd()};
      next.flags[CFLAG_GROUP_DONE_BIT] = 1'b0;
      next.worker_id = worker;
      next.pair      = q;
      if (chance(70)) next.rollout_id = below(5);
      next.status    = chance(80) ? STATUS_DONE : STATUS_ERROR;
      next.error     = (next.status == STATUS_ERROR) ? ERR_BAD_LENGTH : ERR_NONE;
      next.irq       = next.status == STATUS_ERROR || chance(20);
      next.reads     = next.status != STATUS_ERROR && chance(20);
      next.publishes = next.reads && next.publishes;
      if (next.reads) next.belongs = 1'b0;       // REWARD and POLICY are of no group
      run_done[worker] = next;
      run_addr[worker] = {rnd(), rnd()};
      // What reads memory has none.
      run_left[worker] = (next.reads || chance(40)) ? 0 : between(1, 4);
      run_last[worker] = run_left[worker] != 0 && chance(50);
      if (run_last[worker]) run_left[worker] = run_left[worker] - 1;
      run_number[worker] = runs;
      run_to[runs % Many]     = 0;
      run_faulty[runs % Many] = 1'b0;
      runs = runs + 1;
    end
  endtask

  // A line of what a worker runs has gone.
  task automatic note_line(input int worker, input int pair);
    issued[pair] = issued[pair] + 1;
    line_run[pair*Many + issued[pair] % Many] = run_number[worker];
    run_to[run_number[worker] % Many] = issued[pair];
  endtask

  // The oldest record of a queue pair leaves, written or dropped; gives its number.
  task automatic leave(input int pair, output int r);
    if (out_of[pair] == into[pair]) fail("R3: a completion from nowhere");
    r            = list[pair*Many + out_of[pair] % Many];
    out_of[pair] = out_of[pair] + 1;
    leaving[pair] = 1;
    next         = record[r];
    left[next.pair] = left[next.pair] - 1;
    for (int k = oldest; k != pushed && k % Many != r; k++)
      if (!gone[k % Many] && {record[k % Many][DONE_BITS-1 -: 4], record[k % Many][Rollout +: 32]} == {next.pair, next.rollout_id})
        fail($sformatf("R5: record %0d of rollout %h goes before %0d", r, next.rollout_id, k));
    gone[r] = 1'b1;
    if (next.reads !== answer_taken) fail($sformatf("record %0d goes, and an answer is taken: %b", r, answer_taken));
    if (next.reads) begin
      if (answer_queue !== next.pair || !reading[pair] || !answer[pair] || read_record[pair] != r) fail($sformatf("record %0d goes without its answer", r));
      reading[pair] = 1'b0;
      answer[pair] <= 1'b0;
      if (!on[next.pair]) reads_dropped = reads_dropped + 1;
    end
    while (oldest != pushed && gone[oldest % Many]) oldest = oldest + 1;
    if (acked[pair] < run_to[run_of[r] % Many]) fail($sformatf("R3: a completion overtakes line %0d of queue pair %0d", run_to[run_of[r] % Many], pair));
  endtask

  // R18: a user of a policy slot is one until its completion is posted or dropped.
  task automatic check_user;
    if (finish !== next.names || (finish && {finish_queue, finish_slot} !== {next.pair, next.slot}))
      fail($sformatf("R18: finish is %b, of queue pair %0d and slot %0d", finish, finish_queue, finish_slot));
  endtask

  task automatic check_slot(input int pair, input logic [255:0] data);
    int r;
    slot = data;
    r    = put[put_head % Many];        // what was put together last
    next = record[r];
    if (put_closes[put_head % Many]) begin
      next.flags[CFLAG_GROUP_DONE_BIT] = 1'b1;
      next.irq = 1'b1;
      closed   = closed + 1;
    end
    told_ends = put_ends[put_head % Many];
    put_head = put_head + 1;
    if (next.worker_id !== slot.worker_id) fail("a completion of another worker");
    if (next.pair !== 4'(pair)) fail($sformatf("a completion of queue pair %0d goes to %0d", next.pair, pair));
    index = start_index[pair] + sent[pair];
    if (index - my_head[pair] >= size[pair]) fail($sformatf("R4: completion %h overwrites a slot, head %h", index, my_head[pair]));
    // Faulty lines of its own mark it, and no others.
    blamed = run_faulty[run_of[r] % Many];
    if (blamed) faulty_seen = faulty_seen + 1;
    if (next.reads) begin
      next.result = result_of[r];
      next.error  = error_of[r];
      if (error_of[r] != 0) begin
        next.status = STATUS_ERROR;
        next.irq    = 1'b1;
      end
    end
    if (next.belongs && told_ends !== (next.ends && !blamed))
      fail($sformatf("R17: record %0d, blamed %b, is told to end its member: %b", r, blamed, told_ends));
    if (blamed && next.status != STATUS_ERROR) begin
      next.status = STATUS_ERROR;
      next.error  = ERR_DMA_FAULT;
    end
    if (blamed) next.irq = 1'b1;
    if ({slot.status, slot.error, slot.flags, slot.worker_id, slot.reward_model_id, slot.result, slot.final_seq_len[30:0],
         slot.rollout_id, slot.user_data} !== {next.status, next.error, next.flags, next.worker_id, next.reward_model_id,
         next.result, next.final_seq_len, next.rollout_id, next.user_data})
      fail($sformatf("completion %h is %h, expected %h", index, slot, next));
    if (slot.phase !== {(index / size[pair]) % 2 == 0, 7'd0} || slot.final_seq_len[31] !== slot.phase[7])
      fail($sformatf("R13: completion %h has phases %b and %h", index, slot.final_seq_len[31], slot.phase));
    if (sq_head + 1000 * pair - slot.sq_head > sq_head + 1000 * pair - last_sq_head[pair]) fail("sq_head runs backwards");
    last_sq_head[pair] = slot.sq_head;
    out_asked[pair*Many + sent[pair] % Many] = next.irq;
    if (next.status == STATUS_ERROR) errors_out = errors_out + 1;
    sent[pair] = sent[pair] + 1;
    total_sent = total_sent + 1;
  endtask

  localparam int Own = (16 - Workers) / (2 * Queues);
  // Records that each queue pair has taken, and whether one left in this cycle, and in the one before.
  int   records [0:Queues-1], leaving [0:Queues-1], gone_one [0:Queues-1], refusals = 0;
  initial for (int k = 0; k < Queues; k++) begin records[k] = 0; leaving[k] = 0; gone_one[k] = 0; end
  int   faulty_seen = 0;                // records that are blamed
  int   put [0:Many-1];                 // records that were put together and are not written
  int   put_head = 0, put_tail = 0, closed = 0;
  logic put_closes [0:Many-1], put_ends [0:Many-1], told_ends;
  int   flush_r;
  logic [7:0]  error_of [0:Many-1];
  logic [31:0] result_of [0:Many-1];
  always @(posedge clk) if (rst_n && !resting) begin
    sq_head <= sq_head + below(2);
    for (int k = 0; k < Queues; k++) begin
      if (records[k] < Own && !record_free[k]) fail($sformatf("R28: queue pair %0d has %0d records, and none of its own is free", k, records[k]));
      if (!record_free[k]) refusals = refusals + 1;
      // What leaves is free two cycles later.
      records[k] = records[k] - gone_one[k];
      gone_one[k] = leaving[k];
      leaving[k] = 0;
    end
    q = int'(state_queue);
    if (on[q] && head !== my_head[q]) fail($sformatf("head of %0d is %h, expected %h", q, head, my_head[q]));
    if (error_done) errors_told = errors_told + 1;
    for (int k = 0; k < Queues; k++) begin
      if (on[k] && slot_free[k] !== (start_index[k] + reserved[k] - my_head[k] != size[k]))
        fail($sformatf("R4: slot_o of %0d is %b with %0d given away", k, slot_free[k], start_index[k] + reserved[k] - my_head[k]));
    end
    expect_eq("write_fault", write_fault, (ack && ack_error && ack_id >= COMPLETION_AXI_ID) ? 1 << (ack_id - COMPLETION_AXI_ID) : 0);
    if (reserve) begin
      reserved[reserve_queue] = reserved[reserve_queue] + 1;
      records[reserve_queue]  = records[reserve_queue] + 1;
    end

    // Acknowledgements of this cycle.
    if (ack && ack_id < COMPLETION_AXI_ID) acked[ack_id] = acked[ack_id] + 1;
    n = 0;
    asked_now = 1'b0;
    q = int'(release_queue);
    if (on[q] && arm_visible !== start_index[q] + seen[q]) fail("R14: the first that is not answered");
    if (ack && ack_id >= COMPLETION_AXI_ID) begin
      q = int'(ack_id - COMPLETION_AXI_ID);
      n = beat_count[q*Many + beats_acked[q] % Many];
      beats_acked[q] = beats_acked[q] + 1;
      expect_eq("queue pair of an answer", answered_queue, q);
      repeat (n) begin
        seen[q] = seen[q] + 1;
        if (out_asked[q*Many + (seen[q] - 1) % Many]) begin
          asked_now = 1'b1;
          expect_asked = start_index[q] + seen[q];
        end
      end
      if (on[q]) begin
        if (answered_to !== start_index[q] + seen[q]) fail($sformatf("R14: answered up to %h", answered_to));
        if (asked_now && asked_to !== expect_asked) fail($sformatf("R14: asked up to %h, expected %h", asked_to, expect_asked));
      end
    end
    expect_eq("R14: asks", asks, asked_now);
    expect_eq("answered", answered, n);
    expect_eq("visible", visible, ack_error ? 0 : n);

    // The write port.
    if (beat_valid && !beat_urgent) patience = patience + 1;
    else patience = 0;
    if (patience > 40 && stall_port == 0) fail("half a beat waits for ever");
    if (beat_valid && beat_ready) begin
      q = int'(beat_queue);
      if (!on[q]) fail("R12: a completion of a queue pair that is off");
      index = start_index[q] + sent[q];
      if (beat_addr != ((base_of(q) + 32 * (index % size[q])) & ~64'd63)) fail($sformatf("completion %h goes to %h", index, beat_addr));
      if (!((beat_first == 0 || beat_first == 8) && (beat_last == 7 || beat_last == 15) && beat_first < beat_last))
        fail($sformatf("words %0d to %0d", beat_first, beat_last));
      if (((base_of(q) + 32 * (index % size[q])) & 63) != 4 * beat_first) fail("the beat starts at the wrong half");
      n = 0;
      if (beat_first == 0) begin
        check_slot(q, beat_data[255:0]);
        n = n + 1;
      end
      if (beat_last == 15) begin
        check_slot(q, beat_data[511:256]);
        n = n + 1;
      end
      if (n == 2) joined = joined + 1;
      beat_count[q*Many + beats_out[q] % Many] = n;
      beats_out[q] = beats_out[q] + 1;
    end
    // R12: what was put together and is not written, then what never got so far.
    if (flushed != 0) begin
      if (on[flushed_queue]) fail("R12: a completion is dropped and its queue pair is on");
      drops_seen = drops_seen + int'(flushed);
      put_head   = put_head + int'(flushed);
    end
    if (posted) begin
      leave(int'(u_ring.take_pair), flush_r);
      check_user;
      if (next.pair !== posted_queue) fail("the wrong completion is put together");
      put[put_tail % Many] = flush_r;
      put_closes[put_tail % Many] = closes;
      put_ends[put_tail % Many]   = group_ends;
      if (group !== next.belongs || (group && {group_entry, group_fills, group_all, group_member}
                                           !== {next.entry, next.fills, next.all, next.member}))
        fail($sformatf("R17: record %0d is not told to the groups", flush_r));
      put_tail = put_tail + 1;
    end
    if (dropped) begin
      if (on[dropped_queue]) fail("R12: a completion is dropped and its queue pair is on");
      drops_seen = drops_seen + 1;
      leave(int'(u_ring.take_pair), flush_r);
      check_user;
      if (next.pair !== dropped_queue) fail("R12: the wrong completion is dropped");
    end

    // Readback gets what is first of its queue pair when its lines are acknowledged.
    if (read_valid) begin
      reads_seen = reads_seen + 1;
      q = int'(read_queue);
      if (reading[q]) fail("two descriptors of a queue pair are read for at a time");
      if (reading != 0) reads_together = reads_together + 1;
      if (out_of[q] == into[q]) fail("what is read for is not there");
      flush_r = list[q*Many + out_of[q] % Many];
      next    = record[flush_r];
      if (!next.reads || addr_of[flush_r] !== read_addr) fail("R5: what is read for is not first of its queue pair");
      if (acked[q] < run_to[run_of[flush_r] % Many]) fail("R3: a descriptor is read for ahead of its lines");
      if ({read_queue, read_publishes, read_model, read_what} !== {next.pair, next.publishes, next.reward_model_id[0], next.result})
        fail("R3: readback is told something else than the record says");
      read_record[q] = flush_r;
      reading[q]     = 1'b1;
      error_of[flush_r]  = chance(60) ? ERR_NONE : chance(50) ? ERR_DMA_FAULT : ERR_BAD_POLICY;
      result_of[flush_r] = rnd();
      errors[8*q +: 8]    <= error_of[flush_r];
      results[32*q +: 32] <= result_of[flush_r];
    end else begin
      for (int k = 0; k < Queues; k++) if (reading[k] && !answer[k] && chance(15)) answer[k] <= 1'b1;
    end

    // The host.
    if (release_now) begin
      q = int'(release_queue);
      if (on[q] && release_ok !== (u_ring.tail_q[q] - release_head <= u_ring.tail_q[q] - my_head[q]))
        fail($sformatf("release of %h: ok is %b", release_head, release_ok));
      if (!on[q] && release_ok) fail("a release of a queue pair that is off");
      if (release_ok) my_head[q] = release_head;
    end
    release_now <= !chance(stall_host);
    q = below(Queues);
    release_queue <= q;
    // What is visible may be released, what was never written and what lies behind may not.
    case (below(8))
      0: release_head <= my_head[q] - 1 - below(4);
      1: release_head <= my_head[q] + size[q] + 1 + below(9);
      default: release_head <= my_head[q] + below(int'(start_index[q] + seen[q] - my_head[q]) + 1);
    endcase
    state_queue   <= below(Queues);
    reserve_queue <= below(Queues);
    want_reserve  <= !chance(stall_source);

    // Lines and records.
    if (line || (last_line && done_valid)) note_line(int'(line_worker), int'(line_queue));
    if (done_valid) begin
      next = done;
      w    = int'(next.worker_id);
      q    = int'(next.pair);
      record[pushed % Many]    = done;
      gone[pushed % Many]      = 1'b0;
      addr_of[pushed % Many]   = done_addr;
      run_of[pushed % Many]    = run_number[w];
      list[q*Many + into[q] % Many] = pushed % Many;
      into[q] = into[q] + 1;
      pushed = pushed + 1;
      run_some[w] = 1'b0;
    end
    line <= 1'b0;
    want_done <= 1'b0;
    w = below(Workers);
    if (!run_some[w]) begin_run(w);
    if (run_some[w] && chance(80)) begin
      next = run_done[w];
      done        <= next;
      done_addr   <= run_addr[w];
      line_worker <= w;
      line_queue  <= next.pair;
      last_line   <= run_last[w];
      if (run_left[w] != 0) begin
        line        <= 1'b1;
        run_left[w] = run_left[w] - 1;
      end else want_done <= 1'b1;
    end

    // The next acknowledgement: of a line or of a beat, at most one per cycle, in order per ID.
    ack       <= 1'b0;
    ack_error <= 1'b0;
    if (!chance(stall_ack)) begin
      q = below(Queues);
      if (chance(50)) begin
        if (beats_due[q] != beats_out[q]) begin
          ack    <= 1'b1;
          ack_id <= COMPLETION_AXI_ID + 6'(q);
          beats_due[q] = beats_due[q] + 1;
          ack_error <= chance(fault_percent);
        end
      end else if (due[q] < issued[q]) begin
        due[q] = due[q] + 1;
        ack    <= 1'b1;
        ack_id <= 6'(q);
        if (chance(fault_percent)) begin
          ack_error <= 1'b1;
          run_faulty[line_run[q*Many + due[q] % Many] % Many] = 1'b1;
        end
      end
    end
    want_beat <= !chance(stall_port);
    if (group && !posted) fail("R17: what takes no slot is told to the groups");
    coin      <= chance(30);
  end

  // Starts a queue pair of which nothing is left.
  task automatic begin_pair(input int pair, input logic wrap, input logic big);
    repeat (3) @(posedge clk);          // what was put together has gone or was dropped
    waits_for = $sformatf("the bench waits for the end of queue pair %0d: %0d records, %0d of %0d beats", pair, left[pair],
                          beats_acked[pair], beats_out[pair]);
    while (given[pair] != reserved[pair] || left[pair] != 0 || beats_acked[pair] != beats_out[pair]) @(posedge clk);
    @(posedge clk);
    if (u_ring.tail_q[pair] !== start_index[pair] + sent[pair])
      fail($sformatf("R12: CQ_TAIL of queue pair %0d says %h, and %0d completions from %h on were written", pair,
                     u_ring.tail_q[pair], sent[pair], start_index[pair]));
    start_index[pair] = wrap ? -between(1, 60) : rnd();
    size[pair]        = 17'd1 << (big ? 16 : between(1, 5));
    start                  <= 1'b1;
    start_queue            <= pair;
    start_config.cq_base   <= base_of(pair);
    start_config.cq_size   <= size[pair];
    start_config.cq_start  <= start_index[pair];
    @(posedge clk);
    start <= 1'b0;
    my_head[pair] = start_index[pair];
    last_sq_head[pair] = sq_head + 1000 * pair;
    reserved[pair] = 0; given[pair] = 0; sent[pair] = 0; seen[pair] = 0;
    on[pair] <= 1'b1;
  endtask

  initial begin
    @(posedge rst_n);
    stall_source = 0; stall_port = 0; stall_ack = 0; stall_host = 0; fault_percent = 0;
    resting = 1'b0;
    for (int m = 0; m < 32; m++) begin
      for (int k = 0; k < Queues; k++) begin_pair(k, m[0], m >= 28);
      stall_source  = m[1] ? 60 : 0;
      stall_port    = m[2] ? 60 : 0;
      stall_ack     = m[3] ? 60 : 0;
      stall_host    = m[4] ? 95 : 20;
      fault_percent = m[0] ? 0 : m[1] ? 30 : 3;
      lines_wait   <= m[3];
      repeat (200) @(posedge clk);
      // One is turned off in the middle, and starts anew.
      q = below(Queues);
      one = q;
      on[one] <= 1'b0;
      begin_pair(one, m[0], 1'b0);
      repeat (200) @(posedge clk);
      stall_port = 0;
      stall_ack  = 0;
      stall_host = 50;
      on <= '0;
      repeat (4) @(posedge clk);
    end
    if (reads_together < 20) fail($sformatf("only %0d reads while another queue pair had one", reads_together));
    if (reads_seen < 150 || reads_dropped < 5) fail($sformatf("only %0d reads, %0d of them dropped", reads_seen, reads_dropped));
    if (refusals < 100) fail($sformatf("only %0d cycles in which a queue pair had no record", refusals));
    expect_eq("errors told", errors_told >= errors_out, 1'b1);
    if (faulty_seen < 30) fail($sformatf("only %0d completions with a faulty line", faulty_seen));
    if (closed < 100) fail($sformatf("only %0d completions with GROUP_DONE", closed));
    if (total_sent < 1000 || drops_seen < 50 || joined < 100) fail($sformatf("only %0d completions, %0d dropped, %0d joined", total_sent, drops_seen, joined));
    finish_bench("completion_ring_tb");
  end
  int one;
endmodule
