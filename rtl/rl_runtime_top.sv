// The device: wiring only. docs/architecture.md follows a descriptor through it.
module rl_runtime_top
  import desc_pkg::*;
  import core_pkg::*;
#(
  parameter int Workers         = 4,     // 1 to 16
  parameter int FetchDepth      = 128,   // descriptors buffered or being read; a power of two, 2 to 4096
  parameter int CompletionDepth = 128    // completions that wait for their tokens or for a slot; a power of two,
                                         // 2 per worker to 4096
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

  output logic [4:0]   m_axi_awid,
  output logic [63:0]  m_axi_awaddr,
  output logic [7:0]   m_axi_awlen,
  output logic [2:0]   m_axi_awsize,
  output logic [1:0]   m_axi_awburst,
  output logic [3:0]   m_axi_awcache,
  output logic [2:0]   m_axi_awprot,
  output logic         m_axi_awvalid,
  input  logic         m_axi_awready,
  output logic [511:0] m_axi_wdata,
  output logic [63:0]  m_axi_wstrb,
  output logic         m_axi_wlast,
  output logic         m_axi_wvalid,
  input  logic         m_axi_wready,
  input  logic [4:0]   m_axi_bid,
  input  logic [1:0]   m_axi_bresp,
  input  logic         m_axi_bvalid,
  output logic         m_axi_bready,
  output logic [4:0]   m_axi_arid,
  output logic [63:0]  m_axi_araddr,
  output logic [7:0]   m_axi_arlen,
  output logic [2:0]   m_axi_arsize,
  output logic [1:0]   m_axi_arburst,
  output logic [3:0]   m_axi_arcache,
  output logic [2:0]   m_axi_arprot,
  output logic         m_axi_arvalid,
  input  logic         m_axi_arready,
  input  logic [4:0]   m_axi_rid,
  input  logic [511:0] m_axi_rdata,
  input  logic [1:0]   m_axi_rresp,
  input  logic         m_axi_rlast,
  input  logic         m_axi_rvalid,
  output logic         m_axi_rready,

  output logic         irq_o
);
  if (Workers < 1 || Workers > MAX_WORKERS) begin : gen_bad_workers
    localparam bit WorkersMustBe1To16 = {-1{1'b1}};   // ends the elaboration
  end

  if (FetchDepth < 2 || FetchDepth > 4096 || (FetchDepth & (FetchDepth - 1)) != 0) begin : gen_bad_fetch_depth
    localparam bit FetchDepthMustBeAPowerOfTwoFrom2To4096 = {-1{1'b1}};   // ends the elaboration
  end

  if (CompletionDepth < 2 * Workers || CompletionDepth > 4096 || (CompletionDepth & (CompletionDepth - 1)) != 0) begin : gen_bad_completion_depth
    localparam bit CompletionDepthMustBeAPowerOfTwoFrom2PerWorkerTo4096 = {-1{1'b1}};   // ends the elaboration
  end

  // Register accesses.
  logic        reg_write, reg_write_partial, reg_write_error, reg_read, reg_read_error, counter_hit;
  logic [17:0] reg_write_addr, reg_read_addr;
  logic [31:0] reg_write_data, reg_read_data, counter_data;

  // Configuration and life.
  logic        enabling, enable, clear, start, active;
  logic [63:0] sq_base, cq_base, token_base, token_size, kv_size;
  logic [16:0] sq_size, cq_size;
  logic [31:0] sq_start, cq_start, checkpoint_default, length_limit, reward_threshold, sq_key;
  logic [15:0] wait_states, eos_threshold;
  logic [Workers-1:0] in_use;

  // Submission side.
  logic        doorbell, doorbell_ok, request, request_ready, received, reads_idle, read_fault;
  logic [31:0] index, sq_head, sq_tail, slot_index;
  logic [63:0] request_addr;
  logic [4:0]  request_slots;
  logic        taken, published, read_beat, slot_valid, slot_fault, work_valid, work_ready;
  logic [511:0] slot_data;
  logic        checked_valid, checked_fence, checked_prefill, checked_stop, checking_idle, queue_idle, check_idle, stop, stopped, fence, prefill;
  work_t       checked_work, work;
  echo_t       checked_echo, echo;
  logic [31:0] stop_rollout;
  logic [ENGINE_BITS-1:0] checked_prepared, prepared;

  // Workers.
  logic               probe, prefix, dispatch_idle, held_order, held_fence;
  logic [31:0]        probe_rollout;
  logic [Workers-1:0] holds, joins, wants, free, assign_work;
  logic [Workers-1:0] result_ready, token, item_finish, ended, running, waiting;
  logic [Workers*32-1:0] token_data, position, digest;
  logic [Workers*4-1:0]  how;

  // Engine.
  logic                  load, engine_idle;
  logic [4:0]            load_place;
  logic [Workers-1:0]    engine_start, engine_place, engine_ready, step, step_ready, token_ready, eos, token_take;
  logic [Workers*32-1:0] engine_token;

  // Completion side.
  logic [Workers-1:0] item_valid, item_has_line, item_has_done, item_take, delivered;
  logic         item_taken;
  logic [3:0]   item_worker, assign_worker;
  logic [31:0]  item_digest;
  logic [3:0]   item_last, item_how, line_first, line_last, beat_first, beat_last;
  logic [63:0]  line_addr, beat_addr;
  logic [511:0] line_data, beat_data;
  logic         line_waits, line_valid, done_valid;
  logic [Workers-1:0] line_ready, done_ready;
  done_t        done;
  logic [LINE_COUNT_BITS-1:0] done_after;
  logic        release_cq, release_ok, completion_valid, completion_urgent, completion_ready;
  logic        ack, ack_error, asked, error_done, stall_cq, line_fault, completion_fault, sent, writes_idle;
  logic [4:0]  ack_id;
  logic [31:0] cq_head, cq_tail;
  logic [1:0]  answered, visible;

  axil_slave u_axil_slave (
    .clk_i, .rst_ni,
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

  mmio_regs #(.Workers(Workers)) u_mmio_regs (
    .clk_i, .rst_ni,
    .write_i              (reg_write),
    .write_addr_i         (reg_write_addr),
    .write_data_i         (reg_write_data),
    .write_partial_i      (reg_write_partial),
    .write_error_o        (reg_write_error),
    .read_i               (reg_read),
    .read_addr_i          (reg_read_addr),
    .read_data_o          (reg_read_data),
    .read_error_o         (reg_read_error),
    .counter_hit_i        (counter_hit),
    .counter_data_i       (counter_data),
    .enabling_o           (enabling),
    .enable_o             (enable),
    .sq_base_o            (sq_base),
    .cq_base_o            (cq_base),
    .sq_size_o            (sq_size),
    .cq_size_o            (cq_size),
    .token_base_o         (token_base),
    .token_size_o         (token_size),
    .kv_size_o            (kv_size),
    .sq_start_o           (sq_start),
    .cq_start_o           (cq_start),
    .checkpoint_default_o (checkpoint_default),
    .wait_states_o        (wait_states),
    .length_limit_o       (length_limit),
    .eos_threshold_o      (eos_threshold),
    .reward_threshold_o   (reward_threshold),
    .sq_key_o             (sq_key),
    .workers_o            (in_use),
    .doorbell_o           (doorbell),
    .doorbell_ok_i        (doorbell_ok),
    .release_o            (release_cq),
    .release_ok_i         (release_ok),
    .index_o              (index),
    .active_i             (active),
    .check_idle_i         (check_idle),
    .dispatch_idle_i      (dispatch_idle),
    .sq_head_i            (sq_head),
    .sq_tail_i            (sq_tail),
    .cq_head_i            (cq_head),
    .cq_tail_i            (cq_tail),
    .free_i               (free),
    .wait_i               (waiting),
    .run_i                (running),
    .ready_i              (result_ready),
    .read_fault_i         (read_fault),
    .line_fault_i         (line_fault),
    .completion_fault_i   (completion_fault),
    .asked_i              (asked),
    .irq_o
  );

  device_ctrl u_device_ctrl (
    .clk_i, .rst_ni,
    .enabling_i    (enabling),
    .enable_i      (enable),
    .reads_idle_i  (reads_idle),
    .writes_idle_i (writes_idle && engine_idle),
    .clear_o       (clear),
    .start_o       (start),
    .active_o      (active)
  );

  desc_ring #(.FetchDepth(FetchDepth)) u_desc_ring (
    .clk_i, .rst_ni,
    .bus_rst_ni      (m_axi_rst_ni),
    .clear_i         (clear),
    .start_i         (start),
    .start_index_i   (sq_start),
    .base_i          (sq_base),
    .size_i          (sq_size),
    .doorbell_i      (doorbell),
    .doorbell_tail_i (index),
    .doorbell_ok_o   (doorbell_ok),
    .request_o       (request),
    .request_addr_o  (request_addr),
    .request_slots_o (request_slots),
    .request_ready_i (request_ready),
    .received_i      (received),
    .taken_i         (taken),
    .published_o     (published),
    .head_o          (sq_head),
    .tail_o          (sq_tail)
  );

  desc_fetch #(.FetchDepth(FetchDepth)) u_desc_fetch (
    .clk_i, .rst_ni,
    .bus_rst_ni      (m_axi_rst_ni),
    .clear_i         (clear),
    .start_i         (start),
    .start_index_i   (sq_start),
    .request_i       (request),
    .request_addr_i  (request_addr),
    .request_slots_i (request_slots),
    .request_ready_o (request_ready),
    .received_o      (received),
    .m_axi_arid, .m_axi_araddr, .m_axi_arlen, .m_axi_arsize, .m_axi_arburst, .m_axi_arcache, .m_axi_arprot,
    .m_axi_arvalid, .m_axi_arready,
    .m_axi_rid, .m_axi_rdata, .m_axi_rresp, .m_axi_rlast, .m_axi_rvalid, .m_axi_rready,
    .slot_valid_o    (slot_valid),
    .slot_data_o     (slot_data),
    .slot_fault_o    (slot_fault),
    .slot_index_o    (slot_index),
    .beat_o          (read_beat),
    .fault_o         (read_fault),
    .idle_o          (reads_idle)
  );

  desc_check u_desc_check (
    .clk_i, .rst_ni,
    .clear_i              (clear),
    .sq_key_i             (sq_key),
    .token_base_i         (token_base),
    .token_size_i         (token_size),
    .kv_size_i            (kv_size),
    .length_limit_i       (length_limit),
    .checkpoint_default_i (checkpoint_default),
    .slot_valid_i         (slot_valid),
    .slot_data_i          (slot_data),
    .slot_fault_i         (slot_fault),
    .slot_index_i         (slot_index),
    .work_valid_o         (checked_valid),
    .work_o               (checked_work),
    .echo_o               (checked_echo),
    .fence_o              (checked_fence),
    .prefill_o            (checked_prefill),
    .stop_o               (checked_stop),
    .idle_o               (checking_idle)
  );

  work_queue #(.Depth(FetchDepth)) u_work_queue (
    .clk_i, .rst_ni,
    .clear_i        (clear),
    .push_i         (checked_valid),
    .work_i         (checked_work),
    .echo_i         (checked_echo),
    .prepared_i     (checked_prepared),
    .fence_i        (checked_fence),
    .prefill_i      (checked_prefill),
    .stop_i         (checked_stop),
    .valid_o        (work_valid),
    .work_o         (work),
    .echo_o         (echo),
    .prepared_o     (prepared),
    .fence_o        (fence),
    .prefill_o      (prefill),
    .stopped_o      (stopped),
    .ready_i        (work_ready),
    .stop_o         (stop),
    .stop_rollout_o (stop_rollout),
    .idle_o         (queue_idle)
  );
  assign check_idle = checking_idle && queue_idle;
  assign taken      = work_valid && work_ready;

  dispatcher #(.Workers(Workers)) u_dispatcher (
    .clk_i, .rst_ni,
    .clear_i         (clear),
    .in_use_i        (in_use),
    .work_valid_i    (work_valid),
    .fence_i         (fence),
    .prefill_i       (prefill),
    .rollout_i       (work.rollout_id),
    .work_ready_o    (work_ready),
    .probe_o         (probe),
    .probe_rollout_o (probe_rollout),
    .holds_i         (holds),
    .joins_i         (joins),
    .wants_i         (wants),
    .free_i          (free),
    .assign_o        (assign_work),
    .assign_worker_o (assign_worker),
    .visible_i       (answered),
    .prefix_o        (prefix),
    .idle_o          (dispatch_idle),
    .held_order_o    (held_order),
    .held_fence_o    (held_fence)
  );

  engine_hash #(.Workers(Workers)) u_engine (
    .clk_i, .rst_ni,
    .clear_i         (clear),
    .eos_threshold_i (eos_threshold),
    .prepare_i       (slot_valid),
    .rollout_i       (slot_data[HW_DESC_ROLLOUT_ID_LSB +: 32]),
    .seed_i          (slot_data[HW_DESC_SEED_LSB +: 32]),
    .seq_len_i       (slot_data[HW_DESC_SEQ_LEN_LSB +: 32]),
    .prepared_o      (checked_prepared),
    .load_i          (load),
    .load_place_i    (load_place),
    .load_prepared_i (prepared),
    .start_i         (engine_start),
    .start_place_i   (engine_place),
    .start_ready_o   (engine_ready),
    .step_i          (step),
    .step_ready_o    (step_ready),
    .token_valid_o   (token_ready),
    .token_o         (engine_token),
    .eos_o           (eos),
    .token_take_i    (token_take),
    .idle_o          (engine_idle)
  );

  rollout_worker_fsm #(.Workers(Workers)) u_rollout_worker_fsm (
    .clk_i, .rst_ni,
    .clear_i            (clear),
    .wait_states_i      (wait_states),
    .reward_threshold_i (reward_threshold),
    .assign_i           (assign_work),
    .assign_worker_i    (assign_worker),
    .work_i             (work),
    .stopped_i          (stopped),
    .stop_i             (stop),
    .stop_rollout_i     (stop_rollout),
    .probe_i            (probe),
    .probe_rollout_i    (probe_rollout),
    .holds_o            (holds),
    .joins_o            (joins),
    .wants_o            (wants),
    .free_o             (free),
    .load_o             (load),
    .load_place_o       (load_place),
    .start_o            (engine_start),
    .start_place_o      (engine_place),
    .start_ready_i      (engine_ready),
    .step_o             (step),
    .step_ready_i       (step_ready),
    .token_valid_i      (token_ready),
    .engine_token_i     (engine_token),
    .eos_i              (eos),
    .token_take_o       (token_take),
    .ready_i            (result_ready),
    .token_o            (token),
    .token_data_o       (token_data),
    .position_o         (position),
    .finish_o           (item_finish),
    .done_o             (ended),
    .digest_o           (digest),
    .how_o              (how),
    .delivered_i        (delivered),
    .run_o              (running),
    .wait_o             (waiting)
  );

  // The completion side stands against its flow: Icarus 11 runs, with a process always_comb, every one that stands before
  // it. Two that give defaults to later ones would wake each other for ever.
  axi_writer #(.Workers(Workers)) u_axi_writer (
    .clk_i,
    .rst_ni              (m_axi_rst_ni),
    .line_waits_i        (line_waits),
    .line_valid_i        (line_valid),
    .line_worker_i       (item_worker),
    .line_addr_i         (line_addr),
    .line_first_i        (line_first),
    .line_last_i         (line_last),
    .line_data_i         (line_data),
    .line_ready_o        (line_ready),
    .completion_valid_i  (completion_valid),
    .completion_urgent_i (completion_urgent),
    .completion_addr_i   (beat_addr),
    .completion_first_i  (beat_first),
    .completion_last_i   (beat_last),
    .completion_data_i   (beat_data),
    .completion_ready_o  (completion_ready),
    .ack_o               (ack),
    .ack_id_o            (ack_id),
    .ack_error_o         (ack_error),
    .m_axi_awid, .m_axi_awaddr, .m_axi_awlen, .m_axi_awsize, .m_axi_awburst, .m_axi_awcache, .m_axi_awprot,
    .m_axi_awvalid, .m_axi_awready,
    .m_axi_wdata, .m_axi_wstrb, .m_axi_wlast, .m_axi_wvalid, .m_axi_wready,
    .m_axi_bid, .m_axi_bresp, .m_axi_bvalid, .m_axi_bready,
    .sent_o              (sent),
    .idle_o              (writes_idle)
  );

  completion_ring #(.Workers(Workers), .Depth(CompletionDepth)) u_completion_ring (
    .clk_i, .rst_ni,
    .bus_rst_ni     (m_axi_rst_ni),
    .clear_i        (clear),
    .start_i        (start),
    .start_index_i  (cq_start),
    .base_i         (cq_base),
    .size_i         (cq_size),
    .release_i      (release_cq),
    .release_head_i (index),
    .release_ok_o   (release_ok),
    .done_valid_i   (done_valid),
    .done_i         (done),
    .done_after_i   (done_after),
    .done_ready_o   (done_ready),
    .sq_head_i      (sq_head),
    .beat_valid_o   (completion_valid),
    .beat_urgent_o  (completion_urgent),
    .beat_addr_o    (beat_addr),
    .beat_first_o   (beat_first),
    .beat_last_o    (beat_last),
    .beat_data_o    (beat_data),
    .beat_ready_i   (completion_ready),
    .ack_i          (ack),
    .ack_id_i       (ack_id),
    .ack_error_i    (ack_error),
    .head_o         (cq_head),
    .tail_o         (cq_tail),
    .answered_o     (answered),
    .visible_o      (visible),
    .asked_o        (asked),
    .error_done_o   (error_done),
    .stall_o        (stall_cq),
    .line_fault_o   (line_fault),
    .write_fault_o  (completion_fault)
  );

  work_context u_work_context (
    .clk_i, .rst_ni,
    .clear_i      (clear),
    .assign_i     (taken),
    .assign_worker_i (assign_worker),
    .echo_i       (echo),
    .stopped_i    (stopped),
    .taken_i      (item_taken),
    .worker_i     (item_worker),
    .last_i       (item_last),
    .digest_i     (item_digest),
    .how_i        (item_how),
    .delivered_i  (done_valid),
    .line_addr_o  (line_addr),
    .line_first_o (line_first),
    .line_last_o  (line_last),
    .done_o       (done)
  );

  result_buffer #(.Workers(Workers)) u_result_buffer (
    .clk_i, .rst_ni,
    .clear_i       (clear),
    .ready_o       (result_ready),
    .token_i       (token),
    .token_data_i  (token_data),
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
    .digest_o      (item_digest),
    .how_o         (item_how)
  );

  completion_arbiter #(.Workers(Workers)) u_completion_arbiter (
    .clk_i, .rst_ni,
    .clear_i      (clear),
    .valid_i      (item_valid),
    .has_line_i   (item_has_line),
    .has_done_i   (item_has_done),
    .take_o       (item_take),
    .taken_o      (item_taken),
    .worker_o     (item_worker),
    .delivered_o  (delivered),
    .line_waits_o (line_waits),
    .line_valid_o (line_valid),
    .line_ready_i (line_ready),
    .done_valid_o (done_valid),
    .done_after_o (done_after),
    .done_ready_i (done_ready)
  );

  perf_counters #(.Workers(Workers)) u_perf_counters (
    .clk_i, .rst_ni,
    .start_i       (start),
    .active_i      (active),
    .in_use_i      (in_use),
    .free_i        (free),
    .token_i       (token),
    .wait_i        (waiting),
    .run_i         (running),
    .ready_i       (result_ready),
    .received_i    (received),
    .visible_i     (visible),
    .stall_cq_i    (stall_cq),
    .published_i   (published),
    .check_idle_i  (check_idle),
    .stall_order_i (held_order),
    .stall_fence_i (held_fence),
    .read_beat_i   (read_beat),
    .write_beat_i  (sent),
    .prefix_i      (prefix),
    .error_i       (error_done),
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
