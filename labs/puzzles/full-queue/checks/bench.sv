// Drives completion_slots as dispatcher, workers and host do, and keeps what the memory of the queue holds.
module bench;
  import puzzle_pkg::*;

  localparam int SmallLog2 = 2, LargeLog2 = 4;
  localparam int Most      = 1 << LargeLog2;
  string why = "R4: a device writes a slot only after the host has released it. Where no slot is free it hands out nothing.";
  string header = "cycle | slot_o hand_out | post slot phase | CQ_HEAD  | in flight | the slots: the completion in each that the host has not released";

  // The first queue begins at index 0. The second is larger and begins in the middle of a lap. Its indices wrap at 2^32
  // after less than two laps.
  localparam logic [31:0] Late = 32'd0 - 32'(2 * Most - 5);
  logic [31:0] first = '0;              // of the queue that runs
  wire is_late = first != '0;
  wire [31:0] size_log2 = is_late ? LargeLog2 : SmallLog2;
  wire [31:0] size      = 32'd1 << size_log2;

  logic clk = 1'b0, rst_n = 1'b0;
  logic slot, hand_out = 1'b0, post = 1'b0, phase, released = 1'b0;
  logic slots [0:1], phases [0:1];
  logic [LargeLog2-1:0] post_slot, post_slots [0:1], slot_of_index;
  logic [31:0] release_head = '0;

  for (genvar k = 0; k < 2; k++) begin : gen_queue
    // The queue that does not run stays in reset.
    wire runs = is_late == (k == 1);
    localparam int SizeLog2 = (k == 0) ? SmallLog2 : LargeLog2;
    logic [SizeLog2-1:0] own_slot;
    assign post_slots[k] = LargeLog2'(own_slot);
    completion_slots #(.SizeLog2(SizeLog2), .First(k == 0 ? 32'd0 : Late)) u_slots (
      .clk_i(clk), .rst_ni(rst_n && runs), .slot_o(slots[k]), .hand_out_i(hand_out), .post_i(post),
      .post_slot_o(own_slot), .post_phase_o(phases[k]), .release_i(released), .release_head_i(release_head)
    );
  end
  assign slot      = slots[is_late];
  assign phase     = phases[is_late];
  assign post_slot = post_slots[is_late];

  // Completions count from 0 here; their indices from `first`.
  int cycle = 0, given = 0, posted = 0, head = 0, held_for = 0, all = 0;
  int holds [0:Most-1];                 // the completion in each slot; -1: free
  logic wants, ends, wakes;             // drawn one by one, so that each simulator draws the same
  int frees;
  string path, map, queue;
  logic [31:0] index;                   // of the next completion
  logic phase_of_index;

  // The index of a completion.
  function automatic string shown(input int completion);
    if (is_late) shown = $sformatf("%08h", first + completion);
    else         shown = $sformatf("%0d", completion);
  endfunction

  // The slot of a completion.
  function automatic int at(input int completion);
    at = int'((first + completion) & (size - 1));
  endfunction

  // One cycle: what is wanted, and what comes of it.
  task automatic step(input logic want, input logic want_post, input int free);
    @(negedge clk);
    released = free > 0 && head < posted;
    if (released) begin
      for (int k = 0; k < free && head < posted; k++) begin
        holds[at(head)] = -1;
        head = head + 1;
      end
      release_head = first + head;
    end
    post     = want_post && posted < given;
    hand_out = 1'b0;
    #1;
    if (slot !== 1'b0 && slot !== 1'b1) still_wrong("slot_o is unknown: a register that it depends on has no value after the reset.", {why, queue}, header);
    hand_out = want && slot;
    #1;
    index          = first + posted;
    slot_of_index  = LargeLog2'(at(posted));
    phase_of_index = !index[size_log2[4:0]];
    map = "";
    for (int k = 0; k < size; k++)
      if (holds[k] < 0)  map = $sformatf("%0s%0s", map, is_late ? "[  ]" : "[    ]");
      else if (is_late)  map = $sformatf("%0s[%02h]", map, 8'(first + holds[k]));
      else               map = $sformatf("%0s[%4s]", map, shown(holds[k]));
    note($sformatf("%5d |   %b      %b    |  %b   %2d     %b  | %8s | %9d | %0s", cycle, slot, hand_out, post, post_slot, phase, shown(head), given - posted, map));
    if (post) begin
      if (post_slot !== slot_of_index)
        still_wrong($sformatf("cycle %0d: completion %0s goes into slot %0d, and its slot is %0d.", cycle, shown(posted), post_slot, slot_of_index),
                    {"R13: slot = index modulo size.", queue}, header);
      if (phase !== phase_of_index)
        still_wrong($sformatf("cycle %0d: completion %0s carries phase %b, and the phase of its index is %b.", cycle, shown(posted), phase, phase_of_index),
                    {"R13: the phase is 1 on the first pass from index 0, and changes with each pass.", queue}, header);
      if (holds[at(posted)] >= 0)
        still_wrong($sformatf("cycle %0d: completion %0s is written over completion %0s, which the host has not released (CQ_HEAD is %0s).", cycle, shown(posted),
                              shown(holds[at(posted)]), shown(head)), {why, queue}, header);
      holds[at(posted)] = posted;
      posted = posted + 1;
    end
    // Slots that nobody holds and nobody will need: the dispatcher must not stand still for long.
    held_for = (!slot && given - head < size && !released) ? held_for + 1 : 0;
    if (held_for > 2)
      still_wrong($sformatf("cycle %0d: slot_o has been low for 3 cycles, although only %0d of %0d slots are taken or will be.", cycle, given - head, size),
                  {"R3, R4: a device stalls only where no slot is free. One that keeps slots back gets slower, or stops.", queue}, header);
    if (hand_out) given = given + 1;
    @(posedge clk);
    cycle = cycle + 1;
  endtask

  // One queue, from its reset on.
  task automatic run;
    rst_n = 1'b0;
    hand_out = 1'b0;
    post = 1'b0;
    released = 1'b0;
    cycle = 0;
    given = 0;
    posted = 0;
    head = 0;
    held_for = 0;
    noted = 0;
    for (int k = 0; k < Most; k++) holds[k] = -1;
    repeat (2) @(posedge clk);
    #1 rst_n = 1'b1;
    // Everything is handed out before the first descriptor ends, and the host takes nothing.
    repeat (size + 3) step(1'b1, 1'b0, 0);
    repeat (size + 3) step(1'b1, 1'b1, 0);
    // The host wakes up.
    repeat (3 * size) step(1'b1, 1'b1, 1);
    // One in, one out.
    repeat (3 * size) step(1'b1, 1'b1, size);
    repeat (2 * size) step(1'b0, 1'b1, size);
    for (int k = 0; k < 3000; k++) begin
      wants = chance(60);
      ends  = chance(k % 900 < 300 ? 20 : 70);
      wakes = chance(k % 700 < 350 ? 10 : 50);
      frees = 1 + below(3);
      step(wants, ends, wakes ? frees : 0);
    end
    if (posted < 300) still_wrong($sformatf("only %0d completions in %0d cycles.", posted, cycle), {"R3: every descriptor yields a completion.", queue}, header);
    all = all + posted;
  endtask

  always #5 clk = ~clk;

  initial begin
    if ($value$plusargs("wave=%s", path)) begin
      $dumpfile(path);
      $dumpvars(0, bench);
    end
    // A loop, because Verilator inlines a task at each call.
    for (int k = 0; k < 2; k++) begin
      if (k == 1) begin
        first = Late;
        queue = $sformatf("\nA queue of %0d slots, whose indices wrap at 2^32. They are shown in hexadecimal, from", Most);
        queue = $sformatf("%0s the first index %0h on; in the slots, by their last two digits.", queue, Late);
      end
      run;
    end
    solved($sformatf("%0d completions, none written over another, and no slot kept back.", all));
  end
endmodule
