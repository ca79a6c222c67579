// Device half of the submission queues: the published tails, and which slots to read next.
//
// All indices run freely (rule R13); a slot is its index modulo the ring size. Four of each queue pair matter:
//   freed  slots below it have left the device's buffers: their places are free again
//   head   slots below it have been read: the host may reuse them
//   next   slots below it have been requested
//   tail   slots below it have been published by the host (rule R1)
// so freed <= head <= next <= tail <= head + size, and next <= freed + places, in modular order.
//
// A burst takes two steps. A queue pair in which something has changed is *settled*, in a cycle in which it is not planned: how
// many slots its next burst has, where it begins, and whether it asks for its turn stand in registers behind it. One burst is
// planned per cycle, round robin among the queue pairs that ask, of what stands there. What has changed meanwhile (a doorbell, a
// place that is free again) only ever adds to that. A doorbell of a queue pair that has asked for all that is published settles it
// by itself: its distance from the tail is what waits then. The places are divided evenly, so that no queue pair takes another's.
module desc_ring
  import core_pkg::*;
#(
  parameter int Queues     = 1,
  parameter int FetchDepth = 128    // descriptors that are buffered or in flight, of all queue pairs together
) (
  /* verilator lint_off UNUSEDSIGNAL */  // numbers of queue pairs have 4 bits, whatever was built
  input  logic        clk_i,
  input  logic        rst_ni,
  input  logic        bus_rst_ni,      // of the bus: a request outlives a reset of the device

  input  logic        start_i,         // a queue pair starts, with this configuration
  input  logic [3:0]  start_queue_i,
  input  queue_config_t start_config_i,
  input  logic [Queues-1:0] on_i,      // enabled; of the others nothing is accepted and nothing requested

  // Doorbell: a new tail; refused (ok low, same cycle) when it would overrun the ring or run backwards.
  input  logic        doorbell_i,
  input  logic [3:0]  doorbell_queue_i,
  input  logic [31:0] doorbell_tail_i,
  output logic        doorbell_ok_o,
  input  logic        abort_i,         // ABORT is written, of the same queue pair
  output logic [31:0] abort_tail_o,    // what is published then

  // Read requests: 1 to 16 slots that cross neither a 4-KiB boundary nor the ring's end.
  output logic        request_o,
  output logic [63:0] request_addr_o,
  output logic [4:0]  request_slots_o,
  output logic [3:0]  request_queue_o,
  output logic [3:0]  request_owner_o,
  input  logic        request_ready_i,
  input  logic        received_i,      // one slot has arrived
  input  logic [3:0]  received_queue_i,
  output logic [31:0] received_index_o,     // its running index
  input  logic        taken_i,         // one slot has left the buffers: its place is free again
  input  logic [3:0]  taken_queue_i,

  output logic [Queues-1:0] published_o,    // some published slot has not arrived
  // Indices of a queue pair, for the registers …
  input  logic [3:0]  state_queue_i,
  output logic [31:0] head_o,
  output logic [31:0] tail_o,
  // … and for a completion.
  input  logic        posted_i,
  input  logic [3:0]  posted_queue_i,
  output logic [31:0] posted_head_o
  /* verilator lint_on UNUSEDSIGNAL */
);
  if (Queues < 1 || Queues > MAX_QUEUES) begin : gen_bad_queues
    localparam bit QueuesMustBe1To16 = {-1{1'b1}};   // ends the elaboration
  end

  if (FetchDepth < 2 || FetchDepth > 4096 || (FetchDepth & (FetchDepth - 1)) != 0) begin : gen_bad_fetch_depth
    localparam bit FetchDepthMustBeAPowerOfTwoFrom2To4096 = {-1{1'b1}};   // ends the elaboration
  end

  // As many as an index can name: the simulation needs to check none.
  localparam int QueueBits = (Queues == 1) ? 1 : $clog2(Queues);
  localparam int Slots     = 1 << QueueBits;
  localparam int Places    = (Queues == 1) ? FetchDepth : FetchDepth / Slots;   // of each queue pair
  // The room may shorten a burst only down to this: fewer, longer bursts.
  localparam logic [16:0] MinCut = (Places >= 16) ? 17'd8 : 17'(Places / 2);

  if (Queues > 1 && Places < 8) begin : gen_bad_places
    localparam bit FetchDepthMustBeAtLeast8PerQueue = {-1{1'b1}};   // ends the elaboration
  end

  // With one queue pair every number of one is a constant.
  logic [QueueBits-1:0] start_pair, doorbell_pair, received_pair, taken_pair, state_pair, posted_pair, plan_pair, request_pair_q;
  assign start_pair    = (Queues == 1) ? '0 : start_queue_i[QueueBits-1:0];
  assign doorbell_pair = (Queues == 1) ? '0 : doorbell_queue_i[QueueBits-1:0];
  assign received_pair = (Queues == 1) ? '0 : received_queue_i[QueueBits-1:0];
  assign taken_pair    = (Queues == 1) ? '0 : taken_queue_i[QueueBits-1:0];
  assign state_pair    = (Queues == 1) ? '0 : state_queue_i[QueueBits-1:0];
  assign posted_pair   = (Queues == 1) ? '0 : posted_queue_i[QueueBits-1:0];

  localparam int RoomBits = $clog2(Places + 1);

  logic [Queues-1:0][57:0] base_q;      // in slots
  logic [Queues-1:0][15:0] mask_q;      // size - 1
  logic [Queues-1:0][3:0]  owner_q;
  logic [Queues-1:0][31:0] head_q;
  logic [Queues-1:0][31:0] tail_q;
  logic [Queues-1:0][31:0] limit_q;     // head + size: no tail lies above
  logic [Queues-1:0][16:0] behind_q;    // head + 1
  logic [Queues-1:0][16:0] next_q;
  logic [Queues-1:0][RoomBits-1:0] room_q;   // freed + places - next: so many more may be requested
  // No burst goes beyond the next 4-KiB boundary or the end of the ring, whichever comes first: the end of its line.
  logic [Queues-1:0][6:0]  line_q;      // slots from next to there, at most 64; 0: what follows is not looked up
  logic [Queues-1:0][16:0] rest_q;      // from there to the end of the ring
  logic [Queues-1:0][6:0]  first_q;     // the same for slot 0
  logic [Queues-1:0][16:0] lap_q;
  // What the settling has found.
  logic [Queues-1:0]       unsettled_q; // something has changed since, or is not looked up yet
  logic [Queues-1:0]       idle_q;      // all that is published is requested
  logic [Queues-1:0]       ask_q;       // what it has found holds
  logic [Queues-1:0]       all_q;       // a burst is of all that waits …
  logic [Queues-1:0][4:0]  waiting_q;   // … so many, at most 16
  logic [Queues-1:0][4:0]  bound_q;     // what else bounds it, at most 16: line or room
  logic [Queues-1:0][16:0] reach_q;     // next and that: one burst goes so far
  logic [Queues-1:0]       cut_q;       // a burst may be as short as that
  logic [Queues-1:0][57:0] addr_q;      // where it begins
  /* verilator lint_off UNUSEDSIGNAL */  // as many as an index can name
  logic [Slots-1:0]  published_q;       // tail and head differ
  /* verilator lint_on UNUSEDSIGNAL */
  logic [Slots-1:0]  on;
  assign on = Slots'(on_i);

  // ---------------------------------------------------------------- doorbell
  // A tail is good that is not below the present one and not above the limit. Both differences are below 2^31 then, and
  // only then: their sum is at most the size.
  logic [Queues-1:0] accepts, quick, short, brings;
  logic [Queues-1:0][4:0] distance;
  logic              accept;
  for (genvar q = 0; q < Queues; q++) begin : gen_doorbell
    /* verilator lint_off UNUSEDSIGNAL */  // signs, and the burst
    logic [31:0] above, below;
    logic [16:0] spare;
    /* verilator lint_on UNUSEDSIGNAL */
    logic        its;
    assign its         = doorbell_i && doorbell_pair == QueueBits'(q);
    assign above       = its ? doorbell_tail_i - tail_q[q] : '0;
    assign below       = its ? limit_q[q] - doorbell_tail_i : '0;
    assign accepts[q]  = its && on_i[q] && !above[31] && !below[31];
    // What it makes of a queue pair that has asked for all: a burst of all that waits then, if any does.
    assign quick[q]    = its && idle_q[q] && !unsettled_q[q];
    assign distance[q] = above[4:0];
    assign spare       = its ? reach_q[q] - 17'(doorbell_tail_i) : '0;     // of a tail that is taken at most 16, at least -2^16
    assign short[q]    = its && !spare[16];
    assign brings[q]   = its && 17'(doorbell_tail_i) != 17'(tail_q[q]);
  end
  assign accept        = accepts != '0;
  assign doorbell_ok_o = accept;
  assign abort_tail_o  = abort_i ? tail_q[doorbell_pair] : '0;

  // ---------------------------------------------------------------- burst planner
  /* verilator lint_off UNUSEDSIGNAL */  // as wide as for the most queue pairs
  logic [3:0]        number;
  /* verilator lint_on UNUSEDSIGNAL */
  logic [Queues-1:0] asks, grant;
  logic              some, free, planned;
  assign asks      = ask_q & (all_q | cut_q) & ~idle_q & on_i;
  assign some      = asks != '0;
  assign free      = !request_o || request_ready_i;
  assign planned   = some && free;
  assign plan_pair = (Queues == 1) ? '0 : number[QueueBits-1:0];

  round_robin #(.N(Queues)) u_round_robin (
    .clk_i, .rst_ni,
    .request_i (asks),
    .grant_o   (grant),
    .number_o  (number),
    .accept_i  (planned)
  );

  logic [Queues-1:0] plans;
  assign plans = planned ? grant : '0;

  // No process of its own: what works out defaults in one wakes others for ever (Icarus 11).
  function automatic logic [4:0] at_most_16(input logic [16:0] value);
    at_most_16 = (value > 17'd16) ? 5'd16 : value[4:0];
  endfunction

  logic [57:0] slot_addr;
  logic [4:0]  slots;
  logic [3:0]  owner;
  /* verilator lint_off BLKSEQ */  // names for what is planned
  always_ff @(posedge clk_i) begin
    if (!bus_rst_ni) begin
      request_o       <= 1'b0;
      request_addr_o  <= '0;
      request_slots_o <= '0;
      request_pair_q       <= '0;
      request_owner_o <= '0;
    end else begin
      // A request that has been shown on the bus must stay (AXI), even through a disable or a reset of the device.
      if (request_ready_i) request_o <= 1'b0;
      if (planned) begin
        slot_addr = '0;
        slots     = '0;
        owner     = '0;
        for (int q = 0; q < Queues; q++) begin
          if (grant[q]) begin
            slot_addr = slot_addr | addr_q[q];
            slots     = slots | (all_q[q] ? waiting_q[q] : bound_q[q]);
            owner     = owner | owner_q[q];
          end
        end
        request_o       <= 1'b1;
        request_addr_o  <= {slot_addr, 6'd0};
        request_slots_o <= slots;
        request_pair_q       <= plan_pair;
        request_owner_o <= owner;
      end
    end
  end
  /* verilator lint_on BLKSEQ */
  assign request_queue_o = (Queues == 1) ? '0 : 4'(request_pair_q);

  // ---------------------------------------------------------------- indices
  logic [Queues-1:0] arrives, takes;
  assign takes   = taken_i ? Queues'(16'd1 << taken_pair) : '0;
  assign arrives = received_i ? Queues'(16'd1 << received_pair) : '0;

  // Where the first slot lies is worked out in the two cycles behind a start: no burst is planned by then.
  logic [1:0]           fresh_q;
  logic [QueueBits-1:0] fresh_pair_q, settled_pair_q;
  logic [15:0]          fresh_slot_q;
  logic [16:0]          fresh_size_q, ring_size_q, to_wrap_q;
  logic [6:0]           to_page_q, from_base_q;
  logic [17:0]          past_page, past_first;
  // With a sign: how much of the ring lies behind the boundary that comes next, and behind the first of all.
  assign past_page  = fresh_q[1] ? {1'b0, to_wrap_q} - {11'd0, to_page_q} : '0;
  assign past_first = fresh_q[1] ? {1'b0, ring_size_q} - {11'd0, from_base_q} : '0;

  // What waits, what else bounds a burst, and what comes of both, side by side.
  logic [Queues-1:0] settles;
  assign settles = unsettled_q & on_i;

  logic [16:0] unasked;
  logic [4:0]  line_5, room_5, burst;      // at most 16 of each
  logic        by_line;
  logic [16:0] rest;
  /* verilator lint_off BLKSEQ */  // names for what belongs to one queue pair
  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      for (int q = 0; q < Queues; q++) begin
        head_q[q] <= '0;
        tail_q[q] <= '0;
      end
      unsettled_q <= '0;
      idle_q      <= '0;
      ask_q       <= '0;
      published_q <= '0;
      fresh_q     <= '0;
    end else begin
      if (settles != '0) begin
        for (int q = 0; q < Queues; q++) begin
          rest = rest_q[q];
          if (settles[q]) begin
            if (line_q[q] != '0) begin
              unasked        = 17'(tail_q[q]) - next_q[q];
              line_5         = at_most_16(17'(line_q[q]));
              room_5         = at_most_16(17'(room_q[q]));
              by_line        = line_5 <= room_5;
              waiting_q[q]   <= unasked[4:0];
              bound_q[q]     <= by_line ? line_5 : room_5;
              reach_q[q]     <= by_line ? next_q[q] + {12'd0, line_5} : next_q[q] + {12'd0, room_5};
              all_q[q]       <= unasked[16:5] == '0 && unasked[4:0] <= line_5 && unasked[4:0] <= room_5;
              cut_q[q]       <= by_line || {12'd0, room_5} >= MinCut;
              addr_q[q]      <= base_q[q] + {42'd0, 16'(next_q[q]) & mask_q[q]};
              idle_q[q]      <= 17'(tail_q[q]) == next_q[q];
              ask_q[q]       <= 1'b1;
              unsettled_q[q] <= 1'b0;
            end else begin
              line_q[q] <= (rest == '0) ? first_q[q] : (rest[16:6] != '0) ? 7'd64 : rest[6:0];
              rest_q[q] <= (rest == '0) ? lap_q[q] : (rest[16:6] != '0) ? rest - 17'd64 : '0;
            end
          end
        end
      end
      if (doorbell_i) begin
        for (int q = 0; q < Queues; q++) begin
          if (quick[q]) begin
            waiting_q[q] <= distance[q];
            all_q[q]     <= short[q];
          end
          if (accepts[q]) begin
            tail_q[q] <= doorbell_tail_i;
            if (quick[q]) idle_q[q]      <= !brings[q];
            else          unsettled_q[q] <= 1'b1;
          end
        end
      end
      // Behind the settling: a burst of what it found before makes that old.
      if (planned) begin
        for (int q = 0; q < Queues; q++) begin
          if (plans[q]) begin
            burst          = all_q[q] ? waiting_q[q] : bound_q[q];
            ask_q[q]       <= 1'b0;
            unsettled_q[q] <= 1'b1;
            next_q[q]      <= next_q[q] + {12'd0, burst};
            line_q[q]      <= line_q[q] - {2'b00, burst};
          end
        end
      end
      if (planned || taken_i) begin
        for (int q = 0; q < Queues; q++) begin
          burst = !plans[q] ? '0 : all_q[q] ? waiting_q[q] : bound_q[q];
          if (plans[q] || takes[q]) room_q[q] <= room_q[q] - RoomBits'(burst) + RoomBits'(takes[q]);
          if (takes[q]) unsettled_q[q] <= 1'b1;
        end
      end
      if (received_i) begin
        for (int q = 0; q < Queues; q++) begin
          if (arrives[q]) begin
            published_q[q] <= 17'(tail_q[q]) != behind_q[q];
            head_q[q]      <= head_q[q] + 32'd1;
            behind_q[q]    <= behind_q[q] + 17'd1;
            limit_q[q]     <= limit_q[q] + 32'd1;
          end
        end
      end
      if (accept) begin
        for (int q = 0; q < Queues; q++) begin
          if (accepts[q]) published_q[q] <= 17'(doorbell_tail_i) != (arrives[q] ? behind_q[q] : 17'(head_q[q]));
        end
      end
      fresh_q <= {fresh_q[0], start_i};
      if (fresh_q[0]) begin
        settled_pair_q <= fresh_pair_q;
        ring_size_q    <= fresh_size_q;
        to_wrap_q      <= fresh_size_q - {1'b0, fresh_slot_q};
        to_page_q      <= 7'd64 - {1'b0, 6'(base_q[fresh_pair_q]) + 6'(fresh_slot_q)};
        from_base_q    <= 7'd64 - {1'b0, 6'(base_q[fresh_pair_q])};
      end
      if (fresh_q[1]) begin
        line_q[settled_pair_q]  <= past_page[17] ? to_wrap_q[6:0] : to_page_q;
        rest_q[settled_pair_q]  <= past_page[17] ? '0 : past_page[16:0];
        first_q[settled_pair_q] <= past_first[17] ? ring_size_q[6:0] : from_base_q;
        lap_q[settled_pair_q]   <= past_first[17] ? '0 : past_first[16:0];
        unsettled_q[settled_pair_q] <= 1'b1;
        ask_q[settled_pair_q]       <= 1'b0;
      end
      if (start_i) begin
        base_q[start_pair]      <= start_config_i.sq_base[63:6];
        mask_q[start_pair]      <= start_config_i.sq_size[15:0] - 16'd1;
        owner_q[start_pair]     <= start_config_i.owner;
        head_q[start_pair]      <= start_config_i.sq_start;
        tail_q[start_pair]      <= start_config_i.sq_start;
        limit_q[start_pair]     <= start_config_i.sq_start + {15'd0, start_config_i.sq_size};
        behind_q[start_pair]    <= 17'(start_config_i.sq_start) + 17'd1;
        next_q[start_pair]      <= 17'(start_config_i.sq_start);
        room_q[start_pair]      <= RoomBits'(Places);
        ask_q[start_pair]       <= 1'b0;
        idle_q[start_pair]      <= 1'b0;
        unsettled_q[start_pair] <= 1'b0;
        published_q[start_pair] <= 1'b0;
        fresh_pair_q            <= start_pair;
        fresh_size_q            <= start_config_i.sq_size;
        fresh_slot_q            <= start_config_i.sq_start[15:0] & (start_config_i.sq_size[15:0] - 16'd1);
      end
    end
  end
  /* verilator lint_on BLKSEQ */

  assign received_index_o = received_i ? head_q[received_pair] : '0;
  assign published_o      = published_q[Queues-1:0] & on_i;
  assign head_o           = head_q[state_pair];
  assign tail_o           = on[state_pair] ? tail_q[state_pair] : head_q[state_pair];    // R12: the queue is empty
  assign posted_head_o    = posted_i ? head_q[posted_pair] : '0;

`ifndef SYNTHESIS
  logic [16:0] waiting;
  logic [4:0]  planned_slots;
  assign planned_slots = some ? (all_q[plan_pair] ? waiting_q[plan_pair] : bound_q[plan_pair]) : '0;
  assign waiting = some ? 17'(tail_q[plan_pair]) - next_q[plan_pair] : '0;
  always_ff @(posedge clk_i) begin
    if (rst_ni && received_i) begin
      if (17'(head_q[received_pair]) == next_q[received_pair])
        $fatal(1, "R3 desc_ring: a slot of queue pair %0d arrived that nobody asked for", received_pair);
    end
    if (rst_ni && plans != '0) begin
      if (!on[plan_pair] || {12'd0, planned_slots} > waiting || {15'd0, waiting} > tail_q[plan_pair] - head_q[plan_pair])
        $fatal(1, "R1 desc_ring: %0d slots of queue pair %0d are requested and only %0d are published", planned_slots, plan_pair, waiting);
      if ({12'd0, planned_slots} > 17'(room_q[plan_pair]) || 17'(room_q[plan_pair]) > 17'(Places))
        $fatal(1, "R4 desc_ring: slots of queue pair %0d are requested with no place for them", plan_pair);
    end
    if (rst_ni && accept) begin
      if (doorbell_tail_i - head_q[doorbell_pair] > {16'd0, mask_q[doorbell_pair]} + 32'd1)
        $fatal(1, "R13 desc_ring: tail %0d is more than %0d slots above the head", doorbell_tail_i, mask_q[doorbell_pair] + 1);
    end
    if (request_o) begin
      if (rst_ni && {1'b0, request_addr_o[11:6]} + {2'b0, request_slots_o} > 7'd64)
        $fatal(1, "R11 desc_ring: a burst of %0d from %h crosses 4 KiB", request_slots_o, request_addr_o);
    end
  end
`endif
endmodule
