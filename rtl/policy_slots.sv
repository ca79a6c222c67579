// The versions of the policy that each function has resident (rules R18 to R20): two slots, and which of them is in use.
//
// A descriptor's version is looked up as its slot of the submission queue arrives, and what was found counts as a user of
// its policy slot from that cycle on, until its completion is posted or dropped, or the check throws it out. A slot with
// users is never loaded anew: so what was looked up stays true, and only its state is looked at once more, when the
// descriptor is handed out. What a queue pair that is no longer on has dropped uses nothing as soon as nothing of it is at a worker: a dead
// one may stay for long (R24).
//
// The slot that was loaded last is always resident, so a new version goes into the other one, and the version before is
// that which was loaded last. In the cycle behind the one in which it is loaded, the workers and the groups are told.
module policy_slots
  import desc_pkg::*;
  import core_pkg::*;
#(
  parameter int Queues    = 1,
  parameter int Functions = 1,
  parameter int Engines   = 1
) (
  /* verilator lint_off UNUSEDSIGNAL */  // numbers of queue pairs and functions have 4 bits, whatever was built
  input  logic         clk_i,
  input  logic         rst_ni,

  input  logic         start_i,         // a queue pair starts, with this configuration
  input  logic [3:0]   start_queue_i,
  input  queue_config_t start_config_i,
  input  logic [Queues-1:0] active_i,
  input  logic [Queues-1:0] gone_i,     // off, and nothing of it is in flight: what waited was dropped, and uses no slot until the next start

  // A slot arrives that names a version. The answer is combinational.
  input  logic         look_i,
  input  logic [3:0]   look_queue_i,
  input  logic [15:0]  look_version_i,
  output logic         found_o,         // it is resident, or retired and not yet gone
  output logic         resident_o,
  output logic         slot_o,
  output logic [31:0]  salt_o,
  output logic         engine_o,        // it is of engine 1, …
  output logic [31:0]  positions_o,     // … whose sequences have so many

  // Users that are none any more: by the check, and complete.
  input  logic         leave_i,
  input  logic [3:0]   leave_queue_i,
  input  logic         leave_slot_i,
  input  logic         finish_i,
  input  logic [3:0]   finish_queue_i,
  input  logic         finish_slot_i,

  // A descriptor is looked at to be handed out: its version was retired.
  input  logic         hand_i,
  input  logic [3:0]   hand_queue_i,
  input  logic         hand_slot_i,
  output logic         kept_o,          // with KEEP
  output logic         aborted_o,       // with ABORT

  // R19. A question, which may be asked in any cycle; with it, the load, which only goes without an objection.
  input  logic         ask_i,
  input  logic [3:0]   ask_queue_i,
  input  logic [15:0]  ask_version_i,
  output logic         ask_resident_o,  // the version is resident
  output logic         ask_occupied_o,  // the slot that would be loaded has users
  input  logic         load_i,          // with ask_i
  input  logic [31:0]  load_salt_i,
  input  logic [1:0]   load_mode_i,
  input  logic         load_engine_i,   // of engine 1, with this image
  input  image_t       load_image_i,

  // The image of a slot that has a user, combinational.
  input  logic [3:0]   image_owner_i,
  input  logic         image_slot_i,
  output image_t       image_o,

  // A version was loaded in the cycle before.
  output logic         switch_o,
  output logic [Queues-1:0] switch_pairs_o,   // the queue pairs of its function
  output logic         switch_slot_o,   // that it was loaded into; the other one holds the version before …
  output logic         switch_keep_o,   // … which is retired
  output logic         switch_abort_o,

  // The registers.
  input  logic         read_i,
  input  logic [3:0]   read_owner_i,
  output logic [63:0]  read_o           // with read_i: POLICY_SLOT_1, POLICY_SLOT_0
  /* verilator lint_on UNUSEDSIGNAL */
);
  if (Queues < 1 || Queues > MAX_QUEUES) begin : gen_bad_queues
    localparam bit QueuesMustBe1To16 = {-1{1'b1}};   // ends the elaboration
  end

  if (Functions < 1 || Functions > MAX_FUNCTIONS) begin : gen_bad_functions
    localparam bit FunctionsMustBe1To16 = {-1{1'b1}};   // ends the elaboration
  end

  localparam int QueueBits    = (Queues == 1) ? 1 : $clog2(Queues);
  localparam int FunctionBits = (Functions == 1) ? 1 : $clog2(Functions);
  localparam int Slots        = 1 << QueueBits;
  localparam int Owners       = 1 << FunctionBits;
  // Descriptors between their arrival and their completion: bounded by the stores on the way, far below 2^14.
  localparam int CountBits    = 14;

  logic [QueueBits-1:0] start_pair, look_pair, leave_pair, finish_pair, hand_pair, ask_pair;
  assign start_pair  = (Queues == 1) ? '0 : start_queue_i[QueueBits-1:0];
  assign look_pair   = (Queues == 1) ? '0 : look_queue_i[QueueBits-1:0];
  assign leave_pair  = (Queues == 1) ? '0 : leave_queue_i[QueueBits-1:0];
  assign finish_pair = (Queues == 1) ? '0 : finish_queue_i[QueueBits-1:0];
  assign hand_pair   = (Queues == 1) ? '0 : hand_queue_i[QueueBits-1:0];
  assign ask_pair    = (Queues == 1) ? '0 : ask_queue_i[QueueBits-1:0];

  // The function of each queue pair, as of its start.
  logic [Slots-1:0][FunctionBits-1:0] owner_q;
  logic [FunctionBits-1:0] start_owner, look_owner, hand_owner, ask_owner, read_owner;
  assign start_owner = (Functions == 1) ? '0 : start_config_i.owner[FunctionBits-1:0];
  assign look_owner  = (Functions == 1) ? '0 : owner_q[look_pair];
  assign hand_owner  = (Functions == 1) ? '0 : owner_q[hand_pair];
  assign ask_owner   = (Functions == 1) ? '0 : owner_q[ask_pair];
  assign read_owner  = (Functions == 1) ? '0 : read_owner_i[FunctionBits-1:0];

  // ---------------------------------------------------------------- the slots; index: function, slot
  logic [2*Owners-1:0][15:0] version_q;
  logic [2*Owners-1:0][31:0] salt_q;
  logic [2*Owners-1:0] resident_q, kept_q, aborted_q;
  logic [Owners-1:0]   last_q;                    // the slot that was loaded last

  // ---------------------------------------------------------------- users; index: queue pair, slot
  // Those that came, were thrown out, completed: counted freely, each with one address of its own.
  logic [2*Slots-1:0][CountBits-1:0] came_q;
  logic [2*Slots-1:0][CountBits-1:0] left_q;
  logic [2*Slots-1:0][CountBits-1:0] ended_q;

  always_ff @(posedge clk_i) begin
    if (found_o)  came_q[{look_pair, slot_o}]            <= came_q[{look_pair, slot_o}] + 1'b1;
    if (leave_i)  left_q[{leave_pair, leave_slot_i}]     <= left_q[{leave_pair, leave_slot_i}] + 1'b1;
    if (finish_i) ended_q[{finish_pair, finish_slot_i}]  <= ended_q[{finish_pair, finish_slot_i}] + 1'b1;
    // What a disable dropped is gone.
    if (start_i) begin
      for (int s = 0; s < 2; s++) begin
        came_q[{start_pair, s[0]}]  <= '0;
        left_q[{start_pair, s[0]}]  <= '0;
        ended_q[{start_pair, s[0]}] <= '0;
      end
    end
  end

  // ---------------------------------------------------------------- a new version
  logic target, loads;
  always_comb begin
    target         = 1'b0;
    ask_resident_o = 1'b0;
    ask_occupied_o = 1'b0;
    if (ask_i) begin
      target         = !last_q[ask_owner];
      ask_resident_o = (resident_q[{ask_owner, 1'b0}] && version_q[{ask_owner, 1'b0}] == ask_version_i)
                    || (resident_q[{ask_owner, 1'b1}] && version_q[{ask_owner, 1'b1}] == ask_version_i);
      for (int q = 0; q < Queues; q++) begin
        if (active_i[q] && !gone_i[q] && (Functions == 1 || owner_q[q] == ask_owner)
            && came_q[{QueueBits'(q), target}] != left_q[{QueueBits'(q), target}] + ended_q[{QueueBits'(q), target}])
          ask_occupied_o = 1'b1;
      end
      // One that names it arrives in this cycle.
      if (found_o && look_owner == ask_owner && slot_o == target) ask_occupied_o = 1'b1;
    end
  end
  assign loads = ask_i && load_i && !ask_resident_o && !ask_occupied_o;

  // ---------------------------------------------------------------- lookup; index of a slot: function, slot
  logic match_0, match_1;
  always_comb begin
    match_0    = 1'b0;
    match_1    = 1'b0;
    found_o    = 1'b0;
    resident_o = 1'b0;
    slot_o     = 1'b0;
    salt_o     = '0;
    if (look_i) begin
      match_0    = version_q[{look_owner, 1'b0}] == look_version_i
                && (resident_q[{look_owner, 1'b0}] || kept_q[{look_owner, 1'b0}] || aborted_q[{look_owner, 1'b0}]);
      match_1    = version_q[{look_owner, 1'b1}] == look_version_i
                && (resident_q[{look_owner, 1'b1}] || kept_q[{look_owner, 1'b1}] || aborted_q[{look_owner, 1'b1}]);
      found_o    = match_0 || match_1;
      slot_o     = match_1;
      resident_o = found_o && resident_q[{look_owner, match_1}];
      if (found_o) salt_o = salt_q[{look_owner, match_1}];
    end
  end

  // One that is handed out: whether anything was retired is asked first.
  logic retired;
  assign retired   = (kept_q | aborted_q) != '0;
  assign kept_o    = retired && hand_i && kept_q[{hand_owner, hand_slot_i}];
  assign aborted_o = retired && hand_i && aborted_q[{hand_owner, hand_slot_i}];

  // ---------------------------------------------------------------- a start
  // The function of a queue pair that starts begins anew when no other queue pair of it is active.
  logic begins;
  always_comb begin
    begins = start_i;
    if (start_i) begin
      for (int q = 0; q < Queues; q++)
        if (active_i[q] && start_pair != QueueBits'(q) && (Functions == 1 || owner_q[q] == start_owner)) begins = 1'b0;
    end
  end

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      for (int f = 0; f < Owners; f++) begin
        for (int s = 0; s < 2; s++) begin
          version_q[2*f + s] <= '0;
          salt_q[2*f + s]    <= '0;
        end
        resident_q[2*f +: 2] <= 2'b01;
      end
      kept_q    <= '0;
      aborted_q <= '0;
      last_q    <= '0;
    end else begin
      if (loads) begin
        version_q[{ask_owner, target}]  <= ask_version_i;
        salt_q[{ask_owner, target}]     <= load_salt_i;
        resident_q[{ask_owner, target}] <= 1'b1;
        kept_q[{ask_owner, target}]     <= 1'b0;
        aborted_q[{ask_owner, target}]  <= 1'b0;
        last_q[ask_owner]               <= target;
        if (load_mode_i != POLICY_WAIT[1:0]) begin
          resident_q[{ask_owner, !target}] <= 1'b0;
          kept_q[{ask_owner, !target}]     <= load_mode_i == POLICY_KEEP[1:0];
          aborted_q[{ask_owner, !target}]  <= load_mode_i == POLICY_ABORT[1:0];
        end
      end
      if (begins) begin
        for (int s = 0; s < 2; s++) begin
          version_q[{start_owner, s[0]}]  <= '0;
          salt_q[{start_owner, s[0]}]     <= '0;
          resident_q[{start_owner, s[0]}] <= s == 0;
          kept_q[{start_owner, s[0]}]     <= 1'b0;
          aborted_q[{start_owner, s[0]}]  <= 1'b0;
        end
        last_q[start_owner] <= 1'b0;
      end
    end
    if (start_i) owner_q[start_pair] <= start_owner;
  end

  // ---------------------------------------------------------------- what engine 1 has of a version
  if (Engines > 1) begin : gen_images
    image_slots #(.Functions(Functions)) u_image_slots (
      .clk_i,
      .rst_ni,
      .begin_i       (begins),
      .begin_owner_i (4'(start_owner)),
      .load_i        (loads),
      .load_owner_i  (4'(ask_owner)),
      .load_slot_i   (target),
      .load_engine_i (load_engine_i),
      .load_image_i  (load_image_i),
      .look_i        (found_o),
      .look_owner_i  (4'(look_owner)),
      .look_slot_i   (slot_o),
      .engine_o      (engine_o),
      .positions_o   (positions_o),
      .image_owner_i (image_owner_i),
      .image_slot_i  (image_slot_i),
      .image_o       (image_o)
    );
  end else begin : gen_no_images
    assign engine_o    = 1'b0;
    assign positions_o = '0;
    assign image_o     = '0;
  end

  // ---------------------------------------------------------------- who is told
  always_ff @(posedge clk_i) begin
    if (!rst_ni) switch_o <= 1'b0;
    else         switch_o <= loads;
    if (loads) begin
      for (int q = 0; q < Queues; q++) switch_pairs_o[q] <= active_i[q] && (Functions == 1 || owner_q[q] == ask_owner);
      switch_slot_o  <= target;
      switch_keep_o  <= load_mode_i == POLICY_KEEP[1:0];
      switch_abort_o <= load_mode_i == POLICY_ABORT[1:0];
    end
  end

  // ---------------------------------------------------------------- registers
  always_comb begin
    read_o = '0;
    if (read_i) begin
      for (int s = 0; s < 2; s++) begin
        read_o[32*s +: 16]      = version_q[{read_owner, s[0]}];
        read_o[32*s + 16 +: 2]  = resident_q[{read_owner, s[0]}] ? SLOT_RESIDENT[1:0] : kept_q[{read_owner, s[0]}] ? SLOT_KEPT[1:0]
                                : aborted_q[{read_owner, s[0]}] ? SLOT_ABORTED[1:0] : SLOT_EMPTY[1:0];
        read_o[32*s + 24 +: 1]  = last_q[read_owner] == s[0];
      end
    end
  end

`ifndef SYNTHESIS
  always_ff @(posedge clk_i) begin
    if (rst_ni && loads) begin
      if (!resident_q[{ask_owner, !target}]) $fatal(1, "R19 policy_slots: the version that was loaded last is not resident");
      if (load_mode_i == 2'd3) $fatal(1, "R19 policy_slots: a version is loaded with no mode");
    end
    if (rst_ni && finish_i) begin
      if (came_q[{finish_pair, finish_slot_i}] == left_q[{finish_pair, finish_slot_i}] + ended_q[{finish_pair, finish_slot_i}])
        $fatal(1, "R18 policy_slots: more descriptors of queue pair %0d end than named slot %0d", finish_pair, finish_slot_i);
    end
  end
`endif
endmodule
