// group_table against a reference (R17, R21), with 1, 3 and 16 queue pairs that share prefix ids: directed at the edges, then
// random. Descriptors are looked at and go out in any mixture of queue pairs; completions are posted in any order, several
// cycles later, those of a PREFILL, DECODE or STOP, of good and bad ends. For each look: whether it waits, and its verdict; for
// each completion: whether it closes its group, so that there is one GROUP_DONE for each and it is on the last one that ends a
// member; an entry is free again once its group is closed and nothing is left that belongs to it. Queue pairs start anew with
// open groups, versions are published in between.
// +groups=N random groups, over all (default 1500; 100,000 took 188 s of CPU time).
module group_table_tb;
  import bench_pkg::*;

  logic clk, rst_n;
  int   cycle;
  clock_reset #(.Limit(400000000)) u_clock (.clk_o(clk), .rst_no(rst_n), .cycle_o(cycle));

  int groups;
  logic [2:0] turn = '1;                // one after the other: who waits has no clock
  group_table_run #(.Queues(1))  u_run_1  (.clk_i(clk && turn[0]), .rst_ni(rst_n));
  group_table_run #(.Queues(3))  u_run_3  (.clk_i(clk && turn[1]), .rst_ni(rst_n));
  group_table_run #(.Queues(16)) u_run_16 (.clk_i(clk && turn[2]), .rst_ni(rst_n));

  initial begin
    if (!$value$plusargs("groups=%d", groups)) groups = 1500;
    @(posedge rst_n);
    @(posedge clk);
    turn = 3'b010;
    u_run_3.directed;
    u_run_3.random(groups / 3);
    turn = 3'b001;
    u_run_1.random(groups / 3);
    turn = 3'b100;
    u_run_16.random(groups - 2 * (groups / 3));
    $display("%0d groups opened, %0d closed, %0d by a STOP of all, in %0d cycles", u_run_1.opened + u_run_3.opened + u_run_16.opened,
             u_run_1.closed + u_run_3.closed + u_run_16.closed,
             u_run_1.stopped_whole + u_run_3.stopped_whole + u_run_16.stopped_whole, cycle);
    finish_bench("group_table_tb");
  end
endmodule

