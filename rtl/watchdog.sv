// The watchdog (R24), between the bus and what awaits its answers. A queue pair one of whose accesses is not answered for BUS_TIMEOUT
// cycles dies: device_ctrl takes it down as a disable does, and what of it waits for answers gets errors from here, so that nothing of it
// stays at a worker, in a store or in engine 1. What the bus still owes of such accesses is awaited here, and dropped.
//
// AXI orders the answers of one ID. So one look at each ID is enough: since when it has something in flight and has had no answer. The looks
// go round, a look every second cycle. The first answer of an ID that the device has given itself is the first that comes late.
//
// An ID of a queue pair makes that one die. One of a function (engine 1, events) makes all of its queue pairs die that have something
// there. While answers of such an ID are owed, what stands behind them is given up at once.
//
// Without BUS_TIMEOUT nothing of all this is counted.
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
  output logic [Functions-1:0] held_o,     // … under the ID of a function's events
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

  logic                 armed;
  logic [CountBits-1:0] out_q   [0:Ids-1];   // in flight, as the device sees it: beats, and write responses; …
  logic [Ids-1:0]         flying_q;          // … if there are any
  logic [Ids-1:0]         fresh_q;           // it has something in flight, or an answer, since the last look
  logic [TimeBits-1:0]  since_q [0:Ids-1];   // when it last was
  logic [TimeBits-1:0]  now_q, age_q;
  logic [1:0]           state_q;
  logic [2:0]           group;
  logic [3:0]           pair;
  logic [6:0]           look_q;            // whose turn it is: kind, queue pair or function
  logic [IndexBits-1:0] look, r_index, b_index, ar_index, aw_index;
  logic [1:0]           settle_q;
  logic                 fresh, expired, function_id, behind, gives_up;
  logic [CountBits-1:0] left_q;            // to give: what was in flight as it was judged. Whose it is dies with that
  logic                 given_q, emits, here;
  logic [Queues-1:0]    victims, die_q;

  assign armed = timeout_i != '0;
  assign {group, pair} = look_q;
  assign look = {group, pair[PairBits-1:0]};

  /* verilator lint_off UNUSEDSIGNAL */  // as many queue pairs as were built
  function automatic logic [IndexBits-1:0] index_of(input logic is_write, input logic [5:0] id);
    /* verilator lint_on UNUSEDSIGNAL */
    index_of = {is_write, id[5:4], id[PairBits-1:0]};
  endfunction

  // ---------------------------------------------------------------- answers
  // A beat or a response of an ID of which some are owed is one that was given up. The bus waits for a cycle with one that is given here.
  // An engine that gets errors may ask on: so they are more than may be in flight, and never as many as this counts.
  localparam int OwedBits = 32;
  logic [OwedBits-1:0] owed_q [0:Ids-1];
  logic [Ids-1:0]         owed_some_q;
  logic                 owed_any_q, late_r, late_b;
  // Whatever is not needed without BUS_TIMEOUT is constant then: a simulated cycle pays nothing for it.
  assign r_index   = owed_any_q ? index_of(1'b0, r_id_i) : '0;
  assign b_index   = owed_any_q ? index_of(1'b1, b_id_i) : '0;
  assign ar_index  = armed ? index_of(1'b0, ar_id_i) : '0;
  assign aw_index  = armed ? index_of(1'b1, aw_id_i) : '0;
  assign r_given_o = given_q && !group[2];
  assign b_given_o = given_q && group[2];
  assign r_ready_o = !r_given_o;
  assign b_ready_o = !b_given_o;
  assign late_r    = owed_any_q ? r_valid_i && !r_given_o && owed_some_q[r_index] : 1'b0;
  assign late_b    = owed_any_q ? b_valid_i && !b_given_o && owed_some_q[b_index] : 1'b0;
  assign r_valid_o = r_given_o || (r_valid_i && !late_r);
  assign b_valid_o = b_given_o || (b_valid_i && !late_b);
  assign r_id_o    = r_given_o ? look_q[5:0] : r_id_i;
  assign b_id_o    = b_given_o ? look_q[5:0] : b_id_i;

  always_ff @(posedge clk_i) begin
    if (!bus_rst_ni) begin
      owed_some_q <= '0;
      owed_any_q  <= 1'b0;
    end else if (given_q || owed_any_q) begin
      owed_any_q <= given_q || owed_some_q != '0;
      if (given_q) begin
        owed_q[look]      <= owed_some_q[look] ? owed_q[look] + 1'b1 : OwedBits'(1);
        owed_some_q[look] <= 1'b1;
      end
      if (late_r) begin
        owed_q[r_index]      <= owed_q[r_index] - 1'b1;
        owed_some_q[r_index] <= owed_q[r_index] != OwedBits'(1);
      end
      if (late_b) begin
        owed_q[b_index]      <= owed_q[b_index] - 1'b1;
        owed_some_q[b_index] <= owed_q[b_index] != OwedBits'(1);
      end
    end
  end

  for (genvar q = 0; q < Queues; q++) begin : gen_owing
    assign sending_o[q] = owed_any_q ? owed_some_q[{Lines + 3'd2, PairBits'(q)}] : 1'b0;
    assign owing_o[q]   = owed_any_q ? owed_some_q[{Readback, PairBits'(q)}] || owed_some_q[{Lines, PairBits'(q)}]
                                    || owed_some_q[{Lines + 3'd1, PairBits'(q)}] || sending_o[q]
                                    || (dead_i[q] && (owed_some_q[{Bursts, PairBits'(owner_i[q])}] || owed_some_q[{Owned, PairBits'(owner_i[q])}]))
                                    : 1'b0;
  end
  for (genvar f = 0; f < Functions; f++) begin : gen_held
    assign held_o[f] = owed_any_q ? owed_some_q[{Owned, PairBits'(f)}] : 1'b0;
  end
  assign idle_o = !given_q && !owed_any_q;

  // ---------------------------------------------------------------- what is in flight
  logic                 asks, writes, comes, done, r_same, b_same;
  logic [CountBits-1:0] asked, written, came, ended;      // of those IDs, when this cycle is over
  logic [IndexBits-1:0] come_index, done_index;
  assign asks       = armed && ar_i;
  assign writes     = armed && aw_i;
  assign comes      = armed && r_valid_o;
  assign done       = armed && b_valid_o;
  assign come_index = armed ? index_of(1'b0, r_id_o) : '0;
  assign done_index = armed ? index_of(1'b1, b_id_o) : '0;
  assign r_same     = asks ? comes && ar_id_i == r_id_o : 1'b0;
  assign b_same     = writes ? done && aw_id_i == b_id_o : 1'b0;
  assign asked      = asks ? (flying_q[ar_index] ? out_q[ar_index] : '0) + CountBits'(ar_len_i) + CountBits'(!r_same) : '0;
  assign written    = writes ? (flying_q[aw_index] ? out_q[aw_index] : '0) + CountBits'(!b_same) : '0;
  assign came       = comes ? out_q[come_index] - 1'b1 : '0;
  assign ended      = done ? out_q[done_index] - 1'b1 : '0;

  // ---------------------------------------------------------------- the looks
  assign fresh       = armed ? fresh_q[look] : 1'b0;
  assign expired     = armed ? flying_q[look] && !fresh && !here && age_q >= {1'b0, timeout_i} : 1'b0;   // nor answered since the look
  assign function_id = group == Bursts || group == Owned;
  assign behind      = armed ? flying_q[look] && (function_id ? owed_some_q[look] : (32'(pair) < Queues) && dead_i[pair[QueueBits-1:0]]) : 1'b0;
  assign gives_up    = armed ? group != Descriptors && (expired || behind) : 1'b0;
  assign here        = armed ? (group[2] ? b_valid_o && b_id_o == look_q[5:0] : r_valid_o && r_id_o == look_q[5:0]) : 1'b0;
  assign emits       = armed ? state_q == Give && left_q != '0 && !given_q && !here : 1'b0;
  assign moves_o     = armed ? die_q != '0 || state_q > Judge || (state_q == Judge && (expired || behind)) : 1'b0;
  assign die_o       = armed ? die_q & active_i : '0;   // the last answer of one that ends may have come

  always_comb begin
    victims = '0;
    if (expired || (behind && function_id)) begin
      for (int q = 0; q < Queues; q++)
        victims[q] = active_i[q] && !dead_i[q]
                  && (function_id ? owner_i[q] == pair && (engine_i[q] || (group == Owned && events_i[q])) : pair == 4'(q));
    end
  end

  // The next ID. Of the reads there are three kinds, or two.
  logic [6:0] next;
  always_comb begin
    if (!armed)                                                               next = look_q;
    else if (32'(pair) != Last)                                                    next = {group, pair + 4'd1};
    else if (group == Bursts || (Engines == 1 && group == Readback))          next = {Lines, 4'd0};
    else                                                                      next = {group + 3'd1, 4'd0};
  end

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      flying_q <= '0;
      fresh_q  <= '0;
      now_q    <= '0;
      look_q   <= '0;
      state_q  <= Look;
      given_q  <= 1'b0;
      die_q    <= '0;
    end else if (armed) begin
      now_q <= now_q + 1'b1;

      // In flight.
      if (state_q == Look) fresh_q[look] <= 1'b0;
      if (asks) begin
        out_q[ar_index]    <= asked;
        flying_q[ar_index] <= asked != '0;
        if (!flying_q[ar_index]) fresh_q[ar_index] <= 1'b1;
      end
      if (writes) begin
        out_q[aw_index]    <= written;
        flying_q[aw_index] <= written != '0;
        if (!flying_q[aw_index]) fresh_q[aw_index] <= 1'b1;
      end
      if (comes) begin
        fresh_q[come_index] <= 1'b1;
        if (!r_same) begin
          out_q[come_index]    <= came;
          flying_q[come_index] <= came != '0;
        end
      end
      if (done) begin
        fresh_q[done_index] <= 1'b1;
        if (!b_same) begin
          out_q[done_index]    <= ended;
          flying_q[done_index] <= ended != '0;
        end
      end

      // The looks.
      die_q   <= '0;
      given_q <= emits;
      case (state_q)
        Look: begin
          state_q <= Judge;
          age_q   <= fresh ? '0 : now_q - since_q[look];
          if (fresh) since_q[look] <= now_q;
        end
        Judge: begin
          die_q    <= victims;
          settle_q <= '0;
          if (gives_up) begin
            left_q  <= out_q[look] - CountBits'(here);
            state_q <= Settle;
          end else begin
            state_q <= Look;
            look_q  <= next;
          end
        end
        Settle: begin
          if (left_q != '0) left_q <= left_q - CountBits'(here);
          settle_q <= settle_q + 1'b1;
          if (settle_q == '1) state_q <= Give;
        end
        default: begin
          if (left_q != '0) left_q <= left_q - CountBits'(here);
          else begin
            state_q <= Look;
            look_q  <= next;
          end
        end
      endcase
    end
  end

`ifndef SYNTHESIS
  logic users;
  always_comb begin
    users = 1'b0;
    for (int q = 0; gives_up && q < Queues; q++)
      if (active_i[q] && owner_i[q] == pair && (engine_i[q] || (group == Owned && events_i[q]))) users = 1'b1;
  end
  always_ff @(posedge clk_i) begin
    if (rst_ni && armed) begin
      if (comes && !flying_q[come_index]) $fatal(1, "R24 watchdog: data of ID %0d that nobody awaits", r_id_o);
      if (done && !flying_q[done_index]) $fatal(1, "R24 watchdog: a write response of ID %0d that nobody awaits", b_id_o);
      if (given_q && (group == Descriptors || left_q == '0)) $fatal(1, "R24 watchdog: an answer of ID %0d is given that nobody awaits", look_q[5:0]);
    end
    if (rst_ni && gives_up && state_q == Judge && function_id) begin
      if (!users) $fatal(1, "R24 watchdog: no queue pair of function %0d may have what ID %0d waits for", pair, look_q[5:0]);
    end
    if (rst_ni && (late_r || late_b)) begin
      if (late_r && owed_q[r_index] == '0) $fatal(1, "R24 watchdog: data of ID %0d is dropped that is not late", r_id_i);
      if (late_b && owed_q[b_index] == '0) $fatal(1, "R24 watchdog: a write response of ID %0d is dropped that is not late", b_id_i);
    end
  end
`endif
endmodule
