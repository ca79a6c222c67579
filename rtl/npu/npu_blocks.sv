// The block tables of a gang's contexts: entry → first line of its block, checked against the arena (docs/isa.md, BlockMissing and
// BlockOutOfRange).
//
// Two units ask, each with the stride of its word and for the context that it is at, and neither waits for more than one question of the
// other. A table's entries have 32 bits, 16 a line; of each context the line that was read last is kept until forget_i, which comes before
// steps whose tables may be others. A line that was answered with an error is not kept.
module npu_blocks
  import npu_unit_pkg::*;
#(
  parameter int Contexts = 1                          // 1 to 8
) (
  input  logic                        clk_i,
  input  logic                        rst_ni,
  input  logic                        forget_i,
  // Of the context of the one that is served: stay while that one asks.
  output logic                        asker_o,        // [1], else [0]
  input  logic [11:0]                 entries_i,      // at most 2,048
  input  logic [MEMORY_BITS-1:0]      arena_lines_i,

  // From npu_mem [0] and npu_attend [1]: ask, context, entry and stride stay until the answer.
  input  logic [1:0]                  ask_i,
  input  logic [1:0][2:0]             context_i,
  input  logic [1:0][10:0]            entry_i,
  input  logic [1:0][31:0]            stride_i,       // lines from a block to the next: as many must be in the arena
  output logic [1:0]                  answer_o,
  output logic [MEMORY_BITS-1:0]      line_o,
  output logic [3:0]                  end_o,          // npu_end_t

  // Memory, a line at a time.
  output logic                        fetch_valid_o,
  output logic [MEMORY_BITS-1:0]      fetch_line_o,   // of the table
  output logic [15:0]                 fetch_lines_o,
  input  logic                        fetch_ready_i,
  input  logic                        beat_valid_i,
  input  logic [LINE_BITS-1:0]        beat_data_i,
  input  logic                        beat_fault_i,
  output logic                        beat_ready_o
);
  localparam logic [2:0] Idle   = 3'd0;
  localparam logic [2:0] Look   = 3'd1;   // is the entry there, and its line kept
  localparam logic [2:0] Fetch  = 3'd2;   // its line is asked for, and comes
  localparam logic [2:0] Times  = 3'd3;   // number · stride
  localparam logic [2:0] Check  = 3'd4;   // … and does its block end in the arena
  localparam logic [2:0] Answer = 3'd5;

  localparam int ContextBits = (Contexts == 1) ? 1 : $clog2(Contexts);

  logic [2:0]             state_q;
  logic                   busy_q;         // the state is not Idle
  logic                   who_q;          // whom it serves, or did last
  logic [ContextBits-1:0] context_q;      // whose table
  logic [(1 << ContextBits)-1:0] kept_q;  // the line kept_line_q of the table is in kept_data_q
  logic [6:0]             kept_line_q [0:(1 << ContextBits)-1];
  logic [LINE_BITS-1:0]   kept_data_q [0:(1 << ContextBits)-1];
  logic                   fetch_q, waits_q;
  logic [10:0]            entry_q;
  logic [31:0]            stride_q, number_q;
  logic [63:0]            start_q;
  logic [1:0]             answer_q;
  logic [3:0]             end_q;

  assign answer_o      = answer_q;
  assign asker_o       = who_q;
  assign line_o        = start_q[MEMORY_BITS-1:0];
  assign end_o         = end_q;
  assign fetch_valid_o = fetch_q;
  assign fetch_line_o  = MEMORY_BITS'(entry_q[10:4]);
  assign fetch_lines_o = 16'd1;
  assign beat_ready_o  = waits_q;

  logic       next;
  /* verilator lint_off UNUSEDSIGNAL */   // 3 bits, whatever was built
  logic [2:0] next_context;
  /* verilator lint_on UNUSEDSIGNAL */
  assign next_context = context_i[next];
  assign next = (busy_q || ask_i == 2'b00) ? 1'b0 : who_q ^ ask_i[!who_q];

  // A product of 64 bits and a sum: nothing wraps.
  logic [64:0] block_end;
  assign block_end = {1'b0, start_q} + 65'(stride_q);

  always_ff @(posedge clk_i) begin
    if (busy_q || ask_i != 2'b00) begin
      case (state_q)
        Idle: begin
          // Who was not served last goes first.
          who_q    <= next;
          context_q <= next_context[ContextBits-1:0];
          entry_q   <= entry_i[next];
          stride_q  <= stride_i[next];
          end_q     <= UNIT_FINE;
          busy_q    <= 1'b1;
          state_q   <= Look;
        end
        Look: begin
          number_q <= kept_data_q[context_q][{entry_q[3:0], 5'd0} +: 32];
          if ({1'b0, entry_q} >= entries_i) begin
            end_q           <= UNIT_MISSING;
            answer_q[who_q] <= 1'b1;
            state_q         <= Answer;
          end else if (kept_q[context_q] && kept_line_q[context_q] == entry_q[10:4]) begin
            state_q <= Times;
          end else begin
            kept_q[context_q] <= 1'b0;
            fetch_q <= 1'b1;
            waits_q <= 1'b1;
            state_q <= Fetch;
          end
        end
        Fetch: begin
          if (fetch_ready_i) fetch_q <= 1'b0;
          if (beat_valid_i) begin
            waits_q     <= 1'b0;
            kept_line_q[context_q] <= entry_q[10:4];
            kept_data_q[context_q] <= beat_data_i;
            kept_q[context_q]      <= !beat_fault_i;
            number_q    <= beat_data_i[{entry_q[3:0], 5'd0} +: 32];
            if (beat_fault_i) begin
              end_q           <= UNIT_MEMORY;
              answer_q[who_q] <= 1'b1;
              state_q         <= Answer;
            end else begin
              state_q <= Times;
            end
          end
        end
        Times: begin
          start_q <= {32'd0, number_q} * {32'd0, stride_q};
          state_q <= Check;
        end
        Check: begin
          end_q           <= (block_end > 65'(arena_lines_i)) ? UNIT_BLOCK : UNIT_FINE;
          answer_q[who_q] <= 1'b1;
          state_q         <= Answer;
        end
        default: begin                    // the question is still there, and the next one behind it
          answer_q <= 2'b00;
          busy_q   <= 1'b0;
          state_q  <= Idle;
        end
      endcase
    end
    if (forget_i) kept_q <= '0;
    if (!rst_ni) begin
      state_q  <= Idle;
      busy_q   <= 1'b0;
      who_q    <= 1'b0;
      kept_q   <= '0;
      fetch_q  <= 1'b0;
      waits_q  <= 1'b0;
      answer_q <= 2'b00;
    end
  end

`ifndef SYNTHESIS
  always_ff @(posedge clk_i) begin
    if (rst_ni && (busy_q || forget_i || beat_valid_i)) begin
      if (forget_i && busy_q) $fatal(1, "N6 npu_blocks: a table is forgotten while somebody asks");
      if (beat_valid_i && (!waits_q || fetch_q)) $fatal(1, "N5 npu_blocks: a line comes that was not asked for");
      if (busy_q && state_q != Answer && !ask_i[who_q]) $fatal(1, "N1 npu_blocks: a question is taken back");
      if (state_q == Look && entries_i > 12'd2048) $fatal(1, "N1 npu_blocks: a table of %0d entries", entries_i);
    end
  end
`endif
endmodule
