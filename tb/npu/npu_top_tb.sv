// The whole NPU against the interpreter: tokens of `micro` and `micro-gemma`, and programs by chance whose words depend on each other and now and then fail.
// Each step is run by every gang, one a little behind the other, and in each of them by one or two contexts, with an arena and an output region of
// their own; now and then one of them is given what stops it, which is nothing to the others. Now and then nobody waits for a step any more. A gang
// all of whose steps are of this kind ends soon. A gang with another step goes on, and its results are the same.
// Memory answers late, in its order, and stalls by chance. Behind each step everything is compared: token, log-probability, the word
// that stopped it, on-chip memory, keys and values, output region.
//   +calm     memory answers after 64 cycles, or +latency=N, without stalls, and writes at once
//   +cycles   prints how long each step took, from the first gang's beginning to the last one's end
//   +words    prints in which cycle of its step each word begins and is done, by unit; one gang has each step
//   +both     … or all of them, a context of each: each line ends with its gang, that of a step with the cycle in which it begins as well; with +calm a gang
//             begins at once behind the one before it, and in every other step up to 300 cycles behind
//   +alone    one context of one gang has each step
// vectors: step 4 6
module npu_top_tb #(
  parameter int Lines = 128,
  parameter int Model = 8192,
  parameter int Gangs = 2
);
  import bench_pkg::*;
  import npu_pkg::*;
  import npu_unit_pkg::*;
  import npu_control_pkg::*;

  logic clk, rst_n;
  int   cycle;
  clock_reset #(.Limit(1000000)) u_clock (.clk_o(clk), .rst_no(rst_n), .cycle_o(cycle));

  localparam int Contexts = 2;
  localparam int Seats    = Gangs * Contexts;
  localparam int Arena  = 1024;
  localparam int Table  = 8;
  localparam int Region = 8;

  logic                    step_valid = 1'b0, step_opens = 1'b0, step_begins = 1'b0, step_ready, result_valid, result_ready = 1'b0;
  npu_step_t               step;
  npu_context_t            where;
  logic [ADDRESS_BITS-1:0] arena_at [0:Seats-1], region_at [0:Seats-1];   // of each context
  npu_result_t             result;
  logic [1:0]              step_gang, result_gang;
  logic [2:0]              step_context, result_context;
  logic [3:0]              open_steps;
  logic [Seats-1:0]        unwanted = '0;
  logic [3:0]              read_owner, write_owner;
  logic                    other_ready, other_beat;
  logic                    read_valid, read_ready = 1'b0, beat_valid = 1'b0, beat_fault = 1'b0, beat_ready;
  logic [ADDRESS_BITS-1:0] read_line, write_line;
  logic [4:0]              read_lines;
  logic [LINE_BITS-1:0]    beat_data = '0, write_data;
  logic                    write_valid, write_ready = 1'b0, written = 1'b0, write_fault = 1'b0;
  logic [63:0]             write_strobe;

  npu_top #(.Gangs(Gangs), .Contexts(Contexts), .Lines(Lines)) dut (
    .clk_i(clk), .rst_ni(rst_n), .step_valid_i(step_valid), .step_opens_i(step_opens), .step_begins_i(step_begins), .step_ready_o(step_ready),
    .step_gang_o(step_gang), .step_context_o(step_context), .open_steps_o(open_steps), .step_i(step), .context_i(where), .unwanted_i(unwanted),
    .result_valid_o(result_valid), .result_ready_i(result_ready), .result_gang_o(result_gang), .result_context_o(result_context), .result_o(result),
    .other_valid_i(1'b0), .other_line_i(58'd0), .other_lines_i(16'd0), .other_owner_i(4'd0), .other_ready_o(other_ready), .other_beat_valid_o(other_beat),
    .other_beat_ready_i(1'b0), .read_owner_o(read_owner), .write_owner_o(write_owner), .read_valid_o(read_valid),
    .read_line_o(read_line), .read_lines_o(read_lines), .read_ready_i(read_ready), .beat_valid_i(beat_valid),
    .beat_data_i(beat_data), .beat_fault_i(beat_fault), .beat_ready_o(beat_ready), .write_valid_o(write_valid),
    .write_line_o(write_line), .write_data_o(write_data), .write_strobe_o(write_strobe), .write_ready_i(write_ready),
    .written_i(written), .write_fault_i(write_fault)
  );

  // ------------------------------------------------------------------ memory
  // One array of all that a context has, each part somewhere in a space of its own.
  localparam int ArenaAt = Model, TableAt = Model + Seats * Arena, RegionAt = TableAt + Table, All = RegionAt + Seats * Region;
  logic [LINE_BITS-1:0] memory [0:All-1];
  logic                 faulty [0:All-1];
  logic [LINE_BITS-1:0] expected_arena [0:Arena-1], expected_region [0:Region-1], expected_chip [0:Lines-1];
  logic                 write_faults = 1'b0;
  bit                   calm, cycles, words, alone, both;

  // The place in the array, or -1.
  function automatic int place(input logic [ADDRESS_BITS-1:0] line, input logic writes);
    place = -1;
    if (!writes && line >= where.model && line - where.model < ADDRESS_BITS'(where.model_lines)) place = int'(line - where.model);
    for (int s = 0; s < Seats; s++)
      if (line >= arena_at[s] && line - arena_at[s] < ADDRESS_BITS'(where.arena_lines)) place = ArenaAt + s * Arena + int'(line - arena_at[s]);
    if (!writes && line >= where.table_line && line - where.table_line < Table) place = TableAt + int'(line - where.table_line);
    for (int s = 0; s < Seats; s++)
      if (writes && line >= region_at[s] && line - region_at[s] < ADDRESS_BITS'(where.region_lines)) place = RegionAt + s * Region + int'(line - region_at[s]);
  endfunction

  localparam int Deep = 512;
  int   asked [0:Deep-1], asked_in = 0, asked_out = 0, due [0:Deep-1], at, k, writes_due = 0, latency = 64;
  logic busy = 1'b0;

  always @(posedge clk) begin
    // Reads.
    if (beat_valid && beat_ready) begin
      beat_valid <= 1'b0;
      asked_out = asked_out + 1;
    end
    if (read_valid && read_ready) begin
      if (read_lines == 0 || {1'b0, read_line[3:0]} + read_lines > 16) fail($sformatf("N5: %0d lines from %h on are asked for at once", read_lines, read_line));
      if (asked_in - asked_out + int'(read_lines) > Deep) fail("N5: more is asked for than may be in flight");
      for (k = 0; k < int'(read_lines); k = k + 1) begin
        at = place(read_line + ADDRESS_BITS'(k), 1'b0);
        if (at < 0) fail($sformatf("N5: line %h is not the context's", read_line + ADDRESS_BITS'(k)));
        asked[asked_in % Deep] = (at < 0) ? 0 : at;
        if (at >= ArenaAt && at < TableAt && int'(read_owner) != 3 + (at - ArenaAt) / Arena / Contexts) fail($sformatf("R11: a gang's arena is read as function %0d", read_owner));
        due[asked_in % Deep]   = cycle + latency;
        asked_in = asked_in + 1;
      end
      if (!calm) latency = chance(80) ? below(8) : below(90);
    end
    read_ready <= calm || chance(80);
    if (asked_in != asked_out && (!beat_valid || beat_ready) && due[asked_out % Deep] <= cycle && (calm || chance(85))) begin
      beat_valid <= 1'b1;
      beat_data  <= memory[asked[asked_out % Deep]];
      beat_fault <= faulty[asked[asked_out % Deep]];
    end
    // Writes: there before they are answered.
    written     <= 1'b0;
    write_fault <= write_faults && chance(30);
    if (write_valid && write_ready) begin
      at = place(write_line, 1'b1);
      if (at < 0) fail($sformatf("N2: line %h is written, which is not the context's to write", write_line));
      else for (k = 0; k < 64; k = k + 1) if (write_strobe[k]) memory[at][8*k +: 8] = write_data[8*k +: 8];
      if (at >= ArenaAt && at < TableAt && int'(write_owner) != 3 + (at - ArenaAt) / Arena / Contexts) fail($sformatf("R11: a gang's arena is written as function %0d", write_owner));
      writes_due = writes_due + 1;
    end
    write_ready <= calm || chance(70);
    if (writes_due > 0 && (calm || chance(20))) begin
      written    <= 1'b1;
      writes_due = writes_due - 1;
    end
    if (!busy && (read_valid || write_valid || beat_valid || writes_due != 0 || asked_in != asked_out)) fail("N7: memory is asked without a step");
  end

  // Cycles count from the one in which the gang's step begins.
  for (genvar g = 0; g < Gangs; g++) begin : gen_words
    int    began = 0;
    string gang = "", beside = "";          // what ends a line
    npu_step_t    its_step;
    npu_context_t its_context;
    always @(posedge clk) if (words && (both || g == 0)) begin
      if (both) gang = $sformatf(" %0d", g);
      if (both) beside = $sformatf(" %0d %0d", g, cycle);
      if (dut.start[g]) begin
        began = cycle;
        its_step    = dut.step_q[g * Contexts];
        its_context = dut.context_q[g * Contexts];
        $display("step %0d %0d %0d %0d%0s", its_step.position, its_step.token, its_step.silent, its_context.arena[3:0], beside);
      end
      for (int u = 0; u < UNITS; u++) begin
        if (dut.gen_gang[g].done[u]) $display("done %0d %0d%0s", u, cycle - began, gang);
      end
      for (int u = 0; u < UNITS; u++) begin
        if (dut.gang_start[g][u])
          $display("word %0d %0d %0d%0s", u, dut.gen_gang[g].u_scoreboard.place_q[u][$bits(npu_place_t)-1 -: PC_BITS], cycle - began, gang);
      end
      if (dut.over[g]) $display("over %0d%0s", cycle - began, gang);
    end
  end

  // R12: steps that nobody waits for any more, and when that begins. The bit of a seat without a step has no effect.
  localparam int Soon = 1500;
  logic [Seats-1:0] doomed = '0, seated = '0;
  logic [Gangs-1:0] gave = '0, gave_twice = '0;     // those given up a cycle ago, and two
  int               doom_in = -1, runs_for = 0, longest = 0, given_up = 0, spared = 0;
  always @(posedge clk) begin
    if (doom_in >= 0) begin
      doom_in = doom_in - 1;
      if (doom_in < 0) unwanted <= doomed;
    end
    for (int g = 0; g < Gangs; g++) begin
      if (dut.state_q[g] == dut.Run && of_gang(seated & ~unwanted, g) == '0) runs_for = runs_for + 1;
    end
    if (runs_for > Soon * Gangs) fail("R12: a gang that nobody waits for goes on");
    // A unit ends its word with the context that it is at.
    for (int u = 0; u < UNITS; u++)
      if (dut.again_q[u] && gave_twice[dut.unit_gang_q[u]]) fail($sformatf("R12: unit %0d goes on with a word that is given up", u));
    gave_twice = gave;
    gave       = dut.give_up_q;
  end

  function automatic logic [Contexts-1:0] of_gang(input logic [Seats-1:0] seats, input int gang);
    of_gang = Contexts'(seats >> (gang * Contexts));
  endfunction

  // A step goes once, and so does its result.
  always @(posedge clk) begin
    if (step_valid && (step_ready || !step_opens)) begin
      step_valid  <= 1'b0;
      step_begins <= 1'b0;
    end
    if (step_begins && !step_valid) step_begins <= 1'b0;
    if (result_valid && result_ready) result_ready <= 1'b0;
  end

  // ------------------------------------------------------------------ the script
  string        path;
  int           file, steps = 0, faults = 0, from, some_faulty = 0;
  logic [7:0]   letter;
  logic [31:0]  line, sampled, token, logp, numbers [0:5];
  logic [511:0] data;
  logic [$bits(npu_log_t)-1:0] log;
  npu_log_t     expected_log;
  logic         was_faulty = 1'b0, by_memory, late, models;
  int           members, results, seat;
  logic [31:0]  sound_token, sound_position;
  logic [11:0]  entries;
  logic [LINE_BITS-1:0] before_region [0:Region-1];

  task automatic compare(input string what, input int index, input logic [511:0] found, input logic [511:0] expected);
    if (found !== expected) fail($sformatf("step %0d: %0s line %0d is %h, expected %h", steps, what, index, found, expected));
  endtask

  // What a context was given that stops it; Elsewhere it has another position, and what it leaves behind is not compared.
  localparam int Sound = 0, NoTable = 1, NoToken = 2, Elsewhere = 3;
  int spoilt [0:Seats-1], stopped = 0, shared = 0;

  // A context's result, and what it left behind.
  task automatic judge(input int seat);
    // It may have been over before.
    if (of_gang(seated & ~unwanted, int'(result_gang)) == '0 && result.log.fault == FAULT_MEMORY && !was_faulty) begin
      if (result.read_fault || result.write_fault) fail("memory did not fail, and it is told of a step that was given up");
      given_up = given_up + 1;
    end else if (spoilt[seat] == Elsewhere) begin
      if (result.log.fault != FAULT_NONE) fail($sformatf("step %0d of context %0d, at another position, ended with error %0d", steps, seat, result.log.fault));
      if (result.sampled != sampled[0]) fail($sformatf("step %0d of context %0d, at another position: sampled is %0d", steps, seat, result.sampled));
    end else if (spoilt[seat] != Sound) begin
      if (result.log.fault != ((spoilt[seat] == NoTable) ? FAULT_BLOCK_MISSING : FAULT_BAD_TOKEN) && result.log.fault != FAULT_MEMORY)
        fail($sformatf("N8: step %0d of context %0d ended with error %0d", steps, seat, result.log.fault));
      if (result.sampled) fail($sformatf("N8: step %0d of context %0d gives a token, though it was stopped", steps, seat));
      for (int k = 0; k < Region; k++) if (spoilt[seat] == NoToken) compare("region of a stopped step:", k, memory[RegionAt + seat * Region + k], before_region[k]);
      stopped = stopped + 1;
    end else sound(seat);
  endtask

  task automatic sound(input int seat);
    // What memory answered with an error a word may not have read.
    by_memory = was_faulty && result.log.fault == FAULT_MEMORY;
    if (!by_memory) begin
      if (result.log !== log && !(result.log.fault == FAULT_NONE && expected_log.fault == FAULT_NONE))
        fail($sformatf("step %0d of context %0d ended with error %0d at pc %0d, layer %0d, word %h, expected %0d at pc %0d, layer %0d, word %h", steps, seat, result.log.fault,
          result.log.place.pc, result.log.place.layer, result.log.place.word, expected_log.fault, expected_log.place.pc, expected_log.place.layer, expected_log.place.word));
      if (expected_log.fault == FAULT_NONE) begin
        expect_eq("sampled", result.sampled, sampled[0]);
        if (sampled[0]) begin
          expect_eq("the token", result.token, token);
          expect_eq("its log-probability", result.logp, logp);
        end
      end
    end else some_faulty = some_faulty + 1;
    if (by_memory && !result.read_fault && !result.write_fault) fail("memory failed, and it is not told");
    if (!was_faulty && (result.read_fault || result.write_fault)) fail("memory did not fail, and it is told");
    if (result.log.fault != FAULT_NONE) faults = faults + 1;
    // What a step that was stopped leaves behind is not said.
    if (result.log.fault == FAULT_NONE) begin
      for (int k = 0; k < Lines; k++) compare("chip", k, dut.u_chip.mem[seat * Lines + k], expected_chip[k]);
      for (int k = 0; k < Arena; k++) if (k < int'(where.arena_lines)) compare("arena", k, memory[ArenaAt + seat * Arena + k], expected_arena[k]);
      for (int k = 0; k < Region; k++) compare("region", k, memory[RegionAt + seat * Region + k], expected_region[k]);
    end
  endtask

  task automatic run;
    waits_for = $sformatf("step %0d waits for its end", steps);
    busy = 1'b1;
    from = cycle;
    expected_log = log;
    for (int k = 0; k < Region; k++) before_region[k] = memory[RegionAt + k];
    sound_token    = step.token;
    sound_position = step.position;
    entries     = where.table_entries;
    results     = 0;
    seated      = '0;
    doomed      = '0;
    doom_in     = (calm || words || alone) ? -1 : below(9000);
    runs_for    = 0;
    // No result is taken before all have begun, so each gang has some.
    for (int g = 0; g < (alone ? 1 : Gangs); g++) begin
      if (g > 0 && (!calm || (both && steps % 2 == 1))) repeat (below(300)) @(posedge clk);
      members = (alone || words) ? 1 : calm ? Contexts : between(1, Contexts);
      results = results + members;
      if (members > 1) shared = shared + 1;
      for (int c = 0; c < members; c++) begin
        seat        = g * Contexts + c;
        seated[seat] = 1'b1;
        // One of two, or a place without a step.
        if (doom_in >= 0 && c == 0 && chance(80)) doomed[seat + ((members > 1) ? below(2) : 1)] = 1'b1;
        where.owner  = 4'(g + 3);
        where.arena  = arena_at[seat];
        where.region = region_at[seat];
        // Of a program by chance nobody knows whether it would come to it.
        spoilt[seat] = (models && expected_log.fault == FAULT_NONE && !was_faulty && !words && !alone && !calm && chance(30)) ? between(NoTable, Elsewhere) : Sound;
        step.token          = (spoilt[seat] == NoToken) ? 32'h8000_0000 : sound_token;
        step.position       = (spoilt[seat] == Elsewhere) ? 32'(below(90)) : sound_position;
        where.table_entries = (spoilt[seat] == NoTable) ? '0 : entries;
        late        = !calm && !words && chance(30);
        step_valid  <= 1'b1;
        step_opens  <= c == 0;
        step_begins <= c == members - 1 && !late;
        @(posedge clk);
        while (step_valid) @(posedge clk);
        if (!calm && !words) repeat (below(4)) @(posedge clk);
        if (open_steps != ((c == members - 1 && !late) ? 4'd0 : 4'(c + 1))) fail($sformatf("N8: %0d steps are open behind %0d of %0d", open_steps, c + 1, members));
        if (c == members - 1 && late) begin
          step_begins <= 1'b1;
          @(posedge clk);
          while (step_begins) @(posedge clk);
        end
        step.token          = sound_token;
        step.position       = sound_position;
        where.table_entries = entries;
      end
    end
    for (int r = 0; r < results; r++) begin
      while (!result_valid) @(posedge clk);
      if (cycles && r == results - 1) $display("step %0d: %0d cycles", steps, cycle - from);
      repeat (below(3)) @(posedge clk);
      judge(int'(result_gang) * Contexts + int'(result_context));
      result_ready <= 1'b1;
      @(posedge clk);
      while (result_ready) @(posedge clk);
    end
    for (int g = 0; g < Gangs; g++) if (of_gang(seated & unwanted, g) != '0 && of_gang(seated & ~unwanted, g) != '0) spared = spared + 1;
    after;
    // Once more: after a while nobody waits for any of the steps.
    if (models && expected_log.fault == FAULT_NONE && !was_faulty && !calm && !words && !alone) repeat (4) call_off;
    for (int k = 0; k < All; k++) faulty[k] = 1'b0;
    write_faults = 1'b0;
    was_faulty   = 1'b0;
    steps        = steps + 1;
    repeat (below(3)) @(posedge clk);
  endtask

  task automatic call_off;
    busy     = 1'b1;
    results  = Contexts;
    runs_for = 0;
    seated   = '0;
    where.owner = 4'd3;
    for (int c = 0; c < Contexts; c++) begin
      where.arena  = arena_at[c];
      where.region = region_at[c];
      spoilt[c]    = Sound;
      seated[c]    = 1'b1;
      step_valid  <= 1'b1;
      step_opens  <= c == 0;
      step_begins <= c == Contexts - 1;
      @(posedge clk);
      while (step_valid) @(posedge clk);
    end
    repeat (below(chance(30) ? 300 : 3000)) @(posedge clk);
    unwanted <= seated | (Seats'(rnd()) & ~seated);
    for (int r = 0; r < results; r++) begin
      while (!result_valid) @(posedge clk);
      repeat (below(3)) @(posedge clk);
      judge(int'(result_gang) * Contexts + int'(result_context));
      result_ready <= 1'b1;
      @(posedge clk);
      while (result_ready) @(posedge clk);
    end
    after;
  endtask

  // What a step has left is taken back.
  task automatic after;
    busy = 1'b0;
    if (runs_for > longest) longest = runs_for;
    doom_in  = -1;
    unwanted <= '0;
    for (int s = 0; s < Seats; s++) begin
      for (int k = 0; k < Lines; k++) dut.u_chip.mem[s * Lines + k] = expected_chip[k];
      for (int k = 0; k < Arena; k++) memory[ArenaAt + s * Arena + k] = expected_arena[k];
      for (int k = 0; k < Region; k++) memory[RegionAt + s * Region + k] = expected_region[k];
    end
    repeat (below(3)) @(posedge clk);
  endtask

  initial begin
    calm   = $test$plusargs("calm");
    alone  = $test$plusargs("alone");
    cycles = $test$plusargs("cycles");
    words  = $test$plusargs("words");
    both   = $test$plusargs("both");
    if (words && !both) alone = 1'b1;
    if (!$value$plusargs("latency=%d", latency)) latency = 64;
    for (int k = 0; k < All; k++) begin memory[k] = '0; faulty[k] = 1'b0; end
    for (int k = 0; k < Arena; k++) expected_arena[k] = '0;
    for (int k = 0; k < Region; k++) expected_region[k] = '0;
    where   = '0;
    step    = '0;
    if (!$value$plusargs("script=%s", path)) $fatal(1, "+script=FILE is missing; `cargo run -p doorbell-npu --example vectors` makes one");
    file = $fopen(path, "r");
    if (file == 0) $fatal(1, "%0s cannot be read", path);
    @(posedge rst_n);
    while ($fscanf(file, " %c", letter) == 1) begin
      case (letter)
        "C", "M", "A", "B", "D", "W", "K", "U": begin
          if ($fscanf(file, " %h %h", line, data) != 2) $fatal(1, "a line is cut off");
          case (letter)
            "C": begin for (int s = 0; s < Seats; s++) dut.u_chip.mem[s * Lines + line] = data; expected_chip[line] = data; end
            "M": memory[line] = data;
            "A": begin for (int s = 0; s < Seats; s++) memory[ArenaAt + s * Arena + line] = data; expected_arena[line] = data; end
            "B": memory[TableAt + line] = data;
            "D": begin for (int s = 0; s < Seats; s++) memory[RegionAt + s * Region + line] = data; expected_region[line] = data; end
            "W": expected_chip[line] = data;
            "K": expected_arena[line] = data;
            default: expected_region[line] = data;
          endcase
        end
        "F": begin
          if ($fscanf(file, " %h", line) != 1) $fatal(1, "a line is cut off");
          faulty[line] = 1'b1;
          was_faulty   = 1'b1;
        end
        "G": begin
          if ($fscanf(file, " %h", line) != 1) $fatal(1, "a line is cut off");
          for (int s = 0; s < Seats; s++) faulty[ArenaAt + s * Arena + line] = 1'b1;
          was_faulty             = 1'b1;
        end
        "V": begin
          if ($fscanf(file, " %h", line) != 1) $fatal(1, "a line is cut off");
          write_faults = 1'b1;
          was_faulty   = 1'b1;
        end
        "S": begin
          for (int k = 0; k < 6; k++) if ($fscanf(file, " %h", numbers[k]) != 1) $fatal(1, "a step is cut off");
          step.token     = numbers[0];
          step.position  = numbers[1];
          step.silent    = numbers[2][0];
          step.scores    = numbers[2][1];
          step.sharpness = numbers[3][27:0];
          step.seed      = numbers[4];
          step.rollout   = numbers[5];
        end
        "X": begin
          for (int k = 0; k < 6; k++) if ($fscanf(file, " %h", numbers[k]) != 1) $fatal(1, "a context is cut off");
          where.model         = {10'h001, rnd(), 16'd0};
          where.model_lines   = MEMORY_BITS'(numbers[0]);
          where.program_line  = MEMORY_BITS'(numbers[1]);
          where.program_words = numbers[2][15:0];
          where.arena         = {10'h002, rnd(), 16'd0} + ADDRESS_BITS'(below(1000));
          where.arena_lines   = MEMORY_BITS'(numbers[3]);
          where.table_line    = {10'h3F0, rnd(), 16'd0};
          where.table_entries = numbers[4][11:0];
          where.region        = {10'h200, rnd(), 16'd7};
          where.region_lines  = numbers[5][15:0];
          // Those of a model, which have four blocks: their programs embed a token and look a block up.
          models              = numbers[4] == 4;
          for (int s = 0; s < Seats; s++) begin
            arena_at[s]  = {10'h002, 4'(s), 28'(rnd()), 16'd0} + ADDRESS_BITS'(below(1000));
            region_at[s] = {10'h200, 4'(s), 28'(rnd()), 16'd7};
          end
        end
        "R": begin
          if ($fscanf(file, " %h %h %h %h", sampled, token, logp, log) != 4) $fatal(1, "a result is cut off");
          run;
        end
        default: $fatal(1, "%c is no letter of a script", letter);
      endcase
    end
    if (!calm && !words && !alone && given_up < 4) fail($sformatf("only %0d results were given up", given_up));
    if (steps < 6) fail($sformatf("%0d steps are too few", steps));
    $display("%0d results given up, at the latest in %0d cycles; %0d times with one that is waited for", given_up, longest, spared);
    $display("%0d steps, %0d times shared, %0d stopped, of them %0d by memory and %0d alone, %0d cycles", steps, shared, faults + stopped, some_faulty, stopped, cycle);
    finish_bench("npu_top_tb");
  end
endmodule
