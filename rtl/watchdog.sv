// The watchdog (R24), between the bus and what awaits its answers. A queue pair one of whose accesses is not answered for BUS_TIMEOUT
// cycles dies: device_ctrl takes it down as a disable does, and its accesses that wait for answers get errors from here, so that nothing
// of it stays at a worker, in a store or in engine 1. The answers that the bus still owes are awaited here, and dropped.
//
// AXI orders the answers of one ID. So one look at each ID is enough: since when it has something in flight and has had no answer. The looks
// go round, a look every second cycle. The first answer of an ID that the device has given itself is the first that comes late.
//
// An ID of a queue pair makes that one die. One of a function (engine 1, events) makes all of its queue pairs die that have something
// there. While answers of such an ID are owed, what stands behind them is given up at once.
//
// Without BUS_TIMEOUT none of this is counted, and a simulated cycle costs a test or two: state that no other block reads is in variables of
// one process, which a simulation need not copy in every cycle, and what others read is guarded by one registered bit.
module watchdog
  import core_pkg::*;
#(
  parameter int Queues     = 1,
  parameter int Functions  = 1,
  parameter int Engines    = 1,
  parameter int FetchDepth = 128
) (
  input  logic        clk_i,
  input  logic        rst_ni,
  input  logic        bus_rst_ni,          // what the bus owes outlives a reset of the device

  input  logic [31:0] timeout_i,           // cycles; 0: nobody dies. It changes only while nothing is in flight
  input  logic [Queues-1:0] active_i,
  input  logic [Queues-1:0] dead_i,
  input  logic [Queues-1:0][3:0] owner_i,  // the function of each queue pair
  input  logic [Queues-1:0] engine_i,      // it may have accesses under its function's IDs of engine 1, …
  input  logic [Queues-1:0] events_i,      // … and events
  output logic [Queues-1:0] die_o,         // for a cycle
  output logic [Queues-1:0] owing_o,       // the bus owes what was given up of it
  output logic [Queues-1:0] sending_o,     // … of its messages
  output logic [Functions-1:0] held_o,     // … under the ID of a function's events and stores
  output logic [Functions-1:0] reading_o,  // … and under that of its bursts
  output logic        idle_o,              // … of any
  output logic        moves_o,             // somebody dies, or something is given up

  // What the bus takes, …
  input  logic        ar_i,
  input  logic [5:0]  ar_id_i,
  input  logic [7:0]  ar_len_i,
  input  logic        aw_i,
  input  logic [5:0]  aw_id_i,
  // … its answers, …
  input  logic        r_valid_i,
  input  logic [5:0]  r_id_i,
  output logic        r_ready_o,
  input  logic        b_valid_i,
  input  logic [5:0]  b_id_i,
  output logic        b_ready_o,
  // … and what the device is told: those, or errors.
  output logic        r_valid_o,
  output logic [5:0]  r_id_o,
  output logic        r_given_o,           // the bus has not said that
  output logic        b_valid_o,
  output logic [5:0]  b_id_o,
  output logic        b_given_o
);
  // What is kept of an ID lies at {write, upper two bits of the ID, queue pair or function}: the first three bits say of what kind it is.
  localparam logic [2:0] Descriptors = 3'd0, Readback = 3'd1, Bursts = 3'd2, Lines = 3'd4, Owned = 3'd7;
  localparam int QueueBits = (Queues == 1) ? 1 : $clog2(Queues);
  localparam int Last     = ((Queues > Functions) ? Queues : Functions) - 1;
  localparam int PairBits  = (Last == 0) ? 1 : $clog2(Last + 1);
  localparam int IndexBits = 3 + PairBits;
  localparam int Ids       = 1 << IndexBits;
  localparam int MostIn   = (FetchDepth > 512) ? FetchDepth : 512;
  localparam int CountBits = $clog2(MostIn + 1);
  localparam int TimeBits = 33;

  localparam logic [1:0] Look   = 2'd0;    // its age is worked out, …
  localparam logic [1:0] Judge  = 2'd1;    // … and judged
  localparam logic [1:0] Settle = 2'd2;    // who dies is off before it gets an error
  localparam logic [1:0] Give   = 2'd3;

  logic armed;
  assign armed = timeout_i != '0;

  /* verilator lint_off UNUSEDSIGNAL */  // as many queue pairs as were built
  function automatic logic [IndexBits-1:0] index_of(input logic is_write, input logic [5:0] id);
    /* verilator lint_on UNUSEDSIGNAL */
    index_of = {is_write, id[5:4], id[PairBits-1:0]};
  endfunction

  // ---------------------------------------------------------------- answers
  // A beat or a response of an ID of which some are owed is one that was given up. The bus waits for a cycle with one that is given here.
  // What others see is one register.
  typedef struct packed {
    logic       owes;                      // something is given, or was in the cycle before, or is owed
    logic       moves;
    logic       r_given;
    logic       b_given;
    logic [5:0] id;                        // … of this ID
  } shown_t;
  shown_t               shown_q;
  logic [Ids-1:0]       owed_some_q;
  logic [Queues-1:0]    die_q;
  logic                 late_r, late_b;
  assign r_given_o = shown_q.r_given;
  assign b_given_o = shown_q.b_given;
  assign r_ready_o = !shown_q.r_given;
  assign b_ready_o = !shown_q.b_given;
  assign idle_o    = !shown_q.owes;
  assign moves_o   = shown_q.moves;
  assign die_o     = shown_q.moves ? die_q & active_i : '0;   // the last answer of one that ends may have come

  always_comb begin
    late_r    = 1'b0;
    late_b    = 1'b0;
    r_valid_o = r_valid_i;
    b_valid_o = b_valid_i;
    r_id_o    = r_id_i;
    b_id_o    = b_id_i;
    if (shown_q.owes) begin
      late_r    = r_valid_i && !shown_q.r_given && owed_some_q[index_of(1'b0, r_id_i)];
      late_b    = b_valid_i && !shown_q.b_given && owed_some_q[index_of(1'b1, b_id_i)];
      r_valid_o = shown_q.r_given || (r_valid_i && !late_r);
      b_valid_o = shown_q.b_given || (b_valid_i && !late_b);
      if (shown_q.r_given) r_id_o = shown_q.id;
      if (shown_q.b_given) b_id_o = shown_q.id;
    end
  end

  // Each an expression of its own: a process that sets them anew wakes those who hear of them although they stay as they are.
  for (genvar q = 0; q < Queues; q++) begin : gen_owing
    assign sending_o[q] = shown_q.owes ? owed_some_q[{Lines + 3'd2, PairBits'(q)}] : 1'b0;
    assign owing_o[q]   = shown_q.owes ? owed_some_q[{Readback, PairBits'(q)}] || owed_some_q[{Lines, PairBits'(q)}]
                                      || owed_some_q[{Lines + 3'd1, PairBits'(q)}] || owed_some_q[{Lines + 3'd2, PairBits'(q)}]
                                      || (dead_i[q] && (owed_some_q[{Bursts, PairBits'(owner_i[q])}] || owed_some_q[{Owned, PairBits'(owner_i[q])}]))
                                      : 1'b0;
  end
  for (genvar f = 0; f < Functions; f++) begin : gen_held
    assign held_o[f]    = shown_q.owes ? owed_some_q[{Owned, PairBits'(f)}] : 1'b0;
    assign reading_o[f] = shown_q.owes ? owed_some_q[{Bursts, PairBits'(f)}] : 1'b0;
  end

  // ---------------------------------------------------------------- what is in flight, and the looks
  // Variables of this process: each is read before it is written, or what was written in the same cycle is meant.
  localparam int OwedBits = 32;
  logic [CountBits-1:0] out   [0:Ids-1];   // in flight, as the device sees it: beats, and write responses; …
  logic [Ids-1:0]       flying;            // … if there are any
  logic [Ids-1:0]       fresh;             // it has something in flight, or an answer, since the last look
  logic [TimeBits-1:0]  since [0:Ids-1];   // when it last was
  logic [OwedBits-1:0]  owed  [0:Ids-1];   // answers that the bus owes, if there are any
  logic [TimeBits-1:0]  now, age;
  logic [1:0]           state, settle;
  logic [2:0]           group;             // whose turn it is: kind, …
  logic [3:0]           pair;              // … and queue pair or function
  logic [CountBits-1:0] left;              // to give: what was in flight as it was judged. Whose it is dies with that
  logic [IndexBits-1:0] look, at;
  logic                 function_id, here, given, expired, behind, emits, passes;
  logic [Queues-1:0]    victims;
`ifndef SYNTHESIS
  logic users;
`endif

  always_ff @(posedge clk_i) begin
    /* verilator lint_off BLKSEQ */
    given = shown_q.r_given || shown_q.b_given;
    if (!rst_ni) begin
      flying    = '0;
      fresh     = '0;
      now       = '0;
      group     = Descriptors;
      pair      = '0;
      state     = Look;
      die_q     <= '0;
      shown_q   <= '0;
      shown_q.owes <= given || owed_some_q != '0;
    end else if (armed) begin
      look        = {group, pair[PairBits-1:0]};
      function_id = group == Bursts || group == Owned;
      here        = group[2] ? b_valid_o && b_id_o == {group[1:0], pair} : r_valid_o && r_id_o == {group[1:0], pair};
      emits       = 1'b0;
      passes      = 1'b0;
      victims     = '0;
      case (state)
        Look: begin
          state       = Judge;
          age         = fresh[look] ? '0 : now - since[look];
          if (fresh[look]) since[look] = now;
          fresh[look] = 1'b0;
        end
        Judge: begin
          // Nor was it answered since the look.
          expired = flying[look] && !fresh[look] && !here && age >= {1'b0, timeout_i};
          behind  = flying[look] && (function_id ? owed_some_q[look] : (32'(pair) < Queues) && dead_i[pair[QueueBits-1:0]]);
          if (expired || (behind && function_id)) begin
            for (int q = 0; q < Queues; q++)
              victims[q] = active_i[q] && !dead_i[q]
                        && (function_id ? owner_i[q] == pair && (engine_i[q] || (group == Owned && events_i[q])) : pair == 4'(q));
          end
          settle = '0;
          left   = out[look] - CountBits'(here);
          passes = group == Descriptors || !(expired || behind);
          if (!passes) state = Settle;
`ifndef SYNTHESIS
          users = 1'b0;
          for (int q = 0; q < Queues; q++)
            if (active_i[q] && owner_i[q] == pair && (engine_i[q] || (group == Owned && events_i[q]))) users = 1'b1;
          if (!passes && function_id && !users)
            $fatal(1, "R24 watchdog: no queue pair of function %0d may have what ID %0d waits for", pair, {group[1:0], pair});
`endif
        end
        default: begin
          if (state == Give) begin
            emits  = left != '0 && !given && !here;
            passes = left == '0;
          end
          if (left != '0) left = left - CountBits'(here);
          if (state == Settle) begin
            if (settle == '1) state = Give;
            settle = settle + 1'b1;
          end
        end
      endcase
      // The next ID. Of the reads there are three kinds, or two.
      if (passes) begin
        state = Look;
        if (32'(pair) != Last) pair = pair + 4'd1;
        else begin
          pair  = '0;
          group = (group == Bursts || (Engines == 1 && group == Readback)) ? Lines : group + 3'd1;
        end
      end

      // In flight.
      if (r_valid_o) begin
        at = index_of(1'b0, r_id_o);
`ifndef SYNTHESIS
        if (!flying[at]) $fatal(1, "R24 watchdog: data of ID %0d that nobody awaits", r_id_o);
`endif
        out[at]    = out[at] - 1'b1;
        flying[at] = out[at] != '0;
        fresh[at]  = 1'b1;
      end
      if (b_valid_o) begin
        at = index_of(1'b1, b_id_o);
`ifndef SYNTHESIS
        if (!flying[at]) $fatal(1, "R24 watchdog: a write response of ID %0d that nobody awaits", b_id_o);
`endif
        out[at]    = out[at] - 1'b1;
        flying[at] = out[at] != '0;
        fresh[at]  = 1'b1;
      end
      if (ar_i) begin
        at = index_of(1'b0, ar_id_i);
        if (!flying[at]) fresh[at] = 1'b1;
        out[at]    = (flying[at] ? out[at] : '0) + CountBits'(ar_len_i) + 1'b1;
        flying[at] = 1'b1;
      end
      if (aw_i) begin
        at = index_of(1'b1, aw_id_i);
        if (!flying[at]) fresh[at] = 1'b1;
        out[at]    = (flying[at] ? out[at] : '0) + 1'b1;
        flying[at] = 1'b1;
      end
      now = now + 1'b1;

      die_q           <= victims;
      shown_q.owes    <= emits || given || owed_some_q != '0;
      shown_q.moves   <= victims != '0 || state > Judge;
      shown_q.r_given <= emits && !group[2];
      shown_q.b_given <= emits && group[2];
      shown_q.id      <= {group[1:0], pair};
    end else if (shown_q.owes || shown_q.moves) begin
      shown_q      <= '0;
      shown_q.owes <= given || owed_some_q != '0;
    end

    // What the bus owes outlives a reset of the device.
    if (!bus_rst_ni) begin
      owed_some_q <= '0;
      shown_q.owes <= 1'b0;
    end else if (shown_q.owes) begin
      if (given) begin
        at = index_of(shown_q.b_given, shown_q.id);
        owed[at] = owed_some_q[at] ? owed[at] + 1'b1 : OwedBits'(1);
        owed_some_q[at] <= 1'b1;
      end
      if (late_r) begin
        at = index_of(1'b0, r_id_i);
        owed[at] = owed[at] - 1'b1;
        owed_some_q[at] <= owed[at] != '0;
      end
      if (late_b) begin
        at = index_of(1'b1, b_id_i);
        owed[at] = owed[at] - 1'b1;
        owed_some_q[at] <= owed[at] != '0;
      end
    end
    /* verilator lint_on BLKSEQ */
  end
endmodule
