// The interrupts (R14): which queue pairs are armed, what has fired, the table of messages, and the message that goes out.
//
// A queue pair fires in the cycle in which the write response of a completion comes, or in which ARM is written; by
// COALESCE_TIME in that of its deadline, which is looked at for one queue pair per cycle; at the end of a drain by any
// completion at or above ARM, as nothing comes behind it. What has fired is pending; one that
// is pending and not masked goes into the register of the write port in the next cycle, and is the port's in the one behind
// it. What stands there is promised to the bus: neither a mask nor a disable takes it back, and STATE.ACTIVE waits for its
// response. A vector has one message in flight at most, so whoever answers none holds up that vector alone.
//
// All of it stands behind what happens seldom: a completion, a write of ARM, a deadline that runs, something pending.
module interrupts
  import desc_pkg::*;
  import core_pkg::*;
#(
  parameter int Queues = 1
) (
  /* verilator lint_off UNUSEDSIGNAL */  // numbers of queue pairs have 4 bits, whatever was built
  input  logic        clk_i,
  input  logic        rst_ni,             // of the registers: the table
  input  logic        inner_rst_ni,       // of everything else: the bus owes nothing any more
  input  logic        bus_rst_ni,         // of what was promised to the bus, which outlives a reset of the device
  input  logic        start_i,            // a queue pair starts, with this configuration
  input  logic [3:0]  start_queue_i,
  input  queue_config_t start_config_i,
  input  logic [Queues-1:0] on_i,         // R12: nothing of the others is armed or pending
  input  logic [Queues-1:0] drained_i,    // drains, and everything published has completed: no completion comes any more

  // Writes of registers, of one queue pair.
  input  logic [3:0]  write_queue_i,
  input  logic [31:0] write_data_i,
  input  logic        arm_i,              // ARM
  input  logic [31:0] arm_visible_i,      // the first of its completions that is not answered
  input  logic        table_write_i,      // a word of its entry in the table
  input  logic [1:0]  table_word_i,

  // Reads; 0 without one.
  input  logic        read_i,
  input  logic [3:0]  read_queue_i,
  output logic [31:0] arm_o,
  output logic [95:0] message_o,          // data, address
  output logic [Queues-1:0] armed_o,
  output logic [Queues-1:0] masked_o,
  output logic [Queues-1:0] pending_o,

  // Completions whose write was answered in this cycle, of one queue pair.
  input  logic [1:0]  answered_i,
  input  logic [3:0]  answered_queue_i,
  input  logic [31:0] visible_i,          // the first that is not answered
  input  logic        asks_i,             // one of them asks, …
  input  logic [31:0] asked_i,            // … the last such one is the one before this

  // To the write port.
  output logic        message_valid_o,
  output logic [3:0]  message_queue_o,
  output logic [63:0] message_addr_o,
  output logic [31:0] message_data_o,
  input  logic        message_ready_i,    // early
  input  logic        ack_i,
  input  logic [5:0]  ack_id_i,
  input  logic        ack_error_i,

  output logic [Queues-1:0] waits_o,      // pending, not masked, or about to fire, or armed in this cycle: a drain waits for it
  output logic [Queues-1:0] busy_o,       // a message was promised to the bus: MESSAGE_CONTROL.SENDING
  output logic              moves_o,      // time runs, or something is pending or promised
  output logic [Queues-1:0] fault_o       // a message was answered with an error
  /* verilator lint_on UNUSEDSIGNAL */
);
  if (Queues < 1 || Queues > MAX_QUEUES) begin : gen_bad_queues
    localparam bit QueuesMustBe1To16 = {-1{1'b1}};   // ends the elaboration
  end

  localparam int QueueBits = (Queues == 1) ? 1 : $clog2(Queues);
  localparam int Slots     = 1 << QueueBits;
  localparam int TimeBits  = 33;          // deadlines have a sign

  logic [QueueBits-1:0] start_pair, write_pair, read_pair, answered_pair, ack_pair;
  assign start_pair    = (Queues == 1) ? '0 : start_queue_i[QueueBits-1:0];
  assign write_pair    = (Queues == 1) ? '0 : write_queue_i[QueueBits-1:0];
  assign read_pair     = (Queues == 1) ? '0 : read_queue_i[QueueBits-1:0];
  assign answered_pair = (Queues == 1) ? '0 : answered_queue_i[QueueBits-1:0];

  // ---------------------------------------------------------------- state, by queue pair
  // Memories are not cleared: a bit each says that there is something.
  logic [31:0] arm_mem   [0:Slots-1];     // what ARM was written with last
  logic [47:0] limit_mem [0:Slots-1];     // COALESCE_TIME, COALESCE_COUNT
  logic [31:0] asked_mem [0:Slots-1];     // behind the newest completion that asked
  logic [15:0] seen_mem  [0:Slots-1];     // completions since the start, no more than COALESCE_COUNT can name
  logic [TimeBits-1:0] arm_deadline_mem  [0:Slots-1];   // begun by ARM, …
  logic [TimeBits-1:0] seen_deadline_mem [0:Slots-1];   // … or by a completion
  logic [Slots-1:0] written_q;            // arm_mem
  logic [Slots-1:0] some_q;               // seen_mem
  logic [Slots-1:0] asked_q;              // asked_mem, and it is less than 2^31 behind
  logic [Slots-1:0] by_arm_q;             // which deadline
  logic [Slots-1:0] armed_q, pending_q, running_q, sent_q;
  logic [Slots-1:0] above_q;              // armed, and a completion at or above ARM is visible
  logic [Slots-1:0] on;
  assign on = Slots'(on_i);

  // ---------------------------------------------------------------- a write response, a write of ARM
  // The newest completion lies 'ahead' of ARM; negative: none at or above ARM is visible. Those before the start of the
  // queue pair are none. What is visible when ARM is written counts from then on: nobody knows since when the first of it was.
  logic        same, looks, reaches, sees, begins, arm_reaches, arm_sees, arm_begins, keeps_asked;
  /* verilator lint_off UNUSEDSIGNAL */  // of some only the sign
  logic [31:0] arm_at, ahead, ask_ahead, asked_ago, arm_visible, arm_asked_at, arm_ahead, arm_ask_ahead;
  /* verilator lint_on UNUSEDSIGNAL */
  logic [31:0] time_limit, arm_time_limit;
  logic [15:0] count_limit, arm_count_limit, seen, arm_seen;
  logic [16:0] seen_sum;

  // Deadlines: a clock of their own, which stands while none runs, and a look at one queue pair per cycle.
  logic [TimeBits-1:0]  now_q, left;
  logic [QueueBits-1:0] scan_q;
  logic                 expires;
  // What follows.
  logic [Slots-1:0]     arm_one, fires_now, fires, sights, leaves, starts_time, ends;

  // One process, behind one test.
  always_comb begin
    same = 1'b0;
    looks = 1'b0;
    reaches = 1'b0;
    sees = 1'b0;
    begins = 1'b0;
    keeps_asked = 1'b0;
    arm_reaches = 1'b0;
    arm_sees = 1'b0;
    arm_begins = 1'b0;
    arm_at = '0;
    ahead = '0;
    ask_ahead = '0;
    asked_ago = '0;
    arm_visible = '0;
    arm_asked_at = '0;
    arm_ahead = '0;
    arm_ask_ahead = '0;
    time_limit = '0;
    count_limit = '0;
    arm_time_limit = '0;
    arm_count_limit = '0;
    seen_sum = '0;
    seen = '0;
    arm_seen = '0;
    left = '0;
    expires = 1'b0;
    arm_one = '0;
    fires_now = '0;
    sights = '0;
    leaves = '0;
    starts_time = '0;
    if (arm_i || answered_i != '0 || running_q != '0) begin
      if (answered_i != '0) begin
        same     = arm_i && write_pair == answered_pair;       // then it is ARM's
        looks    = !same && armed_q[answered_pair] && on[answered_pair];
        seen_sum = {15'd0, answered_i};
        if (some_q[answered_pair]) seen_sum = seen_sum + {1'b0, seen_mem[answered_pair]};
        seen     = seen_sum[16] ? 16'hFFFF : seen_sum[15:0];
        // The newest that asked is forgotten before it could be taken for one that is still to come.
        asked_ago   = visible_i - asked_mem[answered_pair];
        keeps_asked = asks_i || (asked_q[answered_pair] && !asked_ago[31]);
        if (looks) begin
          {time_limit, count_limit} = limit_mem[answered_pair];
          arm_at    = arm_mem[answered_pair];
          ahead     = visible_i - 32'd1 - arm_at;
          ask_ahead = asked_i - 32'd1 - arm_at;
          if (!ahead[31]) begin
            reaches = (asks_i && !ask_ahead[31])
                   || (count_limit != '0 && ahead >= {16'd0, count_limit - 16'd1} && seen >= count_limit);
            sees    = !reaches;
            begins  = sees && time_limit != '0 && !running_q[answered_pair];
          end else leaves = Slots'(16'd1 << answered_pair);    // 2^31 behind the newest nothing is above ARM any more
        end
      end
      if (arm_i) begin
        {arm_time_limit, arm_count_limit} = limit_mem[write_pair];
        arm_visible   = same ? visible_i : arm_visible_i;
        if (same)                    arm_seen = seen;
        else if (some_q[write_pair]) arm_seen = seen_mem[write_pair];
        arm_asked_at  = (same && asks_i) ? asked_i : asked_mem[write_pair];
        arm_ahead     = arm_visible - 32'd1 - write_data_i;
        arm_ask_ahead = arm_asked_at - 32'd1 - write_data_i;
        if (!arm_ahead[31] && arm_seen != '0) begin
          arm_reaches = ((asked_q[write_pair] || (same && asks_i)) && !arm_ask_ahead[31])
                     || (arm_count_limit != '0 && arm_ahead >= {16'd0, arm_count_limit - 16'd1} && arm_seen >= arm_count_limit);
          arm_sees    = !arm_reaches;
          arm_begins  = arm_sees && arm_time_limit != '0;
        end
        arm_one = Slots'(16'd1 << write_pair);
      end
      if (running_q != '0) begin
        left    = now_q - (by_arm_q[scan_q] ? arm_deadline_mem[scan_q] : seen_deadline_mem[scan_q]);
        expires = running_q[scan_q] && !left[TimeBits-1] && on[scan_q]
               && !(arm_i && write_pair == scan_q);           // ARM has taken its place
      end
      fires_now   = (reaches ? Slots'(16'd1 << answered_pair) : '0) | (arm_reaches ? arm_one : '0)
                  | (expires ? Slots'(16'd1 << scan_q) : '0);
      sights      = (sees ? Slots'(16'd1 << answered_pair) : '0) | (arm_sees ? arm_one : '0);
      starts_time = (begins ? Slots'(16'd1 << answered_pair) : '0) | (arm_begins ? arm_one : '0);
    end
  end

  // ---------------------------------------------------------------- what fires
  // A new arming is looked at in the next cycle.
  assign ends  = (drained_i != '0) ? Slots'(drained_i) & above_q & ~arm_one : '0;
  assign fires = fires_now | ends;

  logic [Slots-1:0] takes_one, acks_one;
  logic             moves;
  logic [QueueBits-1:0] offer_pair_q;
  logic                 offer_q;

  always_ff @(posedge clk_i) begin
    if (answered_i != '0) begin
      seen_mem[answered_pair] <= seen;
      if (asks_i) asked_mem[answered_pair] <= asked_i;
      if (begins) seen_deadline_mem[answered_pair] <= now_q + {1'b0, time_limit};
    end
    if (arm_i) begin
      arm_mem[write_pair] <= write_data_i;
      if (arm_begins) arm_deadline_mem[write_pair] <= now_q + {1'b0, arm_time_limit};
    end
    if (start_i) limit_mem[start_pair] <= {start_config_i.coalesce_time, start_config_i.coalesce_count};
  end

  always_ff @(posedge clk_i) begin
    if (!inner_rst_ni) begin
      written_q <= '0;
      some_q    <= '0;
      asked_q   <= '0;
      armed_q   <= '0;
      above_q   <= '0;
      running_q <= '0;
      pending_q <= '0;
      now_q     <= '0;
      scan_q    <= '0;
    end else begin
      if (answered_i != '0) begin
        some_q[answered_pair]  <= 1'b1;
        asked_q[answered_pair] <= keeps_asked;
        if (begins) by_arm_q[answered_pair] <= 1'b0;
      end
      if (start_i) begin
        some_q[start_pair]  <= 1'b0;
        asked_q[start_pair] <= 1'b0;
      end
      if (arm_i) begin
        written_q[write_pair] <= 1'b1;
        if (arm_begins) by_arm_q[write_pair] <= 1'b1;
      end
      // Of all that nothing becomes anything but by a write of ARM.
      if (arm_i || (armed_q | pending_q | sent_q) != '0) begin
        if (running_q != '0 || begins || arm_begins) begin
          now_q  <= now_q + 1'b1;
          scan_q <= (scan_q == QueueBits'(Queues - 1)) ? '0 : scan_q + 1'b1;
        end
        armed_q   <= (armed_q | arm_one) & ~fires & on;
        above_q   <= ((above_q & ~arm_one & ~leaves) | sights) & ~fires & on;
        running_q <= ((running_q & ~arm_one) | starts_time) & ~fires & on;
        pending_q <= ((pending_q & ~takes_one) | fires) & on;
      end
    end
  end

  // A message that the port has stays sent while the rest is reset, until it is answered. One that stands in front of the port is withdrawn.
  logic [Slots-1:0] withdrawn;
  assign withdrawn = (!inner_rst_ni && offer_q && !message_ready_i) ? Slots'(16'd1 << offer_pair_q) : '0;

  always_ff @(posedge clk_i) begin
    if (!bus_rst_ni)                sent_q <= '0;
    else if (moves || sent_q != '0) sent_q <= (inner_rst_ni ? sent_q | takes_one : sent_q & ~withdrawn) & ~acks_one;
  end

  // ---------------------------------------------------------------- the table
  logic [31:0] addr_lo_mem [0:Slots-1];
  logic [31:0] addr_hi_mem [0:Slots-1];
  logic [31:0] data_mem    [0:Slots-1];
  logic [Slots-1:0] lo_known_q, hi_known_q, data_known_q;   // written since the reset
  logic [Slots-1:0] mask_q;

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      lo_known_q   <= '0;
      hi_known_q   <= '0;
      data_known_q <= '0;
      mask_q       <= '1;
    end else if (table_write_i) begin
      case (table_word_i)
        2'd0:    lo_known_q[write_pair]   <= 1'b1;
        2'd1:    hi_known_q[write_pair]   <= 1'b1;
        2'd2:    data_known_q[write_pair] <= 1'b1;
        default: mask_q[write_pair]       <= write_data_i[MESSAGE_CONTROL_MASK_BIT];
      endcase
    end
  end

  always_ff @(posedge clk_i) begin
    if (table_write_i) begin
      case (table_word_i)
        2'd0:    addr_lo_mem[write_pair] <= write_data_i;
        2'd1:    addr_hi_mem[write_pair] <= write_data_i;
        2'd2:    data_mem[write_pair]    <= write_data_i;
        default: ;
      endcase
    end
  end

  // ---------------------------------------------------------------- the message that goes out
  // 'offer' is the port's: it was promised.
  logic [Queues-1:0]    sendable, grant;
  /* verilator lint_off UNUSEDSIGNAL */  // as wide as for the most queue pairs
  logic [3:0]           number;
  /* verilator lint_on UNUSEDSIGNAL */
  logic [QueueBits-1:0] take_pair;
  logic [95:0]          offer_message_q;

  always_comb begin
    sendable = '0;
    if (pending_q != '0) sendable = Queues'(pending_q & ~mask_q & ~sent_q) & on_i;
  end
  assign moves    = sendable != '0 && (!offer_q || message_ready_i);

  round_robin #(.N(Queues)) u_round_robin (
    .clk_i,
    .rst_ni    (inner_rst_ni),
    .request_i (sendable),
    .grant_o   (grant),
    .number_o  (number),
    .accept_i  (moves)
  );
  assign take_pair = number[QueueBits-1:0];
  assign takes_one = moves ? Slots'(grant) : '0;

  always_ff @(posedge clk_i) begin
    if (!inner_rst_ni)                     offer_q <= 1'b0;
    else if (offer_q || sendable != '0)    offer_q <= moves || !message_ready_i;
  end

  always_ff @(posedge clk_i) begin
    if (moves) begin
      offer_pair_q    <= take_pair;
      offer_message_q <= {data_known_q[take_pair] ? data_mem[take_pair] : 32'd0, hi_known_q[take_pair] ? addr_hi_mem[take_pair] : 32'd0,
                          lo_known_q[take_pair] ? addr_lo_mem[take_pair] : 32'd0};
    end
  end

  assign message_valid_o = offer_q;
  assign message_queue_o = (Queues == 1) ? '0 : 4'(offer_pair_q);
  assign {message_data_o, message_addr_o} = offer_message_q;

  // ---------------------------------------------------------------- its response
  logic [5:0] ack_number;
  logic       message_ack;
  assign ack_number  = ack_id_i - MESSAGE_AXI_ID;
  assign ack_pair    = (Queues == 1) ? '0 : ack_number[QueueBits-1:0];
  assign message_ack = ack_i && ack_id_i >= MESSAGE_AXI_ID && ack_id_i < EVENT_AXI_ID;
  assign acks_one    = message_ack ? Slots'(16'd1 << ack_pair) : '0;
  assign fault_o     = (message_ack && ack_error_i && inner_rst_ni) ? Queues'(acks_one) : '0;   // one that comes after a reset is no fault

  // ---------------------------------------------------------------- for the registers and the life of the queue pairs
  assign arm_o     = (read_i && written_q[read_pair]) ? arm_mem[read_pair] : '0;
  assign message_o = read_i ? {data_known_q[read_pair] ? data_mem[read_pair] : 32'd0,
                               hi_known_q[read_pair] ? addr_hi_mem[read_pair] : 32'd0,
                               lo_known_q[read_pair] ? addr_lo_mem[read_pair] : 32'd0} : '0;
  assign armed_o   = armed_q[Queues-1:0] & on_i;
  assign masked_o  = mask_q[Queues-1:0];
  assign pending_o = pending_q[Queues-1:0] & on_i;
  assign waits_o   = (pending_q[Queues-1:0] & ~mask_q[Queues-1:0]) | ends[Queues-1:0] | arm_one[Queues-1:0];
  assign busy_o    = sent_q[Queues-1:0];
  assign moves_o   = (running_q | pending_q | sent_q) != '0 || offer_q;

`ifndef SYNTHESIS
  always_ff @(posedge clk_i) begin
    if (bus_rst_ni && message_ack && (ack_number >= 6'(Queues) || !sent_q[ack_pair]))
      $fatal(1, "R14 interrupts: write response for a message that was not sent, ID %0d", ack_id_i);
    if (inner_rst_ni && (arm_i || start_i || running_q != '0)) begin
      if (arm_i && !on[write_pair]) $fatal(1, "R12 interrupts: queue pair %0d is armed, and not enabled", write_pair);
      if (start_i && (armed_q[start_pair] || pending_q[start_pair] || sent_q[start_pair]))
        $fatal(1, "R12 interrupts: queue pair %0d starts armed, or with a message", start_pair);
      if ((running_q & ~armed_q) != '0) $fatal(1, "R14 interrupts: a deadline runs and nothing is armed, %b", running_q & ~armed_q);
    end
    if (inner_rst_ni && drained_i != '0) begin
      if ((above_q & ~armed_q) != '0) $fatal(1, "R14 interrupts: it sees a completion for what is not armed, %b", above_q & ~armed_q);
      if (answered_i != '0 && (Slots'(drained_i) >> answered_pair) % 2 == 1)
        $fatal(1, "R14 interrupts: a completion of queue pair %0d comes behind its drain", answered_queue_i);
    end
  end
`endif
endmodule
