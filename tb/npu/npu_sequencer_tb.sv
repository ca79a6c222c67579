// npu_sequencer against the interpreter's: programs by chance and those of its tests give the same words, made ready alike, and end in
// the same place for the same reason. Memory answers late and by chance, units take words when they like; now and then one of
// them fails, or the step is given up, and it ends with nothing more issued.
// vectors: sequence 60 200
module npu_sequencer_tb;
  import bench_pkg::*;
  import npu_pkg::*;
  import npu_unit_pkg::*;
  import npu_control_pkg::*;

  logic clk, rst_n;
  int   cycle;
  clock_reset #(.Limit(600000)) u_clock (.clk_o(clk), .rst_no(rst_n), .cycle_o(cycle));

  logic                   start = 1'b0, idle, over, silent = 1'b0, failed = 1'b0, give_up = 1'b0, quiet = 1'b1, taken = 1'b0, issued;
  logic [MEMORY_BITS-1:0] program_line = '0, memory_lines = '0, fetch_line;
  logic [PC_BITS-1:0]     words = '0;
  npu_log_t               log;
  npu_issue_t             issue;
  logic                   fetch_valid, fetch_ready = 1'b0, beat_valid = 1'b0, beat_ready, beat_fault = 1'b0;
  logic [15:0]            fetch_lines;
  logic [LINE_BITS-1:0]   beat_data = '0;

  npu_sequencer #(.Lines(32)) u_sequencer (
    .clk_i(clk), .rst_ni(rst_n), .start_i(start), .program_i(program_line), .words_i(words), .memory_lines_i(memory_lines),
    .silent_i(silent), .idle_o(idle), .over_o(over), .log_o(log), .fetch_valid_o(fetch_valid), .fetch_line_o(fetch_line),
    .fetch_lines_o(fetch_lines), .fetch_ready_i(fetch_ready), .beat_valid_i(beat_valid), .beat_data_i(beat_data),
    .beat_fault_i(beat_fault), .beat_ready_o(beat_ready), .issue_valid_o(issued), .issue_o(issue), .issue_taken_i(taken && issued),
    .quiet_i(quiet), .failed_i(failed), .give_up_i(give_up)
  );

  // ------------------------------------------------------------------ memory, of 4,096 lines
  logic [LINE_BITS-1:0] memory [0:4095];
  logic                 faulty [0:4095];
  int                   asked [0:15];         // lines that are asked for, a queue
  int                   asks_in = 0, asks_out = 0, late = 0, wait_for = 0, slow = 50, k, fetched = 0;

  always @(posedge clk) begin
    if (beat_valid && beat_ready) begin
      asks_out = asks_out + 1;
      beat_valid <= 1'b0;
    end
    if (fetch_valid && fetch_ready) begin
      fetched = fetched + int'(fetch_lines);
      if (fetch_lines == 0 || asks_in - asks_out + int'(fetch_lines) > 16) fail("N5: lines beyond what the sequencer may have in flight");
      for (k = 0; k < int'(fetch_lines); k = k + 1) asked[(asks_in + k) % 16] = int'(fetch_line) + k;
      if (asks_in == asks_out) late = below(slow);
      asks_in = asks_in + int'(fetch_lines);
    end
    fetch_ready <= chance(60);
    if (late > 0) late = late - 1;
    else if (asks_in != asks_out && (!beat_valid || beat_ready) && chance(70)) begin
      if (asked[asks_out % 16] >= 4096) fail("N5: a line that the case has not");
      else begin
        beat_valid <= 1'b1;
        beat_data  <= memory[asked[asks_out % 16]];
        beat_fault <= faulty[asked[asks_out % 16]];
      end
    end
  end

  // ------------------------------------------------------------------ units
  int in_flight = 0, room = 4;

  string                        name, kind;
  int                           file, cases = 0, issues = 0, lines, line, has_fault, most, at, got, number_words, number_silent, faults = 0;
  logic [$bits(npu_issue_t)-1:0] expected [0:4095];
  logic [$bits(npu_issue_t)-1:0] packed_issue;
  logic [$bits(npu_log_t)-1:0]   expected_log;
  logic [31:0]                  seen = '0;
  int                           fail_at, soon, give_in, given_for, given_up = 0, beside = 0;
  logic                         takes_next;
  logic                         gives_up;     // the step was not at its end
  logic                         running = 1'b0;

  // Every word in order, and none behind one that failed.
  always @(posedge clk) if (running) begin
    if (taken && issued) begin
      packed_issue = issue;
      if (failed) fail("N6: a word behind one that failed");
      else if (got >= most) fail("a word more than the interpreter has");
      else if (packed_issue !== expected[got]) begin
        fail($sformatf("case %0d, word %0d at pc %0d, layer %0d: %h, expected %h", cases, got, issue.place.pc, issue.place.layer, packed_issue, expected[got]));
        $display("kind %0d; differing bits %h", issue.op.kind, packed_issue ^ expected[got]);
      end
      got = got + 1;
      in_flight = in_flight + 1;
    end
    // A unit may take the word that waits in the cycle in which the sequencer sees give_up, and none later.
    if (give_up) begin
      if (given_for == 0) begin
        gives_up = u_sequencer.at_q != u_sequencer.AT_DRAIN && u_sequencer.at_q != u_sequencer.AT_IDLE;
        if (gives_up && taken && issued && quiet) beside = beside + 1;
      end else if (taken && issued) fail("N6: a word of a step that is given up");
      given_for = given_for + 1;
      if (given_for > 300) fail("R12: a step that is given up does not end");
    end
    if (give_in >= 0) begin
      give_in = give_in - 1;
      if (give_in < 0) give_up <= 1'b1;
    end
    if (in_flight > 0 && chance(30)) in_flight = in_flight - 1;
    quiet <= in_flight == 0;
    if (fail_at >= 0 && got > fail_at && chance(soon)) failed <= 1'b1;
    takes_next = in_flight < room && chance(70) && !(fail_at >= 0 && got > fail_at);
    taken <= takes_next;
    // In the very cycle in which a word goes to its unit, while no unit has one.
    if (give_in >= 0 && takes_next && issued && !taken && in_flight == 0 && chance(20)) begin
      give_in = -1;
      give_up <= 1'b1;
    end
  end

  initial begin
    for (at = 0; at < 4096; at = at + 1) begin memory[at] = {16{rnd()}}; faulty[at] = 1'b0; end
    if (!$value$plusargs("script=%s", name)) $fatal(1, "+script=FILE is missing; `cargo run -p doorbell-npu --example vectors` makes one");
    file = $fopen(name, "r");
    if (file == 0) $fatal(1, "%0s cannot be read", name);
    @(posedge rst_n);
    while ($fscanf(file, "%s", kind) == 1) begin
      if (kind != "C") $fatal(1, "%0s is no case", kind);
      if ($fscanf(file, "%d %d %d %d %d", number_words, line, at, number_silent, lines) != 5) $fatal(1, "a case is cut off");
      words = number_words; program_line = line; memory_lines = at; silent = number_silent != 0;
      for (at = 0; at < 4096; at = at + 1) faulty[at] = 1'b0;
      repeat (lines) begin
        if ($fscanf(file, "%d %d", line, has_fault) != 2) $fatal(1, "a line is cut off");
        if ($fscanf(file, "%h", memory[line]) != 1) $fatal(1, "a line is cut off");
        faulty[line] = has_fault != 0;
      end
      most = 0;
      if ($fscanf(file, "%s", kind) != 1) $fatal(1, "a case is cut off");
      while (kind == "I") begin
        if ($fscanf(file, "%h", expected[most]) != 1) $fatal(1, "a word is cut off");
        most = most + 1;
        if ($fscanf(file, "%s", kind) != 1) $fatal(1, "a case is cut off");
      end
      if ($fscanf(file, "%h", expected_log) != 1) $fatal(1, "an end is cut off");
      waits_for = $sformatf("case %0d waits for its end", cases);
      slow = chance(30) ? 1 : 60;
      room = between(1, 4);
      fail_at = (chance((most > 2) ? 30 : 10) && most > 0) ? below(most) : -1;
      give_in = (fail_at < 0 && chance(30)) ? below(chance(50) ? 300 : 40) : -1;
      given_for = 0;
      gives_up = 1'b0;
      // Late, what is fetched ahead stands full behind the words that nobody takes.
      soon = chance(50) ? 20 : 2;
      got = 0;
      failed = 1'b0;
      give_up = 1'b0;
      if (!idle) fail("the sequencer is not idle behind a step");
      start <= 1'b1;
      @(posedge clk);
      start <= 1'b0;
      running = 1'b1;
      @(posedge clk);
      while (!over) @(posedge clk);
      running = 1'b0;
      if (in_flight != 0) fail("N6: the step is over with words in flight");
      if (asks_in != asks_out) fail("N5: the step is over with lines on their way");
      if (issued) fail("N6: a word is left behind");
      if (gives_up) begin
        if (log.fault != FAULT_MEMORY) fail($sformatf("case %0d is given up, and ends with error %0d", cases, log.fault));
        given_up = given_up + 1;
      end else if (fail_at < 0) begin
        if (got != most) fail($sformatf("case %0d: %0d words, expected %0d", cases, got, most));
        if (log !== expected_log && !(log.fault == FAULT_NONE && expected_log[4:0] == 5'd0))
          fail($sformatf("case %0d ends with %h (error %0d at pc %0d), expected %h", cases, log, log.fault, log.place.pc, expected_log));
        if (log.fault != FAULT_NONE) faults = faults + 1;
        seen[expected_log[4:0]] = 1'b1;
      end
      taken <= 1'b0;
      // N7
      repeat (1 + below(4)) @(posedge clk);
      if (fetch_valid || issued || over) fail("N7: something happens without a step");
      issues = issues + got;
      cases  = cases + 1;
      failed = 1'b0;
      give_up = 1'b0;
    end
    if (given_up < 20 || beside < 1) fail($sformatf("%0d steps were given up, %0d beside a word", given_up, beside));
    if (issues < cases) fail($sformatf("%0d words in %0d cases", issues, cases));
    if (!seen[FAULT_NONE] || !seen[FAULT_OVERLAP] || !seen[FAULT_BAD_LAYER_WORD] || !seen[FAULT_BLOCK_TOO_SMALL]
        || !seen[FAULT_MEMORY] || !seen[FAULT_NO_END]) fail($sformatf("an error is missing: %b", seen));
    $display("%0d programs, %0d words, %0d with an error, %0d lines, %0d cycles", cases, issues, faults, fetched, cycle);
    finish_bench("npu_sequencer_tb");
  end
endmodule
