// Checked descriptors of each queue pair, in the order of its submission queue, until the dispatcher hands them out; and
// how a STOP takes effect before its turn (R8). All entries here and all descriptors at the workers of a STOP's queue
// pair are older than a STOP that arrives:
//   - the workers learn of it in the same cycle (stop_o);
//   - for the DECODEs that wait here its rollout is noted, until the STOP itself goes out. Until then what leaves the
//     queue pair is older than the STOP, so a DECODE of a noted rollout goes out as STOPPED, without a token.
// Notes are looked up when a DECODE is read, Lanes of them per cycle. There is room for as many as there are
// descriptors, so no STOP is missed and nothing holds up the fetch. A STOP of a group is told and noted by its prefix.
//
// ABORT ends DECODEs of a rollout like a STOP that comes after all that is published (R8), but it has no descriptor here. So each entry has a bit that
// says that it was aborted. Descriptors that arrive from then on get it as they come in, until all that was published is here. Those that are here get it
// from a walk over the entries of the queue pair, one per cycle, in turn with other queue pairs'. Until the walk has passed the oldest one, that is
// compared directly. The workers learn of it in the
// cycle after the write, whatever STOPs arrive then (R28).
//
// One memory for all queue pairs, divided evenly; heads and tails per queue pair.
module work_queue
  import desc_pkg::*;
  import core_pkg::*;
