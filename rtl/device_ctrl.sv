// Life of each queue pair (rule R12): off, on, and, once it is disabled, active until nothing of it is left.
//
// A queue pair that is no longer on takes in nothing, hands out nothing and writes no completion; what runs of it ends as
// by a STOP. ACTIVE falls when nothing of it is left inside and on the bus. DRAIN lets it complete what is published
// first.
//
// A death (R24) takes a queue pair down likewise, wherever it is in its life. One that was on stays active until it is disabled.
//
// A reset of the device alone, while the bus lives on, leaves transfers that the bus still owes: until they are done
// everything inside is held in reset, and all queue pairs are active.
module device_ctrl #(
  parameter int Queues = 1
) (
  input  logic clk_i,
  input  logic rst_ni,
  input  logic [Queues-1:0] start_i,       // CONTROL.ENABLE is being set, and accepted; only while inactive
  input  logic [Queues-1:0] stop_i,        // it is being cleared
  input  logic [Queues-1:0] drain_i,       // CONTROL.DRAIN is being set
  input  logic [Queues-1:0] done_i,        // every published descriptor has its completion, and the host has been told what it is to be told
  input  logic [Queues-1:0] busy_i,        // something is inside, or was promised to the bus
  input  logic [Queues-1:0] die_i,         // the bus owes it an answer for too long; only while active
  input  logic [Queues-1:0] idle_i,        // no published descriptor is without its completion, …
  input  logic              bus_idle_i,    // nothing at all is promised to the bus, or in flight there
  output logic [Queues-1:0] on_o,
  output logic [Queues-1:0] enabled_o,     // CONTROL.ENABLE: on, or dead and not disabled
  output logic [Queues-1:0] dead_o,        // STATE.DEAD
  output logic [Queues-1:0] idle_o,        // … nor was one when it died
  output logic [Queues-1:0] ending_o,      // active, and no longer on
  output logic [Queues-1:0] draining_o,    // accepts no doorbell any more
  output logic [Queues-1:0] active_o,      // STATE.ACTIVE
  output logic              inner_rst_no   // of everything but the registers and what the bus was promised
);
  logic [Queues-1:0] on_q, active_q, draining_q, held_q, dead_q, idle_q;   // held: dead, and not disabled
  logic              owed_q, reset_q;     // the bus is owed something; in reset since the last cycle at least
  logic [Queues-1:0] running;

  // Something of their lives may change.
  logic lives;
  assign lives = (start_i | stop_i | drain_i | die_i | draining_q | (active_q & ~on_q)) != '0;

  always_comb begin
    running = '0;
    if (lives) running = on_q & ~stop_i & ~die_i & ~(draining_q & done_i);
  end

  always_ff @(posedge clk_i) begin
    reset_q <= !rst_ni;
    if (!rst_ni) begin
      on_q       <= '0;
      active_q   <= '0;
      draining_q <= '0;
      held_q     <= '0;
      dead_q     <= '0;
      owed_q     <= !reset_q || !bus_idle_i;     // a transfer may begin in the first cycle of a reset
    end else begin
      if (lives) begin
        active_q   <= start_i | on_q | held_q | (active_q & busy_i);
        draining_q <= (draining_q | drain_i) & (running | ((held_q | (die_i & on_q)) & ~stop_i));
        held_q     <= (held_q | (die_i & on_q)) & ~stop_i;
        dead_q     <= (dead_q | die_i) & (on_q | held_q | (active_q & busy_i));
        idle_q     <= (idle_q & ~die_i) | (idle_i & die_i);
        on_q       <= start_i | running;
      end
      if (bus_idle_i) owed_q <= 1'b0;
    end
  end

  assign on_o         = on_q;
  assign enabled_o    = on_q | held_q;
  assign dead_o       = dead_q;
  // A doorbell that was accepted just before the death shows in idle_i behind it.
  assign idle_o       = (held_q == '0) ? idle_i : idle_i & (~held_q | idle_q);
  assign ending_o     = active_q & ~on_q;
  assign draining_o   = draining_q;
  assign active_o     = active_q | {Queues{owed_q}};
  assign inner_rst_no = rst_ni && !owed_q;

`ifndef SYNTHESIS
  always_ff @(posedge clk_i) begin
    if (rst_ni && !owed_q) begin
      if (active_q != '1) begin
        if ((busy_i & ~active_q) != '0) $fatal(1, "R12 device_ctrl: queue pairs %b are inactive and not idle", busy_i & ~active_q);
      end
      if ((die_i & ~active_q) != '0) $fatal(1, "R24 device_ctrl: queue pairs %b die while inactive", die_i & ~active_q);
      if ((start_i & active_q) != '0) $fatal(1, "R12 device_ctrl: queue pairs %b are started while active", start_i & active_q);
    end
  end
`endif
endmodule
