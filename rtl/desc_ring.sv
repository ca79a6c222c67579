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
// Each step has a cycle of its own, from registers to registers:
//   1. A doorbell is answered in the cycle in which it comes; what it publishes is added in the next one.
//   2. A queue pair of which something has changed is settled: the slots of its next burst, bounded by what is published, the
//      line and the room, and whether there is one that it asks for.
//   3. One burst is planned per cycle, round robin among the queue pairs that ask.
//   4. The queue pair moves on behind its burst, and is then settled again: each has a burst every third cycle at most.
// If a queue pair has nothing waiting, a doorbell settles it as it is added: its request is shown three cycles after the doorbell.
// Between the second step and the third, a doorbell or a place that becomes free can only add to what may be requested, so
// what was settled stays valid.
//
// The places are divided evenly, so that no queue pair takes another's.
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
  input  logic [Queues-1:0] on_i,      // of the others nothing is accepted and nothing requested
  input  logic [Queues-1:0] enabled_i, // on, or dead (R24): what was published is still shown

  // Doorbell: a new tail; refused (ok low, same cycle) when it would overrun the ring or run backwards. Behind a doorbell
  // comes a cycle without a doorbell and ABORT (axil_slave has a response between two writes).
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
  output logic [Queues-1:0] left_o,         // … nor will it, of a dead one
  // Indices of a queue pair, for the registers …
  input  logic [3:0]  state_queue_i,
  output logic [31:0] head_o,
  output logic [31:0] tail_o,
  // … and for a completion.
  input  logic        posted_i,
  input  logic [3:0]  posted_queue_i,
  output logic [31:0] posted_head_o,
  output logic        moves_o          // a burst is asked for, or what one needs to know is worked out
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
  logic [Queues-1:0][57:0] addr_q;      // the same of next
  logic [Queues-1:0][3:0]  owner_q;
  logic [Queues-1:0][31:0] head_q;
  logic [Queues-1:0][31:0] tail_q;
  logic [Queues-1:0][31:0] limit_q;     // head + size: no tail lies above
  logic [Queues-1:0][16:0] behind_q;    // head + 1
  logic [Queues-1:0][16:0] waiting_q;   // tail - next: slots that are published and not requested
  logic [Queues-1:0][RoomBits-1:0] room_q;   // next + room = freed + places: so many more may be requested
  // No burst goes beyond the next 4-KiB boundary or the end of the ring, whichever comes first: the end of its line.
  logic [Queues-1:0][6:0]  line_q;      // slots from next to there, 1 to 64
  logic [Queues-1:0][16:0] rest_q;      // from there to the end of the ring
  logic [Queues-1:0][6:0]  first_q;     // the same for slot 0
  logic [Queues-1:0][16:0] lap_q;
  logic [Queues-1:0][4:0]  slots_q;     // of the next burst, as it was settled
  logic [Queues-1:0] sent_q;            // that was planned in the last cycle …
  logic [Queues-1:0] ends_q;            // … and ends its line
  logic [Queues-1:0] wraps_q;           // … and with it the ring
  /* verilator lint_off UNUSEDSIGNAL */  // as many as an index can name
  logic [Slots-1:0]  ask_q;
  logic [Slots-1:0]  stale_q;           // something has changed since it was settled
  logic [Slots-1:0]  published_q;       // tail and head differ
  /* verilator lint_on UNUSEDSIGNAL */
  logic [Slots-1:0]  on, enabled;
  assign on      = Slots'(on_i);
  assign enabled = Slots'(enabled_i);

  // ---------------------------------------------------------------- doorbell
  // A tail is good if it is neither below the present one nor above the limit. Exactly then both differences are below
  // 2^31, because their sum is at most the size.
  logic [Queues-1:0] accepts;
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
  assign doorbell_ok_o = accepts != '0;
  assign abort_tail_o  = abort_i ? tail_q[doorbell_pair] : '0;

  // It is added a cycle later.
  logic [Queues-1:0] bell_q;            // of these one was good
  logic [31:0]       bell_tail_q;
  logic [16:0]       bell_gain_q;       // slots that it publishes

  // ---------------------------------------------------------------- burst planner
  /* verilator lint_off UNUSEDSIGNAL */  // as wide as for the most queue pairs
  logic [3:0]        number;
  /* verilator lint_on UNUSEDSIGNAL */
  logic [Queues-1:0] asks, grant, plans;
  logic              planned;
  assign asks      = ask_q[Queues-1:0] & on_i;
  assign planned   = asks != '0 && (!request_o || request_ready_i);
  assign plans     = planned ? grant : '0;
  assign plan_pair = (Queues == 1) ? '0 : number[QueueBits-1:0];

  round_robin #(.N(Queues)) u_round_robin (
    .clk_i, .rst_ni,
    .request_i (asks),
    .grant_o   (grant),
    .number_o  (number),
    .accept_i  (planned)
  );

  logic [57:0] addr;
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
        addr  = '0;
        slots = '0;
        owner = '0;
        for (int q = 0; q < Queues; q++) begin
          if (grant[q]) begin
            addr  = addr | addr_q[q];
            slots = slots | slots_q[q];
            owner = owner | owner_q[q];
          end
        end
        request_o       <= 1'b1;
        request_addr_o  <= {addr, 6'd0};
        request_slots_o <= slots;
        request_pair_q       <= plan_pair;
        request_owner_o <= owner;
      end
    end
  end
  /* verilator lint_on BLKSEQ */
  assign request_queue_o = (Queues == 1) ? '0 : 4'(request_pair_q);

  // ---------------------------------------------------------------- indices
  logic [Queues-1:0] arrives, takes, settles, moves;
  assign takes   = taken_i ? Queues'(16'd1 << taken_pair) : '0;
  assign arrives = received_i ? Queues'(16'd1 << received_pair) : '0;
  assign settles = stale_q[Queues-1:0] | bell_q;

  // Where the first slot lies is worked out in the two cycles behind a start: no burst is planned by then.
  logic [1:0]           fresh_q;
  logic [QueueBits-1:0] fresh_pair_q, settled_pair_q;
  logic [15:0]          fresh_slot_q;
  logic [Queues-1:0]    freshes_q, backs;
  logic [16:0]          fresh_size_q, ring_size_q, to_wrap_q;
  logic [6:0]           to_page_q, from_base_q;
  logic [17:0]          past_page, past_first;
  assign moves   = sent_q | freshes_q;
  assign moves_o = request_o || (asks | settles | moves) != '0 || fresh_q != '0;
  assign backs   = wraps_q | freshes_q;   // to the first slot of the ring
  // With a sign: how much of the ring lies behind the boundary that comes next, and behind the first of all.
  assign past_page  = fresh_q[1] ? {1'b0, to_wrap_q} - {11'd0, to_page_q} : '0;
  assign past_first = fresh_q[1] ? {1'b0, ring_size_q} - {11'd0, from_base_q} : '0;

  // One number of four bits is at most the other: in an FPGA shorter than a comparison, which becomes a carry chain.
  function automatic logic up_to(input logic [3:0] a, input logic [3:0] b);
    up_to = !((a[3] && !b[3]) || ((a[3] || !b[3]) && ((a[2] && !b[2]) || ((a[2] || !b[2]) &&
              ((a[1] && !b[1]) || ((a[1] || !b[1]) && a[0] && !b[0]))))));
  endfunction

  // Slots that wait, to the end of the line, and of room: 16 and more are many.
  logic [16:0] waits, room, rest;
  logic [15:0] step;
  logic [6:0]  line;
  logic [3:0]  waits_4;
  logic        waits_many, line_many, room_many, by_waiting, by_line;
  /* verilator lint_off BLKSEQ */  // names for what belongs to one queue pair
  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      for (int q = 0; q < Queues; q++) begin
        head_q[q] <= '0;
        tail_q[q] <= '0;
      end
      bell_q      <= '0;
      sent_q      <= '0;
      stale_q     <= '0;
      ask_q       <= '0;
      published_q <= '0;
      fresh_q     <= '0;
      freshes_q   <= '0;
    end else begin
      bell_q <= accepts;
      sent_q <= plans;
      if (doorbell_i) begin
        bell_tail_q <= doorbell_tail_i;
        bell_gain_q <= 17'(doorbell_tail_i) - 17'(tail_q[doorbell_pair]);
      end
      if (settles != '0) begin
        for (int q = 0; q < Queues; q++) begin
          if (settles[q] && !plans[q]) begin
            // With a doorbell: what it publishes where nothing waited; otherwise no more than waits with it, and the queue
            // pair is settled again.
            waits      = waiting_q[q];
            line       = line_q[q];
            room       = 17'(room_q[q]);
            waits_4    = waits[3:0] | (bell_q[q] ? bell_gain_q[3:0] : 4'd0);
            waits_many = waits[16:4] != '0 || (bell_q[q] && bell_gain_q[16:4] != '0);
            line_many  = line[6:4] != '0;
            room_many  = room[16:4] != '0;
            by_waiting = (line_many || (!waits_many && up_to(waits_4, line[3:0])))
                      && (room_many || (!waits_many && up_to(waits_4, room[3:0])));
            by_line    = room_many || (!line_many && up_to(line[3:0], room[3:0]));
            slots_q[q] <= by_waiting ? (waits_many ? 5'd16 : {1'b0, waits_4})
                        : by_line ? (line_many ? 5'd16 : {1'b0, line[3:0]}) : {1'b0, room[3:0]};
            ask_q[q]   <= by_waiting ? waits_many || waits_4 != '0 : by_line || room >= MinCut;
            stale_q[q] <= 1'b0;
          end
        end
      end
      if (planned) begin
        for (int q = 0; q < Queues; q++) begin
          if (plans[q]) ask_q[q] <= 1'b0;
          ends_q[q]  <= line_q[q] == {2'b00, slots_q[q]};
          wraps_q[q] <= line_q[q] == {2'b00, slots_q[q]} && rest_q[q] == '0;
        end
      end
      if (bell_q != '0 || sent_q != '0) begin
        for (int q = 0; q < Queues; q++) begin
          if (bell_q[q] || sent_q[q]) begin
            stale_q[q]   <= 1'b1;
            waiting_q[q] <= waiting_q[q] + (bell_q[q] ? bell_gain_q : '0) - (sent_q[q] ? {12'd0, slots_q[q]} : '0);
          end
          if (bell_q[q]) tail_q[q] <= bell_tail_q;
        end
      end
      if (moves != '0) begin
        for (int q = 0; q < Queues; q++) begin
          rest = rest_q[q];
          step = freshes_q[q] ? fresh_slot_q : wraps_q[q] ? 16'd0 : {11'd0, slots_q[q]};
          if (sent_q[q]) begin
            ask_q[q]  <= 1'b0;          // whatever a doorbell has made of it
            line_q[q] <= !ends_q[q] ? line_q[q] - {2'b00, slots_q[q]} : wraps_q[q] ? first_q[q] : (rest[16:6] != '0) ? 7'd64 : rest[6:0];
            if (ends_q[q]) rest_q[q] <= wraps_q[q] ? lap_q[q] : (rest[16:6] != '0) ? rest - 17'd64 : '0;
          end
          // One adder: the first slot is added to the base, and to that each burst.
          if (moves[q]) addr_q[q] <= (backs[q] ? base_q[q] : addr_q[q]) + {42'd0, step};
        end
      end
      if (sent_q != '0 || taken_i) begin
        for (int q = 0; q < Queues; q++) begin
          if (sent_q[q])     room_q[q] <= room_q[q] - RoomBits'(slots_q[q]) + RoomBits'(takes[q]);
          else if (takes[q]) room_q[q] <= room_q[q] + 1'b1;
          if (takes[q] && waiting_q[q] != '0) stale_q[q] <= 1'b1;
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
      if (bell_q != '0) begin
        for (int q = 0; q < Queues; q++) begin
          if (bell_q[q]) published_q[q] <= arrives[q] ? 17'(bell_tail_q) != behind_q[q] : 17'(bell_tail_q) != 17'(head_q[q]);
        end
      end

      fresh_q   <= {fresh_q[0], start_i};
      freshes_q <= start_i ? Queues'(16'd1 << start_pair) : '0;
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
        owner_q[start_pair]     <= start_config_i.owner;
        head_q[start_pair]      <= start_config_i.sq_start;
        tail_q[start_pair]      <= start_config_i.sq_start;
        limit_q[start_pair]     <= start_config_i.sq_start + {15'd0, start_config_i.sq_size};
        behind_q[start_pair]    <= 17'(start_config_i.sq_start) + 17'd1;
        waiting_q[start_pair]   <= '0;
        room_q[start_pair]      <= RoomBits'(Places);
        stale_q[start_pair]     <= 1'b0;
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
  assign left_o           = published_q[Queues-1:0] & enabled_i;
  assign head_o           = head_q[state_pair];
  assign tail_o           = enabled[state_pair] ? tail_q[state_pair] : head_q[state_pair];    // R12: the queue is empty
  assign posted_head_o    = posted_i ? head_q[posted_pair] : '0;

`ifndef SYNTHESIS
  logic [16:0] waiting;
  logic [4:0]  planned_slots;
  assign waiting       = planned ? waiting_q[plan_pair] : '0;
  assign planned_slots = planned ? slots_q[plan_pair] : '0;
  always_ff @(posedge clk_i) begin
    if (rst_ni && bell_q != '0 && (doorbell_i || abort_i))
      $fatal(1, "R1 desc_ring: a doorbell or ABORT comes in the cycle behind a doorbell, whose tail is not in place");
    if (rst_ni && received_i) begin
      if (tail_q[received_pair] - head_q[received_pair] == {15'd0, waiting_q[received_pair]})
        $fatal(1, "R3 desc_ring: a slot of queue pair %0d arrived that nobody asked for", received_pair);
    end
    if (rst_ni && planned) begin
      if (!on[plan_pair] || {12'd0, planned_slots} > waiting || {15'd0, waiting} > tail_q[plan_pair] - head_q[plan_pair])
        $fatal(1, "R1 desc_ring: %0d slots of queue pair %0d are requested and only %0d are published", planned_slots, plan_pair, waiting);
      if ({12'd0, planned_slots} > 17'(room_q[plan_pair]) || 17'(room_q[plan_pair]) > 17'(Places))
        $fatal(1, "R4 desc_ring: slots of queue pair %0d are requested with no place for them", plan_pair);
    end
    if (rst_ni && doorbell_ok_o) begin
      if (doorbell_tail_i - head_q[doorbell_pair] > limit_q[doorbell_pair] - head_q[doorbell_pair])
        $fatal(1, "R13 desc_ring: tail %0d is more than %0d slots above the head", doorbell_tail_i,
               limit_q[doorbell_pair] - head_q[doorbell_pair]);
    end
    if (request_o) begin
      if (rst_ni && {1'b0, request_addr_o[11:6]} + {2'b0, request_slots_o} > 7'd64)
        $fatal(1, "R11 desc_ring: a burst of %0d from %h crosses 4 KiB", request_slots_o, request_addr_o);
    end
  end
`endif
endmodule
