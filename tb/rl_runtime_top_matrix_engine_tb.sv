// The matrix of isolation (R28) with engine 1, which has one gang: what its user costs a function with workers of its own, and what two users of it cost
// each other behind BUS_TIMEOUT (R24). No death gives up more than engine 1 had in flight. The plusargs are those of rl_runtime_top_matrix_tb.
module rl_runtime_top_matrix_engine_tb;
  import bench_pkg::*;
  import desc_pkg::*;
  tenants #(.Queues(2), .Functions(2), .Workers(4), .Engines(2), .Limit(20_000_000)) bench ();

  int only, first;

  initial begin
    bench.begin_bench;
    if (!$value$plusargs("only=%d", only)) only = -1;
    first = below(bench.Actions);
    bench.stores = chance(50);
    bench.give(0, 0, 16'b0011);
    bench.give(1, 1, 16'b1100);
    bench.workers_of_attack = 16'b0011;
    bench.begin_victim;
    bench.measure_alone(1);
    bench.measure_language(1);
    bench.end_victim;
    // Reads or stores are withheld, and something else happens.
    for (int action = 0; action < bench.Actions; action++)
      if (only >= 0 ? only == action : drawn(0, 1) == 1 || action == bench.Withheld || action == first)
        bench.cell_of(bench.Engine, action, 16'b01, 1, drawn(4, 50));
    bench.shares = 1'b1;
    bench.give(0, 0, 16'b1111);
    bench.give(1, 1, 16'b1111);
    bench.set_timeout(between(500, 1500));
    if (only < 0 || only == 10) for (int n = 0; n < drawn(2, 12); n++) bench.cell_of(bench.Engine, bench.Withheld, 16'b01, 1, drawn(1, 4));
    if (only < 0 || only > 10)
      for (int n = 0; n < drawn(0, 6); n++) bench.cell_of(bench.Engine, only > 10 ? only - 10 : between(bench.Late + 1, bench.Reassigned), 16'b01, 1, drawn(1, 4));
    if (bench.most_given == 0 && only < 0) fail("R24: no death gave up a line of engine 1");
    finish_bench("rl_runtime_top_matrix_engine_tb");
  end
endmodule
