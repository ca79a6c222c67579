// The event rings (R23): each function has a ring in its own memory, which records when each of its descriptors passed through
// the device (LIFE), and what faults its queue pairs had (FAULT).
//
// A descriptor's moments are noted where they happen and lie where it is: when its slot was read, in a queue beside that of its
// queue pair, then by worker; when a worker began with it, had its first token and its end, by worker; all of it, once its end
// is delivered, by its place in completion_ring; from there, once its completion has its index, by queue pair and index, until
// that is visible and an event has told of it. How many completions are visible and have no event yet is counted by queue pair. So
// one write response may make two completions visible, and neither waits for an event.
//
// Events hold nothing back. One goes to the write port while that has nothing else to do, or once it has waited for Patience
// cycles since it was offered; one that finds no room in the ring or on the bus is dropped and counted. A queue pair with too many waiting
// events loses its oldest, in the cycle in which a new one becomes visible. So its flood costs no other queue pair an event. A fault waits in a latch of its queue pair,
// with the function that it was raised in.
//
// Queue pairs take turns (R28). In a turn a queue pair has an event: a FAULT if it has one. A LIFE event that waits before another queue pair has
// the next turn is of the same turn, and counts as having waited for as long. So a turn takes Patience once, whatever is told in it, and a
// FAULT costs the LIFE events of its own queue pair no further turn.
//
// Nothing of this moves while no ring runs, and nothing of LIFE while no function wants it, but for what counts the
// descriptors of each worker, and the index of each queue pair's next completion.
module event_ring
  import desc_pkg::*;
  import core_pkg::*;
