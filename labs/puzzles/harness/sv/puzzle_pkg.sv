// Shared by the benches of the puzzles: the cycles behind, and how a check ends.
package puzzle_pkg;
  localparam int Shown = 10;            // cycles that are shown
  string lines [0:Shown-1];
  int    noted = 0;
  logic [31:0] state = 32'd1;           // of the random numbers
  bit    ended = 1'b0;
  string word;                          // printed after SOLVED, to show that the check itself printed it

  // Marsaglia's xorshift, as $urandom of a seed is another one in each simulator.
  function automatic logic [31:0] drawn();
    state = state ^ (state << 13);
    state = state ^ (state >> 17);
    state = state ^ (state << 5);
    drawn = state;
  endfunction

  function automatic int below(input int n);
    below = int'(drawn() >> 4) % n;
  endfunction

  function automatic logic chance(input int percent);
    chance = below(100) < percent;
  endfunction

  // What happened in a cycle.
  function automatic void note(input string line);
    lines[noted % Shown] = line;
    noted = noted + 1;
  endfunction

  // The cycles that lead to what is wrong; the last one shows it.
  task automatic still_wrong(input string what, input string why, input string header);
    if (!ended) begin
      ended = 1'b1;
      $display("STILL WRONG: %0s", what);
      $display("%0s\n", why);
      $display("The last cycles, the newest at the bottom:\n");
      $display("  %0s", header);
      for (int k = (noted > Shown) ? noted - Shown : 0; k < noted; k++) $display("  %0s", lines[k % Shown]);
      $finish(0);
    end
  endtask

  task automatic solved(input string what);
    if (!ended) begin
      ended = 1'b1;
      $display("SOLVED: %0s", what);
      if ($value$plusargs("word=%s", word)) $display("%0s", word);
      $finish(0);
    end
  endtask
endpackage
