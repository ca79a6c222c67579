// The workers' way out: packs the tokens of each into 64-byte lines and keeps up to two finished items per worker, so
// that a worker goes on while an item waits for the write port. An item is a token line, the end of a descriptor, or
// both. One bank per worker; all banks share one read port, for the item that the arbiter grants.
module result_buffer
  import core_pkg::*;
#(
  parameter int Workers = 4
) (
  input  logic                  clk_i,
  input  logic                  rst_ni,
  input  logic                  clear_i,

  // From the workers, one lane each. A lane sends only while its ready bit, from a register, is high.
  output logic [Workers-1:0]    ready_o,
  input  logic [Workers-1:0]    token_i,        // a token
  input  logic [Workers*32-1:0] token_data_i,
  input  logic [Workers*64-1:0] token_addr_i,   // bus address, a multiple of 4; consecutive within a descriptor
  input  logic [Workers*4-1:0]  first_word_i,   // where the line of this token began
  input  logic [Workers-1:0]    line_end_i,     // with token_i: it is the last word of its line
  input  logic [Workers-1:0]    done_i,         // end of a descriptor, with its last token if it adds any
  input  logic [Workers*32-1:0] done_len_i,     // final_seq_len
  input  logic [Workers*32-1:0] done_result_i,
  input  logic [Workers*32-1:0] done_how_i,     // {worker, flags, error, status}

  // To the arbiter: what the oldest item of each worker is …
  output logic [Workers-1:0]    valid_o,
  output logic [Workers-1:0]    has_line_o,
  output logic [Workers-1:0]    has_done_o,
  input  logic [Workers-1:0]    take_i,         // one-hot
  // … and the contents of one of them, combinational.
  input  logic [3:0]            read_worker_i,
  output logic [63:0]           line_addr_o,
  output logic [15:0]           line_word_en_o,
  output logic [511:0]          line_data_o,
  output logic [31:0]           done_len_o,
  output logic [31:0]           done_result_o,
  output logic [31:0]           done_how_o
);
  // Two places per worker; fill_q and head_q say which one is being filled and which one is oldest.
  logic [31:0] words       [0:Workers*32-1];   // index: worker, place, word
  logic [57:0] line_addr   [0:Workers*2-1];    // index: worker, place
  logic [15:0] word_en     [0:Workers*2-1];
  logic [31:0] done_len    [0:Workers*2-1];
  logic [31:0] done_result [0:Workers*2-1];
  logic [31:0] done_how    [0:Workers*2-1];

  logic [Workers-1:0] fill_q, head_q, valid_q, full_q;
  logic [Workers-1:0] line_0_q, line_1_q, done_0_q, done_1_q;
  logic [Workers-1:0] finish, more, fewer;

  assign finish = done_i | (token_i & line_end_i);
  assign more   = finish & ~take_i;
  assign fewer  = take_i & ~finish;

  always_ff @(posedge clk_i) begin
    for (int w = 0; w < Workers; w++) begin
      if (token_i[w]) words[w*32 + 32'({fill_q[w], token_addr_i[w*64+2 +: 4]})] <= token_data_i[w*32 +: 32];
      if (finish[w]) begin
        line_addr[w*2 + 32'(fill_q[w])]   <= token_addr_i[w*64+6 +: 58];
        word_en[w*2 + 32'(fill_q[w])]     <= (16'hFFFF << first_word_i[w*4 +: 4])
                                           & (16'hFFFF >> (4'd15 - token_addr_i[w*64+2 +: 4]));
        done_len[w*2 + 32'(fill_q[w])]    <= done_len_i[w*32 +: 32];
        done_result[w*2 + 32'(fill_q[w])] <= done_result_i[w*32 +: 32];
        done_how[w*2 + 32'(fill_q[w])]    <= done_how_i[w*32 +: 32];
      end
    end
  end

  always_ff @(posedge clk_i) begin
    if (!rst_ni || clear_i) begin
      fill_q  <= '0;
      head_q  <= '0;
      valid_q <= '0;
      full_q  <= '0;
    end else begin
      fill_q  <= fill_q ^ finish;
      head_q  <= head_q ^ take_i;
      valid_q <= (valid_q & ~(fewer & ~full_q)) | more;
      full_q  <= (full_q & ~fewer) | (valid_q & more);
    end
    line_0_q <= (finish & ~fill_q & token_i) | (~(finish & ~fill_q) & line_0_q);
    line_1_q <= (finish &  fill_q & token_i) | (~(finish &  fill_q) & line_1_q);
    done_0_q <= (finish & ~fill_q & done_i)  | (~(finish & ~fill_q) & done_0_q);
    done_1_q <= (finish &  fill_q & done_i)  | (~(finish &  fill_q) & done_1_q);
  end

  assign ready_o    = ~full_q;
  assign valid_o    = valid_q;
  assign has_line_o = (head_q & line_1_q) | (~head_q & line_0_q);
  assign has_done_o = (head_q & done_1_q) | (~head_q & done_0_q);

  // ---------------------------------------------------------------- read port
  localparam int PlaceBits = $clog2(Workers*2);
  logic [PlaceBits-1:0]   place;
  logic [MAX_WORKERS-1:0] heads;
  assign heads          = MAX_WORKERS'(head_q);
  assign place          = PlaceBits'({read_worker_i, heads[read_worker_i]});
  assign line_addr_o    = {line_addr[place], 6'd0};
  assign line_word_en_o = word_en[place];
  assign done_len_o     = done_len[place];
  assign done_result_o  = done_result[place];
  assign done_how_o     = done_how[place];
  for (genvar k = 0; k < 16; k++) begin : gen_word
    assign line_data_o[32*k +: 32] = words[{place, 4'(k)}];
  end

`ifndef SYNTHESIS
  always_ff @(posedge clk_i) begin
    if (rst_ni && !clear_i) begin
      if (((token_i | done_i) & full_q) != '0)
        $fatal(1, "R4 result_buffer: a result of workers %b with no place for it", (token_i | done_i) & full_q);
      if ((take_i & ~valid_q) != '0)
        $fatal(1, "R3 result_buffer: an item of workers %b was taken that is not there", take_i & ~valid_q);
    end
  end
`endif
endmodule