#(
  parameter int Queues = 1,
  parameter int Depth  = 128,         // of all queue pairs together; a power of two, at least 2
  parameter int PreparedBits = ENGINE_BITS   // of what the engines prepare for a descriptor
) (
  /* verilator lint_off UNUSEDSIGNAL */  // numbers of queue pairs have 4 bits, whatever was built
  input  logic        clk_i,
  input  logic        rst_ni,

  input  logic        start_i,        // a queue pair starts, with this configuration
  input  logic [3:0]  start_queue_i,
  input  queue_config_t start_config_i,
  input  logic [Queues-1:0] on_i,     // the others are held empty

  input  logic        push_i,         // there is always room: desc_ring requests no more than fits
  input  work_t       work_i,
  input  echo_t       echo_i,
  input  logic [PreparedBits-1:0] prepared_i,  // by the engines
  input  logic        fence_i,
  input  logic        prefill_i,
  input  logic        stop_i,         // a STOP whose effect runs ahead of it

  output logic [Queues-1:0] some_o,   // there is at least one; early
  // The oldest of one queue pair, combinational.
  input  logic        read_i,         // only of one that has some
  input  logic [3:0]  read_queue_i,
  output work_t       work_o,
  output logic        fence_o,
  output logic        known_o,        // it has been compared with all notes: it may be taken
  output logic        stopped_o,      // a DECODE that ends here, as STOPPED without a token
  input  logic        take_i,         // … and the rest of it, as it is taken
  output echo_t       echo_o,
  output logic [PreparedBits-1:0] prepared_o,
  output logic        prefill_o,

  output logic        stop_o,         // a STOP arrives: it ends what the workers have of this rollout …
  output logic [3:0]  stop_queue_o,
  output logic        stop_group_o,   // … or, where it is one of a group, of this prefix
  output logic [31:0] stop_rollout_o,
  output logic        abort_o,        // an ABORT was written in the cycle before: it ends what the workers have of this rollout
  output logic [3:0]  abort_queue_o,
  output logic [31:0] abort_rollout_o,

  input  logic        abort_i,        // ABORT is written, while aborting_o is low: it ends this rollout's DECODEs …
  input  logic [3:0]  abort_queue_i,
  input  logic [31:0] abort_rollout_i,
  input  logic [31:0] abort_tail_i,   // … below this index, of what is published
  output logic [Queues-1:0] aborting_o
  /* verilator lint_on UNUSEDSIGNAL */
);
  localparam int QueueBits = (Queues == 1) ? 1 : $clog2(Queues);
  localparam int Slots     = 1 << QueueBits;
  localparam int Places    = (Queues == 1) ? Depth : Depth / Slots;   // of each queue pair
  localparam int PtrBits   = $clog2(Places);
  localparam int Lanes     = (Places < 8) ? Places : 8;
  localparam int LaneBits  = $clog2(Lanes);
  localparam int Rows      = Places / Lanes;
  localparam int RowBits   = (Rows == 1) ? 1 : $clog2(Rows);
  localparam int AddrBits  = $clog2(Depth);
  localparam int NoteBits  = QueueBits + RowBits;

  logic [QueueBits-1:0] start_pair, push_pair, read_pair;
  assign start_pair = (Queues == 1) ? '0 : start_queue_i[QueueBits-1:0];
  assign push_pair  = (Queues == 1) ? '0 : work_i.pair[QueueBits-1:0];
  assign read_pair  = (Queues == 1) ? '0 : read_queue_i[QueueBits-1:0];

  // A memory for each part, so that one which is looked at seldom costs nothing in simulation while it is not.
  logic [$bits(work_t)-1:0] work_mem     [0:Depth-1];
  logic [$bits(echo_t)-1:0] echo_mem     [0:Depth-1];
  logic [PreparedBits-1:0]  prepared_mem [0:Depth-1];
  logic [2:0]               flag_mem     [0:Depth-1];
  // One bit wider than the address, as in sync_fifo.
  logic [Queues-1:0][PtrBits:0]         head_q;
  logic [Queues-1:0][PtrBits:0]         tail_q;
  logic [Slots-1:0]         some_q;
  logic                     stop;
  logic [PtrBits:0]         head, tail, behind;
  logic [AddrBits-1:0]      read_place, push_place;

  assign head       = head_q[read_pair];
  assign tail       = tail_q[push_pair];
  assign behind     = take_i ? head + 1'b1 : '0;
  assign read_place = AddrBits'({read_pair, head[PtrBits-1:0]});
  assign push_place = AddrBits'({push_pair, tail[PtrBits-1:0]});
  assign some_o     = some_q[Queues-1:0];

  assign work_o     = read_i ? work_mem[read_place] : '0;
  assign {fence_o, prefill_o, stop} = read_i ? flag_mem[read_place] : '0;
  assign echo_o     = take_i ? echo_mem[read_place] : '0;
  assign prepared_o = take_i ? prepared_mem[read_place] : '0;

  always_ff @(posedge clk_i) begin
    if (push_i) begin
      work_mem[push_place]     <= work_i;
      echo_mem[push_place]     <= echo_i;
      prepared_mem[push_place] <= prepared_i;
      flag_mem[push_place]     <= {fence_i, prefill_i, stop_i};
    end
    if (!rst_ni) some_q <= '0;
    else begin
      // What was off is empty, whatever its pointers say.
      if (some_q != '0) some_q <= some_q & Slots'(on_i);
      if (take_i) some_q[read_pair] <= behind != tail_q[read_pair];
      if (push_i) some_q[push_pair] <= 1'b1;
    end
    if (push_i) tail_q[push_pair] <= tail + 1'b1;
    if (take_i) head_q[read_pair] <= behind;
    if (start_i) begin
      head_q[start_pair] <= '0;
      tail_q[start_pair] <= '0;
    end
  end

  // ---------------------------------------------------------------- rollouts, or prefixes, of the STOPs that wait here
  // Row and lane of a note are the upper and lower bits of its index; indices run freely, as in sync_fifo.
  logic [Queues-1:0][PtrBits:0]    oldest_q;
  logic [Queues-1:0][PtrBits:0]    newest_q;
  logic [Queues-1:0][PtrBits:0]    looked_q;   // the first note of the row with which the oldest is compared next
  logic [Slots-1:0]    hit_q;                  // a note of a row before that is its rollout
  logic [PtrBits:0]    oldest, newest, notes, row_first, push_newest;
  logic                adds, same, arrives, tells, meets, noted;
  // See ABORT.
  logic                aborted;
  logic [QueueBits-1:0] send_pair;
  logic [Queues-1:0]   over;
  logic [31:0]         told;
  logic [Lanes*33-1:0] note_mem [0:(1 << NoteBits)-1];   // whether it is a prefix, and which
  logic [NoteBits-1:0] new_row, row;
  logic [Lanes-1:0]    match;
  logic [PtrBits-1:0]  place;

  assign tells          = push_i && stop_i;
  assign told           = (tells && work_i.all) ? work_i.prefix_id : work_i.rollout_id;
  assign stop_o         = tells;
  assign stop_queue_o   = tells ? work_i.pair : '0;
  assign stop_group_o   = tells && work_i.all;
  assign stop_rollout_o = tells ? told : '0;
  assign oldest         = oldest_q[read_pair];
  assign newest         = newest_q[read_pair];
  assign push_newest    = newest_q[push_pair];
  assign notes          = newest - oldest;
  assign row_first      = looked_q[read_pair];
  assign adds           = read_i && work_o.adds_tokens;
  assign same           = Queues == 1 || read_pair == push_pair;
  assign arrives        = tells && same;       // compared on its way in

  assign new_row = {push_pair, RowBits'(push_newest[PtrBits-1:0] >> LaneBits)};
  assign row     = {read_pair, RowBits'(row_first[PtrBits-1:0] >> LaneBits)};

  // A row is written as a whole, with the new note in it: a memory with an enable for each lane would be one of single bits.
  logic [Lanes*33-1:0] new_notes;
  always_comb begin
    new_notes = '0;
    if (tells) begin
      new_notes = note_mem[new_row];
      new_notes[33*push_newest[LaneBits-1:0] +: 33] = {work_i.all, told};
    end
  end

  always_ff @(posedge clk_i) begin
    if (tells) note_mem[new_row] <= new_notes;
  end

  always_comb begin
    match = '0;
    place = '0;
    if (adds && notes != '0) begin
      for (int k = 0; k < Lanes; k++) begin
        place    = PtrBits'(row_first) + PtrBits'(k) - oldest[PtrBits-1:0];
        match[k] = {1'b0, place} < notes && (note_mem[row][33*k + 32]
                 ? work_o.cow_prefix && note_mem[row][33*k +: 32] == work_o.prefix_id
                 : note_mem[row][33*k +: 32] == work_o.rollout_id);
      end
    end
  end

  always_comb begin
    meets = 1'b0;
    if (adds && arrives)
      meets = work_i.all ? work_o.cow_prefix && told == work_o.prefix_id : told == work_o.rollout_id;
  end

  assign known_o   = !adds || newest - row_first <= (PtrBits+1)'(Lanes);
  assign noted     = adds && (hit_q[read_pair] || match != '0 || meets);
  assign stopped_o = noted || aborted;

  always_ff @(posedge clk_i) begin
    if (tells) newest_q[push_pair] <= push_newest + 1'b1;
    if (take_i) begin
      if (stop) oldest_q[read_pair] <= oldest + 1'b1;
      looked_q[read_pair] <= (oldest + (PtrBits+1)'(stop)) & ~(PtrBits+1)'(Lanes - 1);
      hit_q[read_pair]    <= 1'b0;
    end else if (adds && !known_o) begin
      looked_q[read_pair] <= row_first + (PtrBits+1)'(Lanes);
      hit_q[read_pair]    <= noted;
    end
    if (start_i) begin
      oldest_q[start_pair] <= '0;
      newest_q[start_pair] <= '0;
      looked_q[start_pair] <= '0;
      hit_q[start_pair]    <= 1'b0;
    end
  end

  // ---------------------------------------------------------------- ABORT
  // Of each queue pair: the rollout; how much of what was published has not come in; and the entries that are still to be
  // walked over. None of them has gone out: the first moves on with the oldest.
  logic [Queues-1:0][31:0]      pushed_q, abort_rollout_q, coming_q;
  logic [Queues-1:0][PtrBits:0] walk_q, end_q;
  logic [Queues-1:0]            sends_q, comes_q, walks_q;
  logic [Depth-1:0]             aborted_q;

  logic [QueueBits-1:0] abort_pair, walk_pair;
  logic [Queues-1:0]    push_one, walk_one;
  /* verilator lint_off UNUSEDSIGNAL */  // 4 bits, whatever was built
  logic [3:0]           walk_number;
  /* verilator lint_on UNUSEDSIGNAL */
  logic                 aborts, comes, walks, ahead;
  logic [AddrBits-1:0]  walk_place;
  logic [PtrBits:0]     abort_head, abort_tail;
  logic [PtrBits-1:0]   walk;
  /* verilator lint_off UNUSEDSIGNAL */  // its rollout alone
  work_t                walked;
  /* verilator lint_on UNUSEDSIGNAL */

  assign abort_pair = (Queues == 1) ? '0 : abort_queue_i[QueueBits-1:0];
  assign aborts     = (sends_q | comes_q | walks_q) != '0;
  assign push_one   = (aborts && push_i) ? Queues'(16'd1 << push_pair) : '0;
  assign comes      = (comes_q & push_one) != '0;
  assign walks      = walks_q != '0;
  assign aborting_o = (sends_q | comes_q | walks_q) & on_i;
  assign abort_head = abort_i ? head_q[abort_pair] + (PtrBits+1)'(take_i && read_pair == abort_pair) : '0;
  assign abort_tail = abort_i ? tail_q[abort_pair] + (PtrBits+1)'(push_i && push_pair == abort_pair) : '0;

  // One is written per cycle, so one is told: before anything that was published behind it can be at a worker.
  assign send_pair       = (Queues == 1) ? '0
                         : QueueBits'({(16'(sends_q) & 16'hFF00) != '0, (16'(sends_q) & 16'hF0F0) != '0,
                                       (16'(sends_q) & 16'hCCCC) != '0, (16'(sends_q) & 16'hAAAA) != '0});
  assign abort_o         = sends_q != '0;
  assign abort_queue_o   = 4'(send_pair);
  assign abort_rollout_o = abort_o ? abort_rollout_q[send_pair] : '0;

  // Walks take turns, a place each. So a walk takes no longer than one over all places, whatever others abort meanwhile (R28).
  round_robin #(.N(Queues)) u_walk_robin (
    .clk_i, .rst_ni,
    .request_i (walks_q),
    .grant_o   (walk_one),
    .number_o  (walk_number),
    .accept_i  (walks)
  );
  assign walk_pair  = (Queues == 1) ? '0 : walk_number[QueueBits-1:0];
  assign walk       = walks ? PtrBits'(walk_q[walk_pair]) : '0;
  assign walk_place = AddrBits'({walk_pair, walk});
  assign walked     = walks ? work_mem[walk_place] : '0;

  // The oldest has its bit, or the walk has not come to it.
  always_comb begin
    aborted = 1'b0;
    ahead   = 1'b0;
    if (adds) begin
      aborted = aborted_q[read_place];
      if (walks) begin
        ahead = ((walks_q >> read_pair) & Queues'(1)) != '0 && walk_q[read_pair] == head;
        if (ahead && abort_rollout_q[read_pair] == work_o.rollout_id) aborted = 1'b1;
      end
    end
  end

  always_ff @(posedge clk_i) begin
    if (push_i) begin
      aborted_q[push_place]   <= comes && abort_rollout_q[push_pair] == work_i.rollout_id;
      pushed_q[push_pair]     <= pushed_q[push_pair] + 32'd1;
    end
    if (walks) begin
      if (walked.rollout_id == abort_rollout_q[walk_pair]) aborted_q[walk_place] <= 1'b1;
      for (int q = 0; q < Queues; q++) begin
        if (walk_one[q] || (take_i && int'(read_pair) == q && walk_q[q] == head)) walk_q[q] <= walk_q[q] + 1'b1;
      end
    end
    if (comes) coming_q[push_pair] <= coming_q[push_pair] - 32'd1;
    if (abort_i) begin
      abort_rollout_q[abort_pair] <= abort_rollout_i;
      coming_q[abort_pair]        <= abort_tail_i - pushed_q[abort_pair] - 32'(push_i && push_pair == abort_pair);
      walk_q[abort_pair]          <= abort_head;
      end_q[abort_pair]           <= abort_tail;
    end
    if (start_i) pushed_q[start_pair] <= start_config_i.sq_start;
  end

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      sends_q <= '0;
      comes_q <= '0;
      walks_q <= '0;
    end else begin
      if (aborts) begin
        sends_q <= '0;
        comes_q <= comes_q & on_i & ~((comes && coming_q[push_pair] == 32'd1) ? push_one : '0);
        walks_q <= walks_q & on_i & ~over;
      end
      if (abort_i) begin
        sends_q[abort_pair] <= 1'b1;
        comes_q[abort_pair] <= abort_tail_i != pushed_q[abort_pair] + 32'(push_i && push_pair == abort_pair);
        walks_q[abort_pair] <= abort_head != abort_tail;
      end
    end
  end

  // Walked over by the end of this cycle.
  always_comb begin
    over = '0;
    if (walks) begin
      for (int q = 0; q < Queues; q++)
        over[q] = (walk_one[q] || (take_i && int'(read_pair) == q && walk_q[q] == head)) && walk_q[q] + 1'b1 == end_q[q];
    end
  end

`ifndef SYNTHESIS
  initial if (Places < 2 || (Depth & (Depth - 1)) != 0)
    $fatal(1, "work_queue: Depth is %0d: it must be a power of two, at least 2 for each queue pair", Depth);
  always_ff @(posedge clk_i) begin
    if (rst_ni && aborts && (sends_q & (sends_q - 1'b1)) != '0) $fatal(1, "R8 work_queue: ABORTs of queue pairs %b in one cycle", sends_q);
    if (rst_ni && push_i) begin
      if (some_q[push_pair] && tail - head_q[push_pair] == (PtrBits+1)'(Places))
        $fatal(1, "R4 work_queue: a descriptor of queue pair %0d with no place for it", push_pair);
    end
    if (rst_ni && take_i) begin
      if (!some_q[read_pair] || !known_o) $fatal(1, "R3 work_queue: queue pair %0d has nothing to take", read_pair);
      if (stop && notes == '0) $fatal(1, "R8 work_queue: a STOP goes out that was not noted");
    end
  end
`endif
endmodule
