// work_queue against a plain list for each queue pair: every entry comes out once and in order, and a DECODE comes out
// stopped exactly when a STOP of its rollout and queue pair, or of its group, that came in behind it has not gone out yet, or
// an ABORT of its rollout was written after it was published. ABORTs of all queue pairs at a time end each within a bound. Many STOPs at once, of few rollouts and of many; every STOP is
// announced in the cycle in which it comes in, every ABORT in the one after its write. Queue pairs
// are turned off and start anew while the others go on. Depths of one row of notes and of several; one queue pair and several.
module work_queue_tb;
  import bench_pkg::*;

  logic clk, rst_n;
  int   cycle;
  clock_reset #(.Limit(60000)) u_clock (.clk_o(clk), .rst_no(rst_n), .cycle_o(cycle));

  work_queue_run #(.Queues(1), .Depth(2))   u_run_2    (.clk_i(clk), .rst_ni(rst_n));
  work_queue_run #(.Queues(1), .Depth(64))  u_run_64   (.clk_i(clk), .rst_ni(rst_n));
  work_queue_run #(.Queues(4), .Depth(32))  u_run_4_32 (.clk_i(clk), .rst_ni(rst_n));
  work_queue_run #(.Queues(3), .Depth(128)) u_run_3_128 (.clk_i(clk), .rst_ni(rst_n));

  initial begin
    @(posedge rst_n);
    while (!(u_run_2.over && u_run_64.over && u_run_4_32.over && u_run_3_128.over)) @(posedge clk);
    finish_bench("work_queue_tb");
  end
endmodule

