// Device half of the completion queues.
//
// A slot is reserved when a descriptor is handed out (R4 by credits), so no completion waits for one. A completion is
// released when all token lines of its descriptor are acknowledged, so that whoever sees the completion sees the tokens.
// Each worker's completions wait in a list of their own: one write response that is withheld delays the completions of
// its worker and of no other. Two neighbours of one queue pair that share a 64-byte line go out as one beat; the first of
// a pair waits for the second only while the write port is busy, no completion of another queue pair comes, and not for
// long.
//
// CQ indices run freely (R13), each by queue pair: head is the host's (CQ_HEAD), tail the next slot to fill, reserved the
// next one to give away, visible the first that is not yet acknowledged.
//
// Completions of a queue pair that is being disabled (R12) take the same way and are dropped at its end.
//
// Where a completion that belongs to a group takes its slot, group_table is told, and says whether it closes the group (R17).
module completion_ring
  import desc_pkg::*;
  import core_pkg::*;
#(
  parameter int Queues  = 1,
  parameter int Workers = 4,
  parameter int Depth   = 128          // completions that wait for acknowledged lines
) (
  /* verilator lint_off UNUSEDSIGNAL */  // numbers of queue pairs have 4 bits, whatever was built
  input  logic        clk_i,
  input  logic        rst_ni,
  input  logic        bus_rst_ni,      // of the bus: responses outlive a reset of the device

  input  logic        start_i,         // a queue pair starts, with this configuration
  input  logic [3:0]  start_queue_i,
  input  queue_config_t start_config_i,
  input  logic [Queues-1:0] on_i,      // completions of the others are dropped

  // CQ head doorbell; refused (ok low, same cycle) when it releases what was not written or runs backwards.
  input  logic        release_i,
  input  logic [3:0]  release_queue_i,
  input  logic [31:0] release_head_i,
  output logic        release_ok_o,
  input  logic        arm_i,           // ARM of that queue pair is written: …
  output logic [31:0] arm_visible_o,   // … the first of its completions that is not answered

  // R4: a slot is free; one is given away.
  output logic [Queues-1:0] slot_o,
  input  logic        reserve_i,
  input  logic [3:0]  reserve_queue_i,

  // A line goes to the write port, or a descriptor ends, or both: then the line is its last.
  input  logic                       line_i,
  input  logic [3:0]                 line_worker_i,
  input  logic                       done_valid_i,
  input  done_t                      done_i,
  input  logic [LINE_COUNT_BITS-1:0] done_after_i,   // lines of this worker that have gone, with that of this cycle
  input  logic [63:0]                done_addr_i,    // what it reads in memory lies there
  output logic [Workers-1:0]         done_ready_o,   // early: there is a place for a completion of this worker

  output logic [$clog2(Depth)-1:0]   place_o,        // where it goes

  // To readback, and back: what it reads once all before it of its rollout is posted. Its worker's list waits for it.
  output logic        read_valid_o,
  output logic [3:0]  read_queue_o,
  output logic        read_publishes_o,
  output logic        read_model_o,
  output logic [31:0] read_what_o,
  output logic [63:0] read_addr_o,
  input  logic        read_ready_i,    // early
  input  logic        answer_i,        // stays until it is taken
  input  logic [7:0]  answer_error_i,
  input  logic [31:0] answer_result_i,
  output logic        answer_taken_o,

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
  output logic        busy_o,          // a completion is here that was not sent
  output logic [Queues-1:0] line_fault_o,
  output logic [Queues-1:0] write_fault_o
  /* verilator lint_on UNUSEDSIGNAL */
);
  if (Workers < 1 || Workers > MAX_WORKERS) begin : gen_bad_workers
    localparam bit WorkersMustBe1To16 = {-1{1'b1}};   // ends the elaboration
  end

  if (Depth < 2 * Workers || Depth > 4096 || (Depth & (Depth - 1)) != 0) begin : gen_bad_depth
    localparam bit DepthMustBeAPowerOfTwoFrom2PerWorkerTo4096 = {-1{1'b1}};   // ends the elaboration
  end

  localparam logic [4:0] Patience = 5'd31;    // cycles for which half a beat waits behind token lines
  localparam int WorkerBits = (Workers == 1) ? 1 : $clog2(Workers);
  localparam int QueueBits  = (Queues == 1) ? 1 : $clog2(Queues);
  localparam int Slots      = 1 << QueueBits;

  logic [QueueBits-1:0] start_pair, release_pair, reserve_pair, state_pair, take_pair, beat_pair, ack_pair;
  assign start_pair   = (Queues == 1) ? '0 : start_queue_i[QueueBits-1:0];
  assign release_pair = (Queues == 1) ? '0 : release_queue_i[QueueBits-1:0];
  assign reserve_pair = (Queues == 1) ? '0 : reserve_queue_i[QueueBits-1:0];
  assign state_pair   = (Queues == 1) ? '0 : state_queue_i[QueueBits-1:0];
  logic [Slots-1:0] on;
  assign on = Slots'(on_i);

  logic [Queues-1:0][63:0] base_q;
  logic [Queues-1:0][16:0] size_q;
  logic [Queues-1:0][31:0] head_q;
  logic [Queues-1:0][31:0] tail_q;
  logic [Queues-1:0][31:0] reserved_q;
  logic [Queues-1:0][31:0] visible_q;
  /* verilator lint_off UNUSEDSIGNAL */  // as many as an index can name
  logic [Slots-1:0] slot_q;                // not all slots are given away
  /* verilator lint_on UNUSEDSIGNAL */

  // ---------------------------------------------------------------- places
  // One store for all records.
  localparam int PlaceBits = $clog2(Depth);
  localparam int Row       = (Depth < 16) ? Depth : 16;

  logic                  push, take, free_valid, free_full_unused;
  logic [WorkerBits-1:0] push_worker, take_worker;
  logic [PlaceBits-1:0]  place, free_place, take_place;
  logic [PlaceBits:0]    free_count_unused, fresh_q;

  assign push        = done_valid_i;
  assign push_worker = done_i.worker_id[WorkerBits-1:0];

  place_quota #(.Sources(Workers), .Places(Depth)) u_quota (
    .clk_i, .rst_ni,
    .clear_i (1'b0),
    .take_i  (push),
    .taker_i (push_worker),
    .give_i  (take),
    .giver_i (take_worker),
    .ready_o (done_ready_o)
  );

  // Places that were given back; before them, those that were never used since the last clear.
  sync_fifo #(.Width(PlaceBits), .Depth(Depth)) u_free (
    .clk_i, .rst_ni,
    .clear_i (1'b0),
    .push_i  (take),
    .data_i  (take_place),
    .full_o  (free_full_unused),
    .valid_o (free_valid),
    .data_o  (free_place),
    .pop_i   (push && free_valid),
    .count_o (free_count_unused)
  );
  assign place_o = place;
  assign place = free_valid ? free_place : fresh_q[PlaceBits-1:0];

  always_ff @(posedge clk_i) begin
    if (!rst_ni)        fresh_q <= '0;
    else if (push && !free_valid)  fresh_q <= fresh_q + 1'b1;
  end

  // ---------------------------------------------------------------- acknowledged lines
  // Per worker; write responses of one ID come in order.
  logic [LINE_COUNT_BITS-1:0] next_ack_q [0:(1 << WorkerBits)-1];   // the line that is acknowledged next; the first is 1
  logic                       line_ack;
  logic [WorkerBits-1:0]      ack_worker;
  assign line_ack   = ack_i && ack_id_i < 6'(Workers);
  assign ack_worker = ack_id_i[WorkerBits-1:0];

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      for (int w = 0; w < Workers; w++) next_ack_q[w] <= LINE_COUNT_BITS'(1);
    end else if (line_ack) begin
      next_ack_q[ack_worker] <= next_ack_q[ack_worker] + 1'b1;
    end
  end

  // ---------------------------------------------------------------- lists
  // R5 across workers: a rollout's next descriptor may run elsewhere while its last completion still waits here. The
  // later record then follows the earlier one. So the rollout of every record that is the newest of its rollout is
  // compared with that of a record that comes in.
  localparam int KeyBits = 32 + ((Queues == 1) ? 0 : QueueBits);
  logic [KeyBits-1:0] done_key;
  assign done_key = KeyBits'({done_i.pair, done_i.rollout_id});

  logic [DONE_BITS-1:0]       record_mem [0:Depth-1];
  logic [1:0]                 names_mem  [0:Depth-1];    // it names a version; its policy slot
  logic [WorkerBits+PlaceBits-1:0] follower_mem [0:Depth-1];   // the record that follows this one: worker, place
  logic [WorkerBits-1:0]      worker_q   [0:Depth-1];
  logic [KeyBits-1:0]         rollout_q  [0:Depth-1];    // with its queue pair
  logic [Depth-1:0]           newest_q;                  // of its rollout
  logic [Depth-1:0]           followed_q;                // follower_mem holds one
  logic [Depth-1:0]           follows_q;                 // the record that it follows has not gone
  localparam int              ReadBits = 102;            // queue pair, publishes, model, how many or which, address
  logic [ReadBits-1:0]        read_mem   [0:Depth-1];    // of one that reads memory before it goes

  // What is known of a record before it is its turn. Each has that of the worker's next one.
  typedef struct packed {
    logic                       reads;     // it reads memory before it goes
    logic [QueueBits-1:0]       pair;
    logic [PlaceBits-1:0]       place;
    logic [LINE_COUNT_BITS-1:0] after;     // lines of its worker that it waits for
  } entry_t;
  logic [$bits(entry_t)-1:0]  next_mem   [0:Depth-1];

  // Of each worker's list: its first, its second and its last record, and what holds the first one back. So nothing needs to
  // be read to know which one may go, and what is the first then.
  logic [PlaceBits-1:0]       first_q  [0:Workers-1];
  logic [Workers-1:0][QueueBits-1:0] pair_q;             // of the first
  logic [LINE_COUNT_BITS-1:0] after_q  [0:Workers-1];    // lines that the first waits for
  logic [$bits(entry_t)-1:0]  second_q [0:Workers-1];
  logic [PlaceBits-1:0]       last_q   [0:Workers-1];
  logic [Workers-1:0]         some_q;                    // there is one …
  logic [Workers-1:0]         more_q;                    // … and another one
  logic [Workers-1:0]         acked_all_q;               // the lines of the first are acknowledged
  logic [Workers-1:0]         held_q;                    // it follows a record that has not gone
  logic [Workers-1:0]         waits_q;                   // it reads memory

  logic                       known, follows, to_front, to_second, advance, third, released;
  logic [WorkerBits-1:0]      follower_worker;
  logic [PlaceBits-1:0]       newest_place, follower_place;
  entry_t                     entry, second;

  // A record goes (seldom: nothing of this is looked at without). Behind it: the next of its list, and the one that
  // follows it.
  assign advance    = take && more_q[take_worker];
  assign second     = advance ? second_q[take_worker] : '0;
  assign third      = advance && last_q[take_worker] != second.place;
  assign released   = take && followed_q[take_place];
  assign {follower_worker, follower_place} = take ? follower_mem[take_place] : '0;

  // A record comes in (seldom, too). It is the first of its list when no other stays there. A worker's own records keep
  // their order without following each other.
  always_comb begin
    known        = 1'b0;
    follows      = 1'b0;
    newest_place = '0;
    if (push) begin
      // A row at a time, of which most are empty. At most one is found.
      for (int row = 0; row < Depth; row = row + Row) begin
        if (newest_q[row +: Row] != '0) begin
          for (int k = row; k < row + Row; k++) begin
            if (newest_q[k] && rollout_q[k] == done_key) begin
              known        = 1'b1;
              newest_place = newest_place | PlaceBits'(k);
              if (worker_q[k] != push_worker && !(take && take_place == PlaceBits'(k))) follows = 1'b1;
            end
          end
        end
      end
    end
  end
  assign to_front  = push && (!some_q[push_worker] || (take && !advance && take_worker == push_worker));
  assign to_second = push && !to_front && (!more_q[push_worker] || (advance && !third && take_worker == push_worker));
  assign entry     = push ? {done_i.reads, done_i.pair[QueueBits-1:0], place, done_after_i} : '0;

  // So many lines of a worker are acknowledged, with that of this cycle.
  function automatic logic lines_acked(input logic [LINE_COUNT_BITS-1:0] after, input logic [LINE_COUNT_BITS-1:0] next_ack,
                                       input logic one_more);
    logic [LINE_COUNT_BITS-1:0] behind;
    behind      = after - next_ack - LINE_COUNT_BITS'(one_more);
    lines_acked = behind[LINE_COUNT_BITS-1];
  endfunction

  always_ff @(posedge clk_i) begin
    if (push) begin
      record_mem[place]     <= done_i;
      worker_q[place]       <= push_worker;
      names_mem[place]      <= {done_i.names, done_i.slot};
      if (done_i.reads) read_mem[place] <= {done_i.pair, done_i.publishes, done_i.reward_model_id[0], done_i.result, done_addr_i};
      rollout_q[place]      <= done_key;
      last_q[push_worker]   <= place;
      if (!to_front) next_mem[last_q[push_worker]] <= entry;
      if (follows)   follower_mem[newest_place]    <= {push_worker, place};
      followed_q[place] <= 1'b0;
      follows_q[place]  <= follows;
      if (follows) followed_q[newest_place] <= 1'b1;
    end
    if (take) begin
      if (released) follows_q[follower_place] <= 1'b0;
      if (advance) begin
        first_q[take_worker] <= second.place;
        pair_q[take_worker]  <= second.pair;
        after_q[take_worker] <= second.after;
        if (third) second_q[take_worker] <= next_mem[second.place];
      end
    end
    if (to_front) begin
      first_q[push_worker] <= place;
      pair_q[push_worker]  <= entry.pair;
      after_q[push_worker] <= done_after_i;
    end
    if (to_second) second_q[push_worker] <= entry;
  end

  // Of each worker: the lines of its second record are acknowledged.
  logic [Workers-1:0] second_acked;
  /* verilator lint_off UNUSEDSIGNAL */  // its lines alone
  entry_t             its_second;
  /* verilator lint_on UNUSEDSIGNAL */
  always_comb begin
    second_acked = '0;
    its_second   = '0;
    if (advance) begin
      for (int w = 0; w < Workers; w++) begin
        its_second      = second_q[w];
        second_acked[w] = lines_acked(its_second.after, next_ack_q[w], line_ack && ack_worker == WorkerBits'(w));
      end
    end
  end

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      newest_q       <= '0;
      some_q         <= '0;
      more_q         <= '0;
      acked_all_q    <= '0;
      held_q         <= '0;
      waits_q        <= '0;
    end else begin
      if (line_ack) begin
        if (some_q[ack_worker]) begin
          if (after_q[ack_worker] == next_ack_q[ack_worker]) acked_all_q[ack_worker] <= 1'b1;
        end
      end
      if (take) begin
        newest_q[take_place] <= 1'b0;
        if (released) begin
          for (int w = 0; w < Workers; w++)
            if (follower_worker == WorkerBits'(w) && first_q[w] == follower_place) held_q[w] <= 1'b0;
        end
        some_q[take_worker]      <= advance;
        more_q[take_worker]      <= third;
        acked_all_q[take_worker] <= second_acked[take_worker];
        held_q[take_worker]      <= advance && follows_q[second.place];
        waits_q[take_worker]     <= second.reads;
      end
      if (push) begin
        if (known) newest_q[newest_place] <= 1'b0;
        newest_q[place]     <= 1'b1;
        some_q[push_worker] <= 1'b1;
        if (!to_front) more_q[push_worker] <= 1'b1;
        if (to_front) begin
          acked_all_q[push_worker] <= lines_acked(done_after_i, next_ack_q[push_worker], line_ack && ack_worker == push_worker);
          held_q[push_worker]      <= follows;
          waits_q[push_worker]     <= done_i.reads;
        end
      end
    end
  end

  // ---------------------------------------------------------------- faulty lines
  // A completion is blamed for a faulty line of its own descriptor, and for no other. A worker's lines go, and are
  // acknowledged, in order; so of those in flight it is enough to know which one is the first of its descriptor. Descriptors
  // with lines are counted three times per worker, as their lines go, are acknowledged, and as their records leave: at most
  // Depth of them have their record here, and one more is being run.
  localparam int MarkBits = PlaceBits + 1;
  localparam int SentBits = $clog2(MAX_WRITES);
  logic                   opens_mem [0:(MAX_WRITES << WorkerBits)-1];   // of a line in flight: the first of its descriptor
  logic                   fault_mem [0:(1 << (WorkerBits + MarkBits))-1];   // of a descriptor: one of its lines was faulty
  logic [Workers-1:0]     lined_q;                                      // of what a worker runs a line has gone
  logic [Depth-1:0]       wrote_q;                                      // of a record: its descriptor has lines
  logic [MarkBits-1:0]    marked_q [0:(1 << WorkerBits)-1];             // descriptors of which a line was acknowledged
  logic [MarkBits-1:0]    left_q   [0:(1 << WorkerBits)-1];             // records with lines that have left
  logic [WorkerBits-1:0]  line_worker;
  logic                   opens, line_fault, wrote, blamed;
  logic [MarkBits-1:0]    mark;
  assign line_worker = line_worker_i[WorkerBits-1:0];
  assign opens       = line_ack && opens_mem[{ack_worker, next_ack_q[ack_worker][SentBits-1:0]}];
  assign mark        = marked_q[ack_worker] - MarkBits'(!opens);
  assign line_fault  = line_ack && ack_error_i;
  assign wrote       = take && wrote_q[take_place];
  assign blamed      = wrote && fault_mem[{take_worker, left_q[take_worker]}];

  always_ff @(posedge clk_i) begin
    if (line_i) opens_mem[{line_worker, done_after_i[SentBits-1:0]}] <= !lined_q[line_worker];
    if (push)   wrote_q[place] <= lined_q[push_worker] || line_i;
    if (opens || line_fault) fault_mem[{ack_worker, mark}] <= line_fault;
    if (!rst_ni) begin
      lined_q <= '0;
      for (int w = 0; w < Workers; w++) begin
        marked_q[w] <= '0;
        left_q[w]   <= '0;
      end
    end else begin
      if (line_i) lined_q[line_worker] <= 1'b1;
      if (push)   lined_q[push_worker] <= 1'b0;
      if (opens)  marked_q[ack_worker] <= marked_q[ack_worker] + 1'b1;
      if (wrote)  left_q[take_worker]  <= left_q[take_worker] + 1'b1;
    end
  end

  // ---------------------------------------------------------------- the next completion
  logic [Workers-1:0] ready, grant, drops, writes;
  /* verilator lint_off UNUSEDSIGNAL */  // as wide as for the most workers
  logic [3:0]         number;
  /* verilator lint_on UNUSEDSIGNAL */
  // What reads is ready with its answer.
  logic [Workers-1:0] reading_q;         // whose first record is with readback
  assign ready = acked_all_q & ~held_q & ~(waits_q & ~(reading_q & {Workers{answer_i}}));

  round_robin #(.N(Workers)) u_round_robin (
    .clk_i, .rst_ni,
    .request_i (ready),
    .grant_o   (grant),
    .number_o  (number),
    .accept_i  (take)
  );
  assign take_worker = number[WorkerBits-1:0];

  // ---------------------------------------------------------------- what reads memory first
  logic [Workers-1:0]    asking, read_grant;
  logic                  answered;
  /* verilator lint_off UNUSEDSIGNAL */  // as wide as for the most workers
  logic [3:0]            read_number;
  /* verilator lint_on UNUSEDSIGNAL */
  logic [WorkerBits-1:0] read_worker;
  logic [ReadBits-1:0]   read_record;

  assign asking       = (waits_q != '0 && read_ready_i) ? waits_q & acked_all_q & ~held_q : '0;
  assign read_valid_o = asking != '0;
  assign read_worker  = read_number[WorkerBits-1:0];
  assign read_record  = read_valid_o ? read_mem[first_q[read_worker]] : '0;
  assign {read_queue_o, read_publishes_o, read_model_o, read_what_o, read_addr_o} = read_record;
  assign answered       = take && answer_i && reading_q[take_worker];
  assign answer_taken_o = answered;

  round_robin #(.N(Workers)) u_read_robin (
    .clk_i, .rst_ni,
    .request_i (asking),
    .grant_o   (read_grant),
    .number_o  (read_number),
    .accept_i  (read_valid_o)
  );

  always_ff @(posedge clk_i) begin
    if (!rst_ni)           reading_q <= '0;
    else if (read_valid_o) reading_q <= read_grant;
    else if (answered)     reading_q <= '0;
  end
  // What is looked at while nothing is ready is of no use, and costs nothing.
  assign take_place  = (ready != '0) ? first_q[take_worker] : '0;
  assign take_pair      = (Queues == 1 || ready == '0) ? '0 : pair_q[take_worker];

  // ---------------------------------------------------------------- one beat of two slots
  logic                low_valid_q, high_valid_q, low_asked_q, high_asked_q;
  logic [511:0]        beat_q;
  logic [63:0]         beat_addr_q;
  logic [4:0]          waited_q;
  logic [QueueBits-1:0] beat_queue_q;
  /* verilator lint_off UNUSEDSIGNAL */  // the queue pair lies in a memory of its own
  done_t               record;
  /* verilator lint_on UNUSEDSIGNAL */
  hw_completion_t      completion;
  logic [7:0]          status, error;
  logic                phase, drop, write, beat_on, beat_goes;
  logic [31:0]         tail;
  logic [16:0]         size;

  assign beat_pair = (Queues == 1) ? '0 : beat_queue_q;
  assign beat_on   = on[beat_pair];
  assign beat_goes = beat_valid_o && beat_ready_i;
  // Of each worker, while it is found out whose turn it is: its first record is dropped, or has room in the beat. A low half
  // that leaves alone in this cycle must not be joined.
  logic [QueueBits-1:0] its_pair;
  logic                 its_on, same, fits;
  always_comb begin
    drops    = '0;
    writes   = '0;
    its_pair = '0;
    its_on   = 1'b0;
    same     = 1'b0;
    fits     = 1'b0;
    if (ready != '0) begin
      for (int w = 0; w < Workers; w++) begin
        its_pair  = (Queues == 1) ? '0 : pair_q[w];
        its_on    = on[its_pair];
        same      = Queues == 1 || its_pair == beat_pair;
        fits      = !beat_ready_i ? !high_valid_q && (!low_valid_q || same) : high_valid_q || !low_valid_q || !same;
        drops[w]  = ready[w] && !its_on;
        writes[w] = ready[w] && its_on && fits && (beat_on || !(low_valid_q || high_valid_q));
      end
    end
  end
  assign drop      = (grant & drops) != '0;
  assign write     = (grant & writes) != '0;
  assign take      = drop || write;

  logic names;
  assign {names, finish_slot_o} = take ? names_mem[take_place] : '0;
  assign finish_o       = names;
  assign finish_queue_o = 4'(take_pair);

  assign posted_o       = write;
  assign posted_queue_o = 4'(take_pair);
  assign posted_place_o = take_place;
  assign posted_index_o = tail;
  assign dropped_o       = drop;
  assign dropped_queue_o = 4'(take_pair);

  // Not in the process below: group_table answers in between.
  assign group_o        = record.belongs;
  assign group_entry_o  = record.entry;
  assign group_fills_o  = record.fills;
  assign group_ends_o   = record.ends && !blamed;
  assign group_all_o    = record.all;
  assign group_member_o = record.member;

  always_comb begin
    status     = '0;
    error      = '0;
    completion = '0;
    tail       = '0;
    size       = '0;
    phase      = 1'b0;
    if (write) begin
      tail       = tail_q[take_pair];
      size       = size_q[take_pair];
      phase      = (tail & {15'd0, size}) == '0;
      status     = (blamed || (answered && answer_error_i != ERR_NONE)) ? STATUS_ERROR : record.status;
      error      = answered ? answer_error_i : (blamed && record.status != STATUS_ERROR) ? ERR_DMA_FAULT : record.error;
      completion = {phase, 7'd0, status, record.flags, error,
                    record.worker_id, record.reward_model_id, sq_head_i, answered ? answer_result_i : record.result,
                    phase, record.final_seq_len, record.rollout_id, record.user_data};
    end
  end
  assign error_done_o = write && status == STATUS_ERROR;
  assign busy_o       = some_q != '0 || low_valid_q || high_valid_q;

  // One test for all of it; behind the process that it feeds (Icarus 11).
  always_comb begin
    record = '0;
    if (write) record = record_mem[take_place];
  end

  always_ff @(posedge clk_i) begin
    if (write) begin
      if (tail[0]) begin
        beat_q[511:256] <= completion;
        high_asked_q    <= record.irq || status == STATUS_ERROR || group_closes_i;
        if (group_closes_i) beat_q[256 + HW_COMPLETION_FLAGS_LSB + CFLAG_GROUP_DONE_BIT] <= 1'b1;
      end else begin
        beat_q[255:0] <= completion;
        low_asked_q   <= record.irq || status == STATUS_ERROR || group_closes_i;
        if (group_closes_i) beat_q[HW_COMPLETION_FLAGS_LSB + CFLAG_GROUP_DONE_BIT] <= 1'b1;
      end
      beat_addr_q  <= base_q[take_pair] + {42'd0, tail[16:1] & (size[16:1] - 16'd1), 6'd0};
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
  assign beat_urgent_o  = high_valid_q || waited_q == Patience || (Queues > 1 && ready != '0 && take_pair != beat_pair && on[take_pair]);
  assign beat_queue_o   = 4'(beat_pair);
  assign beat_addr_o    = beat_addr_q;
  assign beat_first_o   = low_valid_q ? 4'd0 : 4'd8;
  assign beat_last_o    = high_valid_q ? 4'd15 : 4'd7;
  assign beat_data_o    = beat_q;
  assign flushed_o       = beat_on ? 2'd0 : 2'(low_valid_q) + 2'(high_valid_q);
  assign flushed_queue_o = 4'(beat_pair);

  // ---------------------------------------------------------------- what has become visible
  // Responses of one queue pair's beats come in order: a FIFO for each. Kept through a disable and a reset of the
  // device: the responses of beats that were sent still come.
  logic                beat_ack, sent_low, sent_high, sent_low_asked, sent_high_asked;
  logic [3:0]          sent_mem   [0:Slots*MAX_WRITES-1];
  logic [Queues-1:0][SentBits-1:0] sent_new_q;
  logic [Queues-1:0][SentBits-1:0] sent_old_q;
  logic [31:0]         visible;
  logic [5:0]          ack_number;

  assign ack_number = ack_id_i - COMPLETION_AXI_ID;
  assign ack_pair      = (Queues == 1) ? '0 : ack_number[QueueBits-1:0];
  assign beat_ack   = ack_i && ack_id_i >= COMPLETION_AXI_ID && ack_number < 6'(Queues);
  assign {sent_high, sent_low, sent_high_asked, sent_low_asked} = beat_ack ? sent_mem[{ack_pair, sent_old_q[ack_pair]}] : '0;

  always_ff @(posedge clk_i) begin
    if (beat_goes) sent_mem[{beat_pair, sent_new_q[beat_pair]}] <= {high_valid_q, low_valid_q, high_asked_q, low_asked_q};
    if (!bus_rst_ni) begin
      for (int q = 0; q < Queues; q++) begin
        sent_new_q[q] <= '0;
        sent_old_q[q] <= '0;
      end
    end else begin
      if (beat_goes) sent_new_q[beat_pair] <= sent_new_q[beat_pair] + 1'b1;
      if (beat_ack)  sent_old_q[ack_pair]  <= sent_old_q[ack_pair] + 1'b1;
    end
  end

  // The cycles of a reset, and those in which the bus drains behind one, count nothing.
  assign line_fault_o     = blamed ? Queues'(16'd1 << take_pair) : '0;
  assign write_fault_o    = (beat_ack && ack_error_i && rst_ni) ? Queues'(16'd1 << ack_pair) : '0;
  assign answered_o       = (beat_ack && rst_ni) ? 2'(sent_low) + 2'(sent_high) : 2'd0;
  assign answered_queue_o = 4'(ack_pair);
  assign visible_o        = ack_error_i ? 2'd0 : answered_o;
  assign answered_to_o    = visible;
  assign asks_o           = answered_o != '0 && ((sent_high && sent_high_asked) || (sent_low && sent_low_asked));
  assign asked_to_o       = (sent_high && sent_high_asked) ? visible : asks_o ? visible_q[ack_pair] + 32'd1 : '0;
  assign arm_visible_o    = arm_i ? visible_q[release_pair] : '0;
  assign visible          = beat_ack ? visible_q[ack_pair] + {30'd0, answered_o} : '0;

  // ---------------------------------------------------------------- indices
  logic [31:0] held;
  logic        frees, reserve_freed;

  assign held         = release_i ? tail_q[release_pair] - head_q[release_pair] : '0;
  assign release_ok_o = release_i && on[release_pair] && tail_q[release_pair] - release_head_i <= held;
  assign frees     = release_ok_o && release_head_i != head_q[release_pair];
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
        slot_q[reserve_pair]     <= reserved_q[reserve_pair] + 32'd1 - head_q[reserve_pair] != {15'd0, size_q[reserve_pair]} || reserve_freed;
        reserved_q[reserve_pair] <= reserved_q[reserve_pair] + 32'd1;
      end
      if (frees) begin
        head_q[release_pair] <= release_head_i;
        slot_q[release_pair] <= 1'b1;
      end
      if (write) tail_q[take_pair] <= tail + 32'd1;
      // R12: what is flushed was not written.
      if (flushed_o != '0) tail_q[beat_pair] <= tail_q[beat_pair] - {30'd0, flushed_o};
      if (beat_ack) visible_q[ack_pair] <= visible;
      if (start_i) begin
        base_q[start_pair]     <= start_config_i.cq_base;
        size_q[start_pair]     <= start_config_i.cq_size;
        head_q[start_pair]     <= start_config_i.cq_start;
        tail_q[start_pair]     <= start_config_i.cq_start;
        reserved_q[start_pair] <= start_config_i.cq_start;
        visible_q[start_pair]  <= start_config_i.cq_start;
        slot_q[start_pair]     <= 1'b1;
      end
    end
  end

  assign slot_o  = slot_q[Queues-1:0];
  assign head_o  = on[state_pair] ? head_q[state_pair] : tail_q[state_pair];
  assign tail_o  = tail_q[state_pair];

`ifndef SYNTHESIS
  initial if ($bits(done_i) != DONE_BITS) $fatal(1, "core_pkg: DONE_BITS must be %0d", $bits(done_i));
  logic [LINE_COUNT_BITS-1:0] behind;
  assign behind = after_q[take_worker] - next_ack_q[take_worker];
  always_ff @(posedge clk_i) begin
    if (take && rst_ni) begin
      if (write && tail - head_q[take_pair] >= {15'd0, size})
        $fatal(1, "R4 completion_ring: one more completion in queue %0d of %0d that holds %0d", take_pair, size, tail - head_q[take_pair]);
      if (write && reserved_q[take_pair] == tail)
        $fatal(1, "R4 completion_ring: a completion of queue pair %0d for which no slot was reserved", take_pair);
      if (!behind[LINE_COUNT_BITS-1])
        $fatal(1, "R3 completion_ring: a completion would overtake its tokens");
    end
    if (reserve_i && rst_ni) begin
      if (reserved_q[reserve_pair] - head_q[reserve_pair] >= {15'd0, size_q[reserve_pair]})
        $fatal(1, "R4 completion_ring: a slot of queue pair %0d is reserved that is not free", reserve_pair);
    end
    if (ack_i && rst_ni) begin
      if (!line_ack && !beat_ack && ack_id_i < MESSAGE_AXI_ID)
        $fatal(1, "R3 completion_ring: write response with unknown ID %0d", ack_id_i);
      if (beat_ack) begin
        if (sent_new_q[ack_pair] == sent_old_q[ack_pair])
          $fatal(1, "R3 completion_ring: write response for a completion that was not sent");
        if ({30'd0, answered_o} > tail_q[ack_pair] - visible_q[ack_pair])
          $fatal(1, "R3 completion_ring: a completion was acknowledged that was not written");
      end
    end
  end
`endif
endmodule
