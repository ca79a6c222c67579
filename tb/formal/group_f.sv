// A group that ends has one GROUP_DONE, with its last member and behind every other (R17): group_table with one queue pair. One entry is watched, 'watched_i',
// which stands for all.
//
// Assumed: the dispatcher takes nothing that waits (asserted in group_table), and a completion comes once for each descriptor that was taken, with the entry and
// member that it was given (completion_ring hands each record on once, ring_f; group_table asserts that something was outstanding).
module group_f import desc_pkg::*; import core_pkg::*; (
  input logic        clk_i,
  input logic        start_i, look_i, prefill_i, opens_i, stop_i, all_i, slot_i, retired_i, take_i,
  input logic [31:0] prefix_i,
  input logic [5:0]  member_i,
  input logic        post_i, post_fills_i, post_ends_i, post_all_i,
  input logic [2:0]  post_entry_i,
  input logic [5:0]  post_member_i,
  input logic        publish_i, publish_slot_i, publish_keep_i, publish_abort_i,
  input logic [2:0]  watched_i,
  input logic [5:0]  member_watched_i
);
  logic run = 1'b0;
  always_ff @(posedge clk_i) run <= 1'b1;

  logic     waits, refused, closes, stirs;
  verdict_t verdict;
  group_table #(.Queues(1)) u_table (
    .clk_i, .rst_ni(run), .start_i, .start_queue_i('0),
    .look_i, .look_queue_i('0), .prefix_i, .prefill_i, .opens_i, .stop_i, .all_i, .member_i, .slot_i, .retired_i,
    .waits_o(waits), .verdict_o(verdict), .refused_o(refused), .take_i,
    .post_i, .post_queue_i('0), .post_entry_i, .post_fills_i, .post_ends_i, .post_all_i, .post_member_i, .closes_o(closes), .stirs_o(stirs),
    .publish_i, .publish_slot_i, .publish_keep_i, .publish_abort_i
  );

  // ---------------------------------------------------------------- the watched entry
  logic        open = 1'b0, filling = 1'b0;       // its PREFILL has no completion
  logic [31:0] prefix;
  logic [5:0]  last;
  logic [63:0] ended;
  logic [3:0]  outstanding = '0, mine = '0;       // what belongs to it and has no completion; of those, what may end the watched member
  logic [3:0]  stops = '0;                        // of those, STOPs of all
  logic        takes, opens, posts, ends_last, mine_taken, mine_posted;
  logic [63:0] ended_now;
  assign takes       = take_i && verdict.belongs && verdict.entry == watched_i;
  assign opens       = takes && prefill_i;
  assign posts       = post_i && post_entry_i == watched_i;
  assign mine_taken  = takes && !prefill_i && !all_i && member_i == member_watched_i;
  assign mine_posted = posts && !post_fills_i && !post_all_i && post_member_i == member_watched_i;
  assign ended_now   = ended | (64'd1 << post_member_i);
  // All of 0 to last have ended.
  assign ends_last   = posts && post_ends_i && open
                    && (post_all_i || ((ended_now | ~(64'hFFFF_FFFF_FFFF_FFFF >> (6'd63 - last))) == '1 && !ended[post_member_i]));

  logic [31:0] others = '0;                        // of a queue pair that starts anew nothing is left
  logic [2:0]  watched_before = '0;
  logic [5:0]  member_before = '0;
  logic        begun = 1'b0;
  always_ff @(posedge clk_i) begin
    begun          <= 1'b1;
    watched_before <= watched_i;
    member_before  <= member_watched_i;
    if (!run || start_i) {open, filling, outstanding, mine, stops, others} <= '0;
    else begin
      outstanding <= outstanding + 4'(takes) - 4'(posts);
      mine        <= mine + 4'(mine_taken) - 4'(mine_posted);
      stops       <= stops + 4'(takes && !prefill_i && all_i) - 4'(posts && post_all_i);
      for (int e = 0; e < 8; e++)
        others[4*e +: 4] <= others[4*e +: 4] + 4'(take_i && verdict.belongs && verdict.entry == 3'(e)) - 4'(post_i && post_entry_i == 3'(e));
      if (posts && post_fills_i) filling <= 1'b0;
      if (posts && post_ends_i && !post_all_i) ended <= ended_now;
      if (ends_last) open <= 1'b0;
      if (opens) begin
        open    <= 1'b1;
        filling <= 1'b1;
        prefix  <= prefix_i;
        last    <= member_i;
        ended   <= '0;
      end
    end
  end

  // ---------------------------------------------------------------- what is assumed
  always_comb begin
    if (begun) assume (watched_i == watched_before && member_watched_i == member_before);
    if (!run) assume (!start_i && !take_i && !post_i && !publish_i);
    if (take_i) assume (look_i && !waits && !start_i);
    if (opens_i) assume (prefill_i);
    if (prefill_i) assume (!stop_i && !all_i);
    if (all_i) assume (stop_i);
    // What comes was taken, with the member that it named.
    if (post_i) assume (others[4*post_entry_i +: 4] != '0 && !start_i);
    if (posts) begin
      assume (post_fills_i == filling);                     // its group waits for the PREFILL
      assume (!(post_fills_i && (post_ends_i || post_all_i)));
      assume (!post_all_i || (post_ends_i && stops != '0));
      if (!post_fills_i && !post_all_i) assume (post_member_i <= last);
      if (mine_posted) assume (mine != '0);
      if (!post_fills_i && !post_all_i && !mine_posted) assume (outstanding > mine + stops);
    end
    if (outstanding == '1 || others == '1) assume (!take_i);
  end

  // ---------------------------------------------------------------- what is asserted
`ifndef REACH
  always_comb if (run) begin
    // GROUP_DONE comes with the last member, with no completion before it and none behind it.
    if (posts) assert (closes == ends_last);
    // An entry that is given away is free: closed, and with nothing left that belongs to it.
    if (opens) assert (!open && outstanding == '0);
    // What belongs to the group names its prefix, and one of its members or all; nothing waits for another group.
    if (takes && !opens) assert (open && prefix_i == prefix && (all_i || member_i <= last) && !filling);
    if (look_i && waits && verdict.entry == watched_i) assert (open && prefix_i == prefix && (filling || (all_i && outstanding != '0)));
    // An open group is found, and not opened twice.
    if (look_i && open && prefix_i == prefix && !prefill_i && (all_i || member_i <= last)) assert (verdict.belongs && verdict.entry == watched_i);
    if (look_i && open && prefix_i == prefix && opens_i) assert (refused);
    // Whoever waits for it is told.
    if (posts && (post_fills_i || closes)) assert (stirs);
  end
`endif

  // What must be reachable, for the proof to say anything.
`ifdef REACH
  logic [4:0] steps = '0;
  always_ff @(posedge clk_i) if (steps != '1) steps <= steps + 1'b1;
  always_comb case (`REACH)
    0:       assert (steps != 5'(`DEPTH - 1));
    1:       assert (!(closes && posts && !post_all_i && last == 6'd1));
    2:       assert (!(closes && posts && post_all_i && ended != '0));
    3:       assert (!(opens && steps > 5'd4 && prefix_i == prefix));       // an entry that is used again
    default: assert (!(take_i && verdict.error == ERR_STALE_PREFIX && verdict.entry == watched_i));
  endcase
`endif
endmodule
