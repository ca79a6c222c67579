// The workers' way out: packs the tokens of each into 64-byte lines and keeps up to two finished items per worker, so
// that a worker goes on while an item waits for the write port. An item is a token line, the end of a descriptor, or
// both. Of a DECODE with LOGP an item with a line is taken twice: first its token line, then, with the end if there is
// one, the same words of the log-probabilities. One bank per worker; all banks share one read port, for the item that the
// arbiter grants.
module result_buffer
  import core_pkg::*;
#(
  parameter int Workers = 4
) (
  input  logic                  clk_i,
  input  logic                  rst_ni,

  // From the workers, one lane each. A lane sends only while its ready bit, from a register, is high.
  output logic [Workers-1:0]    ready_o,
  input  logic [Workers-1:0]    token_i,
  input  logic [Workers-1:0]    line_i,         // with finish_i: the item has tokens, of this cycle or before
  input  logic [Workers*32-1:0] token_data_i,
  input  logic [Workers-1:0]    logp_i,         // with a token: it has a log-probability; the same for all of a descriptor
  input  logic [Workers*32-1:0] logp_data_i,
  input  logic [Workers*32-1:0] position_i,     // in words, from the start of the descriptor's first line
  input  logic [Workers-1:0]    finish_i,       // the item is complete: its line is full, or its descriptor ends
  input  logic [Workers-1:0]    done_i,         // with finish_i: the descriptor ends
  input  logic [Workers*32-1:0] digest_i,
  input  logic [Workers*4-1:0]  how_i,

  // To the arbiter: what the oldest item of each worker, or what is left of it, is …
  output logic [Workers-1:0]    valid_o,
  output logic [Workers-1:0]    has_line_o,
  output logic [Workers-1:0]    has_done_o,
  input  logic [Workers-1:0]    take_i,         // one-hot
  // … and the contents of one of them, combinational; the line is 0 unless one is taken.
  input  logic [3:0]            read_worker_i,
  output logic [511:0]          line_data_o,
  output logic [3:0]            last_o,         // the line's last word
  output logic                  logp_o,         // a line of log-probabilities is taken
  output logic                  again_o,        // a token line is taken whose log-probabilities come next
  output logic [31:0]           digest_o,       // of an item with an end, else 0
  output logic [3:0]            how_o           // likewise
);
  // Two places per worker; fill_q and head_q say which one is being filled and which one is oldest.
  logic [31:0] words  [0:Workers*32-1];     // index: worker, place, word
  logic [31:0] logps  [0:Workers*32-1];     // likewise; only where they are wanted
  // Of an item with an end: its digest, and how it ended with the last word of its line.
  logic [Workers*32-1:0] digest_0_q, digest_1_q;
  logic [Workers*8-1:0]  how_0_q, how_1_q;

  logic [Workers-1:0] fill_q, head_q, valid_q, full_q;
  logic [Workers-1:0] line_0_q, line_1_q, done_0_q, done_1_q, logp_0_q, logp_1_q;
  logic [Workers-1:0] more, fewer, to_0, to_1;
  logic [Workers-1:0] twice, second_q, again, gone, ended;   // of the oldest item; second_q: its token line is out

  always_ff @(posedge clk_i) begin
    for (int w = 0; w < Workers; w++) begin
      if (token_i[w]) words[w*32 + 32'({fill_q[w], position_i[w*32 +: 4]})] <= token_data_i[w*32 +: 32];
    end
    if ((token_i & logp_i) != '0) begin
      for (int w = 0; w < Workers; w++) begin
        if (token_i[w] && logp_i[w]) logps[w*32 + 32'({fill_q[w], position_i[w*32 +: 4]})] <= logp_data_i[w*32 +: 32];
      end
    end
    if (done_i != '0) begin
      for (int w = 0; w < Workers; w++) begin
        if (done_i[w] && fill_q[w]) begin
          digest_1_q[w*32 +: 32] <= digest_i[w*32 +: 32];
          how_1_q[w*8 +: 8]      <= {how_i[w*4 +: 4], position_i[w*32 +: 4]};
        end else if (done_i[w]) begin
          digest_0_q[w*32 +: 32] <= digest_i[w*32 +: 32];
          how_0_q[w*8 +: 8]      <= {how_i[w*4 +: 4], position_i[w*32 +: 4]};
        end
      end
    end
  end

  // Items of a worker: none, one (valid), two (valid and full).
  assign twice = (head_q & logp_1_q) | (~head_q & logp_0_q);
  assign again = take_i & twice & ~second_q;
  assign gone  = take_i & ~again;
  assign more  = finish_i & ~gone;
  assign fewer = gone & ~finish_i;
  assign to_0  = finish_i & ~fill_q;
  assign to_1  = finish_i & fill_q;

  always_ff @(posedge clk_i) begin
    if (finish_i != '0) begin
      line_0_q <= (to_0 & line_i) | (~to_0 & line_0_q);
      line_1_q <= (to_1 & line_i) | (~to_1 & line_1_q);
      logp_0_q <= (to_0 & line_i & logp_i) | (~to_0 & logp_0_q);
      logp_1_q <= (to_1 & line_i & logp_i) | (~to_1 & logp_1_q);
      done_0_q <= (to_0 & done_i)  | (~to_0 & done_0_q);
      done_1_q <= (to_1 & done_i)  | (~to_1 & done_1_q);
    end
    if (!rst_ni) begin
      fill_q   <= '0;
      head_q   <= '0;
      valid_q  <= '0;
      full_q   <= '0;
      second_q <= '0;
    end else begin
      second_q <= second_q ^ (take_i & twice);
      head_q   <= head_q ^ gone;
      full_q   <= (full_q & ~fewer) | (valid_q & more);
      valid_q  <= (valid_q & ~(fewer & ~full_q)) | more;
      fill_q   <= fill_q ^ finish_i;
    end
  end

  assign ready_o    = ~full_q;
  assign valid_o    = valid_q;
  assign has_line_o = (head_q & line_1_q) | (~head_q & line_0_q);
  assign ended      = (head_q & done_1_q) | (~head_q & done_0_q);
  assign has_done_o = ended & (second_q | ~twice);
  assign logp_o     = (take_i & second_q) != '0;
  assign again_o    = again != '0;

  // ---------------------------------------------------------------- read port
  localparam int WorkerBits = $clog2(Workers);
  logic [WorkerBits:0]    place;
  logic [MAX_WORKERS-1:0] heads;
  assign heads = MAX_WORKERS'(head_q);

  always_comb begin
    place       = '0;
    line_data_o = '0;
    last_o      = 4'd15;
    digest_o    = '0;
    how_o       = '0;
    if (take_i != '0) begin
      place = (WorkerBits+1)'({read_worker_i, heads[read_worker_i]});
      if (logp_o) for (int k = 0; k < 16; k++) line_data_o[32*k +: 32] = logps[{place, 4'(k)}];
      else        for (int k = 0; k < 16; k++) line_data_o[32*k +: 32] = words[{place, 4'(k)}];
    end
    if ((take_i & ended) != '0) begin
      {how_o, last_o} = place[0] ? how_1_q[read_worker_i*8 +: 8] : how_0_q[read_worker_i*8 +: 8];
      digest_o        = place[0] ? digest_1_q[read_worker_i*32 +: 32] : digest_0_q[read_worker_i*32 +: 32];
    end
  end

`ifndef SYNTHESIS
  always_ff @(posedge clk_i) begin
    if (rst_ni) begin
      if (full_q != '0) begin
        if (((token_i | finish_i) & full_q) != '0)
          $fatal(1, "R4 result_buffer: a result of workers %b with no place for it", (token_i | finish_i) & full_q);
      end
      if (take_i != '0) begin
        if ((take_i & ~valid_q) != '0)
          $fatal(1, "R3 result_buffer: an item of workers %b was taken that is not there", take_i & ~valid_q);
      end
    end
  end
`endif
endmodule
