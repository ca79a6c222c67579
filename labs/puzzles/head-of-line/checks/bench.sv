// Drives picker with queue pairs that fill up, hosts that sleep and workers that come and go.
module bench;
  import puzzle_pkg::*;

  localparam int Few = 4, Many = 8;
  string header = "cycle | queue pairs 3210: wait  slot | worker | go queue | passed over: 0  1  2  3";
  string turns  = "R16: a queue pair could go when a descriptor of it waits, its completion has a slot and a worker is free. The device takes turns among those that could go.";

  logic clk = 1'b0, rst_n = 1'b0, worker = 1'b0, go;
  logic [Many-1:0] waits = '0, slot = '0, could;
  logic [2:0] queue;
  string path, row;
  // A device with four queue pairs runs first, then one with eight. The other one stays in reset.
  logic is_many = 1'b0;
  int queues = Few;
  logic go_few, go_many;
  logic [1:0] queue_few;
  logic [2:0] queue_many;
  int cycle = 0, gone = 0, all = 0;
  int passed [0:Many-1];                // how often others went while it could have gone
  int went [0:Many-1];

  picker #(.Queues(Few)) u_few (
    .clk_i(clk), .rst_ni(rst_n && !is_many), .waits_i(waits[Few-1:0]), .slot_i(slot[Few-1:0]), .worker_i(worker),
    .go_o(go_few), .queue_o(queue_few)
  );
  picker #(.Queues(Many)) u_many (
    .clk_i(clk), .rst_ni(rst_n && is_many), .waits_i(waits), .slot_i(slot), .worker_i(worker), .go_o(go_many),
    .queue_o(queue_many)
  );
  assign go    = is_many ? go_many : go_few;
  assign queue = is_many ? queue_many : {1'b0, queue_few};

  always #5 clk = ~clk;

  task automatic step(input logic [Many-1:0] wait_now, input logic [Many-1:0] slot_now, input logic worker_now);
    @(negedge clk);
    waits  = is_many ? wait_now : {4'b0000, wait_now[Few-1:0]};
    slot   = is_many ? slot_now : {4'b0000, slot_now[Few-1:0]};
    worker = worker_now;
    #1;
    could = worker ? waits & slot : '0;
    if (is_many) row = $sformatf("%5d |               %b  %b", cycle, waits, slot);
    else         row = $sformatf("%5d |                   %b  %b", cycle, waits[Few-1:0], slot[Few-1:0]);
    row = $sformatf("%0s |   %b    | %b    %0d   |            ", row, worker, go, queue);
    for (int q = 0; q < queues; q++) row = $sformatf("%0s %2d", row, passed[q]);
    note(row);
    if ((go ^ go) !== 1'b0 || (^queue) === 1'bx) still_wrong($sformatf("cycle %0d: go_o or queue_o is unknown.", cycle), turns, header);
    if (go && !worker) still_wrong($sformatf("cycle %0d: a descriptor goes, and no worker is free.", cycle), turns, header);
    if (go && !waits[queue]) still_wrong($sformatf("cycle %0d: queue pair %0d goes, and nothing of it waits.", cycle, queue), turns, header);
    if (go && !slot[queue])
      still_wrong($sformatf("cycle %0d: queue pair %0d goes without a slot for its completion.", cycle, queue), "R4: a device writes a slot only after the host has released it.", header);
    if (!go && could != '0) begin
      for (int q = queues - 1; q >= 0; q--) if (could[q]) gone = q;
      still_wrong($sformatf("cycle %0d: queue pair %0d could go, and nothing goes: queue_o is %0d.", cycle, gone, queue), "R4, R16: a full completion queue stalls only its own queue pair, and in a cycle in which one could go, one goes.", header);
    end
    for (int q = 0; q < queues; q++) begin
      if (!(waits[q] && slot[q]) || (go && queue == q)) passed[q] = 0;
      else if (go) passed[q] = passed[q] + 1;
      if (passed[q] > queues - 1)
        still_wrong({$sformatf("cycle %0d: queue pair %0d could go, and others went before it %0d times;", cycle, q, passed[q]),
                     $sformatf(" with equal weights it may be %0d times.", queues - 1)}, turns, header);
    end
    if (go) went[queue] = went[queue] + 1;
    @(posedge clk);
    cycle = cycle + 1;
  endtask

  // Runs one device, starting with its reset.
  task automatic run(input int count, input int cycles);
    queues  = count;
    is_many = count == Many;
    cycle   = 0;
    noted   = 0;
    rst_n   = 1'b0;
    for (int q = 0; q < Many; q++) begin
      passed[q] = 0;
      went[q]   = 0;
    end
    repeat (2) @(posedge clk);
    #1 rst_n = 1'b1;
    // All wait, all have slots.
    repeat (6) step('1, '1, 1'b1);
    // The host of queue pair 2 sleeps, and its completion queue is full.
    repeat (8) step('1, 8'b11111011, 1'b1);
    // Two hosts of four sleep, or three of eight.
    repeat (8) step('1, 8'b10111001, 1'b1);
    // A worker is free in each fourth cycle, and in each third.
    for (int k = 0; k < 40; k++) step('1, '1, k % 4 == 0);
    for (int k = 0; k < 30; k++) step('1, 8'b11111110, k % 3 == 0);
    for (int k = 0; k < cycles; k++)
      step(drawn(), drawn() | ((k % 500 < 250) ? 8'b01100110 : 8'b00000000), chance(k % 1000 < 500 ? 90 : 40));
    for (int q = 0; q < queues; q++)
      if (went[q] < cycles / (4 * queues))
        still_wrong($sformatf("queue pair %0d went only %0d times in %0d cycles.", q, went[q], cycle), turns, header);
    all = all + cycle;
  endtask

  initial begin
    if ($value$plusargs("wave=%s", path)) begin
      $dumpfile(path);
      $dumpvars(0, bench);
    end
    run(Few, 3000);
    header = "cycle | queue pairs 7 to 0: wait      slot | worker | go queue | passed over: 0  1  2  3  4  5  6  7";
    run(Many, 1500);
    solved($sformatf("%0d cycles: whoever could go went within its turns, whatever the others waited for.", all));
  end
endmodule
