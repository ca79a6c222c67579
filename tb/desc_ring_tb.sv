// desc_ring: which slots are read and when. Every published slot of every queue pair is asked for once, in order, in bursts
// that cross neither 4 KiB nor the ring's end, never beyond the tail (R1) nor the room that the queue pair has downstream;
// doorbells that overrun or run backwards are refused; all of it across 2^32 (R13). A queue pair that is off asks for
// nothing, and one that is full holds up no other.
module desc_ring_tb;
  import bench_pkg::*;
  import core_pkg::*;

  logic clk, rst_n;
  int   cycle;
  clock_reset #(.Limit(200000)) u_clock (.clk_o(clk), .rst_no(rst_n), .cycle_o(cycle));

  int          stall_request, stall_return;       // percent
  logic        start_all = 1'b0;
  logic        ready = 1'b0;
  logic        ringing = 1'b0, narrow = 1'b1;
  int          wrap;

  desc_ring_run #(.Queues(1), .FetchDepth(2))   u_run_2   (.clk_i(clk), .rst_ni(rst_n));
  desc_ring_run #(.Queues(1), .FetchDepth(128)) u_run_128 (.clk_i(clk), .rst_ni(rst_n));
  desc_ring_run #(.Queues(2), .FetchDepth(16))  u_run_q2  (.clk_i(clk), .rst_ni(rst_n));
  desc_ring_run #(.Queues(5), .FetchDepth(128)) u_run_q5  (.clk_i(clk), .rst_ni(rst_n));

  always @(posedge clk) ready <= !chance(stall_request);

  initial begin
    @(posedge rst_n);
    for (int k = 0; k < 24; k++) begin
      stall_request = k[0] ? 60 : 0;
      stall_return  = k[1] ? 60 : 0;
      narrow         = k < 20;
      wrap          = k[2];
      start_all = 1'b1;
      repeat (8) @(posedge clk);
      start_all = 1'b0;
      ringing   = 1'b1;
      repeat (300) @(posedge clk);
      ringing = 1'b0;
      // Now and then all are turned off in the middle.
      if (k % 4 != 3) repeat (narrow ? 1600 : 100) @(posedge clk);
      if (narrow && k % 4 != 3) begin
        u_run_2.expect_done;
        u_run_128.expect_done;
        u_run_q2.expect_done;
        u_run_q5.expect_done;
      end
      u_run_2.stop;
      u_run_128.stop;
      u_run_q2.stop;
      u_run_q5.stop;
      repeat (20) @(posedge clk);
      // All requests that were shown are taken before the next start, as in a disable.
      stall_request = 0;
      repeat (4) @(posedge clk);
    end
    if (u_run_2.asked < 500 || u_run_128.asked < 500 || u_run_q5.asked < 2000) fail("too few slots were asked for");
    finish_bench("desc_ring_tb");
  end
endmodule

