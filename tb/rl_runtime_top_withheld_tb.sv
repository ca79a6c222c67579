// What the bus withholds from one tenant costs another one nothing: two queue pairs of two functions with workers of their own. The write
// responses, or the data, of one ID of the first are withheld while it has more under way than all places hold, or it has a long REWARD
// scored (R16); the second completes descriptors that write, score and publish, and its function is reset, each within a bound.
module rl_runtime_top_withheld_tb;
  import bench_pkg::*;
  import desc_pkg::*;

  localparam int Bound = 200;           // cycles for a NOP, from its doorbell to its completion, and for a reset

  top_bench #(.Queues(2), .Functions(2), .Workers(4), .Limit(2_000_000)) bench ();
  hw_desc_t desc;

  task automatic begin_case(input string name);
    bench.u_registers.write(REG_WINDOW_2_SIZE_LO + BLOCK_DEVICE_FUNCTION_PER_FUNCTION, '1);
    bench.u_registers.write(REG_WINDOW_2_SIZE_HI + BLOCK_DEVICE_FUNCTION_PER_FUNCTION, '1);
    bench.u_protocol.quiet = 1'b0;
    $display("case %0s", name);
    bench.host.default_config;       bench.gen_host[1].host.default_config;
    bench.host.alone = 1'b0;         bench.gen_host[1].host.alone = 1'b0;
    bench.host.mask = 4'b0011;       bench.gen_host[1].host.mask = 4'b1100;
    bench.gen_host[1].host.owner = 4'd1;
    bench.host.sq_size = 256;        bench.host.cq_size = 256;
    bench.host.enable;
    bench.gen_host[1].host.enable;
  endtask

  // So many descriptors of the first: NOPs, or DECODEs of a line each.
  task automatic flood(input int n, input logic decodes);
    for (int k = 0; k < n; k++) begin
      if (decodes) bench.host.make_decode(k, 1, 15, desc);
      else         desc = bench.host.blank(OP_NOP, k);
      bench.host.put(desc);
    end
    bench.host.ring;
  endtask

  // The second does what there is to do, and its function is reset.
  task automatic expect_free(input string what);
    logic [31:0] data;
    int          from;
    for (int k = 0; k < 16; k++) begin
      from = bench.cycle;
      case (k % 4)
        0: desc = bench.gen_host[1].host.blank(OP_NOP, k);
        1: bench.gen_host[1].host.make_decode(k, 16, 1, desc);
        default: begin
          desc = bench.gen_host[1].host.blank(OP_REWARD, k);
          desc.max_tokens      = 1 + k;
          desc.reward_model_id = k % 2;
        end
      endcase
      bench.gen_host[1].host.put(desc);
      bench.gen_host[1].host.ring;
      bench.gen_host[1].host.await_completion(Bound);
      if (bench.cycle - from > Bound) fail($sformatf("R16: %0s: a descriptor of the other function took %0d cycles", what, bench.cycle - from));
    end
    bench.gen_host[1].host.release_seen;
    bench.gen_host[1].host.expect_all_done;
    // The reset of the other function.
    bench.u_registers.write(BLOCK_FUNCTION + BLOCK_FUNCTION_PER_FUNCTION, FN_CONTROL_RESET);
    repeat (Bound) @(posedge bench.clk);
    bench.u_registers.read(BLOCK_FUNCTION + BLOCK_FUNCTION_PER_FUNCTION, data);
    if (data != 0) fail($sformatf("R12: %0s: the reset of the other function has not ended within %0d cycles", what, Bound));
    bench.gen_host[1].host.disable_device;
  endtask

  task automatic case_held(input string what, input int id, input logic decodes);
    begin_case(what);
    bench.u_memory.hold_id = id;
    flood(250, decodes);
    repeat (1500) @(posedge bench.clk);
    if (bench.u_memory.tail[id] - bench.u_memory.head[id] < 8)
      fail($sformatf("only %0d responses of ID %0d are withheld", bench.u_memory.tail[id] - bench.u_memory.head[id], id));
    expect_free(what);
    // The first goes on where it was, once it is answered.
    bench.u_memory.hold_id = -1;
    bench.host.await_completions(250, 20000);
    bench.host.release_seen;
    bench.host.expect_all_done;
    bench.host.disable_device;
  endtask

  // Data of descriptors, or of what is read back.
  task automatic case_read_held(input string what, input int id);
    begin_case(what);
    bench.u_memory.hold_read = id;
    if (id == 0) flood(250, 1'b0);
    else begin
      for (int k = 0; k < 60; k++) begin
        desc = bench.host.blank(OP_REWARD, k);
        desc.max_tokens = 100;
        bench.host.put(desc);
      end
      bench.host.ring;
    end
    repeat (1500) @(posedge bench.clk);
    if (bench.u_memory.ar_tail[id] == bench.u_memory.ar_head[id]) fail($sformatf("no data of ID %0d is withheld", id));
    expect_free(what);
    bench.u_memory.hold_read = -1;
    bench.host.await_completions(id == 0 ? 250 : 60, 20000);
    bench.host.release_seen;
    bench.host.expect_all_done;
    bench.host.disable_device;
  endtask

  // R16: one REWARD after the other, each of thousands of cycles.
  task automatic case_long_reward(input logic model);
    begin_case("a long REWARD");
    for (int k = 0; k < 2; k++) begin
      desc = bench.host.blank(OP_REWARD, k);
      desc.max_tokens      = 12000;
      desc.reward_model_id = model;
      bench.host.put(desc);
    end
    bench.host.ring;
    repeat (100) @(posedge bench.clk);
    expect_free("a long REWARD");
    if (bench.host.u_score.cq_visible != bench.host.u_score.cq_seen) fail("the long REWARD was over before the others were");
    bench.host.await_completions(2, 40000);
    bench.host.release_seen;
    bench.host.expect_all_done;
    bench.host.disable_device;
  endtask

  initial begin
    @(posedge bench.rst_n);
    @(posedge bench.clk);
    bench.u_registers.write(REG_QUEUE_FUNCTION + BLOCK_DEVICE_QUEUE_PER_QUEUE, 1);
    case_held("completions withheld", 16, 1'b0);
    case_held("token lines withheld", 0, 1'b1);
    case_held("completions behind token lines withheld", 16, 1'b1);
    case_read_held("descriptors withheld", 0);
    case_read_held("what is read back withheld", 16);
    case_long_reward(1'b0);
    case_long_reward(1'b1);
    bench.u_memory.write_latency = 30;
    case_held("completions withheld, a slow memory", 16, 1'b0);
    finish_bench("rl_runtime_top_withheld_tb");
  end
endmodule
