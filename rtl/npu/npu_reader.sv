// One read client of memory for all that fetch. Whatever a client asks for goes out in pieces of up to 16 lines, none over a multiple of
// 16, in turns with those of others, so that a matrix holds up nobody for longer; lines come back in the order of asking.
// A client must not wait, with lines of its own on their way, for what another one has still to fetch.
module npu_reader
  import npu_unit_pkg::*;
  import npu_control_pkg::*;
#(
  parameter int Clients = 5,
  parameter int Pieces  = 16          // in flight; a power of two
) (
  input  logic                                  clk_i,
  input  logic                                  rst_ni,

  input  logic [Clients-1:0]                    fetch_valid_i,
  input  logic [Clients-1:0][MEMORY_BITS-1:0]   fetch_line_i,
  input  logic [Clients-1:0][15:0]              fetch_lines_i,
  input  logic [Clients-1:0][ADDRESS_BITS-1:0]  base_i,          // where a client's line 0 is
  input  logic [Clients-1:0][3:0]               owner_i,         // whose memory it reads
  output logic [Clients-1:0]                    fetch_ready_o,
  output logic [Clients-1:0]                    beat_valid_o,
  output logic [LINE_BITS-1:0]                  beat_data_o,
  output logic                                  beat_fault_o,
  input  logic [Clients-1:0]                    beat_ready_i,

  output logic                                  read_valid_o,
  output logic [ADDRESS_BITS-1:0]               read_line_o,
  output logic [4:0]                            read_lines_o,    // 1 to 16
  output logic [3:0]                            read_owner_o,
  input  logic                                  read_ready_i,
  input  logic                                  beat_valid_i,
  input  logic [LINE_BITS-1:0]                  beat_data_i,
  input  logic                                  beat_fault_i,
  output logic                                  beat_ready_o
);
  localparam int NumberBits = (Clients == 1) ? 1 : $clog2(Clients);

  // What a client has asked for and memory has not been.
  logic [Clients-1:0]      some_q;
  logic [ADDRESS_BITS-1:0] line_q [0:Clients-1];
  logic [15:0]             left_q [0:Clients-1];
  logic [3:0]              owner_q [0:Clients-1];

  logic [Clients-1:0]      grant_unused;
  /* verilator lint_off UNUSEDSIGNAL */  // as wide as for 16
  logic [3:0]              number;
  /* verilator lint_on UNUSEDSIGNAL */
  logic [NumberBits-1:0]   client, whose;
  logic                    send, tags_full, tags_some, last;
  logic [4:0]              room, piece, length, taken_q;
  logic [15:0]             left;
  logic                    read_q;
  logic [ADDRESS_BITS-1:0] read_line_q;
  logic [4:0]              read_lines_q;
  logic [3:0]              read_owner_q;
  logic [$clog2(Pieces):0] count_unused;

  assign fetch_ready_o = ~some_q;
  assign read_valid_o  = read_q;
  assign read_line_o   = read_line_q;
  assign read_lines_o  = read_lines_q;
  assign read_owner_o  = read_owner_q;

  round_robin #(.N(Clients)) u_turn (
    .clk_i, .rst_ni, .request_i(some_q), .grant_o(grant_unused), .number_o(number), .accept_i(send)
  );
  assign client = number[NumberBits-1:0];
  assign send   = some_q != '0 && !tags_full && (!read_q || read_ready_i);
  assign left   = left_q[client];
  assign room   = 5'd16 - {1'b0, line_q[client][3:0]};
  assign piece  = (left < {11'd0, room}) ? left[4:0] : room;

  sync_fifo #(.Width(NumberBits + 5), .Depth(Pieces)) u_tags (
    .clk_i, .rst_ni,
    .clear_i (1'b0),
    .push_i  (send),
    .data_i  ({client, piece}),
    .full_o  (tags_full),
    .valid_o (tags_some),
    .data_o  ({whose, length}),
    .pop_i   (last),
    .count_o (count_unused)
  );

  assign beat_data_o  = beat_data_i;
  assign beat_fault_o = beat_fault_i;
  assign beat_valid_o = (beat_valid_i && tags_some) ? Clients'(1) << whose : '0;
  assign beat_ready_o = tags_some && beat_ready_i[whose];
  assign last         = beat_valid_i && beat_ready_o && taken_q + 5'd1 == length;

  always_ff @(posedge clk_i) begin
    if (read_ready_i) read_q <= 1'b0;
    if (fetch_valid_i != '0 || some_q != '0) begin
      for (int k = 0; k < Clients; k++) begin
        if (fetch_valid_i[k] && !some_q[k]) begin
          some_q[k] <= 1'b1;
          line_q[k] <= base_i[k] + ADDRESS_BITS'(fetch_line_i[k]);
          left_q[k] <= fetch_lines_i[k];
          owner_q[k] <= owner_i[k];
        end
      end
      if (send) begin
        read_q         <= 1'b1;
        read_line_q    <= line_q[client];
        read_lines_q   <= piece;
        read_owner_q   <= owner_q[client];
        line_q[client] <= line_q[client] + ADDRESS_BITS'(piece);
        left_q[client] <= left - {11'd0, piece};
        if (left == {11'd0, piece}) some_q[client] <= 1'b0;
      end
    end
    if (beat_valid_i && beat_ready_o) taken_q <= last ? '0 : taken_q + 5'd1;
    if (!rst_ni) begin
      some_q  <= '0;
      read_q  <= 1'b0;
      taken_q <= '0;
    end
  end

`ifndef SYNTHESIS
  always_ff @(posedge clk_i) begin
    if (fetch_valid_i != '0) begin
      for (int k = 0; k < Clients; k++) begin
        if (rst_ni && fetch_valid_i[k] && fetch_lines_i[k] == '0) $fatal(1, "N5 npu_reader: client %0d asks for nothing", k);
      end
    end
    if (beat_valid_i) begin
      if (rst_ni && !tags_some) $fatal(1, "N5 npu_reader: a line that nobody asked for");
    end
  end
`endif
endmodule
