// The watchdog (R24) answers what the bus does not: no answer is told to the device that it does not await, each access has one answer, of the bus or given, and what
// the bus says of an access that was given up is dropped, in AXI's order. It is watched under one ID, token lines of a queue pair, which alone is looked at, so that a death
// comes within the cycles that the proof looks at.
//
// Assumed: the bus answers what it was asked, and holds an answer until it is taken (AXI; asserted in axi_writer). BUS_TIMEOUT stays as it is while something is
// in flight (mmio_regs: it is written while no queue pair is active; mmio_regs_tb). A dead queue pair writes no further line, and is active until all have their
// answer (device_ctrl).
module watchdog_f import core_pkg::*; (
  input logic       clk_i,
  input logic       aw_i, b_valid_i,
  input logic [1:0] timeout_i                     // held
);
  logic run = 1'b0;
  always_ff @(posedge clk_i) run <= 1'b1;

  logic       die, owing, sending, held, reading, idle, moves, r_ready, b_ready, r_valid, b_valid, r_given, b_given;
  logic [5:0] r_id, b_id;
  logic       dead = 1'b0;

  watchdog #(.Queues(1), .Functions(1), .Engines(1)) u_watchdog (
    .clk_i, .rst_ni(run), .bus_rst_ni(run), .timeout_i(32'(timeout_i)), .active_i(1'b1), .dead_i(dead), .owner_i('0), .engine_i(1'b0), .events_i(1'b0),
    .die_o(die), .owing_o(owing), .sending_o(sending), .held_o(held), .reading_o(reading), .idle_o(idle), .moves_o(moves),
    .ar_i(1'b0), .ar_id_i('0), .ar_len_i('0), .aw_i, .aw_id_i('0), .r_valid_i(1'b0), .r_id_i('0), .r_ready_o(r_ready), .b_valid_i, .b_id_i('0), .b_ready_o(b_ready),
    .r_valid_o(r_valid), .r_id_o(r_id), .r_given_o(r_given), .b_valid_o(b_valid), .b_id_o(b_id), .b_given_o(b_given)
  );

  // ---------------------------------------------------------------- what is kept of the past
  logic [2:0] awaited = '0, owed = '0;            // by the device, and of the bus
  logic [2:0] given = '0;                         // by the watchdog, and the bus has not said it
  logic [4:0] since = '0;                         // cycles without an answer while one is awaited
  logic [1:0] timeout;
  logic       began = 1'b0, late = 1'b0, shown = 1'b0, comes;
  assign comes = b_valid_i && b_ready;
  always_ff @(posedge clk_i) begin
    began   <= 1'b1;
    timeout <= timeout_i;
    shown   <= b_valid_i && !b_ready;
    dead    <= dead || die;
    if (run) begin
      awaited <= awaited + 3'(aw_i) - 3'(b_valid);
      owed    <= owed + 3'(aw_i) - 3'(comes);
      given   <= given + 3'(b_given) - 3'(comes && !b_valid);
      since   <= (awaited == '0 || b_valid) ? '0 : since + 1'b1;
      late    <= late || (comes && !b_valid);
    end
  end

  // ---------------------------------------------------------------- what is assumed
  always_comb begin
    if (began) assume (timeout_i == timeout);
    assume (timeout_i != '0);
    if (!run) assume (!aw_i && !b_valid_i);
    if (shown) assume (b_valid_i);
    if (b_valid_i) assume (owed != '0);
    if (owed >= 3'd3 || dead) assume (!aw_i);
  end

  // ---------------------------------------------------------------- what is asserted
`ifndef REACH
  always_comb if (run) begin
    // Nothing is told that is not awaited, and nothing is told twice: what the bus owes is what is awaited and what was given.
    if (b_valid) assert (awaited != '0 && b_id == '0);
    assert (owed == awaited + given);
    // An answer of the bus is dropped if and only if the access was given up, and none is taken while one is given.
    if (comes) assert (b_valid == (given == '0));
    if (b_given) assert (b_valid && !comes);
    // Only a dead queue pair's accesses are given up; it dies if one waits for BUS_TIMEOUT, and not before. None waits for ever.
    if (b_given) assert (dead);
    if (die) assert (!dead && since >= 5'(timeout_i));
    assert (since <= 5'(timeout_i) + 5'd12);
    if (given != '0) assert (owing && !idle);
    assert (!r_valid && r_ready);
  end
`endif

  // What must be reachable, for the proof to say anything.
`ifdef REACH
  logic [4:0] steps = '0;
  always_ff @(posedge clk_i) if (steps != '1) steps <= steps + 1'b1;
  always_comb case (`REACH)
    0:       assert (steps != 5'(`DEPTH - 1));
    1:       assert (!(late && given == '0 && awaited == '0));
    default: assert (given != 3'd2);
  endcase
`endif
endmodule
