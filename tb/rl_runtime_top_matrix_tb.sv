// The matrix of isolation (R28) with two queue pairs and two functions: for each thing that functions share, and each thing that may happen to it, what
// the other function loses. Workers of their own in all cells, shared ones in some. Of each thing one cell, drawn so that each thing that may happen is among
// them, and some that are always there; all with +long.
//   +only=N   one cell: ten times the thing, and the action
//   +k=N      cycles within which AW, W and AR are taken; 1 when not given, and with +long 1 to 4
//   +show     what was lost in each cell; +survey: errors do not end the bench
module rl_runtime_top_matrix_tb;
  import bench_pkg::*;
  import desc_pkg::*;
  tenants #(.Queues(2), .Functions(2), .Workers(4), .Limit(20_000_000)) bench ();

  int only, first, k;

  task automatic all_cells(input int times);
    for (int thing = 0; thing < bench.Things; thing++)
      for (int action = 0; action < bench.Actions; action++)
        if (only >= 0 ? only == thing * 10 + action : (drawn(0, 1) == 1 || action == (first + thing) % bench.Actions
            || (thing == bench.Completions && action == bench.Withheld) || (thing == bench.Events && action == bench.Flooded)))
          bench.cell_of(thing, action, 16'b01, k, times);
  endtask

  // Shared workers: what ends by itself, and behind BUS_TIMEOUT (R24) what never does.
  task automatic shared_cells(input int count);
    int thing, action;
    bench.shares = 1'b1;
    bench.give(0, 0, 16'b1111);
    bench.give(1, 1, 16'b1111);
    bench.set_timeout(between(500, 3000));
    repeat ((count + 2) / 2) begin
      thing = below(bench.Things);
      bench.cell_of(thing, bench.Withheld, 16'b01, 1, 20);
    end
    repeat (count) begin
      thing  = below(bench.Things);
      action = between(bench.Erroneous, bench.Reassigned);
      bench.cell_of(thing, action, 16'b01, 1, 20);
    end
    // REWARDs that are longer than any bound, more of them than the device has records: they hold no worker.
    bench.cell_of(bench.Readback, bench.Flooded, 16'b01, 1, 20);
  endtask

  initial begin
    bench.begin_bench;
    if (!$value$plusargs("only=%d", only)) only = -1;
    if (!$value$plusargs("k=%d", k)) k = drawn(1, between(1, 4));
    first = below(bench.Actions);
    bench.give(0, 0, 16'b0011);
    bench.give(1, 1, 16'b1100);
    bench.workers_of_attack = 16'b0011;
    bench.begin_victim;
    bench.measure_alone(1);
    bench.measure_alone(2);
    if (k > 2) bench.measure_alone(k);
    bench.end_victim;
    all_cells(drawn(8, 50));
    if (only < 0) shared_cells(drawn(3, 12));
    finish_bench("rl_runtime_top_matrix_tb");
  end
endmodule
