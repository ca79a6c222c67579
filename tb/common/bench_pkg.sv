// Shared by all benches: seeded random numbers, the error count, and what a hang has to say.
package bench_pkg;
  integer      errors = 0;
  integer      most_errors = 10;        // at which a bench gives up; clock_reset sets it
  integer      state  = 1;              // of the random numbers; clock_reset seeds it
  string       waits_for = "the bench waits for its first event";

  function automatic logic [31:0] rnd();
    rnd = $urandom(state);
  endfunction

  function automatic int below(input int n);
    below = int'(rnd() >> 4) % n;
  endfunction

  function automatic int between(input int low, input int high);
    between = low + below(high - low + 1);
  endfunction

  function automatic logic chance(input int percent);
    chance = percent > 0 && below(100) < percent;
  endfunction

  function automatic void fail(input string message);
    errors = errors + 1;
    $display("ERROR: at %0t: %0s", $time, message);
    if (errors >= most_errors) $fatal(1, "%0d errors, giving up", errors);
  endfunction

  // Length of a random part: a long one with +long.
  function automatic int drawn(input int few, input int many);
    drawn = $test$plusargs("long") ? many : few;
  endfunction

  task automatic expect_eq(input string what, input logic [63:0] found, input logic [63:0] expected);
    if (found !== expected) fail($sformatf("%0s is 0x%0h, expected 0x%0h", what, found, expected));
  endtask

  // A bench ends here, and only here, with its positive token.
  task automatic finish_bench(input string name);
    if (errors != 0) $fatal(1, "%0s: %0d errors", name, errors);
    $display("%0s: PASS", name);
    $finish(0);
  endtask
endpackage
