// Performance counters: 64 bits each, cleared when the device is enabled, counting while it is active. Reading a low
// half latches the high half, so that low-then-high gives one consistent value.
module perf_counters
  import desc_pkg::*;
  import core_pkg::*;
#(
  parameter int Workers = 4
) (
  input  logic               clk_i,
  input  logic               rst_ni,
  input  logic               start_i,
  input  logic               active_i,

  input  logic [Workers-1:0] in_use_i,         // workers that the dispatcher may use
  input  logic [Workers-1:0] free_i,           // per worker and cycle from here …
  input  logic [Workers-1:0] token_i,
  input  logic [Workers-1:0] wait_i,
  input  logic [Workers-1:0] run_i,
  input  logic [Workers-1:0] ready_i,          // … to here: the result buffer has room
  input  logic               received_i,
  input  logic [1:0]         visible_i,
  input  logic               stall_cq_i,
  input  logic               published_i,      // published descriptors exist that have not arrived
  input  logic               check_idle_i,     // none that arrived waits
  input  logic               stall_order_i,
  input  logic               stall_fence_i,
  input  logic               read_beat_i,
  input  logic               write_beat_i,
  input  logic               prefix_i,
  input  logic               error_i,

  input  logic               read_i,
  input  logic [11:0]        read_addr_i,
  output logic               read_hit_o,
  output logic [31:0]        read_data_o
);
  if (Workers < 1 || Workers > MAX_WORKERS) begin : gen_bad_workers
    localparam bit WorkersMustBe1To16 = {-1{1'b1}};   // ends the elaboration
  end

  localparam int Count = 16;
  localparam logic [11:0] First = CNT_CYCLES;

  logic [63:0] value_q [0:Count-1];
  logic [31:0] high_q;
  logic [3:0]  read_index;
  logic [63:0] read_value;
  logic        stall_fetch;
  logic [Workers-1:0] busy, frees, stalls;

  assign busy        = ~free_i & in_use_i;
  assign frees       = free_i & in_use_i;
  assign stalls      = run_i & ~ready_i;
  assign stall_fetch = published_i && check_idle_i && frees != '0;

  function automatic logic [3:0] slot(input logic [11:0] addr);
    slot = 4'((addr - First) >> 3);
  endfunction

  // Counts the workers only in a cycle that has some to count.
  function automatic logic [63:0] plus(input logic [63:0] value, input logic [Workers-1:0] workers);
    plus = value + 64'(count_ones(MAX_WORKERS'(workers)));
  endfunction

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      for (int k = 0; k < Count; k++) value_q[k] <= '0;
    end else if (start_i) begin
      for (int k = 0; k < Count; k++) value_q[k] <= '0;
    end else if (active_i) begin
      value_q[slot(CNT_CYCLES)] <= value_q[slot(CNT_CYCLES)] + 64'd1;
      if (token_i != '0) value_q[slot(CNT_TOKENS)]      <= plus(value_q[slot(CNT_TOKENS)], token_i);
      if (busy != '0)    value_q[slot(CNT_BUSY)]        <= plus(value_q[slot(CNT_BUSY)], busy);
      if (frees != '0)   value_q[slot(CNT_IDLE)]        <= plus(value_q[slot(CNT_IDLE)], frees);
      if (wait_i != '0)  value_q[slot(CNT_WAIT)]        <= plus(value_q[slot(CNT_WAIT)], wait_i);
      if (stalls != '0)  value_q[slot(CNT_STALL_WRITE)] <= plus(value_q[slot(CNT_STALL_WRITE)], stalls);
      if (received_i)    value_q[slot(CNT_DESCRIPTORS)] <= value_q[slot(CNT_DESCRIPTORS)] + 64'd1;
      if (visible_i != '0) value_q[slot(CNT_COMPLETIONS)] <= value_q[slot(CNT_COMPLETIONS)] + 64'(visible_i);
      if (stall_cq_i)    value_q[slot(CNT_STALL_CQ)]    <= value_q[slot(CNT_STALL_CQ)] + 64'd1;
      if (stall_fetch)   value_q[slot(CNT_STALL_FETCH)] <= value_q[slot(CNT_STALL_FETCH)] + 64'd1;
      if (stall_order_i) value_q[slot(CNT_STALL_ORDER)] <= value_q[slot(CNT_STALL_ORDER)] + 64'd1;
      if (stall_fence_i) value_q[slot(CNT_STALL_FENCE)] <= value_q[slot(CNT_STALL_FENCE)] + 64'd1;
      if (read_beat_i)   value_q[slot(CNT_READ_BEATS)]  <= value_q[slot(CNT_READ_BEATS)] + 64'd1;
      if (write_beat_i)  value_q[slot(CNT_WRITE_BEATS)] <= value_q[slot(CNT_WRITE_BEATS)] + 64'd1;
      if (prefix_i)      value_q[slot(CNT_PREFIXES)]    <= value_q[slot(CNT_PREFIXES)] + 64'd1;
      if (error_i)       value_q[slot(CNT_ERRORS)]      <= value_q[slot(CNT_ERRORS)] + 64'd1;
    end
  end

  assign read_hit_o  = read_addr_i[11:7] == First[11:7] && read_addr_i[1:0] == '0;
  assign read_index  = read_addr_i[6:3];
  assign read_value  = value_q[read_index];
  assign read_data_o = read_addr_i[2] ? high_q : read_value[31:0];

  always_ff @(posedge clk_i) begin
    if (!rst_ni) high_q <= '0;
    else if (read_i && read_hit_o && !read_addr_i[2]) high_q <= read_value[63:32];
  end
endmodule
