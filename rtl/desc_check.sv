// Checks a descriptor (rules R2, R10, R11, R18) against what its queue pair was started with: a pipeline of four stages, one
// descriptor per cycle and never held up. The order of the checks is the contract's; the first that applies is the error.
module desc_check
  import desc_pkg::*;
  import core_pkg::*;
  import policy_pkg::*; #(
  parameter int Queues = 1
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
  logic [QueueBits-1:0] start_pair, queue0, queue1_q, queue3_q, queue4_q;
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
      checkpoint_default_q[start_pair] <= start_config_i.checkpoint_default;
    end
  end

  logic [31:0] key, length_limit, checkpoint_default;
  logic [63:0] token_base, token_size, kv_size, logp_size;
  assign key                = key_q[queue0];
  assign token_base         = token_base_q[queue1_q];
  assign token_size         = token_size_q[queue1_q];
  assign kv_size            = kv_size_q[queue1_q];
  assign logp_size          = logp_size_q[queue1_q];
  assign length_limit       = length_limit_q[queue1_q];
  assign checkpoint_default = checkpoint_default_q[queue1_q];

  logic [4:1] valid_q;
  logic [Slots-1:0] on;
  assign on = Slots'(on_i);

  always_ff @(posedge clk_i) begin
    if (!rst_ni) valid_q <= '0;
    else         valid_q <= {valid_q[3:1], slot_valid_i};
  end

  if (Queues == 1) begin : gen_one
    assign {queue1_q, queue3_q, queue4_q} = '0;
    assign busy_o = valid_q != '0;
  end else begin : gen_many
    logic [QueueBits-1:0] queue2_q;
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
  logic [479:0]   words;                       // the check word counts as 0
  logic [15:0][31:0] factor1_q;
  logic [7:0][63:0]  product2_q;
  logic [63:0]    mark_low2_q, sum3, sum3_q;   // of the index' product, added up with the others
  logic [31:0]    mark_high2_q;
  logic [31:0]    check1_q, check2_q, check3_q, index1_q, index2_q, index3_q;
  logic           fault1_q, fault2_q, fault3_q, intact;

  assign words = slot_data_i[479:0];

  always_comb begin
    sum3 = mark_low2_q;
    if (valid_q[2]) begin
      sum3 = sum3 + {mark_high2_q, 32'd0};
      for (int j = 0; j < 8; j++) sum3 = sum3 + product2_q[j];
    end
  end

  always_ff @(posedge clk_i) begin
    if (slot_valid_i) begin
      for (int k = 0; k < 15; k++) factor1_q[k] <= words[32*k +: 32] + key_word(key, k);
      factor1_q[15] <= key_word(key, 15);
      check1_q      <= slot_data_i[511:480];
      fault1_q      <= slot_fault_i;
    end
    if (valid_q[1]) begin
      for (int j = 0; j < 8; j++) product2_q[j] <= {32'd0, factor1_q[2*j]} * {32'd0, factor1_q[2*j + 1]};
      mark_low2_q  <= {32'd0, index1_q} * {32'd0, GOLDEN_64[31:0]};
      mark_high2_q <= index1_q * GOLDEN_64[63:32];
      check2_q <= check1_q;
      fault2_q <= fault1_q;
    end
    if (valid_q[2]) begin
      sum3_q   <= sum3;
      check3_q <= check2_q;
      fault3_q <= fault2_q;
    end
  end
  assign intact = check3_q == check_word(sum3_q);

  // ---------------------------------------------------------------- form: beside it, in the second stage
  /* verilator lint_off UNUSEDSIGNAL */  // the engine prepares itself from the slot
  logic [479:0] slot1_q;
  hw_desc_t     desc1;
  /* verilator lint_on UNUSEDSIGNAL */
  assign desc1 = {32'd0, slot1_q};

  work_t       work2, work2_q, work3_q, work4_q;
  echo_t       echo2, echo2_q, echo3_q, echo4, echo4_q;
  logic        fence2, fence2_q, fence3_q, fence4_q, prefill2, prefill2_q, prefill3_q, prefill4_q;
  logic        stop2, stop2_q, stop3_q, stop4_q, good4;
  logic        found1_q, found2_q, found3_q, found4_q, resident1_q, place1_q, place2_q, place3_q, place4_q, names4_q;
  logic        decode, logp, cow_prefix, reward, policy, whole2, opens2, seeks2;
  logic [32:0] end_len;
  logic [64:0] end_offset;
  logic [7:0]  form, form2_q, form3_q, error4;

  always_comb begin
    decode     = 1'b0;
    logp       = 1'b0;
    cow_prefix = 1'b0;
    reward     = 1'b0;
    policy     = 1'b0;
    whole2     = 1'b0;
    opens2     = 1'b0;
    seeks2     = 1'b0;
    end_len    = '0;
    end_offset = '0;
    form       = ERR_NONE;
    work2      = '0;
    echo2      = '0;
    fence2     = 1'b0;
    prefill2   = 1'b0;
    stop2      = 1'b0;
    if (valid_q[1]) begin
      decode     = desc1.opcode == OP_DECODE;
      prefill2   = desc1.opcode == OP_PREFILL;
      stop2      = desc1.opcode == OP_STOP;
      reward     = desc1.opcode == OP_REWARD;
      policy     = desc1.opcode == OP_POLICY;
      fence2     = desc1.flags[FLAG_FENCE_BIT];
      logp       = decode && desc1.flags[FLAG_LOGP_BIT];
      cow_prefix = desc1.flags[FLAG_COW_PREFIX_BIT];
      end_len    = (reward ? 33'd0 : {1'b0, desc1.seq_len}) + ((decode || reward) ? {1'b0, desc1.max_tokens} : 33'd0);
      end_offset = {1'b0, desc1.delta_offset} + (policy ? 65'd64 : {31'd0, desc1.max_tokens, 2'b00});

      if      (!decode && !prefill2 && !stop2 && !reward && !policy && desc1.opcode != OP_NOP)
        form = ERR_BAD_OPCODE;
      else if ((desc1.flags & ~DESC_FLAGS_MASK) != '0)
        form = ERR_RESERVED_SET;
      else if (stop2 && cow_prefix && desc1.prefix_id == PREFIX_NONE)
        form = ERR_BAD_PREFIX;
      else if (decode || prefill2 || reward || policy) begin
        if      ((!reward && !has_engine(desc1.model_id))
              || (decode && desc1.flags[FLAG_RESIDENT_BIT] && desc1.reward_model_id != '0)
              || (reward && desc1.reward_model_id >= REWARD_MODELS))
          form = ERR_BAD_MODEL;
        else if (((decode || reward) && desc1.max_tokens == '0) || (prefill2 && desc1.max_tokens > MEMBERS_MAX)
              || (!policy && end_len > {1'b0, length_limit}))
          form = ERR_BAD_LENGTH;
        else if (((decode || reward) && desc1.delta_offset[1:0] != '0) || (policy && desc1.delta_offset[5:0] != '0)
              || (!prefill2 && end_offset > {1'b0, token_size}) || (logp && end_offset > {1'b0, logp_size})
              || ((decode || prefill2) && desc1.kv_offset != '0 && desc1.kv_offset >= kv_size))
          form = ERR_BAD_REGION;
        else if ((prefill2 || (decode && cow_prefix)) && desc1.prefix_id == PREFIX_NONE)
          form = ERR_BAD_PREFIX;
        else if ((decode || prefill2) && (!found1_q || (prefill2 && !resident1_q)))
          form = ERR_BAD_VERSION;
      end

      // R17: a DECODE or STOP that names a member belongs to a group, if there is one; so does a STOP of all.
      whole2 = stop2 && desc1.member == MEMBER_NONE;
      opens2 = prefill2 && desc1.max_tokens != '0;
      seeks2 = prefill2 || (cow_prefix && (whole2 || ((decode || stop2) && desc1.member < MEMBERS_MAX[15:0])));

      echo2.pair           = 4'(queue1_q);
      echo2.reward_model_id = desc1.reward_model_id;
      echo2.seq_len         = desc1.seq_len;
      echo2.rollout_id      = desc1.rollout_id;
      echo2.user_data       = desc1.user_data;
      echo2.adds_tokens     = decode;
      echo2.token_addr      = token_base + desc1.delta_offset;
      echo2.irq             = desc1.flags[FLAG_INTERRUPT_BIT];
      echo2.names           = decode || prefill2;
      echo2.slot            = place1_q;
      echo2.reads           = reward || policy;
      echo2.publishes       = policy;
      if (reward) echo2.result = desc1.max_tokens;
      if (policy) echo2.result = {14'd0, (desc1.checkpoint > 32'(POLICY_ABORT)) ? 2'd3 : desc1.checkpoint[1:0], desc1.policy_version};

      work2.pair       = 4'(queue1_q);
      work2.eos_stops   = desc1.flags[FLAG_EOS_STOPS_BIT];
      work2.resident    = desc1.flags[FLAG_RESIDENT_BIT];
      work2.logp        = logp;
      work2.start_word  = echo2.token_addr[5:2];
      work2.rollout_id  = echo2.rollout_id;
      work2.max_tokens  = desc1.max_tokens;
      work2.checkpoint  = (desc1.checkpoint != '0) ? desc1.checkpoint
                        : (checkpoint_default != '0) ? checkpoint_default : CHECKPOINT_NEVER;
      work2.slot        = place1_q;
      work2.seeks       = seeks2;
      work2.opens       = opens2;
      work2.is_stop     = stop2;
      work2.all         = whole2 && cow_prefix;
      work2.member      = prefill2 ? desc1.max_tokens[5:0] - 6'd1 : desc1.member[5:0];
      work2.cow_prefix  = cow_prefix;
      work2.prefix_id   = desc1.prefix_id;
    end
  end

  // ---------------------------------------------------------------- the last stage: the error decides over the rest
  always_comb begin
    error4 = ERR_NONE;
    echo4  = '0;
    good4  = 1'b0;
    if (valid_q[3]) begin
      error4 = fault3_q ? ERR_DMA_FAULT : !intact ? ERR_BAD_CHECK : form3_q;
      good4  = error4 == ERR_NONE;
      if (!fault3_q && intact) echo4 = echo3_q;
      if (!good4)              echo4.result = '0;
      if (fault3_q || !intact) echo4.result = index3_q;  // nothing of the slot can be trusted: only its index is known
      echo4.pair       = 4'(queue3_q);
      echo4.adds_tokens = echo4.adds_tokens && good4;
      echo4.names       = echo4.names && good4;
      echo4.reads       = echo4.reads && good4;
      echo4.publishes   = echo4.publishes && good4;
      echo4.error       = error4;
      echo4.status      = !good4 ? STATUS_ERROR : stop3_q ? STATUS_STOPPED
                        : (echo3_q.reads && !echo3_q.publishes) ? STATUS_SCORED : STATUS_DONE;
      // R14: a host that sleeps must learn of an error, whatever the descriptor asked for.
      echo4.irq         = !good4 || echo3_q.irq;
    end
  end

  always_ff @(posedge clk_i) begin
    if (slot_valid_i) begin
      slot1_q  <= words;
      index1_q <= slot_index_i;
      found1_q    <= version_found_i;
      resident1_q <= version_resident_i;
      place1_q    <= version_slot_i;
    end
    if (valid_q[1]) begin
      index2_q   <= index1_q;
      found2_q   <= found1_q;
      place2_q   <= place1_q;
      form2_q    <= form;
      work2_q    <= work2;
      echo2_q    <= echo2;
      fence2_q   <= fence2;
      prefill2_q <= prefill2;
      stop2_q    <= stop2;
    end
    if (valid_q[2]) begin
      index3_q   <= index2_q;
      found3_q   <= found2_q;
      place3_q   <= place2_q;
      form3_q    <= form2_q;
      work3_q    <= work2_q;
      echo3_q    <= echo2_q;
      fence3_q   <= fence2_q;
      prefill3_q <= prefill2_q;
      stop3_q    <= stop2_q;
    end
    if (valid_q[3]) begin
      work4_q             <= work3_q;
      work4_q.adds_tokens <= echo4.adds_tokens;
      work4_q.rollout_id  <= echo4.rollout_id;
      work4_q.seeks       <= good4 && work3_q.seeks;
      echo4_q             <= echo4;
      found4_q            <= found3_q;
      place4_q            <= place3_q;
      names4_q            <= echo4.names;
      fence4_q            <= good4 && fence3_q;
      prefill4_q          <= good4 && prefill3_q;
      stop4_q             <= good4 && stop3_q && !fence3_q;
    end
  end

  assign work_valid_o = valid_q[4] && on[queue4_q];
  assign work_o       = work4_q;
  assign echo_o       = echo4_q;
  assign fence_o      = fence4_q;
  assign prefill_o    = prefill4_q;
  assign stop_o       = stop4_q;

  assign leave_o       = valid_q[4] && found4_q && !(names4_q && on[queue4_q]);
  assign leave_queue_o = 4'(queue4_q);
  assign leave_slot_o  = place4_q;
endmodule
