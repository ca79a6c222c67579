// Gives hazards the words of a program, with units that take any time, and compares each word that begins with those in flight, line by line.
module bench;
  import puzzle_pkg::*;

  localparam int Units = 3;
  localparam int Lines = 256;
  localparam int Near = 24;                          // lines that neighbours in the program share
  string header = "cycle | in flight: unit 0, reads, writes | unit 1                | unit 2                | next: word, unit, reads, writes | taken";
  string order = "N3: a word begins only after every earlier word on another unit that writes what it reads, or reads or writes what it writes. Else the result depends on timing.";
  string speed = "N3: only a word that meets an earlier one waits. Whatever else waits costs speed, and a program is scheduled as if it did not.";

  logic clk = 1'b0, rst_n = 1'b0, valid = 1'b0, taken;
  logic [1:0] unit = '0;
  logic [7:0] read_first = '0, read_stop = 8'd1, write_first = 8'd1, write_stop = 8'd2;
  logic [Units-1:0] done = '0;
  string path, text, row;

  hazards #(.Units(Units)) u_hazards (.clk_i(clk), .rst_ni(rst_n), .valid_i(valid), .unit_i(unit), .read_first_i(read_first), .read_stop_i(read_stop),
    .write_first_i(write_first), .write_stop_i(write_stop), .taken_o(taken), .done_i(done));

  always #5 clk = ~clk;

  int cycle = 0, word = 0, held_for = 0, met, met_kind;
  int at [0:Units-1], left [0:Units-1];              // the word on each unit, -1: none; cycles that it still takes
  logic [Lines-1:0] reads [0:Units-1], writes [0:Units-1];
  int spans [0:4*Units-1];
  logic [Lines-1:0] word_reads, word_writes;
  logic waits;                                       // the word meets something in flight
  int raws = 0, wars = 0, waws = 0, beside = 0;

  function automatic logic [Lines-1:0] bits(input int first, input int stop);
    bits = ({Lines{1'b1}} << first) & ~({Lines{1'b1}} << stop);
  endfunction

  // A word, or one that is not there yet, and which units are done.
  task automatic show(input logic is_there, input int on, input int rf, input int rs, input int wf, input int ws);
    @(negedge clk);
    valid       = is_there;
    unit        = on;
    read_first  = rf;
    read_stop   = rs;
    write_first = wf;
    write_stop  = ws;
    for (int u = 0; u < Units; u++) done[u] = at[u] >= 0 && left[u] == 0;
    #1;
  endtask

  // What is in flight after this cycle.
  task automatic advance();
    for (int u = 0; u < Units; u++) begin
      if (done[u])         at[u] = -1;
      else if (at[u] >= 0) left[u] = left[u] - 1;
    end
  endtask

  // A cycle in which this is no word yet: nothing begins.
  task automatic pause(input int on, input int rf, input int rs, input int wf, input int ws);
    show(1'b0, on, rf, rs, wf, ws);
    if (taken !== 1'b0) still_wrong($sformatf("cycle %0d: taken_o is %b, and valid_i is 0: there is no next word.", cycle, taken),
                                    "A word begins only while valid_i says that there is one.", header);
    advance();
    @(posedge clk);
    cycle = cycle + 1;
    #1;
  endtask

  // One word to its beginning; it takes `cycles` on its unit.
  task automatic give(input int on, input int rf, input int rs, input int wf, input int ws, input int cycles);
    logic begun;
    begun       = 1'b0;
    held_for    = 0;
    word_reads  = bits(rf, rs);
    word_writes = bits(wf, ws);
    while (!begun && !ended) begin
      show(1'b1, on, rf, rs, wf, ws);
      row = $sformatf("%5d |", cycle);
      for (int u = 0; u < Units; u++)
        if (at[u] < 0) row = $sformatf("%0s %0s", row, (u == 0) ? "-                             |" : "-                     |");
        else begin
          text = $sformatf("w%0d %0d-%0d %0d-%0d", at[u], spans[4*u], spans[4*u+1] - 1, spans[4*u+2], spans[4*u+3] - 1);
          if (u == 0) row = $sformatf("%0s %-29s |", row, text);
          else        row = $sformatf("%0s %-21s |", row, text);
        end
      text = $sformatf("w%0d unit %0d %0d-%0d %0d-%0d", word, on, rf, rs - 1, wf, ws - 1);
      note($sformatf("%0s %-31s | %b", row, text, taken));
      if (taken !== 1'b0 && taken !== 1'b1) still_wrong($sformatf("cycle %0d: taken_o is unknown.", cycle), order, header);
      // The earlier word that this one meets: 1 RAW, 2 WAR, 3 WAW, 4 its unit.
      met_kind = 0;
      waits = 1'b0;
      for (int u = 0; u < Units; u++) if (at[u] >= 0 && met_kind == 0) begin
        met = u;
        if (u == on)                               met_kind = 4;
        else if ((writes[u] & word_reads) != '0)   met_kind = 1;
        else if ((reads[u] & word_writes) != '0)   met_kind = 2;
        else if ((writes[u] & word_writes) != '0)  met_kind = 3;
        if (met_kind != 0) waits = 1'b1;
        // What is done in this cycle uses no line in the next one, in which the new word begins to: it may wait for it, and need not.
        if (done[u]) met_kind = 0;
      end
      if (taken) begin
        case (met_kind)
          1: still_wrong($sformatf("cycle %0d: word %0d begins and reads lines %0d to %0d, while word %0d on unit %0d has yet to write lines %0d to %0d (RAW).",
                                   cycle, word, rf, rs - 1, at[met], met, spans[4*met+2], spans[4*met+3] - 1), order, header);
          2: still_wrong($sformatf("cycle %0d: word %0d begins and writes lines %0d to %0d, while word %0d on unit %0d has yet to read lines %0d to %0d (WAR).",
                                   cycle, word, wf, ws - 1, at[met], met, spans[4*met], spans[4*met+1] - 1), order, header);
          3: still_wrong($sformatf("cycle %0d: word %0d begins and writes lines %0d to %0d, while word %0d on unit %0d has yet to write lines %0d to %0d (WAW).",
                                   cycle, word, wf, ws - 1, at[met], met, spans[4*met+2], spans[4*met+3] - 1), order, header);
          4: still_wrong($sformatf("cycle %0d: word %0d begins on unit %0d, which runs word %0d.", cycle, word, on, at[met]), order, header);
          default: ;
        endcase
      end
      held_for = (!taken && !waits) ? held_for + 1 : 0;
      if (held_for > 2) still_wrong($sformatf("cycle %0d: word %0d is held back for the third cycle, and meets nothing that is in flight.", cycle, word), speed, header);
      if (met_kind == 1) raws = raws + 1;
      if (met_kind == 2) wars = wars + 1;
      if (met_kind == 3) waws = waws + 1;
      advance();
      if (taken) begin
        for (int u = 0; u < Units; u++) if (at[u] >= 0) beside = beside + 1;
        at[on]        = word;
        left[on]      = cycles;
        reads[on]     = word_reads;
        writes[on]    = word_writes;
        spans[4*on]   = rf;
        spans[4*on+1] = rs;
        spans[4*on+2] = wf;
        spans[4*on+3] = ws;
        begun         = 1'b1;
      end
      @(posedge clk);
      cycle = cycle + 1;
    end
    #1 valid = 1'b0;
    word = word + 1;
  endtask

  // Drawn one by one, and whatever else is drawn: where a draw depends on another one, Verilator 5.006 makes both.
  int rf, rs, wf, ws, on, cycles, base, length, near, away;
  logic short, pauses, far, is_long, is_read, is_all;
  initial begin
    if ($value$plusargs("wave=%s", path)) begin
      $dumpfile(path);
      $dumpvars(0, bench);
    end
    for (int u = 0; u < Units; u++) begin
      at[u]   = -1;
      left[u] = 0;
    end
    repeat (2) @(posedge clk);
    #1 rst_n = 1'b1;
    give(0, 4, 8, 12, 13, 20);
    give(1, 0, 1, 9, 10, 3);            // meets nothing
    give(1, 13, 14, 8, 9, 3);           // next to what word 0 reads and writes, and no more
    give(2, 1, 2, 7, 8, 2);             // WAR: the last line that word 0 reads
    give(0, 8, 10, 14, 16, 8);          // RAW
    give(1, 0, 2, 3, 4, 3);
    give(2, 4, 5, 2, 4, 3);             // the last line, WAW
    give(1, 20, 21, 10, 12, 9);         // next to word 4
    give(2, 22, 23, 19, 23, 4);         // WAR in its middle
    for (int k = 0; k < 1500; k++) begin
      // Neighbours in all of memory, and one word in ten that reads somewhere else.
      base = (k / 250) * 55;
      if (base > Lines - 1 - Near) base = Lines - 1 - Near;
      far = chance(10);
      near = base + below(Near - 4);
      away = below(Lines - 5);
      rf = far ? away : near;
      rs = rf + 1 + below(4);
      wf = base + below(Near - 4);
      ws = wf + 1 + below(4);
      // In the second half one word in eight has a long range, and two words have the longest possible.
      is_long = chance(12) && k >= 750;
      is_read = chance(50);
      length  = 5 + below(56);
      is_all  = k == 900 || k == 1200;
      if (is_all) begin
        is_read = k == 900;
        is_long = 1'b1;
        length  = Lines - 1;
        if (is_read) rf = 0;
        else         wf = 0;
      end
      if (is_long && is_read)  rs = (rf + length < Lines) ? rf + length : Lines - 1;
      if (is_long && !is_read) ws = (wf + length < Lines) ? wf + length : Lines - 1;
      on     = below(Units);
      short  = chance(70);
      cycles = 1 + below(short ? 6 : 20);
      pauses = chance(10);
      if (pauses && !ended) pause(on, rf, rs, wf, ws);
      give(on, rf, rs, wf, ws, cycles);
    end
    if (raws < 50 || wars < 50 || waws < 50 || beside < 100)
      still_wrong($sformatf("of %0d words only %0d ran beside others.", word, beside), speed, header);
    solved($sformatf("%0d words: each waited for what it meets, and for nothing else.", word));
  end
endmodule
