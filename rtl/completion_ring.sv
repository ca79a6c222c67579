// Device half of the completion queues.
//
// A slot and a record are reserved when a descriptor is handed out (R4 by credits). So no completion waits for one, and no worker keeps a
// descriptor that has ended because its queue pair's list is long (R28). A completion is released when all token lines of its descriptor are
// acknowledged, so that whoever sees the completion sees the tokens.
// Each queue pair's completions wait in a list of their own, in the order in which its descriptors end, which is that of each of its
// rollouts (R5); its lines are answered in order, as they share an ID. So a write response that is withheld from one queue pair, or what
// reads memory for it, delays the completions of that one and of no other. A completion is chosen only with a place among the writes in
// flight, its queue pair's own or a shared one. So a chosen completion waits only for AW and W, whatever responses the bus withholds. Two neighbours of one queue pair that share a 64-byte line go out as one beat; the first of a pair waits for the second only
// while the write port is busy, no completion of another queue pair comes, and not for long.
//
// CQ indices run freely (R13), each by queue pair: head is the host's (CQ_HEAD), tail the next slot to fill, reserved the
// next one to give away, visible the first that is not yet acknowledged.
//
// Completions of a queue pair that is being disabled (R12) take the same way and are dropped at its end.
//
// Where a completion that belongs to a group takes its slot, group_table is told, and says whether it closes the group (R17).
//
// Two cycles in: a record comes, and joins its queue pair's list. Three out: it is chosen, read, and put together. One completion per
// cycle comes in and goes out, of one queue pair or of several.
module completion_ring
  import desc_pkg::*;
  import core_pkg::*;
