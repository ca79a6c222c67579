// nic_poster against docs/nic.md. A memory takes address and data at random; a write takes effect word by word, in any order, until it is
// answered. A NIC looks at random, finds each entry whole and sealed, in order, and completes it late or at once. A slot is never written
// before its entry is complete, and the bell never runs ahead of what is published. At the end the ring stops while an entry waits for
// room, and an error answers a write: nothing more is posted.
module nic_poster_tb;
  import bench_pkg::*;
  import bench_reference_pkg::*;
  import desc_pkg::*;

  logic clk, rst_n;
  int   cycle;
  clock_reset #(.Limit(400000)) u_clock (.clk_o(clk), .rst_no(rst_n), .cycle_o(cycle));

  localparam logic [63:0] Base = 64'h0000_0012_3456_7000;
  localparam logic [31:0] Key  = 32'h4E49_D00B;
  localparam int          Most = 16;

  logic [31:0]  slots = 32'd4;
  logic [63:0]  completed = '0;
  logic         stopped = 1'b0;
  logic         entry_valid = 1'b0, entry_ready, posted, fault, idle;
  logic [447:0] entry = '0;
  logic         awvalid, awready = 1'b0, wvalid, wready = 1'b0, bvalid = 1'b0, bready;
  logic [63:0]  awaddr, wstrb;
  logic [511:0] wdata;
  logic [1:0]   bresp = 2'b00;

  nic_poster u_poster (
    .clk_i(clk), .rst_ni(rst_n), .ring_base_i(Base), .slots_i(slots), .key_i(Key), .completed_i(completed),
    .stopped_i(stopped),
    .entry_valid_i(entry_valid), .entry_ready_o(entry_ready), .entry_i(entry), .posted_o(posted), .fault_o(fault), .idle_o(idle),
    .m_axi_awvalid_o(awvalid), .m_axi_awready_i(awready), .m_axi_awaddr_o(awaddr),
    .m_axi_wvalid_o(wvalid), .m_axi_wready_i(wready), .m_axi_wdata_o(wdata), .m_axi_wstrb_o(wstrb),
    .m_axi_bvalid_i(bvalid), .m_axi_bready_o(bready), .m_axi_bresp_i(bresp)
  );

  // ---------------------------------------------------------------- memory: lines from Base on, the first two without slots
  logic [511:0] memory [0:Most+1];
  logic         has_address = 1'b0, has_data = 1'b0, ends_in_error = 1'b0;
  logic [63:0]  address, strobe;
  logic [511:0] data;
  logic [7:0]   pending;                 // words of 8 bytes that a write has not changed yet: a line is no unit
  int           line, busy, writes, word;

  task automatic clear_memory;
    for (int k = 0; k < Most + 2; k++) memory[k] = '0;
  endtask

  always @(posedge clk) if (!rst_n) begin
    bvalid <= 1'b0;
    writes  = 0;
    pending = '1;
    {has_address, has_data} = '0;
    clear_memory;
  end else begin
    awready <= chance(busy) && !has_address;
    wready  <= chance(busy) && !has_data;
    if (awvalid && awready) begin
      has_address = 1'b1;
      address     = awaddr;
      awready    <= 1'b0;
    end
    if (wvalid && wready) begin
      has_data = 1'b1;
      data     = wdata;
      strobe   = wstrb;
      wready  <= 1'b0;
    end
    if (bvalid && bready) bvalid <= 1'b0;
    else if (!bvalid && has_address && has_data && pending != '0) begin
      if (address < Base || address >= Base + 64 * (2 + slots) || address[5:0] != '0) fail($sformatf("a write at %h", address));
      line = (address - Base) / 64;
      word = below(8);
      if (line == 1) fail("a write into the NIC's line");
      if (line >= 2 && writes / 3 >= completed + slots) fail("W3: a slot is written before its entry is complete");
      if (!ends_in_error)
        for (int b = 8 * word; b < 8 * word + 8; b++) if (strobe[b]) memory[line][8*b +: 8] = data[8*b +: 8];
      pending[word] = 1'b0;
    end else if (!bvalid && has_address && has_data && chance(busy)) begin
      writes      = writes + 1;
      pending     = '1;
      bresp      <= ends_in_error ? 2'b10 : 2'b00;
      bvalid     <= 1'b1;
      has_address = 1'b0;
      has_data    = 1'b0;
    end
  end

  // ---------------------------------------------------------------- NIC
  logic [447:0] expected [0:63];
  int           asked;
  logic [63:0]  taken = '0;
  logic [511:0] slot;
  int           pace;                    // percent of its looks at which the NIC completes something

  always @(posedge clk) if (!rst_n) begin
    completed <= '0;
    taken      = '0;
  end else if (chance(50)) begin
    // What is published and not taken: more than the bell says, at most by the entry that is on its way.
    slot = memory[2 + (taken & (slots - 1))];
    if (memory[0][63:0] > 64'(asked)) fail("W5: the bell runs ahead");
    if (memory[0][63:0] > taken || (slot[479:448] == taken[31:0] && slot[511:480] != '0)) begin
      if (slot[479:448] !== taken[31:0] || slot[511:480] === '0) fail("W5: the bell was rung before the publication");
      if (slot !== ref_seal(slot, Key, taken[31:0])) fail($sformatf("W1: entry %0d is not whole: %h", taken, slot));
      if (slot[447:0] !== expected[taken[5:0]]) fail($sformatf("W6: entry %0d is another: %h", taken, slot));
      taken = taken + 64'd1;
    end
    if (completed < taken && chance(pace)) completed <= completed + 64'd1 + below(int'(taken - completed));
  end

  // ---------------------------------------------------------------- whoever finishes rollouts
  int posts;
  always @(posedge clk) if (posted) posts = posts + 1;

  task automatic post;
    for (int k = 0; k < 14; k++) entry[32*k +: 32] <= rnd();
    entry_valid <= 1'b1;
    @(posedge clk);
    while (!entry_ready) begin
      waits_for = "the bench waits for nic_poster to take an entry";
      @(posedge clk);
    end
    expected[asked] = entry;
    asked = asked + 1;
    entry_valid <= 1'b0;
    repeat (below(3)) @(posedge clk);
  endtask

  int rounds, count;
  initial begin
    rounds = drawn(12, 100);
    for (int round = 0; round < rounds; round++) begin
      busy      = (round % 3 == 0) ? 100 : (round % 3 == 1) ? 50 : 15;
      slots     = 32'd2 << below(4);
      pace      = (round % 2 == 0) ? 100 : 1;
      new_ring;
      count = between(3, 40);
      repeat (count) post;
      while (posts != count || taken != 64'(count)) begin
        waits_for = "the bench waits for the NIC to take the last entry";
        @(posedge clk);
      end
      if (memory[0][63:0] !== 64'(count)) fail($sformatf("W5: the bell says %0d of %0d", memory[0][63:0], count));
      if (writes != 3 * count) fail($sformatf("%0d writes for %0d entries", writes, count));
    end
    // A ring that stops with room, and one that stops while an entry waits for room, ends it.
    for (int full = 0; full < 2; full++) begin
      new_ring;
      slots = 32'd2;
      pace  = 0;
      repeat (full ? 2 : 1) post;
      while (posts != asked || taken != 64'(asked) || !idle) begin
        waits_for = "the bench waits for the NIC to take what is posted before the ring stops";
        @(posedge clk);
      end
      if (full != 0) begin
        post;
        repeat (20) @(posedge clk);
        if (fault) fail("a full ring is a fault");
        stopped <= 1'b1;
      end else begin
        stopped <= 1'b1;
        post;
      end
      ends_posting("W8: it goes on after the ring has stopped");
      if (writes != 3 * (asked - 1)) fail($sformatf("W8: %0d writes for %0d entries before the stop", writes, asked - 1));
      stopped <= 1'b0;
    end
    // An error ends it.
    new_ring;
    pace = 100;
    post;
    while (taken != 64'd1 || !idle) @(posedge clk);
    ends_in_error = 1'b1;
    post;
    ends_posting("it goes on after an error");
    finish_bench("nic_poster_tb");
  end

  task automatic ends_posting(string otherwise);
    while (!fault) begin
      waits_for = "the bench waits for the fault";
      @(posedge clk);
    end
    repeat (50) begin
      @(posedge clk);
      if (entry_ready || awvalid || wvalid || posted || !fault) fail(otherwise);
    end
  endtask

  task automatic new_ring;
    u_clock.reset(2);
    asked = 0;
    posts = 0;
  endtask
endmodule
