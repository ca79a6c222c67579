// work_queue against a plain list: every entry comes out once and in order, and a DECODE comes out stopped exactly when
// a STOP of its rollout that came in behind it has not gone out yet. Many STOPs at once, of few rollouts and of many;
// every STOP is announced in the cycle in which it comes in. Depths of one row of notes and of several.
module work_queue_tb;
  import bench_pkg::*;

  logic clk, rst_n;
  int   cycle;
  clock_reset #(.Limit(60000)) u_clock (.clk_o(clk), .rst_no(rst_n), .cycle_o(cycle));

  work_queue_run #(.Depth(2))   u_run_2   (.clk_i(clk), .rst_ni(rst_n));
  work_queue_run #(.Depth(8))   u_run_8   (.clk_i(clk), .rst_ni(rst_n));
  work_queue_run #(.Depth(64))  u_run_64  (.clk_i(clk), .rst_ni(rst_n));

  initial begin
    @(posedge rst_n);
    while (!(u_run_2.over && u_run_8.over && u_run_64.over)) @(posedge clk);
    finish_bench("work_queue_tb");
  end
endmodule

module work_queue_run #(
  parameter int Depth = 8
) (
  input logic clk_i,
  input logic rst_ni
);
  import bench_pkg::*;
  import desc_pkg::*;
  import core_pkg::*;

  logic        clear = 1'b0, push = 1'b0, fence_in = 1'b0, prefill_in = 1'b0, stop_in = 1'b0, ready = 1'b0;
  logic        valid, fence, prefill, stop, stopped_out, idle;
  work_t       work_in, work, expected_work;
  echo_t       echo_in, echo, expected_echo;
  logic [31:0] stop_rollout;
  logic [ENGINE_BITS-1:0] prepared_in, prepared;

  work_queue #(.Depth(Depth)) u_queue (
    .clk_i, .rst_ni, .clear_i(clear), .push_i(push), .work_i(work_in), .echo_i(echo_in), .prepared_i(prepared_in), .fence_i(fence_in),
    .prefill_i(prefill_in), .stop_i(stop_in), .valid_o(valid), .work_o(work), .echo_o(echo), .prepared_o(prepared), .fence_o(fence),
    .prefill_o(prefill), .stopped_o(stopped_out), .ready_i(ready), .stop_o(stop), .stop_rollout_o(stop_rollout), .idle_o(idle)
  );

  // What is inside, oldest first, by number modulo Depth.
  logic [$bits(work_t)-1:0] in_work [0:Depth-1];
  logic [$bits(echo_t)-1:0] in_echo [0:Depth-1];
  logic [ENGINE_BITS-1:0]   in_prepared [0:Depth-1];
  logic [2:0]               in_flags [0:Depth-1];
  int   first = 0, last = 0, waited = 0, stopped = 0, gone = 0, pool, stall_in, stall_out, stops, notes;
  logic over = 1'b0, hit;

  logic is_stop;
  task automatic show;
    work_in             <= {rnd(), rnd(), rnd(), rnd(), rnd(), rnd()};
    work_in.rollout_id  <= below(pool);
    echo_in             <= {rnd(), rnd(), rnd(), rnd(), rnd(), rnd(), rnd(), rnd(), rnd()};
    prepared_in         <= {rnd(), rnd()};
    is_stop = chance(stops);
    stop_in             <= is_stop;
    work_in.adds_tokens <= !is_stop && chance(70);
    {fence_in, prefill_in} <= rnd();
    push                <= !chance(stall_in);
  endtask

  always @(posedge clk_i) if (rst_ni && !over) begin
    if (idle !== (first == last)) fail($sformatf("idle is %b with %0d inside", idle, last - first));
    if (stop !== (push && stop_in) || (stop && stop_rollout !== work_in.rollout_id)) fail("R8: a STOP is not announced");
    hit   = 1'b0;
    notes = 0;
    if (first != last) begin
      expected_work = in_work[first % Depth];
      for (int k = first + 1; k < last; k++) begin
        work_in_k = in_work[k % Depth];
        if (in_flags[k % Depth][0] && work_in_k.rollout_id == expected_work.rollout_id) hit = 1'b1;
      end
      for (int k = first; k < last; k++) notes = notes + int'(in_flags[k % Depth][0]);
      if (push && stop_in && work_in.rollout_id == expected_work.rollout_id) hit = 1'b1;
      hit = hit && expected_work.adds_tokens;
    end
    waited = (first == last || valid) ? 0 : waited + 1;
    // One row of notes costs nothing.
    if (waited > (notes + 7) / 8) fail($sformatf("%0d notes hold up a descriptor for %0d cycles", notes, waited));
    if (valid && first == last) fail("an entry from nowhere");
    else if (valid && ready) begin
      expected_echo = in_echo[first % Depth];
      expect_eq("R8: stopped", stopped_out, hit);
      if (hit) stopped = stopped + 1;
      if (work !== expected_work) fail($sformatf("R8: work %h, expected %h", work, expected_work));
      if (echo !== expected_echo) fail($sformatf("R8: echo %h, expected %h", echo, expected_echo));
      expect_eq("prepared", prepared, in_prepared[first % Depth]);
      expect_eq("flags", {fence, prefill}, in_flags[first % Depth][2:1]);
      first = first + 1;
      gone  = gone + 1;
    end
    if (push) begin
      in_work[last % Depth]  = work_in;
      in_echo[last % Depth]  = echo_in;
      in_prepared[last % Depth] = prepared_in;
      in_flags[last % Depth] = {fence_in, prefill_in, stop_in};
      last = last + 1;
    end
    show;
    // What is shown now goes in behind what has gone in.
    if (last - first >= Depth) push <= 1'b0;
    ready <= !chance(stall_out);
  end
  work_t work_in_k;

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
    if (gone < 500 || (stopped < 30 && Depth > 2)) fail($sformatf("depth %0d: %0d went out, %0d stopped", Depth, gone, stopped));
    // R12
    clear <= 1'b1;
    push  <= 1'b0;
    over   = 1'b1;
    repeat (2) @(posedge clk_i);
    if (valid || stop || !idle) fail("R12: an entry survives a clear");
  end
endmodule
