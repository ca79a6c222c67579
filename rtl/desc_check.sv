// Checks a descriptor (rules R2, R10, R11, R18) against what its queue pair was started with: a pipeline of four stages, one
// descriptor per cycle and never held up. The order of the checks is the contract's; the first that applies is the error.
//
// The check word is a sum of nine products of 64 bits. Each is four multiplications of 16 bits, one multiplier each, and what
// they give is added up carry-save: three numbers become two of the same sum, bit by bit, over the stages that there are.
// One carry chain ends it. Whether the sum is right is known behind the last stage and decides over what leaves it.
module desc_check
  import desc_pkg::*;
  import core_pkg::*;
  import policy_pkg::*; #(
  parameter int Queues  = 1,
  parameter int Engines = 1
) (
  /* verilator lint_off UNUSEDSIGNAL */  // numbers of queue pairs have 4 bits, whatever was built
  input  logic         clk_i,
  input  logic         rst_ni,

  input  logic         start_i,        // a queue pair starts, with this configuration
  input  logic [3:0]   start_queue_i,
  input  queue_config_t start_config_i,
  input  logic [Queues-1:0] on_i,      // what comes out of others is dropped

  input  logic         slot_valid_i,
  input  logic [511:0] slot_data_i,
  input  logic         slot_fault_i,
  input  logic [31:0]  slot_index_i,
  input  logic [3:0]   slot_queue_i,
  // Of the version that it names, with it (R18).
  input  logic         version_found_i,
  input  logic         version_resident_i,
  input  logic         version_slot_i,
  input  logic         version_engine_i,     // it is of engine 1, …
  input  logic [31:0]  version_positions_i,  // … whose longest sequence this is

  output logic         work_valid_o,
  output work_t        work_o,
  output echo_t        echo_o,
  output logic         fence_o,
  output logic         prefill_o,      // a PREFILL without error
  output logic         stop_o,         // a STOP without error or FENCE: it has its effect before its turn (R8)
  output logic         leave_o,        // what was found for a descriptor has no user in it
  output logic [3:0]   leave_queue_o,
  output logic         leave_slot_o,
  output logic [Queues-1:0] busy_o     // something of the queue pair is inside
  /* verilator lint_on UNUSEDSIGNAL */
);
  localparam int QueueBits = (Queues == 1) ? 1 : $clog2(Queues);
  localparam int Slots     = 1 << QueueBits;

  // ---------------------------------------------------------------- what the checks look at
  logic [Queues-1:0][31:0] key_q;
  logic [Queues-1:0][63:0] token_base_q;
  logic [Queues-1:0][63:0] token_size_q;
  logic [Queues-1:0][63:0] kv_size_q;
  logic [Queues-1:0][63:0] logp_size_q;
  logic [Queues-1:0][31:0] length_limit_q;
  logic [Queues-1:0][31:0] checkpoint_default_q;
  logic [QueueBits-1:0] start_pair, queue0, queue1_q, queue4_q;
  assign start_pair = (Queues == 1) ? '0 : start_queue_i[QueueBits-1:0];
  assign queue0  = (Queues == 1) ? '0 : slot_queue_i[QueueBits-1:0];

  always_ff @(posedge clk_i) begin
    if (start_i) begin
      key_q[start_pair]        <= start_config_i.sq_key;
      token_base_q[start_pair] <= start_config_i.token_base;
      token_size_q[start_pair] <= start_config_i.token_size;
      kv_size_q[start_pair]    <= start_config_i.kv_size;
      logp_size_q[start_pair]  <= start_config_i.logp_size;
      length_limit_q[start_pair]       <= start_config_i.length_limit;
      checkpoint_default_q[start_pair] <= (start_config_i.checkpoint_default != '0) ? start_config_i.checkpoint_default
                                        : CHECKPOINT_NEVER;
    end
  end

  // Of the queue pair of the descriptor that comes in, and of that in the first stage.
  logic [31:0] key, length_limit1_q, length_limit2_q, checkpoint_default1_q;
  logic [63:0] token_base1_q, token_size1_q, token_size2_q, kv_size1_q, logp_size1_q, logp_size2_q;
  assign key = slot_valid_i ? key_q[queue0] : '0;

  always_ff @(posedge clk_i) begin
    if (slot_valid_i) begin
      token_base1_q         <= token_base_q[queue0];
      token_size1_q         <= token_size_q[queue0];
      kv_size1_q            <= kv_size_q[queue0];
      logp_size1_q          <= logp_size_q[queue0];
      length_limit1_q       <= length_limit_q[queue0];
      checkpoint_default1_q <= checkpoint_default_q[queue0];
    end
  end

  logic [4:1] valid_q;
  logic [Slots-1:0] on;
  assign on = Slots'(on_i);

  always_ff @(posedge clk_i) begin
    if (!rst_ni) valid_q <= '0;
    else         valid_q <= {valid_q[3:1], slot_valid_i};
  end

  if (Queues == 1) begin : gen_one
    assign {queue1_q, queue4_q} = '0;
    assign busy_o = valid_q != '0;
  end else begin : gen_many
    logic [QueueBits-1:0] queue2_q, queue3_q;
    always_ff @(posedge clk_i) begin
      if (slot_valid_i || valid_q != '0) begin
        queue1_q <= queue0;
        queue2_q <= queue1_q;
        queue3_q <= queue2_q;
        queue4_q <= queue3_q;
      end
    end
    assign busy_o = Queues'((valid_q[1] ? 16'd1 << queue1_q : 16'd0) | (valid_q[2] ? 16'd1 << queue2_q : 16'd0)
                          | (valid_q[3] ? 16'd1 << queue3_q : 16'd0) | (valid_q[4] ? 16'd1 << queue4_q : 16'd0));
  end

  // ---------------------------------------------------------------- integrity: words and key, products, sum, check
  logic [479:0]      words;                    // the check word counts as 0
  logic [15:0][31:0] factor1_q;
  logic [31:0]       check1_q, check2_q, check3_q, check4_q, index1_q, index2_q, index3_q, index4_q, folded;
  logic              fault1_q, fault2_q, fault3_q, fault4_q, ones4_q, intact;
  // Numbers whose sum is the sum of the products.
  logic [63:0]       part2_q [0:27];
  logic [63:0]       part3_q [0:3];
  logic [63:0]       sum4_q;

  assign words = slot_data_i[479:0];

  // Carry-save: these two have the sum of the three.
  function automatic logic [63:0] bits(input logic [63:0] a, input logic [63:0] b, input logic [63:0] c);
    bits = a ^ b ^ c;
  endfunction
  function automatic logic [63:0] carries(input logic [63:0] a, input logic [63:0] b, input logic [63:0] c);
    carries = ((a & b) | ((a ^ b) & c)) << 1;
  endfunction

  function automatic logic [31:0] product(input logic [15:0] a, input logic [15:0] b);
    product = {16'd0, a} * {16'd0, b};
  endfunction
  // The outer two of the four products of halves side by side; the inner two.
  function automatic logic [63:0] outer(input logic [31:0] a, input logic [31:0] b);
    outer = {product(a[31:16], b[31:16]), product(a[15:0], b[15:0])};
  endfunction
  function automatic logic [63:0] inner(input logic [15:0] a, input logic [15:0] b);
    inner = {16'd0, product(a, b), 16'd0};
  endfunction

  /* verilator lint_off BLKSEQ */  // names for what is between two stages
  logic [63:0] level3 [0:46], level4 [0:3];
  logic [31:0] factor, other;
  always_ff @(posedge clk_i) begin
    if (slot_valid_i) begin
      for (int k = 0; k < 15; k++) factor1_q[k] <= words[32*k +: 32] + key_word(key, k);
      factor1_q[15] <= key_word(key, 15);
      check1_q      <= slot_data_i[511:480];
      fault1_q      <= slot_fault_i;
    end
    if (valid_q[1]) begin
      for (int j = 0; j < 8; j++) begin
        factor        = factor1_q[2*j];
        other         = factor1_q[2*j + 1];
        part2_q[j]        <= outer(factor, other);
        part2_q[2*j + 8]  <= inner(factor[15:0], other[31:16]);
        part2_q[2*j + 9]  <= inner(factor[31:16], other[15:0]);
      end
      // The index by 64 bits, without what lies above them.
      part2_q[24] <= inner(index1_q[15:0], GOLDEN_64[31:16]) | {index1_q[15:0] * GOLDEN_64[63:48], 48'd0};
      part2_q[25] <= inner(index1_q[31:16], GOLDEN_64[15:0]) | {index1_q[31:16] * GOLDEN_64[47:32], 48'd0};
      part2_q[26] <= outer({index1_q[15:0], index1_q[15:0]}, {GOLDEN_64[47:32], GOLDEN_64[15:0]});
      part2_q[27] <= {product(index1_q[31:16], GOLDEN_64[31:16]), 32'd0};
      check2_q <= check1_q;
      fault2_q <= fault1_q;
    end
    if (valid_q[2]) begin
      // 28, 19, 13, 9, 6 and 4 of them.
      for (int k = 0; k < 9; k++) begin
        level3[2*k]      = bits(part2_q[3*k], part2_q[3*k + 1], part2_q[3*k + 2]);
        level3[2*k + 1]  = carries(part2_q[3*k], part2_q[3*k + 1], part2_q[3*k + 2]);
      end
      level3[18] = part2_q[27];
      for (int k = 0; k < 6; k++) begin
        level3[19 + 2*k] = bits(level3[3*k], level3[3*k + 1], level3[3*k + 2]);
        level3[20 + 2*k] = carries(level3[3*k], level3[3*k + 1], level3[3*k + 2]);
      end
      level3[31] = level3[18];
      for (int k = 0; k < 4; k++) begin
        level3[32 + 2*k] = bits(level3[19 + 3*k], level3[20 + 3*k], level3[21 + 3*k]);
        level3[33 + 2*k] = carries(level3[19 + 3*k], level3[20 + 3*k], level3[21 + 3*k]);
      end
      level3[40] = level3[31];
      for (int k = 0; k < 3; k++) begin
        level3[41 + 2*k] = bits(level3[32 + 3*k], level3[33 + 3*k], level3[34 + 3*k]);
        level3[42 + 2*k] = carries(level3[32 + 3*k], level3[33 + 3*k], level3[34 + 3*k]);
      end
      for (int k = 0; k < 2; k++) begin
        part3_q[2*k]     <= bits(level3[41 + 3*k], level3[42 + 3*k], level3[43 + 3*k]);
        part3_q[2*k + 1] <= carries(level3[41 + 3*k], level3[42 + 3*k], level3[43 + 3*k]);
      end
      check3_q <= check2_q;
      fault3_q <= fault2_q;
    end
    if (valid_q[3]) begin
      level4[0] = bits(part3_q[0], part3_q[1], part3_q[2]);
      level4[1] = carries(part3_q[0], part3_q[1], part3_q[2]);
      level4[2] = bits(level4[0], level4[1], part3_q[3]);
      level4[3] = carries(level4[0], level4[1], part3_q[3]);
      sum4_q   <= level4[2] + level4[3];
      check4_q <= check3_q;
      ones4_q  <= check3_q == '1;
      fault4_q <= fault3_q;
    end
  end
  /* verilator lint_on BLKSEQ */
  // check_word(sum4_q) == check4_q, both comparisons side by side.
  assign folded = sum4_q[63:32] ^ sum4_q[31:0];
  assign intact = (folded == '0) ? ones4_q : folded == check4_q;

  // ---------------------------------------------------------------- form: beside it
  /* verilator lint_off UNUSEDSIGNAL */  // the engine prepares itself from the slot
  logic [479:0] slot1_q;
  hw_desc_t     desc1;
  /* verilator lint_on UNUSEDSIGNAL */
  assign desc1 = {32'd0, slot1_q};

  // What is wrong with it, each by itself; the contract's order comes last.
  typedef struct packed {
    logic opcode;
    logic reserved;
    logic model;
    logic length;
    logic region;
    logic prefix;
    logic version;
  } wrong_t;
  // Where its end must not lie behind: compared in the third stage.
  typedef struct packed {
    logic length;
    logic tokens;
    logic logp;
  } bounded_t;

  /* verilator lint_off UNUSEDSIGNAL */  // the rollout lies in the other, the error is found last
  work_t       work2, work2_q, work3_q, work4_q;
  echo_t       echo2, echo2_q, echo3_q, echo4_q;
  /* verilator lint_on UNUSEDSIGNAL */
  wrong_t      wrong2, wrong2_q, wrong3_q;
  bounded_t    bounded2, bounded2_q;
  logic        decode1_q, prefill1_q, stop1_q, reward1_q, policy1_q, nop1_q;      // what it is
  logic        fence2, fence2_q, fence3_q, fence4_q, prefill2_q, prefill3_q, prefill4_q, stop2_q, stop3_q, stop4_q;
  logic        found1_q, found2_q, found3_q, resident1_q, place1_q;
  logic        logp, cow_prefix, whole2, opens2, seeks2;
  // With an engine 1: it is of engine 1; names another engine's version; would be longer than the version's sequences.
  logic        language, foreign3_q, late3_q, engine4_q;
  logic [32:0] end_len, end_len2_q;
  logic [64:0] end_offset, end_offset2_q;
  logic [7:0]  form4_q;
  logic        sound3, sound4_q;          // neither its form nor its read is wrong
  logic        leaves4_q, stays4_q;       // a version was found for it; which it names, if it is good

  always_comb begin
    logp       = 1'b0;
    cow_prefix = 1'b0;
    whole2     = 1'b0;
    opens2     = 1'b0;
    seeks2     = 1'b0;
    end_len    = '0;
    end_offset = '0;
    wrong2     = '0;
    bounded2   = '0;
    work2      = '0;
    echo2      = '0;
    fence2     = 1'b0;
    if (valid_q[1]) begin
      fence2     = desc1.flags[FLAG_FENCE_BIT];
      logp       = decode1_q && desc1.flags[FLAG_LOGP_BIT];
      cow_prefix = desc1.flags[FLAG_COW_PREFIX_BIT];
      end_len    = (reward1_q ? 33'd0 : {1'b0, desc1.seq_len}) + ((decode1_q || reward1_q) ? {1'b0, desc1.max_tokens} : 33'd0);
      end_offset = {1'b0, desc1.delta_offset} + (policy1_q ? (language ? 65'd128 : 65'd64) : {31'd0, desc1.max_tokens, 2'b00});

      wrong2.opcode   = !(decode1_q || prefill1_q || stop1_q || reward1_q || policy1_q || nop1_q);
      wrong2.reserved = (desc1.flags & ~DESC_FLAGS_MASK) != '0;
      wrong2.model    = ((decode1_q || prefill1_q || policy1_q) && !has_engine(desc1.model_id, Engines))
                     || (decode1_q && desc1.flags[FLAG_RESIDENT_BIT] && desc1.reward_model_id != '0)
                     || (reward1_q && desc1.reward_model_id >= REWARD_MODELS);
      wrong2.length   = ((decode1_q || reward1_q) && desc1.max_tokens == '0) || (prefill1_q && desc1.max_tokens > MEMBERS_MAX)
                     || (language && !policy1_q && desc1.seq_len == '0);
      wrong2.region   = ((decode1_q || reward1_q) && desc1.delta_offset[1:0] != '0) || (policy1_q && desc1.delta_offset[5:0] != '0)
                     || ((decode1_q || prefill1_q) && desc1.kv_offset != '0 && desc1.kv_offset >= kv_size1_q)
                     || (language && !policy1_q
                         && (desc1.kv_offset[5:0] != '0 || desc1.kv_offset[63:6] >= kv_size1_q[63:6]
                             || desc1.kv_arena_id >= ARENAS[15:0] || (decode1_q && desc1.delta_offset == '0)));
      wrong2.prefix   = (prefill1_q || ((decode1_q || stop1_q) && cow_prefix)) && desc1.prefix_id == PREFIX_NONE;
      wrong2.version  = (decode1_q || prefill1_q) && (!found1_q || (prefill1_q && !resident1_q));
      bounded2.length = decode1_q || prefill1_q || reward1_q;
      bounded2.tokens = decode1_q || reward1_q || policy1_q;
      bounded2.logp   = logp;

      // R17: a DECODE or STOP that names a member belongs to a group, if there is one; so does a STOP of all.
      whole2 = stop1_q && desc1.member == MEMBER_NONE;
      opens2 = prefill1_q && desc1.max_tokens != '0;
      seeks2 = prefill1_q || (cow_prefix && (whole2 || ((decode1_q || stop1_q) && desc1.member < MEMBERS_MAX[15:0])));

      // Of one that is good; status and error come last.
      echo2.pair            = 4'(queue1_q);
      echo2.reward_model_id = desc1.reward_model_id;
      echo2.seq_len         = desc1.seq_len;
      echo2.rollout_id      = desc1.rollout_id;
      echo2.user_data       = desc1.user_data;
      echo2.adds_tokens     = decode1_q;
      echo2.token_addr      = token_base1_q + desc1.delta_offset;
      echo2.irq             = desc1.flags[FLAG_INTERRUPT_BIT];
      echo2.names           = decode1_q || prefill1_q;
      echo2.slot            = place1_q;
      echo2.reads           = reward1_q || policy1_q;
      echo2.publishes       = policy1_q;
      echo2.status          = stop1_q ? STATUS_STOPPED : reward1_q ? STATUS_SCORED : STATUS_DONE;
      if (reward1_q) echo2.result = desc1.max_tokens;
      if (policy1_q) echo2.result = {13'd0, language, (desc1.checkpoint > 32'(POLICY_ABORT)) ? 2'd3 : desc1.checkpoint[1:0],
                                     desc1.policy_version};

      work2.pair        = 4'(queue1_q);
      work2.adds_tokens = decode1_q;
      work2.eos_stops   = desc1.flags[FLAG_EOS_STOPS_BIT];
      work2.resident    = desc1.flags[FLAG_RESIDENT_BIT];
      work2.logp        = logp;
      work2.start_word  = echo2.token_addr[5:2];
      work2.max_tokens  = desc1.max_tokens;
      work2.checkpoint  = (desc1.checkpoint != '0) ? desc1.checkpoint : checkpoint_default1_q;
      work2.slot        = place1_q;
      work2.seeks       = seeks2;
      work2.opens       = opens2;
      work2.is_stop     = stop1_q;
      work2.all         = whole2 && cow_prefix;
      work2.member      = prefill1_q ? desc1.max_tokens[5:0] - 6'd1 : desc1.member[5:0];
      work2.cow_prefix  = cow_prefix;
      work2.prefix_id   = desc1.prefix_id;
    end
  end

  always_ff @(posedge clk_i) begin
    if (slot_valid_i) begin
      slot1_q     <= words;
      index1_q    <= slot_index_i;
      found1_q    <= version_found_i;
      resident1_q <= version_resident_i;
      place1_q    <= version_slot_i;
      decode1_q   <= slot_data_i[HW_DESC_OPCODE_LSB +: 8] == OP_DECODE;
      prefill1_q  <= slot_data_i[HW_DESC_OPCODE_LSB +: 8] == OP_PREFILL;
      stop1_q     <= slot_data_i[HW_DESC_OPCODE_LSB +: 8] == OP_STOP;
      reward1_q   <= slot_data_i[HW_DESC_OPCODE_LSB +: 8] == OP_REWARD;
      policy1_q   <= slot_data_i[HW_DESC_OPCODE_LSB +: 8] == OP_POLICY;
      nop1_q      <= slot_data_i[HW_DESC_OPCODE_LSB +: 8] == OP_NOP;
    end
    if (valid_q[1]) begin
      index2_q        <= index1_q;
      found2_q        <= found1_q;
      end_len2_q      <= end_len;
      end_offset2_q   <= end_offset;
      length_limit2_q <= length_limit1_q;
      token_size2_q   <= token_size1_q;
      logp_size2_q    <= logp_size1_q;
      wrong2_q        <= wrong2;
      bounded2_q      <= bounded2;
      work2_q         <= work2;
      echo2_q         <= echo2;
      fence2_q        <= fence2;
      prefill2_q      <= prefill1_q;
      stop2_q         <= stop1_q;
    end
    if (valid_q[2]) begin
      index3_q   <= index2_q;
      found3_q   <= found2_q;
      wrong3_q   <= wrong2_q;
      if (bounded2_q.length && end_len2_q > {1'b0, length_limit2_q})                      wrong3_q.length <= 1'b1;
      if ((bounded2_q.tokens && end_offset2_q > {1'b0, token_size2_q})
       || (bounded2_q.logp && end_offset2_q > {1'b0, logp_size2_q}))                      wrong3_q.region <= 1'b1;
      work3_q    <= work2_q;
      echo3_q    <= echo2_q;
      fence3_q   <= fence2_q;
      prefill3_q <= prefill2_q;
      stop3_q    <= stop2_q;
    end
    if (valid_q[3]) begin
      index4_q   <= index3_q;
      form4_q    <= wrong3_q.opcode   ? ERR_BAD_OPCODE
                  : wrong3_q.reserved ? ERR_RESERVED_SET
                  : wrong3_q.model    ? ERR_BAD_MODEL
                  : wrong3_q.length   ? ERR_BAD_LENGTH
                  : wrong3_q.region   ? ERR_BAD_REGION
                  : wrong3_q.prefix   ? ERR_BAD_PREFIX
                  : wrong3_q.version  ? ERR_BAD_VERSION
                  : foreign3_q        ? ERR_BAD_MODEL
                  : late3_q           ? ERR_BAD_LENGTH : ERR_NONE;
      sound4_q   <= sound3;
      stays4_q   <= sound3 && echo3_q.names;
      work4_q    <= work3_q;
      echo4_q    <= echo3_q;
      fence4_q   <= fence3_q;
      prefill4_q <= prefill3_q;
      stop4_q    <= stop3_q && !fence3_q;
    end
  end

  // Beside the others, so that nothing of it is there without an engine 1.
  if (Engines > 1) begin : gen_language
    logic [31:0] positions1_q, positions2_q;
    logic        engine1_q, foreign2_q, engine2_q, engine3_q;
    assign language = valid_q[1] && desc1.model_id == 16'd1 && (decode1_q || prefill1_q || policy1_q);
    always_ff @(posedge clk_i) begin
      if (slot_valid_i) begin
        engine1_q    <= version_engine_i;
        positions1_q <= version_positions_i;
      end
      if (valid_q[1]) begin
        positions2_q <= positions1_q;
        foreign2_q   <= (decode1_q || prefill1_q) && engine1_q != language;
        engine2_q    <= language && !policy1_q;
      end
      if (valid_q[2]) begin
        foreign3_q <= foreign2_q;
        late3_q    <= engine2_q && end_len2_q > {1'b0, positions2_q};
        engine3_q  <= engine2_q;
      end
      if (valid_q[3]) engine4_q <= engine3_q;
    end
  end else begin : gen_no_language
    assign {language, foreign3_q, late3_q, engine4_q} = '0;
  end

  assign sound3 = wrong3_q == '0 && !foreign3_q && !late3_q && !fault3_q;
  always_ff @(posedge clk_i) begin
    if (valid_q[3] || valid_q[4]) leaves4_q <= valid_q[3] && found3_q;
    if (!rst_ni)                  leaves4_q <= 1'b0;
  end

  // ---------------------------------------------------------------- behind the last stage: the error decides over the rest
  logic       out, trusted, good;
  logic [7:0] error;
  assign out     = valid_q[4];
  assign trusted = intact && !fault4_q;
  assign good    = intact && sound4_q;
  assign error   = !out ? ERR_NONE : fault4_q ? ERR_DMA_FAULT : !intact ? ERR_BAD_CHECK : form4_q;

  // Of a slot that cannot be trusted only the index is known. R14: a host that sleeps must learn of an error, whatever the
  // descriptor asked for. One assignment to each, in the order of its fields: no value in between wakes who reads it.
  always_comb begin
    if (out) begin
      echo_o = {echo4_q.pair, !good || echo4_q.irq, good && echo4_q.adds_tokens, good ? echo4_q.status : STATUS_ERROR, error,
                good ? echo4_q.result : trusted ? 32'd0 : index4_q, trusted ? echo4_q.reward_model_id : 16'd0,
                trusted ? echo4_q.seq_len : 32'd0, trusted ? echo4_q.rollout_id : 32'd0, trusted ? echo4_q.user_data : 64'd0,
                trusted ? echo4_q.token_addr : 64'd0, good && echo4_q.names, trusted && echo4_q.slot, good && echo4_q.reads,
                good && echo4_q.publishes};
      work_o = {good && engine4_q, work4_q.pair, good && work4_q.adds_tokens, work4_q.eos_stops, work4_q.resident, work4_q.logp,
                work4_q.start_word, trusted ? echo4_q.rollout_id : 32'd0, work4_q.max_tokens, work4_q.checkpoint, work4_q.slot,
                good && work4_q.seeks, work4_q.opens, work4_q.is_stop, work4_q.all, work4_q.member, work4_q.cow_prefix,
                work4_q.prefix_id};
    end else begin
      echo_o = '0;
      work_o = '0;
    end
  end

  assign work_valid_o = out && on[queue4_q];
  assign fence_o      = out && good && fence4_q;
  assign prefill_o    = out && good && prefill4_q;
  assign stop_o       = out && good && stop4_q;

  assign leave_o       = leaves4_q && !(stays4_q && intact && on[queue4_q]);
  assign leave_queue_o = 4'(queue4_q);
  assign leave_slot_o  = echo4_q.slot;
endmodule
