// Performance counters, 64 bits each: of the device and of each worker, cleared when a queue pair is enabled while none is active,
// counting while one is; and of each queue pair, cleared when it is enabled. A read gives one half as it is: whoever wants both reads the high
// one before and behind the low one.
//
// Those of the queue pairs lie in memories, each with one place to count in a cycle: tokens are counted line by line, as the
// lines leave. With one queue pair they are those of the device.
module perf_counters
  import desc_pkg::*;
  import core_pkg::*;
#(
  parameter int Queues  = 1,
  parameter int Workers = 4
) (
  input  logic               clk_i,
  input  logic               rst_ni,
  input  logic               start_i,          // a queue pair starts, with this configuration
  /* verilator lint_off UNUSEDSIGNAL */        // numbers of queue pairs have 4 bits, whatever was built
  input  logic [3:0]         start_queue_i,
  input  queue_config_t      start_config_i,
  input  logic               active_i,         // some queue pair is

  input  logic [Workers-1:0] free_i,           // per worker and cycle from here …
  input  logic [Workers-1:0] token_i,
  input  logic [Workers-1:0] wait_i,
  input  logic [Workers-1:0] run_i,
  input  logic [Workers-1:0] ready_i,          // … to here: the result buffer has room
  input  logic               received_i,       // a slot, of this queue pair
  input  logic [3:0]         received_queue_i,
  input  logic [1:0]         visible_i,        // completions, likewise
  input  logic [3:0]         visible_queue_i,
  input  logic               line_i,           // a token line, likewise, and which of its words
  input  logic [3:0]         line_queue_i,
  input  logic [3:0]         line_worker_i,
  input  logic [3:0]         line_first_i,
  input  logic [3:0]         line_last_i,
  input  logic [Queues-1:0]  stall_cq_i,
  input  logic [Queues-1:0]  published_i,      // published descriptors exist that have not arrived
  input  logic [Queues-1:0]  arrived_i,        // some that arrived waits
  input  logic               stall_order_i,
  input  logic               stall_fence_i,
  input  logic               read_beat_i,
  input  logic               write_beat_i,
  input  logic               prefix_i,
  input  logic               error_i,          // a completion with status ERROR, of this queue pair
  input  logic [3:0]         error_queue_i,
  /* verilator lint_on UNUSEDSIGNAL */

  input  logic               read_i,
  input  logic [17:0]        read_addr_i,
  output logic               read_hit_o,
  output logic [31:0]        read_data_o
);
  if (Workers < 1 || Workers > MAX_WORKERS) begin : gen_bad_workers
    localparam bit WorkersMustBe1To16 = {-1{1'b1}};   // ends the elaboration
  end

  logic [63:0] cycles_q, tokens_q, busy_q, idle_q, wait_q, stall_write_q, descriptors_q, completions_q, stall_cq_q,
               stall_fetch_q, stall_order_q, stall_fence_q, read_beats_q, write_beats_q, prefixes_q, errors_q;
  logic [63:0] read_value, own_value;
  logic        stall_fetch;
  logic               of_device, of_queue, of_worker;   // where a read goes
  logic [Workers-1:0] busy, frees, stalls;
  logic               clears;
  // Workers in use: those that the queue pairs may use which were enabled since the counters were cleared.
  logic [Workers-1:0] in_use_q;

  assign clears      = start_i && !active_i;
  assign busy        = ~free_i & in_use_q;
  assign frees       = free_i & in_use_q;
  assign stalls      = run_i & ~ready_i;
  assign stall_fetch = (published_i & ~arrived_i) != '0 && frees != '0;

  // Counts the workers only in a cycle that has some to count.
  function automatic logic [63:0] plus(input logic [63:0] value, input logic [Workers-1:0] workers);
    plus = value + 64'(count_ones(MAX_WORKERS'(workers)));
  endfunction

  always_ff @(posedge clk_i) begin
    if (!rst_ni)      in_use_q <= '0;
    else if (start_i) in_use_q <= (clears ? '0 : in_use_q) | start_config_i.workers[Workers-1:0];
  end

  always_ff @(posedge clk_i) begin
    if (active_i) begin
      cycles_q <= cycles_q + 64'd1;
      if (token_i != '0)   tokens_q      <= plus(tokens_q, token_i);
      if (busy != '0)      busy_q        <= plus(busy_q, busy);
      if (frees != '0)     idle_q        <= plus(idle_q, frees);
      if (wait_i != '0)    wait_q        <= plus(wait_q, wait_i);
      if (stalls != '0)    stall_write_q <= plus(stall_write_q, stalls);
      if (received_i)      descriptors_q <= descriptors_q + 64'd1;
      if (visible_i != '0) completions_q <= completions_q + 64'(visible_i);
      if (stall_cq_i != '0) stall_cq_q   <= stall_cq_q + 64'd1;
      if (stall_fetch)     stall_fetch_q <= stall_fetch_q + 64'd1;
      if (stall_order_i)   stall_order_q <= stall_order_q + 64'd1;
      if (stall_fence_i)   stall_fence_q <= stall_fence_q + 64'd1;
      if (read_beat_i)     read_beats_q  <= read_beats_q + 64'd1;
      if (write_beat_i)    write_beats_q <= write_beats_q + 64'd1;
      if (prefix_i)        prefixes_q    <= prefixes_q + 64'd1;
      if (error_i)         errors_q      <= errors_q + 64'd1;
    end
    // Behind the counts: what is read before it is written costs a simulation no copy.
    if (!rst_ni || clears) begin
      cycles_q      <= '0;
      tokens_q      <= '0;
      busy_q        <= '0;
      idle_q        <= '0;
      wait_q        <= '0;
      stall_write_q <= '0;
      descriptors_q <= '0;
      completions_q <= '0;
      stall_cq_q    <= '0;
      stall_fetch_q <= '0;
      stall_order_q <= '0;
      stall_fence_q <= '0;
      read_beats_q  <= '0;
      write_beats_q <= '0;
      prefixes_q    <= '0;
      errors_q      <= '0;
    end
  end

  // ---------------------------------------------------------------- of each worker
  // Nothing counts in a cycle in which nothing changes: tokens are counted line by line, as the lines leave, and the cycles of a
  // worker that is busy when it rests again.
  localparam int WorkerBits  = (Workers == 1) ? 1 : $clog2(Workers);
  localparam int WorkerSlots = 1 << WorkerBits;
  logic [63:0] worker_tokens [0:WorkerSlots-1];
  logic [63:0] worker_busy   [0:WorkerSlots-1];
  logic [63:0] worker_since  [0:WorkerSlots-1];    // CYCLES when it became busy
  logic [63:0] worker_stalls [0:WorkerSlots-1];
  logic [Workers-1:0]     was_busy_q;
  logic [63:0]            worker_value;
  logic [4:0]             line_words;
  logic [WorkerBits-1:0]  line_worker, read_worker;
  logic                   counts_worker;
  assign line_words    = line_i ? 5'(line_last_i) - 5'(line_first_i) + 5'd1 : '0;
  assign line_worker   = line_worker_i[WorkerBits-1:0];
  assign read_worker   = read_addr_i[5 +: WorkerBits];
  assign counts_worker = line_i || stalls != '0 || busy != was_busy_q;

  always_ff @(posedge clk_i) begin
    if (!rst_ni || clears) begin
      for (int w = 0; w < WorkerSlots; w++) begin
        worker_tokens[w] <= '0;
        worker_busy[w]   <= '0;
        worker_since[w]  <= '0;
        worker_stalls[w] <= '0;
      end
      was_busy_q <= '0;
    end else if (active_i && counts_worker) begin
      if (line_i) worker_tokens[line_worker] <= worker_tokens[line_worker] + 64'(line_words);
      if (stalls != '0) begin
        for (int w = 0; w < Workers; w++) if (stalls[w]) worker_stalls[w] <= worker_stalls[w] + 64'd1;
      end
      if (busy != was_busy_q) begin
        for (int w = 0; w < Workers; w++) begin
          if (busy[w] && !was_busy_q[w])  worker_since[w]  <= cycles_q;
          if (!busy[w] && was_busy_q[w])  worker_busy[w]   <= worker_busy[w] + (cycles_q - worker_since[w]);
        end
      end
      was_busy_q <= busy;
    end
  end

  // Expressions, not a process: Icarus 11 wakes one without end here.
  logic [63:0] running;
  assign running      = of_worker && was_busy_q[read_worker] ? cycles_q - worker_since[read_worker] : 64'd0;
  assign worker_value = !of_worker                                         ? 64'd0
                      : read_addr_i[4:3] == CNT_WORKER_TOKENS[4:3] ? worker_tokens[read_worker]
                      : read_addr_i[4:3] == CNT_WORKER_BUSY[4:3]   ? worker_busy[read_worker] + running : worker_stalls[read_worker];

  // ---------------------------------------------------------------- of each queue pair
  if (Queues == 1) begin : gen_alone
    always_comb begin
      own_value = '0;
      if (read_i) begin
        case (read_addr_i[5:3])
          CNT_QUEUE_DESCRIPTORS[5:3]: own_value = descriptors_q;
          CNT_QUEUE_COMPLETIONS[5:3]: own_value = completions_q;
          CNT_QUEUE_TOKENS[5:3]:      own_value = tokens_q;
          CNT_QUEUE_STALL_CQ[5:3]:    own_value = stall_cq_q;
          CNT_QUEUE_ERRORS[5:3]:      own_value = errors_q;
          default: ;
        endcase
      end
    end
  end else begin : gen_each
    localparam int QueueBits = $clog2(Queues);
    localparam int Slots     = 1 << QueueBits;
    logic [63:0] own_descriptors [0:Slots-1];
    logic [63:0] own_completions [0:Slots-1];
    logic [63:0] own_tokens      [0:Slots-1];
    logic [63:0] own_errors      [0:Slots-1];
    logic [Queues-1:0][63:0] own_stall_cq_q;     // that may rise for all at once
    logic [QueueBits-1:0] start_pair, received_pair, visible_pair, line_pair, error_pair, read_pair;
    assign start_pair    = start_queue_i[QueueBits-1:0];
    assign received_pair = received_queue_i[QueueBits-1:0];
    assign visible_pair  = visible_queue_i[QueueBits-1:0];
    assign line_pair     = line_queue_i[QueueBits-1:0];
    assign error_pair    = error_queue_i[QueueBits-1:0];
    assign read_pair     = read_addr_i[12 +: QueueBits];

    always_ff @(posedge clk_i) begin
      if (!rst_ni) begin
        for (int q = 0; q < Slots; q++) begin
          own_descriptors[q] <= '0;
          own_completions[q] <= '0;
          own_tokens[q]      <= '0;
          own_errors[q]      <= '0;
        end
      end else begin
        if (received_i)      own_descriptors[received_pair] <= own_descriptors[received_pair] + 64'd1;
        if (visible_i != '0) own_completions[visible_pair]  <= own_completions[visible_pair] + 64'(visible_i);
        if (line_i)          own_tokens[line_pair]          <= own_tokens[line_pair] + 64'(line_words);
        if (error_i)         own_errors[error_pair]         <= own_errors[error_pair] + 64'd1;
        if (start_i) begin
          own_descriptors[start_pair] <= '0;
          own_completions[start_pair] <= '0;
          own_tokens[start_pair]      <= '0;
          own_errors[start_pair]      <= '0;
        end
      end
    end

    always_ff @(posedge clk_i) begin
      if (!rst_ni) begin
        own_stall_cq_q <= '0;
      end else if (start_i || stall_cq_i != '0) begin
        for (int q = 0; q < Queues; q++) begin
          if (start_i && start_pair == QueueBits'(q)) own_stall_cq_q[q] <= '0;
          else if (stall_cq_i[q])                     own_stall_cq_q[q] <= own_stall_cq_q[q] + 64'd1;
        end
      end
    end

    always_comb begin
      own_value = '0;
      if (read_i) begin
        case (read_addr_i[5:3])
          CNT_QUEUE_DESCRIPTORS[5:3]: own_value = own_descriptors[read_pair];
          CNT_QUEUE_COMPLETIONS[5:3]: own_value = own_completions[read_pair];
          CNT_QUEUE_TOKENS[5:3]:      own_value = own_tokens[read_pair];
          CNT_QUEUE_STALL_CQ[5:3]:    own_value = own_stall_cq_q[read_pair];
          CNT_QUEUE_ERRORS[5:3]:      own_value = own_errors[read_pair];
          default: ;
        endcase
      end
    end
  end

  // ---------------------------------------------------------------- reads
  // Accesses are rare: the values are looked at only in their cycle.
  assign of_device  = read_addr_i[17:7] == CNT_CYCLES[17:7];
  assign of_queue   = read_addr_i[17:16] == CNT_QUEUE_DESCRIPTORS[17:16] && {1'b0, read_addr_i[15:12]} < 5'(Queues)
                   && read_addr_i[11:6] == CNT_QUEUE_DESCRIPTORS[11:6] && read_addr_i[5:3] <= CNT_QUEUE_ERRORS[5:3];

  assign of_worker  = read_i && read_addr_i[17:9] == CNT_WORKER_TOKENS[17:9] && {1'b0, read_addr_i[8:5]} < 5'(Workers)
                   && read_addr_i[4:3] <= CNT_WORKER_STALL_WRITE[4:3];

  always_comb begin
    read_hit_o = 1'b0;
    read_value = '0;
    if (read_i) begin
      read_hit_o = (of_device || of_queue || of_worker) && read_addr_i[1:0] == '0;
      case (read_addr_i[17:3])
        CNT_CYCLES[17:3]:       read_value = cycles_q;
        CNT_TOKENS[17:3]:       read_value = tokens_q;
        CNT_BUSY[17:3]:         read_value = busy_q;
        CNT_IDLE[17:3]:         read_value = idle_q;
        CNT_WAIT[17:3]:         read_value = wait_q;
        CNT_STALL_WRITE[17:3]:  read_value = stall_write_q;
        CNT_DESCRIPTORS[17:3]:  read_value = descriptors_q;
        CNT_COMPLETIONS[17:3]:  read_value = completions_q;
        CNT_STALL_CQ[17:3]:     read_value = stall_cq_q;
        CNT_STALL_FETCH[17:3]:  read_value = stall_fetch_q;
        CNT_STALL_ORDER[17:3]:  read_value = stall_order_q;
        CNT_STALL_FENCE[17:3]:  read_value = stall_fence_q;
        CNT_READ_BEATS[17:3]:   read_value = read_beats_q;
        CNT_WRITE_BEATS[17:3]:  read_value = write_beats_q;
        CNT_PREFIXES[17:3]:     read_value = prefixes_q;
        CNT_ERRORS[17:3]:       read_value = errors_q;
        default:                read_value = of_worker ? worker_value : own_value;
      endcase
    end
  end
  assign read_data_o = read_addr_i[2] ? read_value[63:32] : read_value[31:0];
endmodule
