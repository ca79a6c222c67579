// What a completion needs of its descriptor, kept from the dispatcher to the arbiter so that workers need not carry
// it: a RAM with one write and one read port. A worker delivers in the order in which it was assigned, so each has a
// small ring of its own. Joined with the item that the arbiter grants, it gives the line's address and the completion.
module work_context
  import desc_pkg::*;
  import core_pkg::*;
#(
  parameter int Queues  = 1,
  parameter int Workers = 4,
  parameter int Engines = 1
) (
  /* verilator lint_off UNUSEDSIGNAL */  // numbers of queue pairs have 4 bits, whatever was built
  input  logic               clk_i,
  input  logic               rst_ni,

  input  logic               start_i,         // a queue pair starts, with this configuration
  input  logic [3:0]         start_queue_i,
  input  queue_config_t      start_config_i,

  input  logic               assign_i,        // the descriptor below goes to this worker
  input  logic [3:0]         assign_worker_i,
  input  echo_t              echo_i,
  input  logic               stopped_i,       // R8, R20: it ends before its first token
  input  logic               superseded_i,    // R20: likewise
  input  verdict_t           verdict_i,       // R17: its group; it may be refused

  // The granted item, if any: worker, last word of its line, and for an end its digest and how it ended.
  input  logic               taken_i,
  input  logic [3:0]         worker_i,
  input  logic [3:0]         last_i,
  input  logic               logp_i,          // its line is one of log-probabilities
  input  logic               again_i,         // its log-probabilities come next
  input  logic [31:0]        digest_i,
  input  logic [3:0]         how_i,
  input  logic               delivered_i,     // it ends the worker's oldest descriptor

  output logic [4*Workers-1:0] pairs_o,       // early: the queue pair of each worker's oldest descriptor, where it has one
  output logic [3:0]         line_queue_o,
  output logic [63:0]        line_addr_o,
  output logic [3:0]         line_first_o,    // words that are written
  output logic [3:0]         line_last_o,
  output done_t              done_o
  /* verilator lint_on UNUSEDSIGNAL */
);
  localparam int QueueBits = (Queues == 1) ? 1 : $clog2(Queues);
  // One running, two queued, two finished: five at most for one worker.
  localparam int PlaceBits = 3;

  localparam int VerdictBits = $bits(verdict_t);

  logic [VerdictBits+ECHO_BITS+1:0] mem [0:MAX_WORKERS*(1 << PlaceBits)-1];
  logic [MAX_WORKERS-1:0][PlaceBits-1:0] newest_q, oldest_q;
  logic [27:0]          line_mem [0:MAX_WORKERS-1];   // lines of the worker's oldest descriptor that are out …
  logic [MAX_WORKERS-1:0] first_q;                      // … if there are any
  logic [27:0]          line;
  echo_t                echo;
  logic                 stopped, superseded, called_off, failed, ends;
  verdict_t             verdict;

  // Both regions begin with a line: the log-probabilities of a token line lie so many lines behind it, modulo 2^58.
  logic [Queues-1:0][57:0] ahead_q;
  logic [57:0]             ahead;
  logic [QueueBits-1:0]    pair, start_pair;
  assign pair       = (Queues == 1) ? '0 : echo.pair[QueueBits-1:0];
  assign ahead      = logp_i ? ahead_q[pair] : '0;
  assign start_pair = (Queues == 1) ? '0 : start_queue_i[QueueBits-1:0];

  always_ff @(posedge clk_i) begin
    if (start_i) ahead_q[start_pair] <= start_config_i.logp_base[63:6] - start_config_i.token_base[63:6];
  end

  // Called off before its first token: by a STOP or an ABORT, or by a KEEP.
  assign failed     = Engines > 1 && how_i[3] && how_i[1:0] == END_FAILED && !stopped && !superseded;
  assign called_off = stopped || superseded || (how_i[3] && how_i[1:0] != END_DONE && !failed);

  always_comb begin
    done_o = '0;
    if (delivered_i) begin
      done_o.pair           = echo.pair;
      done_o.irq             = echo.irq;
      done_o.status          = echo.status;
      done_o.error           = echo.error;
      // Nothing but a slot that cannot be trusted has these here.
      done_o.flags           = (echo.error == ERR_DMA_FAULT || echo.error == ERR_BAD_CHECK) ? CFLAG_NO_ECHO : '0;
      done_o.worker_id       = {12'd0, worker_i};
      done_o.reward_model_id = echo.reward_model_id;
      done_o.result          = echo.result;
      done_o.final_seq_len   = echo.seq_len[30:0];
      done_o.rollout_id      = echo.rollout_id;
      done_o.user_data       = echo.user_data;
      done_o.names           = echo.names;
      done_o.slot            = echo.slot;
      done_o.reads           = echo.reads;
      done_o.publishes       = echo.publishes;
      if (verdict.error != ERR_NONE) begin
        done_o.irq           = 1'b1;                 // R14: as any error
        done_o.status        = STATUS_ERROR;
        done_o.error         = verdict.error;
      end else if (failed) begin
        done_o.irq           = 1'b1;
        done_o.status        = STATUS_ERROR;
        done_o.error         = how_i[2] ? ERR_DMA_FAULT : ERR_BAD_SEQUENCE;
        if (echo.adds_tokens) begin
          // Its last line may be one that it has not begun.
          done_o.result        = digest_i;
          done_o.final_seq_len = 31'(echo.seq_len + {line, last_i} - {28'd0, echo.token_addr[5:2]} + ((last_i == 4'd15) ? -32'd15 : 32'd1));
        end
      end else if (echo.adds_tokens && called_off) begin
        done_o.status        = (stopped || (!superseded && how_i[1:0] == END_STOPPED)) ? STATUS_STOPPED : STATUS_SUPERSEDED;
        done_o.result        = DIGEST_INIT;
      end else if (echo.adds_tokens) begin
        done_o.status        = (how_i[1:0] == END_REWARD_NEEDED) ? STATUS_REWARD_NEEDED
                             : (how_i[1:0] == END_SUPERSEDED)    ? STATUS_SUPERSEDED
                             : (how_i[1:0] == END_STOPPED)       ? STATUS_STOPPED : STATUS_DONE;
        done_o.flags         = (how_i[2] ? CFLAG_EOS : '0) | (how_i[3] ? CFLAG_REJECTED : '0);
        done_o.result        = digest_i;
        done_o.final_seq_len = 31'(echo.seq_len + {line, last_i} - {28'd0, echo.token_addr[5:2]} + 32'd1);
      end
      if (verdict.belongs) begin
        done_o.belongs       = 1'b1;
        done_o.entry         = verdict.entry;
        done_o.fills         = verdict.fills;
        done_o.ends          = ends;
        done_o.all           = verdict.all;
        done_o.member        = verdict.member;
      end
    end
  end
  // A STOP ends its member, and a DECODE as DONE or STOPPED does.
  assign ends = verdict.is_stop
             || (!verdict.fills && verdict.error == ERR_NONE && (stopped || (!superseded && (how_i[1:0] == END_DONE || how_i[1:0] == END_STOPPED))));

  always_comb begin
    line_queue_o = '0;
    line_addr_o  = '0;
    line_first_o = '0;
    line_last_o  = last_i;
    if (taken_i) begin
      line_queue_o = echo.pair;
      line_addr_o = {echo.token_addr[63:6] + {30'd0, line} + ahead, 6'd0};
      if (first_q[worker_i]) line_first_o = echo.token_addr[5:2];
    end
  end

  always_comb begin
    verdict    = '0;
    stopped    = 1'b0;
    superseded = 1'b0;
    echo       = '0;
    line       = '0;
    if (taken_i) begin
      {verdict, superseded, stopped, echo} = mem[{worker_i, oldest_q[worker_i]}];
      if (!first_q[worker_i]) line = line_mem[worker_i];
    end
  end

  always_ff @(posedge clk_i) begin
    if (assign_i) mem[{assign_worker_i, newest_q[assign_worker_i]}] <= {verdict_i, superseded_i, stopped_i, echo_i};
    if (taken_i && !again_i) line_mem[worker_i] <= line + 28'd1;
  end

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      newest_q <= '0;
      oldest_q <= '0;
      first_q  <= '1;
    end else begin
      if (assign_i)    newest_q[assign_worker_i] <= newest_q[assign_worker_i] + 1'b1;
      if (delivered_i) oldest_q[worker_i]        <= oldest_q[worker_i] + 1'b1;
      if (taken_i && !again_i) first_q[worker_i] <= delivered_i;
    end
  end

  // Whose the oldest descriptor of each worker is.
  if (Queues == 1) begin : gen_one_pair
    assign pairs_o = '0;
  end else begin : gen_pairs
    logic [3:0]           pair_mem [0:MAX_WORKERS*(1 << PlaceBits)-1];
  /* verilator lint_off UNUSEDSIGNAL */  // as many as a number can name
    logic [MAX_WORKERS-1:0][3:0] pair_q;
  /* verilator lint_on UNUSEDSIGNAL */
    logic [PlaceBits-1:0] second;
    assign second  = delivered_i ? oldest_q[worker_i] + 1'b1 : '0;
    assign pairs_o = pair_q[Workers-1:0];
    always_ff @(posedge clk_i) begin
      if (assign_i) pair_mem[{assign_worker_i, newest_q[assign_worker_i]}] <= echo_i.pair;
      if (delivered_i) pair_q[worker_i] <= pair_mem[{worker_i, second}];
      // It is the only one, or will be.
      if (assign_i && (newest_q[assign_worker_i] == oldest_q[assign_worker_i]
                       || (delivered_i && worker_i == assign_worker_i && newest_q[assign_worker_i] == second)))
        pair_q[assign_worker_i] <= echo_i.pair;
      if (!rst_ni) pair_q <= '0;
    end
  end

`ifndef SYNTHESIS
  initial if ($bits(echo) != ECHO_BITS) $fatal(1, "core_pkg: ECHO_BITS must be %0d", $bits(echo));
  always_ff @(posedge clk_i) begin
    if (delivered_i) begin
      if (rst_ni && newest_q[worker_i] == oldest_q[worker_i])
        $fatal(1, "R3 work_context: worker %0d delivers a descriptor that it was not assigned", worker_i);
    end
  end
`endif
endmodule
