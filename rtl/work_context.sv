// What a completion echoes of its descriptor, kept from the dispatcher to the arbiter so that workers need not carry
// it: a RAM with one write and one read port. A worker delivers in the order in which it was assigned, so each has a
// small ring of its own.
module work_context
  import core_pkg::*;
#(
  parameter int Workers = 4
) (
  input  logic               clk_i,
  input  logic               rst_ni,
  input  logic               clear_i,

  input  logic [Workers-1:0] assign_i,        // one-hot: the descriptor below goes to this worker
  input  logic [31:0]        rollout_id_i,
  input  logic [63:0]        user_data_i,
  input  logic [15:0]        reward_model_id_i,
  input  logic               irq_i,

  input  logic [3:0]         deliver_worker_i,
  input  logic               deliver_i,       // the worker's oldest descriptor is delivered in this cycle
  output logic [31:0]        rollout_id_o,    // of the worker's oldest descriptor, combinational
  output logic [63:0]        user_data_o,
  output logic [15:0]        reward_model_id_o,
  output logic               irq_o
);
  // One running, two queued, two finished: five at most for one worker.
  localparam int PlaceBits = 3;

  logic [112:0]         mem [0:MAX_WORKERS*(1 << PlaceBits)-1];
  logic [PlaceBits-1:0] newest [0:MAX_WORKERS-1];
  logic [PlaceBits-1:0] oldest [0:MAX_WORKERS-1];
  logic [3:0]           assign_worker;

  always_comb begin
    assign_worker = '0;
    for (int w = 0; w < Workers; w++) if (assign_i[w]) assign_worker = 4'(w);
  end

  assign {irq_o, reward_model_id_o, rollout_id_o, user_data_o} = mem[{deliver_worker_i, oldest[deliver_worker_i]}];

  always_ff @(posedge clk_i) begin
    if (assign_i != '0)
      mem[{assign_worker, newest[assign_worker]}] <= {irq_i, reward_model_id_i, rollout_id_i, user_data_i};
  end

  always_ff @(posedge clk_i) begin
    if (!rst_ni || clear_i) begin
      for (int w = 0; w < MAX_WORKERS; w++) begin
        newest[w] <= '0;
        oldest[w] <= '0;
      end
    end else begin
      if (assign_i != '0) newest[assign_worker] <= newest[assign_worker] + 1'b1;
      if (deliver_i) oldest[deliver_worker_i] <= oldest[deliver_worker_i] + 1'b1;
    end
  end

`ifndef SYNTHESIS
  always_ff @(posedge clk_i) begin
    if (rst_ni && !clear_i && deliver_i && newest[deliver_worker_i] == oldest[deliver_worker_i])
      $fatal(1, "R3 work_context: worker %0d delivers a descriptor that it was not assigned", deliver_worker_i);
  end
`endif
endmodule
