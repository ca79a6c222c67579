// R14 where a drain, an ARM and a mask meet. An ARM that is accepted while the queue pair drains brings its message, in whatever cycle of
// the drain it comes. A drain tells of its last completion, whether the host coalesces or not. A message that was handed to the bus before
// MASK was written is shown by SENDING, and goes where the table pointed then.
module rl_runtime_top_wake_tb;
  import bench_pkg::*;
  import desc_pkg::*;

  top_bench #(.Workers(2)) bench ();
  hw_desc_t desc;
  int       sent_before;

  // A NOP that asks, or does not.
  task automatic ring_nop(input logic asks);
    desc = bench.host.blank(OP_NOP, 1);
    if (asks) desc.flags = FLAG_INTERRUPT;
    bench.host.put(desc);
    bench.host.ring;
  endtask

  task automatic drain;
    bench.u_registers.write(REG_CONTROL, CONTROL_ENABLE | CONTROL_DRAIN);
  endtask

  task automatic end_of_life;
    bench.host.await_state(STATE_ACTIVE, 0, "STATE.ACTIVE = 0 after a drain");
    bench.host.await_completion(3000);
    bench.host.disable_device;
  endtask

  task automatic expect_messages(input string what, input int n);
    if (bench.host.u_score.messages - sent_before != n)
      fail($sformatf("R14: %0s: %0d messages, expected %0d", what, bench.host.u_score.messages - sent_before, n));
    sent_before = bench.host.u_score.messages;
  endtask

  // ARM in each cycle around the end of a drain: accepted and told, or refused.
  task automatic case_arm_meets_the_end;
    logic ok;
    int   accepted, refused;
    bench.host.begin_case("an ARM meets the end of a drain");
    accepted = 0;
    refused  = 0;
    for (int moment = 0; moment < 60; moment++) begin
      bench.host.enable;
      sent_before = bench.host.u_score.messages;
      ring_nop(1'b1);
      drain;
      repeat (moment) @(posedge bench.clk);
      bench.u_registers.try_write(REG_ARM, 0, ok);
      bench.host.await_state(STATE_ACTIVE, 0, "STATE.ACTIVE = 0 after a drain");
      if (ok) accepted = accepted + 1;
      else    refused  = refused + 1;
      expect_messages($sformatf("ARM %0d cycles behind DRAIN, accepted %b", moment, ok), ok ? 1 : 0);
      end_of_life;
    end
    if (accepted == 0 || refused == 0) fail($sformatf("%0d of 60 were accepted, %0d refused: the end was not met", accepted, refused));
  endtask

  task automatic case_coalesced(input logic [15:0] count, input logic [31:0] ticks);
    bench.host.begin_case($sformatf("a drain with COALESCE_COUNT %0d and COALESCE_TIME %0d", count, ticks));
    bench.host.coalesce_count = count;
    bench.host.coalesce_time  = ticks;
    // Armed at the completion, before it comes, below it, and above it.
    for (int at = -1; at < 2; at++) begin
      bench.host.enable;
      sent_before = bench.host.u_score.messages;
      bench.u_registers.write(REG_ARM, 32'(at));
      ring_nop(1'b0);
      drain;
      bench.host.await_state(STATE_ACTIVE, 0, "STATE.ACTIVE = 0 after a drain");
      expect_messages($sformatf("armed at %0d, one completion, which does not ask", at), at < 1 ? 1 : 0);
      end_of_life;
    end
    // Idle before DRAIN is written.
    bench.host.enable;
    sent_before = bench.host.u_score.messages;
    bench.u_registers.write(REG_ARM, 0);
    ring_nop(1'b0);
    bench.host.await_state(STATE_IDLE, STATE_IDLE, "STATE.IDLE");
    repeat (50) @(posedge bench.clk);
    expect_messages("before DRAIN", 0);
    drain;
    bench.host.await_state(STATE_ACTIVE, 0, "STATE.ACTIVE = 0 after a drain");
    expect_messages("idle when DRAIN comes", 1);
    end_of_life;
    // What is masked is taken back, and holds nothing up.
    bench.host.enable;
    bench.host.set_mask(1'b1);
    sent_before = bench.host.u_score.messages;
    bench.u_registers.write(REG_ARM, 0);
    ring_nop(1'b0);
    drain;
    bench.host.await_state(STATE_ACTIVE, 0, "STATE.ACTIVE = 0 after a drain of a masked vector");
    bench.u_registers.expect_read(REG_MESSAGES_PENDING, 0);
    bench.u_registers.write(REG_MESSAGE_CONTROL, 0);
    repeat (50) @(posedge bench.clk);
    expect_messages("a masked vector", 0);
    end_of_life;
    bench.host.default_config;
  endtask

  // The port stands with a message in it; its vector is masked and moved.
  task automatic case_mask_meets_a_message;
    logic [31:0] control;
    logic [63:0] moved;
    int          tries;
    bench.host.begin_case("a mask meets a message");
    bench.host.enable;
    ring_nop(1'b1);
    bench.host.await_completion(3000);
    bench.u_registers.expect_read(REG_MESSAGE_CONTROL, 0);
    bench.u_memory.stall_aw = 100;
    repeat (12) @(posedge bench.clk);
    sent_before = bench.host.u_score.messages;
    bench.u_registers.write(REG_ARM, 0);
    repeat (10) @(posedge bench.clk);
    bench.host.set_mask(1'b1);
    bench.u_registers.expect_read(REG_MESSAGE_CONTROL, MESSAGE_CONTROL_MASK | MESSAGE_CONTROL_SENDING);
    bench.u_registers.expect_read(REG_MESSAGES_PENDING, 0);
    // SENDING is read-only.
    bench.u_registers.write(REG_MESSAGE_CONTROL, MESSAGE_CONTROL_MASK);
    bench.u_registers.expect_read(REG_MESSAGE_CONTROL, MESSAGE_CONTROL_MASK | MESSAGE_CONTROL_SENDING);
    // What fires meanwhile is pending behind it.
    bench.u_registers.write(REG_ARM, 0);
    repeat (10) @(posedge bench.clk);
    bench.u_registers.expect_read(REG_MESSAGES_PENDING, 1);
    bench.u_memory.hold_id  = 32;
    bench.u_memory.stall_aw = 0;
    repeat (50) @(posedge bench.clk);
    expect_messages("masked too late", 1);
    bench.u_registers.expect_read(REG_MESSAGE_CONTROL, MESSAGE_CONTROL_MASK | MESSAGE_CONTROL_SENDING);
    bench.u_memory.hold_id = -1;
    tries = 0;
    control = '1;
    while ((control & MESSAGE_CONTROL_SENDING) != 0) begin
      bench.u_registers.read(REG_MESSAGE_CONTROL, control);
      tries = tries + 1;
      if (tries == 100) $fatal(1, "hang: MESSAGE_CONTROL.SENDING stays");
    end
    // Nothing comes to the old place any more; the scoreboard holds the next to the new one.
    moved = bench.host.u_score.message_addr ^ 64'h40;
    bench.u_registers.write(REG_MESSAGE_ADDRESS_LO, moved[31:0]);
    bench.host.u_score.message_addr = moved;
    repeat (50) @(posedge bench.clk);
    expect_messages("masked", 0);
    bench.host.set_mask(1'b0);
    repeat (50) @(posedge bench.clk);
    expect_messages("what was pending behind the mask", 1);
    bench.u_registers.expect_read(REG_MESSAGE_CONTROL, 0);
    bench.host.disable_device;
  endtask

  initial begin
    @(posedge bench.rst_n);
    @(posedge bench.clk);
    bench.host.default_config;
    bench.u_memory.write_latency = 40;
    case_arm_meets_the_end;
    bench.u_memory.write_latency = 0;
    case_arm_meets_the_end;
    case_coalesced(16'd0, 32'd0);
    case_coalesced(16'd100, 32'd0);
    case_coalesced(16'd0, 32'd1_000_000);
    case_coalesced(16'd2, 32'd1_000_000);
    case_mask_meets_a_message;
    finish_bench("rl_runtime_top_wake_tb");
  end
endmodule
