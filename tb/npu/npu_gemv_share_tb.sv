// npu_gemv of several contexts that share a pass over the weights, beside one npu_gemv for each of them alone: words by chance, each of any of the
// contexts, whose activations and lines differ. All of them write and give the same, and weights are read once. Some words are given up. These
// then ask for no more than 32 rows, and write nothing outside of their destination.
module npu_gemv_share_tb;
  import bench_pkg::*;
  import npu_unit_pkg::*;

  localparam int Contexts = 5;
  localparam int Chip     = 96;               // lines of a context: activation, then dst
  localparam int Model    = 2048;
  localparam int Dst      = 16;
  localparam int Most     = 128;              // logits of a word

  logic clk, rst_n;
  int   cycle_unused;
  clock_reset #(.Limit(400000)) u_clock (.clk_o(clk), .rst_no(rst_n), .cycle_o(cycle_unused));

  logic [511:0] memory [0:Model-1];
  logic [511:0] chip [0:Contexts*Chip-1], earlier [0:Contexts*Chip-1];

  logic                start = 1'b0, idle, done, give_up = 1'b0;
  npu_op_t             op = '0;
  logic [Contexts-1:0] mask = '0;
  logic [3:0]          ended;

  // ---------------------------------------------------------------- each context alone
  logic [Contexts-1:0]   alone_done;
  logic [31:0]           alone_logit [0:Contexts*Most-1];
  int                    alone_logits [0:Contexts-1], alone_lines = 0;
  for (genvar c = 0; c < Contexts; c++) begin : gen_alone
    logic                   read_valid, read_answer = 1'b0, write_valid, fetch_valid, beat_valid, beat_ready, logit_valid, begin_unused, last_unused, idle_unused, is_done;
    logic [2:0]             context_unused, other_unused;
    logic [3:0]             end_unused;
    logic [CHIP_BITS-1:0]   read_line, write_line;
    logic [511:0]           read_data, write_data, beat_data;
    logic [MEMORY_BITS-1:0] fetch_line, next = '0, ahead_line = '0;
    logic [15:0]            fetch_lines, left = '0, ahead = '0;
    logic [31:0]            logit;
    logic [511:0]           lines [0:Chip-1];

    npu_gemv u_gemv (
      .clk_i(clk), .rst_ni(rst_n), .start_i(start && mask[c]), .op_i(op), .mask_i(1'b1), .give_up_i(1'b0), .idle_o(idle_unused), .done_o(is_done), .end_o(end_unused),
      .read_valid_o(read_valid), .read_context_o(context_unused), .read_line_o(read_line), .read_ready_i(1'b1), .read_answer_i(read_answer),
      .read_data_i(read_data), .write_valid_o(write_valid), .write_context_o(other_unused), .write_line_o(write_line), .write_data_o(write_data),
      .write_ready_i(1'b1), .fetch_valid_o(fetch_valid), .fetch_line_o(fetch_line), .fetch_lines_o(fetch_lines), .fetch_ready_i(ahead == '0),
      .beat_valid_i(beat_valid), .beat_data_i(beat_data), .beat_fault_i(1'b0), .beat_ready_o(beat_ready),
      .sampler_begin_o(begin_unused), .sampler_begun_i(1'b1), .sampler_idle_i(1'b1),
      .logit_valid_o(logit_valid), .logit_o(logit), .logit_last_o(last_unused), .logit_ready_i(1'b1)
    );
    assign alone_done[c] = is_done;
    assign beat_valid    = left != '0;
    always_comb beat_data = memory[next];

    always @(posedge clk) begin
      read_answer <= read_valid;
      read_data   <= lines[read_line % Chip];
      if (write_valid) lines[write_line % Chip] <= write_data;
      // What is asked for while lines come waits behind them.
      if (beat_valid && beat_ready) begin
        next <= next + 1'b1;
        left <= left - 1'b1;
        if (c == 0) alone_lines = alone_lines + 1;
      end
      if (fetch_valid && ahead == '0) begin
        ahead      <= fetch_lines;
        ahead_line <= fetch_line;
      end else if (ahead != '0 && (left == '0 || (left == 16'd1 && beat_ready))) begin
        next  <= ahead_line;
        left  <= ahead;
        ahead <= '0;
      end
      if (logit_valid) begin
        alone_logit[c*Most + alone_logits[c]] = logit;
        alone_logits[c] = alone_logits[c] + 1;
      end
    end
  end

  // ---------------------------------------------------------------- all together
  logic                   read_valid, read_ready = 1'b0, read_answer = 1'b0, write_valid, write_ready = 1'b0, fetch_valid, fetch_ready = 1'b0;
  logic                   beat_valid = 1'b0, beat_ready, logit_last;
  logic [2:0]             read_context, write_context;
  logic [CHIP_BITS-1:0]   read_line, write_line;
  logic [511:0]           read_data = '0, write_data, beat_data = '0;
  logic [MEMORY_BITS-1:0] fetch_line;
  logic [15:0]            fetch_lines;
  logic [Contexts-1:0]    logit_valid, logit_ready = '0;
  logic [Contexts-1:0][31:0] logit;
  logic                   sampler_begin;
  logic [31:0]            shared_logit [0:Contexts*Most-1];
  int                     shared_logits [0:Contexts-1], shared_lines = 0, words = 0, shares = 0, heads = 0, asked_in = 0, asked_out = 0;
  int                     asked [0:4095], at;
  bit                     is_ended;
  int                     read_shut = 0;

  npu_gemv #(.Contexts(Contexts)) dut (
    .clk_i(clk), .rst_ni(rst_n), .start_i(start), .op_i(op), .mask_i(mask), .give_up_i(give_up), .idle_o(idle), .done_o(done), .end_o(ended),
    .read_valid_o(read_valid), .read_context_o(read_context), .read_line_o(read_line), .read_ready_i(read_ready), .read_answer_i(read_answer),
    .read_data_i(read_data), .write_valid_o(write_valid), .write_context_o(write_context), .write_line_o(write_line), .write_data_o(write_data),
    .write_ready_i(write_ready), .fetch_valid_o(fetch_valid), .fetch_line_o(fetch_line), .fetch_lines_o(fetch_lines), .fetch_ready_i(fetch_ready),
    .beat_valid_i(beat_valid), .beat_data_i(beat_data), .beat_fault_i(1'b0), .beat_ready_o(beat_ready),
    .sampler_begin_o(sampler_begin), .sampler_begun_i(1'b1), .sampler_idle_i(1'b1),
    .logit_valid_o(logit_valid), .logit_o(logit), .logit_last_o(logit_last), .logit_ready_i(logit_ready)
  );

  always @(posedge clk) if (rst_n) begin
    read_answer <= read_valid && read_ready;
    if (read_valid && read_ready) begin
      if (!mask[read_context]) fail($sformatf("N8: word %0d reads for context %0d, of whom it is not", words, read_context));
      read_data <= chip[(int'(read_context) * Chip + int'(read_line)) % (Contexts * Chip)];
    end else read_data <= 'x;
    if (write_valid && write_ready) begin
      if (!mask[write_context]) fail($sformatf("N8: word %0d writes for context %0d, of whom it is not", words, write_context));
      chip[(int'(write_context) * Chip + int'(write_line)) % (Contexts * Chip)] = write_data;
    end
    // Others may have the port for long. After its end a word asks for nothing.
    read_shut   = (read_shut != 0) ? read_shut - 1 : (give_up && chance(3)) ? below(400) : 0;
    read_ready  <= read_shut == 0 && chance(70);
    if (done && (read_valid || read_answer)) fail($sformatf("N1: word %0d is done, and reads", words));
    write_ready <= chance(50);
    fetch_ready <= chance(60) && asked_in - asked_out < 64;
    logit_ready <= rnd();
    for (int c = 0; c < Contexts; c++) begin
      if (logit_valid[c] && logit_ready[c]) begin
        if (!mask[c]) fail($sformatf("N8: word %0d gives context %0d a logit", words, c));
        shared_logit[c*Most + shared_logits[c]] = logit >> (32 * c);
        shared_logits[c] = shared_logits[c] + 1;
      end
    end
    if (beat_valid && beat_ready) begin
      beat_valid <= 1'b0;
      beat_data  <= 'x;
      shared_lines = shared_lines + 1;
      asked_out    = asked_out + 1;
    end
    if (fetch_valid && fetch_ready)
      for (int k = 0; k < int'(fetch_lines); k++) begin
        asked[asked_in % 4096] = int'(fetch_line) + k;
        asked_in = asked_in + 1;
      end
    if (asked_in != asked_out && (!beat_valid || beat_ready) && chance(85)) begin
      beat_valid <= 1'b1;
      beat_data  <= memory[asked[asked_out % 4096] % Model];
    end
  end

  logic [Contexts-1:0] finished;
  always @(posedge clk) begin
    if (start) finished = '0;
    else finished = finished | alone_done;
    if (done) is_ended = 1'b1;
  end

  // ---------------------------------------------------------------- words by chance
  function automatic logic [511:0] line();
    for (int k = 0; k < 16; k++) line[32*k +: 32] = rnd();
  endfunction

  int columns, rows, head_rows, asked_then, cuts = 0, gone, whole;
  bit doomed;

  initial begin
    for (int k = 0; k < Model; k++) memory[k] = line();
    @(posedge rst_n);
    while (words < 90) begin
      waits_for = $sformatf("word %0d", words);
      op            = '0;
      columns       = 32 * between(1, 9);
      op.kind       = chance(40) ? OP_HEAD : OP_MULTIPLY;
      op.accumulate = op.kind == OP_MULTIPLY && chance(60);
      op.scaled     = chance(80);
      op.first      = 1'b1;
      op.last       = 1'b1;
      op.cap        = op.kind == OP_HEAD && chance(50);
      doomed        = chance(35);
      rows          = op.accumulate ? 32 * between(1, doomed ? 12 : 3) : between(1, (op.kind == OP_HEAD) ? 80 : doomed ? 400 : 80);
      op.rows       = 21'(rows);
      op.columns    = 16'(columns);
      op.a          = '0;
      op.dst        = Dst;
      op.exponent   = 8'(0) - 8'(between(0, 30));
      op.from       = MEMORY_BITS'(between(0, 100));
      op.scales     = 32'(between(1800, 2000));
      mask          = chance(20) ? '1 : Contexts'(between(1, (1 << Contexts) - 1));
      for (int k = 0; k < Contexts * Chip; k++) chip[k] = line();
      // Heads of activations: an exponent that leaves something of the sums.
      for (int c = 0; c < Contexts; c++) begin
        chip[c*Chip][31:16] = 16'(between(0, 30)) - 16'd20;
        // Shifts of 0 to 8.
        for (int k = 0; k < 64; k++) chip[c*Chip + 1][8*k +: 8] = 8'(below(9));
      end
      for (int k = 0; k < Contexts * Chip; k++) earlier[k] = chip[k];
      for (int k = 0; k < Chip; k++) begin
        gen_alone[0].lines[k] = chip[k];
        gen_alone[1].lines[k] = chip[Chip + k];
        gen_alone[2].lines[k] = chip[2*Chip + k];
        gen_alone[3].lines[k] = chip[3*Chip + k];
        gen_alone[4].lines[k] = chip[4*Chip + k];
      end
      for (int c = 0; c < Contexts; c++) begin
        alone_logits[c]  = 0;
        shared_logits[c] = 0;
      end
      shared_lines = 0;
      is_ended     = 1'b0;
      @(posedge clk);
      #1 start = 1'b1;
      @(posedge clk);
      #1 start = 1'b0;
      if (doomed) begin
        repeat (below(chance(50) ? 60 : 600)) @(posedge clk);
        #1 give_up = 1'b1;
        asked_then = asked_in;
        gone       = 0;
      end
      while (!is_ended || finished != mask) begin
        @(posedge clk);
        gone = gone + 1;
        if (doomed && !is_ended && gone > 4000) fail($sformatf("R12: word %0d is given up, and does not end", words));
      end
      #1;
      whole = (rows + 31) / 32 + rows * ((columns + 63) / 64);
      if (doomed) begin
        give_up = 1'b0;
        if (asked_in - asked_then > 1 + 32 * ((columns + 63) / 64)) fail($sformatf("R12: word %0d is given up, and %0d lines are asked for", words, asked_in - asked_then));
        if (asked_in != asked_out) fail($sformatf("N5: word %0d is given up with lines on their way", words));
        if (ended !== ((shared_lines == whole) ? UNIT_FINE : UNIT_MEMORY)) fail($sformatf("word %0d is given up behind %0d of %0d lines, and ended with %0d", words, shared_lines, whole, ended));
        if (shared_lines != whole) cuts = cuts + 1;
        for (int c = 0; c < Contexts; c++)
          for (int k = 0; k < Chip; k++)
            if ((!mask[c] || op.kind == OP_HEAD || k < Dst || k >= Dst + (rows + 31) / 32 * 2) && chip[c*Chip + k] !== earlier[c*Chip + k])
              fail($sformatf("N2: word %0d is given up, and writes line %0d of context %0d", words, k, c));
      end else begin
        if (ended !== UNIT_FINE) fail($sformatf("word %0d ended with %0d", words, ended));
        // Scales of 32 rows in a line, and the rows.
        if (shared_lines != (rows + 31) / 32 + rows * ((columns + 63) / 64)) fail($sformatf("N8: word %0d reads %0d lines of weights", words, shared_lines));
        for (int c = 0; c < Contexts; c++) begin
          for (int k = 0; k < Chip; k++) begin
            if (!mask[c]) begin
              if (chip[c*Chip + k] !== earlier[c*Chip + k]) fail($sformatf("N8: word %0d writes line %0d of context %0d, of whom it is not", words, k, c));
            end else if (chip[c*Chip + k] !== of_alone(c, k))
              fail($sformatf("N8: word %0d: line %0d of context %0d is %h, alone %h", words, k, c, chip[c*Chip + k], of_alone(c, k)));
          end
          if (mask[c] && shared_logits[c] != alone_logits[c]) fail($sformatf("word %0d gives context %0d %0d logits, alone %0d", words, c, shared_logits[c], alone_logits[c]));
          if (mask[c])
            for (int k = 0; k < alone_logits[c]; k++)
              if (shared_logit[c*Most + k] !== alone_logit[c*Most + k])
                fail($sformatf("N8: word %0d: logit %0d of context %0d is %h, alone %h", words, k, c, shared_logit[c*Most + k], alone_logit[c*Most + k]));
        end
        if ((mask & (mask - 1'b1)) != '0) shares = shares + 1;
        if (op.kind == OP_HEAD) heads = heads + 1;
      end
      words = words + 1;
    end
    if (shares < 30 || heads < 10 || cuts < 8) fail($sformatf("drawn too tame: %0d words of several contexts, %0d heads, %0d cut", shares, heads, cuts));
    $display("%0d words, %0d of several contexts, %0d heads", words, shares, heads);
    finish_bench("npu_gemv_share_tb");
  end

  function automatic logic [511:0] of_alone(input int c, input int k);
    case (c)
      0:       of_alone = gen_alone[0].lines[k];
      1:       of_alone = gen_alone[1].lines[k];
      2:       of_alone = gen_alone[2].lines[k];
      3:       of_alone = gen_alone[3].lines[k];
      default: of_alone = gen_alone[4].lines[k];
    endcase
  endfunction
endmodule
