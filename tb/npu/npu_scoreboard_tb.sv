// npu_scoreboard between words by chance and units that take any time: words begin in their order, none while one in flight on another
// unit meets it, line by line; one that nothing holds back begins soon; of a context's words that fail, the first of the program is told, and
// words begin for as long as a context is left.
module npu_scoreboard_tb;
  import bench_pkg::*;
  import npu_pkg::*;
  import npu_unit_pkg::*;
  import npu_control_pkg::*;

  logic clk, rst_n;
  int   cycle;
  clock_reset #(.Limit(400000)) u_clock (.clk_o(clk), .rst_no(rst_n), .cycle_o(cycle));

  localparam int Lines    = 24;
  localparam int Contexts = 3;

  logic             start = 1'b0, issue_valid = 1'b0, taken, asks, quiet, failed;
  npu_issue_t       issue = '0;
  logic [UNITS-1:0] unit_start, idle, done = '0;
  logic [UNITS-1:0][3:0]                 ends = '0;
  logic [UNITS-1:0][Contexts-1:0]        fails = '0;
  logic [Contexts-1:0]                   seated = '0, alive, stopped;
  logic [Contexts-1:0][$bits(npu_log_t)-1:0] logs;
  npu_log_t         log;

  npu_scoreboard #(.Contexts(Contexts)) u_scoreboard (
    .clk_i(clk), .rst_ni(rst_n), .start_i(start), .contexts_i(seated), .issue_valid_i(issue_valid), .issue_i(issue), .issue_taken_o(taken),
    .asks_o(asks), .granted_i(idle[issue.where]),
    .start_o(unit_start), .idle_i(idle), .done_i(done), .fails_i(fails), .end_i(ends), .quiet_o(quiet), .alive_o(alive), .failed_o(failed), .stopped_o(stopped), .log_o(logs)
  );

  // What each word of a step reads and writes, a bit a line, and keys and values by layer.
  localparam int Words = 40;
  logic [Lines-1:0] reads [0:Words-1], writes [0:Words-1];
  logic [3:0]       kv_reads [0:Words-1], kv_writes [0:Words-1];
  logic             waited [0:Words-1];
  int               unit_of [0:Words-1];

  int   number, seen, at [0:UNITS-1], left [0:UNITS-1], begun, held_for, first_failed [0:Contexts-1], fail_chance, lonely = 0, steps = 0, words = 0, failures = 0, together = 0;
  int   holds [0:3];                    // RAW, WAR, WAW, KV
  logic running = 1'b0, hold, raw, war, waw, kv, some_wait;
  logic [UNITS-1:0] busy = '0;
  logic [4:0] first_fault [0:Contexts-1];
  logic [Contexts-1:0] lives, mask;
  logic [Contexts-1:0] unfinished [0:UNITS-1];   // contexts for which the unit may still fail
  int   early = 0;
  logic storm;

  function automatic npu_range_t range(input logic used, input int first, input int count);
    range = '0;
    if (used) begin
      range.used  = 1'b1;
      range.start = first;
      range.stop  = first + count;
    end
  endfunction

  function automatic logic [Lines-1:0] bits(input npu_range_t lines);
    bits = '0;
    for (int k = 0; k < Lines; k++) bits[k] = lines.used && k >= int'(lines.start) && k < int'(lines.stop);
  endfunction

  function automatic npu_range_t some(input int percent);
    int first;
    first = below(Lines);
    some = range(chance(percent), first, between(1, (Lines - first > 5) ? 5 : Lines - first));
  endfunction

  function automatic logic [4:0] code(input logic [3:0] why);
    code = (why == UNIT_TOKEN) ? FAULT_BAD_TOKEN : (why == UNIT_POSITION) ? FAULT_BAD_POSITION : (why == UNIT_MISSING) ? FAULT_BLOCK_MISSING
         : (why == UNIT_BLOCK) ? FAULT_BLOCK_OUT_OF_RANGE : (why == UNIT_OUTPUT) ? FAULT_OUTPUT_OUT_OF_RANGE
         : (why == UNIT_NO_FIRST) ? FAULT_NO_FIRST : FAULT_MEMORY;
  endfunction

  task automatic show;
    issue             <= '0;
    issue.where       <= unit_of[number];
    issue.sync        <= waited[number];
    issue.place.pc    <= number;
    issue.place.word  <= {rnd(), rnd()};
    issue.op.value    <= number;
    issue.op.layer    <= below(4);
    issue.a           <= some(70);
    issue.b           <= some(40);
    issue.w           <= some(70);
    issue.kv_write    <= unit_of[number] == 0 && chance(30);
    issue.kv_read     <= unit_of[number] == 3 && chance(80);
    issue_valid       <= 1'b1;
  endtask

  // Idle as units are: from the cycle behind done on.
  assign idle = ~busy;

  always @(posedge clk) if (running) begin
    // Ends that the scoreboard saw.
    for (int u = 0; u < UNITS; u++) if (done[u]) busy[u] <= 1'b0;
    for (int u = 0; u < UNITS; u++) begin
      mask = fails >> (u * Contexts);
      for (int c = 0; c < Contexts; c++) begin
        if (mask[c]) begin
          failures = failures + 1;
          if (!done[u]) early = early + 1;
          if (first_failed[c] < 0 || at[u] < first_failed[c]) begin
            first_failed[c] = at[u];
            first_fault[c]  = code(ends[u]);
          end
        end
      end
      if (done[u]) at[u] = -1;
    end
    // Why the word may not begin, by what was in flight before this cycle.
    if (issue_valid && seen != number) begin
      seen              = number;
      reads[number]     = bits(issue.a) | bits(issue.b);
      writes[number]    = bits(issue.w);
      kv_reads[number]  = issue.kv_read  ? 4'd1 << issue.op.layer[1:0] : 4'd0;
      kv_writes[number] = issue.kv_write ? 4'd1 << issue.op.layer[1:0] : 4'd0;
    end
    {raw, war, waw, kv, some_wait} = '0;
    for (int u = 0; u < UNITS; u++) if (at[u] >= 0 && issue_valid) begin
      if (waited[at[u]]) some_wait = 1'b1;
      if (u != unit_of[number]) begin
        if ((writes[at[u]] & reads[number]) != '0) raw = 1'b1;
        if ((reads[at[u]] & writes[number]) != '0) war = 1'b1;
        if ((writes[at[u]] & writes[number]) != '0) waw = 1'b1;
        if ((kv_writes[at[u]] & kv_reads[number]) != '0 || (kv_reads[at[u]] & kv_writes[number]) != '0) kv = 1'b1;
      end
    end
    for (int c = 0; c < Contexts; c++) lives[c] = seated[c] && first_failed[c] < 0;
    if (!start && alive !== lives) fail($sformatf("N8: contexts %b are alive, expected %b", alive, lives));
    hold = raw || war || waw || kv || some_wait || (issue_valid && at[unit_of[number]] >= 0) || lives == '0;
    held_for = (hold || !issue_valid || taken) ? 0 : held_for + 1;
    if (held_for > 8) fail($sformatf("N3: word %0d is held back by nothing", number));
    if (taken) begin
      if (raw) fail($sformatf("N3: word %0d begins before a RAW", number));
      if (war) fail($sformatf("N3: word %0d begins before a WAR", number));
      if (waw) fail($sformatf("N3: word %0d begins before a WAW", number));
      if (kv)  fail($sformatf("N3: word %0d begins before a KV", number));
      if (some_wait) fail($sformatf("N3: word %0d does not wait for a copy", number));
      if (at[unit_of[number]] >= 0) fail($sformatf("N1: word %0d begins on a unit that has one", number));
      if (lives == '0) fail($sformatf("N6: word %0d begins, and no context is left", number));
      if (lives != seated) lonely = lonely + 1;
    end
    holds[0] = holds[0] + int'(raw); holds[1] = holds[1] + int'(war); holds[2] = holds[2] + int'(waw); holds[3] = holds[3] + int'(kv);
    // A unit begins with the word that was taken, in the cycle behind.
    for (int u = 0; u < UNITS; u++) if (unit_start[u]) begin
      expect_eq("N3: the next word", at[u], begun);
      if (unit_of[begun] != u) fail($sformatf("word %0d begins on unit %0d", begun, u));
      unfinished[u] = lives;
      begun   = begun + 1;
      busy[u] <= 1'b1;
      left[u] = chance(80) ? below(30) : below(300);
      if ((busy & ~done & ~(UNITS'(1) << u)) != '0) together = together + 1;
    end
    // A unit runs a word for one context after the other, or for all at once: the last of them is done with it.
    // Units may fail in the same cycle.
    storm = below(100) == 0;
    done  <= '0;
    fails <= '0;
    for (int u = 0; u < UNITS; u++) if (busy[u] && !done[u]) begin
      left[u] = left[u] - 1;
      if (left[u] < 0) done[u] <= 1'b1;
      if (fail_chance != 0 && ((left[u] < 0) ? chance(fail_chance) : (storm && chance(50)))) begin
        mask = unfinished[u] & rnd();
        unfinished[u] = unfinished[u] & ~mask;
        fails[u] <= mask;
        ends[u]  <= between(1, 7);
      end
    end
    if (taken) begin
      at[unit_of[number]] = number;
      number = number + 1;
      words  = words + 1;
      if (number == Words) issue_valid <= 1'b0;
      else begin
        if (chance(50)) issue_valid <= 1'b0;
        show_next = 1'b1;
      end
    end
    if (show_next && (number < Words) && (!issue_valid || taken)) begin
      if (chance(60)) begin
        show;
        show_next = 1'b0;
      end else issue_valid <= 1'b0;
    end
  end
  logic show_next;

  initial begin
    for (int k = 0; k < 4; k++) holds[k] = 0;
    @(posedge rst_n);
    for (steps = 0; steps < drawn(150, 200); steps = steps + 1) begin
      waits_for = $sformatf("step %0d", steps);
      for (int k = 0; k < Words; k++) begin
        unit_of[k] = below(4);
        waited[k]  = unit_of[k] == 0 && chance(20);
      end
      for (int u = 0; u < UNITS; u++) begin at[u] = -1; left[u] = 0; end
      number = 0; seen = -1; begun = 0; held_for = 0; show_next = 1'b1;
      for (int c = 0; c < Contexts; c++) first_failed[c] = -1;
      seated <= between(1, 7);
      fail_chance = chance(60) ? 8 : 0;
      start <= 1'b1;
      // Beside the edge: the process above may be in the middle of its cycle at it.
      @(posedge clk);
      #1 start <= 1'b0;
      running = 1'b1;
      @(posedge clk);
      while (!((number == Words || failed) && quiet && unit_start == '0)) @(posedge clk);
      issue_valid <= 1'b0;
      @(posedge clk);
      #1 running = 1'b0;
      issue_valid <= 1'b0;
      if (failed != (lives == '0)) fail("N6: failed");
      for (int c = 0; c < Contexts; c++) begin
        log = logs >> (c * $bits(npu_log_t));
        if (seated[c]) expect_eq("N6: stopped", stopped[c], first_failed[c] >= 0);
        if (first_failed[c] >= 0) begin
          expect_eq("N6: the word that failed", log.place.pc, first_failed[c]);
          expect_eq("N6: why", log.fault, first_fault[c]);
        end
      end
      repeat (below(3)) @(posedge clk);
    end
    if (failures < 10 || early < 10 || lonely < 100 || together < 100 || holds[0] < 100 || holds[1] < 100 || holds[2] < 100 || holds[3] < 50)
      fail($sformatf("%0d failures, %0d of them early, %0d words behind one, %0d beside others; held by RAW %0d, WAR %0d, WAW %0d, KV %0d", failures, early, lonely, together, holds[0], holds[1], holds[2], holds[3]));
    $display("%0d words, %0d beside others, %0d failures, %0d behind one", words, together, failures, lonely);
    finish_bench("npu_scoreboard_tb");
  end
endmodule
