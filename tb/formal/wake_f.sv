// No wake-up is lost (R14), drains included: device_ctrl and interrupts, wired as rl_runtime_top does it, with one queue pair.
//
// Each input is free but for what is assumed below; behind each assumption stands where its driver is held to it. 'watched_i' is any
// completion. What is asserted of it holds for all.
module wake_f import desc_pkg::*; import core_pkg::*; (
  input logic        clk_i,
  // Writes of registers.
  input logic        start_i, stop_i, drain_i, arm_i, publish_i, table_write_i,
  input logic [1:0]  table_word_i,
  input logic [31:0] data_i,
  input logic [15:0] coalesce_count_i,
  input logic [31:0] coalesce_time_i,
  // Completions that were answered, which of them ask, and what a disable drops.
  input logic [1:0]  answered_i,
  input logic [1:0]  asks_i,
  input logic        drop_i,
  // The write port and the bus.
  input logic        ready_i, ack_i,
  input logic [31:0] watched_i
);
  logic run = 1'b0;
  always_ff @(posedge clk_i) run <= 1'b1;

  logic on, ending, draining, active, inner, idle, drained;
  logic valid, armed, masked, pending, waits, busy, moves, fault;
  logic [3:0]  queue;
  logic [63:0] address;
  logic [31:0] data, arm_read, visible_now, asked_to;
  logic [95:0] message;
  queue_config_t config_now;
  logic [31:0] first = '0, visible = '0;     // completions of this life: [first, visible)
  logic [2:0]  open = '0;                    // published, and neither answered nor dropped
  logic        flight = 1'b0;                // the port has taken a message that is not answered

  always_comb begin
    config_now                = '0;
    config_now.coalesce_count = coalesce_count_i;
    config_now.coalesce_time  = coalesce_time_i;
  end
  assign visible_now = visible + 32'(answered_i);
  assign asked_to    = asks_i[0] ? visible_now : visible_now - 32'd1;
  assign idle        = open == '0;
  assign drained     = draining & idle;

  interrupts #(.Queues(1)) u_interrupts (
    .clk_i, .rst_ni(run), .inner_rst_ni(inner), .bus_rst_ni(run), .start_i, .start_queue_i('0), .start_config_i(config_now), .on_i(on), .drained_i(drained),
    .write_queue_i('0), .write_data_i(data_i), .arm_i, .arm_visible_i(visible), .table_write_i, .table_word_i,
    .read_i(1'b0), .read_queue_i('0), .arm_o(arm_read), .message_o(message), .armed_o(armed), .masked_o(masked), .pending_o(pending),
    .answered_i, .answered_queue_i('0), .visible_i(visible_now), .asks_i(asks_i != '0), .asked_i(asked_to),
    .message_valid_o(valid), .message_queue_o(queue), .message_addr_o(address), .message_data_o(data), .message_ready_i(ready_i),
    .ack_i, .ack_id_i(MESSAGE_AXI_ID), .ack_error_i(1'b0), .waits_o(waits), .busy_o(busy), .moves_o(moves), .fault_o(fault)
  );

  device_ctrl #(.Queues(1)) u_device_ctrl (
    .clk_i, .rst_ni(run), .start_i, .stop_i, .drain_i, .done_i(idle & ~waits), .busy_i(~idle | busy), .die_i(1'b0), .idle_i(idle), .bus_idle_i(1'b1),
    .on_o(on), .ending_o(ending), .draining_o(draining), .active_o(active), .inner_rst_no(inner)
  );

  // ---------------------------------------------------------------- what is assumed
  logic write, wrote = 1'b0, begun = 1'b0;
  logic [31:0] watched_before = '0;
  assign write = start_i || stop_i || drain_i || arm_i || publish_i || table_write_i;
  always_ff @(posedge clk_i) begin
    wrote          <= write;
    begun          <= 1'b1;
    watched_before <= watched_i;
    if (start_i) begin
      first   <= data_i;
      visible <= data_i;
    end else visible <= visible_now;
    open   <= drop_i ? '0 : open + 3'(publish_i) - 3'(answered_i);
    flight <= run && ((flight && !ack_i) || (valid && ready_i));
  end
  always_comb begin
    assume (!begun || watched_i == watched_before);       // one completion throughout
    assume (!write || (run && inner && !wrote));                       // axil_slave: a write is answered in the cycle behind it
    assume ($countones({start_i, stop_i, drain_i, arm_i, publish_i, table_write_i}) <= 1);   // mmio_regs: one address
    assume (!start_i || !active);                                      // device_ctrl asserts it
    assume (!arm_i || on);                                             // interrupts asserts it
    // Near the wrap of 32 bits, so that the solver has little to try: interrupts_tb has all other indices, counts and times.
    assume (data_i[31:3] == '0 || data_i[31:3] == '1);
    assume (watched_i[31:3] == '0 || watched_i[31:3] == '1);
    assume (coalesce_count_i < 16'd4 && coalesce_time_i < 32'd8);
    assume (!drain_i || on);                                           // mmio_regs
    assume (!publish_i || (on && !draining && open < 3'd3));           // mmio_regs: a queue pair that drains takes no doorbell
    assume (answered_i != 2'd3 && 3'(answered_i) <= open);             // dispatcher asserts it
    assume (asks_i[0] <= (answered_i != '0) && asks_i[1] <= answered_i[1]);
    assume (!drop_i || (!on && answered_i == '0));                     // completion_ring: what is flushed
    assume (!ack_i || flight);                                         // AXI; interrupts asserts it
  end

  // ---------------------------------------------------------------- what is kept of the past
  // A message that is new in the port's register was chosen in the cycle before. It tells of what came before that.
  logic valid_before = 1'b0, ready_before = 1'b0, on_before = 1'b0, armed_before = 1'b0, masked_before = 1'b1, stopped_before = 1'b0, is_new;
  logic arms = 1'b0, told = 1'b0, fresh_arm = 1'b0;                    // the last ARM of this life, and a message behind it
  logic [31:0] arm_at = '0;
  logic shown = 1'b0, asked = 1'b0;                                    // the watched completion is visible, and asks
  logic due = 1'b0, fresh = 1'b0;                                      // ARM is at or below it, it asks, no message has told of it
  logic shows, asks, due_now;
  logic [31:0] from_visible, from_arm, from_new_arm;
  logic [3:0] credit = '0;                                             // armings without a message
  assign is_new       = valid && (!valid_before || ready_before);
  assign from_visible = watched_i - visible;
  assign from_arm     = watched_i - arm_at;
  assign from_new_arm = watched_i - data_i;
  assign shows        = from_visible < 32'(answered_i);
  assign asks         = shows && ((from_visible + 32'd1 == 32'(answered_i)) ? asks_i[0] : asks_i[1]);
  assign due_now      = arm_i ? (asked || asks) && !from_new_arm[31]
                              : asks && on && armed && !from_arm[31];

  always_ff @(posedge clk_i) begin
    valid_before   <= run && valid;
    ready_before   <= ready_i;
    on_before      <= run && on;
    masked_before  <= !run || masked;
    stopped_before <= stop_i;
    fresh_arm      <= arm_i;
    fresh          <= arm_i && due_now;
    armed_before   <= run && armed;
    if (start_i) begin
      {arms, told, shown, asked, due} <= '0;
      credit <= '0;
    end else begin
      if (arm_i) begin
        arms   <= 1'b1;
        arm_at <= data_i;
      end
      told   <= !arm_i && (told || (is_new && !fresh_arm));
      shown  <= shown || shows;
      asked  <= asked || asks;
      due    <= due_now || (due && !(is_new && !fresh) && !(arm_i && !due_now));
      credit <= credit + 4'(arm_i) - 4'(is_new);
    end
  end

  // ---------------------------------------------------------------- what is asserted
  logic ended;                               // by a drain, not by a disable
  assign ended = on_before && !on && !stopped_before;
`ifndef REACH
  always_comb if (run) begin
    // An ARM that was accepted stands until it fires.
    if (on && (armed_before || fresh_arm)) assert (armed || pending);
    // What fires is pending until its message is in the port's register.
    if (on && due) assert (pending || is_new);
    // A drain that ends has told of every completion at or above an ARM that was accepted, unless the vector is masked.
    if (ended && !masked_before && arms && shown && !from_arm[31]) begin
      assert (told || (is_new && !fresh_arm));
      assert (!armed_before);
    end
    // An arming brings one message at most.
    if (is_new) assert (credit != '0);
    // A message is under way only while SENDING and ACTIVE say so.
    if (valid || flight) assert (busy && active);
  end
`endif

  // What must be reachable, for the proof to say anything.
  logic [4:0] steps = '0;
  always_ff @(posedge clk_i) if (steps != '1) steps <= steps + 1'b1;
`ifdef REACH
  always_comb case (`REACH)
    0:       assert (steps != 5'(`DEPTH - 1));                                  // as far as the proof looks
    1:       assert (!(ended && told && arms && shown && !asked));              // a drain tells of what does not ask
    2:       assert (!(ended && masked_before && armed_before && shown));       // one ends masked
    3:       assert (!(is_new && credit == 4'd2));                              // fired twice, told once
    4:       assert (!(drained && arm_i && on));                                // ARM meets the end
    default: assert (!(is_new && stopped_before));                              // a disable that comes too late
  endcase
`endif
endmodule
