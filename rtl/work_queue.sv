// Checked descriptors, in the order of the submission queue, until the dispatcher hands them out; and how a STOP takes
// effect before its turn (R8). All entries here and all descriptors at the workers are older than a STOP that arrives:
//   - the workers learn of it in the same cycle (stop_o);
//   - for the DECODEs that wait here its rollout is noted, until the STOP itself goes out. Until then what leaves is
//     older than the STOP, so a DECODE of a noted rollout goes out as STOPPED, without a token.
// Notes are looked up when a DECODE is the oldest, Lanes of them per cycle. There is room for as many as there are
// descriptors, so no STOP is missed and nothing holds up the fetch.
module work_queue
  import desc_pkg::*;
  import core_pkg::*;
#(
  parameter int Depth = 128           // a power of two, at least 2
) (
  input  logic        clk_i,
  input  logic        rst_ni,
  input  logic        clear_i,

  input  logic        push_i,         // there is always room: desc_ring requests no more than Depth
  input  work_t       work_i,
  input  echo_t       echo_i,
  input  logic [ENGINE_BITS-1:0] prepared_i,   // by the engine
  input  logic        fence_i,
  input  logic        prefill_i,
  input  logic        stop_i,         // a STOP whose effect runs ahead of it

  output logic        valid_o,
  output work_t       work_o,
  output echo_t       echo_o,
  output logic [ENGINE_BITS-1:0] prepared_o,
  output logic        fence_o,
  output logic        prefill_o,
  output logic        stopped_o,      // a DECODE that ends here, as STOPPED without a token
  input  logic        ready_i,

  output logic        stop_o,         // a STOP arrives: it ends what the workers have of this rollout
  output logic [31:0] stop_rollout_o,
  output logic        idle_o          // empty
);
  localparam int PtrBits  = $clog2(Depth);
  localparam int Lanes    = (Depth < 8) ? Depth : 8;
  localparam int LaneBits = $clog2(Lanes);
  localparam int Rows     = Depth / Lanes;
  localparam int RowBits  = (Rows == 1) ? 1 : $clog2(Rows);

  // A memory for each part, so that one which is looked at seldom costs nothing in simulation while it is not.
  logic [$bits(work_t)-1:0] work_mem     [0:Depth-1];
  logic [$bits(echo_t)-1:0] echo_mem     [0:Depth-1];
  logic [ENGINE_BITS-1:0]   prepared_mem [0:Depth-1];
  logic [2:0]               flag_mem     [0:Depth-1];
  // One bit wider than the address, as in sync_fifo.
  logic [PtrBits:0]         head_q, tail_q;
  logic                     some, take, stop;
  logic [PtrBits-1:0]       head;

  assign some       = head_q != tail_q;
  assign head       = head_q[PtrBits-1:0];
  assign take       = valid_o && ready_i;
  assign work_o     = work_mem[head];
  assign echo_o     = echo_mem[head];
  assign prepared_o = prepared_mem[head];
  assign {fence_o, prefill_o, stop} = flag_mem[head];

  always_ff @(posedge clk_i) begin
    if (push_i) begin
      work_mem[tail_q[PtrBits-1:0]]     <= work_i;
      echo_mem[tail_q[PtrBits-1:0]]     <= echo_i;
      prepared_mem[tail_q[PtrBits-1:0]] <= prepared_i;
      flag_mem[tail_q[PtrBits-1:0]]     <= {fence_i, prefill_i, stop_i};
    end
    if (!rst_ni || clear_i) begin
      head_q <= '0;
      tail_q <= '0;
    end else begin
      if (push_i) tail_q <= tail_q + 1'b1;
      if (take)   head_q <= head_q + 1'b1;
    end
  end

  // ---------------------------------------------------------------- rollouts of the STOPs that wait here
  // Row and lane of a note are the upper and lower bits of its index; indices run freely, as in sync_fifo.
  logic [PtrBits:0]    oldest_q, newest_q, notes, row_first;
  logic [PtrBits:0]    looked_q;        // notes before this one were compared with the oldest descriptor; a full row
  logic                known_q, hit_q;  // all notes were; one of them is its rollout
  logic                adds, known, hit;
  logic [Lanes*32-1:0] note_mem [0:Rows-1];
  logic [RowBits-1:0]  new_row, row;
  logic [Lanes-1:0]    match;
  logic [PtrBits-1:0]  place;

  assign stop_o         = push_i && stop_i && !clear_i;
  assign stop_rollout_o = work_i.rollout_id;
  assign notes          = newest_q - oldest_q;
  assign row_first      = looked_q & ~(PtrBits+1)'(Lanes - 1);
  assign adds           = some && work_o.adds_tokens;

  assign new_row = RowBits'(newest_q[PtrBits-1:0] >> LaneBits);
  assign row     = RowBits'(looked_q[PtrBits-1:0] >> LaneBits);

  always_ff @(posedge clk_i) begin
    if (stop_o) note_mem[new_row][32*newest_q[LaneBits-1:0] +: 32] <= work_i.rollout_id;
  end

  // What arrives after the oldest descriptor has come to the front is compared on its way in.
  always_comb begin
    known = 1'b1;
    hit   = 1'b0;
    if (adds && (notes != '0 || stop_o)) begin
      known = known_q || newest_q - row_first <= (PtrBits+1)'(Lanes);
      hit   = hit_q || match != '0 || (stop_o && work_i.rollout_id == work_o.rollout_id);
    end
  end

  always_comb begin
    match = '0;
    place = '0;
    if (adds && notes != '0) begin
      for (int k = 0; k < Lanes; k++) begin
        place    = PtrBits'(row_first) + PtrBits'(k) - oldest_q[PtrBits-1:0];
        match[k] = {1'b0, place} < notes && note_mem[row][32*k +: 32] == work_o.rollout_id;
      end
    end
  end

  always_ff @(posedge clk_i) begin
    if (!rst_ni || clear_i) begin
      oldest_q <= '0;
      newest_q <= '0;
      looked_q <= '0;
      known_q  <= 1'b0;
      hit_q    <= 1'b0;
    end else begin
      if (stop_o) newest_q <= newest_q + 1'b1;
      if (take) begin
        if (stop) oldest_q <= oldest_q + 1'b1;
        looked_q <= oldest_q + (PtrBits+1)'(stop);
        known_q  <= 1'b0;
        hit_q    <= 1'b0;
      end else if (adds && (notes != '0 || stop_o)) begin
        if (!known) looked_q <= looked_q + (PtrBits+1)'(Lanes);
        known_q <= known;
        hit_q   <= hit;
      end
    end
  end

  // ---------------------------------------------------------------- the oldest descriptor
  assign valid_o = some && known;
  assign idle_o  = !some;

  assign stopped_o = hit;

`ifndef SYNTHESIS
  initial if (Depth < 2 || (Depth & (Depth - 1)) != 0)
    $fatal(1, "work_queue: Depth is %0d: it must be a power of two, at least 2", Depth);
  always_ff @(posedge clk_i) begin
    if (push_i) begin
      if (rst_ni && !clear_i && tail_q - head_q == (PtrBits+1)'(Depth))
        $fatal(1, "R4 work_queue: a descriptor with no place for it");
    end
    if (take) begin
      if (rst_ni && !clear_i && stop && notes == '0) $fatal(1, "R8 work_queue: a STOP goes out that was not noted");
    end
  end
`endif
endmodule
