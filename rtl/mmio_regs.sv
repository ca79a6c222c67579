// The registers (docs/contract.md, Registers): configuration, doorbells, state of all queue pairs. Counters lie in
// perf_counters, ARM and the table of messages in interrupts. An access that they do not allow answers an error and changes nothing.
//
// The configuration is in two memories, with a word for each queue pair and one for each function: a write reads the
// word, puts its register into it and writes it back. The blocks get all of it at once, when a queue pair starts.
module mmio_regs
  import desc_pkg::*;
  import core_pkg::*;
#(
  parameter int Queues    = 1,
  parameter int Functions = 1,
  parameter int Workers   = 4,
  parameter int Engines   = 1,
  parameter int TickHz    = 100_000_000
) (
  input  logic        clk_i,
  input  logic        rst_ni,

  // Register accesses of one cycle; the answers are combinational.
  input  logic        write_i,
  input  logic [17:0] write_addr_i,
  input  logic [31:0] write_data_i,
  input  logic        write_partial_i,
  output logic        write_error_o,
  input  logic        read_i,
  input  logic [17:0] read_addr_i,
  output logic [31:0] read_data_o,
  output logic        read_error_o,
  input  logic        counter_hit_i,
  input  logic [31:0] counter_data_i,

  output logic [15:0] wait_states_o,         // of the device; stable while any queue pair is active
  output logic [31:0] bus_timeout_o,         // likewise

  // Life of the queue pairs.
  output logic        start_o,               // ENABLE is being set, and accepted: the queue pair, and what it starts with
  output logic [3:0]  start_queue_o,
  output queue_config_t start_config_o,
  output model_config_t start_models_o,      // '0 without an engine 1
  output logic [Queues-1:0] stop_o,          // it is being cleared
  output logic [Queues-1:0] drain_o,         // DRAIN is being set
  input  logic [Queues-1:0] on_i,            // ENABLE
  input  logic [Queues-1:0] draining_i,      // DRAIN
  input  logic [Queues-1:0] active_i,
  input  logic [Queues-1:0] dead_i,          // R24
  input  logic [Queues-1:0] idle_i,          // of one that is on: no published descriptor is without its completion

  // Doorbells, forwarded to the rings, which may refuse them in the same cycle.
  output logic        doorbell_o,
  input  logic        doorbell_ok_i,
  output logic        release_o,
  input  logic        release_ok_i,
  output logic        abort_o,               // ABORT is written, and accepted; index_o is the rollout
  input  logic [Queues-1:0] aborting_i,
  output logic        arm_o,                 // ARM is written, and accepted; index_o is the completion
  output logic        table_write_o,         // a word of the table of messages; index_o is what it gets
  output logic [1:0]  table_word_o,
  output logic [3:0]  bell_queue_o,
  output logic [31:0] index_o,

  // State.
  output logic [3:0]  state_queue_o,         // whose rings are looked at
  input  queue_state_t state_i,
  output logic [3:0]  slots_owner_o,         // whose policy slots are looked at
  input  logic [63:0] slots_i,
  output logic        event_release_o,       // EQ_HEAD is written: index_o is the event
  output logic [3:0]  event_owner_o,         // … of this function
  input  logic        event_release_ok_i,
  input  logic [95:0] events_i,              // of the function of slots_owner_o: EVENTS_DROPPED, EQ_TAIL, EQ_HEAD
  output logic [Queues-1:0][3:0] owner_o,    // the function of each queue pair
  output logic [6*Queues-1:0] raised_o,      // bits of ERROR that are set in this cycle and were not, by bit and queue pair
  input  logic [3:0]  range_owner_i,         // a range of reward model 1, combinational
  input  logic [3:0]  range_number_i,
  output logic [63:0] range_o,               // last, first
  input  logic [Workers-1:0] free_i,
  input  logic [Workers-1:0] wait_i,
  input  logic [Workers-1:0] run_i,
  input  logic [Workers-1:0] ready_i,        // the result buffer has room
  input  logic [Queues-1:0] read_fault_i,
  input  logic [Queues-1:0] line_fault_i,
  input  logic [Queues-1:0] completion_fault_i,
  input  logic [Queues-1:0] message_fault_i,
  input  logic [Queues-1:0] die_i,           // R24: BUS_TIMEOUT is over
  input  logic [Queues-1:0] armed_i,
  input  logic [Queues-1:0] masked_i,        // in the table of messages
  input  logic [Queues-1:0] pending_i,       // fired, and the message is not sent
  input  logic [Queues-1:0] sending_i,       // a message was promised to the bus, and is not answered
  output logic              moves_o          // a function's reset waits for its queue pairs
);
  if (Queues < 1 || Queues > MAX_QUEUES) begin : gen_bad_queues
    localparam bit QueuesMustBe1To16 = {-1{1'b1}};   // ends the elaboration
  end

  if (Functions < 1 || Functions > MAX_FUNCTIONS) begin : gen_bad_functions
    localparam bit FunctionsMustBe1To16 = {-1{1'b1}};   // ends the elaboration
  end

  if (Workers < 1 || Workers > MAX_WORKERS) begin : gen_bad_workers
    localparam bit WorkersMustBe1To16 = {-1{1'b1}};   // ends the elaboration
  end

  if (Engines < 1 || Engines > MAX_ENGINES) begin : gen_bad_engines
    localparam bit EnginesMustBe1To2 = {-1{1'b1}};   // ends the elaboration
  end

  localparam logic [31:0] Capability   = CAP_PREFILL | CAP_REWARD | CAP_RESIDENT | CAP_INTERRUPT | CAP_LOGP | CAP_POLICY
                                       | CAP_ABORT | CAP_ISOLATED | CAP_EVENTS | CAP_WORKER_COUNTERS | CAP_WATCHDOG;
  localparam int          Windows      = 3;
  localparam int          QueueBits    = (Queues == 1) ? 1 : $clog2(Queues);
  localparam int          FunctionBits = (Functions == 1) ? 1 : $clog2(Functions);
  localparam int          QueueSlots    = 1 << QueueBits;
  localparam int          FunctionSlots = 1 << FunctionBits;

  // ---------------------------------------------------------------- storage
  typedef struct packed {
    logic [63:0] sq_base;
    logic [63:0] cq_base;
    logic [31:0] sq_size;
    logic [31:0] cq_size;
    logic [63:0] token_base;
    logic [63:0] token_size;
    logic [63:0] kv_base;            // only engine 1 accesses the KV region
    logic [63:0] kv_size;
    logic [63:0] logp_base;
    logic [63:0] logp_size;
    logic [31:0] sq_start;
    logic [31:0] cq_start;
    logic [31:0] sq_key;
    logic [15:0] coalesce_count;
    logic [31:0] coalesce_time;
    logic [7:0]  weight;
  } queue_regs_t;

  typedef struct packed {
    logic [Workers-1:0]       workers;
    logic [64*Windows-1:0]    window_base;
    logic [64*Windows-1:0]    window_size;
    logic [31:0]              checkpoint_default;
    logic [31:0]              length_limit;
    logic [15:0]              eos_threshold;
    logic [31:0]              reward_threshold;
    logic [63:0]              eq_base;
    logic [31:0]              eq_size;
    logic                     eq_life;
  } function_regs_t;

  logic [$bits(queue_regs_t)-1:0]    queue_mem    [0:QueueSlots-1];
  logic [$bits(function_regs_t)-1:0] function_mem [0:FunctionSlots-1];
  logic [31:0]          range_lo_q [0:16*FunctionSlots-1];   // function, range
  logic [31:0]          range_hi_q [0:16*FunctionSlots-1];
  logic [Queues-1:0][3:0]           owner_q;    // function that owns the queue pair
  logic [Queues-1:0][7:0]           refused_q;    // doorbells
  logic [Queues-1:0][31:0]          aborted_q;  // what ABORT was written with last
  logic [Queues-1:0]    bad_config_q, read_fault_q, line_fault_q, completion_fault_q, message_fault_q, died_q;
  logic [Queues-1:0] resetting_q;       // FN_CONTROL.RESET has disabled it, and it has not ended

  // ---------------------------------------------------------------- where an address lies
  place_t wr, rd;
  register_place #(.Queues(Queues), .Functions(Functions)) u_wr_place (.valid_i(write_i), .addr_i(write_addr_i), .place_o(wr));
  register_place #(.Queues(Queues), .Functions(Functions)) u_rd_place (.valid_i(read_i), .addr_i(read_addr_i), .place_o(rd));

  logic [QueueBits-1:0]    wr_queue, rd_queue;
  logic [FunctionBits-1:0] wr_owner, rd_owner;
  logic                    wr_known, rd_known;
  assign wr_queue = (Queues == 1)    ? '0 : wr.pair[QueueBits-1:0];
  assign rd_queue = (Queues == 1)    ? '0 : rd.pair[QueueBits-1:0];
  // A queue pair is configured with its own function.
  assign wr_owner = (Functions == 1) ? '0 : wr.owned ? FunctionBits'(owner_q[wr_queue]) : wr.owner[FunctionBits-1:0];
  assign rd_owner = (Functions == 1) ? '0 : rd.owner[FunctionBits-1:0];
  assign wr_known = wr.known && (!wr.owned || wr.owner == owner_q[wr_queue]);
  assign rd_known = rd.known && (!rd.owned || rd.owner == owner_q[rd_queue]);

  // The ranges of reward model 1, first and last word of each in turn.
  logic                    wr_range, rd_range;
  logic [FunctionBits+3:0] wr_range_place, rd_range_place;
  assign wr_range       = write_i && wr.offset[17:7] == REG_RANGE_0_LO[17:7] && wr.offset[1:0] == '0;
  assign rd_range       = read_i && rd.offset[17:7] == REG_RANGE_0_LO[17:7] && rd.offset[1:0] == '0;
  assign wr_range_place = {wr_owner, wr.offset[6:3]};
  assign rd_range_place = {rd_owner, rd.offset[6:3]};
  assign range_o        = {range_hi_q[(FunctionBits+4)'({range_owner_i, range_number_i})],
                           range_lo_q[(FunctionBits+4)'({range_owner_i, range_number_i})]};

  // The MODEL region and the arenas, with an engine 1: five regions, each a base and a size.
  localparam int Models = (Engines > 1) ? 1 + int'(ARENAS) : 0;
  logic          wr_model, rd_model;
  logic [31:0]   model_data;               // of a read

  // What a write finds there.
  queue_regs_t    wr_queue_regs;
  function_regs_t wr_function_regs;
  logic           wr_on, wr_draining, wr_active, wr_function_active;
  logic [Queues-1:0] wr_one, wr_function_queues;
  assign wr_queue_regs    = write_i ? queue_mem[wr_queue] : '0;
  assign wr_function_regs = write_i ? function_mem[wr_owner] : '0;
  assign wr_one           = write_i ? Queues'(16'd1 << wr_queue) : '0;
  assign {wr_on, wr_draining, wr_active} = write_i
    ? {(on_i & wr_one) != '0, (draining_i & wr_one) != '0, (active_i & wr_one) != '0} : '0;

  for (genvar q = 0; q < Queues; q++) begin : gen_function_queue
    assign wr_function_queues[q] = write_i && owner_q[q] == 4'(wr_owner);
  end
  assign wr_function_active = (active_i & wr_function_queues) != '0;

  // ---------------------------------------------------------------- write decode
  // Accesses are rare: all of it is looked at only in their cycle.
  logic is_device_cfg, is_function_cfg, is_queue_cfg, is_rw, value_ok, fire, refuse, whole, bells;

  // Not in a process: it would wake desc_ring's process and be woken by it, forever (Icarus 11).
  // One conditional of many bits: looked at only in the cycle of a write.
  logic [6:0] writes;
  assign writes        = write_i ? {wr_known && !write_partial_i, wr.offset == REG_DOORBELL, !wr_draining, wr.offset == REG_CQ_HEAD,
                                    wr.offset == REG_ABORT && wr_on && (aborting_i & wr_one) == '0, wr.offset == REG_ARM && wr_on,
                                    wr.offset[17:4] == REG_MESSAGE_ADDRESS_LO[17:4] && wr.offset[1:0] == '0
                                    && (wr.offset[3:2] != 2'd0 || write_data_i[1:0] == '0)} : '0;
  assign whole         = writes[6];
  assign bells         = whole && writes[5];
  assign doorbell_o    = bells && writes[4];          // a queue pair that drains takes none
  assign release_o     = whole && writes[3];
  assign abort_o       = whole && writes[2];
  assign arm_o         = whole && writes[1];
  assign table_write_o = whole && writes[0];
  assign table_word_o  = wr.offset[3:2];
  assign event_release_o = whole && wr.offset == REG_EQ_HEAD;
  assign event_owner_o = 4'(wr_owner);
  assign owner_o       = owner_q;
  assign bell_queue_o  = 4'(wr_queue);
  assign index_o       = write_data_i;

  always_comb begin
    is_device_cfg   = 1'b0;
    is_function_cfg = 1'b0;
    is_queue_cfg    = 1'b0;
    is_rw           = 1'b0;
    value_ok        = 1'b1;
    if (write_i) begin
      case (wr.offset)
        REG_WAIT_STATES, REG_BUS_TIMEOUT: is_device_cfg = 1'b1;
        REG_FN_WORKERS: begin
          is_function_cfg = 1'b1;
          value_ok        = write_data_i[Workers-1:0] != '0;
        end
        REG_LENGTH_LIMIT: begin
          is_function_cfg = 1'b1;
          value_ok        = write_data_i <= LENGTH_LIMIT_MAX;
        end
        REG_WINDOW_0_BASE_LO, REG_WINDOW_0_BASE_HI, REG_WINDOW_0_SIZE_LO, REG_WINDOW_0_SIZE_HI,
        REG_WINDOW_1_BASE_LO, REG_WINDOW_1_BASE_HI, REG_WINDOW_1_SIZE_LO, REG_WINDOW_1_SIZE_HI,
        REG_WINDOW_2_BASE_LO, REG_WINDOW_2_BASE_HI, REG_WINDOW_2_SIZE_LO, REG_WINDOW_2_SIZE_HI,
        REG_CHECKPOINT_DEFAULT, REG_EOS_THRESHOLD, REG_REWARD_THRESHOLD,
        REG_EQ_BASE_LO, REG_EQ_BASE_HI, REG_EQ_SIZE, REG_EVENT_CONTROL: is_function_cfg = 1'b1;
        REG_EQ_HEAD: begin
          is_rw    = 1'b1;
          value_ok = event_release_ok_i;
        end
        REG_QUEUE_FUNCTION: begin
          is_queue_cfg = 1'b1;
          value_ok     = write_data_i < 32'(Functions);
        end
        REG_WEIGHT: begin
          is_queue_cfg = 1'b1;
          value_ok     = write_data_i[31:8] == '0 && write_data_i != '0;
        end
        REG_SQ_BASE_LO, REG_SQ_BASE_HI, REG_CQ_BASE_LO, REG_CQ_BASE_HI, REG_SQ_SIZE, REG_CQ_SIZE,
        REG_TOKEN_BASE_LO, REG_TOKEN_BASE_HI, REG_TOKEN_SIZE_LO, REG_TOKEN_SIZE_HI, REG_KV_BASE_LO, REG_KV_BASE_HI,
        REG_KV_SIZE_LO, REG_KV_SIZE_HI, REG_SQ_START, REG_CQ_START, REG_SQ_KEY, REG_COALESCE_COUNT, REG_COALESCE_TIME,
        REG_LOGP_BASE_LO, REG_LOGP_BASE_HI, REG_LOGP_SIZE_LO, REG_LOGP_SIZE_HI: is_queue_cfg = 1'b1;
        REG_CONTROL: begin
          is_rw    = 1'b1;
          value_ok = !(write_data_i[CONTROL_ENABLE_BIT] && wr_active && !wr_on);
        end
        REG_ABORT: begin
          is_rw    = 1'b1;
          value_ok = abort_o;
        end
        REG_ARM: begin
          is_rw    = 1'b1;
          value_ok = arm_o;
        end
        REG_MESSAGE_ADDRESS_LO, REG_MESSAGE_ADDRESS_HI, REG_MESSAGE_DATA, REG_MESSAGE_CONTROL: begin
          is_rw    = 1'b1;
          value_ok = table_write_o;
        end
        REG_FN_CONTROL, REG_DOORBELL, REG_CQ_HEAD, REG_ERROR: is_rw = 1'b1;
        default: is_function_cfg = wr_range || wr_model;
      endcase
    end
  end

  always_comb begin
    refuse = 1'b0;
    if (write_i) begin
      refuse = !whole || !value_ok
            || !(is_rw || (is_device_cfg && active_i == '0) || (is_function_cfg && !wr_function_active)
                 || (is_queue_cfg && !wr_active))
            || (bells && (wr_draining || !doorbell_ok_i))
            || (release_o && !release_ok_i);
    end
  end

  assign fire          = write_i && !refuse;
  assign write_error_o = refuse;

  // ---------------------------------------------------------------- configuration
  queue_regs_t    new_queue_regs;
  function_regs_t new_function_regs;

  always_comb begin
    new_queue_regs    = '0;
    new_function_regs = '0;
    if (write_i) begin
      new_queue_regs    = wr_queue_regs;
      new_function_regs = wr_function_regs;
      case (wr.offset)
        REG_WEIGHT:        new_queue_regs.weight            = write_data_i[7:0];
        REG_SQ_BASE_LO:    new_queue_regs.sq_base[31:0]     = write_data_i;
        REG_SQ_BASE_HI:    new_queue_regs.sq_base[63:32]    = write_data_i;
        REG_CQ_BASE_LO:    new_queue_regs.cq_base[31:0]     = write_data_i;
        REG_CQ_BASE_HI:    new_queue_regs.cq_base[63:32]    = write_data_i;
        REG_SQ_SIZE:       new_queue_regs.sq_size           = write_data_i;
        REG_CQ_SIZE:       new_queue_regs.cq_size           = write_data_i;
        REG_TOKEN_BASE_LO: new_queue_regs.token_base[31:0]  = write_data_i;
        REG_TOKEN_BASE_HI: new_queue_regs.token_base[63:32] = write_data_i;
        REG_TOKEN_SIZE_LO: new_queue_regs.token_size[31:0]  = write_data_i;
        REG_TOKEN_SIZE_HI: new_queue_regs.token_size[63:32] = write_data_i;
        REG_KV_BASE_LO:    new_queue_regs.kv_base[31:0]     = write_data_i;
        REG_KV_BASE_HI:    new_queue_regs.kv_base[63:32]    = write_data_i;
        REG_KV_SIZE_LO:    new_queue_regs.kv_size[31:0]     = write_data_i;
        REG_KV_SIZE_HI:    new_queue_regs.kv_size[63:32]    = write_data_i;
        REG_SQ_START:      new_queue_regs.sq_start          = write_data_i;
        REG_CQ_START:      new_queue_regs.cq_start          = write_data_i;
        REG_SQ_KEY:        new_queue_regs.sq_key            = write_data_i;
        REG_COALESCE_COUNT: new_queue_regs.coalesce_count   = write_data_i[15:0];
        REG_COALESCE_TIME: new_queue_regs.coalesce_time     = write_data_i;
        REG_LOGP_BASE_LO:  new_queue_regs.logp_base[31:0]   = write_data_i;
        REG_LOGP_BASE_HI:  new_queue_regs.logp_base[63:32]  = write_data_i;
        REG_LOGP_SIZE_LO:  new_queue_regs.logp_size[31:0]   = write_data_i;
        REG_LOGP_SIZE_HI:  new_queue_regs.logp_size[63:32]  = write_data_i;
        REG_FN_WORKERS:         new_function_regs.workers            = write_data_i[Workers-1:0];
        REG_CHECKPOINT_DEFAULT: new_function_regs.checkpoint_default = write_data_i;
        REG_LENGTH_LIMIT:       new_function_regs.length_limit       = write_data_i;
        REG_EOS_THRESHOLD:      new_function_regs.eos_threshold      = write_data_i[15:0];
        REG_EQ_BASE_LO:         new_function_regs.eq_base[31:0]      = write_data_i;
        REG_EQ_BASE_HI:         new_function_regs.eq_base[63:32]     = write_data_i;
        REG_EQ_SIZE:            new_function_regs.eq_size            = write_data_i;
        REG_EVENT_CONTROL:      new_function_regs.eq_life            = write_data_i[EVENT_CONTROL_LIFE_BIT];
        REG_REWARD_THRESHOLD:   new_function_regs.reward_threshold   = write_data_i;
        REG_WINDOW_0_BASE_LO:   new_function_regs.window_base[31:0] = write_data_i;
        REG_WINDOW_0_BASE_HI:   new_function_regs.window_base[63:32] = write_data_i;
        REG_WINDOW_0_SIZE_LO:   new_function_regs.window_size[31:0] = write_data_i;
        REG_WINDOW_0_SIZE_HI:   new_function_regs.window_size[63:32] = write_data_i;
        REG_WINDOW_1_BASE_LO:   new_function_regs.window_base[95:64] = write_data_i;
        REG_WINDOW_1_BASE_HI:   new_function_regs.window_base[127:96] = write_data_i;
        REG_WINDOW_1_SIZE_LO:   new_function_regs.window_size[95:64] = write_data_i;
        REG_WINDOW_1_SIZE_HI:   new_function_regs.window_size[127:96] = write_data_i;
        REG_WINDOW_2_BASE_LO:   new_function_regs.window_base[159:128] = write_data_i;
        REG_WINDOW_2_BASE_HI:   new_function_regs.window_base[191:160] = write_data_i;
        REG_WINDOW_2_SIZE_LO:   new_function_regs.window_size[159:128] = write_data_i;
        REG_WINDOW_2_SIZE_HI:   new_function_regs.window_size[191:160] = write_data_i;
        default: ;
      endcase
    end
  end

  function automatic queue_regs_t queue_reset();
    queue_reset        = '0;
    queue_reset.weight = RESET_WEIGHT[7:0];
  endfunction

  // Function 0 may reach all addresses until somebody takes them from it.
  function automatic function_regs_t function_reset(input logic first);
    function_reset                    = '0;
    function_reset.workers            = '1;
    function_reset.checkpoint_default = RESET_CHECKPOINT_DEFAULT;
    function_reset.length_limit       = RESET_LENGTH_LIMIT;
    function_reset.window_size        = (64*Windows)'({64{first}});
  endfunction

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      for (int q = 0; q < QueueSlots; q++) queue_mem[q] <= queue_reset();
      owner_q <= '0;
      for (int f = 0; f < FunctionSlots; f++) function_mem[f] <= function_reset(f == 0);
      // Two loops: Verilator unrolls none of more than 64 rounds.
      for (int f = 0; f < FunctionSlots; f++) begin
        for (int k = 0; k < 16; k++) begin
          range_lo_q[16*f + k] <= RESET_RANGE_0_LO;
          range_hi_q[16*f + k] <= '0;
        end
      end
      wait_states_o <= '0;
      bus_timeout_o <= '0;
    end else if (fire) begin
      if (wr_range && !wr.offset[2]) range_lo_q[wr_range_place] <= write_data_i;
      if (wr_range && wr.offset[2])  range_hi_q[wr_range_place] <= write_data_i;
      if (is_queue_cfg)    queue_mem[wr_queue]    <= new_queue_regs;
      if (is_function_cfg) function_mem[wr_owner] <= new_function_regs;
      if (is_device_cfg && wr.offset == REG_WAIT_STATES) wait_states_o <= write_data_i[15:0];
      if (is_device_cfg && wr.offset == REG_BUS_TIMEOUT) bus_timeout_o <= write_data_i;
      if (wr.offset == REG_QUEUE_FUNCTION) owner_q[wr_queue] <= write_data_i[3:0];
    end
  end

  // ---------------------------------------------------------------- enable
  logic enabling, config_ok, control;
  assign control  = fire && wr.offset == REG_CONTROL;
  assign enabling = control && write_data_i[CONTROL_ENABLE_BIT] && !wr_on;

  function automatic logic ring_ok(input logic [31:0] size);
    ring_ok = size >= 32'd2 && size <= (32'd1 << RING_MAX_LOG2) && (size & (size - 32'd1)) == '0;
  endfunction

  // The regions, and which of them each window holds. R11: a region lies, whole, in one window; an empty one lies
  // everywhere. A window that wraps holds nothing. In another one a region that begins below it has a difference of bases
  // beyond the window's size, or, from address 0 in a window that ends at 2^64, just of that size, which leaves it no byte.
  localparam int Own     = 6;
  localparam int Regions = Own + Models;
  logic [64*Regions-1:0]      base, size;
  logic [64*Windows-1:0]      window_base, window_size;
  logic [Windows*Regions-1:0] holds;
  logic [Windows-1:0]         straight;    // it does not run past the end of all addresses
  logic [64:0]                window_end;
  assign base[64*Own-1:0] = enabling ? {wr_queue_regs.sq_base, wr_queue_regs.cq_base, wr_queue_regs.token_base,
                                        wr_queue_regs.kv_base, wr_queue_regs.logp_base, wr_function_regs.eq_base} : '0;
  assign size[64*Own-1:0] = enabling ? {26'd0, wr_queue_regs.sq_size, 6'd0, 27'd0, wr_queue_regs.cq_size, 5'd0,
                                        wr_queue_regs.token_size, wr_queue_regs.kv_size, wr_queue_regs.logp_size,
                                        27'd0, wr_function_regs.eq_size, 5'd0} : '0;
  assign window_base = enabling ? wr_function_regs.window_base : '0;
  assign window_size = enabling ? wr_function_regs.window_size : '0;

  always_comb begin
    holds      = '0;
    straight   = '0;
    window_end = '0;
    if (enabling) begin
      for (int k = 0; k < Windows; k++) begin
        window_end  = {1'b0, window_base[64*k +: 64]} + {1'b0, window_size[64*k +: 64]};
        straight[k] = !window_end[64] || window_end[63:0] == '0;
        for (int r = 0; r < Regions; r++)
          holds[Regions*k + r] = size[64*r +: 64] == '0
            || (straight[k] && base[64*r +: 64] - window_base[64*k +: 64] <= window_size[64*k +: 64]
                && size[64*r +: 64] <= window_size[64*k +: 64] - (base[64*r +: 64] - window_base[64*k +: 64]));
      end
    end
  end

  // What has to hold, a bit each: a conditional of one bit would be looked at in every cycle.
  logic [Regions-1:0] fitting;
  logic [4:0]         sound;
  logic               models_astray;       // a base of theirs is misaligned, or a size no whole lines
  assign fitting = holds[0 +: Regions] | holds[Regions +: Regions] | holds[2*Regions +: Regions];
  assign sound  = enabling
    ? {ring_ok(wr_queue_regs.sq_size), ring_ok(wr_queue_regs.cq_size), fitting == '1,
       {wr_queue_regs.sq_base[5:0], wr_queue_regs.cq_base[5:0], wr_queue_regs.token_base[5:0],
        wr_queue_regs.kv_base[5:0], wr_queue_regs.logp_base[5:0],
        wr_queue_regs.token_size[5:0], wr_queue_regs.kv_size[5:0], wr_queue_regs.logp_size[5:0]} == '0 && !models_astray,
       wr_function_regs.eq_size == '0 || (ring_ok(wr_function_regs.eq_size) && wr_function_regs.eq_base[5:0] == '0)}
    : '0;
  assign config_ok = sound == '1;

  assign start_o       = enabling && config_ok;
  assign start_queue_o = 4'(wr_queue);

  always_comb begin
    start_config_o = '0;
    if (enabling) begin
      start_config_o.sq_base            = wr_queue_regs.sq_base;
      start_config_o.sq_size            = wr_queue_regs.sq_size[16:0];
      start_config_o.sq_start           = wr_queue_regs.sq_start;
      start_config_o.sq_key             = wr_queue_regs.sq_key;
      start_config_o.cq_base            = wr_queue_regs.cq_base;
      start_config_o.cq_size            = wr_queue_regs.cq_size[16:0];
      start_config_o.cq_start           = wr_queue_regs.cq_start;
      start_config_o.coalesce_count     = wr_queue_regs.coalesce_count;
      start_config_o.coalesce_time      = wr_queue_regs.coalesce_time;
      start_config_o.token_base         = wr_queue_regs.token_base;
      start_config_o.token_size         = wr_queue_regs.token_size;
      start_config_o.kv_size            = wr_queue_regs.kv_size;
      start_config_o.logp_base          = wr_queue_regs.logp_base;
      start_config_o.logp_size          = wr_queue_regs.logp_size;
      start_config_o.weight             = wr_queue_regs.weight;
      start_config_o.owner              = 4'(wr_owner);
      start_config_o.workers            = MAX_WORKERS'(wr_function_regs.workers);
      start_config_o.length_limit       = wr_function_regs.length_limit;
      start_config_o.checkpoint_default = wr_function_regs.checkpoint_default;
      start_config_o.reward_threshold   = wr_function_regs.reward_threshold;
      start_config_o.eos_threshold      = wr_function_regs.eos_threshold;
      start_config_o.eq_starts          = !wr_function_active;
      start_config_o.eq_base            = wr_function_regs.eq_base;
      start_config_o.eq_size            = wr_function_regs.eq_size[16:0];
      start_config_o.eq_life            = wr_function_regs.eq_life;
    end
  end

  // ---------------------------------------------------------------- engine 1: MODEL region and arenas of each function
  if (Engines > 1) begin : gen_models
    // Base and size of each, the MODEL region first.
    logic [128*Models-1:0] model_mem [0:FunctionSlots-1];
    logic [128*Models-1:0] wr_models, rd_models, new_models;
    logic [4:0]            wr_word, rd_word;               // region, word of it
    logic [Models-1:0]     astray;

    assign wr_model   = write_i && (wr.offset[17:4] == REG_MODEL_BASE_LO[17:4] || wr.offset[17:6] == REG_ARENA_0_BASE_LO[17:6])
                     && wr.offset[1:0] == '0;
    assign rd_model   = read_i && (rd.offset[17:4] == REG_MODEL_BASE_LO[17:4] || rd.offset[17:6] == REG_ARENA_0_BASE_LO[17:6])
                     && rd.offset[1:0] == '0;
    assign wr_word    = wr.offset[7] ? {1'b0, wr.offset[5:2]} + 5'd4 : {3'd0, wr.offset[3:2]};
    assign rd_word    = rd.offset[7] ? {1'b0, rd.offset[5:2]} + 5'd4 : {3'd0, rd.offset[3:2]};
    assign wr_models  = write_i ? model_mem[wr_owner] : '0;
    assign rd_models  = rd_model ? model_mem[rd_owner] : '0;
    assign model_data = rd_model ? rd_models[{rd_word, 5'd0} +: 32] : '0;

    always_comb begin
      new_models = wr_models;
      if (wr_model) new_models[{wr_word, 5'd0} +: 32] = write_data_i;
    end
    always_ff @(posedge clk_i) begin
      if (!rst_ni) for (int f = 0; f < FunctionSlots; f++) model_mem[f] <= '0;
      else if (fire && wr_model) model_mem[wr_owner] <= new_models;
    end

    for (genvar r = 0; r < Models; r++) begin : gen_region
      assign base[64*(Own + r) +: 64] = enabling ? wr_models[128*r +: 64] : '0;
      assign size[64*(Own + r) +: 64] = enabling ? wr_models[128*r + 64 +: 64] : '0;
      assign astray[r] = enabling && {wr_models[128*r +: 6], wr_models[128*r + 64 +: 6]} != '0;
    end
    assign models_astray = astray != '0;

    logic [64*Models-1:0] bases, sizes;
    assign bases          = base[64*Regions-1 : 64*Own];
    assign sizes          = size[64*Regions-1 : 64*Own];
    assign start_models_o = enabling ? {wr_queue_regs.kv_base, wr_queue_regs.kv_size, bases[63:0], sizes[63:0],
                                        bases[64*Models-1 : 64], sizes[64*Models-1 : 64]} : '0;
  end else begin : gen_no_models
    assign {wr_model, rd_model, models_astray} = '0;
    assign model_data     = '0;
    assign start_models_o = '0;
  end

  // ---------------------------------------------------------------- disable, faults, refused doorbells
  logic              resets, refused;
  logic [Queues-1:0] cleared_0, cleared_1, cleared_2, cleared_3, cleared_4, cleared_5, faults;
  assign resets  = fire && wr.offset == REG_FN_CONTROL && write_data_i[FN_CONTROL_RESET_BIT];
  assign stop_o  = (control && !write_data_i[CONTROL_ENABLE_BIT]) ? wr_one : resets ? wr_function_queues : '0;
  assign drain_o = (control && wr_on && write_data_i[CONTROL_ENABLE_BIT] && write_data_i[CONTROL_DRAIN_BIT]) ? wr_one : '0;
  assign refused = (bells && (wr_draining || !doorbell_ok_i)) || (release_o && !release_ok_i);

  logic clears;
  assign clears    = fire && wr.offset == REG_ERROR;
  assign cleared_0 = (clears && write_data_i[FAULT_BAD_CONFIG_BIT])       ? wr_one : '0;
  assign cleared_1 = (clears && write_data_i[FAULT_DMA_READ_BIT])         ? wr_one : '0;
  assign cleared_2 = (clears && write_data_i[FAULT_DMA_WRITE_BIT])        ? wr_one : '0;
  assign cleared_3 = (clears && write_data_i[FAULT_COMPLETION_WRITE_BIT]) ? wr_one : '0;
  assign cleared_4 = (clears && write_data_i[FAULT_MESSAGE_WRITE_BIT])    ? wr_one : '0;
  assign cleared_5 = (clears && write_data_i[FAULT_BUS_TIMEOUT_BIT])      ? wr_one : '0;
  assign faults    = read_fault_i | line_fault_i | completion_fault_i | message_fault_i | die_i;

  // What is not set, or is cleared in this cycle, is set anew.
  // A refused ENABLE is an event only beside an active queue pair of the function: without one no ring runs (R23).
  assign raised_o = ((enabling && !config_ok) || faults != '0)
                  ? {die_i & ~(died_q & ~cleared_5), message_fault_i & ~(message_fault_q & ~cleared_4), completion_fault_i & ~(completion_fault_q & ~cleared_3),
                     line_fault_i & ~(line_fault_q & ~cleared_2), read_fault_i & ~(read_fault_q & ~cleared_1),
                     ((enabling && !config_ok && wr_function_active) ? wr_one : '0) & ~(bad_config_q & ~cleared_0)}
                  : '0;

  assign moves_o = resetting_q != '0;

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      bad_config_q       <= '0;
      read_fault_q       <= '0;
      line_fault_q       <= '0;
      completion_fault_q <= '0;
      message_fault_q    <= '0;
      died_q             <= '0;
      resetting_q        <= '0;
      aborted_q          <= '0;
      for (int q = 0; q < Queues; q++) refused_q[q] <= '0;
    end else begin
      // A queue pair is enabled anew only once it is inactive.
      if (resetting_q != '0 || resets) resetting_q <= (resetting_q | (resets ? wr_function_queues : '0)) & active_i;

      if (write_i) begin
        if (abort_o) aborted_q[wr_queue] <= write_data_i;

        if (start_o) refused_q[wr_queue] <= '0;
        else if (refused && refused_q[wr_queue] != 8'hFF) refused_q[wr_queue] <= refused_q[wr_queue] + 8'd1;
      end

      // A fault in the cycle in which the host clears its bit stays: it is another one.
      if (write_i || faults != '0) begin
        bad_config_q       <= (bad_config_q & ~cleared_0) | ((enabling && !config_ok) ? wr_one : '0);
        read_fault_q       <= (read_fault_q & ~cleared_1) | read_fault_i;
        line_fault_q       <= (line_fault_q & ~cleared_2) | line_fault_i;
        completion_fault_q <= (completion_fault_q & ~cleared_3) | completion_fault_i;
        message_fault_q    <= (message_fault_q & ~cleared_4) | message_fault_i;
        died_q             <= (died_q & ~cleared_5) | die_i;
      end
    end
  end

  // ---------------------------------------------------------------- reads
  function automatic logic [7:0] saturate(input logic [31:0] value);
    saturate = (value > 32'd255) ? 8'hFF : value[7:0];
  endfunction

  queue_regs_t       rd_queue_regs;
  function_regs_t    rd_function_regs;
  logic [Queues-1:0] rd_one, rd_function_queues;
  logic              rd_on, rd_draining, rd_active, rd_idle, rd_aborting, rd_fault, rd_armed, rd_masked, rd_sending, rd_reset, rd_dead;
  logic [5:0]        rd_faults;
  logic [4:0]        busy;
  logic [31:0]       rd_status;

  assign rd_queue_regs    = read_i ? queue_mem[rd_queue] : '0;
  assign rd_function_regs = read_i ? function_mem[rd_owner] : '0;
  assign rd_one      = read_i ? Queues'(16'd1 << rd_queue) : '0;
  for (genvar q = 0; q < Queues; q++) begin : gen_rd_function
    assign rd_function_queues[q] = read_i && owner_q[q] == 4'(rd_owner);
  end
  assign {rd_on, rd_draining, rd_active, rd_armed, rd_masked, rd_sending, rd_reset} = read_i
    ? {(on_i & rd_one) != '0, (draining_i & rd_one) != '0, (active_i & rd_one) != '0, (armed_i & rd_one) != '0,
       (masked_i & rd_one) != '0, (sending_i & rd_one) != '0, (rd_function_queues & resetting_q) != '0} : '0;
  assign rd_idle     = !rd_on || (idle_i & rd_one) != '0;    // R12: what a disable drops is no longer published
  assign rd_dead     = read_i && (dead_i & rd_one) != '0;
  assign rd_aborting = read_i && (aborting_i & rd_one) != '0;
  assign rd_faults   = read_i ? {(died_q & rd_one) != '0, (message_fault_q & rd_one) != '0, (completion_fault_q & rd_one) != '0, (line_fault_q & rd_one) != '0,
                                 (read_fault_q & rd_one) != '0, (bad_config_q & rd_one) != '0} : '0;
  assign rd_fault    = rd_faults != '0;
  assign busy        = read_i ? 5'(Workers) - 5'($countones({16'd0, MAX_WORKERS'(free_i)})) : '0;
  assign rd_status   = read_i ? {8'd0, saturate(state_i.sq_tail - state_i.sq_head), saturate(state_i.cq_tail - state_i.cq_head),
                                 refused_q[rd_queue]} : '0;
  assign state_queue_o = 4'(rd_queue);
  assign slots_owner_o = 4'(rd_owner);

  always_comb begin
    read_data_o  = '0;
    read_error_o = 1'b0;
    if (read_i) begin
      case (rd.offset)
        REG_ID:                 read_data_o = DEVICE_ID;
        REG_VERSION:            read_data_o = CONTRACT_VERSION;
        REG_CAPABILITY:         read_data_o = Capability;
        REG_WORKER_STATE:       read_data_o = {24'd0, busy, (run_i & ~ready_i) != '0, wait_i != '0, free_i != '1};
        REG_WAIT_STATES:        read_data_o = {16'd0, wait_states_o};
        REG_BUS_TIMEOUT:        read_data_o = bus_timeout_o;
        REG_CAP_WORKERS:        read_data_o = 32'(Workers);
        REG_CAP_QUEUES:         read_data_o = 32'(Queues);
        REG_CAP_FUNCTIONS:      read_data_o = 32'(Functions);
        REG_CAP_PAGE_BYTES:     read_data_o = 32'd4096;
        REG_CAP_WINDOWS:        read_data_o = 32'(Windows);
        REG_CAP_ENGINES:        read_data_o = 32'(Engines);
        REG_CAP_REWARD_MODELS:  read_data_o = {16'd0, REWARD_MODELS};
        REG_CAP_GROUPS:         read_data_o = 32'(GROUPS);
        REG_CAP_POLICY_SLOTS:   read_data_o = 32'd2;
        REG_CAP_TICK_HZ:        read_data_o = 32'(TickHz);
        REG_MESSAGES_PENDING:   read_data_o = 32'(pending_i);
        REG_MESSAGE_ADDRESS_LO: read_data_o = state_i.message[31:0];
        REG_MESSAGE_ADDRESS_HI: read_data_o = state_i.message[63:32];
        REG_MESSAGE_DATA:       read_data_o = state_i.message[95:64];
        REG_MESSAGE_CONTROL:    read_data_o = {30'd0, rd_sending, rd_masked};
        REG_FN_WORKERS:         read_data_o = 32'(rd_function_regs.workers);
        REG_WINDOW_0_BASE_LO:   read_data_o = rd_function_regs.window_base[31:0];
        REG_WINDOW_0_BASE_HI:   read_data_o = rd_function_regs.window_base[63:32];
        REG_WINDOW_0_SIZE_LO:   read_data_o = rd_function_regs.window_size[31:0];
        REG_WINDOW_0_SIZE_HI:   read_data_o = rd_function_regs.window_size[63:32];
        REG_WINDOW_1_BASE_LO:   read_data_o = rd_function_regs.window_base[95:64];
        REG_WINDOW_1_BASE_HI:   read_data_o = rd_function_regs.window_base[127:96];
        REG_WINDOW_1_SIZE_LO:   read_data_o = rd_function_regs.window_size[95:64];
        REG_WINDOW_1_SIZE_HI:   read_data_o = rd_function_regs.window_size[127:96];
        REG_WINDOW_2_BASE_LO:   read_data_o = rd_function_regs.window_base[159:128];
        REG_WINDOW_2_BASE_HI:   read_data_o = rd_function_regs.window_base[191:160];
        REG_WINDOW_2_SIZE_LO:   read_data_o = rd_function_regs.window_size[159:128];
        REG_WINDOW_2_SIZE_HI:   read_data_o = rd_function_regs.window_size[191:160];
        REG_QUEUE_FUNCTION:     read_data_o = {28'd0, owner_q[rd_queue]};
        REG_FN_CONTROL:         read_data_o = {31'd0, rd_reset};
        REG_CHECKPOINT_DEFAULT: read_data_o = rd_function_regs.checkpoint_default;
        REG_LENGTH_LIMIT:       read_data_o = rd_function_regs.length_limit;
        REG_EOS_THRESHOLD:      read_data_o = {16'd0, rd_function_regs.eos_threshold};
        REG_REWARD_THRESHOLD:   read_data_o = rd_function_regs.reward_threshold;
        REG_EQ_BASE_LO:         read_data_o = rd_function_regs.eq_base[31:0];
        REG_EQ_BASE_HI:         read_data_o = rd_function_regs.eq_base[63:32];
        REG_EQ_SIZE:            read_data_o = rd_function_regs.eq_size;
        REG_EVENT_CONTROL:      read_data_o = {31'd0, rd_function_regs.eq_life};
        REG_EQ_HEAD:            read_data_o = events_i[31:0];
        REG_EQ_TAIL:            read_data_o = events_i[63:32];
        REG_EVENTS_DROPPED:     read_data_o = events_i[95:64];
        REG_POLICY_SLOT_0:      read_data_o = slots_i[31:0];
        REG_POLICY_SLOT_1:      read_data_o = slots_i[63:32];
        REG_CONTROL:            read_data_o = {30'd0, rd_draining, rd_on};
        REG_WEIGHT:             read_data_o = {24'd0, rd_queue_regs.weight};
        REG_SQ_BASE_LO:         read_data_o = rd_queue_regs.sq_base[31:0];
        REG_SQ_BASE_HI:         read_data_o = rd_queue_regs.sq_base[63:32];
        REG_CQ_BASE_LO:         read_data_o = rd_queue_regs.cq_base[31:0];
        REG_CQ_BASE_HI:         read_data_o = rd_queue_regs.cq_base[63:32];
        REG_SQ_SIZE:            read_data_o = rd_queue_regs.sq_size;
        REG_CQ_SIZE:            read_data_o = rd_queue_regs.cq_size;
        REG_TOKEN_BASE_LO:      read_data_o = rd_queue_regs.token_base[31:0];
        REG_TOKEN_BASE_HI:      read_data_o = rd_queue_regs.token_base[63:32];
        REG_TOKEN_SIZE_LO:      read_data_o = rd_queue_regs.token_size[31:0];
        REG_TOKEN_SIZE_HI:      read_data_o = rd_queue_regs.token_size[63:32];
        REG_KV_BASE_LO:         read_data_o = rd_queue_regs.kv_base[31:0];
        REG_KV_BASE_HI:         read_data_o = rd_queue_regs.kv_base[63:32];
        REG_KV_SIZE_LO:         read_data_o = rd_queue_regs.kv_size[31:0];
        REG_KV_SIZE_HI:         read_data_o = rd_queue_regs.kv_size[63:32];
        REG_SQ_START:           read_data_o = rd_queue_regs.sq_start;
        REG_CQ_START:           read_data_o = rd_queue_regs.cq_start;
        REG_SQ_KEY:             read_data_o = rd_queue_regs.sq_key;
        REG_COALESCE_COUNT:     read_data_o = {16'd0, rd_queue_regs.coalesce_count};
        REG_COALESCE_TIME:      read_data_o = rd_queue_regs.coalesce_time;
        REG_LOGP_BASE_LO:       read_data_o = rd_queue_regs.logp_base[31:0];
        REG_LOGP_BASE_HI:       read_data_o = rd_queue_regs.logp_base[63:32];
        REG_LOGP_SIZE_LO:       read_data_o = rd_queue_regs.logp_size[31:0];
        REG_LOGP_SIZE_HI:       read_data_o = rd_queue_regs.logp_size[63:32];
        REG_DOORBELL:           read_data_o = state_i.sq_tail;
        REG_CQ_HEAD:            read_data_o = state_i.cq_head;
        REG_ARM:                read_data_o = state_i.arm;
        REG_STATE:              read_data_o = {23'd0, rd_dead, 3'd0, rd_armed, rd_aborting, rd_fault, rd_idle, rd_active};
        REG_ERROR:              read_data_o = {23'd0, rd_faults[5], 3'd0, rd_faults[4:0]};
        REG_STATUS:             read_data_o = rd_status;
        REG_SQ_HEAD:            read_data_o = state_i.sq_head;
        REG_CQ_TAIL:            read_data_o = state_i.cq_tail;
        REG_ABORT:              read_data_o = aborted_q[rd_queue];
        default: begin
          read_data_o  = counter_hit_i ? counter_data_i : rd_model ? model_data : !rd_range ? '0
                       : rd.offset[2] ? range_hi_q[rd_range_place] : range_lo_q[rd_range_place];
          read_error_o = !counter_hit_i && !rd_model && !rd_range;
        end
      endcase
      if (!rd_known) begin
        read_data_o  = '0;
        read_error_o = 1'b1;
      end
    end
  end
endmodule
