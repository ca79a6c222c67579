// mmio_regs: every register's reset value, access, bits and lock; every other address; doorbells, enable, faults,
// STATUS, STATE and the interrupt (docs/contract.md, Registers).
module mmio_regs_tb;
  import bench_pkg::*;
  import desc_pkg::*;
  localparam int Workers = 4;

  logic clk, rst_n;
  int   cycle;
  clock_reset #(.Limit(60000)) u_clock (.clk_o(clk), .rst_no(rst_n), .cycle_o(cycle));

  logic        write_now = 1'b0, partial = 1'b0, write_error, read_now = 1'b0, read_error, counter_hit;
  logic [11:0] write_addr = '0, read_addr = '0;
  logic [31:0] write_data = '0, read_data;
  logic        enable, doorbell, doorbell_ok = 1'b0, release_cq, release_ok = 1'b0, active = 1'b0;
  logic [63:0] sq_base, cq_base, token_base, token_size, kv_size;
  logic [16:0] sq_size, cq_size;
  logic [31:0] sq_start, cq_start, checkpoint_default, length_limit, reward_threshold, sq_key, index;
  logic [15:0] wait_states, eos_threshold;
  logic [Workers-1:0] in_use, free = '1, waiting = '0, run = '0, ready = '1;
  logic        check_idle = 1'b1, dispatch_idle = 1'b1, read_fault = 1'b0, line_fault = 1'b0, completion_fault = 1'b0;
  logic        asked = 1'b0, irq;
  logic [31:0] sq_head = '0, sq_tail = '0, cq_head = '0, cq_tail = '0;

  // Counters lie elsewhere: this page only passes them on.
  assign counter_hit = read_addr >= 12'h100 && read_addr < 12'h180 && read_addr[1:0] == 0;

  mmio_regs #(.Workers(Workers)) u_regs (
    .clk_i(clk), .rst_ni(rst_n), .write_i(write_now), .write_addr_i(write_addr), .write_data_i(write_data),
    .write_partial_i(partial), .write_error_o(write_error), .read_i(read_now), .read_addr_i(read_addr),
    .read_data_o(read_data), .read_error_o(read_error), .counter_hit_i(counter_hit), .counter_data_i({20'hC0DE0, read_addr}),
    .enable_o(enable), .sq_base_o(sq_base), .cq_base_o(cq_base), .sq_size_o(sq_size), .cq_size_o(cq_size),
    .token_base_o(token_base), .token_size_o(token_size), .kv_size_o(kv_size), .sq_start_o(sq_start),
    .cq_start_o(cq_start), .checkpoint_default_o(checkpoint_default), .wait_states_o(wait_states),
    .length_limit_o(length_limit), .eos_threshold_o(eos_threshold), .reward_threshold_o(reward_threshold), .sq_key_o(sq_key),
    .workers_o(in_use), .doorbell_o(doorbell), .doorbell_ok_i(doorbell_ok), .release_o(release_cq),
    .release_ok_i(release_ok), .index_o(index), .active_i(active), .check_idle_i(check_idle),
    .dispatch_idle_i(dispatch_idle), .sq_head_i(sq_head), .sq_tail_i(sq_tail), .cq_head_i(cq_head),
    .cq_tail_i(cq_tail), .free_i(free), .wait_i(waiting), .run_i(run), .ready_i(ready), .read_fault_i(read_fault),
    .line_fault_i(line_fault), .completion_fault_i(completion_fault), .asked_i(asked), .irq_o(irq)
  );

  // ---------------------------------------------------------------- the table of the contract
  localparam int Count = 33;
  logic [2:0]  access [0:Count-1];      // by word address
  logic [31:0] reset_value [0:Count-1], mask [0:Count-1], value [0:Count-1];
  localparam logic [2:0] Ro = 3'd0, Rw = 3'd1, Cfg = 3'd2;

  task automatic define(input logic [11:0] addr, input logic [2:0] kind, input logic [31:0] reset_to, input logic [31:0] bits);
    access[addr / 4]      = kind;
    reset_value[addr / 4] = reset_to;
    mask[addr / 4]        = bits;
  endtask

  task automatic define_all;
    for (int k = 0; k < Count; k++) define(4 * k, Cfg, 0, 32'hFFFF_FFFF);
    define(REG_ID, Ro, 32'h4C45_4244, 0);
    define(REG_VERSION, Ro, RESET_VERSION, 0);
    define(REG_CAPABILITY, Ro, CAP_PREFILL | CAP_RESIDENT | CAP_INTERRUPT | Workers, 0);
    define(REG_CONTROL, Rw, 0, 1);
    define(REG_DOORBELL, Rw, 0, 0);
    define(REG_CQ_HEAD, Rw, 0, 0);
    define(REG_STATE, Ro, 2, 0);
    define(REG_ERROR, Rw, 0, 0);
    define(REG_STATUS, Ro, 0, 0);
    define(REG_WORKERS, Cfg, Workers, 7);
    define(REG_CHECKPOINT_DEFAULT, Cfg, 32'hFFFF_FFFF, 32'hFFFF_FFFF);
    define(REG_WAIT_STATES, Cfg, 0, 32'hFFFF);
    define(REG_LENGTH_LIMIT, Cfg, 32'h0010_0000, 32'hFFFF_FFFF);
    define(REG_EOS_THRESHOLD, Cfg, 0, 32'hFFFF);
    define(REG_IRQ, Rw, 0, 0);
  endtask

  // ---------------------------------------------------------------- accesses
  task automatic write(input logic [11:0] addr, input logic [31:0] data, input logic part, output logic ok);
    write_addr <= addr;
    write_data <= data;
    partial    <= part;
    write_now  <= 1'b1;
    @(posedge clk);
    #1;                                 // the answer is combinational
    ok = !write_error;
    if (doorbell !== (addr == REG_DOORBELL && !part)) fail("doorbell_o is wrong");
    if (release_cq !== (addr == REG_CQ_HEAD && !part)) fail("release_o is wrong");
    if ((doorbell || release_cq) && index !== data) fail("index_o is wrong");
    @(posedge clk);
    write_now <= 1'b0;
    @(posedge clk);
  endtask

  task automatic put(input logic [11:0] addr, input logic [31:0] data);
    logic ok;
    write(addr, data, 1'b0, ok);
    if (!ok) fail($sformatf("write of %h to 0x%03h was refused", data, addr));
  endtask

  task automatic refuse(input logic [11:0] addr, input logic [31:0] data);
    logic ok;
    write(addr, data, 1'b0, ok);
    if (ok) fail($sformatf("write of %h to 0x%03h was not refused", data, addr));
  endtask

  task automatic get(input logic [11:0] addr, output logic [31:0] data, output logic ok);
    read_addr <= addr;
    read_now  <= 1'b1;
    @(posedge clk);
    #1;
    data = read_data;
    ok   = !read_error;
    @(posedge clk);
    read_now <= 1'b0;
  endtask

  task automatic expect_read(input logic [11:0] addr, input logic [31:0] expected);
    logic [31:0] data;
    logic        ok;
    get(addr, data, ok);
    if (!ok) fail($sformatf("read of 0x%03h was refused", addr));
    expect_eq($sformatf("register 0x%03h", addr), data, expected);
  endtask

  // ---------------------------------------------------------------- cases
  task automatic check_all;
    for (int k = 0; k < Count; k++) expect_read(4 * k, value[k]);
    expect_eq("sq_base_o", sq_base, {value[REG_SQ_BASE_HI/4], value[REG_SQ_BASE_LO/4]});
    expect_eq("cq_base_o", cq_base, {value[REG_CQ_BASE_HI/4], value[REG_CQ_BASE_LO/4]});
    expect_eq("token_base_o", token_base, {value[REG_TOKEN_BASE_HI/4], value[REG_TOKEN_BASE_LO/4]});
    expect_eq("token_size_o", token_size, {value[REG_TOKEN_SIZE_HI/4], value[REG_TOKEN_SIZE_LO/4]});
    expect_eq("kv_size_o", kv_size, {value[REG_KV_SIZE_HI/4], value[REG_KV_SIZE_LO/4]});
    expect_eq("sq_size_o", sq_size, value[REG_SQ_SIZE/4][16:0]);
    expect_eq("cq_size_o", cq_size, value[REG_CQ_SIZE/4][16:0]);
    expect_eq("sq_start_o", sq_start, value[REG_SQ_START/4]);
    expect_eq("cq_start_o", cq_start, value[REG_CQ_START/4]);
    expect_eq("checkpoint_default_o", checkpoint_default, value[REG_CHECKPOINT_DEFAULT/4]);
    expect_eq("wait_states_o", wait_states, value[REG_WAIT_STATES/4]);
    expect_eq("length_limit_o", length_limit, value[REG_LENGTH_LIMIT/4]);
    expect_eq("eos_threshold_o", eos_threshold, value[REG_EOS_THRESHOLD/4]);
    expect_eq("reward_threshold_o", reward_threshold, value[REG_REWARD_THRESHOLD/4]);
    expect_eq("sq_key_o", sq_key, value[REG_SQ_KEY/4]);
    expect_eq("workers_o", in_use, (1 << value[REG_WORKERS/4]) - 1);
  endtask

  task automatic case_other_addresses;
    logic [31:0] data;
    logic        ok;
    for (int addr = 0; addr < 4096; addr = addr + 1 + 30 * (addr >= 12'h190)) begin
      if (addr % 4 != 0 || addr >= 4 * Count) begin
        write(addr, 32'hFFFF_FFFF, 1'b0, ok);
        if (ok) fail($sformatf("write of unknown address 0x%03h was not refused", addr));
        get(addr, data, ok);
        if (addr >= 12'h100 && addr < 12'h180 && addr % 4 == 0) begin
          expect_eq("counter", {ok, data}, {1'b1, 20'hC0DE0, 12'(addr)});
        end else expect_eq($sformatf("unknown address 0x%03h", addr), {ok, data}, 33'd0);
      end
    end
    check_all;
  endtask

  // Random writes of every register: what may change changes, nothing else does.
  task automatic case_writes(input int count);
    logic [11:0] addr;
    logic [31:0] data;
    logic        ok, part, allowed;
    repeat (count) begin
      addr = 4 * below(Count);
      data = rnd();
      if (addr == REG_WORKERS) data = below(Workers + 3);
      if (addr == REG_LENGTH_LIMIT && chance(50)) data = chance(50) ? 32'h7FFF_FFFF : 32'h8000_0000;
      part = chance(20);
      if (addr != REG_CONTROL && addr != REG_IRQ && addr != REG_DOORBELL && addr != REG_CQ_HEAD) begin
        allowed = !part && (access[addr/4] == Rw || (access[addr/4] == Cfg && !active && !enable));
        if (addr == REG_WORKERS && (data == 0 || data > Workers)) allowed = 1'b0;
        if (addr == REG_LENGTH_LIMIT && data > 32'h7FFF_FFFF) allowed = 1'b0;
        write(addr, data, part, ok);
        if (ok !== allowed) fail($sformatf("write of %h to 0x%03h (partial %b, active %b): ok is %b", data, addr, part, active, ok));
        if (ok && access[addr/4] == Cfg) value[addr/4] = data & mask[addr/4];
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
      if (ok !== ((write_addr == REG_DOORBELL) ? doorbell_ok : release_ok)) fail("a doorbell's answer is not the ring's");
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

  task automatic case_status;
    int fill, completions;
    logic [31:0] start_at;
    repeat (100) begin
      free        <= rnd(); waiting <= rnd(); run <= rnd(); ready <= rnd();
      check_idle  <= rnd(); dispatch_idle <= rnd();
      fill        = chance(50) ? below(4) : below(600);
      completions = chance(50) ? below(4) : below(600);
      start_at    = -below(700);
      sq_head <= start_at; sq_tail <= start_at + fill;
      cq_head <= ~start_at; cq_tail <= ~start_at + completions;
      @(posedge clk);
      @(posedge clk);
      expect_read(REG_STATUS, {5'(Workers - free[0] - free[1] - free[2] - free[3]), (run & ~ready) != 0, waiting != 0,
                               free != 4'hF, 8'(fill > 255 ? 255 : fill), 8'(completions > 255 ? 255 : completions), 8'hFF});
      expect_read(REG_STATE, {29'd0, 1'b0, fill == 0 && check_idle && dispatch_idle, active});
    end
    free <= '1; waiting <= '0; run <= '0; ready <= '1; check_idle <= 1'b1; dispatch_idle <= 1'b1;
    sq_head <= '0; sq_tail <= '0; cq_head <= '0; cq_tail <= '0;
  endtask

  task automatic good_config;
    for (logic [11:0] addr = REG_SQ_BASE_LO; addr <= REG_KV_SIZE_HI; addr = addr + 4) put(addr, 32'd64);
  endtask

  task automatic expect_bad(input logic [11:0] addr, input logic [31:0] data);
    put(addr, data);
    put(REG_CONTROL, 1);
    if (enable) fail($sformatf("enabled with %h in 0x%03h", data, addr));
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
    for (int k = 0; k < Count; k++) if (access[k] == Cfg) refuse(4 * k, 2);   // locked by ENABLE at once
    put(REG_CONTROL, 0);
  endtask

  task automatic pulse(input logic [2:0] faults);
    {completion_fault, line_fault, read_fault} <= faults;
    @(posedge clk);
    {completion_fault, line_fault, read_fault} <= 3'd0;
    @(posedge clk);
  endtask

  // {completion, line, read} as in pulse, in the places that ERROR has for them.
  function automatic logic [31:0] error_of(input logic [2:0] faults);
    error_of = {28'd0, faults, 1'b0};
  endfunction

  // Every fault stays until its own bit is cleared, and one that comes in the cycle of its clearing stays too.
  task automatic case_faults;
    logic [31:0] cleared;
    for (int first = 0; first < 8; first++) for (int second = 0; second < 8; second++) begin
      pulse(first);
      pulse(second);
      expect_read(REG_ERROR, error_of(first | second));
      expect_read(REG_STATE, 32'd2 | (((first | second) != 0) ? 32'd4 : 32'd0) | active);
      cleared = rnd();
      {completion_fault, line_fault, read_fault} <= second;
      put(REG_ERROR, cleared);
      {completion_fault, line_fault, read_fault} <= 3'd0;
      @(posedge clk);
      expect_read(REG_ERROR, (error_of(first) & ~cleared) | error_of(second));
      put(REG_ERROR, '1);
      expect_read(REG_ERROR, 0);
    end
  endtask

  task automatic expect_irq(input logic [31:0] expected);
    @(posedge clk);
    expect_read(REG_IRQ, expected);
    expect_eq("irq_o", irq, expected[1]);
  endtask

  task automatic case_interrupt;
    asked <= 1'b0;
    put(REG_IRQ, 1);
    expect_irq(IRQ_ARMED);
    asked <= 1'b1;
    repeat (2) @(posedge clk);
    expect_irq(IRQ_PENDING);
    put(REG_IRQ, 0);                              // disarming does not take back what has fired
    expect_irq(IRQ_PENDING);
    put(REG_IRQ, 1);                              // still asked: fires again, once
    expect_irq(IRQ_PENDING);
    asked <= 1'b0;
    @(posedge clk);
    put(REG_IRQ, 1);
    expect_irq(IRQ_ARMED);
    put(REG_IRQ, 32'hFFFF_FFFE);
    expect_irq(0);
    asked <= 1'b1;
    repeat (5) @(posedge clk);
    expect_irq(0);
    asked <= 1'b0;
  endtask

  initial begin
    define_all;
    for (int k = 0; k < Count; k++) value[k] = reset_value[k];
    @(posedge rst_n);
    @(posedge clk);
    check_all;
    case_other_addresses;
    case_writes(600);
    active <= 1'b1;                               // a disable that is not yet complete
    repeat (2) @(posedge clk);
    value[REG_STATE/4] = 3;
    case_writes(300);
    case_doorbells;
    case_status;
    active <= 1'b0;
    @(posedge clk);
    value[REG_STATE/4] = 2;
    case_enable;
    case_faults;
    case_interrupt;
    finish_bench("mmio_regs_tb");
  end
endmodule
