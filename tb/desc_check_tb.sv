// desc_check against the reference: the error code, what is echoed, and what a worker needs, of random good and
// malformed descriptors; in order, none lost, with and without gaps.
module desc_check_tb;
  import bench_pkg::*;
  import bench_reference_pkg::*;
  import desc_pkg::*;
  import core_pkg::*;

  logic clk, rst_n;
  int   cycle;
  clock_reset #(.Limit(60000)) u_clock (.clk_o(clk), .rst_no(rst_n), .cycle_o(cycle));

  localparam logic [63:0] TokenBase = 64'h7_8000_0FC0;
  localparam logic [63:0] TokenSize = 64'd4000;

  logic [63:0]  kv_size;
  logic [31:0]  length_limit, checkpoint_default, sq_key;
  logic         clear = 1'b0;
  logic         slot_valid = 1'b0, slot_fault = 1'b0, work_valid;
  logic [511:0] slot_data = '0;
  logic [31:0]  slot_index = '0;
  work_t        work;
  echo_t        echo;
  logic         fence, prefill, stop, idle;

  desc_check u_check (
    .clk_i(clk), .rst_ni(rst_n), .clear_i(clear), .sq_key_i(sq_key), .token_base_i(TokenBase), .token_size_i(TokenSize),
    .kv_size_i(kv_size), .length_limit_i(length_limit), .checkpoint_default_i(checkpoint_default),
    .slot_valid_i(slot_valid), .slot_data_i(slot_data), .slot_fault_i(slot_fault), .slot_index_i(slot_index),
    .work_valid_o(work_valid), .work_o(work), .echo_o(echo), .fence_o(fence),
    .prefill_o(prefill), .stop_o(stop), .idle_o(idle)
  );

  int stall_in, seen = 0;
  int codes [0:255];

  // What went in and has not come out.
  logic [511:0] in_data [0:7];
  logic [31:0]  in_index [0:7];
  logic         in_fault [0:7];
  int           in_cycle [0:7];
  int           entered = 0, left = 0, held;

  function automatic logic [511:0] random_slot(input logic [31:0] index);
    hw_desc_t desc;
    desc = {rnd(), rnd(), rnd(), rnd(), rnd(), rnd(), rnd(), rnd(), rnd(), rnd(), rnd(), rnd(), rnd(), rnd(), rnd(), rnd()};
    case (below(6))
      0: desc.opcode = OP_NOP;
      1: desc.opcode = OP_STOP;
      2: desc.opcode = OP_PREFILL;
      3: desc.opcode = chance(20) ? rnd() : OP_DECODE;
      default: desc.opcode = OP_DECODE;
    endcase
    desc.flags           = desc.flags & (chance(90) ? 8'h1F : 8'hFF);
    desc.reserved        = chance(92) ? 16'd0 : 16'd1 << below(16);
    desc.model_id        = chance(92) ? 16'd0 : 16'd1 << below(16);
    desc.reward_model_id = chance(80) ? 16'd0 : rnd();
    desc.max_tokens      = chance(94) ? between(1, 100) : chance(50) ? 32'd0 : rnd();
    desc.seq_len         = chance(90) ? below(400) : chance(50) ? -below(60) : length_limit - desc.max_tokens + below(2);
    desc.delta_offset    = chance(85) ? 4 * below(1000) : chance(50) ? 4 * (1000 - desc.max_tokens) + 4 * below(2)
                         : chance(50) ? -64'(4 * below(100)) : {rnd(), rnd()};
    if (chance(5)) desc.delta_offset = desc.delta_offset + between(1, 3);
    desc.kv_offset       = chance(60) ? 64'd0 : chance(80) ? {32'd0, rnd()} & 64'hFFF : kv_size - below(2);
    desc.prefix_id       = chance(80) ? rnd() : chance(50) ? 32'd0 : PREFIX_NONE;
    desc.checkpoint      = chance(40) ? 32'd0 : chance(50) ? CHECKPOINT_NEVER : between(1, 20);
    random_slot = ref_seal(desc, sq_key, index);
    if (chance(4)) random_slot = random_slot ^ (512'd1 << below(512));
    if (chance(2)) random_slot = ref_seal(desc, sq_key, index - 64);
    if (chance(2)) random_slot = ref_seal(desc, sq_key ^ (32'd1 << below(32)), index);
    if (chance(2)) random_slot = '0;
  endfunction

  task automatic check_one(input logic [511:0] data, input logic [31:0] index, input logic fault);
    hw_desc_t    desc;
    echo_t       want;
    logic [7:0]  code;
    logic [31:0] checkpoint;
    logic        good;
    desc = data;
    code = fault ? ERR_DMA_FAULT : ref_error(desc, sq_key, index, TokenSize, kv_size, length_limit);
    good = code == 0;
    codes[code] = codes[code] + 1;
    want             = '0;
    want.irq         = !good || desc.flags[FLAG_INTERRUPT_BIT];
    want.adds_tokens = good && desc.opcode == OP_DECODE;
    want.error       = code;
    want.status      = !good ? STATUS_ERROR : desc.opcode == OP_STOP ? STATUS_STOPPED : STATUS_DONE;
    if (code == ERR_DMA_FAULT || code == ERR_BAD_CHECK) want.result = index;
    else begin
      want.reward_model_id = desc.reward_model_id;
      want.seq_len         = desc.seq_len;
      want.rollout_id      = desc.rollout_id;
      want.user_data       = desc.user_data;
    end
    want.token_addr = want.adds_tokens ? TokenBase + desc.delta_offset : echo.token_addr;   // else of no use
    if (echo !== want) fail($sformatf("index %h code %0d: echo %h, expected %h", index, code, echo, want));
    expect_eq("fence", fence, good && desc.flags[FLAG_FENCE_BIT]);
    expect_eq("prefill", prefill, good && desc.opcode == OP_PREFILL);
    expect_eq("adds_tokens", work.adds_tokens, want.adds_tokens);
    expect_eq("stop", stop, good && desc.opcode == OP_STOP && !desc.flags[FLAG_FENCE_BIT]);
    expect_eq("rollout", work.rollout_id, want.rollout_id);
    if (want.adds_tokens) begin
      checkpoint = desc.checkpoint != 0 ? desc.checkpoint : checkpoint_default != 0 ? checkpoint_default : CHECKPOINT_NEVER;
      expect_eq("eos_stops", work.eos_stops, desc.flags[FLAG_EOS_STOPS_BIT]);
      expect_eq("resident", work.resident, desc.flags[FLAG_RESIDENT_BIT]);
      expect_eq("start_word", work.start_word, (TokenBase + desc.delta_offset) / 4 % 16);
      expect_eq("max_tokens", work.max_tokens, desc.max_tokens);
      expect_eq("checkpoint", work.checkpoint, checkpoint);
    end
  endtask

  always @(posedge clk) begin
    if (!rst_n || clear) begin
      entered = 0;
      left    = 0;
      slot_valid <= 1'b0;
    end else begin
      held = entered - left;
      if (work_valid) begin
        if (entered == left) fail("work from nowhere");
        else check_one(in_data[left % 8], in_index[left % 8], in_fault[left % 8]);
        left = left + 1;
        seen = seen + 1;
      end
      if (slot_valid) begin
        in_data[entered % 8]  = slot_data;
        in_index[entered % 8] = slot_index;
        in_fault[entered % 8] = slot_fault;
        in_cycle[entered % 8] = cycle;
        entered = entered + 1;
      end
      if (idle !== (held == 0)) fail($sformatf("idle is %b with %0d inside", idle, held));
      if (work_valid !== (held != 0 && in_cycle[(left - int'(work_valid)) % 8] == cycle - 4))
        fail("a descriptor does not take four cycles");
      slot_valid <= !chance(stall_in);
      slot_fault <= chance(3);
      slot_index <= slot_index + 1;
      slot_data  <= random_slot(slot_index + 1);
    end
  end

  initial begin
    for (int k = 0; k < 256; k++) codes[k] = 0;
    slot_index = -500;
    for (int k = 0; k < 8; k++) begin
      stall_in           = k[0] ? 50 : 0;
      kv_size            = k[2] ? 64'd4096 : 64'd0;
      length_limit       = k[2] ? 32'd600 : LENGTH_LIMIT_MAX;
      sq_key             = k[1] ? rnd() : 32'd0;
      checkpoint_default = k[0] ? CHECKPOINT_NEVER : k[2] ? 32'd0 : 32'd9;
      repeat (1200) @(posedge clk);
      // A clear empties the pipeline.
      clear <= 1'b1;
      repeat (3) @(posedge clk);
      if (work_valid) fail("R12: a descriptor survives a clear");
      clear <= 1'b0;
    end
    for (int k = 0; k <= int'(ERR_BAD_PREFIX); k++) if (codes[k] == 0) fail($sformatf("error code %0d never came up", k));
    finish_bench("desc_check_tb");
  end
endmodule
