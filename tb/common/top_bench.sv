// The whole device with memory, register master and monitors around it, and a host for each queue pair (queue_host): that
// of number 0 is 'host', the others are 'gen_host[q].host'. A bench instantiates it and calls the hosts' tasks.
module top_bench #(
  parameter int Queues          = 1,
  parameter int Functions       = 1,
  parameter int Workers         = 4,
  parameter int Engines         = 1,
  parameter int FetchDepth      = 128,
  parameter int CompletionDepth = 128,
  parameter int Limit           = 400000,        // cycles before the bench hangs
  parameter int Lines           = 3072,          // of the memory of each queue pair, 64 bytes each
  parameter int TokenWords      = 16384          // largest token region
);
  import bench_pkg::*;
  import bench_reference_pkg::*;
  import desc_pkg::*;

  localparam logic [63:0] Base  = 64'h0000_0012_3400_0000;

  logic clk, rst_n;
  int   cycle;

  logic [17:0]  s_axil_awaddr, s_axil_araddr;
  logic         s_axil_awvalid, s_axil_awready, s_axil_wvalid, s_axil_wready, s_axil_bvalid, s_axil_bready;
  logic         s_axil_arvalid, s_axil_arready, s_axil_rvalid, s_axil_rready;
  logic [31:0]  s_axil_wdata, s_axil_rdata;
  logic [3:0]   s_axil_wstrb;
  logic [1:0]   s_axil_bresp, s_axil_rresp;
  logic [5:0]   m_axi_awid, m_axi_bid, m_axi_arid, m_axi_rid;
  logic [3:0]   m_axi_awuser, m_axi_aruser;
  logic [63:0]  m_axi_awaddr, m_axi_araddr, m_axi_wstrb;
  logic [7:0]   m_axi_awlen, m_axi_arlen;
  logic [2:0]   m_axi_awsize, m_axi_arsize;
  logic [1:0]   m_axi_awburst, m_axi_arburst, m_axi_bresp, m_axi_rresp;
  logic [3:0]   m_axi_awcache, m_axi_arcache;
  logic [2:0]   m_axi_awprot, m_axi_arprot;
  logic         m_axi_awvalid, m_axi_awready, m_axi_wlast, m_axi_wvalid, m_axi_wready, m_axi_bvalid, m_axi_bready;
  logic         m_axi_arvalid, m_axi_arready, m_axi_rlast, m_axi_rvalid, m_axi_rready;
  logic [511:0] m_axi_wdata, m_axi_rdata;
  logic         accept, effect, effect_error;
  logic [5:0]   accept_id, effect_id;
  logic [63:0]  accept_addr, effect_addr, accept_strb, effect_strb;
  logic [511:0] accept_data, effect_data;

  clock_reset #(.Limit(Limit)) u_clock (.clk_o(clk), .rst_no(rst_n), .cycle_o(cycle));

  // The bus is reset with the device, or lives on.
  logic bus_lives = 1'b0, m_axi_rst_ni;
  assign m_axi_rst_ni = rst_n || bus_lives;

  rl_runtime_top #(.Queues(Queues), .Functions(Functions), .Workers(Workers), .FetchDepth(FetchDepth), .CompletionDepth(CompletionDepth),
                   .Engines(Engines)) u_device (
    .clk_i(clk), .rst_ni(rst_n), .*
  );

  register_master u_registers (
    .clk_i(clk), .rst_ni(rst_n),
    .awaddr_o(s_axil_awaddr), .awvalid_o(s_axil_awvalid), .awready_i(s_axil_awready),
    .wdata_o(s_axil_wdata), .wstrb_o(s_axil_wstrb), .wvalid_o(s_axil_wvalid), .wready_i(s_axil_wready),
    .bresp_i(s_axil_bresp), .bvalid_i(s_axil_bvalid), .bready_o(s_axil_bready),
    .araddr_o(s_axil_araddr), .arvalid_o(s_axil_arvalid), .arready_i(s_axil_arready),
    .rdata_i(s_axil_rdata), .rresp_i(s_axil_rresp), .rvalid_i(s_axil_rvalid), .rready_o(s_axil_rready)
  );

  memory_model #(.Lines(Lines * Queues), .Base(Base)) u_memory (
    .clk_i(clk), .rst_ni(m_axi_rst_ni),
    .awid_i(m_axi_awid), .awaddr_i(m_axi_awaddr), .awvalid_i(m_axi_awvalid), .awready_o(m_axi_awready),
    .wdata_i(m_axi_wdata), .wstrb_i(m_axi_wstrb), .wvalid_i(m_axi_wvalid), .wready_o(m_axi_wready),
    .bid_o(m_axi_bid), .bresp_o(m_axi_bresp), .bvalid_o(m_axi_bvalid), .bready_i(m_axi_bready),
    .araddr_i(m_axi_araddr), .arlen_i(m_axi_arlen), .arid_i(m_axi_arid), .arvalid_i(m_axi_arvalid),
    .arready_o(m_axi_arready), .rid_o(m_axi_rid), .rdata_o(m_axi_rdata), .rresp_o(m_axi_rresp),
    .rlast_o(m_axi_rlast), .rvalid_o(m_axi_rvalid), .rready_i(m_axi_rready),
    .accept_o(accept), .effect_o(effect), .effect_error_o(effect_error), .accept_id_o(accept_id),
    .effect_id_o(effect_id), .accept_addr_o(accept_addr), .effect_addr_o(effect_addr), .accept_strb_o(accept_strb),
    .effect_strb_o(effect_strb), .accept_data_o(accept_data), .effect_data_o(effect_data)
  );

  protocol_monitor #(.Messages(Base - 64'd4096)) u_protocol (
    .clk_i(clk), .rst_ni(m_axi_rst_ni),
    .awid_i(m_axi_awid), .awaddr_i(m_axi_awaddr), .awlen_i(m_axi_awlen), .awsize_i(m_axi_awsize),
    .awburst_i(m_axi_awburst), .awvalid_i(m_axi_awvalid), .awready_i(m_axi_awready),
    .wdata_i(m_axi_wdata), .wstrb_i(m_axi_wstrb), .wlast_i(m_axi_wlast), .wvalid_i(m_axi_wvalid),
    .wready_i(m_axi_wready), .arid_i(m_axi_arid), .araddr_i(m_axi_araddr), .arlen_i(m_axi_arlen),
    .arsize_i(m_axi_arsize), .arburst_i(m_axi_arburst), .arvalid_i(m_axi_arvalid), .arready_i(m_axi_arready)
  );

  queue_host #(.Pair(0), .Lines(Lines), .TokenWords(TokenWords), .Workers(Workers)) host (
    .clk_i(clk), .rst_ni(rst_n), .cycle_i(cycle),
    .aruser_i(m_axi_aruser), .araddr_i(m_axi_araddr), .arlen_i(m_axi_arlen), .arid_i(m_axi_arid), .rid_i(m_axi_rid), .arvalid_i(m_axi_arvalid), .arready_i(m_axi_arready),
    .rresp_i(m_axi_rresp), .rlast_i(m_axi_rlast), .rvalid_i(m_axi_rvalid), .rready_i(m_axi_rready),
    .accept_i(accept), .accept_id_i(accept_id), .accept_addr_i(accept_addr), .accept_strb_i(accept_strb),
    .effect_i(effect), .effect_error_i(effect_error), .effect_id_i(effect_id), .effect_addr_i(effect_addr),
    .effect_strb_i(effect_strb), .effect_data_i(effect_data),
    .awuser_i(m_axi_awuser), .awid_i(m_axi_awid), .awaddr_i(m_axi_awaddr), .awvalid_i(m_axi_awvalid)
  );

  for (genvar q = 1; q < Queues; q++) begin : gen_host
    queue_host #(.Pair(q), .Lines(Lines), .TokenWords(TokenWords), .Workers(Workers)) host (
      .clk_i(clk), .rst_ni(rst_n), .cycle_i(cycle),
      .aruser_i(m_axi_aruser), .araddr_i(m_axi_araddr), .arlen_i(m_axi_arlen), .arid_i(m_axi_arid), .rid_i(m_axi_rid), .arvalid_i(m_axi_arvalid), .arready_i(m_axi_arready),
      .rresp_i(m_axi_rresp), .rlast_i(m_axi_rlast), .rvalid_i(m_axi_rvalid), .rready_i(m_axi_rready),
      .accept_i(accept), .accept_id_i(accept_id), .accept_addr_i(accept_addr), .accept_strb_i(accept_strb),
      .effect_i(effect), .effect_error_i(effect_error), .effect_id_i(effect_id), .effect_addr_i(effect_addr),
      .effect_strb_i(effect_strb), .effect_data_i(effect_data),
      .awuser_i(m_axi_awuser), .awid_i(m_axi_awid), .awaddr_i(m_axi_awaddr), .awvalid_i(m_axi_awvalid)
    );
  end

  // Whose a worker's oldest descriptor is, is known before it is taken: places are asked for by that.
  always @(posedge clk) if (rst_n && u_device.item_taken) begin
    if (u_device.pairs[4 * u_device.item_worker +: 4] != u_device.line_queue)
      fail($sformatf("R28: worker %0d has a descriptor of queue pair %0d, and asks for places of %0d", u_device.item_worker, u_device.line_queue,
                     u_device.pairs[4 * u_device.item_worker +: 4]));
  end

  function automatic int some(input int most);
    some = chance(50) ? 0 : between(0, most);
  endfunction

  // Latencies and stalls as chance will have them, no errors.
  task automatic random_memory;
    u_memory.read_latency  = some(64);
    u_memory.read_jitter   = some(40);
    u_memory.write_latency = some(64);
    u_memory.write_jitter  = some(100);
    u_memory.stall_ar      = some(70);
    u_memory.stall_r       = some(70);
    u_memory.stall_aw      = some(70);
    u_memory.stall_w       = some(70);
    u_memory.stall_b       = some(70);
    u_memory.early_effect  = chance(25);
    u_memory.error_r       = 0;
    u_memory.error_w       = 0;
    u_registers.delay      = some(60);
  endtask

  // R12: reset at any moment.
  task automatic reset;
    u_protocol.quiet = 1'b1;
    host.u_score.stop;
    u_clock.reset(between(1, 4));
  endtask

  // R12: reset of the device alone. The bus gets what it was promised, and ACTIVE falls when nothing is left.
  task automatic reset_device;
    bus_lives = 1'b1;
    host.u_score.stop;
    u_clock.reset(between(1, 4));
    host.await_state(STATE_ACTIVE, 0, "STATE.ACTIVE = 0 after a reset of the device");
    u_protocol.quiet = 1'b1;
    if (u_memory.pending != 0) fail("R12: ACTIVE fell with writes in flight");
    if (u_memory.reading != 0 || m_axi_rvalid) fail("R12: ACTIVE fell with reads in flight");
    u_protocol.expect_balanced;
    repeat (20) @(posedge clk);
    bus_lives = 1'b0;
  endtask


  // ---------------------------------------------------------------- all hosts at once
  logic [Queues-1:0] go = '0, over = '0;          // each host's random traffic, and that it is over
  logic              faults = 1'b0;               // the memory answers some beats with errors
  int                runs, count;
  int                owner_of [0:Queues-1];
  // What the owner of the device and each function set, while nothing is active.
  logic [15:0]       mask_of [0:15];
  logic [31:0]       limit_of [0:15], checkpoint_of [0:15], reward_of [0:15];
  logic [15:0]       eos_of [0:15];

  task automatic random_functions;
    logic [15:0] mask;
    for (int f = 0; f < Functions; f++) begin
      mask = (f == 0) ? 16'hFFFF : rnd();
      mask = mask & 16'((17'd1 << Workers) - 1);
      if (mask == 0) mask = 1;
      mask_of[f]       = mask;
      limit_of[f]      = chance(50) ? 32'h0010_0000 : between(300, 2000);
      checkpoint_of[f] = chance(30) ? between(0, 12) : CHECKPOINT_NEVER;
      reward_of[f]     = chance(10) ? 32'h8000_0000 | rnd() : below(65536);
      eos_of[f]        = chance(50) ? 16'd0 : chance(90) ? between(1, 4000) : between(32000, 65535);
      u_registers.write(REG_FN_WORKERS + f * BLOCK_DEVICE_FUNCTION_PER_FUNCTION, mask);
      if (f != 0) begin
        u_registers.write(REG_WINDOW_1_SIZE_LO + f * BLOCK_DEVICE_FUNCTION_PER_FUNCTION, '1);
        u_registers.write(REG_WINDOW_1_SIZE_HI + f * BLOCK_DEVICE_FUNCTION_PER_FUNCTION, '1);
      end
      u_registers.write(REG_LENGTH_LIMIT + f * BLOCK_FUNCTION_PER_FUNCTION, limit_of[f]);
      u_registers.write(REG_CHECKPOINT_DEFAULT + f * BLOCK_FUNCTION_PER_FUNCTION, checkpoint_of[f]);
      u_registers.write(REG_REWARD_THRESHOLD + f * BLOCK_FUNCTION_PER_FUNCTION, reward_of[f]);
      u_registers.write(REG_EOS_THRESHOLD + f * BLOCK_FUNCTION_PER_FUNCTION, eos_of[f]);
    end
    for (int q = 0; q < Queues; q++) begin
      owner_of[q] = below(Functions);
      u_registers.write(REG_QUEUE_FUNCTION + q * BLOCK_DEVICE_QUEUE_PER_QUEUE, owner_of[q]);
    end
    u_registers.write(REG_WAIT_STATES, chance(70) ? 0 : between(1, 4));
  endtask

  // All queue pairs, each with its own random traffic.
  task automatic share(input int each, input int many);
    random_memory;
    if (faults) begin
      u_memory.error_r = between(1, 8);
      u_memory.error_w = between(1, 8);
    end
    random_functions;
    u_protocol.quiet = 1'b0;
    runs  = each;
    count = many;
    go    = '1;
    while (over != '1) @(posedge clk);
  endtask
endmodule
