// Device half of the submission queues: the published tails, and which slots to read next.
//
// All indices run freely (rule R13); a slot is its index modulo the ring size. Four of each queue pair matter:
//   freed  slots below it have left the device's buffers: their places are free again
//   head   slots below it have been read: the host may reuse them
//   next   slots below it have been requested
//   tail   slots below it have been published by the host (rule R1)
// so freed <= head <= next <= tail <= head + size, and next <= freed + places, in modular order. What follows from them is kept
// up to date beside them: distances, so that nothing is subtracted before a burst is planned.
//
// One burst is planned per cycle, round robin among the queue pairs that have something to request. The places are
// divided evenly, so that no queue pair takes another's.
//
// Everything is worked out for each queue pair by itself, while it is found out whose turn it is; and what a burst leaves is
// worked out for each of the three that may bound it (what is published, the line, the room) before it is known which does.
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
  logic [Queues-1:0][16:0] waiting_q;   // tail - next: slots that are published and not requested
  logic [Queues-1:0][RoomBits-1:0] room_q;   // next + room = freed + places: so many more may be requested
  // No burst goes beyond the next 4-KiB boundary or the end of the ring, whichever comes first: the end of its line.
  logic [Queues-1:0][6:0]  line_q;      // slots from next to there, 1 to 64
  logic [Queues-1:0][16:0] rest_q;      // from there to the end of the ring
  logic [Queues-1:0][6:0]  first_q;     // the same for slot 0
  logic [Queues-1:0][16:0] lap_q;
  /* verilator lint_off UNUSEDSIGNAL */  // as many as an index can name
  logic [Slots-1:0]  ask_q;
  logic [Slots-1:0]  published_q;       // tail and head differ
  /* verilator lint_on UNUSEDSIGNAL */
  logic [Slots-1:0]  on;
  assign on = Slots'(on_i);

  // ---------------------------------------------------------------- doorbell
  // A tail is good that is not below the present one and not above the limit. Both differences are below 2^31 then, and
  // only then: their sum is at most the size.
  logic [Queues-1:0] accepts;
  logic              accept;
  for (genvar q = 0; q < Queues; q++) begin : gen_doorbell
    /* verilator lint_off UNUSEDSIGNAL */  // their signs alone
    logic [31:0] above, below;
    /* verilator lint_on UNUSEDSIGNAL */
    logic        its;
    assign its        = doorbell_i && doorbell_pair == QueueBits'(q);
    assign above      = its ? doorbell_tail_i - tail_q[q] : '0;
    assign below      = its ? limit_q[q] - doorbell_tail_i : '0;
    assign accepts[q] = its && on_i[q] && !above[31] && !below[31];
  end
  assign accept        = accepts != '0;
  assign doorbell_ok_o = accept;
  assign abort_tail_o  = abort_i ? tail_q[doorbell_pair] : '0;

  // ---------------------------------------------------------------- burst planner
  /* verilator lint_off UNUSEDSIGNAL */  // as wide as for the most queue pairs
  logic [3:0]        number;
  /* verilator lint_on UNUSEDSIGNAL */
  logic [Queues-1:0] asks, grant;
  logic              some, looked;
  assign asks = ask_q[Queues-1:0] & on_i;
  assign some = asks != '0;
  assign plan_pair = (Queues == 1) ? '0 : number[QueueBits-1:0];

  round_robin #(.N(Queues)) u_round_robin (
    .clk_i, .rst_ni,
    .request_i (asks),
    .grant_o   (grant),
    .number_o  (number),
    .accept_i  (looked)
  );

  // Of each queue pair that asks: what bounds its burst, what comes of that, and where it begins. Of that whose turn it is: so.
  logic [Queues-1:0]       due, by_waiting, by_line, goes, plans, fruitless;
  logic [Queues-1:0][4:0]  line_5, room_5;      // at most 16 of each
  logic [57:0]             slot_addr, its_addr;
  logic [4:0]              slots, its_slots;
  logic [3:0]              owner;
  logic [16:0]             its_waiting;
  logic                    many, free;

  always_comb begin
    due         = '0;
    by_waiting  = '0;
    by_line     = '0;
    line_5      = '0;
    room_5      = '0;
    slot_addr   = '0;
    slots       = '0;
    owner       = '0;
    its_addr    = '0;
    its_slots   = '0;
    its_waiting = '0;
    many        = 1'b0;
    if (some) begin
      for (int q = 0; q < Queues; q++) begin
        its_addr  = '0;
        its_slots = '0;
        if (asks[q]) begin
          its_waiting   = waiting_q[q];
          many          = its_waiting > 17'd16;
          line_5[q]     = (line_q[q] > 7'd16) ? 5'd16 : 5'(line_q[q]);
          room_5[q]     = (17'(room_q[q]) > 17'd16) ? 5'd16 : 5'(room_q[q]);
          by_waiting[q] = !many && its_waiting[4:0] <= line_5[q] && its_waiting[4:0] <= room_5[q];
          by_line[q]    = !by_waiting[q] && line_5[q] <= room_5[q];
          due[q]        = by_waiting[q] ? its_waiting[4:0] != '0 : by_line[q] || {12'd0, room_5[q]} >= MinCut;
          its_slots     = by_waiting[q] ? its_waiting[4:0] : by_line[q] ? line_5[q] : room_5[q];
          its_addr      = base_q[q] + {42'd0, 16'(next_q[q]) & mask_q[q]};
        end
        if (grant[q]) begin
          slot_addr = slot_addr | its_addr;
          slots     = slots | its_slots;
          owner     = owner | owner_q[q];
        end
      end
    end
  end

  // Apart from the rest: it alone looks at the bus.
  assign free      = !request_o || request_ready_i;
  assign goes      = grant & due;
  assign plans     = free ? goes : '0;
  assign fruitless = some ? grant & ~due : '0;
  assign looked    = some && (free || goes == '0);

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
      if (free && some) begin
        request_o       <= goes != '0;
        request_addr_o  <= {slot_addr, 6'd0};
        request_slots_o <= slots;
        request_pair_q       <= plan_pair;
        request_owner_o <= owner;
      end
    end
  end
  assign request_queue_o = (Queues == 1) ? '0 : 4'(request_pair_q);

  // ---------------------------------------------------------------- indices
  logic [Queues-1:0] moves, arrives, takes;
  assign takes   = taken_i ? Queues'(16'd1 << taken_pair) : '0;
  assign arrives = received_i ? Queues'(16'd1 << received_pair) : '0;
  assign moves   = plans | accepts;

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

  logic [31:0] tail;
  logic [16:0] unasked, next, rest;
  logic [6:0]  line;
  logic        ends;
  /* verilator lint_off BLKSEQ */  // names for what belongs to one queue pair
  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      for (int q = 0; q < Queues; q++) begin
        head_q[q] <= '0;
        tail_q[q] <= '0;
      end
      ask_q       <= '0;
      published_q <= '0;
      fresh_q     <= '0;
    end else begin
      if (some) ask_q[Queues-1:0] <= ask_q[Queues-1:0] & ~fruitless;
      if (moves != '0) begin
        for (int q = 0; q < Queues; q++) begin
          tail    = tail_q[q];
          unasked = waiting_q[q];
          next    = next_q[q];
          line    = line_q[q];
          rest    = rest_q[q];
          if (plans[q]) begin
            ask_q[q]     <= !by_waiting[q];
            waiting_q[q] <= by_waiting[q] ? '0 : by_line[q] ? unasked - {12'd0, line_5[q]} : unasked - {12'd0, room_5[q]};
            next_q[q]    <= by_waiting[q] ? tail[16:0] : by_line[q] ? next + {12'd0, line_5[q]} : next + {12'd0, room_5[q]};
            room_q[q]    <= by_waiting[q] ? room_q[q] - RoomBits'(unasked[4:0]) : by_line[q] ? room_q[q] - RoomBits'(line_5[q]) : '0;
            // Room never is what ends a line.
            ends          = by_waiting[q] ? {2'b00, unasked[4:0]} == line : by_line[q] && line <= 7'd16;
            line_q[q]    <= !ends ? (by_waiting[q] ? line - {2'b00, unasked[4:0]} : by_line[q] ? line - 7'd16 : line - {2'b00, room_5[q]})
                          : (rest == '0) ? first_q[q] : (rest[16:6] != '0) ? 7'd64 : rest[6:0];
            if (ends) rest_q[q] <= (rest == '0) ? lap_q[q] : (rest[16:6] != '0) ? rest - 17'd64 : '0;
          end
          if (accepts[q]) begin
            ask_q[q]     <= (plans[q] ? !by_waiting[q] : unasked != '0) || doorbell_tail_i != tail;
            waiting_q[q] <= !plans[q] ? 17'(doorbell_tail_i) - next
                          : by_waiting[q] ? 17'(doorbell_tail_i) - tail[16:0]
                          : by_line[q] ? 17'(doorbell_tail_i) - next - {12'd0, line_5[q]} : 17'(doorbell_tail_i) - next - {12'd0, room_5[q]};
            tail_q[q]    <= doorbell_tail_i;
          end
        end
      end
      if (received_i) begin
        for (int q = 0; q < Queues; q++) begin
          tail = tail_q[q];
          if (arrives[q]) begin
            published_q[q] <= tail[16:0] != behind_q[q];
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
      if (taken_i) begin
        for (int q = 0; q < Queues; q++) begin
          unasked = waiting_q[q];
          if (takes[q]) begin
            room_q[q] <= !plans[q] ? room_q[q] + 1'b1
                       : by_waiting[q] ? room_q[q] - RoomBits'(unasked[4:0]) + 1'b1
                       : by_line[q] ? room_q[q] - RoomBits'(line_5[q]) + 1'b1 : RoomBits'(1);
            if (!accepts[q]) ask_q[q] <= plans[q] ? !by_waiting[q] : unasked != '0;
          end
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
        waiting_q[start_pair]   <= '0;
        room_q[start_pair]      <= RoomBits'(Places);
        ask_q[start_pair]       <= 1'b0;
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
  assign waiting = some ? waiting_q[plan_pair] : '0;
  always_ff @(posedge clk_i) begin
    if (rst_ni && received_i) begin
      if (tail_q[received_pair] - head_q[received_pair] == {15'd0, waiting_q[received_pair]})
        $fatal(1, "R3 desc_ring: a slot of queue pair %0d arrived that nobody asked for", received_pair);
    end
    if (rst_ni && plans != '0) begin
      if (!on[plan_pair] || {12'd0, slots} > waiting || {15'd0, waiting} > tail_q[plan_pair] - head_q[plan_pair])
        $fatal(1, "R1 desc_ring: %0d slots of queue pair %0d are requested and only %0d are published", slots, plan_pair, waiting);
      if ({12'd0, slots} > 17'(room_q[plan_pair]) || 17'(room_q[plan_pair]) > 17'(Places))
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
