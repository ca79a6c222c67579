// STATE.IDLE of a queue pair that dies (R24) while a doorbell is on its way: device_ctrl and desc_ring. What was accepted is published, and
// never completes: IDLE is 0, however close the death. Without a doorbell it is 1.
module death_idle_tb;
  import bench_pkg::*;
  import core_pkg::*;

  logic clk, rst_n;
  int   cycle;
  clock_reset #(.Limit(5000)) u_clock (.clk_o(clk), .rst_no(rst_n), .cycle_o(cycle));

  logic          start = 1'b0, stop = 1'b0, die = 1'b0, bell = 1'b0, ok;
  logic [0:0]    on, enabled, dead, idle, active, published, left;
  logic [31:0]   tail = '0;
  queue_config_t cfg = '0;

  desc_ring #(.Queues(1), .FetchDepth(16)) u_ring (
    .clk_i(clk), .rst_ni(rst_n), .bus_rst_ni(rst_n), .start_i(start), .start_queue_i('0), .start_config_i(cfg), .on_i(on), .enabled_i(enabled),
    .doorbell_i(bell), .doorbell_queue_i('0), .doorbell_tail_i(tail), .doorbell_ok_o(ok), .abort_i(1'b0), .abort_tail_o(), .request_o(),
    .request_addr_o(), .request_slots_o(), .request_queue_o(), .request_owner_o(), .request_ready_i(1'b0), .received_i(1'b0), .received_queue_i('0),
    .received_index_o(), .taken_i(1'b0), .taken_queue_i('0), .published_o(published), .left_o(left), .state_queue_i('0), .head_o(), .tail_o(),
    .posted_i(1'b0), .posted_queue_i('0), .posted_head_o()
  );

  device_ctrl #(.Queues(1)) u_ctrl (
    .clk_i(clk), .rst_ni(rst_n), .start_i(start), .stop_i(stop), .drain_i(1'b0), .done_i(~published), .busy_i(1'b0), .die_i(die),
    .idle_i(~published & ~left), .bus_idle_i(1'b1), .on_o(on), .enabled_o(enabled), .dead_o(dead), .idle_o(idle), .ending_o(), .draining_o(),
    .active_o(active), .inner_rst_no()
  );

  logic took;
  initial begin
    cfg.sq_size = 16;
    cfg.weight  = 1;
    @(posedge rst_n);
    repeat (4) @(posedge clk);
    for (int k = -2; k < 6; k++) begin     // the doorbell comes so many cycles before the death
      #1 start = 1'b1;
      @(posedge clk);
      #1 start = 1'b0;
      repeat (10) @(posedge clk);
      took = 1'b0;
      for (int c = 0; c < 10; c++) begin
        #1 bell = c == 6 - k;
        tail = 32'd5;
        die  = c == 6;
        #1 if (bell) took = ok;
        @(posedge clk);
      end
      #1 {bell, die} = 2'b00;
      repeat (10) @(posedge clk);
      if (!dead) fail("R24: it is not dead");
      if (took !== (k >= 0)) fail($sformatf("R24: a doorbell %0d cycles before a death is accepted: %b", k, took));
      if (idle === took) fail($sformatf("R24: a doorbell %0d cycles before a death is accepted: %b, and IDLE is %b", k, took, idle));
      #1 stop = 1'b1;
      @(posedge clk);
      #1 stop = 1'b0;
      repeat (5) @(posedge clk);
      if (active) fail("R12: it stays active");
    end
    finish_bench("death_idle_tb");
  end
endmodule