module group_table_run #(
  parameter int Queues = 1
) (
  input logic clk_i,
  input logic rst_ni
);
  import bench_pkg::*;
  import desc_pkg::*;
  import core_pkg::*;

  localparam int Groups = 8;
  localparam int Out    = 64;           // descriptors of a queue pair that are out, at most

  logic        start = 1'b0, look = 1'b0, prefill = 1'b0, opens = 1'b0, stop = 1'b0, all = 1'b0, slot = 1'b0, retired = 1'b0;
  logic        waits, refused, take = 1'b0, post = 1'b0, post_fills = 1'b0, post_ends = 1'b0, post_all = 1'b0, closes;
  logic [3:0]  start_queue = '0, look_queue = '0, post_queue = '0;
  logic [31:0] prefix = '0;
  logic [5:0]  member = '0, post_member = '0;
  verdict_t    verdict;
  logic [ENTRY_BITS-1:0] post_entry = '0;
  logic [Queues-1:0] stirs, publish = '0;
  logic        publish_slot = 1'b0, publish_keep = 1'b0, publish_abort = 1'b0;

  group_table #(.Queues(Queues)) u_table (
    .clk_i, .rst_ni, .start_i(start), .start_queue_i(start_queue), .look_i(look), .look_queue_i(look_queue), .prefix_i(prefix),
    .prefill_i(prefill), .opens_i(opens), .stop_i(stop), .all_i(all), .member_i(member), .slot_i(slot), .retired_i(retired),
    .waits_o(waits), .verdict_o(verdict), .refused_o(refused), .take_i(take), .post_i(post), .post_queue_i(post_queue),
    .post_entry_i(post_entry), .post_fills_i(post_fills), .post_ends_i(post_ends), .post_all_i(post_all),
    .post_member_i(post_member), .closes_o(closes), .stirs_o(stirs), .publish_i(publish), .publish_slot_i(publish_slot),
    .publish_keep_i(publish_keep), .publish_abort_i(publish_abort)
  );

  // ---------------------------------------------------------------- the reference: groups by queue pair and entry
  logic        is_open [0:Queues*Groups-1], is_filled [0:Queues*Groups-1], is_stale [0:Queues*Groups-1], in_slot [0:Queues*Groups-1];
  logic [31:0] its_prefix [0:Queues*Groups-1];
  int          its_members [0:Queues*Groups-1], its_out [0:Queues*Groups-1];
  logic [63:0] its_ended [0:Queues*Groups-1];
  // Descriptors that are out and belong to a group: which entry, and what they are.
  int          out_entry [0:Queues*Out-1], out_member [0:Queues*Out-1];
  logic [2:0]  out_kind [0:Queues*Out-1];         // {PREFILL, STOP, all}
  int          out_count [0:Queues-1];
  int          opened = 0, closed = 0, stopped_whole = 0, busy_seen = 0, full_seen = 0, full_by_late = 0, waits_seen = 0, late_seen = 0,
               stale_seen = 0;

  function automatic int find(input int pair, input logic [31:0] id);
    find = -1;
    for (int k = 0; k < Groups; k++) if (is_open[pair*Groups + k] && its_prefix[pair*Groups + k] == id) find = k;
  endfunction

  task automatic forget(input int pair);
    for (int k = pair * Groups; k < (pair + 1) * Groups; k++) begin
      is_open[k] = 1'b0;
      its_out[k] = 0;
    end
    out_count[pair] = 0;
  endtask

  initial for (int k = 0; k < Queues; k++) forget(k);

  // ---------------------------------------------------------------- one cycle
  // What is shown in it is set by the tasks below; here it is judged, and the reference goes on.
  logic        showing = 1'b0, posting = 1'b0;    // a look, a completion
  int          posted_at;                         // of it: place among those that are out
  logic        ends_well;

  task automatic show_look(input int pair, input logic [31:0] id, input logic [2:0] kind, input int number);
    look       = 1'b1;
    look_queue = pair;
    prefix     = id;
    {prefill, stop, all} = kind;
    opens      = prefill && number != 0;          // of a PREFILL: its members
    member     = prefill ? 6'(number - 1) : 6'(number);
  endtask

  task automatic show_post(input int pair, input int at, input logic good);
    posting    = 1'b1;
    posted_at  = at;
    post       = 1'b1;
    post_queue = pair;
    post_entry = out_entry[pair*Out + at];
    post_fills = out_kind[pair*Out + at][2];
    post_ends  = !out_kind[pair*Out + at][2] && (out_kind[pair*Out + at][1] || good);   // a STOP ends it anyhow
    post_all   = out_kind[pair*Out + at][0];
    post_member = out_member[pair*Out + at];
  endtask

  // Judges the cycle that is shown, and goes to the next, in which nothing is. 'went' says whether the look went out.
  task automatic step(input logic want, output logic went, output logic done);
    int         pair, g, at, free, expected_error;
    logic       expected_waits, expected_belongs, expected_closes;
    logic [63:0] whole;
    took = 1'b0;
    done = 1'b0;
    #1;
    pair = int'(look_queue);
    if (look) begin
      g    = find(pair, prefix);
      free = -1;
      for (int k = Groups - 1; k >= 0; k--) if (!is_open[pair*Groups + k] && its_out[pair*Groups + k] == 0) free = k;
      expected_error   = ERR_NONE;
      expected_belongs = 1'b0;
      expected_waits   = 1'b0;
      if (prefill) begin
        if (retired)                                expected_error = ERR_BAD_VERSION;
        else if (opens && g >= 0)                   expected_error = ERR_PREFIX_BUSY;
        else if (opens && free < 0)                 expected_error = ERR_GROUP_FULL;
        expected_belongs = opens && expected_error == ERR_NONE;
        g = free;
      end else if (g >= 0) begin
        expected_belongs = all || int'(member) < its_members[pair*Groups + g];
        expected_waits   = expected_belongs && (!is_filled[pair*Groups + g] || (all && its_out[pair*Groups + g] != 0));
        if (expected_belongs && !stop && !retired && (is_stale[pair*Groups + g] || in_slot[pair*Groups + g] != slot))
          expected_error = ERR_STALE_PREFIX;
      end
      // One comparison for all, as this runs a million times.
      if ({waits, refused, verdict.belongs, verdict.error} !== {expected_waits, expected_error != ERR_NONE, expected_belongs, 8'(expected_error)})
        fail($sformatf("R17: prefix %0h: waits %b, belongs %b, error %0d; expected %b, %b, %0d", prefix, waits, verdict.belongs,
                       verdict.error, expected_waits, expected_belongs, expected_error));
      if (expected_belongs && {verdict.fills, verdict.is_stop, verdict.all, verdict.member} !== {prefill, stop, all, member})
        fail("R17: the verdict is of something else");
      if (expected_belongs && !prefill && verdict.entry !== ENTRY_BITS'(g)) fail($sformatf("R17: entry %0d, expected %0d", verdict.entry, g));
      take = want && !waits;
      took = take;
      if (waits) waits_seen = waits_seen + 1;
      if (take) begin
        case (expected_error)
          ERR_PREFIX_BUSY: busy_seen = busy_seen + 1;
          ERR_STALE_PREFIX: stale_seen = stale_seen + 1;
          ERR_GROUP_FULL: begin
            full_seen = full_seen + 1;
            at = 0;
            for (int k = 0; k < Groups; k++) if (is_open[pair*Groups + k]) at = at + 1;
            if (at < Groups) full_by_late = full_by_late + 1;
          end
          default: ;
        endcase
      end
    end
    #1;
    // The completion, with what stood in the table before this cycle.
    expected_closes = 1'b0;
    if (post) begin
      pair  = int'(post_queue);
      g     = pair*Groups + int'(post_entry);
      whole = 64'hFFFF_FFFF_FFFF_FFFF >> (64 - its_members[g]);
      if (post_ends && is_open[g])
        expected_closes = post_all || (its_ended[g] | (64'd1 << post_member)) == whole;
      if (!is_open[g]) late_seen = late_seen + 1;
    end
    if (closes !== expected_closes) fail($sformatf("R17: closes_o is %b", closes));
    done = closes;
    if (stirs !== ((post && (post_fills || expected_closes || its_out[g] == 1)) ? Queues'(16'd1 << pair) : Queues'(0)))
      fail($sformatf("stirs_o is %b", stirs));
    if (post) begin
      if (post_fills) is_filled[g] = 1'b1;
      if (post_ends)  its_ended[g] = its_ended[g] | (post_all ? whole : 64'd1 << post_member);
      if (expected_closes) begin
        is_open[g] = 1'b0;
        closed = closed + 1;
        if (post_all) stopped_whole = stopped_whole + 1;
      end
      its_out[g] = its_out[g] - 1;
      out_count[pair] = out_count[pair] - 1;
      for (int k = posted_at; k < out_count[pair]; k++) begin
        out_entry[pair*Out + k]  = out_entry[pair*Out + k + 1];
        out_member[pair*Out + k] = out_member[pair*Out + k + 1];
        out_kind[pair*Out + k]   = out_kind[pair*Out + k + 1];
      end
    end
    if (look && took && verdict.belongs) begin
      pair = int'(look_queue);
      g    = pair*Groups + int'(verdict.entry);
      if (prefill) begin
        if (is_open[g]) fail("R17: a group takes an entry that is taken");
        is_open[g]     = 1'b1;
        is_filled[g]   = 1'b0;
        is_stale[g]    = 1'b0;
        in_slot[g]     = slot;
        its_prefix[g]  = prefix;
        its_members[g] = int'(member) + 1;
        its_ended[g]   = '0;
        opened = opened + 1;
      end
      its_out[g] = its_out[g] + 1;
      out_entry[pair*Out + out_count[pair]]  = int'(verdict.entry);
      out_member[pair*Out + out_count[pair]] = int'(member);
      out_kind[pair*Out + out_count[pair]]   = {prefill, stop, all};
      out_count[pair] = out_count[pair] + 1;
    end
    // R21: a version is loaded into a slot. What was of the one that lay there is stale; what is of the other passes to it,
    // turns stale, or stays.
    if (publish != 0) for (int q = 0; q < Queues; q++) if (publish[q])
      for (int k = q * Groups; k < (q + 1) * Groups; k++) begin
        if (in_slot[k] == publish_slot || publish_abort) is_stale[k] = 1'b1;
        else if (publish_keep) in_slot[k] = publish_slot;
      end
    if (start) forget(int'(start_queue));
    went = took;
    @(posedge clk_i);
    #1;
    start = 1'b0; look = 1'b0; take = 1'b0; post = 1'b0; posting = 1'b0; publish = '0;
    prefill = 1'b0; opens = 1'b0; stop = 1'b0; all = 1'b0;
  endtask
  logic took;

  // ---------------------------------------------------------------- directed
  localparam logic [2:0] Prefill = 3'b100, Decode = 3'b000, StopOne = 3'b010, StopAll = 3'b011;
  logic went_now, done_now;

  task automatic go(input int pair, input logic [31:0] id, input logic [2:0] kind, input int number, input logic [7:0] error);
    show_look(pair, id, kind, number);
    #1 expect_eq("directed: error", verdict.error, error);
    step(1'b1, went_now, done_now);
    if (!went_now) fail("directed: a descriptor waits");
  endtask

  task automatic held(input int pair, input logic [31:0] id, input logic [2:0] kind, input int number);
    show_look(pair, id, kind, number);
    step(1'b1, went_now, done_now);
    if (went_now) fail("R17: directed: a descriptor does not wait");
  endtask

  // The oldest one that is out of this queue pair completes.
  task automatic ends(input int pair, input logic good, input logic expected);
    show_post(pair, 0, good);
    step(1'b0, went_now, done_now);
    expect_eq("R17: directed: GROUP_DONE", done_now, expected);
  endtask

  task automatic directed;
    // Members: 1, 2, 63, 64; each end once, in any order; what is beyond belongs to none.
    for (int n = 1; n <= 64; n = (n == 2) ? 63 : n + 1) begin
      go(1, n, Prefill, n, ERR_NONE);
      held(1, n, Decode, 0);
      held(1, n, StopAll, 0);
      if (n < 64) begin
        go(1, n, Decode, n, ERR_NONE);            // beyond the last: runs as ever
        if (out_count[1 % Queues] != 1) fail("R17: a member beyond the last belongs to the group");
      end
      ends(1, 1'b1, 1'b0);
      for (int k = n - 1; k >= 0; k--) begin
        go(1, n, Decode, k, ERR_NONE);
        ends(1, 1'b0, 1'b0);                      // REWARD_NEEDED, SUPERSEDED or ERROR
        go(1, n, Decode, k, ERR_NONE);
        ends(1, 1'b1, k == 0);
        if (k != 0) begin
          go(1, n, StopOne, k, ERR_NONE);         // once more
          ends(1, 1'b1, 1'b0);
        end
      end
    end
    // The same prefix in two queue pairs is two groups.
    go(0, 32'd0, Prefill, 2, ERR_NONE);
    go(2, 32'd0, Prefill, 1, ERR_NONE);
    ends(2, 1'b1, 1'b0);
    held(0, 32'd0, Decode, 1);
    go(2, 32'd0, Decode, 0, ERR_NONE);
    ends(2, 1'b1, 1'b1);
    ends(0, 1'b1, 1'b0);
    go(0, 32'd0, Prefill, 5, ERR_PREFIX_BUSY);
    go(0, 32'd0, Decode, 0, ERR_NONE);
    go(0, 32'd0, Decode, 1, ERR_NONE);
    ends(0, 1'b1, 1'b0);
    ends(0, 1'b1, 1'b1);
    // All entries are taken; with a group that is closed its entry still is, until the late one of it has completed.
    for (int k = 0; k < Groups; k++) begin
      go(0, 100 + k, Prefill, 1, ERR_NONE);
      ends(0, 1'b1, 1'b0);
    end
    go(0, 32'd200, Prefill, 1, ERR_GROUP_FULL);
    go(0, 32'd103, Prefill, 1, ERR_PREFIX_BUSY);
    go(0, 32'd200, Prefill, 0, ERR_NONE);         // opens none
    go(1, 32'd200, Prefill, 1, ERR_NONE);         // of another queue pair
    ends(1, 1'b1, 1'b0);
    go(1, 32'd200, StopOne, 0, ERR_NONE);
    ends(1, 1'b0, 1'b1);                          // a STOP whose completion says DMA_FAULT ends its member all the same
    go(0, 32'd104, StopOne, 0, ERR_NONE);
    go(0, 32'd104, Decode, 0, ERR_NONE);
    ends(0, 1'b1, 1'b1);
    go(0, 32'd200, Prefill, 1, ERR_GROUP_FULL);
    go(0, 32'd104, Prefill, 1, ERR_GROUP_FULL);
    go(0, 32'd104, Decode, 0, ERR_NONE);          // belongs to none
    ends(0, 1'b1, 1'b0);
    if (out_count[0] != 0) fail("R17: a DECODE belongs to a group that is closed");
    go(0, 32'd104, Prefill, 64, ERR_NONE);
    ends(0, 1'b1, 1'b0);
    // A STOP of all waits for what was admitted before it, and ends the absent ones; what follows it may come before it.
    go(0, 32'd104, Decode, 7, ERR_NONE);
    go(0, 32'd104, StopOne, 9, ERR_NONE);
    held(0, 32'd104, StopAll, 0);
    ends(0, 1'b0, 1'b0);
    held(0, 32'd104, StopAll, 0);
    ends(0, 1'b1, 1'b0);
    go(0, 32'd104, StopAll, 0, ERR_NONE);
    go(0, 32'd104, Decode, 3, ERR_NONE);
    held(0, 32'd104, StopAll, 0);
    show_post(0, 1, 1'b1);
    step(1'b0, went_now, done_now);
    if (done_now) fail("R17: a DECODE behind the STOP of all closes the group");
    ends(0, 1'b1, 1'b1);
    go(0, 32'd104, StopAll, 0, ERR_NONE);         // there is none
    // A queue pair starts anew: its groups are forgotten, those of others are not.
    go(2, 32'd7, Prefill, 1, ERR_NONE);
    ends(2, 1'b1, 1'b0);
    start = 1'b1; start_queue = 4'd0;
    step(1'b0, went_now, done_now);
    for (int k = 0; k < Groups; k++) go(0, 100 + k, Prefill, 1, ERR_NONE);
    go(2, 32'd7, Prefill, 1, ERR_PREFIX_BUSY);
    start = 1'b1; start_queue = 4'd0;
    step(1'b0, went_now, done_now);
    // R21: a version is loaded beside the group's: nothing. KEEP: it passes. Loaded into its slot, or ABORT: stale.
    slot = 1'b0;
    go(0, 32'd1, Prefill, 9, ERR_NONE);
    ends(0, 1'b1, 1'b0);
    publishes(3'b001, 1'b1, 1'b0, 1'b0);
    go(0, 32'd1, Decode, 0, ERR_NONE);
    slot = 1'b1;
    go(0, 32'd1, Decode, 0, ERR_STALE_PREFIX);
    retired = 1'b1;
    go(0, 32'd1, Decode, 0, ERR_NONE);            // of a version that is retired: R20 ends it
    go(0, 32'd2, Prefill, 1, ERR_BAD_VERSION);
    go(0, 32'd2, Prefill, 0, ERR_BAD_VERSION);
    retired = 1'b0;
    publishes(3'b110, 1'b0, 1'b0, 1'b1);          // of another function
    slot = 1'b0;
    go(0, 32'd1, Decode, 1, ERR_NONE);
    publishes(3'b001, 1'b1, 1'b1, 1'b0);
    go(0, 32'd1, Decode, 1, ERR_STALE_PREFIX);
    slot = 1'b1;
    go(0, 32'd1, Decode, 1, ERR_NONE);
    publishes(3'b001, 1'b0, 1'b0, 1'b1);
    go(0, 32'd1, Decode, 1, ERR_STALE_PREFIX);
    go(0, 32'd1, StopOne, 1, ERR_NONE);
    slot = 1'b0;
    go(0, 32'd3, Prefill, 1, ERR_NONE);
    publishes(3'b001, 1'b0, 1'b0, 1'b0);          // into its slot
    while (out_count[0] != 0) begin
      show_post(0, 0, 1'b0);
      step(1'b0, went_now, done_now);
    end
    go(0, 32'd3, Decode, 0, ERR_STALE_PREFIX);
    for (int q = 0; q < Queues; q++) begin
      start = 1'b1; start_queue = 4'(q);
      step(1'b0, went_now, done_now);
    end
  endtask

  task automatic publishes(input logic [2:0] pairs, input logic into, input logic keep, input logic aborts);
    publish       = Queues'(pairs);
    publish_slot  = into;
    publish_keep  = keep;
    publish_abort = aborts;
    step(1'b0, went_now, done_now);
  endtask

  // ---------------------------------------------------------------- random
  // Whether something was never seen, in so many groups.
  function automatic logic lacks(input int count);
    lacks = count >= 100 && (busy_seen == 0 || waits_seen == 0 || late_seen == 0 || stale_seen == 0
        || (Queues == 1 && (full_seen == 0 || full_by_late == 0)));
  endfunction

  task automatic random(input int count);
    int   pair, kind, prefixes, goal, most, stall_post, stuck, number, place;
    logic [31:0] id;
    logic went, done;
    goal  = opened + count;
    stuck = 0;
    // Goes on until everything was seen that is to be seen, for four times as many groups at most.
    while (opened < goal || (opened < goal + 3 * count && lacks(count))) begin
      if (stuck % 400 == 0) begin
        prefixes   = chance(50) ? between(1, 4) : between(8, 14);
        most       = chance(94) ? between(1, 4) : 64;
        stall_post = chance(50) ? 10 : 70;
      end
      stuck = stuck + 1;
      slot    = chance(90) ? 1'b0 : rnd();
      retired = chance(3);
      if (chance(85)) begin
        // A PREFILL mostly of a prefix that is not open, the others mostly of one that is, and of a member that has not ended.
        pair   = below(Queues);
        id     = chance(50) ? 32'd0 + below(prefixes) : 32'hFFFF_FF00 + below(prefixes);
        place  = find(pair, id);
        kind   = below(100);
        if (place < 0) kind = chance(75) ? 0 : kind;
        else if (kind < 10 && chance(50)) kind = 50;
        number = below(most + (chance(10) ? 4 : 0));
        if (place >= 0 && chance(60)) begin
          number = below(its_members[pair*Groups + place]);
          for (int k = 0; k < 8 && its_ended[pair*Groups + place][number]; k++) number = (number + 1) % its_members[pair*Groups + place];
        end
        if (number > 63) number = 63;
        if (out_count[pair] < Out)
          show_look(pair, id, kind < 10 ? Prefill : kind < 88 ? Decode : kind < 95 ? StopOne : StopAll,
                    kind < 10 ? (chance(5) ? 0 : chance(5) ? 64 : chance(5) ? 63 : between(1, most)) : kind < 95 ? number : 63);
      end
      pair = below(Queues);
      for (int k = 0; k < Queues && out_count[pair] == 0; k++) pair = (pair + 1) % Queues;
      if (out_count[pair] != 0 && !chance(stall_post)) begin
        show_post(pair, below(out_count[pair]), chance(70));
      end
      if (below(2000) == 0) begin
        start = 1'b1;
        start_queue = below(Queues);
        if (look && look_queue == start_queue) look = 1'b0;
        if (post && post_queue == start_queue) post = 1'b0;
      end
      if (below(60) == 0) begin
        publish       = rnd();
        publish_slot  = rnd();
        publish_keep  = rnd();
        publish_abort = !publish_keep && chance(30);
      end
      step(!chance(20), went, done);
    end
    if (lacks(count))
      fail($sformatf("%0d queue pairs: %0d busy, %0d full, %0d of them by late ones, %0d wait, %0d late, %0d stale", Queues, busy_seen,
                     full_seen, full_by_late, waits_seen, late_seen, stale_seen));
  endtask
endmodule
