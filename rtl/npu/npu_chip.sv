// On-chip memory of a context: lines of 64 bytes, one read port and one write port, for which the units take turns. What a read
// finds is there in the cycle behind its grant; one that is granted behind a write's cycle finds what was written.
module npu_chip
  import npu_unit_pkg::*;
  import npu_control_pkg::*;
#(
  parameter int Lines = 1024          // at most 32,768
) (
  input  logic                             clk_i,
  input  logic                             rst_ni,

  input  logic [UNITS-1:0]                 read_valid_i,
  input  logic [UNITS-1:0][CHIP_BITS-1:0]  read_line_i,
  output logic [UNITS-1:0]                 read_ready_o,
  output logic [UNITS-1:0]                 read_answer_o,
  output logic [LINE_BITS-1:0]             read_data_o,

  input  logic [UNITS-1:0]                 write_valid_i,
  input  logic [UNITS-1:0][CHIP_BITS-1:0]  write_line_i,
  input  logic [UNITS-1:0][LINE_BITS-1:0]  write_data_i,
  output logic [UNITS-1:0]                 write_ready_o
);
  if (Lines < 1 || Lines > 1 << CHIP_BITS) begin : gen_bad_lines
    localparam bit LinesMustBe1To32768 = {-1{1'b1}};   // ends the elaboration
  end

  localparam int LineBits = (Lines == 1) ? 1 : $clog2(Lines);

  logic [LINE_BITS-1:0] mem [0:Lines-1];
  logic [LINE_BITS-1:0] read_data_q;
  logic [UNITS-1:0]     read_answer_q;
  /* verilator lint_off UNUSEDSIGNAL */  // a round_robin's number is as wide as for 16; lines as for 32,768
  logic [3:0]           reader, writer;
  logic [CHIP_BITS-1:0] read_line, write_line;
  /* verilator lint_on UNUSEDSIGNAL */

  round_robin #(.N(UNITS)) u_read (
    .clk_i, .rst_ni, .request_i(read_valid_i), .grant_o(read_ready_o), .number_o(reader), .accept_i(read_valid_i != '0)
  );
  round_robin #(.N(UNITS)) u_write (
    .clk_i, .rst_ni, .request_i(write_valid_i), .grant_o(write_ready_o), .number_o(writer), .accept_i(write_valid_i != '0)
  );

  assign read_line     = read_line_i[reader[1:0]];
  assign write_line    = write_line_i[writer[1:0]];
  assign read_answer_o = read_answer_q;
  assign read_data_o   = read_data_q;

  always_ff @(posedge clk_i) begin
    if (read_valid_i != '0) read_data_q <= mem[read_line[LineBits-1:0]];
    read_answer_q <= rst_ni ? read_ready_o : '0;
    if (write_valid_i != '0) mem[write_line[LineBits-1:0]] <= write_data_i[writer[1:0]];
  end

`ifndef SYNTHESIS
  always_ff @(posedge clk_i) begin
    if (read_valid_i != '0) begin
      if (rst_ni && int'(read_line) >= Lines) $fatal(1, "N2 npu_chip: unit %0d reads line %0d of %0d", reader, read_line, Lines);
    end
    if (write_valid_i != '0) begin
      if (rst_ni && int'(write_line) >= Lines) $fatal(1, "N2 npu_chip: unit %0d writes line %0d of %0d", writer, write_line, Lines);
    end
  end
`endif
endmodule
