// Directed cases of the whole device against its buses: write responses that are withheld.
module rl_runtime_top_bus_tb;
  import bench_pkg::*;
  import desc_pkg::*;

  top_bench #(.Workers(4)) bench ();

  hw_desc_t desc;

  task automatic begin_case(input string name);
    $display("case %0s", name);
    bench.default_config;
  endtask

  task automatic end_case;
    bench.release_seen;
    bench.expect_all_done;
    bench.disable_device;
    bench.check_counters;
  endtask

  // Reads what is there, and gives it back.
  task automatic read_all(inout int seen);
    logic got;
    bench.poll(got);
    while (got) begin
      seen = seen + 1;
      bench.poll(got);
    end
    bench.release_seen;
  endtask

  // One worker's write responses are withheld: its completions wait, and those of no other.
  task automatic case_withheld_response(input int held, input logic one_rollout_each);
    int seen, total, queued, e;
    begin_case("withheld response");
    bench.cq_size = 16;
    bench.enable;
    bench.u_memory.hold_id = held;
    seen  = 0;
    total = 0;
    repeat (250) begin
      while (bench.sq_space() > 0 && total < 400) begin
        bench.make_decode(one_rollout_each ? total : below(12), between(1, 6), 0, desc);
        bench.put(desc);
        total = total + 1;
      end
      bench.ring;
      read_all(seen);
      repeat (20) @(posedge bench.clk);
    end
    if (one_rollout_each) begin
      // What the held worker has not begun is queued in it: two, and the one that it runs.
      queued = 0;
      for (int k = 0; k < total; k++) begin
        e = bench.u_score.entry(k);
        if (!bench.u_score.visible[e] && !(bench.u_score.wrote[e] && bench.u_score.writer[e] == held)) queued = queued + 1;
      end
      if (queued > 5) fail($sformatf("%0d descriptors wait for a response to worker %0d", queued, held));
      if (seen < 250) fail($sformatf("%0d of %0d completions are visible", seen, total));
    end
    $display("worker %0d held: %0d of %0d completions visible", held, seen, total);
    // R7: a fence waits for all of them.
    desc       = bench.blank(OP_NOP, 77777);
    desc.flags = FLAG_FENCE;
    while (bench.sq_space() == 0) begin
      bench.u_memory.hold_id = -1;
      read_all(seen);
      @(posedge bench.clk);
    end
    bench.put(desc);
    bench.ring;
    repeat (200) @(posedge bench.clk);
    bench.u_memory.hold_id = -1;
    bench.await_completions(total + 1 - seen, 5000);
    end_case;
  endtask

  initial begin
    @(posedge bench.rst_n);
    @(posedge bench.clk);
    for (int round = 0; round < 2; round++) begin
      if (round == 1) bench.random_memory;
      case_withheld_response(below(4), 1'b1);
      case_withheld_response(below(4), 1'b0);
    end
    finish_bench("rl_runtime_top_bus_tb");
  end
endmodule
