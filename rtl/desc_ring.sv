// Device half of the submission queue: the published tail, and which slots to read next.
//
// All indices run freely (rule R13); a slot is its index modulo the ring size. Three of them matter:
//   head  slots below it have been read: the host may reuse them
//   next  slots below it have been requested
//   tail  slots below it have been published by the host (rule R1)
// so head <= next <= tail <= head + size, in modular order.
module desc_ring #(
  parameter int FetchDepth = 128    // descriptors that desc_fetch can hold or have in flight
) (
  input  logic        clk_i,
  input  logic        rst_ni,
  input  logic        bus_rst_ni,      // of the bus: a request outlives a reset of the device
  input  logic        clear_i,
  input  logic        start_i,         // load start_index_i
  input  logic [31:0] start_index_i,
  input  logic [63:0] base_i,
  input  logic [16:0] size_i,          // slots, a power of two

  // Doorbell: a new tail; refused (ok low, same cycle) when it would overrun the ring or run backwards.
  input  logic        doorbell_i,
  input  logic [31:0] doorbell_tail_i,
  output logic        doorbell_ok_o,

  // Read requests: 1 to 16 slots that cross neither a 4-KiB boundary nor the ring's end.
  output logic        request_o,
  output logic [63:0] request_addr_o,
  output logic [4:0]  request_slots_o,
  input  logic        request_ready_i,
  input  logic        received_i,      // one slot has arrived
  input  logic        taken_i,         // one slot has left desc_fetch: its place is free again

  output logic        published_o,     // some published slot has not arrived
  output logic [31:0] head_o,
  output logic [31:0] tail_o
);
  if (FetchDepth < 2 || FetchDepth > 4096 || (FetchDepth & (FetchDepth - 1)) != 0) begin : gen_bad_fetch_depth
    localparam bit FetchDepthMustBeAPowerOfTwoFrom2To4096 = {-1{1'b1}};   // ends the elaboration
  end

  localparam int RoomBits = $clog2(FetchDepth) + 1;
  localparam logic [16:0] MaxBurst = 17'd16;
  // The FIFO's room may shorten a burst only down to this: fewer, longer bursts.
  localparam logic [16:0] MinCut = (FetchDepth < 8) ? 17'(FetchDepth) : 17'd8;

  logic [31:0] head_q, next_q, tail_q;
  logic [RoomBits-1:0] room_q;

  // ---------------------------------------------------------------- doorbell
  logic [31:0] published, new_published;
  assign published = tail_q - head_q;

  always_comb begin
    new_published = '0;
    doorbell_ok_o = 1'b0;
    if (doorbell_i) begin
      new_published = doorbell_tail_i - head_q;
      doorbell_ok_o = !clear_i && new_published <= {15'd0, size_i} && new_published >= published;
    end
  end

  // ---------------------------------------------------------------- burst planner
  logic        pending;
  logic [16:0] waiting;
  logic [15:0] slot;
  logic [63:0] slot_addr;
  logic [16:0] to_wrap, to_boundary, wanted, room, slots;
  logic        due, plan;

  assign pending = tail_q != next_q;
  assign waiting = 17'(tail_q - next_q);
  assign room    = 17'(room_q);

  always_comb begin
    slot        = '0;
    slot_addr   = '0;
    to_wrap     = '0;
    to_boundary = '0;
    wanted      = '0;
    slots       = '0;
    due         = 1'b0;
    if (pending && room_q != '0) begin
      slot        = next_q[15:0] & (size_i[15:0] - 16'd1);
      slot_addr   = base_i + {42'd0, slot, 6'd0};
      to_wrap     = size_i - {1'b0, slot};
      to_boundary = 17'd64 - {11'd0, slot_addr[11:6]};

      wanted = MaxBurst;
      if (waiting < wanted)     wanted = waiting;
      if (to_wrap < wanted)     wanted = to_wrap;
      if (to_boundary < wanted) wanted = to_boundary;

      slots = (room < wanted) ? room : wanted;
      due   = slots == wanted || slots >= MinCut;
    end
  end
  // Apart from the rest: it alone looks at the bus.
  assign plan = due && !clear_i && (!request_o || request_ready_i);

  always_ff @(posedge clk_i) begin
    if (!bus_rst_ni) begin
      request_o       <= 1'b0;
      request_addr_o  <= '0;
      request_slots_o <= '0;
    end else begin
      // A request that has been shown on the bus must stay (AXI), even through a disable or a reset of the device.
      if (request_ready_i) request_o <= 1'b0;
      if (plan) begin
        request_o       <= 1'b1;
        request_addr_o  <= slot_addr;
        request_slots_o <= slots[4:0];
      end
    end
  end

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      head_q <= '0;
      next_q <= '0;
      tail_q <= '0;
      room_q <= RoomBits'(FetchDepth);
    end else if (start_i) begin
      head_q <= start_index_i;
      next_q <= start_index_i;
      tail_q <= start_index_i;
      room_q <= RoomBits'(FetchDepth);
    end else if (clear_i) begin
      next_q <= head_q;  // R12: the queue is empty
      tail_q <= head_q;
    end else begin
      if (doorbell_i && doorbell_ok_o) tail_q <= doorbell_tail_i;
      if (received_i) head_q <= head_q + 32'd1;
      if (plan) next_q <= next_q + {15'd0, slots};
      if (plan || taken_i) room_q <= room_q - (plan ? RoomBits'(slots) : '0) + RoomBits'(taken_i);
    end
  end

  assign published_o = published != '0;
  assign head_o = head_q;
  assign tail_o = tail_q;

`ifndef SYNTHESIS
  logic [31:0] in_flight;
  assign in_flight = next_q - head_q;
  always_ff @(posedge clk_i) begin
    if (rst_ni && !clear_i && !start_i && (request_o || received_i)) begin
      if (in_flight > published)
        $fatal(1, "R1 desc_ring: slot %0d was requested and only %0d are published", next_q, tail_q);
      if (published > {15'd0, size_i})
        $fatal(1, "R13 desc_ring: tail %0d is more than %0d slots above head %0d", tail_q, size_i, head_q);
      if (received_i && in_flight == '0)
        $fatal(1, "R3 desc_ring: a slot arrived that nobody asked for");
    end
    if (request_o) begin
      if (rst_ni && {1'b0, request_addr_o[11:6]} + {2'b0, request_slots_o} > 7'd64)
        $fatal(1, "R11 desc_ring: a burst of %0d from %h crosses 4 KiB", request_slots_o, request_addr_o);
    end
  end
`endif
endmodule
