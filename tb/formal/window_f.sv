// Every address under which descriptors are read lies in a window of its queue pair's function (R11), and carries that function's number: desc_ring with two
// queue pairs of different functions, rings of 2 to 16 slots, at every line of 16 KiB, from indices around 2^32 on. A burst stays within the ring, so within the window that has it,
// and within 4 KiB.
//
// Assumed: a queue pair starts with a ring of a power of two of slots, at a line, that lies in a window of its function (mmio_regs refuses any other; mmio_regs_tb,
// and every test on the verilated device watches the windows). A slot arrives only if it was asked for (AXI; asserted in desc_ring), and leaves once it has arrived. Behind
// a start or a doorbell comes a cycle without a doorbell (axil_slave has a response between two writes: axil_f). Each queue pair starts once.
module window_f import core_pkg::*; (
  input logic        clk_i,
  input logic        start_i, start_queue_i, doorbell_i, doorbell_queue_i, request_ready_i, received_i, received_queue_i, taken_i, taken_queue_i,
  input logic [1:0]  stop_i,
  input logic [7:0]  base_i,                     // of the ring that starts, in slots, …
  input logic [1:0]  size_i,                     // … its size, 2 << size, …
  input logic [3:0]  index_i,                    // … and its first index
  input logic [7:0]  low_i,                      // the window, in lines: its first line, and its last
  input logic [7:0]  high_i,
  input logic [4:0]  tail_i                      // behind index 2^32 - 16
);
  logic run = 1'b0;
  always_ff @(posedge clk_i) run <= 1'b1;

  queue_config_t start_config;
  logic [8:0]    size;
  assign size = 9'd2 << size_i;
  always_comb begin
    start_config          = '0;
    start_config.sq_base  = {50'h2_0000_0000_0001, base_i, 6'd0};
    start_config.sq_size  = 17'(size);
    start_config.sq_start = {28'hFFF_FFFF, index_i};
    start_config.owner    = 4'd5 + 4'(start_queue_i);
  end

  logic [1:0]  on = '0, started = '0;
  logic        doorbell_ok, request;
  logic [63:0] addr;
  logic [4:0]  slots;
  logic [3:0]  queue, owner;

  desc_ring #(.Queues(2), .FetchDepth(16)) u_ring (
    .clk_i, .rst_ni(run), .bus_rst_ni(run), .start_i, .start_queue_i(4'(start_queue_i)), .start_config_i(start_config), .on_i(on), .enabled_i(on),
    .doorbell_i, .doorbell_queue_i(4'(doorbell_queue_i)), .doorbell_tail_i(32'hFFFF_FFF0 + 32'(tail_i)), .doorbell_ok_o(doorbell_ok), .abort_i(1'b0),
    .request_o(request), .request_addr_o(addr), .request_slots_o(slots), .request_queue_o(queue), .request_owner_o(owner), .request_ready_i,
    .received_i, .received_queue_i(4'(received_queue_i)), .taken_i, .taken_queue_i(4'(taken_queue_i)), .state_queue_i('0), .posted_i(1'b0), .posted_queue_i('0)
  );

  // ---------------------------------------------------------------- what is kept of the past
  logic [1:0][7:0]  base, low, high;
  logic [1:0][8:0]  sizes;
  logic [1:0][4:0]  asked = '0, held = '0;       // slots on their way, and that are here
  logic             rang = 1'b0;
  logic [1:0]       bursts = '0;                 // of queue pair 1
  always_ff @(posedge clk_i) begin
    on   <= (on & ~stop_i) | (start_i ? 2'b01 << start_queue_i : 2'b00);
    rang <= doorbell_i || start_i;
    if (start_i) begin
      started[start_queue_i] <= 1'b1;
      base[start_queue_i]    <= base_i;
      low[start_queue_i]     <= low_i;
      high[start_queue_i]    <= high_i;
      sizes[start_queue_i]   <= size;
    end
    for (int q = 0; q < 2; q++) begin
      asked[q] <= asked[q] + ((request && request_ready_i && queue == 4'(q)) ? slots : '0) - 5'(received_i && received_queue_i == 1'(q));
      held[q]  <= held[q] + 5'(received_i && received_queue_i == 1'(q)) - 5'(taken_i && taken_queue_i == 1'(q));
    end
    if (request && request_ready_i && queue == 4'd1) begin
      if (bursts != '1) bursts <= bursts + 1'b1;
    end
  end

  // ---------------------------------------------------------------- what is assumed
  always_comb begin
    if (!run) assume (!start_i && !doorbell_i && !received_i && !taken_i && !request_ready_i);
    if (start_i) assume (!started[start_queue_i] && low_i <= base_i && {1'b0, base_i} + size <= {1'b0, high_i} + 9'd1);
    if (rang || start_i) assume (!doorbell_i);
    if (received_i) assume (asked[received_queue_i] != '0);
    if (taken_i) assume (held[taken_queue_i] != '0);
  end

  // ---------------------------------------------------------------- what is asserted
  logic [8:0]  behind;                           // the line behind the burst
  assign behind = {1'b0, addr[13:6]} + {4'd0, slots};
`ifndef REACH
  always_comb if (run && request) begin
    assert (queue < 4'd2 && owner == 4'd5 + queue && started[queue[0]]);
    assert (slots != '0 && slots <= 5'd16 && addr[5:0] == '0);
    // In the window, and in the ring.
    assert (addr[63:14] == 50'h2_0000_0000_0001);
    assert (addr[13:6] >= low[queue[0]] && behind <= {1'b0, high[queue[0]]} + 9'd1);
    assert (addr[13:6] >= base[queue[0]] && behind <= {1'b0, base[queue[0]]} + sizes[queue[0]]);
    assert ({1'b0, addr[11:6]} + {2'd0, slots} <= 7'd64);
  end
`endif

  // What must be reachable, for the proof to say anything.
`ifdef REACH
  logic [4:0] steps = '0;
  always_ff @(posedge clk_i) if (steps != '1) steps <= steps + 1'b1;
  always_comb case (`REACH)
    0:       assert (steps != 5'(`DEPTH - 1));
    1:       assert (!(request && queue == 4'd1 && bursts != '0 && addr[13:6] == base[1]));
    default: assert (!(request && queue == 4'd0 && bursts != '0 && addr[13:6] == base[0] + 8'd1 && behind[5:0] == '0 && slots != 5'd1));
  endcase
`endif
endmodule
