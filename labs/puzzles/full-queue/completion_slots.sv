// Slots of one completion queue: whether one is free, and which one the next completion takes.
//
// A descriptor is handed to a worker only while slot_o is high. Several descriptors run at a time. Each ends at some later cycle, and its
// completion is then written at once: it cannot wait. Indices run freely, as 32 bits that wrap; the slot of index i is i modulo Size.
module completion_slots #(
  parameter int          SizeLog2 = 2,     // of the queue, in slots
  parameter logic [31:0] First    = '0     // the index of the first completion
) (
  input  logic                clk_i,
  input  logic                rst_ni,

  output logic                slot_o,           // a descriptor may be handed out
  input  logic                hand_out_i,       // one is; only with slot_o

  input  logic                post_i,           // a descriptor that was handed out ends: its completion is written …
  output logic [SizeLog2-1:0] post_slot_o,      // … into this slot, …
  output logic                post_phase_o,     // … with this phase

  input  logic                release_i,        // the host writes CQ_HEAD: …
  input  logic [31:0]         release_head_i    // … slots below it are the device's again
);
  localparam logic [31:0] Size = 32'd1 << SizeLog2;

  logic [31:0] head_q;                  // what lies below it is released
  logic [31:0] tail_q;                  // the index of the next completion

  assign slot_o       = tail_q - head_q < Size;
  assign post_slot_o  = tail_q[SizeLog2-1:0];
  assign post_phase_o = !tail_q[SizeLog2];

  always_ff @(posedge clk_i) begin
    if (post_i)    tail_q <= tail_q + 32'd1;
    if (release_i) head_q <= release_head_i;
    if (!rst_ni) begin
      head_q <= First;
      tail_q <= First;
    end
  end
endmodule
