// Drives line_credits with DECODEs that end by themselves or by a STOP, and a memory that answers when it likes; counts the places itself.
module bench;
  import puzzle_pkg::*;

  localparam int Small = 8, Large = 16;
  string header = "cycle | lines ready start | line stop answer | before the cycle: free  reserved  in flight";
  string why = "R8: a STOP ends the DECODE, whose unsent lines never come. Each place is free, reserved or in flight, and the three add up to all places.";
  string buffer;

  logic clk = 1'b0, rst_n = 1'b0;
  // A buffer of 8 places runs first, then one of 16. The other one stays in reset.
  logic is_large = 1'b0;
  int places = Small;
  logic [4:0] lines = 5'd1;
  logic ready, ready_small, ready_large, start = 1'b0, line = 1'b0, stop = 1'b0, answer = 1'b0;
  string path;
  logic begins, sends, stops, answers;
  int wanted;
  int cycle = 0, reserved = 0, in_flight = 0, free = Small, low_for = 0, begun = 0, stopped = 0;
  int all = 0, all_stopped = 0;

  line_credits #(.Places(Small)) u_small (
    .clk_i(clk), .rst_ni(rst_n && !is_large), .lines_i(lines[$clog2(Small):0]), .ready_o(ready_small), .start_i(start),
    .line_i(line), .stop_i(stop), .answer_i(answer)
  );
  line_credits #(.Places(Large)) u_large (
    .clk_i(clk), .rst_ni(rst_n && is_large), .lines_i(lines[$clog2(Large):0]), .ready_o(ready_large), .start_i(start),
    .line_i(line), .stop_i(stop), .answer_i(answer)
  );
  assign ready = is_large ? ready_large : ready_small;

  always #5 clk = ~clk;

  // A DECODE could begin, and ready_o has been low for four cycles: because places have leaked, or for another reason?
  task automatic held_back;
    string what;
    what = $sformatf("cycle %0d: %0d places are free, nothing runs, and a DECODE of %0d lines may not begin for the fourth cycle", cycle, free, lines);
    // When memory has answered everything all places are free, if none has leaked.
    for (int k = 0; k < places + 4; k++) begin
      @(posedge clk);
      if (answer) in_flight = in_flight - 1;
      @(negedge clk);
      lines  = places;
      stop   = 1'b0;
      answer = in_flight > 0;
    end
    #1;
    if (ready === 1'b1)
      still_wrong($sformatf("%0s. No place has leaked: when memory has answered every line, a DECODE of %0d lines may begin. So ready_o asks for too much.", what, places),
                  {"A DECODE begins as soon as there is a place for each of its lines, and no DECODE runs.", buffer},
                  header);
    else
      still_wrong($sformatf("%0s: places have leaked.", what), why, header);
  endtask

  task automatic step(input int wanted, input logic begins, input logic sends, input logic stops, input logic answers);
    @(negedge clk);
    lines  = wanted;
    start  = 1'b0;
    line   = sends && reserved > 0;
    stop   = stops;
    answer = answers && in_flight > 0;
    #1;
    if (ready !== 1'b0 && ready !== 1'b1) still_wrong($sformatf("cycle %0d: ready_o is unknown.", cycle), why, header);
    start = begins && ready && !stop;
    #1;
    note($sformatf("%5d |  %2d     %b     %b   |  %b    %b     %b    |                   %2d       %2d         %2d", cycle, lines, ready, start, line, stop, answer,
                   free, reserved, in_flight));
    if (ready && reserved > 0) still_wrong($sformatf("cycle %0d: ready_o is high while a DECODE runs.", cycle), why, header);
    if (ready && free < wanted)
      still_wrong($sformatf("cycle %0d: a DECODE of %0d lines may begin, and only %0d places are free: a line will be written over another one.", cycle, wanted, free), why, header);
    low_for = (!ready && reserved == 0 && free >= wanted) ? low_for + 1 : 0;
    if (low_for > 3) held_back;
    if (line) begin
      reserved  = reserved - 1;
      in_flight = in_flight + 1;
    end
    if (stop) begin
      if (reserved > 0) stopped = stopped + 1;
      reserved = 0;
    end
    if (answer) in_flight = in_flight - 1;
    if (start) begin
      reserved = wanted;
      begun    = begun + 1;
    end
    free = places - reserved - in_flight;
    @(posedge clk);
    cycle = cycle + 1;
  endtask

  // Nothing runs and nothing is in flight: all places are free.
  task automatic settle;
    for (int k = 0; k < places + 2; k++) step(places, 1'b0, 1'b1, 1'b0, 1'b1);
    for (int k = 0; k < 5; k++) step(places, 1'b0, 1'b0, 1'b0, 1'b0);
  endtask

  // Runs one buffer, starting with its reset.
  task automatic run(input int cycles);
    rst_n     = 1'b0;
    start     = 1'b0;
    line      = 1'b0;
    stop      = 1'b0;
    answer    = 1'b0;
    cycle     = 0;
    reserved  = 0;
    in_flight = 0;
    free      = places;
    low_for   = 0;
    begun     = 0;
    stopped   = 0;
    noted     = 0;
    repeat (2) @(posedge clk);
    #1 rst_n = 1'b1;
    // A DECODE to its end.
    step(5, 1'b1, 1'b0, 1'b0, 1'b0);
    settle;
    // A STOP after two of five lines, between two lines.
    step(5, 1'b1, 1'b0, 1'b0, 1'b0);
    step(8, 1'b0, 1'b1, 1'b0, 1'b0);
    step(8, 1'b0, 1'b1, 1'b0, 1'b0);
    step(8, 1'b0, 1'b0, 1'b1, 1'b0);
    for (int k = 0; k < 5; k++) step(7, 1'b0, 1'b0, 1'b0, 1'b0);
    for (int k = 0; k < 5; k++) step(6, 1'b0, 1'b0, 1'b0, 1'b0);
    settle;
    // In the cycle of a line.
    step(5, 1'b1, 1'b0, 1'b0, 1'b0);
    step(8, 1'b0, 1'b1, 1'b0, 1'b0);
    step(6, 1'b0, 1'b1, 1'b1, 1'b0);
    for (int k = 0; k < 5; k++) step(6, 1'b0, 1'b0, 1'b0, 1'b0);
    for (int k = 0; k < 5; k++) step(7, 1'b0, 1'b0, 1'b0, 1'b0);
    settle;
    // In the cycle of an answer.
    step(5, 1'b1, 1'b0, 1'b0, 1'b0);
    step(8, 1'b0, 1'b1, 1'b0, 1'b0);
    step(8, 1'b0, 1'b0, 1'b1, 1'b1);
    settle;
    // When nothing runs.
    step(8, 1'b0, 1'b0, 1'b1, 1'b0);
    settle;
    for (int k = 0; k < cycles; k++) begin
      // One by one, so that each simulator draws the same.
      wanted  = 1 + below(places);
      begins  = chance(70);
      sends   = chance(60);
      stops   = chance(k % 1000 < 500 ? 10 : 30);
      answers = chance(k % 800 < 400 ? 30 : 80);
      step(wanted, begins, sends, stops, answers);
    end
    settle;
    if (begun < cycles / 14 || stopped < cycles / 40)
      still_wrong($sformatf("only %0d DECODEs have begun.", begun), why, header);
    all         = all + begun;
    all_stopped = all_stopped + stopped;
  endtask

  initial begin
    if ($value$plusargs("wave=%s", path)) begin
      $dumpfile(path);
      $dumpvars(0, bench);
    end
    // A loop, because Verilator inlines a task at each call.
    for (int k = 0; k < 2; k++) begin
      if (k == 1) begin
        is_large = 1'b1;
        places   = Large;
        buffer   = $sformatf("\nA buffer of %0d places.", Large);
        why      = {why, buffer};
      end
      run(is_large ? 1500 : 4000);
    end
    solved($sformatf("%0d DECODEs, %0d of them stopped, and every place came back once.", all, all_stopped));
  end
endmodule
