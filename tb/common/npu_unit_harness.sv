// What a unit of the NPU stands in: on-chip memory, model memory and an arena with delays and stalls that are drawn, a block table, and a
// script (+script=FILE, of `cargo run -p doorbell-npu --example vectors`) that says what each word is to do.
//   +calm      no delays and no stalls
//   +cycles    prints how long each word took
module npu_unit_harness
  import bench_pkg::*;
  import npu_unit_pkg::*;
#(
  parameter int ChipLines   = 1024,
  parameter int MemoryLines = 1 << 14,
  parameter int ArenaLines  = 1 << 13,
  parameter int OutputLines = 16,
  parameter int Entries     = 64,       // of the block table
  parameter bit Arena       = 1'b0      // fetches are of the arena
) (
  input  logic         clk_i,
  input  logic         rst_ni,
  output logic         over_o,          // the script has ended

  output logic         start_o,
  output npu_op_t      op_o,
  output npu_step_t    step_o,
  output logic [15:0]  output_lines_o,  // of the output region
  input  logic         idle_i,
  input  logic         done_i,
  input  npu_end_t     end_i,
  input  logic         sample_valid_i,  // beside done_i
  input  logic [31:0]  sample_token_i,
  input  logic [31:0]  sample_logp_i,

  input  logic                 read_valid_i,
  input  logic [CHIP_BITS-1:0] read_line_i,
  output logic                 read_ready_o,
  output logic                 read_answer_o,
  output logic [511:0]         read_data_o,
  input  logic                 write_valid_i,
  input  logic [CHIP_BITS-1:0] write_line_i,
  input  logic [511:0]         write_data_i,
  output logic                 write_ready_o,

  input  logic                   fetch_valid_i,
  input  logic [MEMORY_BITS-1:0] fetch_line_i,
  input  logic [15:0]            fetch_lines_i,
  output logic                   fetch_ready_o,
  output logic                   beat_valid_o,
  output logic [511:0]           beat_data_o,
  output logic                   beat_fault_o,
  input  logic                   beat_ready_i,

  input  logic                   store_valid_i,
  input  logic                   store_output_i,   // into the output region, not the arena
  input  logic [MEMORY_BITS-1:0] store_line_i,
  input  logic [511:0]           store_data_i,
  input  logic [63:0]            store_strobe_i,
  output logic                   store_ready_o,
  output logic                   stored_o,
  output logic                   store_fault_o,

  input  logic                   block_ask_i,
  input  logic [10:0]            block_entry_i,
  output logic                   block_answer_o,
  output logic [MEMORY_BITS-1:0] block_line_o,
  output npu_end_t               block_end_o
);
  logic [511:0] chip   [0:ChipLines-1],   chip_expected  [0:ChipLines-1];
  logic [511:0] memory [0:MemoryLines-1];
  logic [511:0] arena  [0:ArenaLines-1],  arena_expected [0:ArenaLines-1];
  logic [511:0] region [0:OutputLines-1], region_expected[0:OutputLines-1];
  logic [MEMORY_BITS-1:0] block_line [0:Entries-1];
  logic [3:0]             block_end  [0:Entries-1];
  logic [31:0]  broken, broken_arena;
  logic         written [0:ChipLines-1];
  bit           calm, cycles;
  logic         running = 1'b0;
  int           cycle = 0, words = 0, started = 0;

  // ---------------------------------------------------------------- the script
  string       path;
  integer      file, code;
  logic [7:0]  letter;
  logic [31:0] line;
  logic [511:0] data;
  logic [$bits(npu_op_t)-1:0] op;
  logic [31:0] token, position, silent, sharpness, seed, rollout, lines, ended, logp;
  logic        wants_sample;

  task automatic compare(input logic failed);
    for (int k = 0; k < ChipLines; k++) begin
      // What a word that failed leaves behind is not said.
      if (failed) chip[k] = chip_expected[k];
      else if (chip[k] !== chip_expected[k]) fail($sformatf("N2: word %0d (kind %0d): chip line %0d is %h, expected %h", words, op_o.kind, k, chip[k], chip_expected[k]));
      written[k] = 1'b0;
    end
    for (int k = 0; k < ArenaLines; k++) begin
      if (failed) arena[k] = arena_expected[k];
      else if (arena[k] !== arena_expected[k]) fail($sformatf("N2: word %0d: arena line %0d is %h, expected %h", words, k, arena[k], arena_expected[k]));
    end
    for (int k = 0; k < OutputLines; k++) begin
      if (failed) region[k] = region_expected[k];
      else if (region[k] !== region_expected[k]) fail($sformatf("N2: word %0d: output line %0d is %h, expected %h", words, k, region[k], region_expected[k]));
    end
  endtask

  initial begin
    calm   = $test$plusargs("calm");
    cycles = $test$plusargs("cycles");
    over_o = 1'b0;
    start_o = 1'b0;
    wants_sample = 1'b0;
    broken = '1;
    broken_arena = '1;
    for (int k = 0; k < ArenaLines; k++) begin
      arena[k] = '0;
      arena_expected[k] = '0;
    end
    for (int k = 0; k < OutputLines; k++) begin
      region[k] = '0;
      region_expected[k] = '0;
    end
    for (int k = 0; k < MemoryLines; k++) memory[k] = '0;
    for (int k = 0; k < ChipLines; k++) written[k] = 1'b0;
    for (int k = 0; k < Entries; k++) block_end[k] = UNIT_MISSING;
    if (!$value$plusargs("script=%s", path)) $fatal(1, "+script=FILE is missing; `cargo run -p doorbell-npu --example vectors` makes one");
    file = $fopen(path, "r");
    if (file == 0) $fatal(1, "%0s cannot be read", path);
    @(posedge clk_i);
    while (!rst_ni) @(posedge clk_i);
    code = $fscanf(file, " %c", letter);
    while (code == 1) begin
      case (letter)
        "C", "M", "A", "W", "K", "U": begin
          code = $fscanf(file, " %h %h", line, data);
          case (letter)
            "C": begin chip[line] = data; chip_expected[line] = data; end
            "M": memory[line] = data;
            "A": begin arena[line] = data; arena_expected[line] = data; end
            "W": chip_expected[line] = data;
            "K": arena_expected[line] = data;
            default: region_expected[line] = data;
          endcase
        end
        "F": code = $fscanf(file, " %h", broken);
        "G": code = $fscanf(file, " %h", broken_arena);
        "B": begin
          code = $fscanf(file, " %h %h %h", line, data, ended);
          block_line[line] = data[MEMORY_BITS-1:0];
          block_end[line]  = ended[3:0];
        end
        "S": begin
          code = $fscanf(file, " %h %h %h %h %h %h %h", token, position, silent, sharpness, seed, rollout, lines);
          step_o = {token, position, silent[0], silent[1], sharpness[27:0], seed, rollout};
          output_lines_o = lines[15:0];
        end
        "O": code = $fscanf(file, " %h", op);
        "Q": begin
          code = $fscanf(file, " %h %h", token, logp);
          wants_sample = 1'b1;
        end
        "E": begin
          code = $fscanf(file, " %h", ended);
          if (!calm) repeat (below(4)) @(posedge clk_i);
          while (!idle_i) @(posedge clk_i);
          #1;
          start_o = 1'b1;
          op_o    = op[$bits(npu_op_t)-1:0];
          running = 1'b1;
          started = cycle;
          waits_for = $sformatf("word %0d of the script, kind %0d, is not done", words, op_o.kind);
          @(posedge clk_i);
          #1 start_o = 1'b0;
          while (!done_i) @(posedge clk_i);
          if (cycles) $display("word %0d kind %0d: %0d cycles", words, op_o.kind, cycle - started);
          if (end_i !== ended[3:0]) fail($sformatf("word %0d (kind %0d) ended with %0d, expected %0d", words, op_o.kind, end_i, ended[3:0]));
          if (sample_valid_i !== wants_sample) fail($sformatf("word %0d: a sample is there: %b, expected %b", words, sample_valid_i, wants_sample));
          else if (wants_sample && {sample_token_i, sample_logp_i} !== {token, logp})
            fail($sformatf("word %0d: token %0d logp %0d, expected %0d %0d", words, sample_token_i, $signed(sample_logp_i), token, $signed(logp)));
          wants_sample = 1'b0;
          if (fetches_q != 0 || fetch_valid_i) fail($sformatf("N5: word %0d ended with lines still to come", words));
          if (stores != 0 || store_valid_i) fail($sformatf("N5: word %0d ended with writes that are not answered", words));
          @(negedge clk_i);
          running = 1'b0;
          compare(ended != 0);
          words = words + 1;
          @(posedge clk_i);
        end
        default: $fatal(1, "%0s: no such letter: %c", path, letter);
      endcase
      if (letter != "E" && code < 1) $fatal(1, "%0s: a line ends early", path);
      code = $fscanf(file, " %c", letter);
    end
    if (words == 0) $fatal(1, "%0s holds no word", path);
    $display("%0d words", words);
    over_o = 1'b1;
  end

  // ---------------------------------------------------------------- N1
  always @(posedge clk_i) begin
    cycle <= cycle + 1;
    if (rst_ni && done_i && !running) fail("N1: done without a word");
    if (rst_ni && (read_valid_i || write_valid_i || fetch_valid_i || store_valid_i || block_ask_i) && !running) fail("N7: a unit without a word asks for something");
  end

  // ---------------------------------------------------------------- on-chip memory
  logic read_open_q = 1'b1, write_open_q = 1'b1;
  assign read_ready_o  = read_open_q;
  assign write_ready_o = write_open_q;

  always @(posedge clk_i) begin
    read_open_q   <= calm || !chance(25);
    write_open_q  <= calm || !chance(25);
    read_answer_o <= rst_ni && read_valid_i && read_ready_o;
    read_data_o   <= {16{32'hDEAD_BEEF}};
    if (rst_ni && read_valid_i && read_ready_o) begin
      if (32'(read_line_i) >= ChipLines) fail($sformatf("N2: read of chip line %0d", read_line_i));
      else read_data_o <= chip[read_line_i];
    end
    if (rst_ni && write_valid_i && write_ready_o) begin
      if (32'(write_line_i) >= ChipLines) fail($sformatf("N2: write of chip line %0d", write_line_i));
      else begin
        if (written[write_line_i]) fail($sformatf("N2: word %0d (kind %0d) writes chip line %0d twice", words, op_o.kind, write_line_i));
        written[write_line_i] = 1'b1;
        chip[write_line_i] <= write_data_i;
      end
    end
  end

  // ---------------------------------------------------------------- memory: what was asked for, in order
  logic [MEMORY_BITS-1:0] asked_line [$];
  int                     asked_left [$];
  int                     fetches_q = 0;     // lines that are still to come
  int                     wait_q = 0;
  logic                   fetch_open_q = 1'b1;
  logic [MEMORY_BITS-1:0] next_line;
  assign fetch_ready_o = fetch_open_q;

  always @(posedge clk_i) begin
    if (!rst_ni) begin
      beat_valid_o <= 1'b0;
    end else begin
      fetch_open_q <= calm || !chance(30);
      if (beat_valid_o && beat_ready_i) begin
        beat_valid_o <= 1'b0;
        beat_data_o  <= 'x;
        fetches_q = fetches_q - 1;
      end
      if ((!beat_valid_o || beat_ready_i) && asked_left.size() != 0) begin
        if (wait_q != 0) wait_q <= wait_q - 1;
        else if (calm || !chance(20)) begin
          next_line = asked_line[0];
          if (Arena ? 64'(next_line) >= ArenaLines : 64'(next_line) >= MemoryLines) fail($sformatf("N5: fetch of line %0d", next_line));
          else begin
            beat_valid_o <= 1'b1;
            beat_data_o  <= Arena ? arena[next_line] : memory[next_line];
            beat_fault_o <= next_line == MEMORY_BITS'(Arena ? broken_arena : broken);
            if (next_line == MEMORY_BITS'(Arena ? broken_arena : broken)) beat_data_o <= 'x;
          end
          asked_line[0] = next_line + 1;
          asked_left[0] = asked_left[0] - 1;
          if (asked_left[0] == 0) begin
            asked_line.delete(0);
            asked_left.delete(0);
            // The next burst comes some time later.
            if (!calm && chance(20)) wait_q <= below(40);
          end
        end
      end
      if (fetch_valid_i && fetch_ready_o) begin
        if (fetch_lines_i == 0) fail("N5: a fetch of no lines");
        if (asked_left.size() == 0 && !calm) wait_q <= below(60);
        asked_line.push_back(fetch_line_i);
        asked_left.push_back(int'(fetch_lines_i));
        fetches_q = fetches_q + int'(fetch_lines_i);
      end
    end
  end

  // ---------------------------------------------------------------- memory: writes, answered in any order but not at once
  int   stores = 0;
  logic store_open_q = 1'b1;
  assign store_ready_o = store_open_q;

  always @(posedge clk_i) begin
    store_open_q  <= calm || !chance(30);
    stored_o      <= 1'b0;
    store_fault_o <= 1'b0;
    if (stores != 0 && (calm || chance(30))) begin
      stored_o <= 1'b1;
      stores = stores - 1;
    end
    if (rst_ni && store_valid_i && store_ready_o) begin
      stores = stores + 1;
      if (store_output_i ? 64'(store_line_i) >= OutputLines : 64'(store_line_i) >= ArenaLines) fail($sformatf("N2: store of line %0d", store_line_i));
      else for (int k = 0; k < 64; k++)
        if (store_strobe_i[k]) begin
          if (store_output_i) region[store_line_i][8*k +: 8] = store_data_i[8*k +: 8];
          else arena[store_line_i][8*k +: 8] = store_data_i[8*k +: 8];
        end
    end
  end

  // ---------------------------------------------------------------- the block table
  int block_wait = 0;
  always @(posedge clk_i) begin
    block_answer_o <= 1'b0;
    if (rst_ni && block_ask_i && !block_answer_o) begin
      if (block_wait != 0) block_wait = block_wait - 1;
      else begin
        block_wait = calm ? 0 : below(12);
        block_answer_o <= 1'b1;
        block_line_o   <= (32'(block_entry_i) < Entries) ? block_line[block_entry_i] : 'x;
        block_end_o    <= (32'(block_entry_i) < Entries) ? block_end[block_entry_i] : UNIT_MISSING;
      end
    end
  end
endmodule
