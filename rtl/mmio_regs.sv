// The registers (docs/contract.md, Registers): configuration, doorbells, state, interrupt. Counters lie in perf_counters. An
// access that they do not allow answers an error and changes nothing.
module mmio_regs
  import desc_pkg::*;
  import core_pkg::*;
#(
  parameter int Workers = 4
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

  // Configuration; stable while the device is active.
  output logic        enabling_o,            // ENABLE is being set, and accepted
  output logic        enable_o,
  output logic [63:0] sq_base_o,
  output logic [63:0] cq_base_o,
  output logic [16:0] sq_size_o,
  output logic [16:0] cq_size_o,
  output logic [63:0] token_base_o,
  output logic [63:0] token_size_o,
  output logic [63:0] kv_size_o,
  output logic [31:0] sq_start_o,
  output logic [31:0] cq_start_o,
  output logic [31:0] checkpoint_default_o,
  output logic [15:0] wait_states_o,
  output logic [31:0] length_limit_o,
  output logic [15:0] eos_threshold_o,
  output logic [31:0] reward_threshold_o,
  output logic [31:0] sq_key_o,
  output logic [Workers-1:0] workers_o,      // workers that may be used, a bit each

  // Doorbells, forwarded to the rings, which may refuse them in the same cycle.
  output logic        doorbell_o,
  input  logic        doorbell_ok_i,
  output logic        release_o,
  input  logic        release_ok_i,
  output logic [31:0] index_o,

  // State.
  input  logic        active_i,
  input  logic        check_idle_i,          // nothing between the fetch and the dispatcher
  input  logic        dispatch_idle_i,       // nothing between the dispatcher and visible completions
  input  logic [31:0] sq_head_i,
  input  logic [31:0] sq_tail_i,
  input  logic [31:0] cq_head_i,
  input  logic [31:0] cq_tail_i,
  input  logic [Workers-1:0] free_i,
  input  logic [Workers-1:0] wait_i,
  input  logic [Workers-1:0] run_i,
  input  logic [Workers-1:0] ready_i,        // the result buffer has room
  input  logic        read_fault_i,
  input  logic        line_fault_i,
  input  logic        completion_fault_i,

  input  logic        asked_i,               // a visible, unreleased completion asked for an interrupt
  output logic        irq_o
);
  if (Workers < 1 || Workers > MAX_WORKERS) begin : gen_bad_workers
    localparam bit WorkersMustBe1To16 = {-1{1'b1}};   // ends the elaboration
  end

  localparam logic [31:0] Capability = CAP_PREFILL | CAP_RESIDENT | CAP_INTERRUPT;
  localparam int          Windows    = 3;
  localparam logic [31:0] Built      = (32'd1 << Workers) - 32'd1;   // workers, a bit each

  // ---------------------------------------------------------------- storage
  logic        enable_q, drain_q, reset_q, armed_q, pending_q;
  logic [31:0] error_q;
  logic [7:0]  refused_q;
  logic [31:0] sq_size_q, cq_size_q;
  logic [63:0] kv_base_q;                    // engine 0 does not access the KV region
  logic [7:0]  weight_q;
  logic [Workers-1:0] workers_q;
  logic [31:0] window_q [0:15];              // as they lie in their block; the first four places are empty

  // ---------------------------------------------------------------- write decode
  // Accesses are rare: all of it is looked at only in their cycle.
  logic is_cfg, is_rw, fire, refuse, value_ok;

  // Not in a process: it would wake desc_ring's, and be woken by it, for ever (Icarus 11).
  // A queue pair that drains takes none.
  assign doorbell_o = write_i && !write_partial_i && write_addr_i == REG_DOORBELL && !drain_q;
  assign release_o  = write_i && !write_partial_i && write_addr_i == REG_CQ_HEAD;
  assign index_o    = write_data_i;

  always_comb begin
    value_ok = 1'b1;
    if (write_i) begin
      case (write_addr_i)
        REG_FN_WORKERS:     value_ok = (write_data_i & Built) != '0;
        REG_QUEUE_FUNCTION: value_ok = write_data_i == '0;
        REG_WEIGHT:         value_ok = write_data_i <= 32'd255 && write_data_i != '0;
        REG_LENGTH_LIMIT:   value_ok = write_data_i <= LENGTH_LIMIT_MAX;
        REG_CONTROL:        value_ok = !((write_data_i & CONTROL_ENABLE) != '0 && active_i && !enable_q);
        default: ;
      endcase
    end
  end

  always_comb begin
    refuse = 1'b0;
    if (write_i) begin
      refuse = write_partial_i || !value_ok
            || !(is_rw || (is_cfg && !active_i && !enable_q))
            || (write_addr_i == REG_DOORBELL && (drain_q || !doorbell_ok_i))
            || (release_o && !release_ok_i);
    end
  end

  always_comb begin
    is_cfg = 1'b0;
    is_rw  = 1'b0;
    if (write_i) begin
      case (write_addr_i)
        REG_WAIT_STATES, REG_FN_WORKERS, REG_QUEUE_FUNCTION, REG_WEIGHT,
        REG_WINDOW_0_BASE_LO, REG_WINDOW_0_BASE_HI, REG_WINDOW_0_SIZE_LO, REG_WINDOW_0_SIZE_HI,
        REG_WINDOW_1_BASE_LO, REG_WINDOW_1_BASE_HI, REG_WINDOW_1_SIZE_LO, REG_WINDOW_1_SIZE_HI,
        REG_WINDOW_2_BASE_LO, REG_WINDOW_2_BASE_HI, REG_WINDOW_2_SIZE_LO, REG_WINDOW_2_SIZE_HI, REG_SQ_BASE_LO, REG_SQ_BASE_HI, REG_CQ_BASE_LO, REG_CQ_BASE_HI, REG_SQ_SIZE, REG_CQ_SIZE,
        REG_TOKEN_BASE_LO, REG_TOKEN_BASE_HI, REG_TOKEN_SIZE_LO, REG_TOKEN_SIZE_HI, REG_KV_BASE_LO, REG_KV_BASE_HI,
        REG_KV_SIZE_LO, REG_KV_SIZE_HI, REG_SQ_START, REG_CQ_START, REG_CHECKPOINT_DEFAULT,
        REG_LENGTH_LIMIT, REG_EOS_THRESHOLD, REG_REWARD_THRESHOLD, REG_SQ_KEY: is_cfg = 1'b1;
        REG_CONTROL, REG_FN_CONTROL, REG_DOORBELL, REG_CQ_HEAD, REG_ERROR, REG_IRQ: is_rw = 1'b1;
        default: ;
      endcase
    end
  end

  assign fire          = write_i && !refuse;
  assign write_error_o = refuse;

  // ---------------------------------------------------------------- configuration
  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      sq_base_o            <= '0;
      cq_base_o            <= '0;
      sq_size_q            <= '0;
      cq_size_q            <= '0;
      token_base_o         <= '0;
      token_size_o         <= '0;
      kv_base_q            <= '0;
      kv_size_o            <= '0;
      sq_start_o           <= '0;
      cq_start_o           <= '0;
      checkpoint_default_o <= RESET_CHECKPOINT_DEFAULT;
      wait_states_o        <= '0;
      length_limit_o       <= RESET_LENGTH_LIMIT;
      eos_threshold_o      <= '0;
      reward_threshold_o   <= '0;
      sq_key_o             <= '0;
      weight_q             <= RESET_WEIGHT[7:0];
      workers_q            <= '1;
      // Its function owns all addresses until somebody takes them from it.
      for (int k = 0; k < 16; k++) window_q[k] <= (k == 6 || k == 7) ? '1 : '0;
    end else if (fire) begin
      case (write_addr_i)
        REG_FN_WORKERS:         workers_q            <= write_data_i[Workers-1:0];
        REG_WEIGHT:             weight_q             <= write_data_i[7:0];
        REG_SQ_BASE_LO:         sq_base_o[31:0]      <= write_data_i;
        REG_SQ_BASE_HI:         sq_base_o[63:32]     <= write_data_i;
        REG_CQ_BASE_LO:         cq_base_o[31:0]      <= write_data_i;
        REG_CQ_BASE_HI:         cq_base_o[63:32]     <= write_data_i;
        REG_SQ_SIZE:            sq_size_q            <= write_data_i;
        REG_CQ_SIZE:            cq_size_q            <= write_data_i;
        REG_TOKEN_BASE_LO:      token_base_o[31:0]   <= write_data_i;
        REG_TOKEN_BASE_HI:      token_base_o[63:32]  <= write_data_i;
        REG_TOKEN_SIZE_LO:      token_size_o[31:0]   <= write_data_i;
        REG_TOKEN_SIZE_HI:      token_size_o[63:32]  <= write_data_i;
        REG_KV_BASE_LO:         kv_base_q[31:0]      <= write_data_i;
        REG_KV_BASE_HI:         kv_base_q[63:32]     <= write_data_i;
        REG_KV_SIZE_LO:         kv_size_o[31:0]      <= write_data_i;
        REG_KV_SIZE_HI:         kv_size_o[63:32]     <= write_data_i;
        REG_SQ_START:           sq_start_o           <= write_data_i;
        REG_CQ_START:           cq_start_o           <= write_data_i;
        REG_CHECKPOINT_DEFAULT: checkpoint_default_o <= write_data_i;
        REG_WAIT_STATES:        wait_states_o        <= write_data_i[15:0];
        REG_LENGTH_LIMIT:       length_limit_o       <= write_data_i;
        REG_EOS_THRESHOLD:      eos_threshold_o      <= write_data_i[15:0];
        REG_REWARD_THRESHOLD:   reward_threshold_o   <= write_data_i;
        REG_SQ_KEY:             sq_key_o             <= write_data_i;
REG_WINDOW_0_BASE_LO, REG_WINDOW_0_BASE_HI, REG_WINDOW_0_SIZE_LO, REG_WINDOW_0_SIZE_HI,
        REG_WINDOW_1_BASE_LO, REG_WINDOW_1_BASE_HI, REG_WINDOW_1_SIZE_LO, REG_WINDOW_1_SIZE_HI,
        REG_WINDOW_2_BASE_LO, REG_WINDOW_2_BASE_HI, REG_WINDOW_2_SIZE_LO, REG_WINDOW_2_SIZE_HI: window_q[write_addr_i[5:2]] <= write_data_i;
        default: ;
      endcase
    end
  end

  assign enabling_o = enabling && config_ok;
  assign enable_o  = enable_q;
  assign sq_size_o = sq_size_q[16:0];
  assign cq_size_o = cq_size_q[16:0];
  assign workers_o = workers_q;

  // ---------------------------------------------------------------- enable, faults, refused doorbells, interrupt
  logic config_ok, enabling, bad_config, refused;
  assign enabling = fire && write_addr_i == REG_CONTROL && write_data_i[CONTROL_ENABLE_BIT] && !enable_q;
  assign refused  = (write_i && !write_partial_i && write_addr_i == REG_DOORBELL && (drain_q || !doorbell_ok_i))
                 || (release_o && !release_ok_i);

  // R11: the region lies, whole, in one window; an empty one lies everywhere. Nothing wraps.
  function automatic logic in_window(input logic [63:0] base, input logic [63:0] size,
                                     input logic [63:0] window_base, input logic [63:0] window_size);
    in_window = size == '0
             || (base >= window_base && base - window_base <= window_size && size <= window_size - (base - window_base));
  endfunction

  // The windows, and which of them hold each region.
  logic [Windows-1:0] sq_in, cq_in, token_in, kv_in;
  for (genvar k = 0; k < Windows; k++) begin : gen_window
    logic [63:0] base, size;
    assign base        = {window_q[4*k + 5], window_q[4*k + 4]};
    assign size        = {window_q[4*k + 7], window_q[4*k + 6]};
    assign sq_in[k]    = enabling && in_window(sq_base_o, {26'd0, sq_size_q, 6'd0}, base, size);
    assign cq_in[k]    = enabling && in_window(cq_base_o, {27'd0, cq_size_q, 5'd0}, base, size);
    assign token_in[k] = enabling && in_window(token_base_o, token_size_o, base, size);
    assign kv_in[k]    = enabling && in_window(kv_base_q, kv_size_o, base, size);
  end

  always_comb begin
    config_ok = 1'b0;
    if (enabling) begin
      config_ok = sq_size_q >= 32'd2 && sq_size_q <= (32'd1 << RING_MAX_LOG2) && (sq_size_q & (sq_size_q - 32'd1)) == '0
               && cq_size_q >= 32'd2 && cq_size_q <= (32'd1 << RING_MAX_LOG2) && (cq_size_q & (cq_size_q - 32'd1)) == '0
               && sq_base_o[5:0] == '0 && cq_base_o[5:0] == '0 && token_base_o[5:0] == '0 && kv_base_q[5:0] == '0
               && sq_in != '0 && cq_in != '0 && token_in != '0 && kv_in != '0;
    end
  end
  assign bad_config = enabling && !config_ok;

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      enable_q  <= 1'b0;
      drain_q   <= 1'b0;
      reset_q   <= 1'b0;
      error_q   <= '0;
      refused_q <= '0;
      armed_q   <= 1'b0;
      pending_q <= 1'b0;
    end else begin
      // Nothing is published that has no completion, and nothing more will be.
      if (drain_q && idle && active_i && !write_i) begin
        enable_q <= 1'b0;
        drain_q  <= 1'b0;
      end
      if (reset_q && !active_i) reset_q <= 1'b0;

      // R14: armed, it fires once, and not again before the next arming.
      if (armed_q && asked_i) begin
        armed_q   <= 1'b0;
        pending_q <= 1'b1;
      end

      if (write_i) begin
        if (fire && write_addr_i == REG_CONTROL) begin
          enable_q <= write_data_i[CONTROL_ENABLE_BIT] && (enable_q || config_ok);
          drain_q  <= write_data_i[CONTROL_ENABLE_BIT] && enable_q && (drain_q || write_data_i[CONTROL_DRAIN_BIT]);
        end
        if (fire && write_addr_i == REG_FN_CONTROL && write_data_i[FN_CONTROL_RESET_BIT]) begin
          enable_q <= 1'b0;
          drain_q  <= 1'b0;
          reset_q  <= 1'b1;
        end

        if (enabling && config_ok) refused_q <= '0;
        else if (refused && refused_q != 8'hFF) refused_q <= refused_q + 8'd1;

        if (fire && write_addr_i == REG_IRQ) begin
          armed_q   <= write_data_i[IRQ_ARMED_BIT];
          pending_q <= pending_q && !write_data_i[IRQ_ARMED_BIT];
        end
      end

      // A fault in the cycle in which the host clears its bit stays: it is another one.
      if (write_i || read_fault_i || line_fault_i || completion_fault_i)
        error_q <= (error_q & ~((fire && write_addr_i == REG_ERROR) ? write_data_i : '0))
                 | (bad_config         ? FAULT_BAD_CONFIG       : '0)
                 | (read_fault_i       ? FAULT_DMA_READ         : '0)
                 | (line_fault_i       ? FAULT_DMA_WRITE        : '0)
                 | (completion_fault_i ? FAULT_COMPLETION_WRITE : '0);
    end
  end

  assign irq_o = pending_q;

  // ---------------------------------------------------------------- STATUS
  function automatic logic [7:0] saturate(input logic [31:0] value);
    saturate = (value > 32'd255) ? 8'hFF : value[7:0];
  endfunction

  logic [31:0] sq_fill, cq_fill;
  logic [4:0]  busy;
  logic        idle;
  assign idle    = sq_fill == '0 && check_idle_i && dispatch_idle_i;
  assign sq_fill = sq_tail_i - sq_head_i;
  assign cq_fill = cq_tail_i - cq_head_i;
  assign busy    = 5'(Workers) - count_ones(MAX_WORKERS'(free_i));

  // ---------------------------------------------------------------- reads
  always_comb begin
    read_data_o  = '0;
    read_error_o = 1'b0;
    if (read_i) begin
      case (read_addr_i)
        REG_ID:                 read_data_o = DEVICE_ID;
        REG_VERSION:            read_data_o = CONTRACT_VERSION;
        REG_CAPABILITY:         read_data_o = Capability;
        REG_CAP_WORKERS:        read_data_o = 32'(Workers);
        REG_CAP_QUEUES:         read_data_o = 32'd1;
        REG_CAP_FUNCTIONS:      read_data_o = 32'd1;
        REG_CAP_PAGE_BYTES:     read_data_o = 32'd4096;
        REG_CAP_WINDOWS:        read_data_o = 32'(Windows);
        REG_CAP_ENGINES:        read_data_o = 32'd1;
        REG_CAP_REWARD_MODELS:  read_data_o = 32'd1;
        REG_WORKER_STATE:       read_data_o = {24'd0, busy, (run_i & ~ready_i) != '0, wait_i != '0, free_i != '1};
        REG_QUEUE_FUNCTION:     read_data_o = '0;
        REG_FN_CONTROL:         read_data_o = {31'd0, reset_q && active_i};
        REG_CONTROL:            read_data_o = {30'd0, drain_q, enable_q};
        REG_WEIGHT:             read_data_o = {24'd0, weight_q};
        REG_SQ_HEAD:            read_data_o = sq_head_i;
        REG_CQ_TAIL:            read_data_o = cq_tail_i;
        REG_WINDOW_0_BASE_LO, REG_WINDOW_0_BASE_HI, REG_WINDOW_0_SIZE_LO, REG_WINDOW_0_SIZE_HI,
        REG_WINDOW_1_BASE_LO, REG_WINDOW_1_BASE_HI, REG_WINDOW_1_SIZE_LO, REG_WINDOW_1_SIZE_HI,
        REG_WINDOW_2_BASE_LO, REG_WINDOW_2_BASE_HI, REG_WINDOW_2_SIZE_LO, REG_WINDOW_2_SIZE_HI: read_data_o = window_q[read_addr_i[5:2]];
        REG_DOORBELL:           read_data_o = sq_tail_i;
        REG_CQ_HEAD:            read_data_o = cq_head_i;
        REG_STATE:              read_data_o = {29'd0, error_q != '0, idle, active_i};
        REG_ERROR:              read_data_o = error_q;
        REG_STATUS:             read_data_o = {8'd0, saturate(sq_fill), saturate(cq_fill), refused_q};
        REG_FN_WORKERS:         read_data_o = 32'(workers_q);
        REG_SQ_BASE_LO:         read_data_o = sq_base_o[31:0];
        REG_SQ_BASE_HI:         read_data_o = sq_base_o[63:32];
        REG_CQ_BASE_LO:         read_data_o = cq_base_o[31:0];
        REG_CQ_BASE_HI:         read_data_o = cq_base_o[63:32];
        REG_SQ_SIZE:            read_data_o = sq_size_q;
        REG_CQ_SIZE:            read_data_o = cq_size_q;
        REG_TOKEN_BASE_LO:      read_data_o = token_base_o[31:0];
        REG_TOKEN_BASE_HI:      read_data_o = token_base_o[63:32];
        REG_TOKEN_SIZE_LO:      read_data_o = token_size_o[31:0];
        REG_TOKEN_SIZE_HI:      read_data_o = token_size_o[63:32];
        REG_KV_BASE_LO:         read_data_o = kv_base_q[31:0];
        REG_KV_BASE_HI:         read_data_o = kv_base_q[63:32];
        REG_KV_SIZE_LO:         read_data_o = kv_size_o[31:0];
        REG_KV_SIZE_HI:         read_data_o = kv_size_o[63:32];
        REG_SQ_START:           read_data_o = sq_start_o;
        REG_CQ_START:           read_data_o = cq_start_o;
        REG_CHECKPOINT_DEFAULT: read_data_o = checkpoint_default_o;
        REG_WAIT_STATES:        read_data_o = {16'd0, wait_states_o};
        REG_LENGTH_LIMIT:       read_data_o = length_limit_o;
        REG_EOS_THRESHOLD:      read_data_o = {16'd0, eos_threshold_o};
        REG_REWARD_THRESHOLD:   read_data_o = reward_threshold_o;
        REG_SQ_KEY:             read_data_o = sq_key_o;
        REG_IRQ:                read_data_o = {30'd0, pending_q, armed_q};
        default: begin
          read_data_o  = counter_hit_i ? counter_data_i : '0;
          read_error_o = !counter_hit_i;
        end
      endcase
    end
  end
endmodule
