// What the bus withholds from one tenant costs another one nothing: two queue pairs of two functions with workers of their own. The write
// responses of one ID of the first are withheld while it has more to write than all write places; the second completes descriptors,
// and its function is reset, each within a bound.
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

  task automatic case_held(input string what, input int id, input logic decodes);
    logic [31:0] data;
    int          from;
    begin_case(what);
    bench.u_memory.hold_id = id;
    flood(250, decodes);
    repeat (1500) @(posedge bench.clk);
    if (bench.u_memory.tail[id] - bench.u_memory.head[id] < 8)
      fail($sformatf("only %0d responses of ID %0d are withheld", bench.u_memory.tail[id] - bench.u_memory.head[id], id));
    for (int k = 0; k < 12; k++) begin
      from = bench.cycle;
      desc = bench.gen_host[1].host.blank(OP_NOP, k);
      bench.gen_host[1].host.put(desc);
      bench.gen_host[1].host.ring;
      bench.gen_host[1].host.await_completion(Bound);
      if (bench.cycle - from > Bound) fail($sformatf("%0s: a NOP of the other function took %0d cycles", what, bench.cycle - from));
    end
    bench.gen_host[1].host.release_seen;
    bench.gen_host[1].host.expect_all_done;
    // The reset of the other function.
    bench.u_registers.write(BLOCK_FUNCTION + BLOCK_FUNCTION_PER_FUNCTION, FN_CONTROL_RESET);
    repeat (Bound) @(posedge bench.clk);
    bench.u_registers.read(BLOCK_FUNCTION + BLOCK_FUNCTION_PER_FUNCTION, data);
    if (data != 0) fail($sformatf("R12: %0s: the reset of the other function has not ended within %0d cycles", what, Bound));
    bench.gen_host[1].host.disable_device;
    // The first goes on where it was, once it is answered.
    bench.u_memory.hold_id = -1;
    bench.host.await_completions(250, 20000);
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
    bench.u_memory.write_latency = 30;
    case_held("completions withheld, a slow memory", 16, 1'b0);
    finish_bench("rl_runtime_top_withheld_tb");
  end
endmodule
