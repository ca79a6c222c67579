// R8's bound: what a STOP ends, it ends whatever is queued before it. From the read of its slot on, a DECODE of the
// rollout that runs has Bound cycles and the wait states of one token; one that has not started adds one token at most.
// What comes behind the STOP, and what a malformed one or one with FENCE names, is left alone. The same for a STOP of a group,
// whatever the rollouts, and for ABORT, from the write of its register on.
module rl_runtime_top_stop_tb;
  import bench_pkg::*;
  import bench_reference_pkg::*;
  import desc_pkg::*;

  localparam int Bound = 5;             // cycles from the R beat to the last token
  localparam int AbortBound = 3;        // cycles from the write of ABORT to the last token
  localparam int Long  = 700;

  top_bench #(.Workers(4)) bench ();

  hw_desc_t desc;

  // Cycle in which the slot with this index was read, and of the first end of a descriptor from then on.
  logic [31:0] watched;
  int          read_at = -1, end_at = -1, aborted_at = -1;
  always @(posedge bench.clk) begin
    if (read_at >= 0 && end_at < 0 && bench.u_device.ended != 0) end_at = bench.cycle;
    if (bench.u_device.abort) begin
      aborted_at = bench.cycle;
      end_at     = -1;
    end
    if (bench.u_device.slot_valid && bench.u_device.slot_index == watched && read_at < 0) read_at = bench.cycle;
  end

  task automatic put_stop(input logic [31:0] rollout_id);
    watched = bench.host.sq_tail;
    read_at = -1;
    end_at  = -1;
    bench.host.put(bench.host.blank(OP_STOP, rollout_id));
  endtask

  // Reads all that is out; of DECODEs with these rollouts, 64 bits from 'base' on, none adds more than 'most' tokens.
  task automatic drain(input logic [31:0] base, input logic [63:0] rollouts, input int most);
    int added;
    while (bench.host.outstanding() != 0) begin
      bench.host.await_completions(1, 20000);
      added = bench.host.last_done.final_seq_len - bench.host.last_desc.seq_len;
      if (bench.host.last_desc.opcode == OP_DECODE && bench.host.last_index < watched
          && bench.host.last_desc.rollout_id - base < 64 && rollouts[bench.host.last_desc.rollout_id - base]) begin
        if (bench.host.last_done.status != STATUS_STOPPED) fail($sformatf("R8: descriptor %0d is not stopped", bench.host.last_index));
        if (added > most) fail($sformatf("R8: descriptor %0d adds %0d tokens", bench.host.last_index, added));
      end else if (bench.host.last_desc.opcode == OP_DECODE && bench.host.last_done.status != STATUS_DONE)
        fail($sformatf("R8: descriptor %0d is stopped by no STOP of its own", bench.host.last_index));
    end
    bench.host.expect_all_done;
    bench.host.disable_device;
    bench.host.check_counters;
  endtask

  // All workers run: rollouts 0 to 3, then what the caller puts.
  task automatic busy(input int waits);
    bench.host.wait_states = waits;
    bench.host.enable;
    for (int k = 0; k < 4; k++) bench.host.put_decode(k, Long / (1 + waits));
    bench.host.ring;
    waits_for = "the bench waits for four busy workers";
    while (bench.u_device.free != 0) @(posedge bench.clk);
    repeat (40) @(posedge bench.clk);
  endtask

  task automatic expect_bound(input int waits);
    waits_for = "the bench waits for the end of what was stopped";
    for (int k = 0; end_at < 0 && k < 2 * Long; k++) @(posedge bench.clk);
    if (end_at < 0) fail("R8: nothing ends");
    else if (end_at - read_at > Bound + waits)
      fail($sformatf("R8: %0d cycles from the STOP's slot to the last token, at most %0d", end_at - read_at, Bound + waits));
  endtask

  // Behind a DECODE that finds no worker.
  task automatic case_behind_others(input int waits);
    bench.host.begin_case("behind others");
    busy(waits);
    bench.host.put_decode(9, 20);
    put_stop(2);
    bench.host.ring;
    expect_bound(waits);
    drain(2, 64'h1, 200);
  endtask

  task automatic case_behind_a_fence;
    bench.host.begin_case("behind a fence");
    busy(0);
    desc       = bench.host.blank(OP_NOP, 50);
    desc.flags = FLAG_FENCE;
    bench.host.put(desc);
    bench.host.put_decode(1, 30);
    put_stop(1);
    bench.host.put_decode(1, 40);                  // the id anew: runs to its end
    bench.host.ring;
    expect_bound(0);
    drain(1, 64'h1, 200);
  endtask

  // Running, at the worker's queue, and waiting for room there.
  task automatic case_behind_its_own;
    int k;
    bench.host.begin_case("behind its own");
    busy(0);
    for (k = 0; k < 5; k++) bench.host.put_decode(3, 400);
    put_stop(3);
    bench.host.put_decode(3, 25);
    bench.host.ring;
    expect_bound(0);
    drain(3, 64'h1, 200);
  endtask

  // Two members of a group run, of other rollouts than the STOP's; the third DECODE runs on, and so does one whose prefix
  // names the group without COW_PREFIX.
  task automatic case_group(input int waits);
    int short_ones;
    bench.host.begin_case("a group");
    bench.host.wait_states = waits;
    bench.host.enable;
    for (int k = 0; k < 4; k++) begin
      bench.host.make_decode(k, Long / (1 + waits), 0, desc);
      desc.prefix_id = 77;
      desc.member    = k;
      desc.flags     = (k < 2) ? FLAG_COW_PREFIX : 8'h00;
      bench.host.put(desc);
    end
    bench.host.ring;
    waits_for = "the bench waits for four busy workers";
    while (bench.u_device.free != 0) @(posedge bench.clk);
    repeat (40) @(posedge bench.clk);
    bench.host.put_decode(9, 20);
    watched = bench.host.sq_tail;
    read_at = -1;
    end_at  = -1;
    desc           = bench.host.blank(OP_STOP, 50);
    desc.flags     = FLAG_COW_PREFIX;
    desc.prefix_id = 77;
    desc.member    = MEMBER_NONE;
    bench.host.put(desc);
    bench.host.ring;
    expect_bound(waits);
    short_ones = 0;
    while (bench.host.outstanding() != 0) begin
      bench.host.await_completions(1, 20000);
      if (bench.host.last_desc.opcode == OP_DECODE && bench.host.last_done.status == STATUS_STOPPED) begin
        short_ones = short_ones + 1;
        if (bench.host.last_desc.rollout_id >= 2) fail("R8: a STOP of a group ends what is not of it");
      end
    end
    expect_eq("R8: members that a STOP of their group ended", short_ones, 2);
    bench.host.end_case;
  endtask

  task automatic case_abort(input int waits);
    int short_ones;
    bench.host.begin_case("ABORT");
    busy(waits);
    bench.host.put_decode(2, 20);                  // waits for room there
    bench.host.put_decode(9, 20);
    bench.host.ring;
    repeat (60) @(posedge bench.clk);
    bench.host.u_score.abort(2);
    bench.u_registers.write(REG_ABORT, 2);
    waits_for = "the bench waits for the end of what was aborted";
    for (int k = 0; end_at < 0 && k < 2 * Long; k++) @(posedge bench.clk);
    if (end_at < 0) fail("R8: nothing ends");
    else if (end_at - aborted_at > AbortBound + waits)
      fail($sformatf("R8: %0d cycles from ABORT to the last token, at most %0d", end_at - aborted_at, AbortBound + waits));
    short_ones = 0;
    while (bench.host.outstanding() != 0) begin
      bench.host.await_completions(1, 20000);
      if (bench.host.last_done.status == STATUS_STOPPED) begin
        short_ones = short_ones + 1;
        if (bench.host.last_desc.rollout_id != 2) fail("R8: an ABORT ends another rollout");
      end
    end
    expect_eq("R8: DECODEs that an ABORT ended", short_ones, 2);
    bench.host.end_case;
  endtask

  // One doorbell, so that nothing has started when the STOPs are read; more of them than are looked up in a cycle.
  task automatic case_many(input int rollouts);
    bench.host.begin_case("many");
    busy(0);
    for (int k = 0; k < rollouts; k++) bench.host.put_decode(100 + k, 300);
    for (int k = rollouts - 1; k >= 0; k--) put_stop(100 + k);
    for (int k = 0; k < 4; k++) bench.host.put_decode(100 + k, 10 + k);
    bench.host.put_decode(200, 21);
    bench.host.ring;
    drain(100, '1, 0);
  endtask

  task automatic case_no_effect;
    bench.host.begin_case("no effect");
    busy(0);
    desc = bench.host.blank(OP_STOP, 0); desc.flags = 8'h80;      bench.host.put(desc);
    desc = bench.host.blank(OP_STOP, 1); desc.flags = FLAG_FENCE; bench.host.put(desc);
    bench.host.put_slot(bench.host.seal(bench.host.blank(OP_STOP, 2)) ^ (512'd1 << 500));
    bench.host.put_decode(0, 10);
    bench.host.put_decode(1, 10);
    put_stop(77);
    bench.host.ring;
    drain(77, 64'h1, 0);
  endtask

  initial begin
    @(posedge bench.rst_n);
    @(posedge bench.clk);
    for (int round = 0; round < 2; round++) begin
      if (round == 1) begin
        bench.u_memory.read_latency = between(1, 40);
        bench.u_memory.stall_r      = between(1, 60);
      end
      case_behind_others(0);
      case_behind_others(1);
      case_behind_others(7);
      case_behind_a_fence;
      case_group(0);
      case_group(3);
      case_abort(0);
      case_abort(3);
      case_behind_its_own;
      case_many(between(1, 8));
      case_many(between(9, 24));
      case_no_effect;
    end
    finish_bench("rl_runtime_top_stop_tb");
  end
endmodule