module desc_ring_run #(
  parameter int Queues     = 1,
  parameter int FetchDepth = 128
) (
  input logic clk_i,
  input logic rst_ni
);
  import bench_pkg::*;
  import core_pkg::*;

  localparam int Slots  = (Queues == 1) ? 1 : 1 << $clog2(Queues);
  localparam int Places = FetchDepth / Slots;

  logic              start = 1'b0;
  logic [3:0]        start_queue = '0, bell_queue = '0, received_queue = '0, taken_queue = '0, request_queue, request_owner;
  queue_config_t     start_config = '0;
  logic [Queues-1:0] on = '0, published;
  logic              doorbell = 1'b0, ok, request, received = 1'b0, taken = 1'b0;
  logic              abort = 1'b0;
  logic [31:0]       abort_tail, doorbell_tail = '0, head, tail, received_index, posted_head;
  logic [3:0]        state_queue = '0;
  logic [63:0]       addr;
  logic [4:0]        slots;

  desc_ring #(.Queues(Queues), .FetchDepth(FetchDepth)) u_ring (
    .clk_i, .rst_ni, .bus_rst_ni(rst_ni), .start_i(start), .start_queue_i(start_queue), .start_config_i(start_config),
    .on_i(on), .enabled_i(on), .doorbell_i(doorbell), .doorbell_queue_i(bell_queue), .doorbell_tail_i(doorbell_tail), .doorbell_ok_o(ok), .abort_i(abort), .abort_tail_o(abort_tail),
    .request_o(request), .request_addr_o(addr), .request_slots_o(slots), .request_queue_o(request_queue),
    .request_owner_o(request_owner), .request_ready_i(desc_ring_tb.ready), .received_i(received),
    .received_queue_i(received_queue), .received_index_o(received_index), .taken_i(taken), .taken_queue_i(taken_queue),
    .published_o(published), .state_queue_i(state_queue), .head_o(head), .tail_o(tail), .posted_i(1'b1),
    .posted_queue_i(state_queue), .posted_head_o(posted_head)
  );

  // Running indices of the reference, by queue pair.
  logic [31:0] my_tail [0:Queues-1], my_head [0:Queues-1], my_next [0:Queues-1], my_taken [0:Queues-1];
  logic [31:0] seen_tail [0:Queues-1];  // as of a cycle ago: the device adds a doorbell in the cycle behind it
  logic [63:0] base [0:Queues-1];
  logic [16:0] size [0:Queues-1];
  logic [31:0] distance, allowed;
  int          asked = 0, q;
  int          waited [0:Queues-1];
  logic        idle_next;
  int          order [0:4095];          // queue pairs of the slots in flight: reads return in order
  int          order_head = 0, order_tail = 0;

  task automatic expect_done;
    for (int k = 0; k < Queues; k++)
      if (my_next[k] != my_tail[k]) fail($sformatf("R3: %0d queue pairs, depth %0d, queue pair %0d, size %0d: %0d published slots were never asked for",
                                                   Queues, FetchDepth, k, size[k], my_tail[k] - my_next[k]));
  endtask

  task automatic stop;
    on <= '0;
  endtask

  int   next_start = 0, off_for = 0;
  logic held = 1'b0;                    // a request was shown in the last cycle, and not taken
  always @(posedge clk_i) begin
    off_for = (on == '0) ? off_for + 1 : 0;
    start <= 1'b0;
    if (desc_ring_tb.start_all) begin
      if (next_start < Queues) begin
        q = next_start;
        size[q] = 17'd1 << (desc_ring_tb.narrow ? between(1, 7) : 16);
        base[q] = 64'h1_0000_0000 + 64'h100_0000 * q + 64 * below(200);
        my_tail[q]  = desc_ring_tb.wrap ? -between(1, 200) : rnd();
        seen_tail[q] = my_tail[q];
        my_head[q]  = my_tail[q];
        my_next[q]  = my_tail[q];
        my_taken[q] = my_tail[q];
        waited[q]   = 0;
        start       <= 1'b1;
        start_queue <= q;
        start_config          <= {16{rnd()}};
        start_config.sq_base  <= base[q];
        start_config.sq_size  <= size[q];
        start_config.sq_start <= my_tail[q];
        start_config.owner    <= 4'(15 - q);
        next_start = next_start + 1;
        order_head = order_tail;
      end
      received <= 1'b0;
      taken    <= 1'b0;
      doorbell <= 1'b0;
      abort    <= 1'b0;
      if (start) on[start_queue] <= 1'b1;
    end else if (on == '0) begin
      next_start = 0;
      received <= 1'b0;
      taken    <= 1'b0;
      doorbell <= 1'b0;
      abort    <= 1'b0;
      // What was shown stays until it is taken, and nothing follows.
      if (off_for > 1 && request && !held) fail("R12: slots of a queue pair that is off are asked for");
      if (held && !request) fail("a request that was shown is taken back");
    end else begin
      // What was shown in the last cycle.
      q = int'(state_queue);
      if (head !== my_head[q] || tail !== seen_tail[q] || published[q] !== (seen_tail[q] != my_head[q]) || posted_head !== my_head[q])
        fail($sformatf("queue pair %0d: head %h tail %h published %b, expected %h and %h", q, head, tail, published[q],
                       my_head[q], seen_tail[q]));
      for (int k = 0; k < Queues; k++) seen_tail[k] = my_tail[k];
      q        = int'(bell_queue);
      distance = doorbell_tail - my_head[q];
      allowed  = my_tail[q] - my_head[q];
      if (abort) expect_eq("R8: what is published as ABORT is written", abort_tail, my_tail[q]);
      if (doorbell) begin
        if (ok !== (distance <= size[q] && distance >= allowed))
          fail($sformatf("doorbell %h at head %h tail %h: ok is %b", doorbell_tail, my_head[q], my_tail[q], ok));
        if (ok) my_tail[q] = doorbell_tail;
      end
      // Nobody waits while there is room on the bus and for it.
      for (int k = 0; k < Queues; k++) begin
        waited[k] = (request || my_next[k] == my_tail[k] || my_next[k] != my_taken[k]) ? 0 : waited[k] + 1;
        // A look at each of the others may find that it waits for room.
        if (waited[k] > 2 + Queues) fail($sformatf("queue pair %0d waits for nothing", k));
      end
      if (request && desc_ring_tb.ready) begin
        q = int'(request_queue);
        if (slots == 0 || slots > 16) fail($sformatf("a burst of %0d slots", slots));
        if (addr != base[q] + 64 * (my_next[q] % size[q])) fail($sformatf("burst at %h, expected slot %h", addr, my_next[q]));
        if (my_next[q] % size[q] + slots > size[q]) fail("R11: a burst over the ring's end");
        if (addr[11:6] + slots > 64) fail("a burst over 4 KiB");
        expect_eq("function of a burst", request_owner, 15 - q);
        distance = my_tail[q] - my_next[q];
        if (slots > distance) fail($sformatf("R1: %0d slots asked for, %0d published", slots, distance));
        my_next[q] = my_next[q] + slots;
        asked = asked + slots;
        if (my_next[q] - my_taken[q] > Places)
          fail($sformatf("%0d slots of a queue pair for %0d places", my_next[q] - my_taken[q], Places));
        for (int k = 0; k < int'(slots); k++) begin
          order[order_tail % 4096] = q;
          order_tail = order_tail + 1;
        end
      end
      if (received) begin
        expect_eq("index of a slot", received_index, my_head[received_queue]);
        my_head[received_queue] = my_head[received_queue] + 1;
      end
      if (taken) my_taken[taken_queue] = my_taken[taken_queue] + 1;

      // What to show in the next one.
      idle_next = order_head == order_tail || chance(desc_ring_tb.stall_return);
      received <= !idle_next;
      if (!idle_next) begin
        received_queue <= order[order_head % 4096];
        order_head = order_head + 1;
      end
      q = below(Queues);
      for (int k = 0; k < Queues && my_head[q] == my_taken[q]; k++) q = (q + 1) % Queues;
      distance    = my_head[q] - my_taken[q];
      taken       <= distance != 0 && !chance(desc_ring_tb.stall_return);
      taken_queue <= q;
      q = below(Queues);
      bell_queue <= q;
      // Behind a doorbell comes a cycle without another and without ABORT.
      abort      <= !doorbell && chance(30);
      doorbell   <= !doorbell && desc_ring_tb.ringing && chance(45);
      case (below(6))
        0: doorbell_tail <= my_head[q] + size[q] + 1 + below(5);        // overruns, unless the head has moved
        1: doorbell_tail <= my_tail[q] - 1 - below(3);               // backwards
        default: doorbell_tail <= my_tail[q] + below(int'(size[q]) + 1 - int'(my_tail[q] - my_head[q]));
      endcase
      state_queue <= below(Queues);
    end
    held = request && !desc_ring_tb.ready;
  end
endmodule
