// mmio_regs, with interrupts beside it: every register's reset value, access, bits and lock; every other address; doorbells,
// enable, faults, STATUS, STATE, ARM and the table of messages (docs/contract.md, Registers). Once with one queue pair and one function, and once for a
// queue pair among three and a function among two: nothing that is done there shows at another place. That one has an engine 1; the
// first has not, and its registers are unknown there.
module mmio_regs_tb;
  import bench_pkg::*;

  logic clk, rst_n;
  int   cycle;
  clock_reset #(.Limit(300000)) u_clock (.clk_o(clk), .rst_no(rst_n), .cycle_o(cycle));

  mmio_regs_run #(.Queues(1), .Functions(1), .Pair(0), .Owner(0)) u_one  (.clk(clk), .rst_n(rst_n));
  mmio_regs_run #(.Queues(3), .Functions(2), .Pair(2), .Owner(1), .Engines(2)) u_many (.clk(clk), .rst_n(rst_n));

  initial begin
    @(posedge rst_n);
    while (!(u_one.over && u_many.over)) @(posedge clk);
    finish_bench("mmio_regs_tb");
  end
endmodule

module mmio_regs_run #(
  parameter int Queues    = 1,
  parameter int Functions = 1,
  parameter int Pair      = 0,
  parameter int Owner     = 0,
  parameter int Engines   = 1
) (
  input logic clk,
  input logic rst_n
);
  import bench_pkg::*;
  import desc_pkg::*;
  import core_pkg::*;
  localparam int Workers = 4;

  logic        over = 1'b0;
  logic        write_now = 1'b0, partial = 1'b0, write_error, read_now = 1'b0, read_error, counter_hit;
  logic [17:0] write_addr = '0, read_addr = '0;
  logic [31:0] write_data = '0, read_data;
  logic        enable, doorbell, doorbell_ok = 1'b0, release_cq, release_ok = 1'b0, active = 1'b0, start, inner_unused,
               abort, aborting = 1'b0;
  logic [3:0]  start_queue, bell_queue, state_queue, slots_owner, range_number = '0;
  logic [63:0] range_of;
  queue_config_t start_config, started;
  model_config_t start_models, started_models;
  queue_state_t  state;
  logic [Queues-1:0] stops, drains, on, runs_unused, dead, ending, draining, actives, busy, idle, idle_shown;
  logic [31:0] index;
  logic [15:0] wait_states;
  logic [Workers-1:0] free = '1, waiting = '0, run = '0, ready = '1;
  logic        check_idle = 1'b1, dispatch_idle = 1'b1, read_fault = 1'b0, line_fault = 1'b0, completion_fault = 1'b0;
  logic        answered = 1'b0, message_fault = 1'b0, arm, table_write, message_valid, message_answered = 1'b0;
  logic [1:0]  table_word;
  logic [31:0] arm_read;
  logic [95:0] entry_read;
  logic [Queues-1:0] armed, masked, pending, sending;
  logic        event_release, event_release_ok = 1'b0;
  logic [3:0]  event_owner;
  logic [Queues-1:0][3:0] owners;
  logic [6*Queues-1:0] raised;
  logic        dies = 1'b0;
  logic [31:0] bus_timeout;
  logic [31:0] sq_head = '0, sq_tail = '0, cq_head = '0, cq_tail = '0;

  // Counters lie elsewhere: the registers only pass them on.
  assign counter_hit = read_addr >= 18'h100 && read_addr < 18'h180 && read_addr[1:0] == 0;

  // Of the queue pair under test; the rings of the others show something else.
  assign enable  = on[Pair];
  assign busy    = Queues'(active) << Pair;
  assign idle    = Queues'(sq_head == sq_tail && check_idle && dispatch_idle) << Pair;
  assign state   = {(state_queue == Pair) ? {sq_head, sq_tail, cq_head, cq_tail} : {4{32'hDEAD_0000 + state_queue}}, arm_read, entry_read};

  mmio_regs #(.Queues(Queues), .Functions(Functions), .Workers(Workers), .Engines(Engines), .TickHz(123_456_789)) u_regs (
    .clk_i(clk), .rst_ni(rst_n), .write_i(write_now), .write_addr_i(write_addr), .write_data_i(write_data),
    .write_partial_i(partial), .write_error_o(write_error), .read_i(read_now), .read_addr_i(read_addr),
    .read_data_o(read_data), .read_error_o(read_error), .counter_hit_i(counter_hit), .counter_data_i({14'h3A5C, read_addr}),
    .wait_states_o(wait_states), .bus_timeout_o(bus_timeout), .start_o(start), .start_queue_o(start_queue), .start_config_o(start_config), .start_models_o(start_models), .stop_o(stops),
    .drain_o(drains), .on_i(on), .draining_i(draining), .active_i(actives), .dead_i(dead), .idle_i(idle_shown),
    .doorbell_o(doorbell), .doorbell_ok_i(doorbell_ok), .release_o(release_cq), .release_ok_i(release_ok),
    .abort_o(abort), .aborting_i(Queues'(aborting) << Pair), .arm_o(arm), .table_write_o(table_write), .table_word_o(table_word), .bell_queue_o(bell_queue), .index_o(index), .state_queue_o(state_queue), .state_i(state),
    .slots_owner_o(slots_owner), .range_owner_i(4'(Owner)), .range_number_i(range_number), .range_o(range_of),
    .event_release_o(event_release), .event_owner_o(event_owner), .event_release_ok_i(event_release_ok),
    .events_i(slots_owner == Owner ? 96'h0E00_0003_0E00_0002_0E00_0001 : '1), .owner_o(owners), .raised_o(raised),
    .slots_i(slots_owner == Owner ? 64'h0102_0009_0001_0007 : '1),
    .free_i(free), .wait_i(waiting), .run_i(run), .ready_i(ready), .read_fault_i(Queues'(read_fault) << Pair),
    .line_fault_i(Queues'(line_fault) << Pair), .completion_fault_i(Queues'(completion_fault) << Pair),
    .message_fault_i(Queues'(message_fault) << Pair), .die_i(Queues'(dies) << Pair), .armed_i(armed), .masked_i(masked), .pending_i(pending),
    .sending_i(sending)
  );

  interrupts #(.Queues(Queues)) u_interrupts (
    .clk_i(clk), .rst_ni(rst_n), .inner_rst_ni(rst_n), .bus_rst_ni(rst_n), .start_i(start), .start_queue_i(start_queue), .start_config_i(start_config),
    .on_i(on), .drained_i(Queues'(0)), .write_queue_i(bell_queue), .write_data_i(index), .arm_i(arm), .arm_visible_i(32'd0), .table_write_i(table_write),
    .table_word_i(table_word), .read_i(read_now), .read_queue_i(state_queue), .arm_o(arm_read), .message_o(entry_read),
    .armed_o(armed), .masked_o(masked), .pending_o(pending), .answered_i({1'b0, answered}), .answered_queue_i(4'(Pair)),
    .visible_i(32'd1), .asks_i(answered), .asked_i(32'd1), .message_valid_o(message_valid), .message_queue_o(),
    .message_addr_o(), .message_data_o(), .message_ready_i(1'b1), .ack_i(message_answered), .ack_id_i(6'd32 + 6'(Pair)), .ack_error_i(1'b0),
    .waits_o(), .busy_o(sending), .fault_o()
  );

  // The port takes each message, and answers it.
  int   messages = 0;
  always @(posedge clk) begin
    message_answered <= message_valid && rst_n;
    if (message_valid && rst_n) messages <= messages + 1;
  end

  device_ctrl #(.Queues(Queues)) u_ctrl (
    .clk_i(clk), .rst_ni(rst_n), .start_i(start ? Queues'(16'd1 << start_queue) : Queues'(0)), .stop_i(stops), .drain_i(drains),
    .done_i(idle), .busy_i(busy), .die_i(Queues'(dies) << Pair), .idle_i(idle), .bus_idle_i(1'b1), .on_o(runs_unused), .enabled_o(on), .dead_o(dead), .idle_o(idle_shown), .ending_o(ending), .draining_o(draining), .active_o(actives),
    .inner_rst_no(inner_unused)
  );

  logic two = 1'b0;                      // another queue pair is driven too
  always @(posedge clk) if (rst_n && start) begin
    started        = start_config;
    started_models = start_models;
    if (start_queue != Pair && !two) fail($sformatf("queue pair %0d is started", start_queue));
  end

  // The address of a register at another place.
  function automatic logic [17:0] at_place(input logic [17:0] addr, input int pair, input int owner);
    if (addr[17:16] == 2'b10)      at_place = addr + 18'h1000 * pair;
    else if (addr[17:16] == 2'b01) at_place = addr + 18'h1000 * owner + (addr[11] ? 18'h80 * pair : 18'd0);
    else if (addr[17:10] == 8'd1)  at_place = addr + 18'h40 * owner;
    else if (addr[17:10] == 8'd2 || addr[17:10] == 8'd4) at_place = addr + 18'h10 * pair;
    else                           at_place = addr;
  endfunction

  // The register of the table that an address of any place belongs to, and whether it is the place under test; 'known' is
  // low where nothing is.
  task automatic find(input logic [17:0] addr, output logic known, output logic here, output logic [17:0] register_addr);
    known = 1'b0;
    here  = 1'b0;
    register_addr = addr;
    for (int k = 0; k < Count; k++) if (addr[1:0] == 0 && addr[11:0] % 16 == addr_of[k][11:0] % 16)
      for (int q = 0; q < Queues; q++) for (int f = 0; f < Functions; f++)
        if (at_place(addr_of[k], q, f) == addr && (addr[17:16] != 2'b01 || !addr[11] || f == (q == Pair ? Owner : 0))) begin
          known = 1'b1;
          register_addr = addr_of[k];
          if (at_place(addr_of[k], Pair, Owner) == addr) here = 1'b1;
        end
  endtask

  // ---------------------------------------------------------------- the table of the contract
  localparam int Count = (Engines > 1) ? 135 : 115;
  localparam int Words = 'h20100 / 4;     // up to the last register of the queue pair's page, and some more
  logic [17:0] addr_of [0:Count-1];
  int          defined = 0;
  logic [2:0]  access [0:Words-1];      // by word address
  logic [31:0] reset_value [0:Words-1], mask [0:Words-1], value [0:Words-1];
  localparam logic [2:0] None = 3'd0, Ro = 3'd1, Rw = 3'd2, Cfg = 3'd3;

  // The first register of the MODEL region, and of each arena.
  function automatic logic [17:0] model_register(input int k);
    model_register = (k == 0) ? REG_MODEL_BASE_LO : REG_ARENA_0_BASE_LO + 16 * (k - 1);
  endfunction

  task automatic define(input logic [17:0] addr, input logic [2:0] kind, input logic [31:0] reset_to, input logic [31:0] bits);
    addr_of[defined]      = addr;
    defined               = defined + 1;
    access[addr / 4]      = kind;
    reset_value[addr / 4] = reset_to;
    mask[addr / 4]        = bits;
  endtask

  task automatic define_all;
    for (int k = 0; k < Words; k++) begin
      access[k]      = None;
      reset_value[k] = '0;
      mask[k]        = '0;
    end
    define(REG_ID, Ro, 32'h4C45_4244, 0);
    define(REG_VERSION, Ro, RESET_VERSION, 0);
    define(REG_CAPABILITY, Ro, CAP_PREFILL | CAP_REWARD | CAP_RESIDENT | CAP_INTERRUPT | CAP_LOGP | CAP_POLICY | CAP_ABORT
                                | CAP_ISOLATED | CAP_EVENTS | CAP_WORKER_COUNTERS | CAP_WATCHDOG, 0);
    define(REG_WORKER_STATE, Ro, 0, 0);
    define(REG_WAIT_STATES, Cfg, 0, 32'hFFFF);
    define(REG_BUS_TIMEOUT, Cfg, 0, 32'hFFFF_FFFF);
    define(REG_CAP_WORKERS, Ro, Workers, 0);
    define(REG_CAP_QUEUES, Ro, Queues, 0);
    define(REG_CAP_FUNCTIONS, Ro, Functions, 0);
    define(REG_CAP_PAGE_BYTES, Ro, 4096, 0);
    define(REG_CAP_WINDOWS, Ro, 3, 0);
    define(REG_CAP_ENGINES, Ro, Engines, 0);
    define(REG_CAP_REWARD_MODELS, Ro, 2, 0);
    define(REG_CAP_POLICY_SLOTS, Ro, 2, 0);
    for (int k = 0; k < 16; k++) begin
      define(REG_RANGE_0_LO + 8 * k, Cfg, 32'hFFFF_FFFF, 32'hFFFF_FFFF);
      define(REG_RANGE_0_HI + 8 * k, Cfg, 0, 32'hFFFF_FFFF);
    end
    define(REG_POLICY_SLOT_0, Ro, 32'h0001_0007, 0);
    define(REG_POLICY_SLOT_1, Ro, 32'h0102_0009, 0);
    define(REG_CAP_TICK_HZ, Ro, 123_456_789, 0);
    define(REG_MESSAGES_PENDING, Ro, 0, 0);
    define(REG_MESSAGE_ADDRESS_LO, Rw, 0, 32'hFFFF_FFFC);
    define(REG_MESSAGE_ADDRESS_HI, Rw, 0, 32'hFFFF_FFFF);
    define(REG_MESSAGE_DATA, Rw, 0, 32'hFFFF_FFFF);
    define(REG_MESSAGE_CONTROL, Rw, 1, 32'h1);
    define(REG_COALESCE_COUNT, Cfg, 0, 32'hFFFF);
    define(REG_COALESCE_TIME, Cfg, 0, 32'hFFFF_FFFF);
    define(REG_CAP_GROUPS, Ro, 8, 0);
    define(REG_FN_WORKERS, Cfg, (1 << Workers) - 1, (1 << Workers) - 1);
    define(REG_WINDOW_0_BASE_LO, Cfg, 0, 32'hFFFF_FFFF);
    define(REG_WINDOW_0_BASE_HI, Cfg, 0, 32'hFFFF_FFFF);
    define(REG_WINDOW_0_SIZE_LO, Cfg, Owner == 0 ? 32'hFFFF_FFFF : 0, 32'hFFFF_FFFF);
    define(REG_WINDOW_0_SIZE_HI, Cfg, Owner == 0 ? 32'hFFFF_FFFF : 0, 32'hFFFF_FFFF);
    define(REG_WINDOW_1_BASE_LO, Cfg, 0, 32'hFFFF_FFFF);
    define(REG_WINDOW_1_BASE_HI, Cfg, 0, 32'hFFFF_FFFF);
    define(REG_WINDOW_1_SIZE_LO, Cfg, 0, 32'hFFFF_FFFF);
    define(REG_WINDOW_1_SIZE_HI, Cfg, 0, 32'hFFFF_FFFF);
    define(REG_WINDOW_2_BASE_LO, Cfg, 0, 32'hFFFF_FFFF);
    define(REG_WINDOW_2_BASE_HI, Cfg, 0, 32'hFFFF_FFFF);
    define(REG_WINDOW_2_SIZE_LO, Cfg, 0, 32'hFFFF_FFFF);
    define(REG_WINDOW_2_SIZE_HI, Cfg, 0, 32'hFFFF_FFFF);
    define(REG_QUEUE_FUNCTION, Cfg, Owner, 0);
    define(REG_FN_CONTROL, Rw, 0, 0);
    define(REG_CHECKPOINT_DEFAULT, Cfg, 32'hFFFF_FFFF, 32'hFFFF_FFFF);
    define(REG_LENGTH_LIMIT, Cfg, 32'h0010_0000, 32'hFFFF_FFFF);
    define(REG_EOS_THRESHOLD, Cfg, 0, 32'hFFFF);
    define(REG_REWARD_THRESHOLD, Cfg, 0, 32'hFFFF_FFFF);
    define(REG_EQ_BASE_LO, Cfg, 0, 32'hFFFF_FFFF);
    define(REG_EQ_BASE_HI, Cfg, 0, 32'hFFFF_FFFF);
    define(REG_EQ_SIZE, Cfg, 0, 32'hFFFF_FFFF);
    define(REG_EVENT_CONTROL, Cfg, 0, 32'h1);
    // What event_ring says of them; it refuses EQ_HEAD here.
    define(REG_EQ_HEAD, Ro, 32'h0E00_0001, 0);
    define(REG_EQ_TAIL, Ro, 32'h0E00_0002, 0);
    define(REG_EVENTS_DROPPED, Ro, 32'h0E00_0003, 0);
    define(REG_CONTROL, Rw, 0, 0);
    define(REG_WEIGHT, Cfg, 1, 32'hFF);
    define(REG_SQ_BASE_LO, Cfg, 0, 32'hFFFF_FFFF);
    define(REG_SQ_BASE_HI, Cfg, 0, 32'hFFFF_FFFF);
    define(REG_CQ_BASE_LO, Cfg, 0, 32'hFFFF_FFFF);
    define(REG_CQ_BASE_HI, Cfg, 0, 32'hFFFF_FFFF);
    define(REG_SQ_SIZE, Cfg, 0, 32'hFFFF_FFFF);
    define(REG_CQ_SIZE, Cfg, 0, 32'hFFFF_FFFF);
    define(REG_TOKEN_BASE_LO, Cfg, 0, 32'hFFFF_FFFF);
    define(REG_TOKEN_BASE_HI, Cfg, 0, 32'hFFFF_FFFF);
    define(REG_TOKEN_SIZE_LO, Cfg, 0, 32'hFFFF_FFFF);
    define(REG_TOKEN_SIZE_HI, Cfg, 0, 32'hFFFF_FFFF);
    define(REG_KV_BASE_LO, Cfg, 0, 32'hFFFF_FFFF);
    define(REG_KV_BASE_HI, Cfg, 0, 32'hFFFF_FFFF);
    define(REG_KV_SIZE_LO, Cfg, 0, 32'hFFFF_FFFF);
    define(REG_KV_SIZE_HI, Cfg, 0, 32'hFFFF_FFFF);
    define(REG_SQ_START, Cfg, 0, 32'hFFFF_FFFF);
    define(REG_CQ_START, Cfg, 0, 32'hFFFF_FFFF);
    define(REG_SQ_KEY, Cfg, 0, 32'hFFFF_FFFF);
    define(REG_LOGP_BASE_LO, Cfg, 0, 32'hFFFF_FFFF);
    define(REG_LOGP_BASE_HI, Cfg, 0, 32'hFFFF_FFFF);
    define(REG_LOGP_SIZE_LO, Cfg, 0, 32'hFFFF_FFFF);
    define(REG_LOGP_SIZE_HI, Cfg, 0, 32'hFFFF_FFFF);
    define(REG_DOORBELL, Rw, 0, 0);
    define(REG_CQ_HEAD, Rw, 0, 0);
    define(REG_ARM, Rw, 0, 0);
    define(REG_STATE, Ro, 2, 0);
    define(REG_ERROR, Rw, 0, 0);
    define(REG_STATUS, Ro, 0, 0);
    define(REG_SQ_HEAD, Ro, 0, 0);
    define(REG_CQ_TAIL, Ro, 0, 0);
    define(REG_ABORT, Rw, 0, 0);
    if (Engines > 1) for (int k = 0; k < 20; k++) define(model_register(k / 4) + 4 * (k % 4), Cfg, 0, 32'hFFFF_FFFF);
    expect_eq("registers in the table", defined, Count);
  endtask

  // ---------------------------------------------------------------- accesses
  task automatic write(input logic [17:0] addr, input logic [31:0] data, input logic part, output logic ok);
    write_addr <= at_place(addr, Pair, Owner);
    write_data <= data;
    partial    <= part;
    write_now  <= 1'b1;
    @(posedge clk);
    #1;                                 // the answer is combinational
    ok = !write_error;
    if (doorbell !== (addr == REG_DOORBELL && !part && !draining[Pair])) fail("doorbell_o is wrong");
    if ((doorbell || release_cq || abort) && bell_queue !== Pair) fail("bell_queue_o is wrong");
    if (arm !== (addr == REG_ARM && !part && enable)) fail("R14: arm_o is wrong");
    if (abort !== (addr == REG_ABORT && !part && enable && !aborting)) fail("R8: abort_o is wrong");
    if (release_cq !== (addr == REG_CQ_HEAD && !part)) fail("release_o is wrong");
    if (event_release !== (addr == REG_EQ_HEAD && !part)) fail("R23: event_release_o is wrong");
    if (event_release && (event_owner !== Owner || index !== data)) fail("R23: EQ_HEAD of another function, or another value");
    if ((doorbell || release_cq || abort) && index !== data) fail("index_o is wrong");
    @(posedge clk);
    write_now <= 1'b0;
    @(posedge clk);
  endtask

  // At any address, as it is.
  task automatic write_raw(input logic [17:0] addr, input logic [31:0] data, output logic ok);
    write_addr <= addr;
    write_data <= data;
    partial    <= 1'b0;
    write_now  <= 1'b1;
    @(posedge clk);
    #1;
    ok = !write_error;
    write_now <= 1'b0;
    @(posedge clk);
  endtask

  task automatic get_raw(input logic [17:0] addr, output logic [31:0] data, output logic ok);
    read_addr <= addr;
    read_now  <= 1'b1;
    @(posedge clk);
    #1;
    data = read_data;
    ok   = !read_error;
    read_now <= 1'b0;
    @(posedge clk);
  endtask

  task automatic put(input logic [17:0] addr, input logic [31:0] data);
    logic ok;
    write(addr, data, 1'b0, ok);
    if (!ok) fail($sformatf("write of %h to 0x%05h was refused", data, addr));
  endtask

  task automatic refuse(input logic [17:0] addr, input logic [31:0] data);
    logic ok;
    write(addr, data, 1'b0, ok);
    if (ok) fail($sformatf("write of %h to 0x%05h was not refused", data, addr));
  endtask

  task automatic get(input logic [17:0] addr, output logic [31:0] data, output logic ok);
    read_addr <= at_place(addr, Pair, Owner);
    read_now  <= 1'b1;
    @(posedge clk);
    #1;
    data = read_data;
    ok   = !read_error;
    @(posedge clk);
    read_now <= 1'b0;
  endtask

  task automatic expect_read(input logic [17:0] addr, input logic [31:0] expected);
    logic [31:0] data;
    logic        ok;
    get(addr, data, ok);
    if (!ok) fail($sformatf("read of 0x%05h was refused", addr));
    expect_eq($sformatf("register 0x%05h", addr), data, expected);
  endtask

  // ---------------------------------------------------------------- cases
  task automatic check_all;
    for (int k = 0; k < Count; k++) expect_read(addr_of[k], value[addr_of[k] / 4]);
    expect_eq("wait_states_o", wait_states, value[REG_WAIT_STATES/4]);
    expect_eq("bus_timeout_o", bus_timeout, value[REG_BUS_TIMEOUT/4]);
    for (int k = 0; k < 16; k++) begin
      range_number = k;
      #1 expect_eq($sformatf("range %0d", k), range_of, {value[REG_RANGE_0_HI/4 + 2*k], value[REG_RANGE_0_LO/4 + 2*k]});
    end
    expect_others;
  endtask

  // The registers of all other places that can be configured are as at reset.
  task automatic expect_others;
    logic [31:0] data;
    logic        ok;
    for (int k = 0; k < Count; k++) if ((access[addr_of[k] / 4] == Cfg || is_entry(addr_of[k])) && addr_of[k] >= 18'h400)
      for (int q = 0; q < Queues; q++) for (int f = 0; f < Functions; f++)
        if (at_place(addr_of[k], q, f) != at_place(addr_of[k], Pair, Owner)
            && (addr_of[k] < 18'h1_0800 || f == (q == Pair ? Owner : 0))) begin
          get_raw(at_place(addr_of[k], q, f), data, ok);
          expect_eq($sformatf("register 0x%05h of queue pair %0d, function %0d", addr_of[k], q, f), {ok, data},
                    {1'b1, addr_of[k] == REG_QUEUE_FUNCTION ? 32'd0
                           : addr_of[k][17:1] == 17'(REG_WINDOW_0_SIZE_LO >> 1) || addr_of[k] == REG_WINDOW_0_SIZE_HI ? {32{f == 0}}
                           : reset_value[addr_of[k] / 4]});
        end
  endtask

  // What a queue pair starts with is what was configured.
  task automatic expect_started;
    logic [31:0] found;
    for (int k = 0; k < Count; k++) begin
      get(addr_of[k], found, now_ok);
      now_value[addr_of[k] / 4] = found;
    end
    expect_eq("sq_base", started.sq_base, {now_value[REG_SQ_BASE_HI/4], now_value[REG_SQ_BASE_LO/4]});
    expect_eq("cq_base", started.cq_base, {now_value[REG_CQ_BASE_HI/4], now_value[REG_CQ_BASE_LO/4]});
    expect_eq("token_base", started.token_base, {now_value[REG_TOKEN_BASE_HI/4], now_value[REG_TOKEN_BASE_LO/4]});
    expect_eq("token_size", started.token_size, {now_value[REG_TOKEN_SIZE_HI/4], now_value[REG_TOKEN_SIZE_LO/4]});
    expect_eq("logp_base", started.logp_base, {now_value[REG_LOGP_BASE_HI/4], now_value[REG_LOGP_BASE_LO/4]});
    expect_eq("logp_size", started.logp_size, {now_value[REG_LOGP_SIZE_HI/4], now_value[REG_LOGP_SIZE_LO/4]});
    expect_eq("kv_size", started.kv_size, {now_value[REG_KV_SIZE_HI/4], now_value[REG_KV_SIZE_LO/4]});
    expect_eq("sq_size", started.sq_size, now_value[REG_SQ_SIZE/4][16:0]);
    expect_eq("cq_size", started.cq_size, now_value[REG_CQ_SIZE/4][16:0]);
    expect_eq("sq_start", started.sq_start, now_value[REG_SQ_START/4]);
    expect_eq("cq_start", started.cq_start, now_value[REG_CQ_START/4]);
    expect_eq("sq_key", started.sq_key, now_value[REG_SQ_KEY/4]);
    expect_eq("coalesce_count", started.coalesce_count, now_value[REG_COALESCE_COUNT/4]);
    expect_eq("coalesce_time", started.coalesce_time, now_value[REG_COALESCE_TIME/4]);
    expect_eq("weight", started.weight, now_value[REG_WEIGHT/4]);
    expect_eq("owner", started.owner, Owner);
    expect_eq("checkpoint_default", started.checkpoint_default, now_value[REG_CHECKPOINT_DEFAULT/4]);
    expect_eq("length_limit", started.length_limit, now_value[REG_LENGTH_LIMIT/4]);
    expect_eq("eos_threshold", started.eos_threshold, now_value[REG_EOS_THRESHOLD/4]);
    expect_eq("reward_threshold", started.reward_threshold, now_value[REG_REWARD_THRESHOLD/4]);
    expect_eq("workers", started.workers, now_value[REG_FN_WORKERS/4]);
    if (Engines == 1) begin
      if (started_models !== '0) fail("a model without an engine 1");
    end else begin
      expect_eq("kv_base", started_models.kv_base, {now_value[REG_KV_BASE_HI/4], now_value[REG_KV_BASE_LO/4]});
      expect_eq("kv_size, of engine 1", started_models.kv_size, started.kv_size);
      expect_eq("model_base", started_models.model_base, {now_value[REG_MODEL_BASE_HI/4], now_value[REG_MODEL_BASE_LO/4]});
      expect_eq("model_size", started_models.model_size, {now_value[REG_MODEL_SIZE_HI/4], now_value[REG_MODEL_SIZE_LO/4]});
      for (int k = 0; k < 4; k++) begin
        arenas = started_models.arena_base;
        expect_eq($sformatf("base of arena %0d", k), arenas[64*k +: 64], {now_value[model_register(k + 1)/4 + 1], now_value[model_register(k + 1)/4]});
        arenas = started_models.arena_size;
        expect_eq($sformatf("size of arena %0d", k), arenas[64*k +: 64], {now_value[model_register(k + 1)/4 + 3], now_value[model_register(k + 1)/4 + 2]});
      end
    end
  endtask
  logic [31:0] now_value [0:Words-1];
  logic        now_ok;
  logic [255:0] arenas;

  // Every byte of the blocks that are there, and some of each kind elsewhere: another function's and another queue
  // pair's of each block, and pages that nobody has.
  task automatic expect_unknown(input logic [17:0] addr);
    logic [31:0] data;
    logic [17:0] register_addr;
    logic        ok, known, here;
    find(addr, known, here, register_addr);
    if (!known) begin
      write_raw(addr, 32'hFFFF_FFFF, ok);
      if (ok) fail($sformatf("write of unknown address 0x%05h was not refused", addr));
      get_raw(addr, data, ok);
      if (addr >= 18'h100 && addr < 18'h180 && addr % 4 == 0) begin
        expect_eq("counter", {ok, data}, {1'b1, 14'h3A5C, addr});
      end else expect_eq($sformatf("unknown address 0x%05h", addr), {ok, data}, 33'd0);
    end else begin
      get_raw(addr, data, ok);
      if (!ok) fail($sformatf("read of address 0x%05h was refused", addr));
    end
  endtask

  task automatic case_other_addresses;
    for (int addr = 0; addr < 'h190; addr++) expect_unknown(18'(addr));
    for (int addr = 0; addr < 'hC8; addr++) expect_unknown(BLOCK_FUNCTION + 18'(addr));
    for (int addr = 0; addr < 'h60; addr++) begin
      expect_unknown(BLOCK_DEVICE_FUNCTION + 18'(addr));
      expect_unknown(BLOCK_DEVICE_QUEUE + 18'(addr));
      expect_unknown(BLOCK_DEVICE_MESSAGE + 18'(addr));
      expect_unknown(BLOCK_DEVICE_MESSAGE + 18'h100 + 18'(addr));
      expect_unknown(BLOCK_FUNCTION_QUEUE + 18'(addr));
      expect_unknown(BLOCK_QUEUE + 18'(addr));
    end
    for (int k = 0; k < Count; k++) begin
      for (int bit_no = 5; bit_no < 18; bit_no++) expect_unknown(addr_of[k] ^ (18'd1 << bit_no));
    end
    for (int addr = 0; addr < 'h40000; addr = addr + 509) expect_unknown(18'(addr));
    check_all;
  endtask

  // Random writes of every register: what may change changes, nothing else does.
  task automatic case_writes(input int count);
    logic [17:0] addr;
    logic [31:0] data;
    logic        ok, part, allowed;
    repeat (count) begin
      addr = addr_of[below(Count)];
      data = rnd();
      if (addr == REG_FN_WORKERS || addr == REG_QUEUE_FUNCTION) data = data & {{28{chance(50)}}, 4'hF} & {32{chance(80)}};
      if (addr == REG_WEIGHT && chance(80)) data = below(300);
      if (addr == REG_LENGTH_LIMIT && chance(50)) data = chance(50) ? 32'h7FFF_FFFF : 32'h8000_0000;
      part = chance(20);
      if (addr != REG_CONTROL && addr != REG_FN_CONTROL && addr != REG_ARM && addr != REG_DOORBELL && addr != REG_CQ_HEAD && addr != REG_ABORT) begin
        allowed = !part && (access[addr/4] == Rw || (access[addr/4] == Cfg && !active && !enable));
        if (addr == REG_FN_WORKERS && data[Workers-1:0] == 0) allowed = 1'b0;
        if (addr == REG_QUEUE_FUNCTION) data = chance(50) ? Owner : Functions + below(5);
        if (addr == REG_QUEUE_FUNCTION && data != Owner) allowed = 1'b0;
        if (addr == REG_WEIGHT && (data == 0 || data > 255)) allowed = 1'b0;
        if (addr == REG_LENGTH_LIMIT && data > 32'h7FFF_FFFF) allowed = 1'b0;
        if (addr == REG_MESSAGE_ADDRESS_LO && chance(50)) data[1:0] = 2'b00;
        if (addr == REG_MESSAGE_ADDRESS_LO && data[1:0] != 0) allowed = 1'b0;
        write(addr, data, part, ok);
        if (ok !== allowed) fail($sformatf("write of %h to 0x%05h (partial %b, active %b): ok is %b", data, addr, part, active, ok));
        if (ok && (access[addr/4] == Cfg || is_entry(addr)) && addr != REG_QUEUE_FUNCTION) value[addr/4] = data & mask[addr/4];
        expect_read(addr, value[addr/4]);
      end
    end
    check_all;
  endtask

  task automatic case_doorbells;
    logic ok;
    for (int k = 0; k < 300; k++) begin
      doorbell_ok <= k[0];
      release_ok  <= k[1];
      write(chance(50) ? REG_DOORBELL : REG_CQ_HEAD, rnd(), 1'b0, ok);
      if (ok !== ((write_addr == at_place(REG_DOORBELL, Pair, Owner)) ? doorbell_ok : release_ok)) fail("a doorbell's answer is not the ring's");
    end
    doorbell_ok <= 1'b0;
    sq_tail <= 32'h1234_5678;
    cq_head <= 32'h9ABC_DEF0;
    expect_read(REG_DOORBELL, 32'h1234_5678);
    expect_read(REG_CQ_HEAD, 32'h9ABC_DEF0);
    // A partial write never reaches the ring and is no refused doorbell.
    write(REG_DOORBELL, 1, 1'b1, ok);
    if (ok) fail("a partial doorbell was not refused");
    repeat (300) refuse(REG_DOORBELL, 1);
    cq_tail <= cq_head; sq_head <= sq_tail;
    expect_read(REG_STATUS, 32'h0000_00FF);       // saturates
    sq_head <= '0; sq_tail <= '0; cq_head <= '0; cq_tail <= '0;
  endtask

  // R8: ABORT is taken while the queue pair is on and no ABORT is under way, and shows what was written last.
  task automatic case_abort;
    logic [31:0] last;
    last = 0;
    refuse(REG_ABORT, 7);
    good_config;
    put(REG_CONTROL, CONTROL_ENABLE);
    active <= 1'b1;
    repeat (60) begin
      aborting <= chance(50);
      @(posedge clk);
      @(posedge clk);
      expect_read(REG_STATE, 32'd3 | (aborting ? STATE_ABORTING : 32'd0));
      if (aborting) refuse(REG_ABORT, rnd());
      else begin
        last = rnd();
        put(REG_ABORT, last);
      end
      expect_read(REG_ABORT, last);
      expect_read(REG_STATUS, 0);               // it is no refused doorbell
    end
    aborting <= 1'b0;
    put(REG_CONTROL, 0);
    refuse(REG_ABORT, 8);
    active <= 1'b0;
    repeat (3) @(posedge clk);
    expect_read(REG_ABORT, last);
    value[REG_ABORT/4] = last;
  endtask

  task automatic case_status;
    int fill, completions;
    logic [31:0] start_at, refused;
    good_config;
    put(REG_CONTROL, CONTROL_ENABLE);
    active <= 1'b1;
    expect_started;
    get(REG_STATUS, refused, now_ok);
    repeat (100) begin
      if (below(100) == 0) put(REG_CONTROL, 0);   // from now on it is not on, and drains
      free        <= rnd(); waiting <= rnd(); run <= rnd(); ready <= rnd();
      check_idle  <= rnd(); dispatch_idle <= rnd();
      fill        = chance(50) ? below(4) : below(600);
      completions = chance(50) ? below(4) : below(600);
      start_at    = -below(700);
      sq_head <= start_at; sq_tail <= start_at + fill;
      cq_head <= ~start_at; cq_tail <= ~start_at + completions;
      @(posedge clk);
      @(posedge clk);
      expect_read(REG_WORKER_STATE, {24'd0, 5'(Workers - free[0] - free[1] - free[2] - free[3]), (run & ~ready) != 0,
                                     waiting != 0, free != 4'hF});
      expect_read(REG_STATUS, {8'd0, 8'(fill > 255 ? 255 : fill), 8'(completions > 255 ? 255 : completions), 8'd0});
      expect_eq("refused doorbells", refused, 0);
      expect_read(REG_SQ_HEAD, start_at);
      expect_read(REG_CQ_TAIL, ~start_at + completions);
      expect_read(REG_STATE, {29'd0, 1'b0, !enable || (fill == 0 && check_idle && dispatch_idle), active});
    end
    free <= '1; waiting <= '0; run <= '0; ready <= '1; check_idle <= 1'b1; dispatch_idle <= 1'b1;
    sq_head <= '0; sq_tail <= '0; cq_head <= '0; cq_tail <= '0;
  endtask

  task automatic good_config;
    put(REG_QUEUE_FUNCTION, Owner);
    put(REG_WEIGHT, 1 + below(255));
    put(REG_SQ_START, rnd());
    put(REG_CQ_START, rnd());
    put(REG_SQ_KEY, rnd());
    for (logic [17:0] addr = REG_SQ_BASE_LO; addr <= REG_KV_SIZE_HI; addr = addr + 4) put(addr, 32'd64);
    for (logic [17:0] addr = REG_LOGP_BASE_LO; addr <= REG_LOGP_SIZE_HI; addr = addr + 4) put(addr, 32'd64);
    for (logic [17:0] addr = REG_EQ_BASE_LO; addr <= REG_EVENT_CONTROL; addr = addr + 4) put(addr, 32'd0);
    if (Engines > 1) for (int k = 0; k < 20; k++) put(model_register(k / 4) + 4 * (k % 4), 32'd64);
    for (int k = 0; k < 3; k++) set_window(k, 64'd0, k == 1 ? '1 : '0);
  endtask

  // The first register of each region; of the queues, whose sizes are in slots, the base alone.
  localparam int Regions = (Engines > 1) ? 10 : 5;
  function automatic logic [17:0] region_register(input int region);
    region_register = (region < 2) ? REG_SQ_BASE_LO + 8 * region : (region < 4) ? REG_TOKEN_BASE_LO + 16 * (region - 2)
                    : (region == 4) ? REG_LOGP_BASE_LO : model_register(region - 5);
  endfunction

  // R23: a ring of 0 slots is none, wherever it lies; any other is one, aligned, in one window. EQ_HEAD is event_ring's to judge.
  task automatic case_events;
    logic ok;
    good_config;
    put(REG_SQ_SIZE, 4);
    put(REG_CQ_SIZE, 8);
    put(REG_EQ_BASE_LO, 32'd17);
    expect_start("no event ring, misaligned", 1'b1);
    for (int k = 0; k < 32; k++) begin
      put(REG_EQ_BASE_LO, 32'd64);
      put(REG_EQ_SIZE, 32'd1 << k);
      expect_start($sformatf("an event ring of 2^%0d slots", k), k >= 1 && k <= 16);
      put(REG_EQ_SIZE, (32'd1 << k) + 32'd1 + 32'(k == 0));
      expect_start($sformatf("an event ring of 2^%0d slots and one", k), 1'b0);
    end
    put(REG_EQ_SIZE, 32'd4);
    for (int k = 0; k < 6; k++) begin
      put(REG_EQ_BASE_LO, 32'd64 + (32'd1 << k));
      expect_start($sformatf("an event ring misaligned by %0d", 1 << k), 1'b0);
    end
    put(REG_EQ_BASE_LO, 32'd64);
    put(REG_EVENT_CONTROL, 32'hFFFF_FFFF);
    expect_start("a ring with LIFE", 1'b1);
    expect_eq("ring", {started.eq_starts, started.eq_life, started.eq_size, started.eq_base}, {1'b1, 1'b1, 17'd4, 64'd64});
    // The other regions lie in window 1, the ring in none, then at both ends of window 2.
    set_window(1, 64'd0, 64'h90_0000_0000);
    put(REG_EQ_BASE_HI, 32'h100);
    expect_start("an event ring in no window", 1'b0);
    set_window(2, 64'h100_0000_0040, 64'd128);
    expect_start("an event ring that fills a window", 1'b1);
    set_window(2, 64'h100_0000_0040, 64'd127);
    expect_start("an event ring beyond its window", 1'b0);
    set_window(2, 64'h100_0000_0041, 64'd128);
    expect_start("an event ring before its window", 1'b0);
    good_config;
    for (int k = 0; k < 2; k++) begin
      event_release_ok <= k[0];
      write(REG_EQ_HEAD, rnd(), 1'b0, ok);
      if (ok !== k[0]) fail($sformatf("EQ_HEAD: ok is %b, expected %b", ok, k[0]));
    end
    event_release_ok <= 1'b0;
  endtask

  task automatic set_window(input int k, input logic [63:0] base, input logic [63:0] size);
    put(REG_WINDOW_0_BASE_LO + 16 * k, base[31:0]);
    put(REG_WINDOW_0_BASE_HI + 16 * k, base[63:32]);
    put(REG_WINDOW_0_SIZE_LO + 16 * k, size[31:0]);
    put(REG_WINDOW_0_SIZE_HI + 16 * k, size[63:32]);
  endtask

  task automatic expect_start(input string what, input logic expected);
    put(REG_CONTROL, 1);
    if (enable !== expected) fail($sformatf("enabled is %b with %0s", enable, what));
    expect_read(REG_ERROR, expected ? 0 : FAULT_BAD_CONFIG);
    if (expected) expect_started;
    put(REG_CONTROL, 0);
    put(REG_ERROR, '1);
  endtask

  // R11: each region, at each end of a window, in each of the windows; regions are whole lines, and 64-bit sums do not wrap.
  task automatic case_windows;
    logic [63:0] at, size;
    logic [17:0] base;
    good_config;
    put(REG_SQ_SIZE, 4);
    put(REG_CQ_SIZE, 8);
    for (int region = 0; region < Regions; region++) begin
      at   = 64'hFFFF_FFFE_0000_0000 + 64'(region) * 64'h1000;
      size = (region == 0 || region == 1) ? 64'd256 : 64'h1_0000_0040;
      for (int other = 0; other < Regions; other++) begin     // the others lie in a window of their own
        base = region_register(other);
        put(base + 4, (other == region) ? at[63:32] : 32'd1);
        put(base, (other == region) ? at[31:0] : 32'd64 * other);
        if (other >= 2) put(base + 12, (other == region) ? size[63:32] : 0);
        if (other >= 2) put(base + 8, (other == region) ? size[31:0] : 64);
      end
      for (int k = 0; k < 3; k++) begin
        set_window((k + 1) % 3, 64'h1_0000_0000, 64'h1_0000_0000);
        set_window((k + 2) % 3, at, size - 1);           // and a third one that is too short
        set_window(k, at, size);
        expect_start("a region that fills its window", 1'b1);
        set_window(k, at - 64, size + 64);
        expect_start("a region at the end of its window", 1'b1);
        set_window(k, at, -at);
        expect_start("a window up to the end of all addresses", 1'b1);
        set_window(k, at, 64'd1 - at);
        expect_start("a window that wraps by a byte", 1'b0);
        set_window(k, at, '1);
        expect_start("a window that wraps", 1'b0);
        set_window(k, at + 1, size);
        expect_start("a region that begins before its window", 1'b0);
        set_window(k, at, size - 1);
        expect_start("a region that ends behind its window", 1'b0);
        set_window(k, at - 64, size + 63);
        expect_start("a region that ends behind its window, further down", 1'b0);
        set_window(k, at ^ 64'h1_0000_0000, size);
        expect_start("a window with another upper half", 1'b0);
        set_window(k, at + size, -at - size);
        expect_start("a window that begins behind it", 1'b0);
        set_window(k, at + size + 64, '1);
        expect_start("a window that begins further behind it, and wraps", 1'b0);
        // Whole lines: the queues' sizes are in slots.
        set_window(k, at, size);
        if (region >= 2) begin
          put(region_register(region) + 8, size[31:0] - (32'd1 << below(6)));
          expect_start("a region that is no whole lines", 1'b0);
          put(region_register(region) + 8, size[31:0]);
        end
        set_window(k, '0, '0);
        expect_start("no window", 1'b0);
      end
    end
    put(region_register(Regions - 1) + 12, 0);
    put(region_register(Regions - 1) + 8, 0);
    expect_start("an empty region in no window", 1'b1);
    good_config;
  endtask

  // DRAIN takes no doorbell, ends by itself once nothing is left, and not before; RESET of the function ends at once.
  task automatic case_drain;
    logic ok;
    good_config;
    doorbell_ok <= 1'b1;
    put(REG_CONTROL, CONTROL_DRAIN);                // not of what is inactive
    if (enable) fail("a drain has enabled");
    put(REG_CONTROL, CONTROL_ENABLE);
    active <= 1'b1;
    expect_read(REG_CONTROL, CONTROL_ENABLE);
    put(REG_DOORBELL, 0);
    dispatch_idle <= 1'b0;
    put(REG_CONTROL, CONTROL_ENABLE | CONTROL_DRAIN);
    expect_read(REG_CONTROL, CONTROL_ENABLE | CONTROL_DRAIN);
    write(REG_DOORBELL, 5, 1'b0, ok);
    if (ok) fail("a doorbell was taken while it drains");
    expect_read(REG_STATUS, 2);                     // the bench's write lasts two cycles
    put(REG_CONTROL, CONTROL_ENABLE);               // there is no way back
    repeat (20) @(posedge clk);
    if (!enable) fail("a drain has ended with something in flight");
    dispatch_idle <= 1'b1;
    check_idle    <= 1'b0;
    repeat (20) @(posedge clk);
    if (!enable) fail("a drain has ended with something in the check");
    check_idle <= 1'b1;
    sq_tail    <= 1;
    repeat (20) @(posedge clk);
    if (!enable) fail("a drain has ended with something published");
    sq_tail <= '0;
    repeat (3) @(posedge clk);
    if (enable) fail("a drain does not end");
    expect_read(REG_CONTROL, 0);
    active <= 1'b0;
    put(REG_CONTROL, CONTROL_ENABLE);
    active <= 1'b1;
    put(REG_FN_CONTROL, 32'hFFFF_FFFE);
    if (!enable) fail("FN_CONTROL without RESET has reset");
    put(REG_FN_CONTROL, FN_CONTROL_RESET);
    if (enable) fail("a reset of the function has disabled nothing");
    expect_read(REG_FN_CONTROL, FN_CONTROL_RESET);
    refuse(REG_CONTROL, CONTROL_ENABLE);
    active <= 1'b0;
    repeat (3) @(posedge clk);
    expect_read(REG_FN_CONTROL, 0);
    put(REG_CONTROL, CONTROL_ENABLE);
    put(REG_CONTROL, 0);
    doorbell_ok <= 1'b0;
  endtask

  task automatic expect_bad(input logic [17:0] addr, input logic [31:0] data);
    put(addr, data);
    put(REG_CONTROL, 1);
    if (enable) fail($sformatf("enabled with %h in 0x%05h", data, addr));
    expect_read(REG_CONTROL, 0);
    expect_read(REG_ERROR, FAULT_BAD_CONFIG);
    expect_read(REG_STATE, 32'd6);
    put(REG_ERROR, FAULT_BAD_CONFIG);
    expect_read(REG_ERROR, 0);
    put(addr, 32'd64);
  endtask

  task automatic case_enable;
    good_config;
    for (int bit_no = 0; bit_no < 6; bit_no++) begin
      expect_bad(REG_SQ_BASE_LO, 64 + (1 << bit_no));
      expect_bad(REG_CQ_BASE_LO, 64 + (1 << bit_no));
      expect_bad(REG_TOKEN_BASE_LO, 64 + (1 << bit_no));
      expect_bad(REG_KV_BASE_LO, 64 + (1 << bit_no));
      expect_bad(REG_LOGP_BASE_LO, 64 + (1 << bit_no));
      for (int k = 0; k < Regions - 5; k++) expect_bad(model_register(k), 64 + (1 << bit_no));
    end
    expect_bad(REG_SQ_SIZE, 0);
    expect_bad(REG_SQ_SIZE, 1);
    expect_bad(REG_SQ_SIZE, 3);
    expect_bad(REG_SQ_SIZE, 65);
    expect_bad(REG_SQ_SIZE, 131072);
    expect_bad(REG_CQ_SIZE, 0);
    expect_bad(REG_CQ_SIZE, 96);
    expect_bad(REG_CQ_SIZE, 32'h8000_0000);
    for (int log2 = 1; log2 <= 16; log2++) begin
      put(REG_SQ_SIZE, 1 << log2);
      put(REG_CQ_SIZE, 1 << (17 - log2));
      put(REG_CONTROL, 1);
      if (!enable) fail($sformatf("not enabled with rings of 2^%0d and 2^%0d", log2, 17 - log2));
      put(REG_CONTROL, 0);
      if (enable) fail("not disabled");
    end
    put(REG_CONTROL, 1);
    expect_read(REG_STATUS, 0);                   // a fresh start forgets refused doorbells
    for (int k = 0; k < Count; k++) if (access[addr_of[k] / 4] == Cfg) refuse(addr_of[k], 2);   // locked by ENABLE at once
    put(REG_CONTROL, 0);
  endtask

  task automatic pulse(input logic [3:0] faults);
    {message_fault, completion_fault, line_fault, read_fault} <= faults;
    @(posedge clk);
    {message_fault, completion_fault, line_fault, read_fault} <= 4'd0;
    @(posedge clk);
  endtask

  // {message, completion, line, read} as in pulse, in the places that ERROR has for them.
  function automatic logic [31:0] error_of(input logic [3:0] faults);
    error_of = {27'd0, faults, 1'b0};
  endfunction

  // Every fault stays until its own bit is cleared, and one that comes in the cycle of its clearing stays too.
  task automatic case_faults;
    logic [31:0] cleared;
    for (int first = 0; first < 16; first++) for (int second = 0; second < 16; second++) begin
      pulse(first);
      pulse(second);
      expect_read(REG_ERROR, error_of(first | second));
      expect_read(REG_STATE, 32'd2 | (((first | second) != 0) ? 32'd4 : 32'd0) | active);
      cleared = rnd();
      {message_fault, completion_fault, line_fault, read_fault} <= second;
      put(REG_ERROR, cleared);
      {message_fault, completion_fault, line_fault, read_fault} <= 4'd0;
      @(posedge clk);
      expect_read(REG_ERROR, (error_of(first) & ~cleared) | error_of(second));
      put(REG_ERROR, '1);
      expect_read(REG_ERROR, 0);
    end
  endtask

  // R24: a death, with what is published or without. It stays ACTIVE and DEAD until it is disabled and nothing of it is left.
  task automatic case_death;
    for (int k = 0; k < 16; k++) begin
      good_config;
      put(REG_CONTROL, CONTROL_ENABLE);
      active        <= 1'b1;
      dispatch_idle <= k[0];
      repeat (2) @(posedge clk);
      if (k[1]) put(REG_CONTROL, 0);            // it dies while it drains
      dies <= 1'b1;
      #1;
      if (raised !== (6*Queues)'(1) << (5*Queues + Pair)) fail($sformatf("R23: a death raises %b", raised));
      @(posedge clk);
      dies          <= 1'b0;
      repeat (2) @(posedge clk);
      dispatch_idle <= 1'b1;
      expect_read(REG_ERROR, FAULT_BUS_TIMEOUT);
      expect_read(REG_STATE, STATE_ACTIVE | STATE_DEAD | STATE_FAULT | ((k[0] || k[1]) ? STATE_IDLE : 32'd0));
      expect_read(REG_CONTROL, k[1] ? 0 : CONTROL_ENABLE);
      if (runs_unused[Pair]) fail("R24: a dead queue pair is on");
      if (k[0]) begin
        check_idle <= 1'b0;                     // what a doorbell published that was accepted just before
        repeat (2) @(posedge clk);
        expect_read(REG_STATE, STATE_ACTIVE | STATE_DEAD | STATE_FAULT | (k[1] ? STATE_IDLE : 32'd0));
        check_idle <= 1'b1;
      end
      doorbell_ok <= 1'b0;
      refuse(REG_DOORBELL, 1);
      if (k[1]) refuse(REG_CONTROL, CONTROL_ENABLE);
      else begin
        put(REG_CONTROL, CONTROL_ENABLE);       // it is enabled, and nothing changes
        if (k[2]) put(REG_CONTROL, CONTROL_ENABLE | CONTROL_DRAIN);
        // Nothing is left of it, and it stays.
        active <= 1'b0;
        repeat (3) @(posedge clk);
        expect_read(REG_STATE, STATE_ACTIVE | STATE_DEAD | STATE_FAULT | (k[0] ? STATE_IDLE : 32'd0));
        active <= k[3];
        if (k[2]) put(REG_FN_CONTROL, FN_CONTROL_RESET);
        else      put(REG_CONTROL, 0);
        repeat (2) @(posedge clk);
      end
      expect_read(REG_STATE, (k[1] || k[3]) ? STATE_ACTIVE | STATE_DEAD | STATE_FAULT | STATE_IDLE : STATE_FAULT | STATE_IDLE);
      put(REG_ERROR, FAULT_BUS_TIMEOUT);
      active <= 1'b0;
      repeat (2) @(posedge clk);
      expect_read(REG_STATE, STATE_IDLE);
      expect_read(REG_ERROR, 0);
    end
  endtask

  // R14: ARM is taken while the queue pair is on, and shows what was written last; STATE.ARMED, MESSAGES_PENDING.
  task automatic expect_interrupt(input logic is_armed, input logic is_pending);
    logic [31:0] data;
    logic        ok;
    @(posedge clk);
    expect_read(REG_STATE, 32'd3 | (is_armed ? STATE_ARMED : 32'd0));
    expect_read(REG_MESSAGES_PENDING, is_pending ? 1 << Pair : 0);
    for (int q = 0; q < Queues; q++) if (q != Pair) begin
      get_raw(at_place(REG_STATE, q, 0), data, ok);
      expect_eq("STATE of another queue pair", data, 32'd2);
    end
  endtask

  task automatic case_interrupt;
    refuse(REG_ARM, 0);
    for (int low = 1; low < 4; low++) refuse(REG_MESSAGE_ADDRESS_LO, 32'h1000 + low);
    expect_read(REG_ARM, 0);
    good_config;
    put(REG_COALESCE_COUNT, 0);
    put(REG_COALESCE_TIME, 0);
    put(REG_CONTROL, CONTROL_ENABLE);
    active <= 1'b1;
    expect_interrupt(1'b0, 1'b0);
    put(REG_MESSAGE_CONTROL, MESSAGE_CONTROL_MASK);
    put(REG_ARM, 32'hFFFF_FFFF);
    expect_interrupt(1'b1, 1'b0);
    put(REG_ARM, 32'd0);
    expect_read(REG_ARM, 0);
    answered <= 1'b1;
    @(posedge clk);
    answered <= 1'b0;
    expect_interrupt(1'b0, 1'b1);
    put(REG_ARM, 32'd5);                          // what is pending stays
    expect_interrupt(1'b1, 1'b1);
    if (messages != 0) fail("R14: a message of a masked vector");
    put(REG_MESSAGE_CONTROL, ~MESSAGE_CONTROL_MASK);
    repeat (3) @(posedge clk);
    expect_eq("R14: messages of a vector that was unmasked", messages, 1);
    expect_interrupt(1'b1, 1'b0);
    put(REG_CONTROL, 0);
    refuse(REG_ARM, 7);
    expect_read(REG_ARM, 32'd5);
    expect_read(REG_STATE, STATE_ACTIVE | STATE_IDLE);
    active <= 1'b0;
    repeat (3) @(posedge clk);
  endtask

  function automatic logic is_entry(input logic [17:0] addr);
    is_entry = addr[17:4] == REG_MESSAGE_ADDRESS_LO[17:4];
  endfunction

  // The function's page is that of the function which owns the queue pair, and a change of the owner moves it.
  task automatic case_owner;
    logic        ok;
    logic [31:0] data;
    if (Functions > 1) begin
      write_raw(at_place(REG_WEIGHT, Pair, 0), 32'd9, ok);
      if (ok) fail("another function's page configures the queue pair");
      get_raw(at_place(REG_WEIGHT, Pair, 0), data, ok);
      if (ok || data !== 0) fail("another function's page shows the queue pair");
      write_raw(at_place(REG_CONTROL, Pair, 0), 32'd1, ok);
      if (ok || on != 0) fail("another function's page enables the queue pair");
      put(REG_WEIGHT, 9);
      write_raw(at_place(REG_QUEUE_FUNCTION, Pair, 0), 32'd0, ok);
      if (!ok) fail("QUEUE_FUNCTION was refused");
      get_raw(at_place(REG_WEIGHT, Pair, 0), data, ok);
      if (!ok || data !== 9) fail("the new owner does not see the queue pair");
      get_raw(at_place(REG_WEIGHT, Pair, Owner), data, ok);
      if (ok) fail("the old owner still sees the queue pair");
      write_raw(at_place(REG_QUEUE_FUNCTION, Pair, 0), Owner, ok);
      // A reset of another function leaves it on; and what another function sets is free while this one is active.
      good_config;
      put(REG_CONTROL, CONTROL_ENABLE);
      write_raw(at_place(REG_FN_CONTROL, 0, 0), FN_CONTROL_RESET, ok);
      if (!ok || !enable) fail("a reset of another function disables the queue pair");
      write_raw(at_place(REG_LENGTH_LIMIT, 0, 0), RESET_LENGTH_LIMIT, ok);
      if (!ok) fail("another function is locked");
      write_raw(at_place(REG_LENGTH_LIMIT, 0, Owner), RESET_LENGTH_LIMIT, ok);
      if (ok) fail("a function is not locked by its queue pair");
      write_raw(REG_WAIT_STATES, 32'd0, ok);
      if (ok) fail("WAIT_STATES is not locked by a queue pair");
      write_raw(REG_BUS_TIMEOUT, 32'd0, ok);
      if (ok) fail("BUS_TIMEOUT is not locked by a queue pair");
      write_raw(at_place(REG_QUEUE_FUNCTION, Pair, 0), 32'd0, ok);
      if (ok) fail("QUEUE_FUNCTION is not locked by its queue pair");
      put(REG_CONTROL, 0);
    end
  endtask

  // Two queue pairs of a function, of which the one under test ends late. The other one ends at once, and is enabled anew.
  localparam int Other = (Pair == 0) ? Queues - 1 : 0;
  task automatic put_other(input logic [17:0] addr, input logic [31:0] data);
    logic ok;
    write_raw(at_place(addr, Other, Owner), data, ok);
    if (!ok) fail($sformatf("write of %h to 0x%05h of the other queue pair was refused", data, addr));
  endtask

  task automatic case_two;
    two = 1'b1;
    good_config;
    put_other(REG_QUEUE_FUNCTION, Owner);
    for (logic [17:0] addr = REG_SQ_BASE_LO; addr <= REG_KV_SIZE_HI; addr = addr + 4) put_other(addr, 32'd64);
    // FN_CONTROL.RESET reads 1 until those have ended that it disabled.
    for (int k = 0; k < 8; k++) begin
      put(REG_CONTROL, CONTROL_ENABLE);
      put_other(REG_CONTROL, CONTROL_ENABLE);
      active <= 1'b1;
      repeat (2) @(posedge clk);
      put(REG_FN_CONTROL, FN_CONTROL_RESET);
      repeat (below(4)) @(posedge clk);
      expect_read(REG_FN_CONTROL, FN_CONTROL_RESET);
      if (on != '0 || actives[Other]) fail("R12: a reset of the function has not ended what was idle");
      put_other(REG_CONTROL, CONTROL_ENABLE);
      if (!on[Other]) fail("R12: a queue pair that has ended is not enabled anew while another one's reset is under way");
      expect_read(REG_FN_CONTROL, FN_CONTROL_RESET);
      active <= 1'b0;
      repeat (3) @(posedge clk);
      expect_read(REG_FN_CONTROL, 0);
      if (!on[Other]) fail("R12: the end of a reset disables what was enabled behind it");
      put_other(REG_CONTROL, 0);
      repeat (2) @(posedge clk);
    end
    // R23: a refused ENABLE is told of while another queue pair of the function is active, and in no cycle behind.
    put_other(REG_SQ_SIZE, 32'd3);
    for (int k = 0; k < 12; k++) begin
      put(REG_CONTROL, CONTROL_ENABLE);
      active <= 1'b1;
      repeat (2) @(posedge clk);
      put(REG_CONTROL, 0);
      active <= 1'b0;
      repeat (k % 4) @(posedge clk);
      put_other(REG_CONTROL, CONTROL_ENABLE);
      put_other(REG_ERROR, FAULT_BAD_CONFIG);
      repeat (2) @(posedge clk);
    end
    if (told < 3 || untold < 3) fail($sformatf("R23: %0d refused ENABLEs beside an active queue pair, %0d without", told, untold));
  endtask

  int told = 0, untold = 0;              // of the other queue pair
  always @(posedge clk) if (write_now && write_addr == at_place(REG_CONTROL, Other, Owner) && Queues > 1 && owners[Other] == 4'(Owner)
                            && write_data[0] && !start) begin
    if (raised[Other] != (actives != '0)) fail($sformatf("R23: a refused ENABLE raises %b while %b are active", raised, actives));
    if (actives != '0) told = told + 1;
    else               untold = untold + 1;
  end

  initial begin
    define_all;
    for (int k = 0; k < Words; k++) value[k] = reset_value[k];
    @(posedge rst_n);
    @(posedge clk);
    @(posedge clk);
    write_raw(at_place(REG_QUEUE_FUNCTION, Pair, 0), Owner, now_ok);
    check_all;
    case_other_addresses;
    case_writes(600);
    // A disable that is not yet complete.
    @(negedge clk);
    active = 1'b1;
    u_ctrl.active_q[Pair] = 1'b1;
    repeat (2) @(posedge clk);
    value[REG_STATE/4] = 3;
    case_writes(300);
    case_doorbells;
    active <= 1'b0;
    repeat (3) @(posedge clk);
    case_abort;
    case_status;
    active <= 1'b0;
    put(REG_CONTROL, 0);
    repeat (2) @(posedge clk);
    value[REG_STATE/4] = 2;
    case_enable;
    case_windows;
    case_events;
    case_drain;
    case_faults;
    case_death;
    case_interrupt;
    case_owner;
    expect_others;
    if (Queues > 1) case_two;
    over = 1'b1;
  end
endmodule
