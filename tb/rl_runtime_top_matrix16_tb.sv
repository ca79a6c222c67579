// The matrix of isolation (R28) with 16 queue pairs: as many functions, each with a worker of its own, or two, of which one has 15 queue pairs and all workers
// but one; then shared workers. Some cells of each, drawn. The plusargs are those of rl_runtime_top_matrix_tb.
module rl_runtime_top_matrix16_tb;
  import bench_pkg::*;
  tenants #(.Queues(16), .Functions(16), .Workers(16), .Limit(20_000_000)) bench ();

  int k;

  task automatic some_cells(input int count, input logic few);
    int          thing, action;
    logic [15:0] attackers;
    repeat (count) begin
      thing  = below(bench.Things);
      action = below(bench.Actions);
      while (bench.shares && action == bench.Late) begin
        thing  = below(bench.Things);
        action = below(bench.Actions);
      end
      attackers = few ? 16'b1 << below(15) | 16'b1 << below(15) : 16'h7FFF;
      bench.workers_of_attack = few && !bench.shares && bench.owner_of[1] != 0 ? attackers : 16'h7FFF;
      bench.cell_of(thing, action, attackers, k, drawn(6, 40));
    end
  endtask

  initial begin
    bench.begin_bench;
    if (!$value$plusargs("k=%d", k)) k = drawn(1, between(1, 3));
    bench.begin_victim_of(15, 15, 16'h8000);
    bench.measure_alone(k);
    bench.end_victim;
    // Two functions. First the cell in which queue pairs move to the victim's function and back; event_ring_apart_tb has the fault that waits.
    for (int q = 0; q < 15; q++) bench.give(q, 0, 16'h7FFF);
    bench.workers_of_attack = 16'h7FFF;
    bench.cell_of(bench.Completions, bench.Reassigned, 16'h00FF, k, drawn(6, 40));
    // A flood of NOPs: their completions want the write port in every cycle.
    bench.cell_of(bench.Completions, bench.Flooded, 16'h7FFF, k, drawn(3, 40));
    some_cells(drawn(1, 6), 1'b1);
    // As many as there are queue pairs.
    for (int q = 0; q < 15; q++) bench.give(q, q, 16'b1 << q);
    some_cells(drawn(1, 6), chance(50));
    bench.shares = 1'b1;
    for (int q = 0; q < 16; q++) bench.give(q, q, 16'hFFFF);
    bench.set_timeout(between(500, 3000));
    bench.cell_of(below(2) == 0 ? bench.Lines : bench.Completions, bench.Withheld, 16'b1 << below(15), k, drawn(3, 20));
    some_cells(drawn(1, 4), 1'b1);
    finish_bench("rl_runtime_top_matrix16_tb");
  end
endmodule
