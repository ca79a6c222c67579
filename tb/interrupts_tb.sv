// interrupts: R14 against a reference that scans the completions one by one, in every cycle. Directed: ARM at, below and above
// the newest visible completion, across 2^32 and at 2^31; counts and times at their ends; everything that can meet in one
// cycle; drains that end. Then random races of ARM, completions, masks, stalls, responses, drains, disables and starts.
//   +races=N   armings of each vector in the random part (default 800; 10,000 with +long)
module interrupts_tb;
  import bench_pkg::*;

  logic clk, rst_n;
  int   cycle;
  clock_reset #(.Limit(100_000_000)) u_clock (.clk_o(clk), .rst_no(rst_n), .cycle_o(cycle));

  int races;
  initial if (!$value$plusargs("races=%d", races)) races = drawn(800, 10000);

  interrupts_run #(.Queues(1)) u_one  (.clk(clk), .rst_n(rst_n), .races(races));
  interrupts_run #(.Queues(3)) u_many (.clk(clk), .rst_n(rst_n), .races(races));

  initial begin
    @(posedge rst_n);
    while (!(u_one.over && u_many.over)) @(posedge clk);
    finish_bench("interrupts_tb");
  end
endmodule

module interrupts_run #(
  parameter int Queues = 1
) (
  input logic clk,
  input logic rst_n,
  input int   races
);
  import bench_pkg::*;
  import desc_pkg::*;
  import core_pkg::*;

  localparam int Many = 131072;         // completions that are remembered

  logic over = 1'b0;

  // ---------------------------------------------------------------- what is driven, at the falling edge
  logic        start = 1'b0, stop = 1'b0, arm = 1'b0, table_write = 1'b0, ready = 1'b1, ack = 1'b0, ack_error = 1'b0;
  logic [3:0]  pair = '0, answered_pair = '0, read_pair = '0;   // start, stop, ARM and the table share the register port
  logic [31:0] data = '0;
  logic [1:0]  word = '0, answered = '0, asks = '0;             // asks: of the last one, of the one before it
  logic [5:0]  ack_id = '0;
  logic        reading = 1'b0;
  logic [15:0] count_limit = '0;
  logic [31:0] time_limit = '0;
  logic        run = 1'b1;                // 0: the device is reset, and the bus lives on
  queue_config_t config_now;
  logic [Queues-1:0] on = '0, drained = '0;      // drained: no completion comes any more

  always_comb begin
    config_now = '0;
    config_now.coalesce_count = count_limit;
    config_now.coalesce_time  = time_limit;
  end

  // ---------------------------------------------------------------- the device
  logic [31:0] visible [0:Queues-1];    // behind the newest
  logic [31:0] visible_now, arm_visible, asked_to, arm_read, message_data;
  logic [95:0] entry_read;
  logic [63:0] message_addr;
  logic [3:0]  message_queue;
  logic        message_valid;
  logic [Queues-1:0] armed, masked, pending, waits, busy, fault;

  assign visible_now = visible[answered_pair] + 32'(answered);
  assign asked_to    = asks[0] ? visible_now : visible_now - 32'd1;
  assign arm_visible = visible[pair];

  interrupts #(.Queues(Queues)) u_dut (
    .clk_i(clk), .rst_ni(rst_n && run), .inner_rst_ni(rst_n && run), .bus_rst_ni(rst_n), .start_i(start), .start_queue_i(pair), .start_config_i(config_now),
    .on_i(on), .drained_i(drained), .write_queue_i(pair), .write_data_i(data), .arm_i(arm), .arm_visible_i(arm_visible),
    .table_write_i(table_write), .table_word_i(word), .read_i(reading), .read_queue_i(read_pair), .arm_o(arm_read),
    .message_o(entry_read), .armed_o(armed), .masked_o(masked), .pending_o(pending),
    .answered_i(answered), .answered_queue_i(answered_pair), .visible_i(visible_now), .asks_i(asks != '0), .asked_i(asked_to),
    .message_valid_o(message_valid), .message_queue_o(message_queue), .message_addr_o(message_addr),
    .message_data_o(message_data), .message_ready_i(ready), .ack_i(ack), .ack_id_i(ack_id), .ack_error_i(ack_error),
    .waits_o(waits), .busy_o(busy), .fault_o(fault)
  );

  // ---------------------------------------------------------------- the reference
  // All completions of a queue pair since its start, by number.
  logic        asked_bit [0:Queues*Many-1];
  int          made [0:Queues-1];
  logic [31:0] first [0:Queues-1];      // index of number 0
  logic [15:0] count_of [0:Queues-1];
  logic [31:0] time_of [0:Queues-1], arm_of [0:Queues-1];
  logic [31:0] entry [0:4*Queues-1];
  // As they stand in this cycle, before what happens in it.
  logic        is_armed [0:Queues-1], is_pending [0:Queues-1], is_masked [0:Queues-1], is_sent [0:Queues-1];
  logic        runs [0:Queues-1];       // a deadline
  logic        above [0:Queues-1];      // armed, and one at or above ARM is visible
  longint      due [0:Queues-1], now = 0;
  // Of the cycle before.
  logic        could_expire [0:Queues-1], fired [0:Queues-1], could_send [0:Queues-1], was_valid = 1'b0, was_ready = 1'b0;
  logic        was_on [0:Queues-1];
  logic        is_new, some_could;
  int          armings [0:Queues-1], fires [0:Queues-1], messages [0:Queues-1], expired = 0, faults = 0, merged = 0, together = 0, drains = 0;
  int          scanned, n_above;
  logic        asked_above, hit;

  initial for (int q = 0; q < Queues; q++) begin
    visible[q] = '0; made[q] = 0; first[q] = '0; count_of[q] = '0; time_of[q] = '0; arm_of[q] = '0;
    is_armed[q] = 1'b0; is_pending[q] = 1'b0; is_masked[q] = 1'b1; is_sent[q] = 1'b0; runs[q] = 1'b0; due[q] = 0; above[q] = 1'b0;
    could_expire[q] = 1'b0; fired[q] = 1'b0; could_send[q] = 1'b0; was_on[q] = 1'b0;
    armings[q] = 0; fires[q] = 0; messages[q] = 0;
    for (int k = 0; k < 4; k++) entry[4*q + k] = '0;
  end

  // Of the completions below number 'upto': those at or above ARM, and whether one of them asks. From the newest down; they
  // have no gaps.
  task automatic scan(input int q, input int upto);
    logic [31:0] above;
    logic        go_on;
    n_above     = 0;
    asked_above = 1'b0;
    go_on       = 1'b1;
    for (int k = upto - 1; k >= 0 && go_on; k = k - 1) begin
      above = first[q] + 32'(k) - arm_of[q];
      if (above >= 32'h8000_0000) go_on = 1'b0;
      else begin
        n_above = n_above + 1;
        if (asked_bit[q*Many + k % Many]) asked_above = 1'b1;
      end
    end
  endtask

  // ARM was written, or completions came.
  task automatic look(input int q, input int upto, input logic anew);
    scan(q, upto);
    above[q] = n_above != 0;
    hit = asked_above || (count_of[q] != 0 && n_above >= int'({16'd0, count_of[q]}));
    if (hit) begin
      is_armed[q] = 1'b0;
      runs[q]     = 1'b0;
      fired[q]    = 1'b1;
      fires[q]    = fires[q] + 1;
    end else if (n_above != 0 && time_of[q] != 0 && (anew || !runs[q])) begin
      runs[q] = 1'b1;
      due[q]  = now + longint'({32'd0, time_of[q]});
    end
  endtask

  // A reset of the device alone: what the port has is answered yet, and what stands in its register is withdrawn.
  always @(posedge clk) if (rst_n && !run) begin
    if (fault != '0) fail("R12: an answer after a reset is told as a fault");
    for (int q = 0; q < Queues; q++) begin
      if (message_valid && !ready && message_queue == 4'(q)) is_sent[q] = 1'b0;
      if (ack && ack_id == 6'd32 + 6'(q)) is_sent[q] = 1'b0;
      is_armed[q] = 1'b0; is_pending[q] = 1'b0; is_masked[q] = 1'b1; runs[q] = 1'b0; above[q] = 1'b0; fired[q] = 1'b0;
      could_send[q] = 1'b0; could_expire[q] = 1'b0; was_on[q] = 1'b0; arm_of[q] = '0;
      for (int k = 0; k < 4; k++) begin
        entry[4*q + k]        = '0;
        entry_before[4*q + k] = '0;
      end
    end
    was_valid = 1'b0;
    on <= '0;
  end

  always @(posedge clk) if (rst_n && run) begin
    // What the cycle before has brought: a message in the port's register, deadlines, what has fired.
    is_new     = message_valid && (!was_valid || was_ready);
    some_could = 1'b0;
    for (int q = 0; q < Queues; q++) if (could_send[q]) some_could = 1'b1;
    if (is_new !== (some_could && (!was_valid || was_ready))) fail($sformatf("R14: a new message is %b, expected %b", is_new, some_could));
    if (was_valid && !was_ready && !message_valid) fail("R14: a message went before the port took it");
    if (is_new) begin
      if (!could_send[message_queue]) fail($sformatf("R14: a message of queue pair %0d, which has none to send", message_queue));
      is_pending[message_queue] = 1'b0;
      is_sent[message_queue]    = 1'b1;
      messages[message_queue]   = messages[message_queue] + 1;
      if (message_addr !== {entry_before[4*message_queue + 1], entry_before[4*message_queue]}
          || message_data !== entry_before[4*message_queue + 2])
        fail($sformatf("R14: the message of queue pair %0d is %h at %h", message_queue, message_data, message_addr));
    end
    for (int q = 0; q < Queues; q++) begin
      if (on[q] && is_armed[q] && could_expire[q]) begin
        if (!armed[q]) begin
          if (now - 1 < due[q]) fail($sformatf("R14: COALESCE_TIME of queue pair %0d fires %0d cycles early", q, due[q] - now + 1));
          is_armed[q] = 1'b0;
          runs[q]     = 1'b0;
          fired[q]    = 1'b1;
          fires[q]    = fires[q] + 1;
          expired     = expired + 1;
        end else if (now - 1 >= due[q] + Queues - 1)
          fail($sformatf("R14: COALESCE_TIME of queue pair %0d has passed %0d cycles ago", q, now - 1 - due[q]));
      end
      if (fired[q]) begin
        if (is_pending[q]) merged = merged + 1;
        is_pending[q] = 1'b1;
      end
      if (!on[q] || !was_on[q]) begin
        is_armed[q]   = 1'b0;
        is_pending[q] = 1'b0;
        runs[q]       = 1'b0;
      end
      if (armed[q] !== is_armed[q]) fail($sformatf("R14: queue pair %0d: armed is %b, expected %b", q, armed[q], is_armed[q]));
      if (pending[q] !== is_pending[q]) fail($sformatf("R14: queue pair %0d: pending is %b, expected %b", q, pending[q], is_pending[q]));
      if (masked[q] !== is_masked[q]) fail($sformatf("queue pair %0d: masked is %b", q, masked[q]));
      if (busy[q] !== is_sent[q]) fail($sformatf("R12: queue pair %0d: busy is %b, expected %b", q, busy[q], is_sent[q]));
      if (on[q] && waits[q] !== ((is_pending[q] && !is_masked[q]) || (arm && pair == q) || (drained[q] && is_armed[q] && above[q])))
        fail($sformatf("R14: queue pair %0d: waits is %b", q, waits[q]));
      if (fault[q] !== (ack && ack_error && ack_id == 6'd32 + q)) fail($sformatf("queue pair %0d: fault is %b", q, fault[q]));
      if (fault[q]) faults = faults + 1;
      fired[q]        = 1'b0;
      could_send[q]   = is_pending[q] && !is_masked[q] && !is_sent[q] && on[q];
      could_expire[q] = runs[q] && on[q] && !(arm && pair == q);
      was_on[q]       = on[q];
    end
    for (int k = 0; k < 4*Queues; k++) entry_before[k] = entry[k];
    if (reading && (arm_read !== arm_of[read_pair] || entry_read !== {entry[4*read_pair + 2], entry[4*read_pair + 1], entry[4*read_pair]}))
      fail($sformatf("queue pair %0d reads as ARM %h, entry %h", read_pair, arm_read, entry_read));
    was_valid = message_valid;
    was_ready = ready;

    // What happens in this one. The end of a drain tells of what is visible; a new arming is looked at in the next cycle.
    for (int q = 0; q < Queues; q++) if (on[q] && drained[q] && is_armed[q] && above[q] && !(arm && pair == q)) begin
      is_armed[q] = 1'b0;
      runs[q]     = 1'b0;
      fired[q]    = 1'b1;
      fires[q]    = fires[q] + 1;
      drains      = drains + 1;
    end
    if (answered != 0) begin
      for (int k = 0; k < int'(answered); k++)
        asked_bit[answered_pair*Many + (made[answered_pair] + k) % Many] = asks[int'(answered) - 1 - k];
      made[answered_pair] = made[answered_pair] + int'(answered);
      visible[answered_pair] <= visible_now;
    end
    if (arm) begin
      arm_of[pair]   = data;
      is_armed[pair] = 1'b1;
      runs[pair]     = 1'b0;
      armings[pair]  = armings[pair] + 1;
      if (answered != 0 && answered_pair == pair) together = together + 1;
      look(pair, made[pair], 1'b1);
    end
    if (answered != 0 && !(arm && pair == answered_pair))
      if (on[answered_pair] && is_armed[answered_pair]) look(answered_pair, made[answered_pair], 1'b0);
    if (table_write) begin
      entry[4*pair + word] = data;
      if (word == 3) is_masked[pair] = data[0];
    end
    if (ack) is_sent[ack_id - 32] = 1'b0;
    if (start) begin
      on[pair]       <= 1'b1;
      made[pair]     = 0;
      first[pair]    = data;
      visible[pair] <= data;
      count_of[pair] = count_limit;
      time_of[pair]  = time_limit;
    end
    if (stop) on[pair] <= 1'b0;
    now = now + 1;
  end
  logic [31:0] entry_before [0:4*Queues-1];

  // ---------------------------------------------------------------- driving
  // Ends the cycle.
  logic hold_acks = 1'b0, random_port = 1'b0, spoil_acks = 1'b0;
  int   chosen;
  task automatic tick;
    @(negedge clk);
    {start, stop, arm, table_write, ack, reading} = '0;
    answered = '0;
    asks     = '0;
    if (random_port) ready = chance(75);
    chosen = below(Queues);
    // What stands in the port's register is not on the bus yet.
    if (!hold_acks && is_sent[chosen] && !(message_valid && message_queue == chosen) && (!random_port || chance(40))) begin
      ack       = 1'b1;
      ack_id    = 6'd32 + 6'(chosen);
      ack_error = spoil_acks || (random_port && chance(10));
    end
  endtask

  task automatic idle(input int cycles);
    repeat (cycles) tick;
  endtask

  task automatic put_arm(input int q, input logic [31:0] index);
    pair = 4'(q);
    data = index;
    arm  = 1'b1;
  endtask

  task automatic put_answer(input int q, input int n, input logic [1:0] ask);
    answered_pair = 4'(q);
    answered      = 2'(n);
    asks          = (n == 1) ? {1'b0, ask[0]} : ask;
  endtask

  task automatic put_entry(input int q, input logic [1:0] which, input logic [31:0] value);
    pair        = 4'(q);
    word        = which;
    data        = value;
    table_write = 1'b1;
  endtask

  task automatic put_start(input int q, input logic [31:0] at, input logic [15:0] count, input logic [31:0] ticks);
    pair        = 4'(q);
    data        = at;
    count_limit = count;
    time_limit  = ticks;
    start       = 1'b1;
  endtask

  task automatic put_stop(input int q);
    pair = 4'(q);
    stop = 1'b1;
  endtask

  // A fresh life, unmasked, with so many completions visible, of which the first 'asking' asked.
  task automatic life(input int q, input logic [31:0] at, input logic [15:0] count, input logic [31:0] ticks, input int n,
                      input int asking);
    if (on[q]) begin
      put_stop(q);
      tick;
    end
    idle(6);
    while (is_sent[q]) tick;
    put_start(q, at, count, ticks);
    tick;
    put_entry(q, 2'd3, 32'd0);
    tick;
    for (int k = 0; k < n; k++) begin
      put_answer(q, 1, {1'b0, k < asking});
      tick;
    end
    sent_before = messages[q];
  endtask
  int sent_before;

  // Behind it nothing is on its way, unless answers are held back.
  task automatic expect_messages(input string what, input int q, input int n);
    idle(8 + 3 * Queues);
    while (is_sent[q] && !hold_acks) tick;
    if (messages[q] - sent_before != n) fail($sformatf("R14: %0s: %0d messages, expected %0d", what, messages[q] - sent_before, n));
    sent_before = messages[q];
  endtask

  // ---------------------------------------------------------------- directed
  task automatic case_edges(input int q, input logic [31:0] at);
    logic [31:0] newest;
    newest = at + 32'd4;                  // five are visible, all asked
    life(q, at, 0, 0, 5, 5); put_arm(q, newest);            tick; expect_messages("ARM is the newest", q, 1);
    put_arm(q, newest - 1);                                 tick; expect_messages("ARM is the one below the newest", q, 1);
    put_arm(q, at);                                         tick; expect_messages("ARM is the first", q, 1);
    put_arm(q, at - 1);                                     tick; expect_messages("ARM lies before the start", q, 1);
    put_arm(q, newest + 1);                                 tick; expect_messages("ARM is the one above the newest", q, 0);
    put_answer(q, 1, 2'b00);                                tick; expect_messages("it does not ask", q, 0);
    put_answer(q, 1, 2'b01);                                tick; expect_messages("the one behind it asks", q, 1);
    put_answer(q, 2, 2'b11);                                tick; expect_messages("nothing is armed", q, 0);
    life(q, at, 0, 0, 5, 3); put_arm(q, at + 2);            tick; expect_messages("the last that asked", q, 1);
    put_arm(q, at + 3);                                     tick; expect_messages("behind the last that asked", q, 0);
    put_arm(q, at + 2);                                     tick; expect_messages("armed anew", q, 1);
    life(q, at, 0, 0, 0, 0); put_arm(q, at);                tick; expect_messages("nothing is visible", q, 0);
    put_arm(q, at - 5);                                     tick; expect_messages("nothing is visible, ARM before the start", q, 0);
    put_arm(q, at + 1);                                     tick;
    put_answer(q, 2, 2'b10);                                tick; expect_messages("the first of two asks, below ARM", q, 0);
    put_arm(q, at + 2);                                     tick;
    put_answer(q, 2, 2'b10);                                tick; expect_messages("the first of two asks", q, 1);
    put_arm(q, at + 5);                                     tick;
    put_answer(q, 2, 2'b01);                                tick; expect_messages("the second of two asks", q, 1);
    // 2^31 below the newest visible is above it.
    life(q, at, 0, 0, 5, 5); put_arm(q, newest - 32'h7FFF_FFFF); tick; expect_messages("ARM 2^31 - 1 below the newest", q, 1);
    put_arm(q, newest - 32'h8000_0000);                     tick; expect_messages("ARM 2^31 below the newest", q, 0);
  endtask

  task automatic case_count(input int q, input logic [31:0] at);
    life(q, at, 1, 0, 3, 0); put_arm(q, at + 3);            tick; expect_messages("a count of 1, none", q, 0);
    put_answer(q, 1, 2'b00);                                tick; expect_messages("a count of 1", q, 1);
    put_arm(q, at + 3);                                     tick; expect_messages("a count of 1, visible before", q, 1);
    life(q, at, 3, 0, 3, 0); put_arm(q, at + 3);            tick;
    put_answer(q, 2, 2'b00);                                tick; expect_messages("two of three", q, 0);
    put_answer(q, 1, 2'b00);                                tick; expect_messages("three of three", q, 1);
    put_arm(q, at + 4);                                     tick; expect_messages("two of three, visible before", q, 0);
    put_arm(q, at + 3);                                     tick; expect_messages("three, visible before", q, 1);
    life(q, at, 3, 0, 2, 0); put_arm(q, at - 100);          tick; expect_messages("what lies before the start is none", q, 0);
    put_answer(q, 1, 2'b00);                                tick; expect_messages("the third since the start", q, 1);
    life(q, at, 3, 0, 1, 0); put_arm(q, at - 100);          tick;
    put_answer(q, 1, 2'b00);                                tick; expect_messages("the second since the start", q, 0);
    put_answer(q, 1, 2'b00);                                tick; expect_messages("the third of three since the start", q, 1);
    life(q, at, 3, 0, 0, 0); put_arm(q, at + 1);            tick;
    put_answer(q, 1, 2'b00);                                tick; expect_messages("below ARM", q, 0);
    put_answer(q, 2, 2'b00);                                tick; expect_messages("two above it", q, 0);
    put_answer(q, 2, 2'b00);                                tick; expect_messages("four above it", q, 1);
  endtask

  task automatic case_most(input int q);
    life(q, 32'hFFFF_8000, 16'hFFFF, 0, 0, 0);
    for (int k = 0; k < 32767; k++) begin
      put_answer(q, 2, 2'b00);
      tick;
    end
    put_arm(q, 32'hFFFF_8000); tick; expect_messages("65534 of 65535", q, 0);
    put_answer(q, 2, 2'b00); tick; expect_messages("65536 of 65535", q, 1);
    put_arm(q, 32'hFFFF_8001); tick; expect_messages("65535 visible before", q, 1);
    put_arm(q, 32'hFFFF_8002); tick; expect_messages("65534 visible before", q, 0);
    put_answer(q, 1, 2'b00); tick; expect_messages("one more", q, 1);
  endtask

  // Cycles from an event to what fires, seen one cycle later.
  task automatic expect_time(input string what, input int q, input int least);
    int waited;
    waited = 0;
    while (armed[q] && waited < 200) begin
      tick;
      waited = waited + 1;
    end
    if (waited < least || waited > least + Queues - 1)
      fail($sformatf("R14: %0s: fires %0d cycles later, expected %0d to %0d", what, waited, least, least + Queues - 1));
    expect_messages(what, q, 1);
  endtask

  task automatic case_time(input int q, input logic [31:0] at);
    for (int ticks = 1; ticks < 40; ticks = ticks + 6) begin
      life(q, at, 0, ticks, 0, 0); put_arm(q, at); tick; expect_messages("nothing is visible", q, 0);
      idle(50);
      put_answer(q, 1, 2'b00); tick; expect_time("a time from the response", q, ticks);
      put_arm(q, at); tick; expect_time("a time from ARM", q, ticks);
      // Later completions start no new time, and one that asks waits for none.
      if (ticks > 1) begin
        put_arm(q, at + 1); tick;
        put_answer(q, 1, 2'b00); tick;
        put_answer(q, 1, 2'b00); tick; expect_time("a time from the first of two", q, ticks - 1);
        put_arm(q, at + 3); tick;
        put_answer(q, 1, 2'b00); tick;
        put_answer(q, 1, 2'b01); tick; expect_messages("one that asks", q, 1);
      end
      idle(60); expect_messages("the time is over with its arming", q, 0);
      // Expiring in the very cycle in which something else comes.
      for (int when_it = 0; when_it < ticks + Queues + 2; when_it++) begin
        life(q, at, 0, ticks, 0, 0); put_arm(q, at); tick;
        put_answer(q, 1, 2'b00); tick;
        idle(when_it);
        put_stop(q); tick;
        idle(50);
        life(q, at, 0, ticks, 0, 0); put_arm(q, at); tick;
        put_answer(q, 1, 2'b00); tick;
        idle(when_it);
        put_arm(q, at + 1); tick;         // it may have fired, once; the new arming stands
        idle(60);
        if (!armed[q]) fail("R14: a deadline of the old arming has taken the new one");
        sent_before = messages[q];
        put_answer(q, 1, 2'b01); tick; expect_messages("the new arming", q, 1);
      end
    end
  endtask

  task automatic case_meetings(input int q, input logic [31:0] at);
    // ARM in the cycle of the response.
    life(q, at, 0, 0, 0, 0);
    put_arm(q, at); put_answer(q, 1, 2'b01); tick; expect_messages("ARM in the cycle of the response", q, 1);
    put_arm(q, at + 2); put_answer(q, 1, 2'b01); tick; expect_messages("ARM above it in the cycle of the response", q, 0);
    put_arm(q, at + 5); tick;
    put_arm(q, at + 3); put_answer(q, 2, 2'b10); tick; expect_messages("armed anew, lower, below the first of two", q, 0);
    put_answer(q, 2, 2'b11); tick; expect_messages("and then one that asks", q, 1);
    // A mask in the cycle of the fire, and one behind it.
    for (int late = 0; late < 4; late++) begin
      life(q, at, 0, 0, 0, 0);
      put_arm(q, at); tick;
      put_answer(q, 1, 2'b01);
      if (late == 0) put_entry(q, 2'd3, 32'd1);
      tick;
      if (late != 0) begin
        idle(late - 1);
        put_entry(q, 2'd3, 32'd1); tick;
      end
      expect_messages("masked", q, late < 1 ? 0 : 1);
      put_entry(q, 2'd3, 32'hFFFF_FFFE); tick;
      expect_messages("unmasked", q, late < 1 ? 1 : 0);
    end
    // Two fires before the message is taken are one message, behind one that is on its way a second one.
    life(q, at, 0, 0, 1, 1);
    ready = 1'b0;
    put_arm(q, at); tick; idle(3);        // it stands in the port's register
    put_arm(q, at); tick; idle(3);
    put_arm(q, at); tick; idle(3);
    if (messages[q] - sent_before != 1 || !pending[q]) fail("R14: what fires behind a message that waits is not pending");
    ready = 1'b1;
    expect_messages("three fires, one before the message and two behind it", q, 2);
    life(q, at, 0, 0, 1, 1);
    put_entry(q, 2'd3, 32'd1); tick;
    put_arm(q, at); tick; idle(3);
    put_arm(q, at); tick; idle(3);
    put_entry(q, 2'd3, 32'd0); tick; expect_messages("two fires behind a mask", q, 1);
    // One message is in flight at most.
    hold_acks = 1'b1;
    put_arm(q, at); tick; expect_messages("one in flight", q, 1);
    put_arm(q, at); tick; expect_messages("a second behind it", q, 0);
    hold_acks = 1'b0;
    expect_messages("once it is answered", q, 1);
    // A response with an error: nothing is sent again.
    faults = 0;
    spoil_acks = 1'b1;
    put_arm(q, at); tick; expect_messages("an error", q, 1);
    if (faults != 1) fail($sformatf("%0d faults, expected 1", faults));
    spoil_acks = 1'b0;
    put_arm(q, at); tick; expect_messages("behind an error", q, 1);
    // A disable with something pending, masked and not; what stands in the port's register stays.
    life(q, at, 0, 0, 1, 1);
    put_entry(q, 2'd3, 32'd1); tick;
    put_arm(q, at); tick; idle(3);
    put_stop(q); tick;
    put_entry(q, 2'd3, 32'd0); tick; expect_messages("a disable with a pending one", q, 0);
    put_answer(q, 1, 2'b01); tick; expect_messages("a completion behind the disable", q, 0);
    life(q, at, 0, 0, 1, 1);
    idle(5); expect_messages("the next life begins disarmed", q, 0);
    ready = 1'b0;
    put_arm(q, at); tick; idle(3);
    put_arm(q, at); tick; idle(3);
    put_stop(q); tick; idle(3);
    if (!busy[q]) fail("R12: a message that waits for the port does not hold up the disable");
    ready = 1'b1;
    expect_messages("one in the port's register, one behind it, a disable", q, 1);
    for (int late = 0; late < 4; late++) begin
      life(q, at, 0, 0, 0, 0);
      put_arm(q, at); tick;
      put_answer(q, 1, 2'b01);
      if (late == 0) put_stop(q);
      tick;
      if (late != 0) begin
        idle(late - 1);
        put_stop(q); tick;
      end
      idle(10);
    end
  endtask

  // A drain that has nothing left tells of any completion at or above ARM, whatever it waits for otherwise.
  task automatic case_drain(input int q, input logic [31:0] at, input logic [15:0] count, input logic [31:0] ticks);
    life(q, at, count, ticks, 2, 0);
    put_arm(q, at + 1);      tick; expect_messages("coalesced", q, 0);
    drained[q] = 1'b1;       tick; expect_messages("the end of a drain", q, 1);
    put_arm(q, at + 2);      tick; expect_messages("armed above all at the end of a drain", q, 0);
    put_arm(q, at - 7);      tick; expect_messages("armed anew at the end of a drain", q, 1);
    put_arm(q, at);          tick;
    put_arm(q, at + 1);      tick; expect_messages("armed twice at the end of a drain", q, 1);
    put_entry(q, 2'd3, 32'd1); tick;
    put_arm(q, at);          tick; expect_messages("masked at the end of a drain", q, 0);
    put_entry(q, 2'd3, 32'd0); tick; expect_messages("unmasked", q, 1);
    put_stop(q);             tick;
    drained[q] = 1'b0;       tick;
    // It ends in the cycle of ARM, and in the next ones; the last completion in the cycle before.
    for (int late = 0; late < 3; late++) begin
      life(q, at, count, ticks, 1, 0);
      put_arm(q, at + 2);    tick;
      put_answer(q, 1, 2'b00); tick;
      put_arm(q, at + 1);
      if (late == 0) drained[q] = 1'b1;
      tick;
      idle(late);
      drained[q] = 1'b1;     tick; expect_messages("a drain ends beside an ARM", q, 1);
      put_stop(q);           tick;
      drained[q] = 1'b0;     tick;
    end
    // The newest comes to lie 2^31 ahead of ARM: then none is at or above it.
    if (count == '0 && ticks == '0) begin
      life(q, at, count, ticks, 3, 0);
      put_arm(q, at + 32'd2 - 32'h7FFF_FFFF); tick; expect_messages("armed 2^31 behind the newest", q, 0);
      put_answer(q, 1, 2'b00); tick;
      drained[q] = 1'b1;     tick; expect_messages("a drain ends 2^31 behind the newest", q, 0);
      put_stop(q);           tick;
      drained[q] = 1'b0;     tick;
    end
    // Nothing was ever completed: what lies before the start is none.
    life(q, at, count, ticks, 0, 0);
    put_arm(q, at - 3);      tick;
    drained[q] = 1'b1;       tick; expect_messages("a drain without completions", q, 0);
    put_stop(q);             tick;
    drained[q] = 1'b0;       tick;
  endtask

  // One that asked 2^31 completions ago says nothing: as nobody can wait for so many, the device is told that it was so long ago.
  task automatic case_long_ago(input int q);
    life(q, 32'd5, 0, 0, 1, 1);
    u_dut.asked_mem[q] = 32'd6 - 32'h7FFF_FFFE;
    asked_bit[q*Many]  = 1'b0;
    repeat (2) begin
      put_answer(q, 1, 2'b00); tick;
    end
    put_arm(q, 32'd8 - 32'h7FFF_FFFF); tick; expect_messages("asked 2^31 ago", q, 0);
  endtask

  // The device alone is reset with a message that the port has had for long, has from the reset's first cycle on, or never takes. SENDING
  // says which it has until the answer comes, after the reset or (early) during it.
  task automatic case_reset(input int q, input logic long, input logic takes, input logic early);
    life(q, 32'd5, 0, 0, 1, 1);
    hold_acks  = 1'b1;
    spoil_acks = 1'b1;
    ready      = long;
    put_arm(q, 32'd5);
    tick;
    idle(6);
    if (!busy[q] || message_valid == long) fail("no message is where the case wants it");
    run   = 1'b0;
    ready = takes;
    tick;
    ready     = 1'b1;
    hold_acks = !early;
    idle(12);
    run = 1'b1;
    idle(4);
    if (busy[q] !== (!early && (long || takes))) fail($sformatf("R14: after a reset SENDING of queue pair %0d is %b", q, busy[q]));
    hold_acks = 1'b0;
    idle(12 * Queues);
    while (is_sent[q]) tick;
    spoil_acks = 1'b0;
    idle(2);
  endtask

  // ---------------------------------------------------------------- races
  logic [31:0] some_index;
  int          someone, kind, least;
  task automatic random_races;
    random_port = 1'b1;
    least = 0;
    while (least < races) begin
      someone = below(Queues);
      kind    = below(100);
      if (kind < 30) begin
        if (on[someone]) begin
          some_index = visible[someone] + 32'(below(6)) - 32'd2;
          if (chance(10)) some_index = visible[someone] - 32'(below(60));
          if (chance(3))  some_index = visible[someone] + {1'b1, 31'd0} + 32'(below(5)) - 32'd3;
          if (chance(2))  some_index = rnd();
          put_arm(someone, some_index);
        end else if (!busy[someone] && !was_on[someone]) put_start(someone, chance(50) ? -between(0, 30) : rnd(),
                                                                 chance(50) ? 16'd0 : between(1, 5), chance(50) ? 32'd0 : between(1, 12));
      end else if (kind < 36) put_entry(someone, 2'd3, rnd() & ~32'd1 | 32'(chance(40)));
      else if (kind < 39) put_entry(someone, 2'(below(3)), rnd() & ~32'd3);
      else if (kind < 40 && on[someone]) put_stop(someone);
      else if (kind < 42 && on[someone] && was_on[someone]) drained[someone] = 1'b1;
      else if (kind < 44 && drained[someone] && on[someone]) put_stop(someone);
      for (int q = 0; q < Queues; q++) if (!on[q]) drained[q] = 1'b0;
      someone = (chance(50) && arm) ? int'(pair) : below(Queues);
      // Responses come behind a disable, too; not of what is over.
      if (chance(40) && !(start && pair == someone) && (on[someone] || chance(5)) && !drained[someone]) put_answer(someone, between(1, 2), {chance(30), chance(30)});
      if (chance(10)) begin
        reading   = 1'b1;
        read_pair = 4'(below(Queues));
      end
      tick;
      least = armings[0] - began[0];
      for (int q = 1; q < Queues; q++) if (armings[q] - began[q] < least) least = armings[q] - began[q];
    end
    random_port = 1'b0;
    ready       = 1'b1;
    drained     = '0;
    for (int q = 0; q < Queues; q++) begin
      put_entry(q, 2'd3, 32'd0);
      tick;
    end
    idle(50);
    if (pending != '0 || busy != '0) fail("R14: a message was never sent");
    for (int q = 0; q < Queues; q++)
      $display("queue pair %0d of %0d: %0d armings, %0d fires, %0d messages", q, Queues, armings[q] - began[q], fires[q], messages[q]);
    $display("%0d queue pairs: %0d deadlines, %0d ends of drains, %0d fires joined others, %0d writes of ARM met a response", Queues, expired, drains,
             merged, together);
    if (expired < races / 100 || drains < races / 100 || merged < races / 100 || together < races / 100) fail("the races met too little");
  endtask
  int began [0:Queues-1];

  initial begin
    @(posedge rst_n);
    tick;
    for (int q = 0; q < Queues; q++) begin
      reading   = 1'b1;
      read_pair = 4'(q);
      tick;
    end
    for (int q = 0; q < Queues; q++) begin
      put_entry(q, 2'd0, rnd() & ~32'd3); tick;
      put_entry(q, 2'd1, rnd()); tick;
      put_entry(q, 2'd2, rnd()); tick;
      case_edges(q, 32'd100);
      case_edges(q, 32'hFFFF_FFFD);
      case_edges(q, 32'h7FFF_FFFD);
      case_edges(q, 32'h0000_FFFD);
      case_count(q, 32'd0);
      case_count(q, 32'hFFFF_FFFE);
      case_time(q, 32'hFFFF_FFFF);
      case_meetings(q, 32'hFFFF_FFFF);
      case_drain(q, 32'd40, 16'd0, 32'd0);
      case_drain(q, 32'hFFFF_FFFF, 16'd9, 32'd0);
      case_drain(q, 32'h7FFF_FFFF, 16'd0, 32'd100_000);
      case_long_ago(q);
    end
    case_most(Queues - 1);
    for (int q = 0; q < Queues; q++) began[q] = armings[q];
    waits_for = "the races go on";
    random_races;
    waits_for = "the device is reset";
    for (int q = 0; q < Queues; q++) for (int k = 0; k < 2; k++) begin
      case_reset(q, 1'b1, 1'b1, 1'(k));
      case_reset(q, 1'b0, 1'b1, 1'(k));
      case_reset(q, 1'b0, 1'b0, 1'(k));
    end
    over = 1'b1;
  end
endmodule
