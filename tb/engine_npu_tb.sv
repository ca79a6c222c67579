// engine_npu before a descriptor's first read (R5): it waits for the token lines that its queue pair had sent when it began, those in its
// worker's buffer included, and for no others. Two workers begin descriptors of two queue pairs at random, while lines of both go and are
// answered, or are not for long. Each HwSequence is read with an error, which ends its descriptor: what a sound one does, npu_top_tb and the
// conformance cases say.
module engine_npu_tb;
  import bench_pkg::*;
  import desc_pkg::*;
  import core_pkg::*;
  import npu_pkg::*;
  import npu_unit_pkg::*;

  localparam int Queues  = 2;
  localparam int Workers = 2;

  logic clk, rst_n;
  int   cycle;
  clock_reset #(.Limit(200_000)) u_clock (.clk_o(clk), .rst_no(rst_n), .cycle_o(cycle));

  logic               start = 1'b0, load = 1'b0, line = 1'b0, line_ack = 1'b0, beat = 1'b0, burst_valid;
  logic [3:0]         start_queue = '0, line_queue = '0, line_ack_queue = '0, beat_owner = '0, burst_owner;
  queue_config_t      start_config = '0;
  model_config_t      start_models = '0;
  logic [4:0]         load_place = '0;
  work_t              work = '0;
  echo_t              echo = '0;
  logic [Workers-1:0] begins = '0, places = '0, taken = '0, items = '0, mine, valid, fault, memory;
  logic [Queues-1:0]  ending = '0;
  logic [63:0]        burst_addr;
  image_t             image = '0;

  engine_npu #(.Queues(Queues), .Workers(Workers), .Gangs(1), .Contexts(1)) u_dut (
    .clk_i(clk), .rst_ni(rst_n), .bus_rst_ni(rst_n), .start_i(start), .start_queue_i(start_queue), .start_config_i(start_config),
    .start_models_i(start_models), .ending_i(ending), .prepare_i(1'b0), .seed_i(32'd0), .kv_offset_i(64'd0), .arena_i(16'd0), .scores_i(1'b0), .prepared_o(),
    .load_i(load), .load_place_i(load_place), .load_work_i(work), .load_echo_i(echo), .load_prepared_i('0),
    .begin_i(begins), .begin_place_i(places), .step_i(2'b00), .begins_o(), .mine_o(mine), .token_valid_o(valid), .token_o(), .eos_o(), .logp_o(),
    .fault_o(fault), .fault_memory_o(memory), .token_take_i(taken),
    .items_i(items), .line_i(line), .line_queue_i(line_queue), .line_ack_i(line_ack), .line_ack_queue_i(line_ack_queue),
    .image_owner_o(), .image_slot_o(), .image_i(image),
    .burst_valid_o(burst_valid), .burst_addr_o(burst_addr), .burst_len_o(), .burst_owner_o(burst_owner), .burst_ready_i(1'b1),
    .beat_i(beat), .beat_owner_i(beat_owner), .data_i(512'd0), .fault_i(beat), .reads_idle_o(), .read_refused_i(16'd0), .write_refused_i(16'd0),
    .store_valid_o(), .store_urgent_o(), .store_owner_o(), .store_addr_o(), .store_data_o(), .store_strobe_o(), .store_ready_i(1'b1),
    .ack_i(1'b0), .ack_fault_i(1'b0), .read_fault_o(), .write_fault_o(), .fault_queue_o()
  );

  // Of each queue pair, lines that were sent and answered. Of each worker: what it runs; which lines it waits for, once its buffer is empty;
  // whether its HwSequence was read; since when nothing keeps it.
  int   sent [0:Queues-1], answered [0:Queues-1], pair_of [0:Workers-1], mark [0:Workers-1], free_for [0:Workers-1];
  logic runs [0:Workers-1], marked [0:Workers-1], read [0:Workers-1];
  int   ended = 0, waited = 0, beside = 0, w, q, from, reader, calm = 50;
  initial begin
    for (int k = 0; k < Queues; k++) begin sent[k] = 0; answered[k] = 0; end
    for (int k = 0; k < Workers; k++) begin runs[k] = 1'b0; marked[k] = 1'b0; read[k] = 1'b0; mark[k] = 0; pair_of[k] = 0; free_for[k] = 0; end
  end

  function automatic logic may_read(input int k);
    may_read = runs[k] && !read[k] && marked[k] && answered[pair_of[k]] >= mark[k];
  endfunction

  always @(posedge clk) if (rst_n) begin
    // The KV region of queue pair q begins at line 256 * (q + 1), and the HwSequence of each of its descriptors there.
    if (burst_valid) begin
      from   = int'(burst_addr >> 14) - 1;
      reader = int'(u_dut.worker_q);
      if (from < 0 || from >= Queues || !may_read(reader) || pair_of[reader] != from)
        fail($sformatf("R5: a HwSequence of queue pair %0d is read before the lines of earlier descriptors are answered", from));
      read[reader] = 1'b1;
      if (mark[reader] != 0 && sent[from] != answered[from]) beside = beside + 1;
    end
    beat       <= burst_valid;
    beat_owner <= burst_owner;
    for (int k = 0; k < Workers; k++) begin
      free_for[k] = may_read(k) ? free_for[k] + 1 : 0;
      if (free_for[k] > 60) fail($sformatf("R28: worker %0d waits for no line of its own", k));
      if (taken[k]) begin
        runs[k] = 1'b0;
        ended   = ended + 1;
        if (!fault[k] || !memory[k]) fail("R10: a HwSequence is read with an error, and its descriptor ends without");
      end
    end
  end

  task automatic tick;
    @(negedge clk);
    {start, load, line, line_ack} = '0;
    begins = '0;
    taken  = '0;
  endtask

  initial begin
    @(posedge rst_n);
    for (int k = 0; k < Queues; k++) begin
      tick;
      start       = 1'b1;
      start_queue = 4'(k);
      start_config.owner   = 4'(k);
      start_models.kv_base = 64'(k + 1) << 14;
      start_models.kv_size = 64'd4096;
    end
    for (int round = 0; round < drawn(6000, 60000); round++) begin
      tick;
      if (round % 500 == 0) calm = between(5, 90);
      // The worker's buffer empties; a line goes, and another one is answered.
      for (int k = 0; k < Workers; k++) if (items[k] && chance(calm)) items[k] = 1'b0;
      q = below(Queues);
      if (chance(30) && sent[q] - answered[q] < 100) begin
        line       = 1'b1;
        line_queue = 4'(q);
      end
      q = below(Queues);
      if (chance(calm) && sent[q] != answered[q]) begin
        line_ack       = 1'b1;
        line_ack_queue = 4'(q);
      end
      // What begins was loaded before. Its worker has, or has not, ends of earlier ones in its buffer.
      w = below(Workers);
      if (valid[w] && runs[w] && chance(50)) taken[w] = 1'b1;
      else if (!runs[w] && !mine[w] || (!runs[w] && chance(20))) begin
        q               = below(Queues);
        load            = 1'b1;
        places[w]       = 1'(below(2));
        load_place      = {4'(w), places[w]};
        work.engine     = 1'b1;
        work.adds_tokens = 1'b1;
        work.pair       = 4'(q);
        account;
        tick;
        begins[w]  = 1'b1;
        items[w]   = chance(50);
        runs[w]    = 1'b1;
        read[w]    = 1'b0;
        marked[w]  = 1'b0;
        pair_of[w] = q;
      end
      account;
    end
    if (ended < 100 || waited < 50 || beside < 20) fail($sformatf("not tried: %0d descriptors, %0d waited, %0d read beside later lines", ended, waited, beside));
    finish_bench("engine_npu_tb");
  end

  // Before the edge that ends the cycle: lines of this cycle count from the next one on.
  task automatic account;
    #1;
    for (int k = 0; k < Workers; k++) if (runs[k] && !begins[k] && !marked[k] && !items[k]) begin
      marked[k] = 1'b1;
      mark[k]   = sent[pair_of[k]];
      if (mark[k] != answered[pair_of[k]]) waited = waited + 1;
    end
    if (line)     sent[line_queue]         = sent[line_queue] + 1;
    if (line_ack) answered[line_ack_queue] = answered[line_ack_queue] + 1;
  endtask
endmodule
