// A completion that is chosen holds a place among the writes in flight until it is answered, merged, dropped or flushed, and gives it back once (R28): so what
// a bus withholds from one queue pair holds up no other. completion_ring with two queue pairs, each with a worker of its own, eight records and four places;
// descriptors without token lines.
//
// Assumed: an end comes only with a record that was reserved for it (dispatcher; asserted in place_quota). A response comes only for a beat that was taken
// (axi_writer; asserted in completion_ring). A queue pair that went off stays off for as long as the proof looks.
module ring_f import desc_pkg::*; import core_pkg::*; (
  input logic        clk_i,
  input logic        done_valid_i, done_worker_i, beat_ready_i, ack_i, ack_error_i, ack_number_i,
  input logic [1:0]  on_i,
  input logic [31:0] rollout_i
);
  localparam int Queues = 2, Workers = 2, Depth = 8;
  localparam int Places = MAX_WRITES / 2, Own = Places / (2 * Queues), Most = Places - Own * (Queues - 1);

  logic run = 1'b0;
  always_ff @(posedge clk_i) run <= 1'b1;

  done_t done;
  queue_config_t start_config;
  logic [Queues-1:0]  record_free;
  logic        beat_valid, beat_urgent, posted, dropped, read_valid, busy;
  logic [3:0]  beat_queue, posted_queue, dropped_queue;
  logic [1:0]  flushed;
  logic [3:0]  flushed_queue;
  logic [5:0]  ack_id;
  always_comb begin
    done            = '0;
    done.pair       = 4'(done_worker_i);
    done.worker_id  = 16'(done_worker_i);
    done.rollout_id = rollout_i;
    start_config         = '0;
    start_config.cq_size = 17'd16;
    ack_id = COMPLETION_AXI_ID + 6'(ack_number_i);
  end

  completion_ring #(.Queues(Queues), .Workers(Workers), .Depth(Depth)) u_ring (
    .clk_i, .rst_ni(run), .bus_rst_ni(run), .start_i(1'b0), .start_queue_i('0), .start_config_i(start_config), .on_i, .enabled_i(on_i),
    .release_i(1'b0), .release_queue_i('0), .release_head_i('0), .arm_i(1'b0), .record_o(record_free), .reserve_i(done_valid_i), .reserve_queue_i(4'(done_worker_i)),
    .line_i(1'b0), .line_worker_i('0), .line_queue_i('0), .done_valid_i, .done_i(done), .done_addr_i('0),
    .read_valid_o(read_valid), .answer_i('0), .answer_error_i('0), .answer_result_i('0),
    .posted_o(posted), .posted_queue_o(posted_queue), .sq_head_i('0), .group_closes_i(1'b0),
    .beat_valid_o(beat_valid), .beat_urgent_o(beat_urgent), .beat_queue_o(beat_queue), .beat_ready_i,
    .ack_i, .ack_id_i(ack_id), .ack_error_i,
    .state_queue_i('0), .dropped_o(dropped), .dropped_queue_o(dropped_queue), .flushed_o(flushed), .flushed_queue_o(flushed_queue), .busy_o(busy)
  );

  // ---------------------------------------------------------------- what is kept of the past
  logic [1:0]      off = '0;                    // queue pairs that went off
  logic [1:0][3:0] sent = '0;                   // beats without a response
  always_ff @(posedge clk_i) begin
    off <= ~on_i;
    if (run) for (int q = 0; q < 2; q++)
      sent[q] <= sent[q] + 4'(beat_valid && beat_ready_i && beat_queue == 4'(q)) - 4'(ack_i && ack_number_i == 1'(q));
  end

  // ---------------------------------------------------------------- what is assumed
  always_comb begin
    if (!run) assume (!done_valid_i && !ack_i);
    assume ((on_i & off) == '0);
    if (done_valid_i) assume (record_free[done_worker_i]);
    if (ack_i) assume (sent[ack_number_i] != '0);
  end

  // ---------------------------------------------------------------- what is asserted
`ifndef REACH
  logic [3:0] places, chosen, held [0:1];
  always_comb begin
    for (int q = 0; q < 2; q++) begin
      held[q] = sent[q] + 4'((u_ring.low_valid_q || u_ring.high_valid_q) && u_ring.beat_queue_q == 1'(q))
              + 4'(u_ring.next_valid_q && u_ring.next_q.pair == 1'(q)) + 4'(u_ring.spare_valid_q && u_ring.spare_q.pair == 1'(q))
              + 4'(u_ring.record_valid_q && u_ring.record_pair_q == 1'(q));
    end
    places = sent[0] + sent[1] + 4'(beat_valid);
    chosen = held[0] + held[1];
    if (run) begin
      // At the ports: what is shown to the port has its place, and what others hold leaves each its own.
      assert (places <= 4'(Places));
      for (int q = 0; q < 2; q++) assert (sent[q] + 4'(beat_valid && beat_queue == 4'(q)) <= 4'(Most));
      // Inside: each that is chosen holds one, and nothing else does.
      assert (chosen <= 4'(Places));
      for (int q = 0; q < 2; q++) assert (4'(u_ring.held_q[q]) == held[q] && held[q] <= 4'(Most));
    end
  end
`endif

  // What must be reachable, for the proof to say anything.
`ifdef REACH
  logic [4:0] steps = '0;
  always_ff @(posedge clk_i) if (steps != '1) steps <= steps + 1'b1;
  always_comb case (`REACH)
    0:       assert (steps != 5'(`DEPTH - 1));
    1:       assert (flushed == '0);
    2:       assert (!dropped);
    3:       assert (!(sent[0] == 4'd1 && sent[1] == 4'd1));
    default: assert (!(ack_i && posted && sent[0] == 4'd1));
  endcase
`endif
endmodule
