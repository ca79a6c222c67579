// Deaths of queue pairs (R24) in the whole device. Four queue pairs of three functions share two workers. Answers of function 0 are withheld, of
// each kind of access in turn, for longer than BUS_TIMEOUT. Its queue pair dies, and neither of the others does: the victim's descriptors lose at
// most BUS_TIMEOUT + M (R28). What comes late is dropped, behind the death or behind a disable or a reset of the function. ACTIVE falls
// when all has come (R12), and the next life is as good as new.
//   +only=N   one kind of access
//   +show     what was lost
module rl_runtime_top_watchdog_tb;
  import bench_pkg::*;
  import desc_pkg::*;
  localparam int Queues = 4;
  tenants #(.Queues(Queues), .Functions(3), .Workers(2), .Limit(4_000_000)) bench ();

  localparam int Kinds = 7;             // a REWARD reads back, and a POLICY
  int   only, worst = 0, deaths = 0;
  logic [31:0] value;
  logic ok, dead_now;

  function automatic string name_of(input int kind);
    case (kind)
      0:       name_of = "descriptors";
      1:       name_of = "what a REWARD reads";
      2:       name_of = "token lines";
      3:       name_of = "completions";
      4:       name_of = "events";
      5:       name_of = "messages";
      default: name_of = "what a POLICY reads";
    endcase
  endfunction

  function automatic int access_of(input int kind);
    access_of = (kind == 6) ? bench.ReadBack : kind;
  endfunction

  function automatic int load_for(input int kind);
    case (kind)
      1:       load_for = bench.Readback;
      2:       load_for = bench.Lines;
      5:       load_for = bench.Messages;
      6:       load_for = bench.Publishes;
      default: load_for = bench.Completions;
    endcase
  endfunction

  task automatic get(input logic [17:0] addr, input int q);
    bench.u_registers.read(bench.own(addr, q), value);
  endtask

  task automatic start(input int q);
    bench.u_registers.write(bench.fq(REG_CONTROL, q), CONTROL_ENABLE);
  endtask

  // What lies in function 0's accesses may not be written once ACTIVE has fallen.
  logic over = 1'b0;
  always @(posedge bench.clk) if (bench.rst_n && over) begin
    if (bench.m_axi_awvalid && bench.m_axi_awuser == 0) fail("R12: function 0 writes while none of its queue pairs is active");
    if (bench.m_axi_arvalid && bench.m_axi_aruser == 0) fail("R12: function 0 reads while none of its queue pairs is active");
  end

  // While an answer is given, the bus may show a beat of somebody else.
  logic stored = 1'b0;
  int   stored_at = 0;
  always @(posedge bench.clk) begin
    if (stored && bench.u_device.u_readback.data_mem[stored_at] != '0) fail("R24: data of the bus is kept with an answer that is given");
    stored    <= bench.rst_n && bench.u_device.u_readback.beat_i && bench.u_device.r_given;
    stored_at <= {bench.u_device.u_readback.beat_pair, bench.u_device.u_readback.put_q[bench.u_device.u_readback.beat_pair]};
  end

  int  bound, lost, took, number = 0;
  // The victim does what there is to do.
  task automatic go_on(input int count);
    int what;
    repeat (count) if (errors == 0) begin
      what   = number % 4;
      number = number + 1;
      bound  = bench.bound_of(what);
      bench.run_one(what, bench.alone[1][what] + 2 * bound + 200, took);
      lost = took - bench.alone[1][what];
      if (lost > bound) fail($sformatf("R28: a descriptor of kind %0d lost %0d cycles, bound %0d", what, lost, bound));
      if (100 * lost / bound > worst) worst = 100 * lost / bound;
    end
  endtask

  // Registers of a dead queue pair.
  task automatic expect_dead(input int q, input string what);
    get(REG_STATE, q);
    if ((value & (STATE_ACTIVE | STATE_DEAD | STATE_FAULT)) != (STATE_ACTIVE | STATE_DEAD | STATE_FAULT)) fail($sformatf("R24: %0s: STATE of a dead queue pair is %h", what, value));
    get(REG_ERROR, q);
    if (value != FAULT_BUS_TIMEOUT) fail($sformatf("R24: %0s: ERROR of a dead queue pair is %h", what, value));
    bench.u_registers.try_write(bench.own(REG_DOORBELL, q), 60001, ok);
    if (ok) fail($sformatf("R24: %0s: a dead queue pair takes a doorbell", what));
  endtask

  // How it ends: 0: the answers come, and a disable behind them; 1: a disable, and then the answers; 2: likewise with a reset of the function;
  // 3: it dies while it drains; 4: the answers come before it dies. Late answers may be errors.
  task automatic case_of(input int kind, input int ending, input int cycles, input int tail);
    int   from, faults, done, lives;
    string what;
    what = {name_of(kind), " withheld"};
    bench.waits_for = what;
    bench.set_timeout(cycles);
    bench.shares  = 1'b1;
    bench.deaths  = 1;
    bench.others  = 2;
    bench.their_workers = 2;
    bench.weights = 2;
    bench.thing   = load_for(kind);
    over = 1'b0;
    bench.load_of[0] = load_for(kind);
    bench.load_of[2] = bench.Lines;
    start(0);
    start(2);
    bench.begin_victim;
    faults = bench.fault_count[0];
    bench.hold[access_of(kind)] = 1'b1;
    bench.u_registers.write(bench.own(REG_DOORBELL, 0), tail);
    if (kind == 5) bench.u_registers.write(bench.own(REG_ARM, 0), 0);
    bench.u_registers.write(bench.own(REG_DOORBELL, 2), 60000);
    from = bench.cycle;
    if (ending == 4) begin
      repeat (cycles / 4) @(posedge bench.clk);
      bench.hold = '0;
      go_on(2 + cycles / 200);
      get(REG_STATE, 0);
      if ((value & STATE_DEAD) != 0) fail($sformatf("R24: %0s: it is dead before BUS_TIMEOUT", what));
    end else begin
      if (ending == 3) begin
        repeat (60) @(posedge bench.clk);
        bench.u_registers.write(bench.fq(REG_CONTROL, 0), 0);
      end
      dead_now = 1'b0;
      while (!dead_now && errors == 0) begin
        go_on(1);
        get(REG_STATE, 0);
        dead_now = (value & STATE_DEAD) != 0;
        if (!dead_now && bench.cycle - from > 4 * (cycles + 2000)) fail($sformatf("R24: %0s: it is not dead after %0d cycles, STATE %h", what, bench.cycle - from, value));
      end
      if (dead_now && bench.cycle - from < cycles) fail($sformatf("R24: %0s: it is dead after %0d cycles", what, bench.cycle - from));
      deaths = deaths + 1;
      expect_dead(0, what);
      go_on(1);
      // Nobody waits any more.
      bench.deaths = 0;
      go_on(12);
      if (kind == 4) begin
        // Another queue pair of the function, whose events nobody writes any more, lives.
        bench.load_of[1] = bench.Completions;
        done = bench.done_count[1];
        start(1);
        bench.u_registers.write(bench.own(REG_DOORBELL, 1), 100);
        from = bench.cycle;
        while (bench.done_count[1] - done < 100 && bench.cycle - from < 5000) go_on(1);
        go_on(4);
        get(REG_STATE, 1);
        if (bench.done_count[1] - done != 100 || (value & (STATE_ACTIVE | STATE_DEAD | STATE_FAULT)) != STATE_ACTIVE)
          fail($sformatf("R24: %0s: %0d of 100 descriptors of another queue pair complete, STATE %h", what, bench.done_count[1] - done, value));
        bench.u_registers.write(bench.fq(REG_CONTROL, 1), 0);
        bench.await_inactive(1);
      end
      if (kind == 5) begin
        bench.u_registers.read(REG_MESSAGE_CONTROL, value);
        if ((value & MESSAGE_CONTROL_SENDING) == 0) fail($sformatf("R14: %0s: SENDING is 0, and the bus owes the answer of a message", what));
      end
      if (access_of(kind) != bench.WriteEvent && ending != 3 && bench.fault_count[0] - faults != 1)
        fail($sformatf("R23: %0s: %0d FAULT events of a death", what, bench.fault_count[0] - faults));
      if (ending == 0) begin
        if (chance(50)) bench.bad[access_of(kind)] = 100;
        bench.hold = '0;
        go_on(16);
        expect_dead(0, what);
        if (chance(50)) bench.u_registers.write(bench.own(REG_CQ_HEAD, 0), 0);     // what was released is released
        bench.u_registers.write(bench.fq(REG_CONTROL, 0), 0);
      end else begin
        if (ending == 1) bench.u_registers.write(bench.fq(REG_CONTROL, 0), 0);
        if (ending == 2) bench.u_registers.write(REG_FN_CONTROL + BLOCK_FUNCTION_PER_FUNCTION * 0, FN_CONTROL_RESET);
        go_on(8);
        expect_dead(0, what);
        bench.u_registers.try_write(bench.fq(REG_CONTROL, 0), CONTROL_ENABLE, ok);
        if (ok) fail($sformatf("R12: %0s: ENABLE is taken while the bus owes answers", what));
        if (chance(50)) bench.bad[access_of(kind)] = 100;
        bench.hold = '0;
      end
    end
    // The neighbour and the victim are well.
    get(REG_STATE, 2);
    if ((value & (STATE_ACTIVE | STATE_DEAD | STATE_FAULT)) != STATE_ACTIVE) fail($sformatf("R24: %0s: STATE of another queue pair is %h", what, value));
    get(REG_ERROR, 3);
    if (value != 0) fail($sformatf("R24: %0s: ERROR of the victim is %h", what, value));
    if (bench.error_count != 0) fail($sformatf("R24: %0s: the victim has %0d errors", what, bench.error_count));
    bench.u_registers.write(bench.fq(REG_CONTROL, 2), 0);
    bench.await_inactive(2);
    bench.end_victim;
    if (ending == 4) bench.u_registers.write(bench.fq(REG_CONTROL, 0), 0);
    bench.await_inactive(0);
    over = 1'b1;
    if (bench.owed != 0 || bench.r_some != '0) fail($sformatf("R12: %0s: ACTIVE fell with %0d write responses owed, and data of IDs %b", what, bench.owed, bench.r_some));
    for (int a = 0; a < 96; a++) bench.bad[a] = 0;
    repeat (50) @(posedge bench.clk);
    get(REG_STATE, 0);
    if ((value & (STATE_ACTIVE | STATE_DEAD)) != 0) fail($sformatf("R24: %0s: STATE is %h after the end", what, value));
    get(REG_ERROR, 0);
    if (value != (ending == 4 ? 0 : FAULT_BUS_TIMEOUT)) fail($sformatf("R24: %0s: ERROR is %h after the end", what, value));
    bench.u_registers.write(bench.own(REG_ERROR, 0), '1);
    // As good as new.
    over = 1'b0;
    bench.load_of[0] = bench.Lines;
    done = bench.done_count[0];
    start(0);
    bench.u_registers.write(bench.own(REG_DOORBELL, 0), 20);
    from = bench.cycle;
    while (bench.done_count[0] - done < 20 && bench.cycle - from < 5000) @(posedge bench.clk);
    if (bench.done_count[0] - done != 20) fail($sformatf("R24: %0s: %0d of 20 descriptors complete in the next life", what, bench.done_count[0] - done));
    get(REG_ERROR, 0);
    if (value != 0) fail($sformatf("R24: %0s: ERROR is %h in the next life", what, value));
    bench.u_registers.write(bench.fq(REG_CONTROL, 0), 0);
    bench.await_inactive(0);
    if ($test$plusargs("show")) $display("%0s, ending %0d, timeout %0d, tail %0d: worst %0d percent of the bound", what, ending, cycles, tail, worst);
    worst = 0;
  endtask

  initial begin
    bench.begin_bench;
    if (!$value$plusargs("only=%d", only)) only = -1;
    for (int q = 0; q < 3; q++) bench.give(q, q == 2 ? 1 : 0, 16'b11);
    bench.give(3, 2, 16'b11);
    bench.begin_victim;
    bench.measure_alone(1);
    bench.end_victim;
    // The workers are full of what waits for answers.
    if (only < 0) begin
      case_of(2, 1, 800, 1500);
      case_of(3, 0, 800, 1500);
    end
    for (int kind = 0; kind < Kinds; kind++) if (only < 0 || only == kind) begin
      for (int ending = 0; ending < 5; ending++) begin
        if (drawn(0, 1) == 1 || only >= 0 || chance(20)) case_of(kind, ending, between(300, 1500), chance(30) ? between(1, 4) : between(5, 2000));
      end
    end
    if (deaths == 0) fail("nobody died");
    finish_bench("rl_runtime_top_watchdog_tb");
  end
endmodule
