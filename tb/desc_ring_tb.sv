// desc_ring: which slots are read and when. Every published slot is asked for once, in order, in bursts that cross
// neither 4 KiB nor the ring's end, never beyond the tail (R1) nor the room downstream; doorbells that overrun or run
// backwards are refused; all of it across 2^32 (R13).
module desc_ring_tb;
  import bench_pkg::*;

  logic clk, rst_n;
  int   cycle;
  clock_reset #(.Limit(200000)) u_clock (.clk_o(clk), .rst_no(rst_n), .cycle_o(cycle));

  int          stall_request, stall_return;       // percent
  logic        clear = 1'b1, start = 1'b0;
  logic [31:0] start_index;
  logic [63:0] base;
  logic [16:0] size;
  logic        ready = 1'b0;
  logic        ringing = 1'b0;

  for (genvar g = 0; g < 3; g++) begin : gen_depth
    localparam int FetchDepth = (g == 0) ? 2 : (g == 1) ? 16 : 128;

    logic        doorbell = 1'b0, ok, request, received = 1'b0, taken = 1'b0, published;
    logic [31:0] doorbell_tail = '0, head, tail;
    logic [63:0] addr;
    logic [4:0]  slots;

    desc_ring #(.FetchDepth(FetchDepth)) u_ring (
      .clk_i(clk), .rst_ni(rst_n), .bus_rst_ni(rst_n), .clear_i(clear), .start_i(start), .start_index_i(start_index), .base_i(base),
      .size_i(size), .doorbell_i(doorbell), .doorbell_tail_i(doorbell_tail), .doorbell_ok_o(ok),
      .request_o(request), .request_addr_o(addr), .request_slots_o(slots), .request_ready_i(ready),
      .received_i(received), .taken_i(taken), .published_o(published), .head_o(head), .tail_o(tail)
    );

    // Running indices of the reference.
    logic [31:0] my_tail, my_head, my_next, my_taken, distance, allowed;
    int          asked = 0;

    task automatic expect_done;
      if (my_next != my_tail) fail($sformatf("R3: depth %0d, size %0d: %0d published slots were never asked for",
                                             FetchDepth, size, my_tail - my_next));
    endtask

    always @(posedge clk) if (!clear && !start) begin
      // What was shown in the last cycle.
      if (head !== my_head || tail !== my_tail || published !== (my_tail != my_head))
        fail($sformatf("head %h tail %h published %b, expected %h and %h", head, tail, published, my_head, my_tail));
      distance = doorbell_tail - my_head;
      allowed  = my_tail - my_head;
      if (doorbell) begin
        if (ok !== (distance <= size && distance >= allowed))
          fail($sformatf("doorbell %h at head %h tail %h: ok is %b", doorbell_tail, my_head, my_tail, ok));
        if (ok) my_tail = doorbell_tail;
      end
      if (request && ready) begin
        if (slots == 0 || slots > 16) fail($sformatf("a burst of %0d slots", slots));
        if (addr != base + 64 * (my_next % size)) fail($sformatf("burst at %h, expected slot %h", addr, my_next));
        if (my_next % size + slots > size) fail("R11: a burst over the ring's end");
        if (addr[11:6] + slots > 64) fail("a burst over 4 KiB");
        distance = my_tail - my_next;
        if (slots > distance) fail($sformatf("R1: %0d slots asked for, %0d published", slots, distance));
        my_next = my_next + slots;
        asked = asked + slots;
        if (my_next - my_taken > FetchDepth) fail($sformatf("%0d slots for a store of %0d", my_next - my_taken, FetchDepth));
      end
      if (received) my_head = my_head + 1;
      if (taken) my_taken = my_taken + 1;

      // What to show in the next one.
      distance = my_next - my_head;
      received <= distance != 0 && !chance(stall_return);
      distance = my_head - my_taken;
      taken    <= distance != 0 && !chance(stall_return);
      doorbell <= ringing && chance(30);
      case (below(6))
        0: doorbell_tail <= my_head + size + 1 + below(5);        // overruns, unless the head has moved
        1: doorbell_tail <= my_tail - 1 - below(3);               // backwards
        default: doorbell_tail <= my_tail + below(int'(size) + 1 - int'(my_tail - my_head));
      endcase
    end else begin
      my_tail = start_index; my_head = start_index; my_next = start_index; my_taken = start_index;
      received <= 1'b0;
      taken    <= 1'b0;
      doorbell <= 1'b0;
    end
  end

  always @(posedge clk) ready <= !chance(stall_request);

  initial begin
    @(posedge rst_n);
    for (int k = 0; k < 24; k++) begin
      stall_request = k[0] ? 60 : 0;
      stall_return  = k[1] ? 60 : 0;
      size          = 17'd1 << ((k < 20) ? between(1, 8) : 16);
      base          = 64'h1_0000_0000 + 64 * below(200);
      start_index   = k[2] ? -between(1, 200) : rnd();
      start <= 1'b1;
      @(posedge clk);
      start <= 1'b0;
      clear <= 1'b0;
      ringing = 1'b1;
      repeat (300) @(posedge clk);
      ringing = 1'b0;
      repeat ((size < 300) ? 6 * size + 100 : 100) @(posedge clk);
      if (size < 300) begin
        gen_depth[0].expect_done;
        gen_depth[1].expect_done;
        gen_depth[2].expect_done;
      end
      // All requests that were shown are taken before the next start, as in a disable.
      clear <= 1'b1;
      stall_request = 0;
      repeat (4) @(posedge clk);
    end
    if (gen_depth[0].asked < 500 || gen_depth[2].asked < 500) fail("too few slots were asked for");
    finish_bench("desc_ring_tb");
  end
endmodule