#(
  parameter int Queues     = 1,
  parameter int Functions  = 1,
  parameter int Workers    = 4,
  parameter int FetchDepth = 128,         // descriptors between the read of their slot and a worker
  parameter int Depth      = 128          // places of completion_ring
) (
  /* verilator lint_off UNUSEDSIGNAL */  // numbers of queue pairs and functions have 4 bits, whatever was built
  input  logic        clk_i,
  input  logic        rst_ni,             // low until the bus owes nothing any more
  input  logic        start_i,            // a queue pair starts, with this configuration
  input  logic [3:0]  start_queue_i,
  input  queue_config_t start_config_i,
  input  logic [Queues-1:0] on_i,         // R12: events of the others are dropped; a dead queue pair's are not (R24)
  input  logic [Queues-1:0] active_i,
  input  logic [Queues-1:0][3:0] owner_i, // the function of each queue pair

  // Registers of a function. EQ_HEAD is refused (ok low, same cycle) when it releases what was not written or runs backwards.
  input  logic        release_i,
  input  logic [3:0]  release_owner_i,
  input  logic [31:0] release_head_i,
  output logic        release_ok_o,
  input  logic [3:0]  read_owner_i,
  output logic [31:0] head_o,
  output logic [31:0] tail_o,
  output logic [31:0] dropped_o,

  // A descriptor on its way.
  input  logic        slot_i,             // its slot arrives
  input  logic [3:0]  slot_queue_i,
  input  logic        taken_i,            // the oldest of a queue pair goes to a worker
  input  logic [3:0]  taken_queue_i,
  input  logic [3:0]  taken_worker_i,
  input  logic [Workers-1:0] begun_i,     // workers begin with their next …
  input  logic [Workers-1:0] token_i,     // … produce a token of it …
  input  logic [Workers-1:0] done_i,      // … end it
  input  logic        delivered_i,        // the oldest end of a worker goes to completion_ring, …
  input  logic [3:0]  delivered_worker_i,
  input  logic [3:0]  delivered_queue_i,
  input  logic        delivered_reads_i,  // … which has it read memory before its end is known, …
  input  logic [$clog2(Depth)-1:0] delivered_place_i,   // … into this place
  input  logic        posted_i,           // what is in a place gets an index
  input  logic [3:0]  posted_queue_i,
  input  logic [$clog2(Depth)-1:0] posted_place_i,
  input  logic [31:0] posted_index_i,
  input  logic [1:0]  answered_i,         // completions whose write was answered in this cycle, of one queue pair, …
  input  logic [3:0]  answered_queue_i,
  input  logic [31:0] answered_to_i,      // … the index behind them, …
  input  logic [1:0]  visible_i,          // … and those that are visible

  // Bits of ERROR that are set in this cycle and were not: of each queue pair, bit 0 of ERROR first; the last is BUS_TIMEOUT.
  input  logic [6*Queues-1:0] raised_i,

  // To the write port.
  output logic        event_valid_o,
  output logic        event_urgent_o,     // goes before lines and completions
  output logic [3:0]  event_owner_o,
  output logic [63:0] event_addr_o,       // a multiple of 32
  output logic [255:0] event_data_o,
  input  logic        event_ready_i,      // early
  input  logic        ack_i,
  input  logic [5:0]  ack_id_i,
  input  logic        ack_error_i,
  input  logic [Functions-1:0] held_i,    // R24: the bus owes a function what was given up under this ID. What it would tell behind that is lost

  output logic [Queues-1:0] waits_o,      // something of it is not told: a drain waits for it
  output logic [Queues-1:0] busy_o,       // likewise, or an event of it was promised to the bus
  output logic              moves_o       // a ring runs, or what one left is on its way
  /* verilator lint_on UNUSEDSIGNAL */
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

  localparam int QueueBits     = (Queues == 1) ? 1 : $clog2(Queues);
  localparam int Slots         = 1 << QueueBits;
  localparam int FunctionBits  = (Functions == 1) ? 1 : $clog2(Functions);
  localparam int FunctionSlots = 1 << FunctionBits;
  localparam int WorkerBits    = (Workers == 1) ? 1 : $clog2(Workers);
  localparam int PlaceBits     = $clog2(Depth);
  localparam int FetchPlaces   = (Queues == 1) ? FetchDepth : FetchDepth / Slots;   // of each queue pair
  localparam int FetchBits     = $clog2(FetchPlaces);
  localparam int TimeBits      = 63;
  localparam int DeltaBits     = 31;
  // Completions of one queue pair that are not answered: less than 200, as MAX_WRITES beats of two are in flight at most, and
  // of them half are others' own. So many more may be visible and not told, of each queue pair by itself.
  localparam int Moments       = (Queues == 1) ? 512 : 256;
  localparam int MomentBits    = $clog2(Moments);
  localparam int Late          = Moments - 208;
  localparam int RecordBits    = 1 + 4 + TimeBits + 3 * DeltaBits;
  // Events of a function on the bus, at most: of all no more than 256.
  localparam int Credits       = (FunctionSlots <= 4) ? 64 : 256 / FunctionSlots;
  localparam int CreditBits    = $clog2(Credits);
  localparam logic [4:0] Patience = 5'd31;

  logic [QueueBits-1:0]    start_pair, slot_pair, taken_pair, delivered_pair, posted_pair, answered_pair;
  logic [FunctionBits-1:0] start_function, release_function, read_function, ack_function;
  assign start_pair       = (Queues == 1) ? '0 : start_queue_i[QueueBits-1:0];
  assign slot_pair        = (Queues == 1) ? '0 : slot_queue_i[QueueBits-1:0];
  assign taken_pair       = (Queues == 1) ? '0 : taken_queue_i[QueueBits-1:0];
  assign delivered_pair   = (Queues == 1) ? '0 : delivered_queue_i[QueueBits-1:0];
  assign posted_pair      = (Queues == 1) ? '0 : posted_queue_i[QueueBits-1:0];
  assign answered_pair    = (Queues == 1) ? '0 : answered_queue_i[QueueBits-1:0];
  assign start_function   = (Functions == 1) ? '0 : start_config_i.owner[FunctionBits-1:0];
  assign release_function = (Functions == 1) ? '0 : release_owner_i[FunctionBits-1:0];
  assign read_function    = (Functions == 1) ? '0 : read_owner_i[FunctionBits-1:0];
  assign ack_function     = (Functions == 1) ? '0 : ack_id_i[FunctionBits-1:0];

  // ---------------------------------------------------------------- the rings
  logic [FunctionSlots-1:0][63:0] base_q;
  logic [FunctionSlots-1:0][16:0] size_q;
  logic [FunctionSlots-1:0][31:0] head_q, given_q, answered_q, dropped_q;
  logic [FunctionSlots-1:0]       rings_q;   // that run
  logic [Slots-1:0]               tells_q;   // queue pairs whose completions have events
  logic [FunctionSlots-1:0]       some_active;
  logic                           any, lives, starts, ends, event_ack;
  logic [Queues-1:0]              active_q;  // as it was when it last was another
  logic                           awake_q;   // a ring runs, or what one left is on its way
  logic                           told_q, offer_q;
  logic [Slots-1:0]               untold_q;
  logic [Queues-1:0]              faulty_q, flying_q;
  logic [TimeBits-1:0]            now_q;

  assign any       = rings_q != '0;
  assign lives     = tells_q != '0;
  assign starts    = start_i && start_config_i.eq_starts;
  assign ends      = active_i != active_q;
  assign event_ack = ack_i ? ack_id_i >= EVENT_AXI_ID && rst_ni : 1'b0;   // what drains behind a reset counts nothing

  always_comb begin
    some_active = '0;
    if (awake_q && ends) begin
      for (int q = 0; q < Queues; q++) if (active_i[q]) some_active[(Functions == 1) ? FunctionBits'(0) : FunctionBits'(owner_i[q])] = 1'b1;
    end
  end

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      rings_q <= '0;
      tells_q <= '0;
      now_q   <= '0;
      active_q <= '0;
      awake_q <= 1'b0;
    end else if (awake_q || start_i) begin
      // What is on its way comes out of what was: nothing begins but by a start.
      if (!any) awake_q <= starts || told_q || offer_q || untold_q != '0 || faulty_q != '0 || flying_q != '0;
      if (any || start_i) now_q <= now_q + 1'b1;
      if (ends) begin
        active_q <= active_i;
        rings_q <= rings_q & some_active;
        tells_q <= tells_q & Slots'(active_i);
      end
      if (start_i) tells_q[start_pair] <= start_config_i.eq_size != '0 && start_config_i.eq_life;
      if (starts) begin
        rings_q[start_function] <= start_config_i.eq_size != '0;
        base_q[start_function]  <= start_config_i.eq_base;
        size_q[start_function]  <= start_config_i.eq_size;
      end
    end
  end

  // ---------------------------------------------------------------- moments of a descriptor
  // Its slot arrives and a worker takes it, both in the order of the queue pair; a worker runs it; its end is delivered; it is
  // posted. A difference of low bits is right as long as its sign says so and nothing took longer; else all say the most.
  function automatic logic took_long(input logic [TimeBits-1:0] now, input logic [TimeBits-1:0] since);
    /* verilator lint_off UNUSEDSIGNAL */  // its upper part alone
    logic [TimeBits-1:0] took;
    /* verilator lint_on UNUSEDSIGNAL */
    took      = now - since;
    took_long = took[TimeBits-1:DeltaBits] != '0;
  endfunction

  /* verilator lint_off UNUSEDSIGNAL */  // low bits alone
  function automatic logic [DeltaBits-1:0] after(input logic [31:0] low, input logic [TimeBits-1:0] since);
    /* verilator lint_on UNUSEDSIGNAL */
    after = DeltaBits'(low - since[31:0]);
  endfunction

  logic [TimeBits-1:0]  fetched_mem [0:FetchPlaces*Slots-1];
  logic [TimeBits-1:0]  held_mem    [0:8*MAX_WORKERS-1];     // by worker: five at most
  logic [Queues-1:0][FetchBits-1:0] fetch_new_q, fetch_old_q;
  logic [MAX_WORKERS-1:0][2:0] held_new_q, held_old_q;
  logic [6:0]           held_place_q;
  logic [TimeBits-1:0]  fetched_q;
  // Of what runs, and of two ends that are not delivered. The low bits of a moment.
  logic [Workers*32-1:0] start_q, first_q;
  logic [Workers*32-1:0] start_0_q, start_1_q, first_0_q, first_1_q, ended_0_q, ended_1_q;
  logic [Workers-1:0]    had_q, end_q;                      // has had a token, or its end; which place is next
  logic                 reads_q;
  logic [3:0]           worker_q;
  logic [WorkerBits-1:0] delivered_worker;
  logic [PlaceBits-1:0] place_q, posted_place_q;
  logic [TimeBits-1:0]  held_q;
  logic [31:0]          begun_q, token_q, ended_q, moment_q, noted_q;
  logic [RecordBits-1:0] record_mem [0:Depth-1];
  logic [RecordBits-1:0] posted_q;
  logic [QueueBits+MomentBits-1:0] posted_at_q, noted_at_q;
  logic [2:0]           held_old;
  logic                 out_1;            // an end lies in the place that the parity of the worker's descriptors names
  logic [RecordBits-1:0] moments_mem [0:Slots*Moments-1];
  logic                 takes_q, delivers_q, posts_q, notes_q;   // second steps

  assign delivered_worker = (Workers == 1) ? '0 : delivered_worker_i[WorkerBits-1:0];
  assign held_old         = held_old_q[delivered_worker_i];
  assign out_1            = held_old[0];

  // Counted whoever wants it: LIFE may begin while others' descriptors run.
  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      held_new_q <= '0;
      held_old_q <= '0;
      end_q      <= '0;
    end else begin
      if (taken_i)        held_new_q[taken_worker_i]     <= held_new_q[taken_worker_i] + 1'b1;
      if (delivered_i)    held_old_q[delivered_worker_i] <= held_old_q[delivered_worker_i] + 1'b1;
      if (done_i != '0)   end_q                          <= end_q ^ done_i;
    end
  end

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      takes_q    <= 1'b0;
      delivers_q <= 1'b0;
      posts_q    <= 1'b0;
      notes_q    <= 1'b0;
    end else if (lives || takes_q || delivers_q || posts_q || notes_q) begin
      // A slot arrives, a worker takes it.
      takes_q <= taken_i && tells_q[taken_pair];
      if (slot_i && tells_q[slot_pair]) begin
        fetched_mem[(FetchBits + QueueBits)'({slot_pair, fetch_new_q[slot_pair]})] <= now_q;
        fetch_new_q[slot_pair] <= fetch_new_q[slot_pair] + 1'b1;
      end
      if (taken_i && tells_q[taken_pair]) begin
        fetched_q    <= fetched_mem[(FetchBits + QueueBits)'({taken_pair, fetch_old_q[taken_pair]})];
        held_place_q <= {taken_worker_i, held_new_q[taken_worker_i]};
        fetch_old_q[taken_pair] <= fetch_old_q[taken_pair] + 1'b1;
      end
      if (takes_q) held_mem[held_place_q] <= fetched_q;

      // A worker runs it.
      if (lives) begin
        if (done_i != '0) begin
          for (int w = 0; w < Workers; w++) begin
            if (done_i[w] && end_q[w]) begin
              start_1_q[w*32 +: 32] <= start_q[w*32 +: 32];
              first_1_q[w*32 +: 32] <= had_q[w] ? first_q[w*32 +: 32] : now_q[31:0];
              ended_1_q[w*32 +: 32] <= now_q[31:0];
            end else if (done_i[w]) begin
              start_0_q[w*32 +: 32] <= start_q[w*32 +: 32];
              first_0_q[w*32 +: 32] <= had_q[w] ? first_q[w*32 +: 32] : now_q[31:0];
              ended_0_q[w*32 +: 32] <= now_q[31:0];
            end
          end
        end
        if (((token_i | done_i) & ~had_q) != '0) begin
          for (int w = 0; w < Workers; w++) if ((token_i[w] || done_i[w]) && !had_q[w]) first_q[w*32 +: 32] <= now_q[31:0];
        end
        if (begun_i != '0) begin
          for (int w = 0; w < Workers; w++) if (begun_i[w]) start_q[w*32 +: 32] <= now_q[31:0];
        end
        had_q <= (had_q | token_i | done_i) & ~begun_i;
      end

      // Its end is delivered.
      delivers_q <= delivered_i && tells_q[delivered_pair];
      if (delivered_i && tells_q[delivered_pair]) begin
        held_q   <= held_mem[{delivered_worker_i, held_old}];
        begun_q  <= out_1 ? start_1_q[delivered_worker*32 +: 32] : start_0_q[delivered_worker*32 +: 32];
        token_q  <= out_1 ? first_1_q[delivered_worker*32 +: 32] : first_0_q[delivered_worker*32 +: 32];
        ended_q  <= out_1 ? ended_1_q[delivered_worker*32 +: 32] : ended_0_q[delivered_worker*32 +: 32];
        worker_q <= delivered_worker_i;
        reads_q  <= delivered_reads_i;
        place_q  <= delivered_place_i;
      end
      if (delivers_q) begin
        record_mem[place_q] <= {reads_q, worker_q, held_q,
                                took_long(now_q, held_q) ? {3*DeltaBits{1'b1}}
                                                         : {after(begun_q, held_q), after(token_q, held_q), after(ended_q, held_q)}};
      end

      // It is posted: what read memory ends then.
      posts_q <= posted_i && tells_q[posted_pair];
      notes_q <= posts_q;
      if (posted_i && tells_q[posted_pair]) begin
        posted_place_q <= posted_place_i;
        posted_at_q    <= {posted_pair, posted_index_i[MomentBits-1:0]};
        moment_q       <= now_q[31:0];
      end
      if (posts_q) begin
        posted_q   <= record_mem[posted_place_q];
        noted_at_q <= posted_at_q;
        noted_q    <= moment_q;
      end
      if (notes_q) begin
        moments_mem[noted_at_q] <= {posted_q[RecordBits-1:2*DeltaBits],
                                    !posted_q[RecordBits-1] ? posted_q[2*DeltaBits-1:0]
                                    : took_long(now_q, posted_q[3*DeltaBits +: TimeBits]) ? {2*DeltaBits{1'b1}}
                                    : {2{after(noted_q, posted_q[3*DeltaBits +: TimeBits])}}};
      end
    end
    if (start_i) begin
      fetch_new_q[start_pair] <= '0;
      fetch_old_q[start_pair] <= '0;
    end
  end

  // ---------------------------------------------------------------- its completion is visible
  // By the parity of its index: whether it is lost, and when. Two of one beat share a line: the even one is the first.
  logic [32:0] even_mem [0:Slots*Moments/2-1];
  logic [32:0] odd_mem  [0:Slots*Moments/2-1];
  logic [Queues-1:0][31:0] visible_q;                        // the first completion that is not answered
  logic [Queues-1:0][MomentBits-1:0] backlog_q;              // before it: answered, and not told
  logic                    answers, shows, shown_odd;
  logic [MomentBits-2:0]   shown_line;
  // Whether it is lost, once more: the oldest that wait are dropped while another one is told.
  logic even_lost_mem [0:Slots*Moments/2-1];
  logic odd_lost_mem  [0:Slots*Moments/2-1];

  assign answers = awake_q && answered_i != '0;

  always_comb begin
    shows      = 1'b0;
    shown_odd  = 1'b0;
    shown_line = '0;
    if (answers) begin
      shows      = tells_q[answered_pair];
      shown_odd  = answered_to_i[0] ^ answered_i[0];
      shown_line = (MomentBits-1)'((answered_to_i - 32'(answered_i)) >> 1);
    end
  end

  always_ff @(posedge clk_i) begin
    if (!rst_ni) visible_q <= '0;
    else begin
      // While no ring runs, too: a later ring may tell of a fault of this queue pair without a start of it before.
      if (answered_i != '0) visible_q[answered_pair] <= answered_to_i;
      if (answers) begin
        if (shows && (answered_i == 2'd2 || !shown_odd)) even_mem[{answered_pair, shown_line}] <= {visible_i == '0, now_q[31:0]};
        if (shows && (answered_i == 2'd2 || shown_odd))  odd_mem[{answered_pair, shown_line}]  <= {visible_i == '0, now_q[31:0]};
        if (shows && (answered_i == 2'd2 || !shown_odd)) even_lost_mem[{answered_pair, shown_line}] <= visible_i == '0;
        if (shows && (answered_i == 2'd2 || shown_odd))  odd_lost_mem[{answered_pair, shown_line}]  <= visible_i == '0;
      end
      if (start_i) visible_q[start_pair] <= start_config_i.cq_start;
    end
  end

  // ---------------------------------------------------------------- faults
  // Bits that are not told lie as raised_i has them. A bit that is set once more before the first time is told: that event is lost, and so is
  // one that is set in another function while one of the function before waits.
  logic [6*Queues-1:0]             fault_q;
  logic [Queues-1:0][31:0]         fault_index_q;
  logic [Queues-1:0][TimeBits-1:0] fault_stamp_q;
  logic [Queues-1:0][3:0]          fault_owner_q;
  logic [6*Queues-1:0]             twice;
  logic [Queues-1:0]               running, raised, again, mine, waiting_mine, foreign, moved, stays;
  logic                            raises;
  logic                            picks, picks_life, picks_fault;   // what is told next
  logic [QueueBits-1:0]            pick_pair;

  assign raises = awake_q ? raised_i != '0 : 1'b0;

  // By queue pair, and each bit with one value in a cycle: what it comes from depends on what is written.
  for (genvar q = 0; q < Queues; q++) begin : gen_fault
    assign running[q] = raises ? rings_q[(Functions == 1) ? FunctionBits'(0) : FunctionBits'(owner_i[q])] : 1'b0;
    assign mine[q]    = starts ? (Functions == 1 || owner_i[q] == start_config_i.owner) : 1'b0;
    assign waiting_mine[q] = starts ? (Functions == 1 || fault_owner_q[q] == start_config_i.owner) : 1'b0;
    assign moved[q]   = Functions > 1 && faulty_q[q] && fault_owner_q[q] != owner_i[q];   // since its fault was raised
  end
  assign stays  = (faulty_q != '0) ? faulty_q & ~(picks_fault ? Queues'(16'd1 << pick_pair) : '0) : '0;
  assign raised = raises ? running & (raised_i[0 +: Queues] | raised_i[Queues +: Queues] | raised_i[2*Queues +: Queues]
                                    | raised_i[3*Queues +: Queues] | raised_i[4*Queues +: Queues] | raised_i[5*Queues +: Queues]) : '0;
  assign twice  = (stays & raised) != '0 ? raised_i & fault_q : '0;
  assign foreign = stays & raised & moved;
  assign again  = (stays & raised) != '0 ? stays & raised & (moved | twice[0 +: Queues] | twice[Queues +: Queues] | twice[2*Queues +: Queues]
                                                           | twice[3*Queues +: Queues] | twice[4*Queues +: Queues] | twice[5*Queues +: Queues]) : '0;

  always_ff @(posedge clk_i) begin
    if (!rst_ni) faulty_q <= '0;
    else if (raises || faulty_q != '0) begin
      faulty_q <= (stays & ~waiting_mine) | (raised & ~mine & ~(stays & moved));
      if (raised != '0) fault_q <= (fault_q & {6{stays}}) | (raised_i & {6{raised & ~foreign}});
      for (int q = 0; q < Queues; q++) begin
        if (raised[q] && !stays[q]) begin
          fault_owner_q[q] <= owner_i[q];
          fault_index_q[q] <= visible_q[q];
          fault_stamp_q[q] <= now_q;
        end
      end
    end
  end

  // ---------------------------------------------------------------- what is told next
  // Its moments are read in one cycle, and it is put into its slot in the next.
  logic                 told_fault_q, told_alone_q, frees;
  logic [3:0]           pick_owner;
  /* verilator lint_off UNUSEDSIGNAL */  // as wide as for the most functions
  logic [3:0]           told_owner_q;
  /* verilator lint_on UNUSEDSIGNAL */
  logic [QueueBits-1:0] told_pair_q, told_for_q;             // for: the queue pair that waits for its response
  logic [31:0]          pick_index, told_index_q;
  /* verilator lint_off UNUSEDSIGNAL */  // whether it reads memory is of no use any more
  logic [RecordBits-1:0] told_record_q;
  /* verilator lint_on UNUSEDSIGNAL */
  logic [32:0]          told_even_q, told_odd_q;
  logic [TimeBits-1:0]  told_stamp_q;
  logic [5:0]           told_bits_q;
  logic                 told_ages_q;                          // the one that is told is not the first of its turn
  logic                 after_fault_q, same_turn;            // the last that was chosen is a FAULT; LIFE of that queue pair waits
  logic [4:0]           told_waited_q, waited_q;             // since it was chosen
  logic [Queues-1:0]    request, grant_unused, peers;
  logic [15:0]          peer;
  logic [MomentBits-1:0] shown_backlog, told_backlog;
  /* verilator lint_off UNUSEDSIGNAL */  // as wide as for the most queue pairs
  logic [3:0]           pick_number;
  /* verilator lint_on UNUSEDSIGNAL */
  /* verilator lint_off UNUSEDSIGNAL */  // its bits alone
  logic [6*Queues-1:0]  pick_faults;
  /* verilator lint_on UNUSEDSIGNAL */

  function automatic logic [4:0] one_more(input logic [4:0] waited);
    one_more = (waited == Patience) ? Patience : waited + 5'd1;
  endfunction

  assign request   = awake_q ? faulty_q | untold_q[Queues-1:0] : '0;

  round_robin #(.N(Queues)) u_round_robin (
    .clk_i, .rst_ni,
    .request_i (request),
    .grant_o   (grant_unused),
    .number_o  (pick_number),
    .accept_i  (picks && !same_turn)
  );

  assign picks = request != '0 && (!told_q || frees);

  always_comb begin
    same_turn   = 1'b0;
    pick_pair   = '0;
    picks_fault = 1'b0;
    picks_life  = 1'b0;
    if (picks) begin
      same_turn   = after_fault_q && untold_q[told_pair_q];
      pick_pair   = same_turn ? told_pair_q : pick_number[QueueBits-1:0];
      picks_fault = !same_turn && faulty_q[pick_pair];
      picks_life  = !picks_fault;
    end
  end

  always_comb begin
    peers       = '0;
    peer        = '0;
    pick_owner  = '0;
    pick_index  = '0;
    pick_faults = '0;
    told_backlog = '0;
    if (picks) begin
      pick_index   = visible_q[pick_pair] - 32'(backlog_q[pick_pair]);
      told_backlog = backlog_q[pick_pair] - 1'b1;
      pick_faults  = fault_q >> pick_pair;
      pick_owner   = picks_fault ? fault_owner_q[pick_pair] : owner_i[pick_pair];
      // A queue pair that ENABLE refused is inactive, and may have moved since: one of the function that runs waits for its event.
      if (picks_fault && (!active_i[pick_pair] || moved[pick_pair]))
        for (int q = 0; q < Queues; q++) peers[q] = on_i[q] && owner_i[q] == pick_owner;
      peer = 16'(peers) & (~16'(peers) + 16'd1);
    end
  end

  // What becomes visible waits. Where too many do, the oldest are dropped: two at most, an even one and an odd one. They are counted
  // in the next cycle, when it is known whether they were lost.
  logic [MomentBits-1:0] still_backlog, grown_backlog;
  logic [1:0]            over, over_q, displaced;
  /* verilator lint_off UNUSEDSIGNAL */  // low bits alone
  logic [31:0]           oldest_index, older_index;
  /* verilator lint_on UNUSEDSIGNAL */
  logic                  even_lost_q, odd_lost_q, odd_first_q;
  logic [3:0]            over_owner_q;

  assign still_backlog = shows ? backlog_q[answered_pair] - MomentBits'(picks_life && pick_pair == answered_pair) : '0;
  assign grown_backlog = shows ? still_backlog + MomentBits'(answered_i) : '0;
  assign over          = (grown_backlog > MomentBits'(Late)) ? 2'(grown_backlog - MomentBits'(Late)) : 2'd0;
  assign shown_backlog = (over != '0) ? MomentBits'(Late) : grown_backlog;
  assign oldest_index  = (over != '0) ? visible_q[answered_pair] - 32'(still_backlog) : '0;
  assign older_index   = (over != '0) ? oldest_index + 32'd1 : '0;
  assign displaced     = (over_q == 2'd0) ? 2'd0 : (over_q == 2'd2) ? 2'(!even_lost_q) + 2'(!odd_lost_q)
                       : odd_first_q ? 2'(!odd_lost_q) : 2'(!even_lost_q);

  always_ff @(posedge clk_i) begin
    if (over != '0) begin
      odd_first_q  <= oldest_index[0];
      odd_lost_q   <= odd_lost_mem[{answered_pair, oldest_index[MomentBits-1:1]}];
      even_lost_q  <= even_lost_mem[{answered_pair, oldest_index[0] ? older_index[MomentBits-1:1] : oldest_index[MomentBits-1:1]}];
      over_owner_q <= owner_i[answered_pair];
    end
    if (!rst_ni)                           over_q <= '0;
    else if (over != '0 || over_q != '0)   over_q <= over;
  end

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      untold_q <= '0;
    end else if (picks_life || shows) begin
      if (picks_life) begin
        backlog_q[pick_pair] <= told_backlog;
        untold_q[pick_pair]  <= told_backlog != '0;
      end
      if (shows) begin
        backlog_q[answered_pair] <= shown_backlog;
        untold_q[answered_pair]  <= shown_backlog != '0;
      end
    end
    if (start_i) backlog_q[start_pair] <= '0;
  end

  always_ff @(posedge clk_i) begin
    if (picks) begin
      told_waited_q <= !same_turn ? '0 : told_q ? one_more(told_waited_q) : one_more(waited_q);
      told_ages_q   <= same_turn;
    end else if (told_q && told_ages_q) told_waited_q <= one_more(told_waited_q);
    // A fault of a ring that ended does not belong to the ring that starts: faulty_q forgets it, and so must the stage that picks it in that cycle.
    if (!rst_ni) told_q <= 1'b0;
    else if (told_q || picks) told_q <= picks ? !(picks_fault && waiting_mine[pick_pair]) : !frees;
    if (!rst_ni)    after_fault_q <= 1'b0;
    else if (picks) after_fault_q <= picks_fault;
    if (picks) begin
      told_fault_q  <= picks_fault;
      told_pair_q   <= pick_pair;
      told_owner_q  <= pick_owner;
      told_alone_q  <= picks_fault && moved[pick_pair] && peer == '0;
      told_for_q    <= (peer == '0) ? pick_pair : QueueBits'({(peer & 16'hFF00) != '0, (peer & 16'hF0F0) != '0,
                                                              (peer & 16'hCCCC) != '0, (peer & 16'hAAAA) != '0});
      told_index_q  <= picks_fault ? fault_index_q[pick_pair] : pick_index;
      if (picks_fault) begin
        told_stamp_q  <= fault_stamp_q[pick_pair];
        told_bits_q   <= {pick_faults[5*Queues], pick_faults[4*Queues], pick_faults[3*Queues], pick_faults[2*Queues], pick_faults[Queues], pick_faults[0]};
      end else begin
        told_record_q <= moments_mem[{pick_pair, pick_index[MomentBits-1:0]}];
        told_even_q   <= even_mem[{pick_pair, pick_index[MomentBits-1:1]}];
        told_odd_q    <= odd_mem[{pick_pair, pick_index[MomentBits-1:1]}];
      end
    end
  end

  // LIFE leaves the last quarter of a ring, at least a slot.
  logic [FunctionBits-1:0] told_function;
  logic [31:0]  used, limit, given;
  logic [16:0]  size;
  logic         lost, room, drops, writes;

  logic [FunctionSlots-1:0] held;
  assign held          = FunctionSlots'(held_i);
  assign told_function = (Functions == 1 || !told_q) ? '0 : FunctionBits'(told_owner_q);

  always_comb begin
    used   = '0;
    limit  = '0;
    given  = '0;
    size   = '0;
    lost   = 1'b0;
    room   = 1'b0;
    drops  = 1'b0;
    writes = 1'b0;
    if (told_q) begin
      given  = given_q[told_function];
      size   = size_q[told_function];
      used   = given - head_q[told_function];
      limit  = 32'(size) - (told_fault_q ? 32'd0 : (size == 17'd2) ? 32'd1 : 32'(size[16:2]));
      lost   = !told_fault_q && (told_index_q[0] ? told_odd_q[32] : told_even_q[32]);
      room   = rings_q[told_function] && on_i[told_for_q] && !told_alone_q && used < limit
            && given - answered_q[told_function] < 32'(Credits) && !held[told_function];
      drops  = !lost && !room;
      writes = !lost && room && (!offer_q || event_ready_i);
    end
  end
  assign frees = lost || drops || writes;

  // ---------------------------------------------------------------- the write port
  logic [3:0]   offer_owner_q;
  logic [63:0]  offer_addr_q;
  hw_event_t    offer_event_q;
  logic         phase;

  assign phase = writes ? (given & 32'(size)) == '0 : 1'b0;

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      offer_q  <= 1'b0;
      waited_q <= '0;
    end else if (offer_q || writes) begin
      offer_q  <= writes || !event_ready_i;
      waited_q <= writes ? told_waited_q : event_ready_i ? '0 : one_more(waited_q);
    end
    if (writes) begin
      offer_owner_q <= 4'(told_function);
      offer_addr_q  <= base_q[told_function] + 64'({given[15:0] & (size[15:0] - 16'd1), 5'd0});
      offer_event_q             <= '0;
      offer_event_q.queue_id    <= 8'(told_pair_q);
      offer_event_q.index       <= told_index_q;
      if (told_fault_q) begin
        offer_event_q.kind        <= EVENT_FAULT;
        offer_event_q.stamp       <= {phase, told_stamp_q};
        offer_event_q.start       <= {23'd0, told_bits_q[5], 3'd0, told_bits_q[4:0]};
        offer_event_q.visible     <= {phase, 31'd0};
      end else begin
        offer_event_q.kind        <= EVENT_LIFE;
        offer_event_q.worker_id   <= 16'(told_record_q[3*DeltaBits+TimeBits +: 4]);
        offer_event_q.stamp       <= {phase, told_record_q[3*DeltaBits +: TimeBits]};
        offer_event_q.start       <= 32'(told_record_q[2*DeltaBits +: DeltaBits]);
        offer_event_q.first_token <= 32'(told_record_q[DeltaBits +: DeltaBits]);
        offer_event_q.ended       <= 32'(told_record_q[0 +: DeltaBits]);
        offer_event_q.visible     <= {phase, took_long(now_q, told_record_q[3*DeltaBits +: TimeBits]) ? {DeltaBits{1'b1}}
                                             : after(told_index_q[0] ? told_odd_q[31:0] : told_even_q[31:0], told_record_q[3*DeltaBits +: TimeBits])};
      end
    end
  end

  assign event_valid_o  = offer_q;
  assign event_urgent_o = waited_q == Patience;
  assign event_owner_o  = offer_owner_q;
  assign event_addr_o   = offer_addr_q;
  assign event_data_o   = offer_event_q;

  // Responses of a function come in the order of its slots: whose each was.
  logic [QueueBits-1:0] whose_mem [0:FunctionSlots*Credits-1];
  logic [Queues-1:0][8:0] flight_q;                          // 'flying': not 0
  logic [QueueBits-1:0] ack_pair;
  logic [31:0]          acked;
  logic [8:0]           more, fewer;

  assign acked    = event_ack ? answered_q[ack_function] : '0;
  assign ack_pair = event_ack ? whose_mem[{ack_function, acked[CreditBits-1:0]}] : '0;
  assign fewer    = event_ack ? flight_q[ack_pair] - 9'd1 : '0;
  assign more     = writes ? flight_q[told_for_q] + 9'd1 - 9'(event_ack && ack_pair == told_for_q) : '0;

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      flight_q <= '0;
      flying_q <= '0;
    end else if (writes || event_ack) begin
      if (event_ack) begin
        flight_q[ack_pair] <= fewer;
        flying_q[ack_pair] <= fewer != '0;
      end
      if (writes) begin
        flight_q[told_for_q] <= more;
        flying_q[told_for_q] <= more != '0;
        whose_mem[{told_function, given[CreditBits-1:0]}] <= told_for_q;
      end
    end
  end

  // ---------------------------------------------------------------- indices, and what is lost
  logic loses;
  assign loses = drops || (event_ack && ack_error_i) || again != '0 || displaced != '0;

  // Of queue pairs, those of a function.
  function automatic logic [4:0] count_of(input logic [3:0] owner, input logic [Queues-1:0] which, input logic [Queues-1:0][3:0] owners);
    count_of = '0;
    for (int q = 0; q < Queues; q++) count_of = count_of + 5'(which[q] && (Functions == 1 || owners[q] == owner));
  endfunction

  // More, and no further than the end.
  function automatic logic [31:0] saturate(input logic [31:0] value, input logic [4:0] losses);
    saturate = (value > 32'hFFFF_FFFF - 32'(losses)) ? '1 : value + 32'(losses);
  endfunction

  // Of what was written, and not backwards.
  assign release_ok_o = release_i ? rings_q[release_function]
                                 && given_q[release_function] - release_head_i <= given_q[release_function] - head_q[release_function] : 1'b0;

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      head_q     <= '0;
      given_q    <= '0;
      answered_q <= '0;
      dropped_q  <= '0;
    end else if (release_ok_o || writes || event_ack || loses || starts) begin
      if (release_ok_o) head_q[release_function] <= release_head_i;
      if (writes)    given_q[told_function]   <= given + 32'd1;
      if (event_ack) answered_q[ack_function] <= acked + 32'd1;
      if (loses) begin
        for (int f = 0; f < Functions; f++) begin
          dropped_q[f] <= saturate(dropped_q[f], 5'(drops && int'(told_function) == f) + 5'(event_ack && ack_error_i && int'(ack_function) == f)
                                                 + count_of(4'(f), again, owner_i)
                                                 + ((Functions == 1 || over_owner_q == 4'(f)) ? 5'(displaced) : 5'd0));
        end
      end
      if (starts) begin
        head_q[start_function]     <= '0;
        given_q[start_function]    <= '0;
        answered_q[start_function] <= '0;
        dropped_q[start_function]  <= '0;
      end
    end
  end

  assign head_o    = head_q[read_function];
  assign tail_o    = answered_q[read_function];
  assign dropped_o = dropped_q[read_function];

  // What comes after a ring has stopped is not recorded.
  assign waits_o = any ? untold_q[Queues-1:0] | (((faulty_q & ~moved) | (told_q ? Queues'(16'd1 << told_for_q) : '0)) & active_i) : '0;
  assign busy_o = waits_o | flying_q;
  assign moves_o = awake_q;

`ifndef SYNTHESIS
  logic posted_live;
  assign posted_live = posted_i && tells_q[posted_pair];

  always_ff @(posedge clk_i) begin
    if (rst_ni && (posted_live || writes || offer_q || event_ack || start_i)) begin
      if (posted_live && posted_index_i - visible_q[posted_pair] + 32'(backlog_q[posted_pair]) >= 32'(Moments))
        $fatal(1, "R23 event_ring: completion %0d of queue pair %0d takes the place of one that is not told", posted_index_i, posted_pair);
      if (backlog_q[posted_pair] > MomentBits'(Late) && untold_q[posted_pair])
        $fatal(1, "R23 event_ring: %0d completions of queue pair %0d wait to be told", backlog_q[posted_pair], posted_pair);
      if (writes && given - head_q[told_function] >= 32'(size))
        $fatal(1, "R23 event_ring: one more event in a ring of function %0d that is full", told_function);
      if (writes && used >= 32'(size) - 32'(size[16:2]) && !told_fault_q)
        $fatal(1, "R23 event_ring: a LIFE event in the last quarter of the ring of function %0d", told_function);
      if (event_ack && (6'(ack_id_i - EVENT_AXI_ID) >= 6'(Functions) || given_q[ack_function] == acked))
        $fatal(1, "R23 event_ring: write response for an event that was not sent, ID %0d", ack_id_i);
      if (offer_q && offer_event_q.kind == EVENT_LIFE && (offer_event_q.start > offer_event_q.first_token
          || offer_event_q.first_token > offer_event_q.ended || offer_event_q.ended > 32'(offer_event_q.visible[30:0])))
        $fatal(1, "R23 event_ring: moments of completion %0d of queue pair %0d are out of order", offer_event_q.index, offer_event_q.queue_id);
      if (start_i && (untold_q[start_pair] || flying_q[start_pair]))
        $fatal(1, "R12 event_ring: queue pair %0d starts with events of its last life", start_pair);
      if (starts && given_q[start_function] != answered_q[start_function])
        $fatal(1, "R23 event_ring: the ring of function %0d starts with events on the bus", start_function);
      if (starts && rings_q[start_function]) begin
        for (int q = 0; q < Queues; q++)
          if (active_i[q] && (Functions == 1 || owner_i[q] == start_config_i.owner))
            $fatal(1, "R23 event_ring: the ring of function %0d starts while it runs", start_function);
      end
    end
  end
`endif
endmodule
