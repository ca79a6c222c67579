// watchdog: R24 against a device and a bus of the bench's own. Both draw: addresses of every ID, bursts of data, and answers of one ID in order, at
// once, late, or not at all until somebody has died. A queue pair that dies asks for a while still, as what is on its way in the device does.
// Looked at in every cycle: the device gets an answer for each access, once; what it was given by the watchdog is dropped when the bus says it;
// who dies has an ID that was not answered for BUS_TIMEOUT cycles, and dies in time; nobody else does; owing_o and idle_o say what the bus owes. What is
// given up belongs to a queue pair that is dead, though another one asks under the same ID while its neighbour dies. A queue pair that ends is inactive
// two cycles after its last answer, and does not die then. A reset
// of the device alone leaves what is owed. With BUS_TIMEOUT 0 nobody dies.
//   +lives=N   deaths of each of the two benches
module watchdog_tb;
  import bench_pkg::*;

  logic clk, rst_n;
  int   cycle;
  clock_reset #(.Limit(20_000_000)) u_clock (.clk_o(clk), .rst_no(rst_n), .cycle_o(cycle));

  int lives;
  initial if (!$value$plusargs("lives=%d", lives)) lives = drawn(6, 200);

  watchdog_run #(.Queues(1), .Functions(1), .Engines(1)) u_one  (.clk(clk), .rst_n(rst_n), .lives(lives));
  watchdog_run #(.Queues(3), .Functions(2), .Engines(2)) u_many (.clk(clk), .rst_n(rst_n), .lives(lives));

  initial begin
    @(posedge rst_n);
    while (!(u_one.over && u_many.over)) @(posedge clk);
    finish_bench("watchdog_tb");
  end
endmodule

