// Device half of the submission queues: the published tails, and which slots to read next.
//
// All indices run freely (rule R13); a slot is its index modulo the ring size. Four of each queue pair matter:
//   freed  slots below it have left the device's buffers: their places are free again
//   head   slots below it have been read: the host may reuse them
//   next   slots below it have been requested
//   tail   slots below it have been published by the host (rule R1)
// so freed <= head <= next <= tail <= head + size, and next <= freed + places, in modular order. Of freed and next only the
// distances are kept: what is still to be requested, and the room that is left.
//
// One burst is planned per cycle, round robin among the queue pairs that have something to request. The places are
// divided evenly, so that no queue pair takes another's.
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

  logic [Queues-1:0][63:0] base_q;
  logic [Queues-1:0][16:0] size_q;
  logic [Queues-1:0][3:0]  owner_q;
  logic [Queues-1:0][31:0] head_q;
  logic [Queues-1:0][31:0] tail_q;
  // What follows from them, kept up to date: a burst is planned from these alone, so that no subtraction stands before it.
  logic [Queues-1:0][16:0] waiting_q;   // tail - next: slots that are published and not requested
  logic [Queues-1:0][16:0] room_q;      // next + room = freed + places: so many more may be requested
  logic [Queues-1:0][16:0] to_wrap_q;   // slots from next to the end of the ring, at least 1
  logic [Queues-1:0][63:0] addr_q;      // where slot next lies
  // Known to have something to request: not so one that waits for room.
  /* verilator lint_off UNUSEDSIGNAL */  // as many as an index can name
  logic [Slots-1:0]  ask_q;
  logic [Slots-1:0]  published_q;       // tail and head differ
  /* verilator lint_on UNUSEDSIGNAL */
  logic [Slots-1:0]  on;
  assign on = Slots'(on_i);

  // ---------------------------------------------------------------- doorbell
  logic [31:0] new_published, published;
  logic        accept;

  always_comb begin
    published     = '0;
    new_published = '0;
    doorbell_ok_o = 1'b0;
    if (doorbell_i) begin
      published     = tail_q[doorbell_pair] - head_q[doorbell_pair];
      new_published = doorbell_tail_i - head_q[doorbell_pair];
      doorbell_ok_o = on[doorbell_pair] && new_published <= {15'd0, size_q[doorbell_pair]} && new_published >= published;
    end
  end
  assign accept = doorbell_i && doorbell_ok_o;
  assign abort_tail_o = abort_i ? tail_q[doorbell_pair] : '0;

  // ---------------------------------------------------------------- burst planner
  /* verilator lint_off UNUSEDSIGNAL */  // as wide as for the most queue pairs
  logic [Queues-1:0] asks, grant_unused;
  logic [3:0]        number;
  /* verilator lint_on UNUSEDSIGNAL */
  logic              some, looked;
  assign asks = ask_q[Queues-1:0] & on_i;
  assign some = asks != '0;
  assign plan_pair = (Queues == 1) ? '0 : number[QueueBits-1:0];

  round_robin #(.N(Queues)) u_round_robin (
    .clk_i, .rst_ni,
    .request_i (asks),
    .grant_o   (grant_unused),
    .number_o  (number),
    .accept_i  (looked)
  );

  // At most 16 of so many.
  function automatic logic [4:0] at_most_16(input logic [16:0] slots);
    at_most_16 = (slots[16:4] != '0) ? 5'd16 : slots[4:0];
  endfunction

  logic [16:0] waiting, room, to_wrap, left, left_room;
  logic [63:0] slot_addr;
  logic [6:0]  to_boundary;
  logic [4:0]  waiting_5, wrap_5, boundary_5, room_5, line_5, wanted, slots;
  logic        due, plan, fruitless, more;

  assign waiting     = some ? waiting_q[plan_pair] : '0;
  assign room        = some ? room_q[plan_pair] : '0;
  assign to_wrap     = some ? to_wrap_q[plan_pair] : '0;
  assign slot_addr   = some ? addr_q[plan_pair] : '0;
  assign to_boundary = 7'd64 - {1'b0, slot_addr[11:6]};

  // The four bounds of a burst side by side.
  assign waiting_5  = at_most_16(waiting);
  assign wrap_5     = at_most_16(to_wrap);
  assign boundary_5 = at_most_16({10'd0, to_boundary});
  assign room_5     = at_most_16(room);

  assign line_5 = (wrap_5 < boundary_5) ? wrap_5 : boundary_5;
  assign wanted = (waiting_5 < line_5) ? waiting_5 : line_5;
  assign slots  = (room_5 < wanted) ? room_5 : wanted;
  assign due    = slots != '0 && (room_5 >= wanted || {12'd0, room_5} >= MinCut);
  // Apart from the rest: it alone looks at the bus.
  assign plan        = due && (!request_o || request_ready_i);
  assign fruitless   = some && !due;
  assign looked      = plan || fruitless;
  assign more        = waiting != {12'd0, slots};
  assign left        = waiting - {12'd0, slots};
  assign left_room   = room - {12'd0, slots};

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
      if (plan) begin
        request_o       <= 1'b1;
        request_addr_o  <= slot_addr;
        request_slots_o <= slots;
        request_pair_q       <= plan_pair;
        request_owner_o <= owner_q[plan_pair];
      end
    end
  end
  assign request_queue_o = (Queues == 1) ? '0 : 4'(request_pair_q);

  // ---------------------------------------------------------------- indices
  // What of a cycle's events belongs to the queue pair of another.
  logic        taken_planned, doorbell_planned, doorbell_received, taken_more, doorbell_more;
  logic [31:0] doorbell_head;
  logic [16:0] added, doorbell_waiting, taken_room;
  assign taken_planned     = plan && taken_pair == plan_pair;
  assign doorbell_planned  = plan && doorbell_pair == plan_pair;
  assign doorbell_received = received_i && doorbell_pair == received_pair;
  assign added             = accept ? 17'(doorbell_tail_i - tail_q[doorbell_pair]) : '0;
  assign doorbell_waiting  = doorbell_planned ? left : accept ? waiting_q[doorbell_pair] : '0;
  assign doorbell_more     = doorbell_planned ? more : accept && waiting_q[doorbell_pair] != '0;
  assign doorbell_head     = accept ? head_q[doorbell_pair] + 32'(doorbell_received) : '0;
  assign taken_room        = taken_planned ? left_room : taken_i ? room_q[taken_pair] : '0;
  assign taken_more        = taken_planned ? more : taken_i && waiting_q[taken_pair] != '0;

  // Where the first slot lies is worked out in the cycle behind a start: no doorbell has come by then.
  logic                 fresh_q;
  logic [QueueBits-1:0] fresh_pair_q;
  logic [16:0]          fresh_size;
  logic [15:0]          fresh_slot;
  assign fresh_size = fresh_q ? size_q[fresh_pair_q] : '0;
  assign fresh_slot = fresh_q ? 16'(head_q[fresh_pair_q]) & (fresh_size[15:0] - 16'd1) : '0;

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      for (int q = 0; q < Queues; q++) begin
        head_q[q] <= '0;
        tail_q[q] <= '0;
      end
      ask_q       <= '0;
      published_q <= '0;
      fresh_q     <= 1'b0;
    end else begin
      // The last of these that names a queue pair is right for it.
      if (plan)      ask_q[plan_pair] <= more;
      if (fruitless) ask_q[plan_pair] <= 1'b0;
      if (taken_i)   ask_q[taken_pair] <= taken_more;
      if (accept)    ask_q[doorbell_pair] <= doorbell_more || added != '0;
      if (received_i) published_q[received_pair] <= tail_q[received_pair] != head_q[received_pair] + 32'd1;
      if (accept)     published_q[doorbell_pair] <= doorbell_tail_i != doorbell_head;

      if (received_i) head_q[received_pair]  <= head_q[received_pair] + 32'd1;
      if (plan) begin
        waiting_q[plan_pair] <= left;
        room_q[plan_pair]    <= left_room;
        to_wrap_q[plan_pair] <= (to_wrap == {12'd0, slots}) ? size_q[plan_pair] : to_wrap - {12'd0, slots};
        addr_q[plan_pair]    <= (to_wrap == {12'd0, slots}) ? base_q[plan_pair] : slot_addr + {53'd0, slots, 6'd0};
      end
      if (taken_i)    room_q[taken_pair]       <= taken_room + 17'd1;
      if (accept)     waiting_q[doorbell_pair] <= doorbell_waiting + added;
      if (accept)     tail_q[doorbell_pair]    <= doorbell_tail_i;

      if (fresh_q) begin
        addr_q[fresh_pair_q]    <= base_q[fresh_pair_q] + {42'd0, fresh_slot, 6'd0};
        to_wrap_q[fresh_pair_q] <= fresh_size - {1'b0, fresh_slot};
      end
      fresh_q <= start_i;
      if (start_i) begin
        base_q[start_pair]      <= start_config_i.sq_base;
        size_q[start_pair]      <= start_config_i.sq_size;
        owner_q[start_pair]     <= start_config_i.owner;
        head_q[start_pair]      <= start_config_i.sq_start;
        tail_q[start_pair]      <= start_config_i.sq_start;
        waiting_q[start_pair]   <= '0;
        room_q[start_pair]      <= 17'(Places);
        ask_q[start_pair]       <= 1'b0;
        published_q[start_pair] <= 1'b0;
        fresh_pair_q            <= start_pair;
      end
    end
  end

  assign received_index_o = received_i ? head_q[received_pair] : '0;
  assign published_o      = published_q[Queues-1:0] & on_i;
  assign head_o           = head_q[state_pair];
  assign tail_o           = on[state_pair] ? tail_q[state_pair] : head_q[state_pair];    // R12: the queue is empty
  assign posted_head_o    = posted_i ? head_q[posted_pair] : '0;

`ifndef SYNTHESIS
  always_ff @(posedge clk_i) begin
    if (rst_ni && received_i) begin
      if (tail_q[received_pair] - head_q[received_pair] == {15'd0, waiting_q[received_pair]})
        $fatal(1, "R3 desc_ring: a slot of queue pair %0d arrived that nobody asked for", received_pair);
    end
    if (rst_ni && plan) begin
      if (!on[plan_pair] || {12'd0, slots} > waiting || {15'd0, waiting} > tail_q[plan_pair] - head_q[plan_pair])
        $fatal(1, "R1 desc_ring: %0d slots of queue pair %0d are requested and only %0d are published", slots, plan_pair, waiting);
      if ({12'd0, slots} > room || room > 17'(Places))
        $fatal(1, "R4 desc_ring: slots of queue pair %0d are requested with no place for them", plan_pair);
    end
    if (rst_ni && accept) begin
      if (new_published > {15'd0, size_q[doorbell_pair]})
        $fatal(1, "R13 desc_ring: tail %0d is more than %0d slots above the head", doorbell_tail_i, size_q[doorbell_pair]);
    end
    if (request_o) begin
      if (rst_ni && {1'b0, request_addr_o[11:6]} + {2'b0, request_slots_o} > 7'd64)
        $fatal(1, "R11 desc_ring: a burst of %0d from %h crosses 4 KiB", request_slots_o, request_addr_o);
    end
  end
`endif
endmodule
