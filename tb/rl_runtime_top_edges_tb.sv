// Directed cases of the whole device at the edges of its numbers: sums that carry past 32 and 64 bits, thresholds that are
// met exactly, checkpoints beyond 16 bits, both error responses of AXI. No case draws on chance where it matters, so what
// fails here fails at every seed.
module rl_runtime_top_edges_tb;
  import bench_pkg::*;
  import bench_reference_pkg::*;
  import desc_pkg::*;

  top_bench #(.Workers(4)) bench ();

  hw_desc_t desc;

  // ---------------------------------------------------------------- frame of a case
  // A DECODE whose seed does not depend on the bench's.
  task automatic fixed_decode(input logic [31:0] rollout_id, input int max_tokens);
    bench.host.make_decode(rollout_id, max_tokens, 0, desc);
    desc.seed = 32'h5EED_0001;
  endtask

  task automatic put_decode(input logic [31:0] rollout_id, input int max_tokens);
    fixed_decode(rollout_id, max_tokens);
    bench.host.put(desc);
  endtask

  task automatic run_one(input hw_desc_t one, input string what, input logic [7:0] error);
    bench.host.put(one);
    bench.host.ring;
    bench.host.await_completions(1, 3000);
    expect_eq({"error of ", what}, bench.host.last_done.error, error);
  endtask

  // ---------------------------------------------------------------- R10, R11: what a descriptor names
  task automatic expect_bad_region(input logic [63:0] delta_offset, input logic [31:0] max_tokens);
    desc              = bench.host.blank(OP_DECODE, 77);
    desc.delta_offset = delta_offset;
    desc.max_tokens   = max_tokens;
    run_one(desc, $sformatf("delta_offset %h with %0d tokens", delta_offset, max_tokens), ERR_BAD_REGION);
  endtask

  // No bit of an offset may be lost: the low half alone would point into the region.
  task automatic case_offsets_beyond_32_bits;
    bench.host.begin_case("offsets beyond 32 bits");
    bench.host.token_size   = 4096;
    bench.host.length_limit = LENGTH_LIMIT_MAX;
    bench.host.enable;
    for (int b = 32; b < 64; b++) begin
      expect_bad_region(64'd1 << b, 4);
      desc           = bench.host.blank(OP_DECODE, 78);
      desc.max_tokens = 4;
      desc.kv_offset = 64'd1 << b;
      run_one(desc, $sformatf("kv_offset %h", desc.kv_offset), ERR_BAD_REGION);
    end
    expect_bad_region(64'h0000_0001_0000_0FF0, 4);
    // Sums of 2^32 and a little more, of 2^64 and a little more.
    expect_bad_region(64'h0000_0000_FFFF_FFFC, 1);
    expect_bad_region(64'h0000_0000_FFFF_FFFC, 3);
    expect_bad_region(64'hFFFF_FFFF_FFFF_FFFC, 1);
    expect_bad_region(64'hFFFF_FFFF_FFFF_FFFC, 3);
    expect_bad_region(64'hFFFF_FFFF_0000_0000, 32'h4000_0000);
    expect_bad_region(64'hFFFF_FFFF_0000_0000, 32'h4000_0001);
    expect_bad_region(64'd0, 32'h4000_0000);
    expect_bad_region(64'd0, 32'h4000_0001);
    expect_bad_region(64'd0, LENGTH_LIMIT_MAX);
    put_decode(3, 16);
    bench.host.ring;
    bench.host.await_completions(1, 3000);
    bench.host.end_case;
    // A region whose size has an upper half. (Nothing is put where the bench has no memory.)
    bench.host.begin_case("a token region of 4 GiB");
    bench.host.token_size = 64'h1_0000_0000;
    bench.host.enable;
    expect_bad_region(64'h0000_0000_FFFF_FFFC, 2);
    expect_bad_region(64'h0000_0001_0000_0000, 1);
    expect_bad_region(64'h0000_0002_0000_0000, 1);
    desc            = bench.host.blank(OP_DECODE, 79);
    desc.max_tokens = 16;
    run_one(desc, "delta_offset 0", ERR_NONE);
    bench.host.end_case;
  endtask

  // ---------------------------------------------------------------- "what ends a DECODE", where numbers are equal
  // A threshold of just the drawn number is no end of sequence; one more is.
  task automatic case_eos_threshold_is_strict;
    logic [31:0] hash;
    bench.host.begin_case("EOS_THRESHOLD met exactly");
    for (int k = 0; k < 4; k++) for (int more = 0; more < 2; more++) begin
      hash = ref_hash(32'h5EED_0001, 100 + k, 0);
      if (hash[31:17] == 0) fail("a draw of 0 shows nothing");
      bench.host.eos_threshold = {1'b0, hash[31:17]} + 16'(more);
      bench.host.enable;
      fixed_decode(100 + k, 1);
      bench.host.put(desc);
      bench.host.ring;
      bench.host.await_completions(1, 3000);
      expect_eq("flags", bench.host.last_done.flags, more ? CFLAG_EOS : 8'd0);
      bench.host.end_case;
    end
  endtask

  // A score of just the threshold goes on; below it the rollout ends as REJECTED.
  task automatic case_reward_threshold_is_strict;
    logic [31:0] digest, hash;
    bench.host.begin_case("REWARD_THRESHOLD met exactly");
    for (int k = 0; k < 4; k++) for (int more = 0; more < 2; more++) begin
      digest = 32'h811C9DC5;
      for (int n = 0; n < 5; n++) begin
        hash   = ref_hash(32'h5EED_0001, 200 + k, n);
        digest = ref_digest(digest, {15'd0, hash[16:0]});
      end
      bench.host.reward_threshold = ref_score(digest) + 32'(more);
      bench.host.enable;
      fixed_decode(200 + k, 8);
      desc.flags      = FLAG_RESIDENT;
      desc.checkpoint = 5;
      bench.host.put(desc);
      bench.host.ring;
      bench.host.await_completions(1, 3000);
      expect_eq("flags", bench.host.last_done.flags, more ? CFLAG_REJECTED : 8'd0);
      expect_eq("final_seq_len", bench.host.last_done.final_seq_len, more ? 5 : 8);
      bench.host.end_case;
    end
  endtask

  // A checkpoint beyond 16 bits, which its low half would put inside the budget, or before it.
  task automatic case_checkpoint_beyond_16_bits;
    logic [31:0] far;
    bench.host.begin_case("a checkpoint beyond 16 bits");
    for (int own = 0; own < 2; own++) for (int resident = 0; resident < 2; resident++) for (int k = 0; k < 5; k++) begin
      case (k)
        0:       far = 32'h0001_0000;
        1:       far = 32'h0001_0001;
        2:       far = 32'h0001_0005;
        3:       far = 32'h0100_0013;
        default: far = 32'h8000_0014;
      endcase
      bench.host.reward_threshold   = 32'hFFFF_FFFF;     // any checkpoint would reject
      bench.host.checkpoint_default = own ? 3 : far;
      bench.host.enable;
      fixed_decode(300 + k, 20);
      desc.flags      = resident ? FLAG_RESIDENT : 8'd0;
      desc.checkpoint = own ? far : 0;
      bench.host.put(desc);
      bench.host.ring;
      bench.host.await_completions(1, 3000);
      expect_eq("status", bench.host.last_done.status, STATUS_DONE);
      expect_eq("final_seq_len", bench.host.last_done.final_seq_len, 20);
      bench.host.end_case;
    end
  endtask

  // ---------------------------------------------------------------- error responses
  task automatic end_with_fault(input logic [31:0] fault);
    bench.host.fault_expected = 1'b1;
    bench.u_registers.expect_read(REG_ERROR, fault);
    bench.host.disable_device;
    bench.u_registers.write(REG_ERROR, '1);
    bench.u_registers.expect_read(REG_ERROR, 0);
    bench.host.fault_expected = 1'b0;
  endtask

  // SLVERR and DECERR are both errors, on every kind of transfer.
  task automatic case_error_responses(input logic [1:0] resp);
    bench.host.begin_case($sformatf("error responses %b", resp));
    bench.u_memory.error_resp = resp;
    bench.host.enable;
    for (int k = 0; k < 6; k++) put_decode(k, 6);
    bench.u_memory.fail_read = 3;
    bench.host.ring;
    repeat (6) begin
      bench.host.await_completions(1, 3000);
      expect_eq("error beside a read fault", bench.host.last_done.error, bench.host.last_index == 2 ? ERR_DMA_FAULT : ERR_NONE);
    end
    end_with_fault(FAULT_DMA_READ);

    bench.host.workers = 1;
    bench.host.enable;
    put_decode(1, 6);
    put_decode(2, 100);
    put_decode(3, 6);
    bench.u_memory.fail_line = 4;
    bench.host.ring;
    repeat (3) begin
      bench.host.await_completions(1, 3000);
      expect_eq("error beside a write fault", bench.host.last_done.error, bench.host.last_index == 1 ? ERR_DMA_FAULT : ERR_NONE);
    end
    end_with_fault(FAULT_DMA_WRITE);

    bench.host.enable;
    bench.host.put(bench.host.blank(OP_NOP, 1));
    bench.u_memory.fail_completion = 1;
    bench.host.ring;
    bench.host.await_state(STATE_FAULT, STATE_FAULT, "STATE.FAULT");
    end_with_fault(FAULT_COMPLETION_WRITE);
  endtask

  initial begin
    @(posedge bench.rst_n);
    @(posedge bench.clk);
    case_offsets_beyond_32_bits;
    case_eos_threshold_is_strict;
    case_reward_threshold_is_strict;
    case_checkpoint_beyond_16_bits;
    case_error_responses(2'b10);
    case_error_responses(2'b11);
    finish_bench("rl_runtime_top_edges_tb");
  end
endmodule
