// The groups of each queue pair (rule R17). A PREFILL with members takes an entry and opens its group; a DECODE or STOP
// with COW_PREFIX belongs to the group of its prefix that is open when the dispatcher hands it out. Of each entry is kept
// which members have ended, and how many descriptors that belong to it have no completion yet. When completion_ring gives a
// completion its place in the completion queue, it asks here whether the last member ends with it. It asks in the order of
// the queue, so each group has one such completion, after every other that ends one of its members.
//
// An entry is free again once its group is closed and nothing is left that belongs to it. A completion that is dropped, as
// its queue pair is being disabled, is not told here: a queue pair starts without groups.
//
// A group belongs to a version of the policy (R21), that of its PREFILL, known by the policy slot that it is in.
module group_table
  import desc_pkg::*;
  import core_pkg::*;
#(
  parameter int Queues = 1
) (
  /* verilator lint_off UNUSEDSIGNAL */  // numbers of queue pairs have 4 bits, whatever was built
  input  logic        clk_i,
  input  logic        rst_ni,

  input  logic        start_i,         // a queue pair starts
  input  logic [3:0]  start_queue_i,

  // A look at the oldest descriptor of a queue pair: a PREFILL, or one that may belong to a group. The answer is
  // combinational.
  input  logic        look_i,
  input  logic [3:0]  look_queue_i,
  input  logic [31:0] prefix_i,
  input  logic        prefill_i,
  input  logic        opens_i,         // a PREFILL with members
  input  logic        stop_i,
  input  logic        all_i,           // a STOP of the whole group
  input  logic [5:0]  member_i,        // of a PREFILL with members the last
  input  logic        slot_i,          // R21: the policy slot of the version that it names; …
  input  logic        retired_i,       // … this version is retired
  output logic        waits_o,         // its group's PREFILL, or with a STOP of it anything of the group, is not complete
  output verdict_t    verdict_o,       // if it goes out now
  output logic        refused_o,       // it goes out as an error
  input  logic        take_i,          // it does

  // A completion that belongs to a group takes its place in the completion queue.
  input  logic        post_i,
  input  logic [3:0]  post_queue_i,
  input  logic [ENTRY_BITS-1:0] post_entry_i,
  input  logic        post_fills_i,    // a PREFILL
  input  logic        post_ends_i,     // its member ends, …
  input  logic        post_all_i,      // … or every member does
  input  logic [5:0]  post_member_i,
  output logic        closes_o,        // the last member ends with it; combinational
  output logic [Queues-1:0] stirs_o,   // what waits of this queue pair may look again

  // R21: a version is loaded into this slot; these queue pairs are those of its function.
  input  logic [Queues-1:0] publish_i,
  input  logic        publish_slot_i,
  input  logic        publish_keep_i,  // the version in the other slot is retired: its groups pass to the new one …
  input  logic        publish_abort_i  // … or turn stale
  /* verilator lint_on UNUSEDSIGNAL */
);
  if (Queues < 1 || Queues > MAX_QUEUES) begin : gen_bad_queues
    localparam bit QueuesMustBe1To16 = {-1{1'b1}};   // ends the elaboration
  end

  localparam int QueueBits = (Queues == 1) ? 1 : $clog2(Queues);
  localparam int Entries   = GROUPS << ((Queues == 1) ? 0 : QueueBits);
  localparam int PlaceBits = $clog2(Entries);
  localparam int CountBits = 14;       // see dispatcher

  logic [QueueBits-1:0] look_pair, post_pair;
  logic [PlaceBits-1:0] start_row;     // the first entry of the queue pair
  assign start_row  = (Queues == 1) ? '0 : PlaceBits'({start_queue_i[QueueBits-1:0], ENTRY_BITS'(0)});
  assign look_pair  = (Queues == 1) ? '0 : look_queue_i[QueueBits-1:0];
  assign post_pair  = (Queues == 1) ? '0 : post_queue_i[QueueBits-1:0];

  // By queue pair and entry.
  logic [37:0]          name_mem   [0:Entries-1];    // its last member, and its prefix
  logic [70:0]          ended_mem  [0:Entries-1];    // how many members have not ended, and which have
  logic [CountBits-1:0] count_mem  [0:Entries-1];    // what belongs to it and has no completion
  logic [Entries-1:0]   open_q, filled_q, busy_q;    // busy: that is not 0
  logic [Entries-1:0]   slot_q, stale_q;

  // ---------------------------------------------------------------- a look
  logic [GROUPS-1:0]     open, free, match, first_free;
  logic                  found, named, waiting, belongs;
  logic [ENTRY_BITS-1:0] hit, entry;
  logic [PlaceBits-1:0]  look_row, look_place, take_place;
  logic [7:0]            error;

  assign look_row = PlaceBits'({look_pair, ENTRY_BITS'(0)});

  always_comb begin
    open       = '0;
    free       = '0;
    match      = '0;
    hit        = '0;
    first_free = '0;
    look_place = '0;
    found      = 1'b0;
    named      = 1'b0;
    waiting    = 1'b0;
    belongs    = 1'b0;
    entry      = '0;
    error      = ERR_NONE;
    if (look_i) begin
      open = open_q[look_row +: GROUPS];
      free = ~(open_q[look_row +: GROUPS] | busy_q[look_row +: GROUPS]);
      if (open != '0) begin
        for (int k = 0; k < GROUPS; k++) match[k] = open[k] && name_mem[look_row | PlaceBits'(k)][31:0] == prefix_i;
      end
      found      = match != '0;
      hit        = {(match & 8'hF0) != '0, (match & 8'hCC) != '0, (match & 8'hAA) != '0};
      first_free = free & (~free + 1'b1);
      look_place = look_row | PlaceBits'(hit);
      named      = found && !prefill_i && (all_i || member_i <= name_mem[look_place][37:32]);
      waiting    = named && (!filled_q[look_place] || (all_i && busy_q[look_place]));

      if      (prefill_i && retired_i)        error = ERR_BAD_VERSION;
      else if (opens_i && found)              error = ERR_PREFIX_BUSY;
      else if (opens_i && free == '0)         error = ERR_GROUP_FULL;
      else if (named && !stop_i && !retired_i && (stale_q[look_place] || slot_q[look_place] != slot_i))
        error = ERR_STALE_PREFIX;

      belongs = named || (opens_i && error == ERR_NONE);
      entry   = named ? hit
              : {(first_free & 8'hF0) != '0, (first_free & 8'hCC) != '0, (first_free & 8'hAA) != '0};
    end
  end

  assign waits_o    = look_i && waiting;
  assign refused_o  = look_i && error != ERR_NONE;
  assign verdict_o  = {error, belongs, entry, prefill_i, stop_i, all_i, member_i};

  // ---------------------------------------------------------------- it goes out; completions
  logic                 takes, opens, same, ended, slot_now, stale_now;
  logic [PlaceBits-1:0] post_place;
  logic [CountBits-1:0] count_down;
  logic [63:0]          ends;
  logic [6:0]           left;

  assign takes      = take_i && belongs;
  assign take_place = look_row | PlaceBits'(entry);
  assign post_place = PlaceBits'({post_pair, post_entry_i});

  always_comb begin
    opens = 1'b0;
    same  = 1'b0;
    if (takes) begin
      opens = !named;
      same  = post_i && take_place == post_place;
    end
  end

  always_comb begin
    count_down = '0;
    left       = '0;
    ends       = '0;
    ended      = 1'b0;
    closes_o   = 1'b0;
    stirs_o    = '0;
    if (post_i) begin
      count_down   = count_mem[post_place] - 1'b1;
      {left, ends} = ended_mem[post_place];
      ended        = ends[post_member_i];
      closes_o     = post_ends_i && open_q[post_place] && (post_all_i || (!ended && left == 7'd1));
      if (post_fills_i || closes_o || count_down == '0) stirs_o = Queues'(16'd1 << post_pair);
    end
  end

  always_ff @(posedge clk_i) begin
    if (takes) begin
      if (opens) begin
        name_mem[take_place]  <= {member_i, prefix_i};
        ended_mem[take_place] <= {{1'b0, member_i} + 7'd1, 64'd0};
      end
      if (!same) count_mem[take_place] <= opens ? CountBits'(1) : count_mem[take_place] + 1'b1;
    end
    if (post_i) begin
      if (!same) count_mem[post_place] <= count_down;
      if (post_ends_i && !post_all_i && !ended)
        ended_mem[post_place] <= {left - 7'd1, ends | (64'd1 << post_member_i)};
    end
  end

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      open_q   <= '0;
      filled_q <= '0;
      busy_q   <= '0;
    end else begin
      if (post_i) begin
        if (post_fills_i) filled_q[post_place] <= 1'b1;
        if (closes_o)     open_q[post_place]   <= 1'b0;
        busy_q[post_place] <= count_down != '0;
      end
      if (takes) begin
        busy_q[take_place] <= 1'b1;
        if (opens) begin
          open_q[take_place]   <= 1'b1;
          filled_q[take_place] <= 1'b0;
        end
      end
      if (start_i) begin
        open_q[start_row +: GROUPS] <= '0;
        busy_q[start_row +: GROUPS] <= '0;
      end
    end
  end

  // ---------------------------------------------------------------- what its groups belong to
  // A group that opens in the cycle of a publication belongs to what was before it.
  logic published;
  always_comb begin
    published = 1'b0;
    slot_now  = slot_i;
    stale_now = 1'b0;
    if (publish_i != '0) begin
      published = (Queues'(16'd1 << look_pair) & publish_i) != '0;
      if (published && publish_keep_i) slot_now = publish_slot_i;
      stale_now = published && (publish_abort_i || slot_i == publish_slot_i);
    end
  end

  always_ff @(posedge clk_i) begin
    if (publish_i != '0) begin
      for (int q = 0; q < Queues; q++) begin
        if (publish_i[q]) begin
          for (int k = q * GROUPS; k < (q + 1) * GROUPS; k++) begin
            if (publish_abort_i || slot_q[k] == publish_slot_i) stale_q[k] <= 1'b1;
            if (publish_keep_i) slot_q[k] <= publish_slot_i;
          end
        end
      end
    end
    if (opens) begin
      slot_q[take_place]  <= slot_now;
      stale_q[take_place] <= stale_now;
    end
  end

`ifndef SYNTHESIS
  initial if (GROUPS != 1 << ENTRY_BITS) $fatal(1, "core_pkg: ENTRY_BITS must be the logarithm of GROUPS, %0d", GROUPS);
  always_ff @(posedge clk_i) begin
    if (look_i && rst_ni) begin
      if ((match & (match - 1'b1)) != '0)
        $fatal(1, "R17 group_table: two groups of prefix %0d of queue pair %0d are open", prefix_i, look_pair);
      if (take_i && waits_o)
        $fatal(1, "R17 group_table: a descriptor of prefix %0d of queue pair %0d starts before what it waits for", prefix_i, look_pair);
    end
    if (post_i && rst_ni) begin
      if (count_mem[post_place] == '0 || !busy_q[post_place])
        $fatal(1, "R17 group_table: a completion of a group of queue pair %0d with none outstanding", post_pair);
      if (post_ends_i && !filled_q[post_place])
        $fatal(1, "R17 group_table: a member of a group of queue pair %0d ends before its PREFILL", post_pair);
    end
  end
`endif
endmodule
