// The device: wiring only. docs/hardware.md follows a descriptor through it.
module rl_runtime_top
  import desc_pkg::*;
  import core_pkg::*;
#(
  parameter int Queues          = 1,     // queue pairs, 1 to 16
  parameter int Functions       = 1,     // 1 to 16
  parameter int Workers         = 4,     // 1 to 16
  parameter int FetchDepth      = 128,   // descriptors buffered or being read, divided evenly among the queue pairs; a
                                         // power of two, 2 (with several queue pairs 8 for each) to 4096
  parameter int CompletionDepth = 128,   // completions that wait for their tokens; a power of two, 2 per worker, and 1 per
                                         // worker and 2 per queue pair, to 4096
  parameter int Engines         = 1,     // 2: with engine 1, a language model; 1: the hash policy alone
  parameter int Gangs           = 2,     // of engine 1: programs that run at a time, 1 to 4 …
  parameter int Contexts        = 4,     // … each for up to so many rollouts, or positions of a prompt, 1 to 8
  parameter int TickHz          = 100_000_000   // of clk_i, for CAP_TICK_HZ; 0: it is of no fixed frequency
) (
  input  logic         clk_i,
  input  logic         rst_ni,          // of the device and its register port
  input  logic         m_axi_rst_ni,    // of the master port; low only while rst_ni is low

  input  logic [17:0]  s_axil_awaddr,
  input  logic         s_axil_awvalid,
  output logic         s_axil_awready,
  input  logic [31:0]  s_axil_wdata,
  input  logic [3:0]   s_axil_wstrb,
  input  logic         s_axil_wvalid,
  output logic         s_axil_wready,
  output logic [1:0]   s_axil_bresp,
  output logic         s_axil_bvalid,
  input  logic         s_axil_bready,
  input  logic [17:0]  s_axil_araddr,
  input  logic         s_axil_arvalid,
  output logic         s_axil_arready,
  output logic [31:0]  s_axil_rdata,
  output logic [1:0]   s_axil_rresp,
  output logic         s_axil_rvalid,
  input  logic         s_axil_rready,

  output logic [5:0]   m_axi_awid,
  output logic [63:0]  m_axi_awaddr,
  output logic [7:0]   m_axi_awlen,
  output logic [2:0]   m_axi_awsize,
  output logic [1:0]   m_axi_awburst,
  output logic [3:0]   m_axi_awcache,
  output logic [2:0]   m_axi_awprot,
  output logic [3:0]   m_axi_awuser,    // the function
  output logic         m_axi_awvalid,
  input  logic         m_axi_awready,
  output logic [511:0] m_axi_wdata,
  output logic [63:0]  m_axi_wstrb,
  output logic         m_axi_wlast,
  output logic         m_axi_wvalid,
  input  logic         m_axi_wready,
  input  logic [5:0]   m_axi_bid,
  input  logic [1:0]   m_axi_bresp,
  input  logic         m_axi_bvalid,
  output logic         m_axi_bready,
  output logic [5:0]   m_axi_arid,
  output logic [63:0]  m_axi_araddr,
  output logic [7:0]   m_axi_arlen,
  output logic [2:0]   m_axi_arsize,
  output logic [1:0]   m_axi_arburst,
  output logic [3:0]   m_axi_arcache,
  output logic [2:0]   m_axi_arprot,
  output logic [3:0]   m_axi_aruser,
  output logic         m_axi_arvalid,
  input  logic         m_axi_arready,
  input  logic [5:0]   m_axi_rid,
  input  logic [511:0] m_axi_rdata,
  input  logic [1:0]   m_axi_rresp,
  input  logic         m_axi_rlast,
  input  logic         m_axi_rvalid,
  output logic         m_axi_rready
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

  if (FetchDepth < 2 || FetchDepth > 4096 || (FetchDepth & (FetchDepth - 1)) != 0) begin : gen_bad_fetch_depth
    localparam bit FetchDepthMustBeAPowerOfTwoFrom2To4096 = {-1{1'b1}};   // ends the elaboration
  end

  if (CompletionDepth < 2 * Workers || CompletionDepth < Workers + 2 * Queues || CompletionDepth > 4096 || (CompletionDepth & (CompletionDepth - 1)) != 0) begin : gen_bad_completion_depth
    localparam bit CompletionDepthMustBeAPowerOfTwoFrom2PerWorkerAnd1PerWorkerAnd2PerQueuePairTo4096 = {-1{1'b1}};   // ends the elaboration
  end

  if (Engines < 1 || Engines > MAX_ENGINES) begin : gen_bad_engines
    localparam bit EnginesMustBe1To2 = {-1{1'b1}};   // ends the elaboration
  end

  localparam int PreparedBits = (Engines == 1) ? ENGINE_BITS : ENGINE_BITS + NPU_BITS;

  // Register accesses.
  logic        reg_write, reg_write_partial, reg_write_error, reg_read, reg_read_error, counter_hit;
  logic [17:0] reg_write_addr, reg_read_addr;
  logic [31:0] reg_write_data, reg_read_data, counter_data;
  logic [3:0]  state_queue, slots_owner;
  logic [63:0] slots;
  queue_state_t state;

  // Life of the queue pairs.
  logic          start, inner_rst_n;
  logic [3:0]    start_queue;
  queue_config_t start_config;
  model_config_t start_models;
  logic [Queues-1:0] starts, stops, drains, on, enabled, dead, ending, draining, drained, active, upstream, idle, idle_shown;
  logic [15:0]   wait_states;

  // Submission side.
  logic        doorbell, doorbell_ok, abort, request, request_ready, reads_idle, read_fault;
  logic [3:0]  bell_queue, request_queue, request_owner, slot_queue;
  logic [31:0] index, slot_index, posted_head, abort_tail;
  logic [Queues-1:0] aborting;
  logic [63:0] request_addr;
  logic [4:0]  request_slots;
  logic        read_beat, slot_valid, slot_fault;
  logic [511:0] slot_data;
  logic [Queues-1:0] published, left, fetching, checking, waits;
  logic        checked_valid, checked_fence, checked_prefill, checked_stop;
  work_t       checked_work, work;
  echo_t       checked_echo, echo;
  logic        look, known, taken, fence, prefill, stopped, stop, stop_group, told;
  logic [3:0]  look_queue, stop_queue, told_queue;
  logic [31:0] stop_rollout, told_rollout;
  logic [PreparedBits-1:0] checked_prepared, prepared;

  // Versions of the policy.
  logic        slot_names, version_found, version_resident, version_slot, leave, leave_slot, finish, finish_slot;
  logic        retired_keep, retired_abort, called_off, superseded, switched, switch_slot, switch_keep, switch_abort;
  logic [3:0]  leave_queue, finish_queue;
  logic [31:0] version_salt;
  logic        ask, ask_resident, ask_occupied, load_version;
  logic [3:0]  ask_queue;
  logic [15:0] ask_version;
  logic [31:0] load_salt;
  logic [1:0]  load_mode;

  // Engine 1.
  logic        version_engine, load_engine, image_slot;
  logic [3:0]  image_owner;
  logic [31:0] version_positions;
  /* verilator lint_off UNUSEDSIGNAL */
  image_t      load_image, image;
  /* verilator lint_on UNUSEDSIGNAL */

  // What reads the token region.
  logic        readback_idle, readback_valid, readback_publishes, readback_model, answer_taken;
  logic [Queues-1:0] answer;
  logic [3:0]  readback_queue, answer_queue, back_queue, back_beat_queue, back_owner, back_fault_queue, range_owner, range_number;
  logic [31:0] readback_what, answer_result;
  logic [63:0] readback_addr, back_addr, range_of;
  logic [7:0]  answer_error;
  logic        back_valid, back_ready, back_beat, back_fault, back_idle;

  // The read port as descriptor fetch sees it.
  logic        fetch_valid, fetch_ready, fetch_beat, fetch_idle;
  logic [63:0] fetch_addr;
  logic [7:0]  fetch_len;
  logic [3:0]  fetch_owner;
  logic [5:0]  fetch_id;
  logic [Queues-1:0] switch_pairs;
  // Groups.
  logic        group_waits, refused, group_post, group_fills, group_ends, group_all, group_closes;
  verdict_t    verdict;
  logic [ENTRY_BITS-1:0] group_entry;
  logic [5:0]  group_member;
  logic [Queues-1:0] stirs;

  // Workers.
  logic               probe, prefix, held_order, held_fence;
  logic [Queues-1:0]  held_slot;
  logic [31:0]        probe_rollout;
  logic [Queues-1:0]  slot_free, record_free, dispatch_idle;
  logic [Workers-1:0] holds, joins, wants, free, moved, assign_work;
  logic [Workers-1:0] result_ready, token, logp, item_finish, ended, running, waiting;
  logic [Workers*32-1:0] token_data, logp_data, position, digest;
  logic [Workers*4-1:0]  how;

  // Engines: what the workers ask, and what those answer; engine 0's part of it, and engine 1.
  logic                  load;
  logic [4:0]            load_place;
  logic [Workers-1:0]    engine_begin, engine_place, engine_ready, step, step_ready, token_ready, eos, token_take;
  logic [Workers-1:0]    hash_begin, hash_step, hash_ready, hash_eos, hash_take, item_line;
  /* verilator lint_off UNUSEDSIGNAL */  // of engine 1, where there is one
  logic [Workers-1:0]    npu_begins, npu_runs, npu_fault, npu_fault_memory;
  logic [Workers*32-1:0] engine_token, hash_token, hash_logp;
  logic                  burst_valid, burst_ready, burst_beat, bursts_idle, npu_read_fault, npu_write_fault;
  logic                  store_valid, store_urgent, store_ready, store_ack;
  logic [3:0]            burst_owner, store_owner, npu_fault_queue;
  logic [63:0]           burst_addr, store_addr, store_strobe;
  logic [7:0]            burst_len;
  logic [511:0]          store_data;
  /* verilator lint_on UNUSEDSIGNAL */

  // Completion side.
  logic [Workers-1:0] item_valid, item_has_line, item_has_done, item_take, delivered;
  logic [4*Workers-1:0] pairs;
  logic         item_taken, item_logp, item_again;
  logic [3:0]   item_worker, assign_worker;
  logic [31:0]  item_digest;
  logic [3:0]   item_last, item_how, line_first, line_last, line_queue, beat_first, beat_last, beat_queue;
  logic [63:0]  line_addr, beat_addr;
  logic [511:0] line_data, beat_data;
  logic         line_waits, line_valid, line_turn, done_valid;
  logic [Workers-1:0] line_place;
  logic [Workers-1:0] line_ready;
  done_t        done;
  logic        release_cq, release_ok, completion_valid, completion_urgent, completion_ready;
  logic        ack, ack_store, ack_error, error_done, sent, writes_idle, posted, dropped;
  logic [5:0]  ack_id;
  logic [1:0]  answered, visible, flushed;
  logic [3:0]  posted_queue, answered_queue, dropped_queue, flushed_queue;
  logic [Queues-1:0] line_fault, completion_fault, any_read_faults, read_faults, write_faults;

  // Clocks of the parts that rest. The signals from which `moves` is computed are not used in hardware.
  /* verilator lint_off UNUSEDSIGNAL */
  logic        clk_front, clk_rare, clk_descriptors, clk_completions;
  logic        registers_move, ring_moves, completing, interrupts_move, events_move;
  /* verilator lint_on UNUSEDSIGNAL */

  // Interrupts.
  logic        arm, arms, table_write, asks, message_valid, message_ready;
  logic [1:0]  table_word;
  logic [31:0] arm_visible, answered_to, asked_to, message_data;
  logic [3:0]  message_queue;
  logic [63:0] message_addr;
  logic [Queues-1:0] armed, masked, messages_pending, messages_wait, messages_busy, message_fault;

  // Events.
  logic        event_release, event_release_ok, event_valid, event_urgent, event_ready;
  logic [3:0]  event_release_owner, event_owner;
  logic [31:0] posted_index;
  logic [63:0] event_addr;
  logic [95:0] events_state;
  logic [255:0] event_data;
  logic [$clog2(CompletionDepth)-1:0] done_place, posted_place;
  logic [Workers-1:0] begun;
  logic [Queues-1:0] events_wait, events_busy;
  logic [Queues-1:0][3:0] owners;
  logic [6*Queues-1:0] raised;

  // The watchdog: answers of the bus, or errors that it gives in their place.
  logic [31:0] bus_timeout;
  /* verilator lint_off UNUSEDSIGNAL */  // without engine 1
  logic [Functions-1:0] events_held, bursts_owed;
  /* verilator lint_on UNUSEDSIGNAL */
  logic [Queues-1:0] die, owing, message_owing, language_q;
  logic        watchdog_idle, watchdog_moves, r_valid, r_given, b_valid, b_given;
  logic [5:0]  r_id, b_id;
  logic [1:0]  r_resp, b_resp;

  assign starts      = start ? Queues'(16'd1 << start_queue) : '0;
  // What is given up of a queue pair that dies is no error that the bus answered with (R24).
  assign read_faults = dead != '0 ? any_read_faults & ~dead : any_read_faults;
  assign any_read_faults = (read_fault ? Queues'(16'd1 << slot_queue) : '0) | (back_fault ? Queues'(16'd1 << back_fault_queue) : '0)
                     | (npu_read_fault ? Queues'(16'd1 << npu_fault_queue) : '0);
  assign write_faults = (line_fault | (npu_write_fault ? Queues'(16'd1 << npu_fault_queue) : '0)) & ~dead;
  assign store_ack   = Engines > 1 && ack && ack_store;
  assign read_beat   = (fetch_beat || back_beat || burst_beat) && !r_given;
  assign reads_idle  = fetch_idle && back_idle && bursts_idle;
  assign r_resp      = r_given ? 2'b10 : m_axi_rresp;
  assign b_resp      = b_given ? 2'b10 : m_axi_bresp;
  assign slot_names  = slot_valid && (slot_data[HW_DESC_OPCODE_LSB +: 8] == OP_DECODE || slot_data[HW_DESC_OPCODE_LSB +: 8] == OP_PREFILL);
  assign called_off  = stopped || (retired_abort && work.adds_tokens);
  assign superseded  = retired_keep && work.adds_tokens;
  assign upstream      = fetching | checking | waits;                       // before the dispatcher
  assign idle        = ~left & ~checking & ~waits & dispatch_idle;
  assign drained     = draining & on & idle;
  assign arms        = arm && (Queues'(16'd1 << bell_queue) & on) != '0;     // that of a dead queue pair does nothing

  // The front is all but the read port's arbiter, the watchdog, the counters and engine 1. While only engine 1 is at work, which takes up to a second
  // per token in simulation, the front rests: its workers wait for tokens, and nothing is on its way to them or from them.
  if (Engines == 1) begin : gen_parts
    // Three parts of it rest between descriptors instead: the registers with what is seldom used, what a descriptor passes on its way to a worker, and
    // its completion. What comes by the register port, what begins or ends a life, and faults move all of them.
    /* verilator lint_off UNUSEDSIGNAL */
    logic port, life, fault, all, rare, descriptors;
    /* verilator lint_on UNUSEDSIGNAL */
    assign port  = s_axil_awvalid || s_axil_wvalid || s_axil_arvalid || s_axil_bvalid || s_axil_rvalid
                || !s_axil_awready || !s_axil_wready || !s_axil_arready;
    assign life  = !m_axi_rst_ni || !inner_rst_n || (aborting | draining | die | (active ^ on)) != '0 || watchdog_moves;
    assign fault = (read_faults | write_faults | completion_fault | message_fault) != '0;
    assign all   = port || life || fault || back_valid || !readback_idle;
    assign rare  = registers_move || interrupts_move || asks || answered != '0 || readback_valid || answer_taken;
    assign descriptors = r_valid || fetch_valid || !fetch_idle || ring_moves || (fetching | checking) != '0 || finish
                      || look || moved != '0 || ended != '0 || done_valid || posted || answered != '0 || dropped || flushed != '0 || events_move;

    assign clk_front = clk_i;
    rest_gate u_rest_rare        (.clk_i, .rst_ni, .moves_i(all || rare),        .clk_o(clk_rare));
    rest_gate u_rest_descriptors (.clk_i, .rst_ni, .moves_i(all || descriptors), .clk_o(clk_descriptors));
    rest_gate u_rest_completions (.clk_i, .rst_ni, .moves_i(all || completing || taken || line_valid || done_valid || b_valid || answer != '0),
                                  .clk_o(clk_completions));
  end else begin : gen_rest
    assign clk_rare        = clk_front;
    assign clk_descriptors = clk_front;
    assign clk_completions = clk_front;
    logic busy, comes, moves;
    assign busy  = !inner_rst_n || (fetching | checking | aborting | draining | (active ^ on)) != '0
                || fetch_valid || !fetch_idle || back_valid || !readback_idle || waiting != '0 || (running & ~npu_runs) != '0
                || item_valid != '0 || completing || !writes_idle || interrupts_move || events_move
                || !s_axil_awready || !s_axil_wready || !s_axil_arready || s_axil_bvalid || s_axil_rvalid;
    assign comes = !m_axi_rst_ni || s_axil_awvalid || s_axil_wvalid || s_axil_arvalid || (r_valid && !burst_beat) || b_valid || watchdog_moves
                || token_ready != '0 || store_valid || npu_read_fault || npu_write_fault;
    assign moves = busy || comes;
    rest_clock u_rest_clock (.clk_i, .rst_ni, .moves_i(moves), .clk_o(clk_front));
  end

  axil_slave u_axil_slave (
    .clk_i (clk_rare), .rst_ni,
    .s_axil_awaddr, .s_axil_awvalid, .s_axil_awready, .s_axil_wdata, .s_axil_wstrb, .s_axil_wvalid, .s_axil_wready,
    .s_axil_bresp, .s_axil_bvalid, .s_axil_bready, .s_axil_araddr, .s_axil_arvalid, .s_axil_arready,
    .s_axil_rdata, .s_axil_rresp, .s_axil_rvalid, .s_axil_rready,
    .write_o         (reg_write),
    .write_addr_o    (reg_write_addr),
    .write_data_o    (reg_write_data),
    .write_partial_o (reg_write_partial),
    .write_error_i   (reg_write_error),
    .read_o          (reg_read),
    .read_addr_o     (reg_read_addr),
    .read_data_i     (reg_read_data),
    .read_error_i    (reg_read_error)
  );

  mmio_regs #(.Queues(Queues), .Functions(Functions), .Workers(Workers), .Engines(Engines), .TickHz(TickHz)) u_mmio_regs (
    .clk_i (clk_rare), .rst_ni,
    .write_i            (reg_write),
    .write_addr_i       (reg_write_addr),
    .write_data_i       (reg_write_data),
    .write_partial_i    (reg_write_partial),
    .write_error_o      (reg_write_error),
    .read_i             (reg_read),
    .read_addr_i        (reg_read_addr),
    .read_data_o        (reg_read_data),
    .read_error_o       (reg_read_error),
    .counter_hit_i      (counter_hit),
    .counter_data_i     (counter_data),
    .wait_states_o      (wait_states),
    .bus_timeout_o      (bus_timeout),
    .start_o            (start),
    .start_queue_o      (start_queue),
    .start_config_o     (start_config),
    .start_models_o     (start_models),
    .stop_o             (stops),
    .drain_o            (drains),
    .on_i               (enabled),
    .draining_i         (draining),
    .active_i           (active),
    .dead_i             (dead),
    .idle_i             (idle_shown),
    .doorbell_o         (doorbell),
    .doorbell_ok_i      (doorbell_ok),
    .release_o          (release_cq),
    .release_ok_i       (release_ok),
    .abort_o            (abort),
    .aborting_i         (aborting),
    .arm_o              (arm),
    .table_write_o      (table_write),
    .table_word_o       (table_word),
    .bell_queue_o       (bell_queue),
    .index_o            (index),
    .state_queue_o      (state_queue),
    .state_i            (state),
    .slots_owner_o      (slots_owner),
    .slots_i            (slots),
    .event_release_o    (event_release),
    .event_owner_o      (event_release_owner),
    .event_release_ok_i (event_release_ok),
    .events_i           (events_state),
    .owner_o            (owners),
    .raised_o           (raised),
    .range_owner_i      (range_owner),
    .range_number_i     (range_number),
    .range_o            (range_of),
    .free_i             (free),
    .wait_i             (waiting),
    .run_i              (running),
    .ready_i            (result_ready),
    .read_fault_i       (read_faults),
    .line_fault_i       (write_faults),
    .completion_fault_i (completion_fault & ~dead),
    .message_fault_i    (message_fault & ~dead),
    .die_i              (die),
    .armed_i            (armed),
    .masked_i           (masked),
    .pending_i          (messages_pending),
    .sending_i          (messages_busy | message_owing),
    .moves_o            (registers_move)
  );

  device_ctrl #(.Queues(Queues)) u_device_ctrl (
    .clk_i (clk_rare), .rst_ni,
    .start_i      (starts),
    .stop_i       (stops),
    .drain_i      (drains),
    .done_i       (idle & ~(messages_wait | events_wait)),
    .busy_i       (upstream | ~dispatch_idle | messages_busy | events_busy | owing),
    .die_i        (die),
    .idle_i       (idle),
    .bus_idle_i   (reads_idle && writes_idle && watchdog_idle),
    .on_o         (on),
    .enabled_o    (enabled),
    .dead_o       (dead),
    .idle_o       (idle_shown),
    .ending_o     (ending),
    .draining_o   (draining),
    .active_o     (active),
    .inner_rst_no (inner_rst_n)
  );

  watchdog #(.Queues(Queues), .Functions(Functions), .Engines(Engines), .FetchDepth(FetchDepth)) u_watchdog (
    .clk_i, .rst_ni,
    .bus_rst_ni (m_axi_rst_ni),
    .timeout_i  (bus_timeout),
    .active_i   (active),
    .dead_i     (dead),
    .owner_i    (owners),
    .engine_i   (language_q),
    .events_i   (events_busy),
    .die_o      (die),
    .owing_o    (owing),
    .sending_o  (message_owing),
    .held_o     (events_held),
    .reading_o  (bursts_owed),
    .idle_o     (watchdog_idle),
    .moves_o    (watchdog_moves),
    .ar_i       (m_axi_arvalid && m_axi_arready),
    .ar_id_i    (m_axi_arid),
    .ar_len_i   (m_axi_arlen),
    .aw_i       (m_axi_awvalid && m_axi_awready),
    .aw_id_i    (m_axi_awid),
    .r_valid_i  (m_axi_rvalid),
    .r_id_i     (m_axi_rid),
    .r_ready_o  (m_axi_rready),
    .b_valid_i  (m_axi_bvalid),
    .b_id_i     (m_axi_bid),
    .b_ready_o  (m_axi_bready),
    .r_valid_o  (r_valid),
    .r_id_o     (r_id),
    .r_given_o  (r_given),
    .b_valid_o  (b_valid),
    .b_id_o     (b_id),
    .b_given_o  (b_given)
  );

  // Queue pairs that have had a descriptor of engine 1 handed out since nothing of theirs was in flight.
  if (Engines == 1) begin : gen_no_language
    assign language_q = '0;
  end else begin : gen_language
    always_ff @(posedge clk_front) begin
      if (!inner_rst_n) language_q <= '0;
      else if (language_q != '0 || (taken && work.engine))
        language_q <= (language_q & ~dispatch_idle) | ((taken && work.engine) ? Queues'(16'd1 << look_queue) : '0);
    end
  end

  desc_ring #(.Queues(Queues), .FetchDepth(FetchDepth)) u_desc_ring (
    .clk_i (clk_descriptors),
    .rst_ni           (inner_rst_n),
    .bus_rst_ni       (m_axi_rst_ni),
    .start_i          (start),
    .start_queue_i    (start_queue),
    .start_config_i   (start_config),
    .on_i             (on),
    .enabled_i        (enabled),
    .doorbell_i       (doorbell),
    .doorbell_queue_i (bell_queue),
    .doorbell_tail_i  (index),
    .doorbell_ok_o    (doorbell_ok),
    .abort_i          (abort),
    .abort_tail_o     (abort_tail),
    .request_o        (request),
    .request_addr_o   (request_addr),
    .request_slots_o  (request_slots),
    .request_queue_o  (request_queue),
    .request_owner_o  (request_owner),
    .request_ready_i  (request_ready),
    .received_i       (slot_valid),
    .received_queue_i (slot_queue),
    .received_index_o (slot_index),
    .taken_i          (taken),
    .taken_queue_i    (look_queue),
    .published_o      (published),
    .left_o           (left),
    .state_queue_i    (state_queue),
    .head_o           (state.sq_head),
    .tail_o           (state.sq_tail),
    .posted_i         (posted),
    .posted_queue_i   (posted_queue),
    .posted_head_o    (posted_head),
    .moves_o          (ring_moves)
  );

  desc_fetch #(.Queues(Queues), .FetchDepth(FetchDepth)) u_desc_fetch (
    .clk_i (clk_descriptors),
    .bus_rst_ni      (m_axi_rst_ni),
    .on_i            (on),
    .request_i       (request),
    .request_addr_i  (request_addr),
    .request_slots_i (request_slots),
    .request_queue_i (request_queue),
    .request_owner_i (request_owner),
    .request_ready_o (request_ready),
    .m_axi_arid      (fetch_id),
    .m_axi_araddr    (fetch_addr),
    .m_axi_arlen     (fetch_len),
    .m_axi_arsize, .m_axi_arburst, .m_axi_arcache, .m_axi_arprot,
    .m_axi_aruser    (fetch_owner),
    .m_axi_arvalid   (fetch_valid),
    .m_axi_arready   (fetch_ready),
    .m_axi_rid (r_id), .m_axi_rdata, .m_axi_rresp (r_resp), .m_axi_rlast, .m_axi_rvalid (r_valid),
    .slot_valid_o    (slot_valid),
    .slot_data_o     (slot_data),
    .slot_fault_o    (slot_fault),
    .slot_queue_o    (slot_queue),
    .beat_o          (fetch_beat),
    .fault_o         (read_fault),
    .busy_o          (fetching),
    .idle_o          (fetch_idle)
  );

  read_arbiter #(.Queues(Queues), .Engines(Engines)) u_read_arbiter (
    .clk_i,
    .bus_rst_ni    (m_axi_rst_ni),
    .fetch_valid_i (fetch_valid),
    .fetch_id_i    (fetch_id),
    .fetch_addr_i  (fetch_addr),
    .fetch_len_i   (fetch_len),
    .fetch_owner_i (fetch_owner),
    .fetch_ready_o (fetch_ready),
    .read_valid_i  (back_valid),
    .read_queue_i  (back_queue),
    .read_addr_i   (back_addr),
    .read_owner_i  (back_owner),
    .read_ready_o  (back_ready),
    .beat_o        (back_beat),
    .beat_queue_o  (back_beat_queue),
    .idle_o        (back_idle),
    .burst_valid_i (burst_valid),
    .burst_addr_i  (burst_addr),
    .burst_len_i   (burst_len),
    .burst_owner_i (burst_owner),
    .burst_ready_o (burst_ready),
    .burst_beat_o  (burst_beat),
    .m_axi_arid, .m_axi_araddr, .m_axi_arlen, .m_axi_aruser, .m_axi_arvalid, .m_axi_arready,
    .m_axi_rid (r_id), .m_axi_rvalid (r_valid)
  );

  desc_check #(.Queues(Queues), .Engines(Engines)) u_desc_check (
    .clk_i (clk_descriptors),
    .rst_ni         (inner_rst_n),
    .start_i        (start),
    .start_queue_i  (start_queue),
    .start_config_i (start_config),
    .on_i           (on),
    .slot_valid_i   (slot_valid),
    .slot_data_i    (slot_data),
    .slot_fault_i   (slot_fault),
    .slot_index_i   (slot_index),
    .slot_queue_i   (slot_queue),
    .version_found_i    (version_found),
    .version_resident_i (version_resident),
    .version_slot_i     (version_slot),
    .version_engine_i   (version_engine),
    .version_positions_i (version_positions),
    .work_valid_o   (checked_valid),
    .work_o         (checked_work),
    .echo_o         (checked_echo),
    .fence_o        (checked_fence),
    .prefill_o      (checked_prefill),
    .stop_o         (checked_stop),
    .leave_o        (leave),
    .leave_queue_o  (leave_queue),
    .leave_slot_o   (leave_slot),
    .busy_o         (checking)
  );

  policy_slots #(.Queues(Queues), .Functions(Functions), .Engines(Engines)) u_policy_slots (
    .clk_i (clk_descriptors),
    .rst_ni         (inner_rst_n),
    .start_i        (start),
    .start_queue_i  (start_queue),
    .start_config_i (start_config),
    .active_i       (active),
    .gone_i         ((ending != '0) ? ending & dispatch_idle : '0),
    .look_i         (slot_names),
    .look_queue_i   (slot_queue),
    .look_version_i (slot_data[HW_DESC_POLICY_VERSION_LSB +: 16]),
    .found_o        (version_found),
    .resident_o     (version_resident),
    .slot_o         (version_slot),
    .salt_o         (version_salt),
    .engine_o       (version_engine),
    .positions_o    (version_positions),
    .leave_i        (leave),
    .leave_queue_i  (leave_queue),
    .leave_slot_i   (leave_slot),
    .finish_i       (finish),
    .finish_queue_i (finish_queue),
    .finish_slot_i  (finish_slot),
    .hand_i         (look),
    .hand_queue_i   (look_queue),
    .hand_slot_i    (work.slot),
    .kept_o         (retired_keep),
    .aborted_o      (retired_abort),
    .ask_i          (ask),
    .ask_queue_i    (ask_queue),
    .ask_version_i  (ask_version),
    .ask_resident_o (ask_resident),
    .ask_occupied_o (ask_occupied),
    .load_i         (load_version),
    .load_salt_i    (load_salt),
    .load_mode_i    (load_mode),
    .load_engine_i  (load_engine),
    .load_image_i   (load_image),
    .image_owner_i  (image_owner),
    .image_slot_i   (image_slot),
    .image_o        (image),
    .switch_o       (switched),
    .switch_pairs_o (switch_pairs),
    .switch_slot_o  (switch_slot),
    .switch_keep_o  (switch_keep),
    .switch_abort_o (switch_abort),
    .read_i         (reg_read),
    .read_owner_i   (slots_owner),
    .read_o         (slots)
  );

  work_queue #(.Queues(Queues), .Depth(FetchDepth), .PreparedBits(PreparedBits)) u_work_queue (
    .clk_i (clk_descriptors),
    .rst_ni         (inner_rst_n),
    .start_i        (start),
    .start_queue_i  (start_queue),
    .start_config_i (start_config),
    .on_i           (on),
    .push_i         (checked_valid),
    .work_i         (checked_work),
    .echo_i         (checked_echo),
    .prepared_i     (checked_prepared),
    .fence_i        (checked_fence),
    .prefill_i      (checked_prefill),
    .stop_i         (checked_stop),
    .some_o         (waits),
    .read_i         (look),
    .read_queue_i   (look_queue),
    .work_o         (work),
    .fence_o        (fence),
    .known_o        (known),
    .stopped_o      (stopped),
    .take_i         (taken),
    .echo_o         (echo),
    .prepared_o     (prepared),
    .prefill_o      (prefill),
    .stop_o         (stop),
    .stop_queue_o   (stop_queue),
    .stop_group_o   (stop_group),
    .stop_rollout_o (stop_rollout),
    .abort_o        (told),
    .abort_queue_o  (told_queue),
    .abort_rollout_o (told_rollout),
    .abort_i        (abort),
    .abort_queue_i  (bell_queue),
    .abort_rollout_i (index),
    .abort_tail_i   (abort_tail),
    .aborting_o     (aborting)
  );

  group_table #(.Queues(Queues)) u_group_table (
    .clk_i (clk_descriptors),
    .rst_ni          (inner_rst_n),
    .start_i         (start),
    .start_queue_i   (start_queue),
    .look_i          (work.seeks),
    .look_queue_i    (look_queue),
    .prefix_i        (work.prefix_id),
    .prefill_i       (prefill),
    .opens_i         (work.opens),
    .stop_i          (work.is_stop),
    .all_i           (work.all),
    .member_i        (work.member),
    .slot_i          (work.slot),
    .retired_i       (retired_keep || retired_abort),
    .waits_o         (group_waits),
    .verdict_o       (verdict),
    .refused_o       (refused),
    .take_i          (taken),
    .post_i          (group_post),
    .post_queue_i    (posted_queue),
    .post_entry_i    (group_entry),
    .post_fills_i    (group_fills),
    .post_ends_i     (group_ends),
    .post_all_i      (group_all),
    .post_member_i   (group_member),
    .closes_o        (group_closes),
    .stirs_o         (stirs),
    .publish_i       (switched ? switch_pairs : '0),
    .publish_slot_i  (switch_slot),
    .publish_keep_i  (switch_keep),
    .publish_abort_i (switch_abort)
  );

  dispatcher #(.Queues(Queues), .Workers(Workers)) u_dispatcher (
    .clk_i (clk_descriptors),
    .rst_ni           (inner_rst_n),
    .start_i          (start),
    .start_queue_i    (start_queue),
    .start_config_i   (start_config),
    .on_i             (on),
    .some_i           (waits),
    .read_o           (look),
    .queue_o          (look_queue),
    .known_i          (known),
    .fence_i          (fence),
    .prefill_i        (prefill),
    .rollout_i        (work.rollout_id),
    .grouped_i        (group_waits),
    .refused_i        (refused),
    .stirs_i          (stirs),
    .take_o           (taken),
    .slot_i           (slot_free),
    .record_i         (record_free),
    .probe_o          (probe),
    .probe_rollout_o  (probe_rollout),
    .holds_i          (holds),
    .joins_i          (joins),
    .wants_i          (wants),
    .free_i           (free),
    .moved_i          (moved),
    .assign_o         (assign_work),
    .assign_worker_o  (assign_worker),
    .answered_i       (answered),
    .answered_queue_i (answered_queue),
    .dropped_i        (dropped),
    .dropped_queue_i  (dropped_queue),
    .flushed_i        (flushed),
    .flushed_queue_i  (flushed_queue),
    .prefix_o         (prefix),
    .idle_o           (dispatch_idle),
    .held_order_o     (held_order),
    .held_fence_o     (held_fence),
    .held_slot_o      (held_slot)
  );

  engine_hash #(.Queues(Queues), .Workers(Workers)) u_engine (
    .clk_i (clk_front),
    .rst_ni          (inner_rst_n),
    .start_i         (start),
    .start_queue_i   (start_queue),
    .start_config_i  (start_config),
    .prepare_i       (slot_valid),
    .queue_i         (slot_queue),
    .rollout_i       (slot_data[HW_DESC_ROLLOUT_ID_LSB +: 32]),
    .seed_i          (slot_data[HW_DESC_SEED_LSB +: 32]),
    .seq_len_i       (slot_data[HW_DESC_SEQ_LEN_LSB +: 32]),
    .salt_i          (version_salt),
    .prepared_o      (checked_prepared[ENGINE_BITS-1:0]),
    .load_i          (load),
    .load_place_i    (load_place),
    .load_prepared_i (prepared[ENGINE_BITS-1:0]),
    .begin_i         (hash_begin),
    .begin_place_i   (engine_place),
    .begin_ready_o   (engine_ready),
    .step_i          (hash_step),
    .step_ready_o    (step_ready),
    .token_valid_o   (hash_ready),
    .token_o         (hash_token),
    .eos_o           (hash_eos),
    .logp_i          (logp),
    .logp_o          (hash_logp),
    .token_take_i    (hash_take)
  );

  if (Engines == 1) begin : gen_one_engine
    assign hash_begin   = engine_begin;
    assign hash_step    = step;
    assign hash_take    = token_take;
    assign token_ready  = hash_ready;
    assign engine_token = hash_token;
    assign eos          = hash_eos;
    assign logp_data    = hash_logp;
    assign {npu_begins, npu_runs, npu_fault, npu_fault_memory} = '0;
    assign {burst_valid, burst_addr, burst_len, burst_owner} = '0;
    assign {store_valid, store_urgent, store_addr, store_data, store_strobe, store_owner} = '0;
    assign {npu_read_fault, npu_write_fault, npu_fault_queue} = '0;
    assign bursts_idle  = 1'b1;
    assign {image_owner, image_slot} = '0;
  end else begin : gen_npu
    logic [Workers-1:0]    npu_ready, npu_eos;
    logic [Workers*32-1:0] npu_token, npu_logp;

    // R24: functions to which the bus owes answers of engine 1, and of which no live queue pair uses engine 1. A live one asks the bus, and dies.
    logic [15:0] read_refused, write_refused;
    always_comb begin
      read_refused  = 16'(bursts_owed);
      write_refused = 16'(events_held);
      if (!watchdog_idle) begin
        for (int q = 0; q < Queues; q++) if (language_q[q] && !dead[q]) begin
          read_refused[owners[q]]  = 1'b0;
          write_refused[owners[q]] = 1'b0;
        end
      end
    end

    assign hash_begin   = engine_begin & ~npu_begins;
    assign hash_step    = step & ~npu_runs;
    assign hash_take    = token_take & ~npu_runs;
    assign token_ready  = (npu_runs & npu_ready) | (~npu_runs & hash_ready);
    assign eos          = (npu_runs & npu_eos) | (~npu_runs & hash_eos);
    for (genvar w = 0; w < Workers; w++) begin : gen_worker
      assign engine_token[w*32 +: 32] = npu_runs[w] ? npu_token[w*32 +: 32] : hash_token[w*32 +: 32];
      assign logp_data[w*32 +: 32]    = npu_runs[w] ? npu_logp[w*32 +: 32] : hash_logp[w*32 +: 32];
    end

    engine_npu #(.Queues(Queues), .Workers(Workers), .Gangs(Gangs), .Contexts(Contexts)) u_engine_npu (
      .clk_i,
      .rst_ni          (inner_rst_n),
      .bus_rst_ni      (m_axi_rst_ni),
      .start_i         (start),
      .start_queue_i   (start_queue),
      .start_config_i  (start_config),
      .start_models_i  (start_models),
      .ending_i        (ending),
      .prepare_i       (slot_valid),
      .seed_i          (slot_data[HW_DESC_SEED_LSB +: 32]),
      .kv_offset_i     (slot_data[HW_DESC_KV_OFFSET_LSB +: 64]),
      .arena_i         (slot_data[HW_DESC_KV_ARENA_ID_LSB +: 16]),
      .scores_i        (slot_data[HW_DESC_FLAGS_LSB + FLAG_LOGP_BIT]),
      .prepared_o      (checked_prepared[ENGINE_BITS +: NPU_BITS]),
      .load_i          (load),
      .load_place_i    (load_place),
      .load_work_i     (work),
      .load_echo_i     (echo),
      .load_prepared_i (prepared[ENGINE_BITS +: NPU_BITS]),
      .begin_i         (engine_begin),
      .begin_place_i   (engine_place),
      .step_i          (step),
      .begins_o        (npu_begins),
      .mine_o          (npu_runs),
      .token_valid_o   (npu_ready),
      .token_o         (npu_token),
      .eos_o           (npu_eos),
      .logp_o          (npu_logp),
      .fault_o         (npu_fault),
      .fault_memory_o  (npu_fault_memory),
      .token_take_i    (token_take),
      .items_i         (item_valid),
      .line_i          (line_valid),
      .line_queue_i    (line_queue),
      .line_ack_i      (ack && ack_id < 6'(Queues)),
      .line_ack_queue_i (ack_id[3:0]),
      .image_owner_o   (image_owner),
      .image_slot_o    (image_slot),
      .image_i         (image),
      .burst_valid_o   (burst_valid),
      .burst_addr_o    (burst_addr),
      .burst_len_o     (burst_len),
      .burst_owner_o   (burst_owner),
      .burst_ready_i   (burst_ready),
      .beat_i          (burst_beat),
      .beat_owner_i    (r_id[3:0]),
      .data_i          (m_axi_rdata),
      .fault_i         (r_resp != '0),
      .reads_idle_o    (bursts_idle),
      .read_refused_i  (read_refused),
      .write_refused_i (write_refused),
      .store_valid_o   (store_valid),
      .store_urgent_o  (store_urgent),
      .store_owner_o   (store_owner),
      .store_addr_o    (store_addr),
      .store_data_o    (store_data),
      .store_strobe_o  (store_strobe),
      .store_ready_i   (store_ready),
      .ack_i           (store_ack),
      .ack_fault_i     (ack_error),
      .read_fault_o    (npu_read_fault),
      .write_fault_o   (npu_write_fault),
      .fault_queue_o   (npu_fault_queue)
    );
  end

  rollout_worker_fsm #(.Queues(Queues), .Workers(Workers), .Engines(Engines)) u_rollout_worker_fsm (
    .clk_i (clk_front),
    .rst_ni             (inner_rst_n),
    .start_i            (start),
    .start_queue_i      (start_queue),
    .start_config_i     (start_config),
    .drain_i            (ending),
    .wait_states_i      (wait_states),
    .assign_i           (assign_work),
    .assign_worker_i    (assign_worker),
    .work_i             (work),
    .stopped_i          (called_off || superseded),
    .refused_i          (refused),
    .stop_i             (stop),
    .stop_queue_i       (stop_queue),
    .stop_group_i       (stop_group),
    .stop_rollout_i     (stop_rollout),
    .abort_i            (told),
    .abort_queue_i      (told_queue),
    .abort_rollout_i    (told_rollout),
    .retire_i           (switched && (switch_keep || switch_abort)),
    .retire_pairs_i     (switch_pairs),
    .retire_slot_i      (!switch_slot),
    .retire_abort_i     (switch_abort),
    .probe_i            (probe),
    .probe_queue_i      (look_queue),
    .probe_rollout_i    (probe_rollout),
    .holds_o            (holds),
    .joins_o            (joins),
    .wants_o            (wants),
    .free_o             (free),
    .begun_o            (begun),
    .moved_o            (moved),
    .load_o             (load),
    .load_place_o       (load_place),
    .begin_o            (engine_begin),
    .begin_place_o      (engine_place),
    .begin_ready_i      (engine_ready),
    .step_o             (step),
    .step_ready_i       (step_ready),
    .token_valid_i      (token_ready),
    .engine_token_i     (engine_token),
    .eos_i              (eos),
    .slow_i             (npu_runs),
    .fault_i            (npu_fault),
    .fault_memory_i     (npu_fault_memory),
    .token_take_o       (token_take),
    .ready_i            (result_ready),
    .token_o            (token),
    .line_o             (item_line),
    .token_data_o       (token_data),
    .logp_o             (logp),
    .position_o         (position),
    .finish_o           (item_finish),
    .done_o             (ended),
    .digest_o           (digest),
    .how_o              (how),
    .delivered_i        (delivered),
    .run_o              (running),
    .wait_o             (waiting)
  );

  // The completion side is written in the reverse order of its data flow. With each always_comb process, Icarus 11 also
  // runs all that precede it in the file. Two that assign defaults for later ones would wake each other forever.
  axi_writer #(.Queues(Queues), .Workers(Workers), .Engines(Engines)) u_axi_writer (
    .clk_i (clk_front),
    .rst_ni              (m_axi_rst_ni),
    .start_i             (start),
    .start_queue_i       (start_queue),
    .start_config_i      (start_config),
    .line_waits_i        (line_waits),
    .line_valid_i        (line_valid),
    .line_queue_i        (line_queue),
    .line_addr_i         (line_addr),
    .line_first_i        (line_first),
    .line_last_i         (line_last),
    .line_data_i         (line_data),
    .pairs_i             (pairs),
    .line_ready_o        (line_ready),
    .line_place_o        (line_place),
    .line_turn_o         (line_turn),
    .completion_valid_i  (completion_valid),
    .completion_urgent_i (completion_urgent),
    .completion_queue_i  (beat_queue),
    .completion_addr_i   (beat_addr),
    .completion_first_i  (beat_first),
    .completion_last_i   (beat_last),
    .completion_data_i   (beat_data),
    .completion_ready_o  (completion_ready),
    .message_valid_i     (message_valid),
    .message_queue_i     (message_queue),
    .message_addr_i      (message_addr),
    .message_data_i      (message_data),
    .message_ready_o     (message_ready),
    .event_valid_i       (event_valid),
    .event_urgent_i      (event_urgent),
    .event_owner_i       (event_owner),
    .event_addr_i        (event_addr),
    .event_data_i        (event_data),
    .event_ready_o       (event_ready),
    .store_valid_i       (store_valid),
    .store_urgent_i      (store_urgent),
    .store_owner_i       (store_owner),
    .store_addr_i        (store_addr),
    .store_data_i        (store_data),
    .store_strobe_i      (store_strobe),
    .store_ready_o       (store_ready),
    .ack_o               (ack),
    .ack_id_o            (ack_id),
    .ack_store_o         (ack_store),
    .ack_error_o         (ack_error),
    .m_axi_awid, .m_axi_awaddr, .m_axi_awlen, .m_axi_awsize, .m_axi_awburst, .m_axi_awcache, .m_axi_awprot,
    .m_axi_awuser, .m_axi_awvalid, .m_axi_awready,
    .m_axi_wdata, .m_axi_wstrb, .m_axi_wlast, .m_axi_wvalid, .m_axi_wready,
    .m_axi_bid (b_id), .m_axi_bresp (b_resp), .m_axi_bvalid (b_valid),
    .sent_o              (sent),
    .idle_o              (writes_idle)
  );

  readback #(.Queues(Queues), .Engines(Engines)) u_readback (
    .clk_i (clk_rare),
    .rst_ni         (inner_rst_n),
    .start_i        (start),
    .start_queue_i  (start_queue),
    .start_config_i (start_config),
    .start_models_i (start_models),
    .on_i           (on),
    .valid_i        (readback_valid),
    .queue_i        (readback_queue),
    .publishes_i    (readback_publishes),
    .model_i        (readback_model),
    .what_i         (readback_what),
    .addr_i         (readback_addr),
    .done_o         (answer),
    .done_queue_i   (answer_queue),
    .error_o        (answer_error),
    .result_o       (answer_result),
    .done_taken_i   (answer_taken),
    .idle_o         (readback_idle),
    .read_valid_o   (back_valid),
    .read_queue_o   (back_queue),
    .read_addr_o    (back_addr),
    .read_owner_o   (back_owner),
    .read_ready_i   (back_ready),
    .beat_i         (back_beat),
    .beat_queue_i   (back_beat_queue),
    .beat_data_i    (m_axi_rdata),
    .beat_fault_i   (r_resp != '0),
    .fault_o        (back_fault),
    .fault_queue_o  (back_fault_queue),
    .range_owner_o  (range_owner),
    .range_number_o (range_number),
    .range_i        (range_of),
    .ask_o          (ask),
    .ask_queue_o    (ask_queue),
    .ask_version_o  (ask_version),
    .ask_resident_i (ask_resident),
    .ask_occupied_i (ask_occupied),
    .load_o         (load_version),
    .load_salt_o    (load_salt),
    .load_mode_o    (load_mode),
    .load_engine_o  (load_engine),
    .load_image_o   (load_image)
  );

  completion_ring #(.Queues(Queues), .Workers(Workers), .Depth(CompletionDepth)) u_completion_ring (
    .clk_i (clk_completions),
    .rst_ni           (inner_rst_n),
    .bus_rst_ni       (m_axi_rst_ni),
    .start_i          (start),
    .start_queue_i    (start_queue),
    .start_config_i   (start_config),
    .on_i             (on),
    .enabled_i        (enabled),
    .release_i        (release_cq),
    .release_queue_i  (bell_queue),
    .release_head_i   (index),
    .release_ok_o     (release_ok),
    .arm_i            (arms),
    .arm_visible_o    (arm_visible),
    .slot_o           (slot_free),
    .record_o         (record_free),
    .reserve_i        (taken),
    .reserve_queue_i  (look_queue),
    .line_i           (line_valid),
    .line_worker_i    (item_worker),
    .line_queue_i     (line_queue),
    .done_valid_i     (done_valid),
    .done_i           (done),
    .place_o          (done_place),
    .done_addr_i      ({line_addr[63:6], line_first, 2'b00}),
    .read_valid_o     (readback_valid),
    .read_queue_o     (readback_queue),
    .read_publishes_o (readback_publishes),
    .read_model_o     (readback_model),
    .read_what_o      (readback_what),
    .read_addr_o      (readback_addr),
    .answer_i         (answer),
    .answer_queue_o   (answer_queue),
    .answer_error_i   (answer_error),
    .answer_result_i  (answer_result),
    .answer_taken_o   (answer_taken),
    .posted_o         (posted),
    .posted_queue_o   (posted_queue),
    .posted_place_o   (posted_place),
    .posted_index_o   (posted_index),
    .sq_head_i        (posted_head),
    .group_o          (group_post),
    .group_entry_o    (group_entry),
    .group_fills_o    (group_fills),
    .group_ends_o     (group_ends),
    .group_all_o      (group_all),
    .group_member_o   (group_member),
    .group_closes_i   (group_closes),
    .beat_valid_o     (completion_valid),
    .beat_urgent_o    (completion_urgent),
    .beat_queue_o     (beat_queue),
    .beat_addr_o      (beat_addr),
    .beat_first_o     (beat_first),
    .beat_last_o      (beat_last),
    .beat_data_o      (beat_data),
    .beat_ready_i     (completion_ready),
    .ack_i            (ack),
    .ack_id_i         (ack_id),
    .ack_error_i      (ack_error),
    .state_queue_i    (state_queue),
    .head_o           (state.cq_head),
    .tail_o           (state.cq_tail),
    .answered_o       (answered),
    .answered_queue_o (answered_queue),
    .answered_to_o    (answered_to),
    .asks_o           (asks),
    .asked_to_o       (asked_to),
    .visible_o        (visible),
    .dropped_o        (dropped),
    .dropped_queue_o  (dropped_queue),
    .flushed_o        (flushed),
    .flushed_queue_o  (flushed_queue),
    .finish_o         (finish),
    .finish_queue_o   (finish_queue),
    .finish_slot_o    (finish_slot),
    .error_done_o     (error_done),
    .busy_o           (completing),
    .line_fault_o     (line_fault),
    .write_fault_o    (completion_fault)
  );

  interrupts #(.Queues(Queues)) u_interrupts (
    .clk_i (clk_rare), .rst_ni,
    .inner_rst_ni     (inner_rst_n),
    .bus_rst_ni       (m_axi_rst_ni),
    .start_i          (start),
    .start_queue_i    (start_queue),
    .start_config_i   (start_config),
    .on_i             (on),
    .drained_i        (drained),
    .write_queue_i    (bell_queue),
    .write_data_i     (index),
    .arm_i            (arms),
    .arm_visible_i    (arm_visible),
    .table_write_i    (table_write),
    .table_word_i     (table_word),
    .read_i           (reg_read),
    .read_queue_i     (state_queue),
    .arm_o            (state.arm),
    .message_o        (state.message),
    .armed_o          (armed),
    .masked_o         (masked),
    .pending_o        (messages_pending),
    .answered_i       (answered),
    .answered_queue_i (answered_queue),
    .visible_i        (answered_to),
    .asks_i           (asks),
    .asked_i          (asked_to),
    .message_valid_o  (message_valid),
    .message_queue_o  (message_queue),
    .message_addr_o   (message_addr),
    .message_data_o   (message_data),
    .message_ready_i  (message_ready),
    .ack_i            (ack),
    .ack_id_i         (ack_id),
    .ack_error_i      (ack_error),
    .waits_o          (messages_wait),
    .moves_o          (interrupts_move),
    .busy_o           (messages_busy),
    .fault_o          (message_fault)
  );

  event_ring #(.Queues(Queues), .Functions(Functions), .Workers(Workers), .FetchDepth(FetchDepth), .Depth(CompletionDepth)) u_event_ring (
    .clk_i (clk_descriptors),
    .rst_ni             (inner_rst_n),
    .start_i            (start),
    .start_queue_i      (start_queue),
    .start_config_i     (start_config),
    .on_i               (enabled),
    .active_i           (active),
    .owner_i            (owners),
    .held_i             (events_held),
    .release_i          (event_release),
    .release_owner_i    (event_release_owner),
    .release_head_i     (index),
    .release_ok_o       (event_release_ok),
    .read_owner_i       (slots_owner),
    .head_o             (events_state[31:0]),
    .tail_o             (events_state[63:32]),
    .dropped_o          (events_state[95:64]),
    .slot_i             (slot_valid),
    .slot_queue_i       (slot_queue),
    .taken_i            (taken),
    .taken_queue_i      (look_queue),
    .taken_worker_i     (assign_worker),
    .begun_i            (begun),
    .token_i            (token),
    .done_i             (ended),
    .delivered_i        (done_valid),
    .delivered_worker_i (item_worker),
    .delivered_queue_i  (done.pair),
    .delivered_reads_i  (done.reads),
    .delivered_place_i  (done_place),
    .posted_i           (posted),
    .posted_queue_i     (posted_queue),
    .posted_place_i     (posted_place),
    .posted_index_i     (posted_index),
    .answered_i         (answered),
    .answered_queue_i   (answered_queue),
    .answered_to_i      (answered_to),
    .visible_i          (visible),
    .raised_i           (raised),
    .event_valid_o      (event_valid),
    .event_urgent_o     (event_urgent),
    .event_owner_o      (event_owner),
    .event_addr_o       (event_addr),
    .event_data_o       (event_data),
    .event_ready_i      (event_ready),
    .ack_i              (ack && !store_ack),
    .ack_id_i           (ack_id),
    .ack_error_i        (ack_error),
    .waits_o            (events_wait),
    .moves_o            (events_move),
    .busy_o             (events_busy)
  );

  work_context #(.Queues(Queues), .Workers(Workers), .Engines(Engines)) u_work_context (
    .clk_i (clk_front),
    .rst_ni          (inner_rst_n),
    .start_i         (start),
    .start_queue_i   (start_queue),
    .start_config_i  (start_config),
    .assign_i        (taken),
    .assign_worker_i (assign_worker),
    .echo_i          (echo),
    .stopped_i       (called_off),
    .superseded_i    (superseded),
    .verdict_i       (verdict),
    .taken_i         (item_taken),
    .worker_i        (item_worker),
    .last_i          (item_last),
    .logp_i          (item_logp),
    .again_i         (item_again),
    .digest_i        (item_digest),
    .how_i           (item_how),
    .delivered_i     (done_valid),
    .pairs_o         (pairs),
    .line_queue_o    (line_queue),
    .line_addr_o     (line_addr),
    .line_first_o    (line_first),
    .line_last_o     (line_last),
    .done_o          (done)
  );

  result_buffer #(.Workers(Workers)) u_result_buffer (
    .clk_i (clk_front),
    .rst_ni        (inner_rst_n),
    .ready_o       (result_ready),
    .token_i       (token),
    .line_i        (item_line),
    .token_data_i  (token_data),
    .logp_i        (logp),
    .logp_data_i   (logp_data),
    .position_i    (position),
    .finish_i      (item_finish),
    .done_i        (ended),
    .digest_i      (digest),
    .how_i         (how),
    .valid_o       (item_valid),
    .has_line_o    (item_has_line),
    .has_done_o    (item_has_done),
    .take_i        (item_take),
    .read_worker_i (item_worker),
    .line_data_o   (line_data),
    .last_o        (item_last),
    .logp_o        (item_logp),
    .again_o       (item_again),
    .digest_o      (item_digest),
    .how_o         (item_how)
  );

  completion_arbiter #(.Workers(Workers)) u_completion_arbiter (
    .clk_i (clk_front),
    .rst_ni       (inner_rst_n),
    .valid_i      (item_valid),
    .has_line_i   (item_has_line),
    .has_done_i   (item_has_done),
    .take_o       (item_take),
    .taken_o      (item_taken),
    .worker_o     (item_worker),
    .delivered_o  (delivered),
    .line_waits_o (line_waits),
    .line_place_i (line_place),
    .line_turn_i  (line_turn),
    .line_valid_o (line_valid),
    .line_ready_i (line_ready),
    .done_valid_o (done_valid)
  );

  perf_counters #(.Queues(Queues), .Workers(Workers)) u_perf_counters (
    .clk_i, .rst_ni,
    .start_i        (start),
    .start_queue_i  (start_queue),
    .start_config_i (start_config),
    .active_i       (active != '0),
    .free_i        (free),
    .token_i       (token),
    .wait_i        (waiting),
    .run_i         (running),
    .ready_i       (result_ready),
    .received_i    (slot_valid),
    .received_queue_i (slot_queue),
    .visible_i     (visible),
    .visible_queue_i (answered_queue),
    .line_i        (line_valid && !item_logp),
    .line_queue_i  (line_queue),
    .line_worker_i (4'(item_worker)),
    .line_first_i  (line_first),
    .line_last_i   (line_last),
    .stall_cq_i    (held_slot),
    .published_i   (published),
    .arrived_i     (checking | waits),
    .stall_order_i (held_order),
    .stall_fence_i (held_fence),
    .read_beat_i   (read_beat),
    .write_beat_i  (sent),
    .prefix_i      (prefix),
    .error_i       (error_done),
    .error_queue_i (posted_queue),
    .read_i        (reg_read),
    .read_addr_i   (reg_read_addr),
    .read_hit_o    (counter_hit),
    .read_data_o   (counter_data)
  );

`ifndef SYNTHESIS
  always_ff @(posedge clk_i) begin
    if (rst_ni && !m_axi_rst_ni) $fatal(1, "R12 rl_runtime_top: m_axi_rst_ni is low and rst_ni is not");
  end
`endif
endmodule
