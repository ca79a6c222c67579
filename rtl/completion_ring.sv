// Device half of the completion queue.
//
// A completion is released when all token lines of its descriptor are acknowledged (so that whoever sees the
// completion sees the tokens) and the host has left a slot free (R4). Two neighbours that share a 64-byte line go
// out as one beat; the first of a pair waits for the second only while the write port is busy, and not for long.
//
// CQ indices run freely (R13): head is the host's (CQ_HEAD), tail the next slot to fill, visible the first slot that
// is not yet acknowledged.
module completion_ring
  import desc_pkg::*;
  import core_pkg::*;
#(
  parameter int Depth = 128            // completions that wait for acknowledged lines or for a slot
) (
  input  logic        clk_i,
  input  logic        rst_ni,
  input  logic        clear_i,
  input  logic        start_i,
  input  logic [31:0] start_index_i,
  input  logic [63:0] base_i,
  input  logic [16:0] size_i,          // slots, a power of two

  // CQ head doorbell; refused (ok low, same cycle) when it releases what was not written or runs backwards.
  input  logic        release_i,
  input  logic [31:0] release_head_i,
  output logic        release_ok_o,

  input  logic                       done_valid_i,
  input  done_t                      done_i,
  input  logic [LINE_COUNT_BITS-1:0] done_after_i,
  output logic                       done_ready_o,

  input  logic [31:0] sq_head_i,

  // To the write port.
  output logic        beat_valid_o,
  output logic        beat_urgent_o,   // full, or has waited long enough: goes before token lines
  output logic [63:0]  beat_addr_o,
  output logic [3:0]   beat_first_o,    // words that are written
  output logic [3:0]   beat_last_o,
  output logic [511:0] beat_data_o,
  input  logic        beat_ready_i,

  // Acknowledged writes.
  input  logic        ack_i,
  input  logic [4:0]  ack_id_i,
  input  logic        ack_error_i,

  output logic [31:0] head_o,
  output logic [31:0] tail_o,
  output logic [1:0]  visible_o,       // completions that became visible in this cycle
  output logic        asked_o,         // a visible, unreleased completion asked for an interrupt
  output logic        error_done_o,    // one cycle per completion with status ERROR
  output logic        stall_o,         // a completion is ready and the queue is full
  output logic        line_fault_o,
  output logic        write_fault_o
);
  localparam logic [4:0] Patience = 5'd31;    // cycles for which half a beat waits behind token lines

  logic [31:0] head_q, tail_q, visible_q, asked_upto_q;

  // ---------------------------------------------------------------- waiting for acknowledged lines
  localparam int RecordBits = DONE_BITS + LINE_COUNT_BITS;
  logic                       record_valid, record_full, take;
  done_t                      record;
  logic [LINE_COUNT_BITS-1:0] record_after, behind;
  logic [$clog2(Depth):0]     record_count_unused;

  sync_fifo #(.Width(RecordBits), .Depth(Depth)) u_records (
    .clk_i, .rst_ni, .clear_i,
    .push_i  (done_valid_i),
    .data_i  ({done_after_i, done_i}),
    .full_o  (record_full),
    .valid_o (record_valid),
    .data_o  ({record_after, record}),
    .pop_i   (take),
    .count_o (record_count_unused)
  );
  assign done_ready_o = !record_full;

  // Acknowledged lines per worker; write responses of one ID come in order.
  logic [LINE_COUNT_BITS-1:0] acked       [0:MAX_WORKERS-1];
  logic                       line_ack;
  logic [3:0]                 ack_worker, worker;
  assign line_ack   = ack_i && ack_id_i != COMPLETION_AXI_ID;
  assign ack_worker = ack_id_i[3:0];
  assign worker     = record.worker_id[3:0];

  // Faulty lines: all completions from the one with the first faulty line to the one with the last are marked. So a
  // fault is never lost, at the price of suspecting a good descriptor between two faulty ones of one worker.
  logic                       faulty      [0:MAX_WORKERS-1];
  logic [LINE_COUNT_BITS-1:0] fault_first [0:MAX_WORKERS-1];
  logic [LINE_COUNT_BITS-1:0] fault_last  [0:MAX_WORKERS-1];
  logic [LINE_COUNT_BITS-1:0] past_first, past_last;
  logic                       suspect, lines_acked;

  // The oldest record: are its lines acknowledged, and without an error?
  always_comb begin
    behind      = '0;
    past_first  = '0;
    lines_acked = 1'b0;
    suspect     = 1'b0;
    if (record_valid) begin
      behind      = record_after - acked[worker];
      past_first  = record_after - fault_first[worker];
      lines_acked = behind == '0 || behind[LINE_COUNT_BITS-1];
      suspect     = faulty[worker] && !past_first[LINE_COUNT_BITS-1];
    end
  end
  assign past_last = record_after - fault_last[worker];

  always_ff @(posedge clk_i) begin
    if (!rst_ni || clear_i) begin
      for (int w = 0; w < MAX_WORKERS; w++) begin
        acked[w]  <= '0;
        faulty[w] <= 1'b0;
      end
    end else begin
      if (take && suspect && !past_last[LINE_COUNT_BITS-1]) faulty[worker] <= 1'b0;
      if (line_ack) begin
        acked[ack_worker] <= acked[ack_worker] + 1'b1;
        if (ack_error_i) faulty[ack_worker] <= 1'b1;
      end
    end
  end

  always_ff @(posedge clk_i) begin
    if (line_ack && ack_error_i) begin
      if (!faulty[ack_worker]) fault_first[ack_worker] <= acked[ack_worker] + 1'b1;
      fault_last[ack_worker] <= acked[ack_worker] + 1'b1;
    end
  end

  // ---------------------------------------------------------------- one beat of two slots
  logic                slot_free, full;
  logic                low_valid_q, high_valid_q, low_asked_q, high_asked_q;
  logic [255:0]        low_q, high_q;
  logic [63:0]         beat_addr_q;
  logic [4:0]          waited_q;
  hw_completion_t      completion;
  logic [7:0]          status, error;

  assign full        = tail_q - head_q == {15'd0, size_i};
  assign slot_free   = !high_valid_q || beat_ready_i;
  // A low half that leaves alone in this cycle must not be joined.
  assign take        = lines_acked && !full && slot_free && !clear_i
                    && !(low_valid_q && !high_valid_q && beat_ready_i);
  assign stall_o     = lines_acked && full;

  always_comb begin
    status     = '0;
    error      = '0;
    completion = '0;
    if (take) begin
      status     = suspect ? STATUS_ERROR : record.status;
      error      = (suspect && record.status != STATUS_ERROR) ? ERR_DMA_FAULT : record.error;
      completion = {7'd0, (tail_q & {15'd0, size_i}) == '0, status, record.flags, error,
                    record.worker_id, record.reward_model_id, sq_head_i, record.result,
                    record.final_seq_len, record.rollout_id, record.user_data};
    end
  end
  assign error_done_o = take && status == STATUS_ERROR;

  always_ff @(posedge clk_i) begin
    if (take) begin
      if (tail_q[0]) begin
        high_q       <= completion;
        high_asked_q <= record.irq || suspect;
      end else begin
        low_q       <= completion;
        low_asked_q <= record.irq || suspect;
      end
      beat_addr_q <= base_i + {42'd0, tail_q[16:1] & (size_i[16:1] - 16'd1), 6'd0};
    end
  end

  always_ff @(posedge clk_i) begin
    if (!rst_ni || clear_i) begin
      low_valid_q  <= 1'b0;
      high_valid_q <= 1'b0;
      waited_q     <= '0;
    end else begin
      if (beat_valid_o && beat_ready_i) begin
        low_valid_q  <= 1'b0;
        high_valid_q <= 1'b0;
        waited_q     <= '0;
      end else if (low_valid_q && waited_q != Patience) begin
        waited_q <= waited_q + 5'd1;
      end
      if (take) begin
        if (tail_q[0]) high_valid_q <= 1'b1;
        else           low_valid_q  <= 1'b1;
      end
    end
  end

  assign beat_valid_o   = (low_valid_q || high_valid_q) && !clear_i;
  assign beat_urgent_o  = high_valid_q || waited_q == Patience;
  assign beat_addr_o    = beat_addr_q;
  assign beat_first_o   = low_valid_q ? 4'd0 : 4'd8;
  assign beat_last_o    = high_valid_q ? 4'd15 : 4'd7;
  assign beat_data_o    = {high_q, low_q};

  // ---------------------------------------------------------------- what has become visible
  logic       beat_ack, sent_low, sent_high, sent_low_asked, sent_high_asked;
  logic       sent_valid_unused, sent_full_unused;
  logic [$clog2(MAX_WRITES):0] sent_count_unused;
  logic [31:0] visible;

  // Kept through a disable: the responses of beats that were sent still come.
  sync_fifo #(.Width(4), .Depth(MAX_WRITES)) u_sent (
    .clk_i, .rst_ni,
    .clear_i (1'b0),
    .push_i  (beat_valid_o && beat_ready_i),
    .data_i  ({high_valid_q, low_valid_q, high_asked_q, low_asked_q}),
    .full_o  (sent_full_unused),
    .valid_o (sent_valid_unused),
    .data_o  ({sent_high, sent_low, sent_high_asked, sent_low_asked}),
    .pop_i   (beat_ack),
    .count_o (sent_count_unused)
  );

  assign beat_ack      = ack_i && ack_id_i == COMPLETION_AXI_ID;
  assign visible_o     = (beat_ack && !clear_i) ? 2'(sent_low) + 2'(sent_high) : 2'd0;
  assign visible       = visible_q + {30'd0, visible_o};
  assign line_fault_o  = line_ack && ack_error_i;
  assign write_fault_o = beat_ack && ack_error_i;

  // ---------------------------------------------------------------- indices
  logic [31:0] held, new_held, asked_ahead;
  assign held         = tail_q - head_q;
  assign new_held     = tail_q - release_head_i;
  assign release_ok_o = !clear_i && new_held <= held;

  // Index after the newest visible completion that asked; the host may have released it before its response came.
  assign asked_ahead = asked_upto_q - head_q;
  assign asked_o     = asked_ahead != '0 && !asked_ahead[31];

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      head_q       <= '0;
      tail_q       <= '0;
      visible_q    <= '0;
      asked_upto_q <= '0;
    end else if (start_i) begin
      head_q       <= start_index_i;
      tail_q       <= start_index_i;
      visible_q    <= start_index_i;
      asked_upto_q <= start_index_i;
    end else if (clear_i) begin
      head_q <= tail_q;  // R12: the queue is empty
    end else begin
      if (release_i && release_ok_o) head_q <= release_head_i;
      if (take) tail_q <= tail_q + 32'd1;
      visible_q <= visible;
      if (beat_ack) begin
        if (sent_high && sent_high_asked)    asked_upto_q <= visible;
        else if (sent_low && sent_low_asked) asked_upto_q <= visible_q + 32'd1;
        else if (!asked_o)                   asked_upto_q <= head_q;  // keeps the distance short (R13)
      end
    end
  end

  assign head_o = head_q;
  assign tail_o = tail_q;

`ifndef SYNTHESIS
  initial if ($bits(done_i) != DONE_BITS) $fatal(1, "core_pkg: DONE_BITS must be %0d", $bits(done_i));
  logic [31:0] unseen;
  assign unseen = tail_q - visible_q;
  always_ff @(posedge clk_i) begin
    if (rst_ni && !clear_i && !start_i) begin
      if (held > {15'd0, size_i})
        $fatal(1, "R4 completion_ring: %0d completions in a queue of %0d", held, size_i);
      if ({30'd0, visible_o} > unseen)
        $fatal(1, "R3 completion_ring: a completion was acknowledged that was not written");
      if (take && !lines_acked)
        $fatal(1, "R3 completion_ring: a completion would overtake its tokens");
    end
    if (rst_ni && ack_i && ack_id_i > COMPLETION_AXI_ID)
      $fatal(1, "R3 completion_ring: write response with unknown ID %0d", ack_id_i);
    if (rst_ni && beat_ack && !sent_valid_unused)
      $fatal(1, "R3 completion_ring: write response for a completion that was not sent");
  end
`endif
endmodule
