// First-word-fall-through FIFO. data_o is valid with valid_o; full_o and valid_o come from registers. A quiet one shows 0
// without valid_o: a simulation then looks at the storage of an empty one in no cycle.
// clear_i empties it; it does not clear the storage.
module sync_fifo #(
  parameter int Width = 8,
  parameter int Depth = 2,          // a power of two, at least 2
  parameter bit Quiet = 1'b0
) (
  input  logic                     clk_i,
  input  logic                     rst_ni,
  input  logic                     clear_i,
  input  logic                     push_i,   // only when !full_o
  input  logic [Width-1:0]         data_i,
  output logic                     full_o,
  output logic                     valid_o,
  output logic [Width-1:0]         data_o,
  input  logic                     pop_i,    // only when valid_o
  output logic [$clog2(Depth):0]   count_o
);
  if (Width < 1) begin : gen_bad_width
    localparam bit WidthMustBeAtLeast1 = {-1{1'b1}};   // ends the elaboration
  end

  if (Depth < 2 || (Depth & (Depth - 1)) != 0) begin : gen_bad_depth
    localparam bit DepthMustBeAPowerOfTwoFrom2 = {-1{1'b1}};   // ends the elaboration
  end

  localparam int PtrBits = $clog2(Depth);

  logic [Width-1:0]   mem [0:Depth-1];
  // One bit wider than the address: equal pointers are empty, a full turn apart is full.
  logic [PtrBits:0]   head_q, tail_q;

  assign count_o = tail_q - head_q;
  assign full_o  = count_o == (PtrBits+1)'(Depth);
  assign valid_o = tail_q != head_q;
  assign data_o  = (!Quiet || valid_o) ? mem[head_q[PtrBits-1:0]] : '0;

  always_ff @(posedge clk_i) begin
    if (push_i) mem[tail_q[PtrBits-1:0]] <= data_i;
  end

  always_ff @(posedge clk_i) begin
    if (push_i) tail_q <= tail_q + 1'b1;
    if (pop_i)  head_q <= head_q + 1'b1;
    if (!rst_ni || clear_i) begin
      head_q <= '0;
      tail_q <= '0;
    end
  end

`ifndef SYNTHESIS
  always_ff @(posedge clk_i) begin
    if (push_i) begin
      if (rst_ni && !clear_i && full_o)   $fatal(1, "R4 sync_fifo: push into a full FIFO (%m)");
    end
    if (pop_i) begin
      if (rst_ni && !clear_i && !valid_o) $fatal(1, "R3 sync_fifo: pop from an empty FIFO (%m)");
    end
  end
`endif
endmodule
