// Performance counters of the device: 64 bits each, cleared when a queue pair is enabled while none is active, counting
// while one is. Reading a low half latches the high half, so that low-then-high gives one consistent value.
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
  /* verilator lint_off UNUSEDSIGNAL */
  input  queue_config_t      start_config_i,
  /* verilator lint_on UNUSEDSIGNAL */
  input  logic               active_i,         // some queue pair is

  input  logic [Workers-1:0] free_i,           // per worker and cycle from here …
  input  logic [Workers-1:0] token_i,
  input  logic [Workers-1:0] wait_i,
  input  logic [Workers-1:0] run_i,
  input  logic [Workers-1:0] ready_i,          // … to here: the result buffer has room
  input  logic               received_i,
  input  logic [1:0]         visible_i,
  input  logic               stall_cq_i,
  input  logic [Queues-1:0]  published_i,      // published descriptors exist that have not arrived
  input  logic [Queues-1:0]  arrived_i,        // some that arrived waits
  input  logic               stall_order_i,
  input  logic               stall_fence_i,
  input  logic               read_beat_i,
  input  logic               write_beat_i,
  input  logic               prefix_i,
  input  logic               error_i,

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
  logic [31:0] high_q;
  logic [63:0] read_value;
  logic        stall_fetch;
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
      if (stall_cq_i)      stall_cq_q    <= stall_cq_q + 64'd1;
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

  // Accesses are rare: the values are looked at only in their cycle.
  assign read_hit_o = read_addr_i[17:7] == CNT_CYCLES[17:7] && read_addr_i[1:0] == '0;

  always_comb begin
    read_value = '0;
    if (read_i) begin
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
        default: ;
      endcase
    end
  end
  assign read_data_o = read_addr_i[2] ? high_q : read_value[31:0];

  always_ff @(posedge clk_i) begin
    if (!rst_ni) high_q <= '0;
    else if (read_i) begin
      if (read_hit_o && !read_addr_i[2]) high_q <= read_value[63:32];
    end
  end
endmodule
