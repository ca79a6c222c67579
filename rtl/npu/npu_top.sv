// The NPU for one context: a step comes in, with where its program and its memories lie, and a token goes out, or the word that
// stopped it. Memory is one read client and one write client, in lines.
//
// Nothing of a step reaches the next one but what it wrote to on-chip memory, which programs write before they read, and to the arena.
module npu_top
  import npu_unit_pkg::*;
  import npu_control_pkg::*;
#(
  parameter int Lines = 1024          // of on-chip memory, at most 32,768
) (
  input  logic                    clk_i,
  input  logic                    rst_ni,

  input  logic                    step_valid_i,
  output logic                    step_ready_o,
  input  npu_step_t               step_i,
  input  npu_context_t            context_i,
  output logic                    result_valid_o,
  input  logic                    result_ready_i,
  output npu_result_t             result_o,       // stays until it is taken

  // Lines that follow each other, none over a multiple of 16, come in the order of asking.
  output logic                    read_valid_o,
  output logic [ADDRESS_BITS-1:0] read_line_o,
  output logic [4:0]              read_lines_o,   // 1 to 16
  input  logic                    read_ready_i,
  input  logic                    beat_valid_i,
  input  logic [LINE_BITS-1:0]    beat_data_i,
  input  logic                    beat_fault_i,
  output logic                    beat_ready_o,

  // Each is answered, in any order.
  output logic                    write_valid_o,
  output logic [ADDRESS_BITS-1:0] write_line_o,
  output logic [LINE_BITS-1:0]    write_data_o,
  output logic [63:0]             write_strobe_o,
  input  logic                    write_ready_i,
  input  logic                    written_i,
  input  logic                    write_fault_i
);
  // ------------------------------------------------------------------ the step
  localparam logic [1:0] Idle   = 2'd0;
  localparam logic [1:0] Begin  = 2'd1;
  localparam logic [1:0] Run    = 2'd2;
  localparam logic [1:0] Result = 2'd3;

  logic [1:0]   state_q;
  npu_step_t    step_q;
  /* verilator lint_off UNUSEDSIGNAL */  // what reads begin with stands in fetch_base_q
  npu_context_t context_q;
  /* verilator lint_on UNUSEDSIGNAL */
  npu_result_t  result_q;

  logic         start, over, quiet, failed, sequencer_idle;
  npu_log_t     sequencer_log, scoreboard_log;
  logic         sample_valid;
  logic [31:0]  sample_token, sample_logp;

  assign start          = state_q == Begin;
  assign step_ready_o   = state_q == Idle;
  assign result_valid_o = state_q == Result;
  assign result_o       = result_q;

  // ------------------------------------------------------------------ words
  logic                                  issue_valid, issue_taken;
  npu_issue_t                            issue;
  logic [UNITS-1:0]                      unit_start, unit_idle, unit_done;
  logic [UNITS-1:0][$bits(npu_op_t)-1:0] unit_op;
  logic [UNITS-1:0][3:0]                 unit_end;

  // Clients of memory: what asks for lines.
  localparam int CLIENTS  = 5;
  localparam int PROGRAM  = 0;
  localparam int COPIES   = 1;
  localparam int WEIGHTS  = 2;
  localparam int VALUES   = 3;
  localparam int BLOCKS   = 4;
  logic [CLIENTS-1:0]                    fetch_valid, fetch_ready, beat_valid, beat_ready;
  logic [CLIENTS-1:0][MEMORY_BITS-1:0]   fetch_line;
  logic [CLIENTS-1:0][15:0]              fetch_lines;
  logic [CLIENTS-1:0][ADDRESS_BITS-1:0]  fetch_base_q;   // where their lines are
  logic [LINE_BITS-1:0]                  beat_data;
  logic                                  beat_fault;

  npu_sequencer #(.Lines(Lines)) u_sequencer (
    .clk_i, .rst_ni,
    .start_i        (start),
    .program_i      (context_q.program_line),
    .words_i        (context_q.program_words),
    .memory_lines_i (context_q.model_lines),
    .silent_i       (step_q.silent),
    .idle_o         (sequencer_idle),
    .over_o         (over),
    .log_o          (sequencer_log),
    .fetch_valid_o  (fetch_valid[PROGRAM]),
    .fetch_line_o   (fetch_line[PROGRAM]),
    .fetch_lines_o  (fetch_lines[PROGRAM]),
    .fetch_ready_i  (fetch_ready[PROGRAM]),
    .beat_valid_i   (beat_valid[PROGRAM]),
    .beat_data_i    (beat_data),
    .beat_fault_i   (beat_fault),
    .beat_ready_o   (beat_ready[PROGRAM]),
    .issue_valid_o  (issue_valid),
    .issue_o        (issue),
    .issue_taken_i  (issue_taken),
    .quiet_i        (quiet),
    .failed_i       (failed)
  );

  npu_scoreboard u_scoreboard (
    .clk_i, .rst_ni,
    .start_i       (start),
    .issue_valid_i (issue_valid),
    .issue_i       (issue),
    .issue_taken_o (issue_taken),
    .start_o       (unit_start),
    .op_o          (unit_op),
    .idle_i        (unit_idle),
    .done_i        (unit_done),
    .end_i         (unit_end),
    .quiet_o       (quiet),
    .failed_o      (failed),
    .log_o         (scoreboard_log)
  );

  // ------------------------------------------------------------------ memories
  logic [UNITS-1:0]                read_valid, read_ready, read_answer, write_valid, write_ready;
  logic [UNITS-1:0][CHIP_BITS-1:0] read_line, write_line;
  logic [UNITS-1:0][LINE_BITS-1:0] write_data;
  logic [LINE_BITS-1:0]            read_data;

  npu_reader #(.Clients(CLIENTS)) u_reader (
    .clk_i, .rst_ni,
    .fetch_valid_i (fetch_valid),
    .fetch_line_i  (fetch_line),
    .fetch_lines_i (fetch_lines),
    .base_i        (fetch_base_q),
    .fetch_ready_o (fetch_ready),
    .beat_valid_o  (beat_valid),
    .beat_data_o   (beat_data),
    .beat_fault_o  (beat_fault),
    .beat_ready_i  (beat_ready),
    .read_valid_o,
    .read_line_o,
    .read_lines_o,
    .read_ready_i,
    .beat_valid_i,
    .beat_data_i,
    .beat_fault_i,
    .beat_ready_o
  );

  // Only copies write; a line stands in a register in front of the port.
  logic                    store_valid, store_region;
  logic [MEMORY_BITS-1:0]  store_line;
  logic [LINE_BITS-1:0]    store_data;
  logic [63:0]             store_strobe;
  logic                    write_q;
  logic [ADDRESS_BITS-1:0] write_line_q;
  logic [LINE_BITS-1:0]    write_data_q;
  logic [63:0]             write_strobe_q;

  assign write_valid_o  = write_q;
  assign write_line_o   = write_line_q;
  assign write_data_o   = write_data_q;
  assign write_strobe_o = write_strobe_q;

  always_ff @(posedge clk_i) begin
    if (write_ready_i) write_q <= 1'b0;
    if (store_valid && !write_q) begin
      write_q        <= 1'b1;
      write_line_q   <= (store_region ? context_q.region : context_q.arena) + ADDRESS_BITS'(store_line);
      write_data_q   <= store_data;
      write_strobe_q <= store_strobe;
    end
    if (!rst_ni) write_q <= 1'b0;
  end

  // ------------------------------------------------------------------ units
  npu_op_t mem_op, gemv_op, sfu_op, kv_op;
  assign mem_op  = unit_op[UNIT_MEM];
  assign gemv_op = unit_op[UNIT_GEMV];
  assign sfu_op  = unit_op[UNIT_SFU];
  assign kv_op   = unit_op[UNIT_KV];

  logic [1:0]             block_ask, block_answer;
  logic [1:0][10:0]       block_entry;
  logic [1:0][31:0]       block_stride;
  logic [MEMORY_BITS-1:0] block_line;
  logic [3:0]             block_end;
  assign block_stride = {kv_op.block, mem_op.block};

  npu_mem u_mem (
    .clk_i, .rst_ni,
    .start_i        (unit_start[UNIT_MEM]),
    .op_i           (mem_op),
    .idle_o         (unit_idle[UNIT_MEM]),
    .done_o         (unit_done[UNIT_MEM]),
    .end_o          (unit_end[UNIT_MEM]),
    .token_i        (step_q.token),
    .position_i     (step_q.position),
    .output_lines_i (context_q.region_lines),
    .read_valid_o   (read_valid[UNIT_MEM]),
    .read_line_o    (read_line[UNIT_MEM]),
    .read_ready_i   (read_ready[UNIT_MEM]),
    .read_answer_i  (read_answer[UNIT_MEM]),
    .read_data_i    (read_data),
    .write_valid_o  (write_valid[UNIT_MEM]),
    .write_line_o   (write_line[UNIT_MEM]),
    .write_data_o   (write_data[UNIT_MEM]),
    .write_ready_i  (write_ready[UNIT_MEM]),
    .fetch_valid_o  (fetch_valid[COPIES]),
    .fetch_line_o   (fetch_line[COPIES]),
    .fetch_lines_o  (fetch_lines[COPIES]),
    .fetch_ready_i  (fetch_ready[COPIES]),
    .beat_valid_i   (beat_valid[COPIES]),
    .beat_data_i    (beat_data),
    .beat_fault_i   (beat_fault),
    .beat_ready_o   (beat_ready[COPIES]),
    .store_valid_o  (store_valid),
    .store_output_o (store_region),
    .store_line_o   (store_line),
    .store_data_o   (store_data),
    .store_strobe_o (store_strobe),
    .store_ready_i  (!write_q),
    .stored_i       (written_i),
    .store_fault_i  (write_fault_i),
    .block_ask_o    (block_ask[0]),
    .block_entry_o  (block_entry[0]),
    .block_answer_i (block_answer[0]),
    .block_line_i   (block_line),
    .block_end_i    (block_end)
  );

  logic        sampler_begin, sampler_begun, sampler_idle, logit_valid, logit_last, logit_ready;
  logic [31:0] logit;

  npu_gemv u_gemv (
    .clk_i, .rst_ni,
    .start_i         (unit_start[UNIT_GEMV]),
    .op_i            (gemv_op),
    .idle_o          (unit_idle[UNIT_GEMV]),
    .done_o          (unit_done[UNIT_GEMV]),
    .end_o           (unit_end[UNIT_GEMV]),
    .read_valid_o    (read_valid[UNIT_GEMV]),
    .read_line_o     (read_line[UNIT_GEMV]),
    .read_ready_i    (read_ready[UNIT_GEMV]),
    .read_answer_i   (read_answer[UNIT_GEMV]),
    .read_data_i     (read_data),
    .write_valid_o   (write_valid[UNIT_GEMV]),
    .write_line_o    (write_line[UNIT_GEMV]),
    .write_data_o    (write_data[UNIT_GEMV]),
    .write_ready_i   (write_ready[UNIT_GEMV]),
    .fetch_valid_o   (fetch_valid[WEIGHTS]),
    .fetch_line_o    (fetch_line[WEIGHTS]),
    .fetch_lines_o   (fetch_lines[WEIGHTS]),
    .fetch_ready_i   (fetch_ready[WEIGHTS]),
    .beat_valid_i    (beat_valid[WEIGHTS]),
    .beat_data_i     (beat_data),
    .beat_fault_i    (beat_fault),
    .beat_ready_o    (beat_ready[WEIGHTS]),
    .sampler_begin_o (sampler_begin),
    .sampler_begun_i (sampler_begun),
    .sampler_idle_i  (sampler_idle),
    .logit_valid_o   (logit_valid),
    .logit_o         (logit),
    .logit_last_o    (logit_last),
    .logit_ready_i   (logit_ready)
  );

  npu_sampler u_sampler (
    .clk_i, .rst_ni,
    .step_i         (step_q),
    .forget_i       (start),
    .begin_i        (sampler_begin),
    .begun_o        (sampler_begun),
    .idle_o         (sampler_idle),
    .logit_valid_i  (logit_valid),
    .logit_i        (logit),
    .logit_last_i   (logit_last),
    .logit_ready_o  (logit_ready),
    .done_i         (unit_done[UNIT_GEMV]),
    .end_i          (unit_end[UNIT_GEMV]),
    .sample_valid_o (sample_valid),
    .sample_token_o (sample_token),
    .sample_logp_o  (sample_logp)
  );

  npu_sfu u_sfu (
    .clk_i, .rst_ni,
    .start_i       (unit_start[UNIT_SFU]),
    .op_i          (sfu_op),
    .idle_o        (unit_idle[UNIT_SFU]),
    .done_o        (unit_done[UNIT_SFU]),
    .end_o         (unit_end[UNIT_SFU]),
    .read_valid_o  (read_valid[UNIT_SFU]),
    .read_line_o   (read_line[UNIT_SFU]),
    .read_ready_i  (read_ready[UNIT_SFU]),
    .read_answer_i (read_answer[UNIT_SFU]),
    .read_data_i   (read_data),
    .write_valid_o (write_valid[UNIT_SFU]),
    .write_line_o  (write_line[UNIT_SFU]),
    .write_data_o  (write_data[UNIT_SFU]),
    .write_ready_i (write_ready[UNIT_SFU])
  );

  npu_attend u_attend (
    .clk_i, .rst_ni,
    .start_i        (unit_start[UNIT_KV]),
    .op_i           (kv_op),
    .idle_o         (unit_idle[UNIT_KV]),
    .done_o         (unit_done[UNIT_KV]),
    .end_o          (unit_end[UNIT_KV]),
    .position_i     (step_q.position),
    .read_valid_o   (read_valid[UNIT_KV]),
    .read_line_o    (read_line[UNIT_KV]),
    .read_ready_i   (read_ready[UNIT_KV]),
    .read_answer_i  (read_answer[UNIT_KV]),
    .read_data_i    (read_data),
    .write_valid_o  (write_valid[UNIT_KV]),
    .write_line_o   (write_line[UNIT_KV]),
    .write_data_o   (write_data[UNIT_KV]),
    .write_ready_i  (write_ready[UNIT_KV]),
    .fetch_valid_o  (fetch_valid[VALUES]),
    .fetch_line_o   (fetch_line[VALUES]),
    .fetch_lines_o  (fetch_lines[VALUES]),
    .fetch_ready_i  (fetch_ready[VALUES]),
    .beat_valid_i   (beat_valid[VALUES]),
    .beat_data_i    (beat_data),
    .beat_fault_i   (beat_fault),
    .beat_ready_o   (beat_ready[VALUES]),
    .block_ask_o    (block_ask[1]),
    .block_entry_o  (block_entry[1]),
    .block_answer_i (block_answer[1]),
    .block_line_i   (block_line),
    .block_end_i    (block_end)
  );

  npu_blocks u_blocks (
    .clk_i, .rst_ni,
    .forget_i      (start),
    .table_i       (MEMORY_BITS'(0)),
    .entries_i     (context_q.table_entries),
    .arena_lines_i (context_q.arena_lines),
    .ask_i         (block_ask),
    .entry_i       (block_entry),
    .stride_i      (block_stride),
    .answer_o      (block_answer),
    .line_o        (block_line),
    .end_o         (block_end),
    .fetch_valid_o (fetch_valid[BLOCKS]),
    .fetch_line_o  (fetch_line[BLOCKS]),
    .fetch_lines_o (fetch_lines[BLOCKS]),
    .fetch_ready_i (fetch_ready[BLOCKS]),
    .beat_valid_i  (beat_valid[BLOCKS]),
    .beat_data_i   (beat_data),
    .beat_fault_i  (beat_fault),
    .beat_ready_o  (beat_ready[BLOCKS])
  );

  npu_chip #(.Lines(Lines)) u_chip (
    .clk_i, .rst_ni,
    .read_valid_i  (read_valid),
    .read_line_i   (read_line),
    .read_ready_o  (read_ready),
    .read_answer_o (read_answer),
    .read_data_o   (read_data),
    .write_valid_i (write_valid),
    .write_line_i  (write_line),
    .write_data_i  (write_data),
    .write_ready_o (write_ready)
  );

  // What others read is written behind them, which spares a simulation a copy in each cycle.
  always_ff @(posedge clk_i) begin
    case (state_q)
      Idle: if (step_valid_i) begin
        state_q   <= Begin;
        step_q    <= step_i;
        context_q <= context_i;
        result_q  <= '0;
        fetch_base_q[PROGRAM] <= context_i.model;
        fetch_base_q[COPIES]  <= context_i.model;
        fetch_base_q[WEIGHTS] <= context_i.model;
        fetch_base_q[VALUES]  <= context_i.arena;
        fetch_base_q[BLOCKS]  <= context_i.table_line;
      end
      Begin: state_q <= Run;
      Run: begin
        if (sample_valid) begin
          result_q.sampled <= 1'b1;
          result_q.token   <= sample_token;
          result_q.logp    <= sample_logp;
        end
        if (over) begin
          state_q      <= Result;
          // A unit's word stands before what the sequencer was at.
          result_q.log <= failed ? scoreboard_log : sequencer_log;
        end
      end
      default: if (result_ready_i) state_q <= Idle;
    endcase
    if (!rst_ni) state_q <= Idle;
  end

`ifndef SYNTHESIS
  always_ff @(posedge clk_i) begin
    if (over) begin
      if (rst_ni && !quiet)                                $fatal(1, "N6 npu_top: a step is over with words in flight");
      if (rst_ni && (fetch_valid != '0 || read_valid_o || write_q)) $fatal(1, "N6 npu_top: a step is over while something is asked of memory");
    end
    if (start) begin
      if (rst_ni && !(sequencer_idle && unit_idle == '1))  $fatal(1, "N6 npu_top: a step begins in the middle of one");
    end
  end
`endif
endmodule
