// A DECODE of more than 65,536 tokens: addresses, lengths and checkpoints past 16 bits. The same cases at every seed.
module rl_runtime_top_long_tb;
  import bench_pkg::*;
  import desc_pkg::*;

  localparam int Whole = 65_600;        // tokens of the rollout
  localparam int Cut   = 65_541;        // its checkpoint: 65,536 and a little

  top_bench #(.Workers(1), .Lines(5120), .TokenWords(65_792)) bench ();

  hw_desc_t desc;

  initial begin
    @(posedge bench.rst_n);
    @(posedge bench.clk);
    bench.host.default_config;
    bench.host.token_size = 4 * 65_792;
    bench.host.logp_size  = 0;                      // the memory ends before it
    bench.host.enable;
    bench.host.make_decode(1, Whole, 3, desc);           // from the middle of a line on
    desc.seed       = 32'h5EED_0001;
    desc.checkpoint = Cut;
    bench.host.put(desc);
    bench.host.ring;
    // Tokens and digest are compared by the scoreboard, and that no other word is written.
    repeat (65_000) @(posedge bench.clk);           // a poll per cycle would cost more than the device
    bench.host.await_completions(1, 3000);
    expect_eq("status", bench.host.last_done.status, STATUS_REWARD_NEEDED);
    expect_eq("final_seq_len", bench.host.last_done.final_seq_len, Cut);
    desc.seq_len      = Cut;
    desc.max_tokens   = Whole - Cut;
    desc.delta_offset = desc.delta_offset + 4 * Cut;
    desc.checkpoint   = 32'h0001_0007;              // its low half would cut once more
    bench.host.put(desc);
    bench.host.ring;
    bench.host.await_completions(1, 3000);
    expect_eq("status", bench.host.last_done.status, STATUS_DONE);
    expect_eq("final_seq_len", bench.host.last_done.final_seq_len, Whole);
    bench.host.expect_all_done;
    bench.host.disable_device;
    bench.host.check_counters;
    finish_bench("rl_runtime_top_long_tb");
  end
endmodule
