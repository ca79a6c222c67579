// Directed cases of the whole device against its buses: write responses that are withheld, a reset of the device while
// the bus lives on, register writes close behind one another.
module rl_runtime_top_bus_tb;
  import bench_pkg::*;
  import desc_pkg::*;

  top_bench #(.Workers(4)) bench ();

  hw_desc_t desc;

  // Reads what is there, and gives it back.
  task automatic read_all(inout int seen);
    logic got;
    bench.host.poll(got);
    while (got) begin
      seen = seen + 1;
      bench.host.poll(got);
    end
    bench.host.release_seen;
  endtask

  // The write responses of a queue pair's token lines, or of its completions, are withheld: nothing of what waits for them becomes
  // visible, descriptors without tokens behind it included, as completions keep the order in which descriptors end; then all does.
  task automatic case_withheld_response(input int held);
    int seen, total, shown;
    bench.host.begin_case("withheld response");
    // Completions whose responses are withheld are not in memory, which a bus may also do otherwise.
    if (held == 16) bench.u_memory.early_effect = 1'b0;
    bench.host.cq_size = 256;
    bench.host.enable;
    seen  = 0;
    total = 0;
    for (int k = 0; k < 20; k++) begin
      bench.host.make_decode(total, between(1, 6), 0, desc);
      bench.host.put(desc);
      total = total + 1;
    end
    bench.host.ring;
    bench.host.await_completions(total, 5000);
    seen = total;
    bench.u_memory.hold_id = held;
    shown = total;
    repeat (60) begin
      while (bench.host.sq_space() > 0 && total < 200) begin
        if (total % 3 == 2) desc = bench.host.blank(OP_NOP, total);
        else bench.host.make_decode((total == shown) ? total : below(12), between(1, 6), 0, desc);
        bench.host.put(desc);
        total = total + 1;
      end
      bench.host.ring;
      read_all(seen);
      repeat (20) @(posedge bench.clk);
    end
    // NOPs may end before the first DECODE does.
    if (seen > shown + 4) fail($sformatf("%0d of %0d completions are visible, and ID %0d is held", seen, total, held));
    $display("ID %0d held: %0d of %0d completions visible", held, seen - shown, total - shown);
    // R7: a fence waits for all of them.
    desc       = bench.host.blank(OP_NOP, 77777);
    desc.flags = FLAG_FENCE;
    while (bench.host.sq_space() == 0) begin
      bench.u_memory.hold_id = -1;
      read_all(seen);
      @(posedge bench.clk);
    end
    bench.host.put(desc);
    bench.host.ring;
    repeat (200) @(posedge bench.clk);
    bench.u_memory.hold_id = -1;
    bench.host.await_completions(total + 1 - seen, 5000);
    bench.host.end_case;
  endtask

  // R12: the device is reset at any moment and the bus is not. Transfers in flight end; a clean start afterwards.
  task automatic case_device_reset;
    bench.host.begin_case("reset of the device alone");
    repeat (drawn(6, 15)) begin
      bench.host.enable;
      for (int k = 0; k < 30; k++) begin
        bench.host.make_decode(k, between(1, 40), 0, desc);
        bench.host.put(desc);
      end
      bench.host.ring;
      repeat (below(250)) @(posedge bench.clk);
      bench.reset_device;
      bench.u_registers.expect_read(REG_CONTROL, 0);
      bench.u_registers.expect_read(REG_STATE, STATE_IDLE);
      bench.u_registers.expect_read(REG_SQ_SIZE, 0);
    end
    bench.host.enable;
    for (int k = 0; k < 30; k++) begin
      bench.host.make_decode(k, between(1, 40), 0, desc);
      bench.host.put(desc);
    end
    bench.host.ring;
    bench.host.await_completions(30, 5000);
    bench.host.end_case;
  endtask

  // While a disable or a reset drains, the device is not yet inactive: it refuses to be enabled.
  task automatic case_enable_while_draining;
    int latency;
    bench.host.begin_case("enable while draining");
    latency = bench.u_memory.write_latency;
    for (int k = 0; k < 2; k++) begin
      bench.u_memory.write_latency = 600;
      bench.host.enable;
      bench.host.make_decode(1, 30, 0, desc);
      bench.host.put(desc);
      bench.host.ring;
      waits_for = "case enable while draining waits for a write";
      while (bench.u_memory.pending == 0) @(posedge bench.clk);
      if (k == 0) bench.u_registers.write(REG_CONTROL, 0);
      else begin
        bench.bus_lives = 1'b1;
        bench.host.u_score.stop;
        bench.u_clock.reset(2);
      end
      bench.u_registers.expect_read(REG_STATE, STATE_ACTIVE | STATE_IDLE);
      bench.u_registers.refuse(REG_CONTROL, CONTROL_ENABLE);
      bench.u_registers.refuse(REG_DOORBELL, bench.host.sq_tail);
      bench.u_registers.refuse(REG_CQ_HEAD, bench.host.cq_head);
      bench.u_registers.refuse(REG_SQ_SIZE, 8);
      bench.u_registers.expect_read(REG_CONTROL, 0);
      bench.u_registers.write(REG_CONTROL, 0);
      bench.host.disable_device;
      bench.bus_lives = 1'b0;
    end
    bench.u_memory.write_latency = latency;
  endtask

  // An accepted ENABLE opens the queues: a doorbell right behind it is not refused.
  task automatic case_doorbell_behind_enable;
    bench.host.begin_case("doorbell behind enable");
    for (int gap = 0; gap <= 6; gap++) begin
      bench.host.configure;
      bench.host.make_decode(1, 5, 0, desc);
      bench.host.put(desc);
      bench.host.u_score.published = bench.host.sq_tail;
      bench.u_registers.write_two(REG_CONTROL, CONTROL_ENABLE, REG_DOORBELL, bench.host.sq_tail, gap);
      bench.host.await_completions(1, 3000);
      bench.host.end_case;
    end
  endtask

  initial begin
    @(posedge bench.rst_n);
    @(posedge bench.clk);
    for (int round = 0; round < 2; round++) begin
      if (round == 1) bench.random_memory;
      case_withheld_response(0);
      case_withheld_response(16);
      case_device_reset;
      case_enable_while_draining;
      case_doorbell_behind_enable;
    end
    finish_bench("rl_runtime_top_bus_tb");
  end
endmodule