#(
  parameter int Queues  = 1,
  parameter int Workers = 4,
  parameter int Depth   = 128          // records: descriptors that are handed out and whose completion is not put together, and one for each worker
) (
  /* verilator lint_off UNUSEDSIGNAL */  // numbers of queue pairs have 4 bits, whatever was built
  input  logic        clk_i,
  input  logic        rst_ni,
  input  logic        bus_rst_ni,      // of the bus: responses outlive a reset of the device

  input  logic        start_i,         // a queue pair starts, with this configuration
  input  logic [3:0]  start_queue_i,
  input  queue_config_t start_config_i,
  input  logic [Queues-1:0] on_i,      // completions of the others are dropped
  input  logic [Queues-1:0] enabled_i, // on, or dead (R24): its host may release what is visible

  // CQ head doorbell; refused (ok low, same cycle) when it releases what was not written or runs backwards.
  input  logic        release_i,
  input  logic [3:0]  release_queue_i,
  input  logic [31:0] release_head_i,
  output logic        release_ok_o,
  input  logic        arm_i,           // ARM of that queue pair is written: …
  output logic [31:0] arm_visible_o,   // … the first of its completions that is not answered

  // R4: a slot is free, and a record; one of each is given away.
  output logic [Queues-1:0] slot_o,
  output logic [Queues-1:0] record_o,
  input  logic        reserve_i,
  input  logic [3:0]  reserve_queue_i,

  // A line goes to the write port, or a descriptor ends, or both: then the line is its last.
  input  logic                       line_i,
  input  logic [3:0]                 line_worker_i,
  input  logic [3:0]                 line_queue_i,
  input  logic                       done_valid_i,
  input  done_t                      done_i,
  input  logic [63:0]                done_addr_i,    // what it reads in memory lies there
  output logic [$clog2(Depth)-1:0]   place_o,        // where it goes

  // To readback, and back: what it reads once all before it of its queue pair is posted. That one's list waits for it, one of each.
  output logic        read_valid_o,
  output logic [3:0]  read_queue_o,
  output logic        read_publishes_o,
  output logic        read_model_o,
  output logic [31:0] read_what_o,
  output logic [63:0] read_addr_o,
  input  logic [Queues-1:0] answer_i,  // it has one for this queue pair; stays until it is taken
  output logic [3:0]  answer_queue_o,  // whose it is …
  input  logic [7:0]  answer_error_i,
  input  logic [31:0] answer_result_i,
  output logic        answer_taken_o,  // … that is taken

  // SQ slots consumed, of the queue pair whose completion is put together.
  output logic        posted_o,
  output logic [3:0]  posted_queue_o,
  output logic [$clog2(Depth)-1:0] posted_place_o,   // where it was
  output logic [31:0] posted_index_o,
  input  logic [31:0] sq_head_i,

  // R17: it belongs to a group; the answer is combinational.
  output logic        group_o,
  output logic [ENTRY_BITS-1:0] group_entry_o,
  output logic        group_fills_o,
  output logic        group_ends_o,
  output logic        group_all_o,
  output logic [5:0]  group_member_o,
  input  logic        group_closes_i,

  // To the write port.
  output logic        beat_valid_o,
  output logic        beat_urgent_o,   // full, or has waited long enough: goes before token lines
  output logic [3:0]  beat_queue_o,
  output logic [63:0]  beat_addr_o,
  output logic [3:0]   beat_first_o,    // words that are written
  output logic [3:0]   beat_last_o,
  output logic [511:0] beat_data_o,
  input  logic        beat_ready_i,

  // Acknowledged writes.
  input  logic        ack_i,
  input  logic [5:0]  ack_id_i,
  input  logic        ack_error_i,

  // Indices of a queue pair, for the registers.
  input  logic [3:0]  state_queue_i,
  output logic [31:0] head_o,
  output logic [31:0] tail_o,

  output logic [1:0]  answered_o,      // completions whose write was answered in this cycle, of the queue pair …
  output logic [3:0]  answered_queue_o,
  output logic [31:0] answered_to_o,   // … and the index behind them
  output logic        asks_o,          // one of them asks for an interrupt, …
  output logic [31:0] asked_to_o,      // … and the index behind the last such one
  output logic [1:0]  visible_o,       // those of them that are visible: their write did not fail
  output logic        dropped_o,       // a completion is dropped instead of written, of this queue pair
  output logic [3:0]  dropped_queue_o,
  output logic [1:0]  flushed_o,       // likewise, in the beat
  output logic [3:0]  flushed_queue_o,
  output logic        finish_o,        // what is written or dropped was a user of a policy slot (R18)
  output logic [3:0]  finish_queue_o,
  output logic        finish_slot_o,
  output logic        error_done_o,    // one cycle per completion with status ERROR
  output logic        busy_o,          // a completion is here that was not sent, or a line's answer is noted
  output logic [Queues-1:0] line_fault_o,
  output logic [Queues-1:0] write_fault_o
  /* verilator lint_on UNUSEDSIGNAL */
);
  if (Workers < 1 || Workers > MAX_WORKERS) begin : gen_bad_workers
    localparam bit WorkersMustBe1To16 = {-1{1'b1}};   // ends the elaboration
  end

  if (Depth < 2 * Workers || Depth < Workers + 2 * Queues || Depth > 4096 || (Depth & (Depth - 1)) != 0) begin : gen_bad_depth
    // … and no less than one per worker and two per queue pair
    localparam bit DepthMustBeAPowerOfTwoFrom2PerWorkerAnd1PerWorkerAnd2PerQueuePairTo4096 = {-1{1'b1}};   // ends the elaboration
  end

  localparam logic [4:0] Patience = 5'd31;    // cycles for which half a beat waits behind token lines
  localparam int WorkerBits = (Workers == 1) ? 1 : $clog2(Workers);
  localparam int QueueBits  = (Queues == 1) ? 1 : $clog2(Queues);
  localparam int Slots      = 1 << QueueBits;

  logic [QueueBits-1:0] start_pair, release_pair, reserve_pair, state_pair, next_pair, take_pair, beat_pair, ack_pair;
  assign start_pair   = (Queues == 1) ? '0 : start_queue_i[QueueBits-1:0];
  assign release_pair = (Queues == 1) ? '0 : release_queue_i[QueueBits-1:0];
  assign reserve_pair = (Queues == 1) ? '0 : reserve_queue_i[QueueBits-1:0];
  assign state_pair   = (Queues == 1) ? '0 : state_queue_i[QueueBits-1:0];
  logic [Slots-1:0] on;
  assign on = Slots'(on_i);
  logic [Slots-1:0] enabled;
  assign enabled = Slots'(enabled_i);

  logic [Queues-1:0][63:0] base_q;
  logic [Queues-1:0][16:0] size_q;
  logic [Queues-1:0][15:0] mask_q;         // one less
  logic [Queues-1:0][31:0] head_q;
  logic [Queues-1:0][31:0] tail_q;
  logic [Queues-1:0][31:0] reserved_q;
  logic [Queues-1:0][31:0] visible_q;
  /* verilator lint_off UNUSEDSIGNAL */  // as many as an index can name
  logic [Slots-1:0] slot_q;                // not all slots are given away
  /* verilator lint_on UNUSEDSIGNAL */

  // ---------------------------------------------------------------- places
  // One store for all records. What a worker runs has its record's place already, so that its faulty lines are noted there.
  localparam int PlaceBits = $clog2(Depth);

  logic                  push, take, free_valid, free_full_unused;
  logic [WorkerBits-1:0] push_worker;
  logic [QueueBits-1:0]  push_pair;
  logic [PlaceBits-1:0]  place, next_place, free_place, take_place;
  logic [PlaceBits:0]    free_count, fresh_q;
  logic [PlaceBits-1:0]  current_q [0:(1 << WorkerBits)-1];   // the place of what each worker runs

  // What was taken has gone in the cycle behind it.
  logic                  gone_q;
  logic [QueueBits-1:0]  gone_pair_q;
  logic [PlaceBits-1:0]  gone_place_q;

  assign push        = done_valid_i;
  assign push_worker = done_i.worker_id[WorkerBits-1:0];
  assign push_pair   = (Queues == 1) ? '0 : done_i.pair[QueueBits-1:0];

  place_quota #(.Sources(Queues), .Places(Depth - Workers)) u_quota (
    .clk_i, .rst_ni,
    .clear_i (1'b0),
    .take_i  (reserve_i),
    .taker_i (reserve_pair),
    .give_i  (gone_q),
    .giver_i (gone_pair_q),
    .ready_o (record_o)
  );

  // Places that were given back; before them, those that were never used since the last clear, of which each worker has one.
  sync_fifo #(.Width(PlaceBits), .Depth(Depth)) u_free (
    .clk_i, .rst_ni,
    .clear_i (1'b0),
    .push_i  (gone_q),
    .data_i  (gone_place_q),
    .full_o  (free_full_unused),
    .valid_o (free_valid),
    .data_o  (free_place),
    .pop_i   (push && free_valid),
    .count_o (free_count)
  );
  assign place_o    = place;
  assign place      = push ? current_q[push_worker] : '0;
  assign next_place = free_valid ? free_place : fresh_q[PlaceBits-1:0];

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      fresh_q <= (PlaceBits+1)'(Workers);
      for (int w = 0; w < (1 << WorkerBits); w++) current_q[w] <= PlaceBits'(w);
    end else if (push) begin
      current_q[push_worker] <= next_place;
      if (!free_valid) fresh_q <= fresh_q + 1'b1;
    end
  end

  // ---------------------------------------------------------------- lines
  // Each queue pair's descriptors are numbered as they end, and of a line in flight it is kept how many had ended before it went. A queue
  // pair's lines are acknowledged in order. So the lines of all descriptors below the number of its oldest one in flight are acknowledged,
  // and, where none is in flight, those of all. A line is that of its own descriptor, to whose place it is noted whether it was faulty:
  // so a completion is blamed for no other's (R6). At most Depth records are here: one bit more than a place has tells them apart.
  localparam int NumberBits = PlaceBits + 1;
  localparam int SentBits   = $clog2(MAX_WRITES);
  typedef struct packed {
    logic                  opens;                    // it is the first of its descriptor, …
    logic [PlaceBits-1:0]  place;                    // … which has this place
    logic [NumberBits-1:0] number;                   // descriptors of its queue pair that had ended before
  } line_t;
  localparam int LineBits = 1 + PlaceBits + NumberBits;
  logic                  fault_mem  [0:Depth-1];     // of a descriptor: one of its lines was faulty
  logic [LineBits-1:0]   owner_mem  [0:(1 << (QueueBits + SentBits))-1];   // of a line in flight
  logic [NumberBits-1:0] ended_q    [0:Slots-1];     // descriptors that have ended
  logic [SentBits:0]     line_new_q [0:Slots-1];     // lines that have gone
  logic [SentBits:0]     line_old_q [0:Slots-1];     // those that are acknowledged, and one more
  logic [LineBits-1:0]   oldest_q   [0:Slots-1];     // the oldest in flight, …
  logic [Slots-1:0]      flying_q;                   // … if there is one
  logic [Workers-1:0]    lined_q;                    // of what a worker runs a line has gone
  logic                  line_ack, faulty_q, judged_q;
  logic [WorkerBits-1:0] line_worker;
  logic [QueueBits-1:0]  line_pair, acked_pair;
  logic [PlaceBits-1:0]  judged_at_q;
  /* verilator lint_off UNUSEDSIGNAL */  // of one that is acknowledged not the number
  line_t                 line_now, line_acked;
  /* verilator lint_on UNUSEDSIGNAL */
  assign line_worker = line_worker_i[WorkerBits-1:0];
  assign line_pair   = (Queues == 1) ? '0 : line_queue_i[QueueBits-1:0];
  assign line_ack    = ack_i && ack_id_i < 6'(Queues);
  assign acked_pair  = (Queues == 1) ? '0 : ack_id_i[QueueBits-1:0];
  assign line_now    = line_i ? {!lined_q[line_worker], current_q[line_worker], ended_q[line_pair]} : '0;
  assign line_acked  = line_ack ? oldest_q[acked_pair] : '0;

  always_ff @(posedge clk_i) begin
    if (line_i) begin
      owner_mem[{line_pair, line_new_q[line_pair][SentBits-1:0]}] <= line_now;
      if (!flying_q[line_pair]) oldest_q[line_pair] <= line_now;
    end
    // The oldest is the one behind it, which may go in this cycle.
    if (line_ack) oldest_q[acked_pair] <= (line_new_q[acked_pair] == line_old_q[acked_pair]) ? line_now
                                                                  : owner_mem[{acked_pair, line_old_q[acked_pair][SentBits-1:0]}];
    if (!rst_ni) begin
      flying_q <= '0;
      lined_q  <= '0;
      for (int q = 0; q < Slots; q++) begin
        ended_q[q]    <= '0;
        line_new_q[q] <= '0;
        line_old_q[q] <= (SentBits+1)'(1);
      end
    end else begin
      if (line_ack) begin
        line_old_q[acked_pair] <= line_old_q[acked_pair] + 1'b1;
        if (line_new_q[acked_pair] == line_old_q[acked_pair]) flying_q[acked_pair] <= 1'b0;
      end
      if (line_i) begin
        line_new_q[line_pair] <= line_new_q[line_pair] + 1'b1;
        flying_q[line_pair]   <= 1'b1;
        lined_q[line_worker]  <= 1'b1;
      end
      if (push) begin
        ended_q[push_pair]   <= ended_q[push_pair] + 1'b1;
        lined_q[push_worker] <= 1'b0;
      end
    end
  end

  // Noted a cycle later: no record is read within two cycles of its last acknowledgement.
  always_ff @(posedge clk_i) begin
    if (line_ack) begin
      judged_at_q <= line_acked.place;
      faulty_q    <= ack_error_i;
    end
    if (judged_q) fault_mem[judged_at_q] <= faulty_q;
    judged_q <= line_ack && (ack_error_i || line_acked.opens);
  end

  // ---------------------------------------------------------------- a record comes in
  localparam int ReadBits = 102;                         // queue pair, publishes, model, how many or which, address
  logic [DONE_BITS+1:0]  record_mem [0:Depth-1];         // whether it is an error, whether its descriptor has lines, and it
  logic [ReadBits-1:0]   read_mem   [0:Depth-1];         // of one that reads memory before it goes

  // First cycle: it came in. In the second it joins the list.
  logic                  in_valid_q, in_wrote_q;
  done_t                 in_q;
  logic [63:0]           in_addr_q;
  logic [PlaceBits-1:0]  in_place_q;
  logic [QueueBits-1:0]  in_pair;
  assign in_pair = (Queues == 1) ? '0 : in_q.pair[QueueBits-1:0];

  always_ff @(posedge clk_i) begin
    if (push) begin
      in_q       <= done_i;
      in_place_q <= place;
      in_wrote_q <= lined_q[push_worker] || line_i;
      if (done_i.reads) in_addr_q <= done_addr_i;
    end
    if (in_valid_q) begin
      record_mem[in_place_q] <= {in_q.status == STATUS_ERROR, in_wrote_q, in_q};
      if (in_q.reads) read_mem[in_place_q] <= {in_q.pair, in_q.publishes, in_q.reward_model_id[0], in_q.result, in_addr_q};
    end
    in_valid_q <= rst_ni && push;
  end

  // ---------------------------------------------------------------- lists
  // Of each queue pair, in the order in which its descriptors end. The first two of a list lie in registers: whether they may go is known a
  // cycle before, for each of them, so that what is chosen decides over little.
  logic [NumberBits-1:0] joined_q [0:Queues-1];          // records that have come into the list
  logic [NumberBits-1:0] loaded_q [0:Queues-1];          // … into its registers
  logic [NumberBits-1:0] chosen_q [0:Queues-1];          // … that were chosen: the number of the first
  logic [NumberBits-1:0] behind_q [0:Queues-1];          // one more
  logic [NumberBits-1:0] left_q   [0:Slots-1];           // … that have gone
  logic [PlaceBits-1:0]  first_q  [0:Slots-1];
  logic [PlaceBits-1:0]  second_q [0:Queues-1];
  logic [Queues-1:0]     some_q, more_q;                 // there is a first, and a second
  logic [Queues-1:0]     first_reads_q, second_reads_q;  // it reads memory before it goes
  logic [Queues-1:0]     ready_q;                        // the first may go
  logic [Queues-1:0]     asking_q;                       // it may read memory
  logic [Queues-1:0]     reading_q;                      // it is with readback
  logic [Queues-1:0]     read_grant;                     // it goes there
  logic [Queues-1:0]     placed;                         // there is a write place for it
  logic [Queues-1:0]     goes;                           // it is chosen

  for (genvar q = 0; q < Queues; q++) begin : gen_list
    logic [PlaceBits:0]    list_mem [0:Depth-1];
    logic [NumberBits-1:0] acked;                        // the lines of so many are acknowledged
    logic                  clear, joins, loads;
    assign joins = in_valid_q && in_pair == QueueBits'(q);
    assign loads = goes[q] || (!more_q[q] && loaded_q[q] != joined_q[q]);

    always_comb begin
      acked = '0;
      clear = 1'b0;
      if (some_q[q]) begin
        acked = flying_q[q] ? oldest_q[q][NumberBits-1:0] : ended_q[q];
        clear = acked != chosen_q[q];
      end
    end

    always_ff @(posedge clk_i) begin
      if (joins) list_mem[joined_q[q][PlaceBits-1:0]] <= {in_q.reads, in_place_q};
      if (loads) begin
        if (goes[q] || !some_q[q]) {first_reads_q[q], first_q[q]} <= more_q[q] ? {second_reads_q[q], second_q[q]}
                                                                              : list_mem[loaded_q[q][PlaceBits-1:0]];
        {second_reads_q[q], second_q[q]} <= list_mem[loaded_q[q][PlaceBits-1:0]];
      end
      if (!rst_ni) begin
        joined_q[q] <= '0;
        loaded_q[q] <= '0;
        chosen_q[q] <= '0;
        behind_q[q] <= NumberBits'(1);
        some_q[q]   <= 1'b0;
        more_q[q]   <= 1'b0;
        ready_q[q]  <= 1'b0;
        asking_q[q] <= 1'b0;
      end else begin
        if (joins) joined_q[q] <= joined_q[q] + 1'b1;
        if (goes[q]) begin
          chosen_q[q] <= behind_q[q];
          behind_q[q] <= behind_q[q] + 1'b1;
        end
        if (loads) begin
          if (loaded_q[q] != joined_q[q]) loaded_q[q] <= loaded_q[q] + 1'b1;
          some_q[q] <= more_q[q] || loaded_q[q] != joined_q[q];
          more_q[q] <= loaded_q[q] != joined_q[q] && (goes[q] ? more_q[q] : some_q[q]);
        end
        ready_q[q]  <= 1'b0;
        asking_q[q] <= 1'b0;
        if (some_q[q]) begin
          if (goes[q]) ready_q[q] <= more_q[q] && acked != chosen_q[q] && acked != behind_q[q] && !second_reads_q[q];
          else         ready_q[q] <= clear && (!first_reads_q[q] || (reading_q[q] && answer_i[q]));
          // Its queue pair's records before it have gone, too.
          asking_q[q] <= clear && first_reads_q[q] && left_q[q] == chosen_q[q] && !reading_q[q] && !read_grant[q];
        end
      end
    end
  end

  // ---------------------------------------------------------------- what reads memory first
  /* verilator lint_off UNUSEDSIGNAL */  // as wide as for the most queue pairs
  logic [3:0]            read_number;
  /* verilator lint_on UNUSEDSIGNAL */
  logic                  asks, read_q;
  logic [PlaceBits-1:0]  read_place_q;
  logic [ReadBits-1:0]   read_record;

  assign asks = asking_q != '0;

  round_robin #(.N(Queues)) u_read_robin (
    .clk_i, .rst_ni,
    .request_i (asking_q),
    .grant_o   (read_grant),
    .number_o  (read_number),
    .accept_i  (asks)
  );

  always_ff @(posedge clk_i) begin
    if (asks) read_place_q <= first_q[(Queues == 1) ? '0 : read_number[QueueBits-1:0]];
    if (!rst_ni) begin
      read_q    <= 1'b0;
      reading_q <= '0;
    end else begin
      read_q <= asks;
      if (asks || reading_q != '0) reading_q <= (reading_q & ~goes) | read_grant;
    end
  end

  assign read_valid_o = read_q;
  assign read_record  = read_q ? read_mem[read_place_q] : '0;
  assign {read_queue_o, read_publishes_o, read_model_o, read_what_o, read_addr_o} = read_record;

  // ---------------------------------------------------------------- the next completion
  // Its turn comes in one cycle, its record is read in the next, and in a third it is put together. Of those whose turn came two
  // may wait to be read: so what holds the last step up reaches the first one a cycle later.
  typedef struct packed {
    logic [QueueBits-1:0]  pair;
    logic [PlaceBits-1:0]  place;
  } choice_t;

  logic [Queues-1:0]     grant;
  logic [3:0]            number_unused;
  choice_t               choice, next_q, spare_q;
  logic                  chooses, next_valid_q, spare_valid_q, reads_record;
  logic                  record_valid_q, fault_q, wrote_q, bad_q;
  logic [QueueBits-1:0]  record_pair_q;
  logic                  same_q;                         // that of the beat
  logic [63:0]           record_base_q;                  // of its queue pair …
  logic [16:0]           record_size_q;
  logic [15:0]           record_mask_q;
  logic [31:0]           record_tail_q;                  // … as long as that is on
  logic [PlaceBits-1:0]  record_place_q;
  /* verilator lint_off UNUSEDSIGNAL */  // what readback is told lies in a memory of its own
  done_t                 record_q;
  /* verilator lint_on UNUSEDSIGNAL */

  round_robin #(.N(Queues)) u_round_robin (
    .clk_i, .rst_ni,
    .request_i (ready_q & placed),
    .grant_o   (grant),
    .number_o  (number_unused),
    .accept_i  (chooses)
  );
  assign chooses = (ready_q & placed) != '0 && !spare_valid_q;
  assign goes    = spare_valid_q ? '0 : grant;

  always_comb begin
    choice = '0;
    if (grant != '0) begin
      for (int q = 0; q < Queues; q++)
        if (grant[q]) choice = choice | {QueueBits'(q), first_q[q]};
    end
  end

  assign next_pair    = (Queues == 1) ? '0 : next_q.pair;
  assign reads_record = next_valid_q && (!record_valid_q || take);

  always_ff @(posedge clk_i) begin
    if (reads_record) begin
      {bad_q, wrote_q, record_q} <= record_mem[next_q.place];
      fault_q             <= fault_mem[next_q.place];
      record_place_q      <= next_q.place;
      record_pair_q       <= next_q.pair;
      same_q              <= next_pair == (write ? take_pair : beat_pair);
      record_base_q       <= base_q[next_pair];
      record_size_q       <= size_q[next_pair];
      record_mask_q       <= mask_q[next_pair];
      record_tail_q       <= (write && take_pair == next_pair) ? tail_next : tail_q[next_pair];
    end
    if (reads_record || !next_valid_q) next_q <= spare_valid_q ? spare_q : choice;
    if (chooses) spare_q <= choice;
    if (!rst_ni) begin
      next_valid_q   <= 1'b0;
      spare_valid_q  <= 1'b0;
      record_valid_q <= 1'b0;
    end else begin
      if (reads_record || !next_valid_q) next_valid_q <= spare_valid_q || chooses;
      spare_valid_q  <= next_valid_q && !reads_record && (spare_valid_q || chooses);
      record_valid_q <= reads_record || (record_valid_q && !take);
    end
  end

  // ---------------------------------------------------------------- one beat of two slots
  logic                low_valid_q, high_valid_q, low_asked_q, high_asked_q;
  logic [511:0]        beat_q;
  logic [63:0]         beat_addr_q;
  logic [4:0]          waited_q;
  logic [QueueBits-1:0] beat_queue_q;
  hw_completion_t      completion;
  logic [7:0]          status, error;
  logic                phase, drop, write, beat_on, beat_goes, same, fits, blamed, answered, failed, half_unused;
  logic [31:0]         tail, tail_next;
  logic [14:0]         row;                // of the queue, two slots each

  assign beat_pair  = (Queues == 1) ? '0 : beat_queue_q;
  assign beat_on    = on[beat_pair];
  assign beat_goes  = beat_valid_o && beat_ready_i;
  assign take_place  = record_place_q;
  assign take_pair   = (Queues == 1) ? '0 : record_pair_q;

  // It is dropped, or has room in the beat. A low half that leaves alone in this cycle must not be joined.
  assign same  = Queues == 1 || same_q;
  assign fits  = !beat_ready_i ? !high_valid_q && (!low_valid_q || same) : high_valid_q || !low_valid_q || !same;
  assign drop  = record_valid_q && !on[take_pair];
  assign write = record_valid_q && on[take_pair] && fits;
  assign take  = record_valid_q && (!on[take_pair] || fits);

  assign blamed         = wrote_q && fault_q;
  assign answered       = record_q.reads;
  assign failed         = blamed || bad_q || (answered && answer_error_i != ERR_NONE);
  assign answer_queue_o = 4'(take_pair);
  assign answer_taken_o = take && answered;

  always_ff @(posedge clk_i) begin
    if (take) begin
      gone_pair_q  <= take_pair;
      gone_place_q <= take_place;
    end
    if (!rst_ni) begin
      gone_q <= 1'b0;
      for (int q = 0; q < Slots; q++) left_q[q] <= '0;
    end else begin
      gone_q <= take;
      if (gone_q) left_q[gone_pair_q] <= left_q[gone_pair_q] + 1'b1;
    end
  end

  assign finish_o       = take && record_q.names;
  assign finish_slot_o  = record_q.slot;
  assign finish_queue_o = 4'(take_pair);

  assign posted_o       = write;
  assign posted_queue_o = 4'(take_pair);
  assign posted_place_o = take_place;
  assign posted_index_o = tail;
  assign dropped_o       = drop;
  assign dropped_queue_o = 4'(take_pair);

  // Not in the process below: group_table answers in between.
  assign group_o        = write && record_q.belongs;
  assign group_entry_o  = record_q.entry;
  assign group_fills_o  = record_q.fills;
  assign group_ends_o   = record_q.ends && !blamed;
  assign group_all_o    = record_q.all;
  assign group_member_o = record_q.member;

  always_comb begin
    status     = '0;
    error      = '0;
    completion = '0;
    tail       = '0;
    row        = '0;
    half_unused = 1'b0;
    phase      = 1'b0;
    if (record_valid_q) begin
      tail       = record_tail_q;
      {row, half_unused} = tail[15:0] & record_mask_q;
      phase      = (tail[16:0] & record_size_q) == '0;
      status     = failed ? STATUS_ERROR : record_q.status;
      error      = answered ? answer_error_i : (blamed && !bad_q) ? ERR_DMA_FAULT : record_q.error;
      completion = {phase, 7'd0, status, record_q.flags, error,
                    record_q.worker_id, record_q.reward_model_id, sq_head_i, answered ? answer_result_i : record_q.result,
                    phase, record_q.final_seq_len, record_q.rollout_id, record_q.user_data};
    end
  end
  assign tail_next    = tail + 32'd1;
  assign error_done_o = write && failed;
  assign busy_o       = free_count + (PlaceBits+1)'(Workers) != fresh_q || low_valid_q || high_valid_q || judged_q;

  always_ff @(posedge clk_i) begin
    if (write) begin
      if (tail[0]) begin
        beat_q[511:256] <= completion;
        high_asked_q    <= record_q.irq || failed || group_closes_i;
        if (group_closes_i) beat_q[256 + HW_COMPLETION_FLAGS_LSB + CFLAG_GROUP_DONE_BIT] <= 1'b1;
      end else begin
        beat_q[255:0] <= completion;
        low_asked_q   <= record_q.irq || failed || group_closes_i;
        if (group_closes_i) beat_q[HW_COMPLETION_FLAGS_LSB + CFLAG_GROUP_DONE_BIT] <= 1'b1;
      end
      beat_addr_q  <= record_base_q + {43'd0, row, 6'd0};
      beat_queue_q <= take_pair;
    end
  end

  always_ff @(posedge clk_i) begin
    if (low_valid_q && waited_q != Patience) waited_q <= waited_q + 5'd1;
    if (beat_goes || !beat_on) begin
      waited_q     <= '0;
      low_valid_q  <= 1'b0;
      high_valid_q <= 1'b0;
    end
    if (write) begin
      if (tail[0]) high_valid_q <= 1'b1;
      else         low_valid_q  <= 1'b1;
    end
    if (!rst_ni) begin
      waited_q     <= '0;
      low_valid_q  <= 1'b0;
      high_valid_q <= 1'b0;
    end
  end

  assign beat_valid_o   = (low_valid_q || high_valid_q) && beat_on;
  // With one of another queue pair behind it, half a beat has nothing to wait for.
  assign beat_urgent_o  = high_valid_q || waited_q == Patience || (Queues > 1 && record_valid_q && !same_q && on[take_pair]);
  assign beat_queue_o   = 4'(beat_pair);
  assign beat_addr_o    = beat_addr_q;
  assign beat_first_o   = low_valid_q ? 4'd0 : 4'd8;
  assign beat_last_o    = high_valid_q ? 4'd15 : 4'd7;
  assign beat_data_o    = beat_q;
  assign flushed_o       = beat_on ? 2'd0 : 2'(low_valid_q) + 2'(high_valid_q);
  assign flushed_queue_o = 4'(beat_pair);

  // ---------------------------------------------------------------- places among the writes in flight
  // Half as many as token lines have: half of these are divided evenly among the queue pairs, and any queue pair may use the
  // others. A completion takes one when
  // it is chosen. It is given back once: with the response of its beat, when it joins a beat that has one, or when it is dropped or
  // flushed behind a disable.
  localparam int WritePlaces = MAX_WRITES / 2;
  localparam int OwnPlaces   = WritePlaces / (2 * Queues);
  localparam int AllShared   = WritePlaces - OwnPlaces * Queues;
  localparam int HeldBits    = $clog2(WritePlaces + 1);
  logic [HeldBits-1:0] held_q [0:Slots-1];               // places of a queue pair
  /* verilator lint_off UNUSEDSIGNAL */  // as many as an index can name
  logic [Slots-1:0]    place_free_q;                     // there is one more for it
  /* verilator lint_on UNUSEDSIGNAL */
  logic [HeldBits-1:0] lent_q, lent;                     // shared ones that are taken
  logic [HeldBits-1:0] held [0:Slots-1];
  logic                merges, flushes, places_change;

  assign merges        = write && low_valid_q && beat_on && !beat_ready_i;
  assign flushes       = flushed_o != '0;
  assign places_change = chooses || merges || drop || flushes || beat_ack;

  assign placed = place_free_q[Queues-1:0];

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      for (int q = 0; q < Slots; q++) held_q[q] <= '0;
      lent_q       <= '0;
      place_free_q <= '1;
    end else if (places_change) begin
      /* verilator lint_off BLKSEQ */  // within this process alone
      lent = lent_q;
      for (int q = 0; q < Queues; q++) begin
        held[q] = held_q[q] + HeldBits'(chooses && choice.pair == QueueBits'(q))
                - HeldBits'((merges || drop) && take_pair == QueueBits'(q)) - HeldBits'(flushes && beat_pair == QueueBits'(q))
                - HeldBits'(beat_ack && ack_pair == QueueBits'(q));
        if (held[q] > HeldBits'(OwnPlaces))   lent = lent + (held[q] - HeldBits'(OwnPlaces));
        if (held_q[q] > HeldBits'(OwnPlaces)) lent = lent - (held_q[q] - HeldBits'(OwnPlaces));
        held_q[q] <= held[q];
      end
      /* verilator lint_on BLKSEQ */
      for (int q = 0; q < Queues; q++) place_free_q[q] <= held[q] < HeldBits'(OwnPlaces) || lent < HeldBits'(AllShared);
      lent_q <= lent;
    end
  end

  // ---------------------------------------------------------------- what has become visible
  // Responses of one queue pair's beats come in order: a FIFO for each, whose oldest lies in a register. Kept through a
  // disable and a reset of the device: the responses of beats that were sent still come.
  logic                beat_ack, sent_low, sent_high, sent_low_asked, sent_high_asked;
  logic [Queues-1:0][3:0]  oldest_beat_q;
  logic [Queues-1:0][31:0] visible_to, asked_to;          // with it
  logic [Queues-1:0]   sent_some_q;                       // there is one
  logic [31:0]         visible;
  logic [5:0]          ack_number;

  assign ack_number = ack_id_i - COMPLETION_AXI_ID;
  assign ack_pair      = (Queues == 1) ? '0 : ack_number[QueueBits-1:0];
  assign beat_ack   = ack_i && ack_id_i >= COMPLETION_AXI_ID && ack_number < 6'(Queues);
  assign {sent_high, sent_low, sent_high_asked, sent_low_asked} = beat_ack ? oldest_beat_q[ack_pair] : '0;

  for (genvar q = 0; q < Queues; q++) begin : gen_sent
    logic [3:0]        sent_mem [0:MAX_WRITES-1];
    logic [SentBits:0] sent_new_q;
    logic [SentBits:0] sent_old_q;                        // the one behind the oldest
    logic              sends, acked_here, high, low;
    assign sends      = beat_goes && beat_pair == QueueBits'(q);
    assign acked_here = beat_ack && ack_pair == QueueBits'(q);
    // Side by side, while it is found out whose response it is.
    assign high       = oldest_beat_q[q][3];
    assign low        = oldest_beat_q[q][2];
    assign visible_to[q] = acked_here ? visible_q[q] + 32'(high) + 32'(low) : '0;
    assign asked_to[q]   = acked_here ? visible_q[q] + 32'd1 + 32'(high && low && oldest_beat_q[q][1]) : '0;

    always_ff @(posedge clk_i) begin
      if (sends) sent_mem[sent_new_q[SentBits-1:0]] <= {high_valid_q, low_valid_q, high_asked_q, low_asked_q};
      if (acked_here ? sent_new_q == sent_old_q : !sent_some_q[q])
        oldest_beat_q[q] <= {high_valid_q, low_valid_q, high_asked_q, low_asked_q};
      else if (acked_here)
        oldest_beat_q[q] <= sent_mem[sent_old_q[SentBits-1:0]];
      if (!bus_rst_ni) begin
        sent_some_q[q] <= 1'b0;
        sent_new_q     <= '0;
        sent_old_q     <= (SentBits+1)'(1);
      end else begin
        if (acked_here) begin
          sent_old_q <= sent_old_q + 1'b1;
          if (sent_new_q == sent_old_q) sent_some_q[q] <= 1'b0;
        end
        if (sends) begin
          sent_new_q     <= sent_new_q + 1'b1;
          sent_some_q[q] <= 1'b1;
        end
      end
    end
  end

  assign visible = beat_ack ? visible_to[ack_pair] : '0;

  // The cycles of a reset, and those in which the bus drains behind one, count nothing.
  assign line_fault_o     = (take && blamed) ? Queues'(16'd1 << take_pair) : '0;
  assign write_fault_o    = (beat_ack && ack_error_i && rst_ni) ? Queues'(16'd1 << ack_pair) : '0;
  assign answered_o       = (beat_ack && rst_ni) ? 2'(sent_low) + 2'(sent_high) : 2'd0;
  assign answered_queue_o = 4'(ack_pair);
  assign visible_o        = ack_error_i ? 2'd0 : answered_o;
  assign answered_to_o    = visible;
  assign asks_o           = answered_o != '0 && ((sent_high && sent_high_asked) || (sent_low && sent_low_asked));
  assign asked_to_o       = asks_o ? asked_to[ack_pair] : '0;
  assign arm_visible_o    = arm_i ? visible_q[release_pair] : '0;

  // ---------------------------------------------------------------- indices
  // Of each queue pair, while it is found out whose head it is: how far a released head lies above the present one, and below
  // the tail. Without a process: mmio_regs answers in one (Icarus 11).
  logic [Queues-1:0] in_range, moves;
  logic              frees, reserve_freed;
  for (genvar q = 0; q < Queues; q++) begin : gen_release
    logic        here;
    /* verilator lint_off UNUSEDSIGNAL */  // their signs alone
    logic [31:0] above, below;
    /* verilator lint_on UNUSEDSIGNAL */
    assign here        = release_i && release_pair == QueueBits'(q);
    assign above       = here ? release_head_i - head_q[q] : '0;
    assign below       = here ? tail_q[q] - release_head_i : '0;
    assign in_range[q] = here && !above[31] && !below[31];
    assign moves[q]    = here && release_head_i != head_q[q];
  end
  assign release_ok_o = release_i && enabled[release_pair] && in_range != '0;
  assign frees     = release_ok_o && moves != '0;
  assign reserve_freed = frees && release_pair == reserve_pair;

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      for (int q = 0; q < Queues; q++) begin
        head_q[q] <= '0;
        tail_q[q] <= '0;
      end
      slot_q <= '0;
    end else begin
      if (reserve_i) begin
        for (int q = 0; q < Queues; q++)
          if (reserve_pair == QueueBits'(q)) slot_q[q] <= 17'(reserved_q[q] - head_q[q]) != {1'b0, mask_q[q]} || reserve_freed;
        reserved_q[reserve_pair] <= reserved_q[reserve_pair] + 32'd1;
      end
      if (frees) begin
        head_q[release_pair] <= release_head_i;
        slot_q[release_pair] <= 1'b1;
      end
      if (write) tail_q[take_pair] <= tail_next;
      // R12: what is flushed was not written.
      if (flushed_o != '0) tail_q[beat_pair] <= tail_q[beat_pair] - {30'd0, flushed_o};
      if (beat_ack) visible_q[ack_pair] <= visible;
      if (start_i) begin
        base_q[start_pair]     <= start_config_i.cq_base;
        size_q[start_pair]     <= start_config_i.cq_size;
        mask_q[start_pair]     <= 16'(start_config_i.cq_size - 17'd1);
        head_q[start_pair]     <= start_config_i.cq_start;
        tail_q[start_pair]     <= start_config_i.cq_start;
        reserved_q[start_pair] <= start_config_i.cq_start;
        visible_q[start_pair]  <= start_config_i.cq_start;
        slot_q[start_pair]     <= 1'b1;
      end
    end
  end

  assign slot_o  = slot_q[Queues-1:0];
  assign head_o  = enabled[state_pair] ? head_q[state_pair] : tail_q[state_pair];
  assign tail_o  = tail_q[state_pair];

`ifndef SYNTHESIS
  initial if ($bits(done_i) != DONE_BITS) $fatal(1, "core_pkg: DONE_BITS must be %0d", $bits(done_i));
  initial if ($bits(line_now) != LineBits) $fatal(1, "completion_ring: LineBits must be %0d", $bits(line_now));
  // Lines of each queue pair by number, and not by descriptor.
  int after_q [0:Depth-1];                   // those that a record waits for
  int sent_q  [0:Slots-1];                   // those that have gone, …
  int acked_q [0:Slots-1];                   // … and were acknowledged
  always_ff @(posedge clk_i) begin
    if (push) after_q[place] <= sent_q[push_pair] + int'(line_i);
    if (!rst_ni) begin
      for (int q = 0; q < Slots; q++) begin
        sent_q[q]  <= 0;
        acked_q[q] <= 0;
      end
    end else begin
      if (line_i) sent_q[line_pair] <= sent_q[line_pair] + 1;
      if (line_ack) acked_q[acked_pair] <= acked_q[acked_pair] + 1;
      if (push && line_i && push_pair != line_pair)
        $fatal(1, "R3 completion_ring: a descriptor of queue pair %0d ends with a line of %0d", done_i.pair, line_queue_i);
    end
    if (take && rst_ni) begin
      if (write && tail - head_q[take_pair] >= {15'd0, record_size_q})
        $fatal(1, "R4 completion_ring: one more completion in queue %0d of %0d that holds %0d", take_pair, record_size_q, tail - head_q[take_pair]);
      if (write && reserved_q[take_pair] == tail)
        $fatal(1, "R4 completion_ring: a completion of queue pair %0d for which no slot was reserved", take_pair);
      if (acked_q[take_pair] < after_q[take_place] && wrote_q)
        $fatal(1, "R3 completion_ring: a completion would overtake its tokens");
      if (answered && !answer_i[take_pair])
        $fatal(1, "R3 completion_ring: what reads memory goes without its answer");
    end
    if (rst_ni && start_i && held_q[start_pair] != '0)
      $fatal(1, "R3 completion_ring: queue pair %0d starts with %0d write places of its last life", start_queue_i, held_q[start_pair]);
    if (rst_ni && places_change) begin
      if (lent_q > HeldBits'(AllShared)) $fatal(1, "R3 completion_ring: %0d shared write places are taken, of %0d", lent_q, AllShared);
      if (beat_valid_o && held_q[beat_pair] == '0)
        $fatal(1, "R3 completion_ring: a completion of queue pair %0d is put together without a write place", beat_queue_o);
      if (beat_ack && held_q[ack_pair] == '0)
        $fatal(1, "R3 completion_ring: queue pair %0d gives back a write place that it has not", answered_queue_o);
      if (drop && held_q[take_pair] == '0)
        $fatal(1, "R3 completion_ring: a completion of queue pair %0d is dropped without a write place", dropped_queue_o);
    end
    if (reserve_i && rst_ni) begin
      if (reserved_q[reserve_pair] - head_q[reserve_pair] >= {15'd0, size_q[reserve_pair]})
        $fatal(1, "R4 completion_ring: a slot of queue pair %0d is reserved that is not free", reserve_pair);
    end
    if (ack_i && rst_ni) begin
      if (!line_ack && !beat_ack && ack_id_i < MESSAGE_AXI_ID)
        $fatal(1, "R3 completion_ring: write response with unknown ID %0d", ack_id_i);
      if (beat_ack) begin
        if (!sent_some_q[ack_pair])
          $fatal(1, "R3 completion_ring: write response for a completion that was not sent");
        if ({30'd0, answered_o} > tail_q[ack_pair] - visible_q[ack_pair])
          $fatal(1, "R3 completion_ring: a completion was acknowledged that was not written");
      end
    end
  end
`endif
endmodule
