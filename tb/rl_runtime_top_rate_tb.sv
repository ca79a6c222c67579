// Throughput as behaviour, in cycles. One worker changes descriptors without losing a cycle; at one token per
// descriptor the write port's beats are the limit: one per token line and half a one per completion.
module rl_runtime_top_rate_tb;
  import bench_pkg::*;
  import desc_pkg::*;

  localparam int Skip  = 40;            // descriptors until the pipeline is full
  localparam int Slack = 2;             // cycles that a completion beat may push a token line at either end

  top_bench #(.Workers(4)) bench ();

  // Cycle of each token line on the bus.
  int line_at [0:4095];
  int lines = 0;
  always @(posedge bench.clk) if (bench.accept && bench.accept_id != 16) begin
    line_at[lines] = bench.cycle;
    lines = lines + 1;
  end

  hw_desc_t desc;
  int       tokens [0:255];             // of each descriptor

  // Submits 'count' descriptors at once, of n tokens each (0: of 2 to 16), each in lines of its own.
  task automatic submit(input int count, input int n, input logic one_rollout);
    for (int k = 0; k < count; k++) begin
      tokens[k] = (n == 0) ? between(2, 16) : n;
      bench.make_decode(one_rollout ? 5 : k, tokens[k], (16 - bench.token_next % 16) % 16, desc);
      desc.seq_len = below(1000);
      bench.put(desc);
    end
    lines = 0;
    bench.ring;
  endtask

  task automatic finish(input int count);
    repeat (count) bench.await_completion(20000);
    bench.release_seen;
    bench.expect_all_done;
    bench.disable_device;
    bench.check_counters;
  endtask

  task automatic begin_run(input int workers, input int latency, input int waits);
    bench.default_config;
    bench.sq_size     = 256;
    bench.cq_size     = 256;
    bench.token_base  = bench.Base + 64 * 600;
    bench.workers     = workers;
    bench.wait_states = waits;
    bench.u_memory.read_latency  = latency;
    bench.u_memory.write_latency = latency;
    bench.enable;
  endtask

  // Cycles from the last line of descriptor Skip to that of the last one, against 'limit' (in half cycles per
  // descriptor of one token, in cycles per token otherwise).
  task automatic one_worker(input int latency, input int n, input int waits, input logic one_rollout);
    int count, last, taken, expected, skipped;
    count = (n > 16) ? 70 : 120;
    begin_run(1, latency, waits);
    submit(count, n, one_rollout);
    finish(count);
    skipped  = 0;
    last     = 0;
    expected = 0;
    for (int k = 0; k < count; k++) begin
      last = last + (tokens[k] + 15) / 16;
      if (k == Skip) skipped = last - 1;
      if (k > Skip)  expected = expected + tokens[k] * (1 + waits);
    end
    if (n == 1 && waits == 0) expected = expected + (count - Skip) / 2;
    if (lines != last) fail($sformatf("%0d token lines, expected %0d", lines, last));
    taken = line_at[last - 1] - line_at[skipped];
    if (taken > expected + Slack)
      fail($sformatf("latency %0d, %0d tokens, %0d wait states: %0d descriptors took %0d cycles, expected %0d",
                     latency, n, waits, count - Skip - 1, taken, expected));
    $display("latency %2d, tokens %2d, wait states %0d: %0d cycles, expected %0d", latency, n, waits, taken, expected);
  endtask

  // N workers give N tokens per cycle.
  task automatic all_workers(input int latency);
    int taken, from;
    begin_run(4, latency, 0);
    submit(96, 64, 1'b0);
    finish(96);
    from  = 16 * 4;
    taken = line_at[80 * 4] - line_at[from];
    if (taken > 64 * 64 / 4 + 16) fail($sformatf("4 workers took %0d cycles for 4096 tokens", taken));
    $display("latency %2d, 4 workers: %0d cycles for 4096 tokens", latency, taken);
  endtask

  initial begin
    @(posedge bench.rst_n);
    @(posedge bench.clk);
    for (int k = 0; k < 3; k++) begin
      int latency;
      latency = (k == 0) ? 0 : (k == 1) ? 16 : 64;
      one_worker(latency, 1, 0, 1'b0);
      one_worker(latency, 2, 0, 1'b0);
      one_worker(latency, 0, 0, 1'b0);
      if (latency != 16) begin
        one_worker(latency, 3, 0, 1'b1);
        one_worker(latency, 20, 0, 1'b0);
        one_worker(latency, 2, 1, 1'b0);
        all_workers(latency);
      end
    end
    finish_bench("rl_runtime_top_rate_tb");
  end
endmodule