module watchdog_run #(
  parameter int Queues    = 1,
  parameter int Functions = 1,
  parameter int Engines   = 1
) (
  input logic clk,
  input logic rst_n,
  input int   lives
);
  import bench_pkg::*;
  localparam int Round = 14 * ((Queues > Functions) ? Queues : Functions);   // cycles of a look at every ID
  localparam int Depth = 256;

  logic over = 1'b0;

  // ---------------------------------------------------------------- the device's side
  logic [31:0] timeout = '0;
  logic        reset_n = 1'b0;
  logic [Queues-1:0] active = '0, dead = '0, engine = '0, events = '0, die, owing, sending;
  logic [Queues-1:0][3:0] owner;
  logic        idle, moves;
  logic        ar = 1'b0, aw = 1'b0, r_valid = 1'b0, b_valid = 1'b0, r_ready, b_ready, r_valid_o, b_valid_o, r_given, b_given;
  logic [5:0]  ar_id = '0, aw_id = '0, r_id = '0, b_id = '0, r_id_o, b_id_o;
  logic [7:0]  ar_len = '0;
  for (genvar q = 0; q < Queues; q++) begin : gen_owner
    assign owner[q] = 4'(q % Functions);
  end

  watchdog #(.Queues(Queues), .Functions(Functions), .Engines(Engines), .FetchDepth(128)) u_dut (
    .clk_i(clk), .rst_ni(rst_n && reset_n), .bus_rst_ni(rst_n), .timeout_i(timeout), .active_i(active), .dead_i(dead), .owner_i(owner),
    .engine_i(engine), .events_i(events), .die_o(die), .owing_o(owing), .sending_o(sending), .idle_o(idle), .moves_o(moves),
    .ar_i(ar), .ar_id_i(ar_id), .ar_len_i(ar_len), .aw_i(aw), .aw_id_i(aw_id), .r_valid_i(r_valid), .r_id_i(r_id), .r_ready_o(r_ready),
    .b_valid_i(b_valid), .b_id_i(b_id), .b_ready_o(b_ready), .r_valid_o(r_valid_o), .r_id_o(r_id_o), .r_given_o(r_given),
    .b_valid_o(b_valid_o), .b_id_o(b_id_o), .b_given_o(b_given)
  );

  // ---------------------------------------------------------------- what is known, by {write, ID}
  int bus_owes [0:127];                 // answers that the bus owes, …
  int waits    [0:127];                 // … and the device waits for
  int given    [0:127];                 // given by the watchdog, and not said by the bus
  int since    [0:127];                 // the last answer, or the address since which something is in flight
  int late_at  [0:127];                 // when its answer was last too late
  int ready_at [0:127];                 // the bus says the next then
  logic [127:0] hangs = '0;             // … or not at all
  logic revives = 1'b0;
  int now = 0, deaths = 0, quiet_until = 0;
  int dead_at [0:Queues-1];
  initial begin
    for (int k = 0; k < 128; k++) begin bus_owes[k] = 0; waits[k] = 0; given[k] = 0; since[k] = 0; ready_at[k] = 0; late_at[k] = 0; end
    for (int q = 0; q < Queues; q++) dead_at[q] = 0;
  end

  // Whose an ID is; -1: nobody's here.
  function automatic int kind_of(input int k);
    kind_of = k / 16;
  endfunction
  function automatic logic used(input int k);
    int kind, n;
    kind = kind_of(k);
    n    = k % 16;
    used = (kind == 0 || kind == 1 || kind == 4 || kind == 5 || kind == 6) ? n < Queues
         : (kind == 2) ? Engines > 1 && n < Functions : (kind == 7) ? n < Functions : 1'b0;
  endfunction
  function automatic logic of_function(input int k);
    of_function = kind_of(k) == 2 || kind_of(k) == 7;
  endfunction
  // Those that are used: first the reads.
  int list [0:127], reads = 0, ids = 0;
  initial begin
    for (int n = 0; n < 128; n++) if (used(n)) begin
      list[ids] = n;
      ids = ids + 1;
      if (n < 64) reads = reads + 1;
    end
  end
  int at;
  // Queue pair q may have something under ID k.
  function automatic logic has(input int q, input int k);
    has = of_function(k) ? owner[q] == k % 16 && (engine[q] || (kind_of(k) == 7 && events[q])) : k % 16 == q;
  endfunction

  // ---------------------------------------------------------------- a cycle, drawn behind the edge before
  int   q, k, pick, ar_pair = 0, aw_pair = 0;
  int   joins = -1, joined = 0;         // who is of this function and lives asks under this ID as another one dies, so many cycles later
  int   alone = -1;                     // queue pair 0 asks once, under this ID
  int   whose [0:128*256-1];            // what is in flight, by ID, in order
  int   first [0:127], behind [0:127];
  initial for (int n = 0; n < 128; n++) begin first[n] = 0; behind[n] = 0; end
  logic asks;
  task automatic draw;
    ar = 1'b0;
    aw = 1'b0;
    q    = below(Queues);
    asks = active[q] && !(dead[q] && now - dead_at[q] > 60) && now >= quiet_until;
    if (asks && chance(40)) begin
      // A read.
      k = 16 * below(Engines > 1 ? 3 : 2);
      k = k + ((k == 32) ? int'(owner[q]) : q);
      if (has(q, k) && waits[k] < ((kind_of(k) == 0) ? 64 : (kind_of(k) == 1) ? 4 : 100)) begin
        ar     = 1'b1;
        ar_id  = 6'(k);
        ar_pair = q;
        ar_len = (kind_of(k) == 1) ? 8'd0 : 8'(below(4) == 0 ? 15 : below(8));
      end
    end
    q    = below(Queues);
    asks = active[q] && !(dead[q] && now - dead_at[q] > 60) && now >= quiet_until;
    if (asks && chance(40)) begin
      k = 64 + 16 * below(4);
      k = k + ((k == 112) ? int'(owner[q]) : q);
      if (has(q, k) && waits[k] < ((kind_of(k) == 6) ? 1 : 60)) begin
        aw    = 1'b1;
        aw_id = 6'(k);
        aw_pair = q;
      end
    end
    if (alone >= 64) begin
      aw      = 1'b1;
      aw_id   = 6'(alone);
      aw_pair = 0;
    end else if (alone >= 0) begin
      ar      = 1'b1;
      ar_id   = 6'(alone);
      ar_len  = 8'(below(16));
      ar_pair = 0;
    end
    alone = -1;
    if (joins == 0) begin
      joins = -1;
      for (int p = 0; p < Queues; p++) if (active[p] && !dead[p] && owner[p] == joined % 16 && waits[joined] < 60) begin
        if (kind_of(joined) == 7) begin
          events[p] = 1'b1;
          aw        = 1'b1;
          aw_id     = 6'(joined);
          aw_pair   = p;
        end else begin
          engine[p] = 1'b1;
          ar        = 1'b1;
          ar_id     = 6'(joined);
          ar_len    = 8'(below(16));
          ar_pair   = p;
        end
      end
    end
    if (joins > 0) joins = joins - 1;
    // The bus: an answer that is shown stays until it is taken.
    if (!r_valid || r_ready) begin
      pick = -1;
      k    = below(reads);
      for (int n = 0; n < reads && pick < 0; n++) begin
        k = (k + 1) % reads;
        if (bus_owes[list[k]] > 0 && !hangs[list[k]] && ready_at[list[k]] <= now) pick = list[k];
      end
      r_valid = pick >= 0 && chance(70);
      if (r_valid) r_id = 6'(pick);
    end
    if (!b_valid || b_ready) begin
      pick = -1;
      k    = below(ids - reads);
      for (int n = 0; n < ids - reads && pick < 0; n++) begin
        k = (k + 1) % (ids - reads);
        if (bus_owes[list[reads + k]] > 0 && !hangs[list[reads + k]] && ready_at[list[reads + k]] <= now) pick = list[reads + k] - 64;
      end
      b_valid = pick >= 0 && chance(70);
      if (b_valid) b_id = 6'(pick);
    end
  endtask

  task automatic tell(input int at, input logic is_given);
    if (waits[at] == 0) fail($sformatf("R24: the device gets an answer of ID %0d that it does not await", at % 64));
    else begin
      if (is_given && !dead[whose[256 * at + first[at] % 256]])
        fail($sformatf("R24: an access under ID %0d of queue pair %0d, which lives, is given up", at % 64, whose[256 * at + first[at] % 256]));
      first[at] = first[at] + 1;
    end
    waits[at] = waits[at] - 1;
    since[at] = now;
    if (is_given) begin
      given[at] = given[at] + 1;
      if (kind_of(at) == 0) fail("R24: data of a descriptor is given");
    end else if (given[at] != 0) fail($sformatf("R24: a late answer of ID %0d comes to the device", at % 64));
  endtask

  task automatic take(input int at, input logic passes);
    bus_owes[at] = bus_owes[at] - 1;
    ready_at[at] = now + (chance(80) ? 0 : below(60));
    if (!passes) begin
      if (given[at] == 0) fail($sformatf("R24: an answer of ID %0d is dropped that is not late", at % 64));
      given[at] = given[at] - 1;
    end
  endtask

  logic [Queues-1:0] owes, may;
  logic              late, any;
  // At the falling edge all of the cycle is there: what it brings is noted, then the edge comes, then the next is drawn.
  always @(negedge clk) if (rst_n && reset_n) begin
    owes = '0;
    any  = 1'b0;
    for (int n = 0; n < ids; n++) if (given[list[n]] != 0) begin
      at  = list[n];
      any = 1'b1;
      for (int p = 0; p < Queues; p++)
        if (of_function(at) ? dead[p] && owner[p] == at % 16 : p == at % 16) owes[p] = 1'b1;
    end
    if ((owes & ~owing) != '0) fail($sformatf("R12: owing_o is %b, and the bus owes %b", owing, owes));
    for (int p = 0; p < Queues; p++)
      if (sending[p] !== (given[96 + p] != 0)) fail($sformatf("sending_o is %b, and of queue pair %0d the bus owes %0d messages", sending, p, given[96 + p]));
    if (any && idle) fail("R12: idle_o while the bus owes answers");
    for (int n = 0; n < ids; n++) begin
      at = list[n];
      if ((waits[at] > 0 && now - since[at] >= timeout) || (of_function(at) && given[at] > 0)) late_at[at] = now;
    end
    // Who dies.
    if (die != '0) begin
      if (joined != 0 && joins < 0) joins = below(5);
      if ((die & (~active | dead)) != '0) fail($sformatf("R24: %b die, active %b, dead %b", die, active, dead));
      for (int p = 0; p < Queues; p++) if (die[p]) begin
        late = 1'b0;
        for (int n = 0; n < ids; n++) begin
          at = list[n];
          if (has(p, at) && late_at[at] != 0 && now - late_at[at] <= 4) late = 1'b1;      // it may be answered while it is judged
        end
        if (!late || timeout == 0) fail($sformatf("R24: queue pair %0d dies, and no answer is late", p));
      end
    end
    for (int n = 0; n < ids; n++) if (timeout != 0 && waits[list[n]] > 0 && now - since[list[n]] > timeout + 2 * Round + 2600) begin
      at  = list[n];
      may = '0;
      for (int p = 0; p < Queues; p++) may[p] = has(p, at) && active[p] && !dead[p];
      if (may != '0) fail($sformatf("R24: %b live, and ID %0d was not answered for %0d cycles of %0d", may, at, now - since[at], timeout));
    end
    // Answers.
    if (r_valid_o) tell(int'(r_id_o), r_given);
    if (b_valid_o) tell(64 + int'(b_id_o), b_given);
    if (r_given && r_ready) fail("R24: the bus's data is taken while the watchdog gives an answer");
    if (b_given && b_ready) fail("R24: the bus's response is taken while the watchdog gives one");
    if (r_valid && r_ready) take(int'(r_id), r_valid_o);
    if (b_valid && b_ready) take(64 + int'(b_id), b_valid_o);
    // Addresses.
    if (ar) begin
      if (waits[ar_id] == 0) since[ar_id] = now;
      if (bus_owes[ar_id] == 0) ready_at[ar_id] = now + 2 + below(20);
      for (int n = 0; n <= int'(ar_len); n++) whose[256 * ar_id + (behind[ar_id] + n) % 256] = ar_pair;
      behind[ar_id]   = behind[ar_id] + int'(ar_len) + 1;
      waits[ar_id]    = waits[ar_id] + int'(ar_len) + 1;
      bus_owes[ar_id] = bus_owes[ar_id] + int'(ar_len) + 1;
    end
    if (aw) begin
      k = 64 + int'(aw_id);
      if (waits[k] == 0) since[k] = now;
      if (bus_owes[k] == 0) ready_at[k] = now + 2 + below(20);
      whose[256 * k + behind[k] % 256] = aw_pair;
      behind[k]   = behind[k] + 1;
      waits[k]    = waits[k] + 1;
      bus_owes[k] = bus_owes[k] + 1;
    end
  end

  always @(posedge clk) if (rst_n && reset_n) begin
    for (int p = 0; p < Queues; p++) if (die[p]) dead_at[p] = now;
    deaths = deaths + $countones(32'(die));
    dead  <= revives ? '0 : dead | die;
    now    = now + 1;
    #1;
    draw;
  end

  // ---------------------------------------------------------------- lives
  function automatic int sum();
    sum = 0;
    for (int n = 0; n < ids; n++) sum = sum + bus_owes[list[n]] + waits[list[n]];
  endfunction

  int hung = 0, until_then, deaths_before;
  task automatic settle;
    hangs       = '0;
    quiet_until = now + 1_000_000_000;
    until_then  = now + 20000;
    while (sum() != 0 && now < until_then) @(posedge clk);
    if (sum() != 0) fail("R24: accesses stay without an answer");
    repeat (10) @(posedge clk);
    if (!idle || owing != '0) fail($sformatf("R12: owing_o %b, idle_o %b, and the bus owes nothing", owing, idle));
    active <= '0;
    #2;
    revives = 1'b1;
    @(posedge clk);
    #2;
    revives = 1'b0;
    @(posedge clk);
  endtask

  initial begin
    repeat (3) @(posedge clk);
    while (!rst_n) @(posedge clk);
    reset_n = 1'b1;
    while (deaths < lives && errors == 0) begin
      deaths_before  = deaths;
      timeout = chance(8) ? 0 : between(200, 900);
      active <= '1;
      engine <= (Engines > 1 && chance(80)) ? Queues'(rnd() | rnd()) : '0;
      events <= Queues'(rnd() | rnd());
      quiet_until = 0;
      repeat (between(20, 400)) @(posedge clk);
      repeat (between(1, 3)) begin
        hung = list[below(ids)];
        hangs[hung] = 1'b1;
      end
      repeat (between(timeout / 2, timeout + 1200)) @(posedge clk);
      if (timeout == 0) begin
        if (deaths != deaths_before) fail("R24: somebody dies without BUS_TIMEOUT");
      end
      if (chance(20)) begin
        // The device is reset, and the bus is not: what was given is owed, and the rest is none of the watchdog's.
        @(posedge clk);
        #2;
        while (r_given || b_given) begin
          @(posedge clk);
          #2;
        end
        {ar, aw} = 2'b00;
        reset_n = 1'b0;
        timeout = 0;
        active  = '0;
        dead    = '0;
        hangs   = '0;
        r_valid = 1'b0;
        b_valid = 1'b0;
        repeat (4) @(posedge clk);
        any = 1'b0;
        for (int n = 0; n < ids; n++) if (given[list[n]] != 0) any = 1'b1;
        if (any && idle) fail("R12: a reset of the device forgets what the bus owes");
        reset_n = 1'b1;
        quiet_until = now + 1_000_000_000;
      end
      settle;
    end
    if (deaths == 0) fail("nobody died");
    // A queue pair that ends, and the last answer of which comes in time or just too late.
    timeout = 40;
    if (Queues == 1) for (int n = 0; n < 200 && errors == 0; n++) begin
      active <= '1;
      repeat (3) @(posedge clk);
      hangs[96] = 1'b1;
      alone     = 96;
      repeat (38 + below(2 * Round)) @(posedge clk);
      hangs[96] = 1'b0;
      while (waits[96] != 0) @(posedge clk);
      @(posedge clk);
      if (!dead[0]) active <= '0;
      settle;
    end
    // Another queue pair of the function asks first while one dies.
    if (Queues > Functions) for (int n = 0; n < 40 && errors == 0; n++) begin
      active <= '1;
      repeat (3) @(posedge clk);
      joined        = (Engines > 1 && chance(50)) ? 32 : 112;
      engine        = Queues'(joined == 32);
      events        = Queues'(joined == 112);
      hangs[joined] = 1'b1;
      alone         = joined;
      repeat (120 + below(60)) @(posedge clk);
      joined = 0;
      settle;
    end
    // An engine that asks on, whatever it gets, under an ID that does not answer.
    if (Engines > 1 && errors == 0) begin
      active <= '1;
      repeat (3) @(posedge clk);
      engine    = Queues'(1);
      events    = '0;
      hangs[32] = 1'b1;
      while (given[32] < 1100 && errors == 0) begin
        alone = 32;
        repeat (2) @(posedge clk);
        while (waits[32] != 0) @(posedge clk);
      end
      settle;
    end
    $display("%0d queue pairs: %0d deaths in %0d cycles", Queues, deaths, now);
    over = 1'b1;
  end
endmodule