module work_queue_run #(
  parameter int Queues = 1,
  parameter int Depth  = 8
) (
  input logic clk_i,
  input logic rst_ni
);
  import bench_pkg::*;
  import desc_pkg::*;
  import core_pkg::*;

  localparam int Slots  = (Queues == 1) ? 1 : 1 << $clog2(Queues);
  localparam int Places = Depth / Slots;

  logic              start = 1'b0, push = 1'b0, fence_in = 1'b0, prefill_in = 1'b0, stop_in = 1'b0, want = 1'b0;
  logic [3:0]        start_queue = '0, read_queue = '0, stop_queue;
  logic [Queues-1:0] on = '0, some;
  logic              read, known, fence, prefill, stop, stopped_out, take;
  work_t             work_in, work, expected_work;
  echo_t             echo_in, echo, expected_echo;
  logic              stop_group, abort = 1'b0;
  logic [3:0]        abort_queue = '0;
  logic [Queues-1:0] aborting;
  logic              told;
  logic [3:0]        told_queue;
  logic [31:0]       told_rollout;
  logic [31:0]       stop_rollout, abort_rollout = '0, abort_tail = '0;
  queue_config_t     start_config = '0;
  logic [ENGINE_BITS-1:0] prepared_in, prepared;

  assign read = some[read_queue];
  assign take = read && known && want;

  work_queue #(.Queues(Queues), .Depth(Depth)) u_queue (
    .clk_i, .rst_ni, .start_i(start), .start_queue_i(start_queue), .start_config_i(start_config), .on_i(on), .push_i(push), .work_i(work_in), .echo_i(echo_in),
    .prepared_i(prepared_in), .fence_i(fence_in), .prefill_i(prefill_in), .stop_i(stop_in), .some_o(some), .read_i(read),
    .read_queue_i(read_queue), .work_o(work), .fence_o(fence), .known_o(known), .stopped_o(stopped_out), .take_i(take),
    .echo_o(echo), .prepared_o(prepared), .prefill_o(prefill), .stop_o(stop), .stop_queue_o(stop_queue),
    .stop_group_o(stop_group), .stop_rollout_o(stop_rollout),
    .abort_o(told), .abort_queue_o(told_queue), .abort_rollout_o(told_rollout), .abort_i(abort), .abort_queue_i(abort_queue),
    .abort_rollout_i(abort_rollout), .abort_tail_i(abort_tail), .aborting_o(aborting)
  );

  // What is inside, oldest first, by queue pair and number modulo Places.
  logic [$bits(work_t)-1:0] in_work [0:Queues*Places-1];
  logic [$bits(echo_t)-1:0] in_echo [0:Queues*Places-1];
  logic [ENGINE_BITS-1:0]   in_prepared [0:Queues*Places-1];
  logic [2:0]               in_flags [0:Queues*Places-1];
  int   first [0:Queues-1], last [0:Queues-1], waited [0:Queues-1], off_for [0:Queues-1];
  int   stopped = 0, gone = 0, pool, stall_in, stall_out, stops, notes, q, shown_pair, walked = 0, beside = 0;
  logic over = 1'b0, hit, is_stop, shown;
  logic floods = 1'b0;                  // the first queue pair whose ABORT has ended gets another one at once
  work_t work_in_k;

  // ABORTs: entries that one ends; and of each queue pair the last one's rollout, how much of what was published has not come
  // in, whether the workers have been told, and how long it has taken since.
  logic        in_aborted [0:Queues*Places-1];
  logic [31:0] aborted_rollout [0:Queues-1], pushes [0:Queues-1];
  int          coming [0:Queues-1], slow [0:Queues-1], aborts = 0, aborted = 0;
  logic        untold [0:Queues-1];
  logic        some_untold;

  // A STOP of a group, or of a rollout, ends this DECODE.
  function automatic logic ends(input work_t stop_work, input work_t decode);
    ends = stop_work.all ? decode.cow_prefix && stop_work.prefix_id == decode.prefix_id
                         : stop_work.rollout_id == decode.rollout_id;
  endfunction

  function automatic int at(input int pair, input int number);
    at = pair * Places + number % Places;
  endfunction

  initial for (int k = 0; k < Queues; k++) begin first[k] = 0; last[k] = 0; waited[k] = 0; off_for[k] = 0;
    coming[k] = 0; slow[k] = 0; untold[k] = 1'b0; pushes[k] = 0; end

  task automatic show;
    q = below(Queues);
    work_in             <= {rnd(), rnd(), rnd(), rnd(), rnd(), rnd()};
    work_in.prefix_id   <= below(pool);
    work_in.cow_prefix  <= chance(70);
    work_in.all         <= chance(40);
    work_in.rollout_id  <= below(pool);
    work_in.pair        <= q;
    echo_in             <= {rnd(), rnd(), rnd(), rnd(), rnd(), rnd(), rnd(), rnd(), rnd()};
    prepared_in         <= {rnd(), rnd(), rnd()};
    is_stop = chance(stops);
    stop_in             <= is_stop;
    work_in.adds_tokens <= !is_stop && chance(70);
    {fence_in, prefill_in} <= rnd();
    shown               = !chance(stall_in) && on[q] && last[q] - first[q] < Places;
    shown_pair          = q;
    push                <= shown;
  endtask

  always @(posedge clk_i) if (rst_ni && !over) begin
    for (int k = 0; k < Queues; k++)
      if (on[k] && some[k] !== (first[k] != last[k])) fail($sformatf("queue pair %0d has some: %b with %0d inside", k, some[k], last[k] - first[k]));
    some_untold = 1'b0;
    for (int k = 0; k < Queues; k++) begin
      if (!on[k]) untold[k] = 1'b0;
      if (untold[k]) some_untold = 1'b1;
    end
    if (stop !== (push && stop_in)) fail("R8: a STOP is not announced, or none is");
    else if (stop && (stop_queue !== work_in.pair || stop_group !== work_in.all
                      || stop_rollout !== (work_in.all ? work_in.prefix_id : work_in.rollout_id))) fail("R8: a STOP is announced wrongly");
    // R28: in the cycle after its write, whatever STOPs come. Of one that was just turned off nothing is left that it could end.
    if (told && !on[told_queue]) begin
    end else if (told !== some_untold) fail("R8: an ABORT is not announced in the cycle after its write");
    else if (told) begin
      if (!untold[told_queue] || told_rollout !== aborted_rollout[told_queue]) fail("R8: an ABORT is announced wrongly");
      untold[told_queue] = 1'b0;
      if (stop) beside = beside + 1;
    end
    for (int k = 0; k < Queues; k++) begin
      slow[k] = (on[k] && aborting[k] && coming[k] == 0) ? slow[k] + 1 : 0;
      if (on[k] && !aborting[k] && (coming[k] != 0 || untold[k])) fail("R8: an ABORT has not come to all that was published");
      if (slow[k] > 2 * Depth + 100) fail("R8: an ABORT does not end");
      if (floods && slow[k] > Queues * Places + 3) fail($sformatf("R28: the walk of queue pair %0d has taken %0d cycles", k, slow[k]));
      if (floods && slow[k] > walked) walked = slow[k];
    end
    q     = int'(read_queue);
    hit   = 1'b0;
    notes = 0;
    if (read && on[q]) begin
      expected_work = in_work[at(q, first[q])];
      for (int k = first[q] + 1; k < last[q]; k++) begin
        work_in_k = in_work[at(q, k)];
        if (in_flags[at(q, k)][0] && ends(work_in_k, expected_work)) hit = 1'b1;
      end
      for (int k = first[q]; k < last[q]; k++) notes = notes + int'(in_flags[at(q, k)][0]);
      if (push && stop_in && work_in.pair == q && ends(work_in, expected_work)) hit = 1'b1;
      if (in_aborted[at(q, first[q])]) hit = 1'b1;
      hit = hit && expected_work.adds_tokens;
      waited[q] = known ? 0 : waited[q] + 1;
      // One row of notes costs nothing.
      if (waited[q] > (notes + 7) / 8) fail($sformatf("%0d notes hold up a descriptor for %0d cycles", notes, waited[q]));
    end
    if (take) begin
      expected_echo = in_echo[at(q, first[q])];
      expect_eq("R8: stopped", stopped_out, hit);
      if (hit) stopped = stopped + 1;
      if (hit && in_aborted[at(q, first[q])]) aborted = aborted + 1;
      if (work !== expected_work) fail($sformatf("R8: work %h, expected %h", work, expected_work));
      if (echo !== expected_echo) fail($sformatf("R8: echo %h, expected %h", echo, expected_echo));
      if (prepared !== in_prepared[at(q, first[q])]) fail("prepared is not what came in");
      expect_eq("flags", {fence, prefill}, in_flags[at(q, first[q])][2:1]);
      first[q] = first[q] + 1;
      gone  = gone + 1;
    end
    if (push) begin
      q = int'(work_in.pair);
      in_work[at(q, last[q])]     = work_in;
      in_echo[at(q, last[q])]     = echo_in;
      in_prepared[at(q, last[q])] = prepared_in;
      in_flags[at(q, last[q])]    = {fence_in, prefill_in, stop_in};
      in_aborted[at(q, last[q])]  = coming[q] != 0 && work_in.rollout_id == aborted_rollout[q];
      if (coming[q] != 0) coming[q] = coming[q] - 1;
      last[q] = last[q] + 1;
      pushes[q] = pushes[q] + 1;
    end
    // What is here and what was published and comes in from now on; what goes out in this cycle learns of it at its worker.
    if (abort) begin
      q = int'(abort_queue);
      aborts = aborts + 1;
      untold[q] = 1'b1;
      aborted_rollout[q] = abort_rollout;
      coming[q] = int'(abort_tail - pushes[q]);
      for (int k = first[q]; k < last[q]; k++) begin
        work_in_k = in_work[at(q, k)];
        if (work_in_k.rollout_id == abort_rollout) in_aborted[at(q, k)] = 1'b1;
      end
    end
    show;
    abort <= 1'b0;
    q = below(Queues);
    if (floods) begin
      for (int k = Queues - 1; k >= 0; k--) if (on[k] && !aborting[k] && !(abort && abort_queue == k)) q = k;
    end
    if (on[q] && !aborting[q] && !(abort && abort_queue == q) && (floods || chance(8))) begin
      abort         <= 1'b1;
      abort_queue   <= q;
      abort_rollout <= below(pool);
      // Behind what comes in with it.
      abort_tail    <= floods ? pushes[q] + 32'(shown && shown_pair == q) : pushes[q] + 1 + below(chance(50) ? 2 : 12);
    end
    want       <= !chance(stall_out);
    read_queue <= below(Queues);
    // R12: one is turned off, which empties it, and starts anew.
    start <= 1'b0;
    q = below(Queues);
    for (int k = 0; k < Queues; k++) off_for[k] = on[k] ? 0 : off_for[k] + 1;
    if (!on[q] && !start && off_for[q] > 2 && chance(20)) begin
      start       <= 1'b1;
      start_queue <= q;
      if (some[q]) fail("R12: an entry survives a disable");
      first[q]  = 0;
      last[q]   = 0;
      waited[q] = 0;
      coming[q] = 0;
      untold[q] = 1'b0;
      pushes[q] = rnd();
      start_config.sq_start <= pushes[q];
    end else if (on[q] && below(300) == 0) begin
      on[q] <= 1'b0;
      push  <= 1'b0;
      want  <= 1'b0;
      abort <= 1'b0;
      coming[q] = 0;
    end
    if (start) on[start_queue] <= 1'b1;
  end

  initial begin
    pool = 4; stall_in = 0; stall_out = 0; stops = 20;
    @(posedge rst_ni);
    for (int k = 0; k < 16; k++) begin
      stall_in  = k[0] ? 50 : 0;
      stall_out = k[1] ? 80 : 40;
      stops     = k[2] ? 80 : 15;
      pool      = k[3] ? 3 : 200;
      repeat (400) @(posedge clk_i);
    end
    // R28: full queue pairs, of which every other one is aborted again and again: each walk has its turn.
    stall_in = 0; stall_out = 95; stops = 0;
    repeat (400) @(posedge clk_i);
    for (int k = 0; k < Queues; k++) slow[k] = 0;
    floods = 1'b1;
    repeat (1500) @(posedge clk_i);
    floods = 1'b0;
    if (Queues > 1 && walked < Places) fail($sformatf("not tried: the longest walk beside others has taken %0d cycles", walked));
    if (gone < 500 || (stopped < 30 && Places > 2)) fail($sformatf("depth %0d: %0d went out, %0d stopped", Depth, gone, stopped));
    if (aborts < 100 || (aborted < 30 && Places > 2)) fail($sformatf("depth %0d: %0d ABORTs ended %0d", Depth, aborts, aborted));
    if (beside < 10) fail($sformatf("not tried: %0d ABORTs beside STOPs", beside));
    over = 1'b1;
  end
endmodule
