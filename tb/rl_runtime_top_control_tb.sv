// Directed cases of the registers of the whole device in places where its life is short: IDLE in every cycle of a
// descriptor's way, doorbells that are refused while active and while not, fills of 256, each bit of the workers' state, a
// disable while each channel stalls (R12), every kind of address. No case draws on chance where it matters, so what fails
// here fails at every seed.
module rl_runtime_top_control_tb;
  import bench_pkg::*;
  import desc_pkg::*;

  top_bench #(.Workers(4)) bench ();

  hw_desc_t desc;

  // ---------------------------------------------------------------- frame of a case
  task automatic calm_memory;
    bench.u_memory.read_latency  = 0;
    bench.u_memory.write_latency = 0;
    bench.u_memory.stall_ar      = 0;
    bench.u_memory.stall_r       = 0;
    bench.u_memory.stall_aw      = 0;
    bench.u_memory.stall_w       = 0;
    bench.u_memory.stall_b       = 0;
  endtask

  task automatic begin_case(input string name);
    bench.host.begin_case(name);
    calm_memory;
  endtask

  task automatic end_case;
    bench.host.end_case;
    calm_memory;
  endtask

  task automatic expect_refused_count(input int expected);
    logic [31:0] status;
    bench.u_registers.read(REG_STATUS, status);
    expect_eq("STATUS: refused doorbells", status[7:0], expected);
  endtask

  // ---------------------------------------------------------------- STATE.IDLE
  // IDLE, read at this moment, is 0 unless every published descriptor has a visible completion.
  task automatic expect_not_early(input string what);
    logic [31:0] state_now;
    bench.u_registers.read(REG_STATE, state_now);
    if (state_now[STATE_IDLE_BIT] && bench.host.u_score.cq_visible - bench.host.cq_start != bench.host.sq_tail - bench.host.sq_start)
      fail($sformatf("STATE.IDLE while %0s: %0d published, %0d completions visible", what,
                     bench.host.sq_tail - bench.host.sq_start, bench.host.u_score.cq_visible - bench.host.cq_start));
  endtask

  // One descriptor at a time, and a look at IDLE so many cycles behind its doorbell: from its read over check and dispatch to
  // its completion every cycle of a NOP gets its look; a DECODE's worker and token lines, of many cycles, every fourth.
  task automatic case_idle_is_never_early;
    begin_case("IDLE is never early");
    bench.u_memory.read_latency  = 20;
    bench.u_memory.write_latency = 20;
    bench.host.enable;
    for (int kind = 0; kind < 2; kind++) for (int behind = 0; behind < (kind ? 110 : 75); behind += kind ? 4 : 1) begin
      if (kind == 0) bench.host.put(bench.host.blank(OP_NOP, 1));
      else           bench.host.put_decode(1, 20);
      bench.host.ring;
      repeat (behind) @(posedge bench.clk);
      expect_not_early($sformatf("%0d cycles behind a doorbell", behind));
      bench.host.await_completions(1, 3000);
      bench.host.await_state(STATE_IDLE, STATE_IDLE, "STATE.IDLE");
    end
    end_case;
    // A completion that waits for a slot, and one whose tokens are not acknowledged.
    bench.host.cq_size = 2;
    bench.u_memory.write_latency = 200;
    bench.host.enable;
    for (int k = 0; k < 4; k++) bench.host.put_decode(k, 20);
    bench.host.ring;
    repeat (250) begin
      expect_not_early("tokens are on their way, then the completion queue is full");
      @(posedge bench.clk);
    end
    bench.u_registers.expect_read(REG_STATE, STATE_ACTIVE);
    bench.host.await_completions(4, 3000);
    end_case;
  endtask

  // ---------------------------------------------------------------- doorbells that are refused, while active and not
  task automatic case_refused_doorbells;
    begin_case("refused doorbells");
    bench.host.sq_size = 8;
    bench.host.cq_size = 8;
    bench.host.enable;
    expect_refused_count(0);
    bench.u_registers.refuse(REG_DOORBELL, 9);                  // more than the ring has
    bench.u_registers.refuse(REG_DOORBELL, 32'hFFFF_FFFF);      // backwards
    bench.u_registers.refuse(REG_CQ_HEAD, 1);                   // more than was written
    bench.u_registers.refuse(REG_CQ_HEAD, 32'hFFFF_FFFF);
    expect_refused_count(4);
    // An ENABLE of what is enabled starts nothing, and clears nothing.
    bench.u_registers.write(REG_CONTROL, CONTROL_ENABLE);
    expect_refused_count(4);
    repeat (3) bench.host.put(bench.host.blank(OP_NOP, 1));
    bench.host.ring;
    repeat (3) bench.host.await_completion(3000);                    // and none is released
    bench.u_memory.write_latency = 400;
    bench.host.put_decode(1, 16);
    bench.host.ring;
    waits_for = "refused doorbells: a write in flight";
    while (bench.u_memory.pending == 0) @(posedge bench.clk);

    // A disable that drains is inactive already, whatever STATE says.
    bench.u_registers.write(REG_CONTROL, 0);
    bench.u_registers.refuse(REG_CQ_HEAD, 0);
    bench.u_registers.refuse(REG_CQ_HEAD, 3);
    bench.u_registers.refuse(REG_DOORBELL, 4);
    bench.u_registers.expect_read(REG_STATE, STATE_ACTIVE | STATE_IDLE);
    expect_refused_count(7);
    bench.host.disable_device;

    // R12: both queues are empty. Nothing is taken while inactive, not even the index that is there.
    bench.u_registers.expect_read(REG_STATUS, 7);
    bench.u_registers.expect_read(REG_CQ_HEAD, 3);
    bench.u_registers.refuse(REG_CQ_HEAD, 3);
    expect_refused_count(8);
    bench.u_registers.refuse(REG_CQ_HEAD, 2);
    bench.u_registers.refuse(REG_CQ_HEAD, 4);
    bench.u_registers.expect_read(REG_CQ_HEAD, 3);
    bench.u_registers.refuse(REG_DOORBELL, 4);
    bench.u_registers.expect_read(REG_DOORBELL, 4);
    expect_refused_count(11);

    // An ENABLE that is refused keeps the count; one that succeeds clears it.
    bench.u_registers.write(REG_CQ_SIZE, 3);
    bench.u_registers.write(REG_CONTROL, CONTROL_ENABLE);
    bench.u_registers.expect_read(REG_ERROR, FAULT_BAD_CONFIG);
    expect_refused_count(11);
    bench.u_registers.write(REG_ERROR, '1);
    repeat (243) bench.u_registers.refuse(REG_DOORBELL, 5);
    expect_refused_count(254);
    bench.u_registers.refuse(REG_CQ_HEAD, 9);
    expect_refused_count(255);
    repeat (3) bench.u_registers.refuse(REG_DOORBELL, 5);
    expect_refused_count(255);
    bench.u_memory.write_latency = 0;
    bench.host.enable;
    bench.u_registers.expect_read(REG_STATUS, 0);
    bench.host.put_decode(1, 16);
    bench.host.ring;
    bench.host.await_completions(1, 3000);
    end_case;
    bench.reset;
    bench.u_registers.expect_read(REG_STATUS, 0);
    bench.u_registers.refuse(REG_CQ_HEAD, 0);                   // never enabled
    bench.u_registers.refuse(REG_DOORBELL, 0);
    expect_refused_count(2);
  endtask

  // ---------------------------------------------------------------- STATUS
  task automatic expect_fill(input int sq, input int cq);
    logic [31:0] status;
    bench.u_registers.read(REG_STATUS, status);
    expect_eq($sformatf("STATUS: descriptor ring with %0d", sq), status[23:16], sq > 255 ? 255 : sq);
    expect_eq($sformatf("STATUS: completion ring with %0d", cq), status[15:8], cq > 255 ? 255 : cq);
  endtask

  // The fills saturate: 256 is 255, not 0.
  task automatic case_fills_saturate;
    begin_case("fills saturate");
    bench.host.token_size = 4096;
    bench.host.sq_size    = 512;
    bench.host.cq_size    = 512;
    bench.host.sq_base    = bench.host.Base + 64 * 1001;
    bench.host.cq_base    = bench.host.Base + 64 * 1601;
    bench.host.enable;
    bench.u_memory.stall_ar = 100;              // nothing is read yet
    while (bench.host.sq_tail != 511) begin
      bench.host.put(bench.host.blank(OP_NOP, 1));
      if (bench.host.sq_tail <= 1 || (bench.host.sq_tail >= 254 && bench.host.sq_tail <= 258) || bench.host.sq_tail >= 510) begin
        bench.host.ring;
        expect_fill(bench.host.sq_tail, 0);
      end
    end
    bench.u_memory.stall_ar = 0;
    repeat (511) bench.host.await_completion(3000);
    repeat (20) @(posedge bench.clk);
    expect_fill(0, 511);
    for (int left = 258; left >= 254; left--) begin
      bench.host.u_score.cq_released = 511 - left;
      bench.u_registers.write(REG_CQ_HEAD, 511 - left);
      expect_fill(0, left);
    end
    end_case;
  endtask

  // Each bit of the workers' state.
  task automatic expect_workers(input int busy, input logic held, input logic waits);
    logic [31:0] status;
    bench.u_registers.read(REG_WORKER_STATE, status);
    expect_eq("WORKER_STATE", status, {24'd0, 5'(busy), held, waits, busy != 0});
  endtask

  task automatic case_worker_state;
    begin_case("worker state");
    bench.host.wait_states = 1000;
    bench.host.enable;
    expect_workers(0, 1'b0, 1'b0);
    for (int k = 1; k <= 4; k++) begin
      bench.host.put_decode(k, 2);
      bench.host.ring;
      repeat (40) @(posedge bench.clk);
      expect_workers(k, 1'b0, 1'b1);
    end
    bench.host.await_completions(4, 5000);
    bench.host.await_state(STATE_IDLE, STATE_IDLE, "STATE.IDLE");
    expect_workers(0, 1'b0, 1'b0);
    end_case;
    bench.host.wait_states = 0;
    bench.host.enable;
    bench.host.put_decode(1, 2000);
    bench.host.ring;
    repeat (60) @(posedge bench.clk);
    expect_workers(1, 1'b0, 1'b0);              // runs, and neither waits nor is held
    bench.u_memory.stall_aw = 100;
    repeat (400) @(posedge bench.clk);
    expect_workers(1, 1'b1, 1'b0);              // the write port holds it
    bench.u_memory.stall_aw = 0;
    bench.host.await_completions(1, 5000);
    end_case;
  endtask

  // ---------------------------------------------------------------- R12: a disable while a channel stalls
  // Waits until the device shows something there that the memory does not take, or a response is on its way.
  task automatic await_stalled(input int channel);
    waits_for = $sformatf("the bench waits for traffic on channel %0d", channel);
    case (channel)
      0:       while (!(bench.m_axi_arvalid && !bench.m_axi_arready)) @(posedge bench.clk);
      1:       while (bench.u_memory.reading == 0) @(posedge bench.clk);
      2:       while (!(bench.m_axi_awvalid && !bench.m_axi_awready)) @(posedge bench.clk);
      3:       while (!(bench.m_axi_wvalid && !bench.m_axi_wready)) @(posedge bench.clk);
      default: while (bench.u_memory.pending == 0) @(posedge bench.clk);
    endcase
  endtask

  // What was shown on the bus stays there until it is taken (the protocol monitor watches), ACTIVE falls only when
  // every response is in, and the next start is clean.
  task automatic case_disable_while_stalled;
    begin_case("disable while a channel stalls");
    for (int channel = 0; channel < 5; channel++) for (int later = 0; later < 4; later++) begin
      bench.u_memory.stall_ar = (channel == 0) ? 100 : 0;
      bench.u_memory.stall_r  = (channel == 1) ? 100 : 0;
      bench.u_memory.stall_aw = (channel == 2) ? 100 : 0;
      bench.u_memory.stall_w  = (channel == 3) ? 100 : 0;
      bench.u_memory.stall_b  = (channel == 4) ? 100 : 0;
      bench.host.enable;
      for (int k = 0; k < 20; k++) bench.host.put_decode(k, 20);
      bench.host.ring;
      await_stalled(channel);
      repeat (later) @(posedge bench.clk);
      bench.u_registers.write(REG_CONTROL, 0);
      repeat (100) @(posedge bench.clk);
      bench.u_registers.expect_read(REG_STATE, STATE_ACTIVE | STATE_IDLE);
      calm_memory;
      bench.host.disable_device;
      bench.host.enable;
      bench.host.put_decode(1, 20);
      bench.host.ring;
      bench.host.await_completions(1, 3000);
      end_case;
    end
  endtask

  // ---------------------------------------------------------------- addresses
  // Some of each block, of another function and queue pair, and of pages that nobody has: known ones answer, others say
  // SLVERR and 0. mmio_regs_tb looks at all of them. The short draw takes of the pages that nobody has, and of the offsets
  // within a word, only some.
  task automatic case_addresses;
    logic [31:0] data;
    logic        ok, known, own;
    begin_case("addresses");
    for (int page = 0; page < 64; page++) for (int offset = 0; offset < 64; offset++) begin
      known = page == 0 && offset % 4 == 0 && (offset < 24 || offset == REG_BUS_TIMEOUT);
      known = known || (page == 1 && offset % 4 == 0 && offset < 16);
      known = known || (page == 2 && offset % 4 == 0 && offset % 32 < 24);     // of workers 0 and 1
      known = known || (page == 16 && (offset == 0 || (offset >= 16 && offset < 40 && offset % 4 == 0)));
      known = known || (page == 32 && offset < 36 && offset % 4 == 0);
      own = page <= 2 || page == 16 || page == 32;
      if (drawn(0, 1) == 1 || chance((offset % 4 != 0) ? 6 : own ? 100 : 8)) begin
        bench.u_registers.try_read(18'(page << 12 | offset), data, ok);
        if (ok !== known) fail($sformatf("read of 0x%03h in page %0d: ok is %b", offset, page, ok));
        if (!known && data !== 0) fail($sformatf("read of unknown 0x%03h in page %0d gives %h", offset, page, data));
        if (!known) bench.u_registers.refuse(18'(page << 12 | offset), 32'hFFFF_FFFF);
      end
    end
  endtask

  initial begin
    @(posedge bench.rst_n);
    @(posedge bench.clk);
    case_worker_state;
    case_refused_doorbells;
    case_disable_while_stalled;
    case_fills_saturate;
    case_addresses;
    case_idle_is_never_early;
    finish_bench("rl_runtime_top_control_tb");
  end
endmodule
