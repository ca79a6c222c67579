// AXI4 memory with 64-byte lines: seeded random latency and stalls on every channel, responses of different IDs out of order, those
// of reads beat by beat where their latency is drawn, injected errors. A write takes effect when its response is issued (so that
// whoever acts earlier than the response sees old bytes), or with early_effect as soon as address and data are there.
// Messages of interrupts lie outside of it: they are shown to the scoreboards, and kept nowhere.
module memory_model #(
  parameter int          Lines = 4096,
  parameter logic [63:0] Base  = 64'h0
) (
  input  logic         clk_i,
  input  logic         rst_ni,
  input  logic [5:0]   awid_i,
  input  logic [63:0]  awaddr_i,
  input  logic         awvalid_i,
  output logic         awready_o,
  input  logic [511:0] wdata_i,
  input  logic [63:0]  wstrb_i,
  input  logic         wvalid_i,
  output logic         wready_o,
  output logic [5:0]   bid_o,
  output logic [1:0]   bresp_o,
  output logic         bvalid_o,
  input  logic         bready_i,
  input  logic [63:0]  araddr_i,
  input  logic [7:0]   arlen_i,
  input  logic [5:0]   arid_i,
  input  logic         arvalid_i,
  output logic         arready_o,
  output logic [5:0]   rid_o,
  output logic [511:0] rdata_o,
  output logic [1:0]   rresp_o,
  output logic         rlast_o,
  output logic         rvalid_o,
  input  logic         rready_i,

  // What happens, for a scoreboard; valid in the cycle after.
  output logic         accept_o,        // a write is complete on the bus
  output logic         effect_o,        // a write has changed the memory, or failed
  output logic         effect_error_o,
  output logic [5:0]   accept_id_o,
  output logic [5:0]   effect_id_o,
  output logic [63:0]  accept_addr_o,
  output logic [63:0]  effect_addr_o,
  output logic [63:0]  accept_strb_o,
  output logic [63:0]  effect_strb_o,
  output logic [511:0] accept_data_o,
  output logic [511:0] effect_data_o
);
  import bench_pkg::*;
  localparam int Ids   = 64;            // of writes 16 of queue pairs' token lines, 16 of their completions, 16 of their messages, 16 of functions' events
  localparam int Depth = 256;           // of each queue

  // ---------------------------------------------------------------- behaviour, set by the bench
  int   read_latency  = 0, read_jitter  = 0;     // cycles: fixed part, and what chance may add
  int   write_latency = 0, write_jitter = 0;
  int   stall_ar = 0, stall_r = 0, stall_aw = 0, stall_w = 0, stall_b = 0;   // percent of cycles
  int   error_r = 0, error_w = 0;       // percent of beats; never completions
  logic early_effect = 1'b0;
  int   hold_id = -1;                   // responses to writes of this ID are withheld …
  int   hold_read = -1;                 // … and data of this one
  // Count down the beats of descriptors, token lines, completions and messages, and of what is read back; at 0 the beat fails.
  int   fail_read = -1, fail_line = -1, fail_completion = -1, fail_back = -1, fail_message = -1;
  logic [1:0] error_resp = 2'b10;       // with which a beat fails: SLVERR, or DECERR (2'b11)

  logic [511:0] line [0:Lines-1];

  function automatic int line_of(input logic [63:0] addr);
    logic [63:0] offset;
    offset = addr - Base;
    if (addr < Base || offset >= 64 * Lines) begin
      fail($sformatf("R11: access to %h, outside the memory", addr));
      line_of = 0;
    end else line_of = int'(offset >> 6);
  endfunction

  task automatic poke(input logic [63:0] addr, input logic [31:0] word);
    line[line_of(addr)][{addr[5:2], 5'd0} +: 32] = word;
  endtask

  function automatic logic [31:0] peek(input logic [63:0] addr);
    logic [511:0] whole;
    whole = line[line_of(addr)];
    peek = whole[{addr[5:2], 5'd0} +: 32];
  endfunction

  int now;
  always @(posedge clk_i) now <= rst_ni ? now + 1 : 0;

  // ---------------------------------------------------------------- reads
  // Bursts that wait, in order per ID: entry id * Depth + position.
  logic [63:0] ar_addr [0:Ids*Depth-1];
  int          ar_len [0:Ids*Depth-1];
  int          ar_due [0:Ids*Depth-1];
  int          ar_number [0:Ids*Depth-1];
  int          ar_head [0:Ids-1], ar_tail [0:Ids-1], beat [0:Ids-1];
  int          reading = 0;             // bursts of all IDs
  int          known [0:Ids-1], knowns = 0;       // IDs that have read
  logic        is_known [0:Ids-1];
  initial for (int k = 0; k < Ids; k++) is_known[k] = 1'b0;
  int          read_number, read_id, read_at, read_from, last_read;

  always @(posedge clk_i) begin
    if (!rst_ni) begin
      for (int k = 0; k < Ids; k++) begin
        ar_head[k] = 0;
        ar_tail[k] = 0;
        beat[k]    = 0;
      end
      reading     = 0;
      read_number = 0;
      last_read   = -1;
      arready_o <= 1'b0;
      rvalid_o  <= 1'b0;
    end else begin
      if (arvalid_i && arready_o) begin
        read_id = int'(arid_i);
        read_at = read_id * Depth + ar_tail[read_id] % Depth;
        ar_addr[read_at]   = araddr_i;
        ar_len[read_at]    = int'(arlen_i) + 1;
        ar_due[read_at]    = now + read_latency + (read_jitter == 0 ? 0 : below(read_jitter + 1));
        ar_number[read_at] = read_number;
        ar_tail[read_id] = ar_tail[read_id] + 1;
        reading     = reading + 1;
        if (!is_known[read_id]) begin
          is_known[read_id] = 1'b1;
          known[knowns]     = read_id;
          knowns            = knowns + 1;
        end
        read_number = read_number + 1;
      end
      if (!rvalid_o || rready_i) begin
        rvalid_o <= 1'b0;
        // In the order of their addresses, or any that is due, beat by beat.
        read_id = -1;
        if (reading != 0 && !chance(stall_r)) begin
          if (read_jitter == 0 && last_read >= 0) read_id = last_read;
          else begin
            read_from = (read_jitter == 0) ? 0 : below(knowns);
            for (int k = 0; k < knowns && (read_jitter == 0 || read_id < 0); k++) begin
              read_at = known[(read_from + k) % knowns];
              if (ar_head[read_at] != ar_tail[read_at] && read_at != hold_read)
                if (ar_due[read_at * Depth + ar_head[read_at] % Depth] <= now
                    && (read_id < 0 || ar_number[read_at * Depth + ar_head[read_at] % Depth] < ar_number[read_id * Depth + ar_head[read_id] % Depth]))
                  read_id = read_at;
            end
          end
        end
        if (read_id >= 0) begin
          read_at = read_id * Depth + ar_head[read_id] % Depth;
          rvalid_o <= 1'b1;
          rid_o    <= 6'(read_id);
          rlast_o  <= beat[read_id] + 1 == ar_len[read_at];
          if (fail_read >= 0 && read_id < 16) fail_read = fail_read - 1;
          if (fail_back >= 0 && read_id >= 16) fail_back = fail_back - 1;
          if (chance(error_r) || (read_id < 16 ? fail_read : fail_back) == 0) begin
            rresp_o <= error_resp;
            rdata_o <= {16{rnd()}};
          end else begin
            rresp_o <= 2'b00;
            rdata_o <= line[line_of(ar_addr[read_at] + 64 * beat[read_id])];
          end
          beat[read_id] = beat[read_id] + 1;
          last_read     = read_id;
          if (beat[read_id] == ar_len[read_at]) begin
            beat[read_id]    = 0;
            ar_head[read_id] = ar_head[read_id] + 1;
            reading          = reading - 1;
            last_read        = -1;
          end
        end
      end
      arready_o <= reading < Depth - 1 && !chance(stall_ar);
    end
  end

  // ---------------------------------------------------------------- writes
  logic [63:0]  aw_addr [0:Depth-1];
  logic [5:0]   aw_id [0:Depth-1];
  logic [511:0] w_data [0:Depth-1];
  logic [63:0]  w_strb [0:Depth-1];
  int           aw_head, aw_tail, w_head, w_tail;

  // Accepted writes that wait for their response, in order per ID: entry id * Depth + position.
  logic [63:0]  pending_addr [0:Ids*Depth-1];
  logic [511:0] pending_data [0:Ids*Depth-1];
  logic [63:0]  pending_strb [0:Ids*Depth-1];
  int           pending_due [0:Ids*Depth-1];
  int           head [0:Ids-1];
  int           tail [0:Ids-1];
  int           pending;                // of all IDs

  int   id, at, picked;
  logic bad;

  task automatic change(input logic [63:0] addr, input logic [511:0] data, input logic [63:0] strb);
    int k;
    logic [511:0] merged;
    k = line_of(addr);
    merged = line[k];
    for (int w = 0; w < 16; w++) begin
      if (strb[4*w +: 4] == 4'hF) merged[32*w +: 32] = data[32*w +: 32];
      else for (int b = 4*w; b < 4*w + 4; b++) if (strb[b]) merged[8*b +: 8] = data[8*b +: 8];
    end
    line[k] = merged;
  endtask

  always @(posedge clk_i) begin
    accept_o <= 1'b0;
    effect_o <= 1'b0;
    if (!rst_ni) begin
      aw_head = 0; aw_tail = 0; w_head = 0; w_tail = 0; pending = 0;
      for (int k = 0; k < Ids; k++) begin
        head[k] = 0;
        tail[k] = 0;
      end
      awready_o <= 1'b0;
      wready_o  <= 1'b0;
      bvalid_o  <= 1'b0;
    end else begin
      if (awvalid_i && awready_o) begin
        aw_addr[aw_tail % Depth] = awaddr_i;
        aw_id[aw_tail % Depth]   = awid_i;
        aw_tail = aw_tail + 1;
      end
      if (wvalid_i && wready_o) begin
        w_data[w_tail % Depth] = wdata_i;
        w_strb[w_tail % Depth] = wstrb_i;
        w_tail = w_tail + 1;
      end

      if (aw_head != aw_tail && w_head != w_tail) begin
        id = int'(aw_id[aw_head % Depth]);
        at = id * Depth + tail[id] % Depth;
        pending_addr[at] = aw_addr[aw_head % Depth];
        pending_data[at] = w_data[w_head % Depth];
        pending_strb[at] = w_strb[w_head % Depth];
        pending_due[at]  = now + write_latency + (write_jitter == 0 ? 0 : below(write_jitter + 1));
        if (tail[id] - head[id] >= Depth) $fatal(1, "memory_model: more than %0d writes of ID %0d in flight", Depth, id);
        tail[id] = tail[id] + 1;
        pending  = pending + 1;
        aw_head  = aw_head + 1;
        w_head   = w_head + 1;
        accept_o      <= 1'b1;
        accept_id_o   <= 6'(id);
        accept_addr_o <= pending_addr[at];
        accept_data_o <= pending_data[at];
        accept_strb_o <= pending_strb[at];
        if (early_effect && (id < 32 || id >= 48)) change(pending_addr[at], pending_data[at], pending_strb[at]);
      end

      if (!bvalid_o || bready_i) begin
        bvalid_o <= 1'b0;
        picked = -1;
        if (pending != 0 && !chance(stall_b)) begin
          id = below(Ids);
          for (int k = 0; k < Ids && picked < 0; k++) begin
            if (head[id] != tail[id] && id != hold_id)
              if (pending_due[id * Depth + head[id] % Depth] <= now) picked = id;
            id = (id + 1) % Ids;
          end
        end
        if (picked >= 0) begin
          at  = picked * Depth + head[picked] % Depth;
          if (picked < 16) begin
            if (fail_line >= 0) fail_line = fail_line - 1;
            bad = chance(error_w) || fail_line == 0;
          end else if (picked >= 32 && picked < 48) begin
            if (fail_message >= 0) fail_message = fail_message - 1;
            bad = chance(error_w) || fail_message == 0;
          end else if (picked >= 48) begin
            bad = 1'b0;
          end else begin
            if (fail_completion >= 0) fail_completion = fail_completion - 1;
            bad = fail_completion == 0;
          end
          if (!bad && !early_effect && (picked < 32 || picked >= 48)) change(pending_addr[at], pending_data[at], pending_strb[at]);
          head[picked] = head[picked] + 1;
          pending      = pending - 1;
          bvalid_o <= 1'b1;
          bid_o    <= 6'(picked);
          bresp_o  <= bad ? error_resp : 2'b00;
          effect_o       <= 1'b1;
          effect_error_o <= bad;
          effect_id_o    <= 6'(picked);
          effect_addr_o  <= pending_addr[at];
          effect_data_o  <= pending_data[at];
          effect_strb_o  <= pending_strb[at];
        end
      end

      awready_o <= aw_tail - aw_head < 8 && !chance(stall_aw);
      wready_o  <= w_tail - w_head < 8 && !chance(stall_w);
    end
  end
endmodule
