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
  input  logic        ready_i,

  output logic        stop_o,         // a STOP arrives: it ends what the workers have of this rollout
  output logic [31:0] stop_rollout_o,
  output logic        idle_o          // empty
);
  localparam int PtrBits  = $clog2(Depth);
  localparam int Lanes    = (Depth < 8) ? Depth : 8;
  localparam int LaneBits = $clog2(Lanes);
  localparam int Rows     = Depth / Lanes;

  work_t work;
  echo_t echo;
  logic  some, take, stop, full_unused;
  logic [PtrBits:0] count_unused;

  assign take = valid_o && ready_i;

  sync_fifo #(.Width($bits(work_t) + $bits(echo_t) + ENGINE_BITS + 3), .Depth(Depth)) u_fifo (
    .clk_i, .rst_ni, .clear_i,
    .push_i,
    .data_i  ({work_i, echo_i, prepared_i, fence_i, prefill_i, stop_i}),
    .full_o  (full_unused),
    .valid_o (some),
    .data_o  ({work, echo, prepared_o, fence_o, prefill_o, stop}),
    .pop_i   (take),
    .count_o (count_unused)
  );

  // ---------------------------------------------------------------- rollouts of the STOPs that wait here
  // Row and lane of a note are the upper and lower bits of its index; indices run freely, as in sync_fifo.
  logic [PtrBits:0]    oldest_q, newest_q, notes, row_first;
  logic [PtrBits:0]    looked_q;        // notes before this one were compared with the oldest descriptor; a full row
  logic                known_q, hit_q;  // all notes were; one of them is its rollout
  logic                adds, last_row, known, hit;
  logic [Lanes*32-1:0] row;
  logic [Lanes-1:0]    match;
  logic [PtrBits-1:0]  place;

  assign stop_o         = push_i && stop_i && !clear_i;
  assign stop_rollout_o = work_i.rollout_id;
  assign notes          = newest_q - oldest_q;
  assign row_first      = looked_q & ~(PtrBits+1)'(Lanes - 1);
  assign adds           = some && work.adds_tokens;

  for (genvar k = 0; k < Lanes; k++) begin : gen_lane
    logic [31:0] mem [0:Rows-1];
    if (Rows == 1) begin : gen_row
      assign row[32*k +: 32] = mem[0];
      always_ff @(posedge clk_i) if (stop_o && newest_q[LaneBits-1:0] == LaneBits'(k)) mem[0] <= work_i.rollout_id;
    end else begin : gen_rows
      assign row[32*k +: 32] = mem[looked_q[PtrBits-1:LaneBits]];
      always_ff @(posedge clk_i)
        if (stop_o && newest_q[LaneBits-1:0] == LaneBits'(k)) mem[newest_q[PtrBits-1:LaneBits]] <= work_i.rollout_id;
    end
  end

  always_comb begin
    match = '0;
    place = '0;
    if (adds && notes != '0) begin
      for (int k = 0; k < Lanes; k++) begin
        place    = PtrBits'(row_first) + PtrBits'(k) - oldest_q[PtrBits-1:0];
        match[k] = {1'b0, place} < notes && row[32*k +: 32] == work.rollout_id;
      end
    end
  end

  // What arrives after the oldest descriptor has come to the front is compared on its way in.
  assign last_row = newest_q - row_first <= (PtrBits+1)'(Lanes);
  assign known    = known_q || !adds || last_row;
  assign hit      = hit_q || match != '0 || (adds && stop_o && work_i.rollout_id == work.rollout_id);

  always_ff @(posedge clk_i) begin
    if (!rst_ni || clear_i) begin
      oldest_q <= '0;
      newest_q <= '0;
      looked_q <= '0;
      known_q  <= 1'b0;
      hit_q    <= 1'b0;
    end else begin
      if (stop_o) newest_q <= newest_q + 1'b1;
      if (take && stop) oldest_q <= oldest_q + 1'b1;
      if (take) begin
        looked_q <= oldest_q + (PtrBits+1)'(stop);
        known_q  <= 1'b0;
        hit_q    <= 1'b0;
      end else if (some) begin
        if (!known) looked_q <= looked_q + (PtrBits+1)'(Lanes);
        known_q <= known;
        hit_q   <= hit;
      end
    end
  end

  // ---------------------------------------------------------------- the oldest descriptor
  assign valid_o = some && known;
  assign idle_o  = !some;

  always_comb begin
    work_o = work;
    echo_o = echo;
    if (hit) begin
      work_o.adds_tokens = 1'b0;
      echo_o.adds_tokens = 1'b0;
      echo_o.status      = STATUS_STOPPED;
      echo_o.result      = DIGEST_INIT;
    end
  end

`ifndef SYNTHESIS
  initial if (Depth < 2 || (Depth & (Depth - 1)) != 0)
    $fatal(1, "work_queue: Depth is %0d: it must be a power of two, at least 2", Depth);
  always_ff @(posedge clk_i) begin
    if (rst_ni && !clear_i && take && stop && notes == '0)
      $fatal(1, "R8 work_queue: a STOP goes out that was not noted");
  end
`endif
endmodule
