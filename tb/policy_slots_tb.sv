// policy_slots against a model of R18 to R20: what a version is found in, which slot a new one goes into, which objections
// there are, what is retired and who is told; users of a slot, by queue pair, through disables; a function begins anew when
// a queue pair of it starts while no other is active, and keeps what it has when one is. Of versions of engine 1 their images, for
// the lookup and for the engine (R25). Four queue pairs, three functions.
module policy_slots_tb;
  import bench_pkg::*;
  import desc_pkg::*;
  import core_pkg::*;

  logic clk, rst_n;
  int   cycle;
  clock_reset #(.Limit(60000)) u_clock (.clk_o(clk), .rst_no(rst_n), .cycle_o(cycle));

  localparam int Queues    = 4;
  localparam int Functions = 3;
  localparam int Versions  = 5;         // numbers that are drawn

  logic              start = 1'b0, look = 1'b0, leave = 1'b0, leave_slot = 1'b0, finish = 1'b0, finish_slot = 1'b0;
  logic              hand = 1'b0, hand_slot = 1'b0, ask = 1'b0, load = 1'b0;
  logic [3:0]        start_queue = '0, look_queue = '0, leave_queue = '0, finish_queue = '0, hand_queue = '0, ask_queue = '0;
  logic [3:0]        read_owner = '0;
  queue_config_t     start_config = '0;
  logic [Queues-1:0] active = '0, gone = '0, switch_pairs;
  logic [15:0]       look_version = '0, ask_version = '0;
  logic [31:0]       load_salt = '0, salt;
  logic [1:0]        load_mode = '0;
  logic              found, resident, slot, kept, aborted, ask_resident, ask_occupied;
  logic              switched, switch_slot, switch_keep, switch_abort;
  logic [63:0]       read;
  logic              load_engine = 1'b0, engine, image_slot = 1'b0;
  logic [3:0]        image_owner = '0;
  logic [31:0]       positions;
  image_t            load_image = '0, image;

  policy_slots #(.Queues(Queues), .Functions(Functions), .Engines(2)) u_slots (
    .engine_o(engine), .positions_o(positions), .load_engine_i(load_engine), .load_image_i(load_image), .image_owner_i(image_owner),
    .image_slot_i(image_slot), .image_o(image),
    .clk_i(clk), .rst_ni(rst_n), .start_i(start), .start_queue_i(start_queue), .start_config_i(start_config), .active_i(active), .gone_i(gone),
    .look_i(look), .look_queue_i(look_queue), .look_version_i(look_version), .found_o(found), .resident_o(resident),
    .slot_o(slot), .salt_o(salt), .leave_i(leave), .leave_queue_i(leave_queue), .leave_slot_i(leave_slot),
    .finish_i(finish), .finish_queue_i(finish_queue), .finish_slot_i(finish_slot), .hand_i(hand), .hand_queue_i(hand_queue),
    .hand_slot_i(hand_slot), .kept_o(kept), .aborted_o(aborted), .ask_i(ask), .ask_queue_i(ask_queue),
    .ask_version_i(ask_version), .ask_resident_o(ask_resident), .ask_occupied_o(ask_occupied), .load_i(load),
    .load_salt_i(load_salt), .load_mode_i(load_mode), .switch_o(switched), .switch_pairs_o(switch_pairs),
    .switch_slot_o(switch_slot), .switch_keep_o(switch_keep), .switch_abort_o(switch_abort), .read_i(1'b1), .read_owner_i(read_owner),
    .read_o(read)
  );

  // ---------------------------------------------------------------- the model
  int          owner [0:Queues-1];
  int          users [0:2*Queues-1];                 // queue pair, slot
  logic [15:0] version [0:2*Functions-1];            // function, slot
  logic [31:0] salts [0:2*Functions-1];
  logic [7:0]  what [0:2*Functions-1];               // slot state
  logic        engines [0:2*Functions-1];            // of engine 1, …
  logic [$bits(image_t)-1:0] images [0:2*Functions-1];   // … with this image
  int          languages = 0, looked = 0;
  int          loaded [0:2*Functions-1];             // when: the greater, the later
  int          clock = 1;
  int          loads = 0, objections = 0, busy = 0, kept_seen = 0, aborted_seen = 0, lost = 0, anew = 0, later = 0, replaced = 0, kept_by_none = 0;

  task automatic begin_anew(input int f);
    engines[2*f] = 1'b0; engines[2*f+1] = 1'b0;
    version[2*f] = 0; salts[2*f] = 0; what[2*f] = SLOT_RESIDENT; loaded[2*f] = 1;
    version[2*f+1] = 0; salts[2*f+1] = 0; what[2*f+1] = SLOT_EMPTY; loaded[2*f+1] = 0;
  endtask

  initial begin
    for (int q = 0; q < Queues; q++) begin owner[q] = 0; users[2*q] = 0; users[2*q+1] = 0; end
    for (int f = 0; f < Functions; f++) begin_anew(f);
  end

  // Which slot a version is in, or -1.
  function automatic int slot_of(input int f, input logic [15:0] v);
    slot_of = -1;
    for (int s = 0; s < 2; s++) if (what[2*f+s] != SLOT_EMPTY && version[2*f+s] == v) slot_of = s;
  endfunction

  int   f, s, target, q;
  image_t looked_image;
  logic want_resident, want_occupied, want_switch = 1'b0, others;
  logic [Queues-1:0] want_pairs;
  logic [Queues-1:0] on = '0, off = '0;   // in the next cycle; off: active, and nothing of it is in flight (R24)
  logic [2:0]        want_how;            // slot, keep, abort

  always @(posedge clk) if (rst_n) begin
    // What is told of the cycle before.
    expect_eq("switch_o", switched, want_switch);
    if (want_switch) begin
      expect_eq("queue pairs that are told", switch_pairs, want_pairs);
      expect_eq("what they are told", {switch_slot, switch_keep, switch_abort}, want_how);
    end
    want_switch = 1'b0;

    f = int'(read_owner);
    for (int k = 0; k < 2; k++)
      expect_eq("POLICY_SLOT", read[32*k +: 32], {7'd0, loaded[2*f+k] > loaded[2*f+1-k], what[2*f+k], version[2*f+k]});

    if (look) begin
      f = owner[look_queue];
      s = slot_of(f, look_version);
      expect_eq("found", found, s >= 0);
      if (s >= 0) begin
        expect_eq("slot", slot, s);
        expect_eq("salt", salt, salts[2*f+s]);
        expect_eq("resident", resident, what[2*f+s] == SLOT_RESIDENT);
        expect_eq("R25: engine", engine, engines[2*f+s]);
        looked_image = images[2*f+s];
        if (engine) begin
          looked = looked + 1;
          expect_eq("R25: positions", positions, looked_image.positions);
        end
      end
    end else expect_eq("found", {found, engine}, 2'b00);
    if (engines[2*image_owner + image_slot] && image !== images[2*image_owner + image_slot])
      fail($sformatf("R25: image %h, expected %h", image, images[2*image_owner + image_slot]));

    f = owner[hand_queue];
    expect_eq("retired with KEEP", kept, hand && what[2*f + hand_slot] == SLOT_KEPT);
    expect_eq("retired with ABORT", aborted, hand && what[2*f + hand_slot] == SLOT_ABORTED);
    if (kept) kept_seen = kept_seen + 1;
    if (aborted) aborted_seen = aborted_seen + 1;

    if (ask) begin
      f = owner[ask_queue];
      target = (what[2*f] != SLOT_RESIDENT) ? 0 : (what[2*f+1] != SLOT_RESIDENT) ? 1 : (loaded[2*f] < loaded[2*f+1]) ? 0 : 1;
      want_resident = slot_of(f, ask_version) >= 0 && what[2*f + slot_of(f, ask_version)] == SLOT_RESIDENT;
      want_occupied = look && owner[look_queue] == f && slot_of(f, look_version) == target;
      if (want_occupied) later = later + 1;
      for (int k = 0; k < Queues; k++) if (active[k] && !gone[k] && owner[k] == f && users[2*k+target] != 0) want_occupied = 1'b1;
      for (int k = 0; k < Queues; k++) if (active[k] && gone[k] && owner[k] == f && users[2*k+target] != 0) kept_by_none = kept_by_none + 1;
      expect_eq("ask_resident", ask_resident, want_resident);
      expect_eq("ask_occupied", ask_occupied, want_occupied);
      if (load && want_resident) objections = objections + 1;
      else if (load && want_occupied) busy = busy + 1;
    end

    // Users come and go.
    if (look && s >= 0) users[2*look_queue+s] = users[2*look_queue+s] + 1;
    if (leave)  users[2*leave_queue+leave_slot]   = users[2*leave_queue+leave_slot] - 1;
    if (finish) users[2*finish_queue+finish_slot] = users[2*finish_queue+finish_slot] - 1;

    if (ask && load && !want_resident && !want_occupied) begin
      f = owner[ask_queue];
      loads = loads + 1;
      if (what[2*f+target] == SLOT_RESIDENT) replaced = replaced + 1;
      version[2*f+target] = ask_version;
      salts[2*f+target]   = load_salt;
      engines[2*f+target] = load_engine;
      images[2*f+target]  = load_image;
      if (load_engine) languages = languages + 1;
      what[2*f+target]    = SLOT_RESIDENT;
      clock = clock + 1;
      loaded[2*f+target]  = clock;
      if (load_mode == POLICY_KEEP)  what[2*f+1-target] = SLOT_KEPT;
      if (load_mode == POLICY_ABORT) what[2*f+1-target] = SLOT_ABORTED;
      want_switch = 1'b1;
      for (int k = 0; k < Queues; k++) want_pairs[k] = active[k] && owner[k] == f;
      want_how = {1'(target), load_mode == POLICY_KEEP, load_mode == POLICY_ABORT};
    end

    if (start) begin
      owner[start_queue] = int'(start_config.owner);
      lost = lost + users[2*start_queue] + users[2*start_queue+1];
      users[2*start_queue]   = 0;
      users[2*start_queue+1] = 0;
      others = 1'b0;
      for (int k = 0; k < Queues; k++) if (k != start_queue && active[k] && owner[k] == owner[start_queue]) others = 1'b1;
      if (!others) begin
        begin_anew(owner[start_queue]);
        anew = anew + 1;
      end
    end

    // ---------------------------------------------------------------- the next cycle
    start <= 1'b0;
    on = active;
    if (start) on[start_queue] = 1'b1;
    q = below(Queues);
    if (!start && below(120) == 0) begin
      if (on[q] && !off[q] && chance(40)) off[q] = 1'b1;
      else if (on[q]) {on[q], off[q]} = 2'b00;
      else begin
        start              <= 1'b1;
        start_queue        <= q;
        start_config.owner <= below(Functions);
      end
    end
    active     <= on;
    gone       <= off;
    on         = on & ~off;                                // what follows comes of no other
    read_owner <= below(Functions);
    q = below(Queues);
    look         <= on[q] && chance(crowd);
    look_queue   <= q;
    look_version <= below(Versions);
    q = below(Queues);
    hand       <= on[q] && chance(40);
    hand_queue <= q;
    hand_slot  <= rnd();
    // What is there, and is not on its way out in this cycle.
    q = below(Queues);
    s = below(2);
    leave       <= users[2*q+s] > 1 && on[q] && chance(60);
    leave_queue <= q;
    leave_slot  <= s;
    q = below(Queues);
    s = below(2);
    finish       <= users[2*q+s] > 1 - drain && on[q] && chance(80)
                 && !(leave && leave_queue == q);
    if (drain == 1) leave <= 1'b0;
    finish_queue <= q;
    finish_slot  <= s;
    q = below(Queues);
    ask         <= on[q] && chance(30);
    load        <= on[q] && chance(30);
    ask_queue   <= q;
    ask_version <= below(Versions);
    load_salt   <= rnd();
    load_mode   <= below(3);
    load_engine <= chance(50);
    load_image  <= {rnd(), rnd(), rnd(), rnd(), rnd(), rnd(), rnd(), rnd(), rnd(), rnd(), rnd(), rnd(), rnd(), rnd()};
    image_owner <= below(Functions);
    image_slot  <= rnd();
  end
  int crowd = 20, drain = 0;

  initial begin
    @(posedge rst_n);
    for (int k = 0; k < 100; k++) begin
      crowd = k % 3 == 0 ? 40 : 10;
      drain = 0;
      repeat (200) @(posedge clk);
      crowd = 3;
      drain = 1;
      repeat (200) @(posedge clk);
    end
    if (languages < 80 || looked < 200) fail($sformatf("R25: only %0d versions of engine 1 are loaded, and %0d found", languages, looked));
    if (loads < 200 || replaced < 20 || objections < 50 || busy < 100 || kept_seen < 100 || aborted_seen < 100 || lost < 20
        || anew < 10 || later < 10 || kept_by_none < 10)
      fail($sformatf("only %0d loads (%0d of resident slots), %0d and %0d objections, %0d and %0d retired, %0d lost users, %0d new starts, %0d late, %0d of dead queue pairs",
                     loads, replaced, objections, busy, kept_seen, aborted_seen, lost, anew, later, kept_by_none));
    finish_bench("policy_slots_tb");
  end
endmodule
