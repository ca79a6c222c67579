// The NPU's way to the bus: reads as bursts, for whose data there is room, so that the read channel is never held up; writes as single beats,
// of which no more than Writes are in flight. Data of one function comes in order, of two in any, and goes on in the order in which it
// was asked for. What was promised to the bus outlives a reset of the device, which lasts until nothing is
// on its way: its data is dropped.
//
// R24: what is asked for of a function whose users of engine 1 are all dead, and to which the bus owes answers under the same ID, does not
// go to the bus. It is answered here, with errors, behind what the bus was asked for before. So an operation that runs to its end adds
// nothing to what the bus owes.
module npu_port
  import npu_unit_pkg::*;
  import npu_control_pkg::*;
#(
  parameter int Depth  = 128,         // lines that may be on their way or wait; a power of two
  parameter int Writes = 32           // in flight; a power of two
) (
  input  logic                    clk_i,
  input  logic                    rst_ni,          // low until the bus owes nothing any more
  input  logic                    bus_rst_ni,

  // The NPU's side, in lines.
  input  logic                    read_valid_i,
  input  logic [ADDRESS_BITS-1:0] read_line_i,
  input  logic [4:0]              read_lines_i,   // 1 to 16, none over a multiple of 16
  input  logic [3:0]              read_owner_i,   // the function whose memory they are
  output logic                    read_ready_o,
  output logic                    beat_valid_o,
  output logic [LINE_BITS-1:0]    beat_data_o,
  output logic                    beat_fault_o,
  input  logic                    beat_ready_i,
  input  logic                    write_valid_i,
  input  logic [ADDRESS_BITS-1:0] write_line_i,
  input  logic [LINE_BITS-1:0]    write_data_i,
  input  logic [63:0]             write_strobe_i,
  output logic                    write_ready_o,
  output logic                    written_o,
  output logic                    write_fault_o,
  input  logic [3:0]              write_owner_i,
  input  logic [15:0]             read_refused_i,  // of functions: no read goes to the bus, …
  input  logic [15:0]             write_refused_i, // … and no write

  // Of the device's read port; the address stays until it is taken.
  output logic                    burst_valid_o,
  output logic [63:0]             burst_addr_o,
  output logic [7:0]              burst_len_o,
  output logic [3:0]              burst_owner_o,
  input  logic                    burst_ready_i,
  input  logic                    beat_i,
  input  logic [3:0]              beat_owner_i,
  input  logic [LINE_BITS-1:0]    data_i,
  input  logic                    fault_i,
  output logic                    idle_o,          // nothing is on its way

  // Of its write port.
  output logic                    store_valid_o,
  output logic                    store_urgent_o,  // has waited for long
  output logic [63:0]             store_addr_o,
  output logic [LINE_BITS-1:0]    store_data_o,
  output logic [63:0]             store_strobe_o,
  input  logic                    store_ready_i,
  input  logic                    ack_i,
  input  logic                    ack_fault_i
);
  if (Depth < 16 || (Depth & (Depth - 1)) != 0) begin : gen_bad_depth
    localparam bit DepthMustBeAPowerOfTwoFrom16 = {-1{1'b1}};   // ends the elaboration
  end

  if (Writes < 2 || (Writes & (Writes - 1)) != 0) begin : gen_bad_writes
    localparam bit WritesMustBeAPowerOfTwoFrom2 = {-1{1'b1}};   // ends the elaboration
  end

  localparam int PtrBits   = $clog2(Depth);
  localparam int WriteBits = $clog2(Writes);
  localparam logic [4:0] Patience = 5'd31;

  // ------------------------------------------------------------------ reads
  logic [PtrBits-1:0]   head_q, tail_q;                // places of the line that is given on next, and of the first of the next burst
  logic [PtrBits:0]     held_q;                        // lines that were asked for and not given on
  logic [PtrBits:0]     coming_q;                      // … that the bus still owes
  logic [Depth-1:0]     came_q;                        // … that are there
  logic                 burst_q;
  logic [63:0]          burst_addr_q;
  logic [7:0]           burst_len_q;
  logic [3:0]           burst_owner_q;
  logic [LINE_BITS:0]   fifo_mem [0:Depth-1];
  // Bursts of each function that the bus owes, in order: the place of the first line, and how many more there are; of the oldest burst the lines that came.
  logic [PtrBits+3:0]   start_mem [0:16*Depth-1];
  logic [PtrBits-1:0]   newest_q [0:15];
  logic [PtrBits-1:0]   oldest_q [0:15];
  logic [3:0]           lines_q  [0:15];
  logic [PtrBits-1:0]   place, first;
  logic [3:0]           more;
  logic                 last;
  logic                 gives, asks, goes;
  // A burst that is refused waits until it is its function's oldest, and has a line in each cycle in which the bus has none.
  logic                 refused_q, denies, comes;
  logic [3:0]           comes_owner;

  assign burst_valid_o = burst_q && !refused_q;
  assign burst_addr_o  = burst_addr_q;
  assign burst_len_o   = burst_len_q;
  assign burst_owner_o = burst_owner_q;
  assign beat_valid_o  = came_q[head_q];
  assign {beat_fault_o, beat_data_o} = beat_valid_o ? fifo_mem[head_q] : '0;
  assign denies        = refused_q ? burst_q && !beat_i && newest_q[burst_owner_q] == oldest_q[burst_owner_q] + 1'b1 : 1'b0;
  assign comes         = beat_i || denies;
  assign comes_owner   = denies ? burst_owner_q : beat_owner_i;
  assign {more, first} = comes ? start_mem[{comes_owner, oldest_q[comes_owner]}] : '0;
  assign place         = comes ? first + PtrBits'(lines_q[comes_owner]) : '0;
  assign last          = comes && lines_q[comes_owner] == more;
  assign gives         = beat_valid_o && beat_ready_i;
  assign read_ready_o  = !burst_q && held_q <= (PtrBits+1)'(Depth - 16);
  assign asks          = rst_ni && read_valid_i && read_ready_o;
  assign goes          = burst_valid_o ? burst_ready_i : denies && last;
  assign idle_o        = coming_q == '0 && !burst_q;

  always_ff @(posedge clk_i) begin
    if (!bus_rst_ni) begin
      burst_q   <= 1'b0;
      refused_q <= 1'b0;
      coming_q  <= '0;
    end else begin
      if (asks) begin
        burst_q      <= 1'b1;
        burst_addr_q <= {read_line_i, 6'd0};
        burst_len_q  <= {3'd0, read_lines_i} - 8'd1;
        burst_owner_q <= read_owner_i;
        refused_q     <= read_refused_i[read_owner_i];
      end else if (goes) begin
        burst_q   <= 1'b0;
        refused_q <= 1'b0;
      end
      if (asks || comes) coming_q <= coming_q + (asks ? (PtrBits+1)'(read_lines_i) : '0) - (PtrBits+1)'(comes);
    end
    if (!rst_ni) begin
      head_q <= '0;
      tail_q <= '0;
      held_q <= '0;
      came_q <= '0;
      for (int f = 0; f < 16; f++) begin
        newest_q[f] <= '0;
        oldest_q[f] <= '0;
        lines_q[f]  <= '0;
      end
    end else begin
      if (asks) begin
        start_mem[{read_owner_i, newest_q[read_owner_i]}] <= {4'(read_lines_i - 5'd1), tail_q};
        newest_q[read_owner_i] <= newest_q[read_owner_i] + 1'b1;
        tail_q <= tail_q + PtrBits'(read_lines_i);
      end
      if (comes) begin
        fifo_mem[place] <= {denies || fault_i, denies || fault_i ? '0 : data_i};     // with an error anything may stand there
        came_q[place]   <= 1'b1;
        lines_q[comes_owner] <= last ? '0 : lines_q[comes_owner] + 1'b1;
        if (last) oldest_q[comes_owner] <= oldest_q[comes_owner] + 1'b1;
      end
      if (gives) begin
        head_q         <= head_q + 1'b1;
        came_q[head_q] <= 1'b0;
      end
      if (asks || gives) held_q <= held_q + (asks ? (PtrBits+1)'(read_lines_i) : '0) - (PtrBits+1)'(gives);
    end
  end

  // ------------------------------------------------------------------ writes
  logic [WriteBits:0] flight_q;
  logic [4:0]         waited_q;
  logic               sends, write_refused, denied_q;      // one that was refused has no answer yet

  assign write_refused  = write_refused_i[write_owner_i];
  assign store_valid_o  = rst_ni && write_valid_i && !flight_q[WriteBits] && !write_refused;
  assign store_urgent_o = waited_q == Patience;
  assign store_addr_o   = {write_line_i, 6'd0};
  assign store_data_o   = write_data_i;
  assign store_strobe_o = write_strobe_i;
  assign sends          = store_valid_o && store_ready_i;
  assign write_ready_o  = write_refused ? !denied_q : store_ready_i && !flight_q[WriteBits];
  assign written_o      = ack_i || denied_q;
  assign write_fault_o  = ack_i ? ack_fault_i : denied_q;

  always_ff @(posedge clk_i) begin
    if (!bus_rst_ni)         flight_q <= '0;
    else if (sends || ack_i) flight_q <= flight_q + (WriteBits+1)'(sends) - (WriteBits+1)'(ack_i);
    if (!rst_ni) denied_q <= 1'b0;
    else         denied_q <= denied_q ? ack_i : write_valid_i && write_refused;
    if (!rst_ni) waited_q <= '0;
    else if (store_valid_o || waited_q != '0) waited_q <= (sends || !store_valid_o) ? '0 : (waited_q == Patience) ? Patience : waited_q + 1'b1;
  end

`ifndef SYNTHESIS
  always_ff @(posedge clk_i) begin
    if (bus_rst_ni) begin
      if (beat_i && coming_q == '0) $fatal(1, "N5 npu_port: a line that nobody asked for");
      if (ack_i && flight_q == '0) $fatal(1, "N5 npu_port: a write response without a write in flight");
      if (asks && ({1'b0, read_line_i[3:0]} + read_lines_i > 5'd16 || read_lines_i == '0)) $fatal(1, "N5 npu_port: %0d lines from line %0d", read_lines_i, read_line_i);
    end
  end
`endif
endmodule
