// npu_blocks: two units that ask at once, each for any of three contexts, tables that change between steps, entries and strides of all sizes,
// lines that are answered with an error. Each answer is held to the context's table, each fetch to what the answers need.
module npu_blocks_tb;
  import bench_pkg::*;
  import npu_unit_pkg::*;

  logic clk, rst_n;
  int   cycle;
  clock_reset #(.Limit(400_000)) u_clock (.clk_o(clk), .rst_no(rst_n), .cycle_o(cycle));

  localparam int Lines    = 128;          // of a table of 2,048 entries
  localparam int Contexts = 3;

  logic                        forget = 1'b0;
  logic                        who;
  int                          served;
  logic [MEMORY_BITS-1:0]      arenas [0:Contexts-1], arena_lines;
  logic [11:0]                 counts [0:Contexts-1], entries;    // of each table
  logic [1:0]                  ask = 2'b00, answer;
  logic [1:0][2:0]             asker = '0;
  logic [1:0][10:0]            entry = '0;
  logic [1:0][31:0]            stride = '0;
  logic [MEMORY_BITS-1:0]      line, fetch_line;
  logic [3:0]                  ended;
  logic                        fetch_valid, fetch_ready = 1'b0, beat_valid = 1'b0, beat_fault = 1'b0, beat_ready;
  logic [15:0]                 fetch_lines;
  logic [511:0]                beat_data = 'x;

  npu_blocks #(.Contexts(Contexts)) dut (
    .clk_i(clk), .rst_ni(rst_n), .forget_i(forget), .asker_o(who), .entries_i(entries), .arena_lines_i(arena_lines),
    .ask_i(ask), .context_i(asker), .entry_i(entry), .stride_i(stride), .answer_o(answer), .line_o(line), .end_o(ended),
    .fetch_valid_o(fetch_valid), .fetch_line_o(fetch_line), .fetch_lines_o(fetch_lines), .fetch_ready_i(fetch_ready),
    .beat_valid_i(beat_valid), .beat_data_i(beat_data), .beat_fault_i(beat_fault), .beat_ready_o(beat_ready)
  );

  always_comb begin
    served      = int'(asker[who]);
    entries     = counts[served];
    arena_lines = arenas[served];
  end

  logic [31:0] numbers [0:Contexts*16*Lines-1];
  logic        broken  [0:Contexts*Lines-1];
  logic        active = 1'b0;             // questions are drawn
  int          asked = 0, answered = 0, fetched = 0, faults = 0, refused = 0;
  int          passed_over [0:1];
  int          kept [0:Contexts-1];       // line of the table that the block may have
  int          whose;

  function automatic logic [31:0] drawn_stride();
    drawn_stride = chance(60) ? 32'(between(1, 12_000)) : chance(50) ? rnd() : 32'(between(1, 3));
  endfunction

  task automatic draw_table;
    for (int c = 0; c < Contexts; c++) begin
      counts[c] = chance(70) ? 12'(between(1, 60)) : chance(50) ? 12'd2048 : 12'(below(2049));
      arenas[c] = chance(70) ? MEMORY_BITS'(between(1, 400_000)) : MEMORY_BITS'({rnd(), rnd()});
      kept[c]   = -1;
    end
    for (int k = 0; k < Contexts * 16 * Lines; k++) numbers[k] = chance(80) ? 32'(below(40)) : chance(50) ? rnd() : 32'hFFFF_FFFF;
    for (int k = 0; k < Contexts * Lines; k++) broken[k] = chance(5);
  endtask

  // ---------------------------------------------------------------- memory
  int          waits = 0, owed = -1;
  always @(posedge clk) begin
    fetch_ready <= chance(60);
    if (beat_valid && beat_ready) begin
      beat_valid <= 1'b0;
      beat_data  <= 'x;
    end
    if (owed >= 0) begin
      if (waits != 0) waits = waits - 1;
      else begin
        beat_valid <= 1'b1;
        beat_fault <= broken[Lines*served + owed];
        for (int k = 0; k < 16; k++) beat_data[32*k +: 32] <= broken[Lines*served + owed] ? 'x : numbers[16*(Lines*served + owed) + k];
        kept[served] = broken[Lines*served + owed] ? -1 : owed;
        owed = -1;
      end
    end
    if (rst_n && fetch_valid && fetch_ready) begin
      fetched = fetched + 1;
      if (fetch_lines != 16'd1) fail($sformatf("N5: a fetch of %0d lines", fetch_lines));
      owed  = int'(fetch_line);
      waits = below(12);
      if (owed >= Lines || 16 * owed >= int'(entries)) fail($sformatf("N5: a fetch of line %0d of a table of %0d entries", owed, entries));
      else if (owed == kept[served]) fail($sformatf("line %0d of the table is fetched again", owed));
    end
  end

  // ---------------------------------------------------------------- who asks
  logic [63:0] start;
  logic [3:0]  expected;
  always @(posedge clk) begin
    if (rst_n && answer == 2'b11) fail("N1: both are answered at once");
    for (int u = 0; u < 2; u++) begin
      if (rst_n && answer[u]) begin
        answered = answered + 1;
        if (!ask[u]) fail($sformatf("N1: unit %0d is answered and asked nothing", u));
        whose    = int'(asker[u]);
        start    = 64'(numbers[16*Lines*whose + entry[u]]) * 64'(stride[u]);
        expected = {1'b0, entry[u]} >= counts[whose] ? UNIT_MISSING : broken[Lines*whose + entry[u] / 16] ? UNIT_MEMORY
                 : (65'(start) + 65'(stride[u]) > 65'(arenas[whose])) ? UNIT_BLOCK : UNIT_FINE;
        if (ended !== expected) fail($sformatf("entry %0d of %0d, number %0d, stride %0d, arena of %0d: ended with %0d, expected %0d",
                                               entry[u], counts[whose], numbers[16*Lines*whose + entry[u]], stride[u], arenas[whose], ended, expected));
        else if (expected == UNIT_FINE && line !== start[MEMORY_BITS-1:0]) fail($sformatf("entry %0d: line %0d, expected %0d", entry[u], line, start));
        if (expected == UNIT_MEMORY) faults = faults + 1;
        else if (expected != UNIT_FINE) refused = refused + 1;
        ask[u] <= 1'b0;
        passed_over[u] = 0;
        if (ask[1-u]) begin
          passed_over[1-u] = passed_over[1-u] + 1;
          if (passed_over[1-u] > 1) fail($sformatf("unit %0d waits for %0d questions of the other", 1 - u, passed_over[1-u]));
        end
      end
      // The next question may come in the cycle behind the answer.
      if (active && (!ask[u] || answer[u]) && chance(u == 0 ? 30 : 80)) begin
        asked     = asked + 1;
        ask[u]   <= 1'b1;
        whose     = below(Contexts);
        asker[u] <= 3'(whose);
        entry[u] <= chance(80) ? 11'(below(int'(counts[whose]) + 2)) : chance(50) ? 11'(below(16)) : 11'(below(2048));
        stride[u] <= drawn_stride();
      end
    end
  end

  initial begin
    passed_over[0] = 0;
    passed_over[1] = 0;
    draw_table();
    @(posedge rst_n);
    for (int step = 0; step < 60; step++) begin
      #1 active = 1'b1;
      repeat (between(20, 1500)) @(posedge clk);
      #1 active = 1'b0;
      waits_for = "an answer";
      while (ask != 2'b00) @(posedge clk);
      repeat (2) @(posedge clk);
      #1 draw_table();
      forget = 1'b1;
      @(posedge clk);
      #1 forget = 1'b0;
    end
    if (asked != answered) fail($sformatf("%0d questions, %0d answers", asked, answered));
    if (faults < 10 || refused < 100 || fetched < 100 || fetched + 500 > answered) fail($sformatf("drawn too tame: %0d answers, %0d fetches, %0d faults, %0d refused", answered, fetched, faults, refused));
    $display("%0d questions, %0d fetches, %0d faults, %0d refused", asked, fetched, faults, refused);
    finish_bench("npu_blocks_tb");
  end
endmodule
