// What a completion needs of its descriptor, kept from the dispatcher to the arbiter so that workers need not carry
// it: a RAM with one write and one read port. A worker delivers in the order in which it was assigned, so each has a
// small ring of its own. Joined with the item that the arbiter grants, it gives the line's address and the completion.
module work_context
  import desc_pkg::*;
  import core_pkg::*;
#(
  parameter int Workers = 4
) (
  input  logic               clk_i,
  input  logic               rst_ni,
  input  logic               clear_i,

  input  logic [Workers-1:0] assign_i,        // one-hot: the descriptor below goes to this worker
  input  echo_t              echo_i,
  input  logic               stopped_i,       // R8: it ends before its first token

  // The granted item: worker, position of its last token, and for an end its digest and how it ended.
  input  logic [3:0]         worker_i,
  input  logic [31:0]        position_i,
  input  logic [31:0]        digest_i,
  input  logic [3:0]         how_i,
  input  logic               delivered_i,     // it ends the worker's oldest descriptor

  output logic [63:0]        line_addr_o,
  output logic [3:0]         line_first_o,    // words that are written
  output logic [3:0]         line_last_o,
  output done_t              done_o
);
  // One running, two queued, two finished: five at most for one worker.
  localparam int PlaceBits = 3;

  logic [ECHO_BITS:0]   mem [0:MAX_WORKERS*(1 << PlaceBits)-1];
  logic [PlaceBits-1:0] newest [0:MAX_WORKERS-1];
  logic [PlaceBits-1:0] oldest [0:MAX_WORKERS-1];
  logic [3:0]           assign_worker;
  echo_t                echo;
  logic                 stopped;
  logic [3:0]           start_word;

  assign assign_worker = one_hot_index(MAX_WORKERS'(assign_i));

  assign {stopped, echo} = mem[{worker_i, oldest[worker_i]}];
  assign start_word = echo.token_addr[5:2];

  // Positions count words from the start of the descriptor's first line.
  assign line_addr_o  = {echo.token_addr[63:6] + {30'd0, position_i[31:4]}, 6'd0};
  assign line_first_o = (position_i[31:4] == '0) ? start_word : 4'd0;
  assign line_last_o  = position_i[3:0];

  always_comb begin
    done_o = '0;
    if (delivered_i) begin
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
      if (stopped) begin
        done_o.status        = STATUS_STOPPED;
        done_o.result        = DIGEST_INIT;
      end else if (echo.adds_tokens) begin
        done_o.status        = (how_i[1:0] == END_REWARD_NEEDED) ? STATUS_REWARD_NEEDED
                             : (how_i[1:0] == END_STOPPED)       ? STATUS_STOPPED : STATUS_DONE;
        done_o.flags         = (how_i[2] ? CFLAG_EOS : '0) | (how_i[3] ? CFLAG_REJECTED : '0);
        done_o.result        = digest_i;
        done_o.final_seq_len = 31'(echo.seq_len + position_i - {28'd0, start_word} + 32'd1);
      end
    end
  end

  always_ff @(posedge clk_i) begin
    if (assign_i != '0) mem[{assign_worker, newest[assign_worker]}] <= {stopped_i, echo_i};
  end

  always_ff @(posedge clk_i) begin
    if (!rst_ni || clear_i) begin
      for (int w = 0; w < MAX_WORKERS; w++) begin
        newest[w] <= '0;
        oldest[w] <= '0;
      end
    end else begin
      if (assign_i != '0) newest[assign_worker] <= newest[assign_worker] + 1'b1;
      if (delivered_i)    oldest[worker_i]      <= oldest[worker_i] + 1'b1;
    end
  end

`ifndef SYNTHESIS
  initial if ($bits(echo) != ECHO_BITS) $fatal(1, "core_pkg: ECHO_BITS must be %0d", $bits(echo));
  always_ff @(posedge clk_i) begin
    if (rst_ni && !clear_i && delivered_i && newest[worker_i] == oldest[worker_i])
      $fatal(1, "R3 work_context: worker %0d delivers a descriptor that it was not assigned", worker_i);
  end
`endif
endmodule
