// completion_ring: records come out once each, in order per worker and per rollout, each in its slot with its phase; not
// before its token lines are acknowledged, not into a slot that the host holds (R4), both across 2^32 (R13). Faulty lines, releases good and bad,
// what is visible and what asked. Source, write port, acknowledgements and host with and without stalls.
module completion_ring_tb;
  import bench_pkg::*;
  import desc_pkg::*;
  import core_pkg::*;

  localparam int          Workers = 4;
  localparam int          Many    = 1024;
  localparam logic [63:0] Base    = 64'h5_0000_0FC0;
  localparam int          Rollout = 64;     // place of rollout_id in done_t

  logic clk, rst_n;
  int   cycle;
  clock_reset #(.Limit(120000)) u_clock (.clk_o(clk), .rst_no(rst_n), .cycle_o(cycle));

  logic                       clear = 1'b1, start = 1'b0;
  logic [31:0]                start_index = '0, release_head = '0, sq_head = '0, head, tail;
  logic [16:0]                size = 17'd2;
  logic                       release_now = 1'b0, release_ok, done_valid, want_done = 1'b0;
  logic [Workers-1:0]         done_ready;
  done_t                      done = '0;
  logic [LINE_COUNT_BITS-1:0] done_after = '0;
  logic                       beat_valid, beat_urgent, beat_ready, want_beat = 1'b0;
  logic [63:0]                beat_addr;
  logic [3:0]                 beat_first, beat_last;
  logic [511:0]               beat_data;
  logic                       ack = 1'b0, ack_error = 1'b0;
  logic [4:0]                 ack_id = '0;
  logic [1:0]                 answered, visible;
  logic                       asked, error_done, stall, line_fault, write_fault;

  assign done_valid = want_done && done_ready[done.worker_id[1:0]] && !clear;

  completion_ring #(.Workers(Workers), .Depth(8)) u_ring (
    .clk_i(clk), .rst_ni(rst_n), .bus_rst_ni(rst_n), .clear_i(clear), .start_i(start), .start_index_i(start_index), .base_i(Base),
    .size_i(size), .release_i(release_now), .release_head_i(release_head), .release_ok_o(release_ok),
    .done_valid_i(done_valid), .done_i(done), .done_after_i(done_after), .done_ready_o(done_ready),
    .sq_head_i(sq_head), .beat_valid_o(beat_valid), .beat_urgent_o(beat_urgent), .beat_addr_o(beat_addr),
    .beat_first_o(beat_first), .beat_last_o(beat_last), .beat_data_o(beat_data), .beat_ready_i(beat_ready),
    .ack_i(ack), .ack_id_i(ack_id), .ack_error_i(ack_error), .head_o(head), .tail_o(tail), .answered_o(answered), .visible_o(visible),
    .asked_o(asked), .error_done_o(error_done), .stall_o(stall), .line_fault_o(line_fault), .write_fault_o(write_fault)
  );

  // As the write port does: with token lines waiting, half a beat does not go.
  logic lines_wait = 1'b0;
  assign beat_ready = want_beat && (beat_urgent || !lines_wait);

  int stall_source, stall_port, stall_ack, stall_host, fault_percent;

  // ---------------------------------------------------------------- records, in the order in which they come in
  logic [DONE_BITS-1:0] record [0:Many-1];
  int                   from_line [0:Many-1], to_line [0:Many-1];   // its worker's lines: from < line <= to
  logic                 gone [0:Many-1];
  int                   oldest;                                    // record that has not gone
  int                   list [0:Workers*Many-1];                   // records of each worker
  int                   into [0:Workers-1], out_of [0:Workers-1];
  int                   pushed, sent, seen;                        // records
  logic                 out_asked [0:Many-1];                      // as it went out
  // Lines per worker.
  int                   due [0:Workers-1];         // lines whose acknowledgement was shown
  int                   issued [0:Workers-1], acked [0:Workers-1], claimed [0:Workers-1];
  logic                 faulty [0:Workers*Many-1];
  // Completion beats that wait for their response: how many completions each carries.
  int                   beat_count [0:Many-1];
  int                   beats_out, beats_acked, beats_due;
  logic [31:0]          my_head, my_asked, index, unreleased, last_sq_head;
  int                   w, n, patience, errors_told, errors_out, released;
  done_t                next;
  hw_completion_t       slot;
  logic                 suspect, may_suspect;

  task automatic reset_model;
    pushed = 0; sent = 0; seen = 0; oldest = 0; beats_out = 0; beats_acked = 0; beats_due = 0; patience = 0;
    errors_told = 0; errors_out = 0; released = 0;
    my_head = start_index; my_asked = start_index; last_sq_head = sq_head;
    for (int k = 0; k < Workers; k++) begin
      issued[k] = 0; acked[k] = 0; claimed[k] = 0; into[k] = 0; out_of[k] = 0;
    end
  endtask

  // The next record: its lines are issued with it, further lines of the worker may be too.
  task automatic show_record;
    w = below(Workers);
    next = {rnd(), rnd(), rnd(), rnd(), rnd(), rnd(), rnd()};
    next.worker_id = w;
    if (chance(70)) next.rollout_id = below(5);
    next.status    = chance(80) ? STATUS_DONE : STATUS_ERROR;
    next.error     = (next.status == STATUS_ERROR) ? ERR_BAD_LENGTH : ERR_NONE;
    next.irq       = next.status == STATUS_ERROR || chance(20);
    n = chance(40) ? 0 : below(4);
    for (int k = 0; k < n; k++) begin
      issued[w] = issued[w] + 1;
      faulty[w*Many + issued[w] % Many] = 1'b0;
    end
    done       <= next;
    done_after <= issued[w];
  endtask

  task automatic check_slot(input logic [255:0] data);
    int r;
    slot = data;
    w    = int'(slot.worker_id) % Workers;
    if (out_of[w] == into[w]) fail("R3: a completion from nowhere");
    r         = list[w*Many + out_of[w] % Many];
    out_of[w] = out_of[w] + 1;
    next      = record[r];
    for (int k = oldest; k != pushed && k % Many != r; k++)
      if (!gone[k % Many] && record[k % Many][Rollout +: 32] == next.rollout_id)
        fail($sformatf("R5: record %0d of rollout %h goes before %0d", r, next.rollout_id, k));
    gone[r] = 1'b1;
    while (oldest != pushed && gone[oldest % Many]) oldest = oldest + 1;
    index = start_index + sent;
    if (acked[w] < to_line[r]) fail($sformatf("R3: a completion overtakes line %0d of worker %0d", to_line[r], w));
    if (index - my_head >= size) fail($sformatf("R4: completion %h overwrites a slot, head %h", index, my_head));
    // Faulty lines of its own mark it; a good one between two faulty ones of its worker may be marked.
    suspect     = 1'b0;
    for (int k = from_line[r] + 1; k <= to_line[r]; k++) if (faulty[w*Many + k % Many]) suspect = 1'b1;
    may_suspect = suspect;
    if (!suspect && slot.status == STATUS_ERROR && next.status != STATUS_ERROR) begin
      for (int k = (from_line[r] > 200) ? from_line[r] - 200 : 1; k <= from_line[r]; k++)
        if (faulty[w*Many + k % Many])
          for (int j = to_line[r] + 1; j <= acked[w]; j++) if (faulty[w*Many + j % Many]) may_suspect = 1'b1;
      if (!may_suspect) fail("a good completion is marked DMA_FAULT");
      suspect = 1'b1;
    end
    if (suspect && next.status != STATUS_ERROR) begin
      next.status = STATUS_ERROR;
      next.error  = ERR_DMA_FAULT;
    end
    if (suspect) next.irq = 1'b1;
    if ({slot.status, slot.error, slot.flags, slot.worker_id, slot.reward_model_id, slot.result, slot.final_seq_len[30:0],
         slot.rollout_id, slot.user_data} !== {next.status, next.error, next.flags, next.worker_id, next.reward_model_id,
         next.result, next.final_seq_len, next.rollout_id, next.user_data})
      fail($sformatf("completion %h is %h, expected %h", index, slot, next));
    if (slot.phase !== {(index / size) % 2 == 0, 7'd0} || slot.final_seq_len[31] !== slot.phase[7])
      fail($sformatf("R13: completion %h has phases %b and %h", index, slot.final_seq_len[31], slot.phase));
    if (sq_head - slot.sq_head > sq_head - last_sq_head) fail("sq_head runs backwards");
    last_sq_head = slot.sq_head;
    out_asked[sent % Many] = next.irq;
    if (next.status == STATUS_ERROR) errors_out = errors_out + 1;
    sent = sent + 1;
  endtask

  always @(posedge clk) if (rst_n && !clear && !start) begin
    sq_head <= sq_head + below(2);
    if (head !== my_head) fail($sformatf("head is %h, expected %h", head, my_head));
    if (error_done) errors_told = errors_told + 1;
    if (stall && tail - head != size) fail("stall_o with a free slot");
    expect_eq("line_fault", line_fault, ack && ack_error && ack_id != COMPLETION_AXI_ID);
    expect_eq("write_fault", write_fault, ack && ack_error && ack_id == COMPLETION_AXI_ID);
    unreleased = my_asked - my_head;
    expect_eq("asked", asked, unreleased != 0 && !unreleased[31]);

    // Acknowledgements of this cycle.
    n = 0;
    if (ack && ack_id == COMPLETION_AXI_ID) begin
      n = beat_count[beats_acked % Many];
      beats_acked = beats_acked + 1;
    end
    expect_eq("answered", answered, n);
    expect_eq("visible", visible, ack_error ? 0 : n);
    repeat (n) begin
      seen = seen + 1;
      if (out_asked[(seen - 1) % Many]) my_asked = start_index + seen;
    end
    if (ack && ack_id != COMPLETION_AXI_ID) acked[ack_id] = acked[ack_id] + 1;

    // The write port.
    if (beat_valid && !beat_urgent) patience = patience + 1;
    else patience = 0;
    if (patience > 40 && stall_port == 0) fail("half a beat waits for ever");
    if (beat_valid && beat_ready) begin
      index = start_index + sent;
      if (beat_addr != ((Base + 32 * (index % size)) & ~64'd63)) fail($sformatf("completion %h goes to %h", index, beat_addr));
      if (!((beat_first == 0 || beat_first == 8) && (beat_last == 7 || beat_last == 15) && beat_first < beat_last))
        fail($sformatf("words %0d to %0d", beat_first, beat_last));
      if (((Base + 32 * (index % size)) & 63) != 4 * beat_first) fail("the beat starts at the wrong half");
      n = 0;
      if (beat_first == 0) begin
        check_slot(beat_data[255:0]);
        n = n + 1;
      end
      if (beat_last == 15) begin
        check_slot(beat_data[511:256]);
        n = n + 1;
      end
      beat_count[beats_out % Many] = n;
      beats_out = beats_out + 1;
    end

    // The host.
    if (release_now) begin
      if (release_ok !== (tail - release_head <= tail - my_head)) fail($sformatf("release of %h: ok is %b", release_head, release_ok));
      if (release_ok) begin
        my_head = release_head;
        released = released + 1;
      end
    end
    release_now <= !chance(stall_host);
    // What is visible may be released, what was never written and what lies behind may not.
    case (below(8))
      0: release_head <= my_head - 1 - below(4);
      1: release_head <= my_head + size + 1 + below(9);
      default: release_head <= my_head + below(int'(start_index + seen - my_head) + 1);
    endcase

    // Records.
    for (int k = 0; k < Workers; k++)
      if (into[k] == out_of[k] && !done_ready[k]) fail($sformatf("worker %0d has no place of its own", k));
    if (done_valid) begin
      next = done;
      w    = int'(next.worker_id);
      record[pushed % Many]    = done;
      gone[pushed % Many]      = 1'b0;
      list[w*Many + into[w] % Many] = pushed % Many;
      into[w] = into[w] + 1;
      from_line[pushed % Many] = claimed[w];
      to_line[pushed % Many]   = int'(done_after);
      claimed[w] = int'(done_after);
      pushed = pushed + 1;
      show_record;
    end
    want_done <= !chance(stall_source);

    // The next acknowledgement: of a line or of a beat, at most one per cycle, in order per ID.
    ack       <= 1'b0;
    ack_error <= 1'b0;
    if (!chance(stall_ack)) begin
      w = below(Workers + 1);
      if (w == Workers) begin
        if (beats_due != beats_out) begin
          ack    <= 1'b1;
          ack_id <= COMPLETION_AXI_ID;
          beats_due = beats_due + 1;
          ack_error <= chance(fault_percent);
        end
      end else if (due[w] < issued[w]) begin
        due[w] = due[w] + 1;
        ack    <= 1'b1;
        ack_id <= 5'(w);
        if (chance(fault_percent)) begin
          ack_error <= 1'b1;
          faulty[w*Many + due[w] % Many] = 1'b1;
        end
      end
    end
    want_beat <= !chance(stall_port);
  end else begin
    ack <= 1'b0;
    release_now <= 1'b0;
    want_done <= 1'b0;
  end

  initial begin
    @(posedge rst_n);
    for (int m = 0; m < 32; m++) begin
      start_index   = m[0] ? -between(1, 60) : rnd();
      size          = 17'd1 << (m < 28 ? between(1, 5) : 16);
      stall_source  = m[1] ? 60 : 0;
      stall_port    = m[2] ? 60 : 0;
      stall_ack     = m[3] ? 60 : 0;
      stall_host    = m[4] ? 95 : 20;
      fault_percent = m[0] ? 0 : 3;
      lines_wait   <= m[3];
      if (m[1] && m[3]) stall_source = 96;
      for (int k = 0; k < Workers; k++) due[k] = 0;
      start <= 1'b1;
      @(posedge clk);
      reset_model;
      show_record;
      start <= 1'b0;
      clear <= 1'b0;
      repeat (700) @(posedge clk);
      // All that was accepted comes out.
      stall_source = 100;
      stall_port   = 0;
      stall_ack    = 0;
      stall_host   = 50;
      waits_for = $sformatf("the bench waits for %0d records, size %0d", pushed, size);
      repeat (2) @(posedge clk);
      while (seen != pushed) @(posedge clk);
      repeat (2) @(posedge clk);
      expect_eq("errors told", errors_told, errors_out);
      if (pushed < 8) fail($sformatf("only %0d records", pushed));
      clear <= 1'b1;
      repeat (3) @(posedge clk);
      if (beat_valid) fail("R12: a completion survives a clear");
    end
    finish_bench("completion_ring_tb");
  end
endmodule
