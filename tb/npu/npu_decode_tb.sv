// npu_decode against the interpreter's table: every opcode, function, kind and register, every bit that must be 0, and words by
// chance. Fields are held to the words by the bench of npu_sequencer.
// vectors: decode 500 1000
module npu_decode_tb;
  import bench_pkg::*;
  import npu_pkg::*;
  import npu_unit_pkg::*;
  import npu_control_pkg::*;

  logic clk, rst_n;
  int   cycle;
  clock_reset #(.Limit(2000000)) u_clock (.clk_o(clk), .rst_no(rst_n), .cycle_o(cycle));

  logic        take = 1'b0;
  logic [63:0] word = '0;
  npu_word_t   found;
  npu_decode u_decode (.clk_i(clk), .take_i(take), .word_i(word), .word_o(found));

  string       name;
  int          file, count = 0;
  logic [7:0]  form, fault;
  logic [31:0] seen = '0;
  logic [FORMS-1:0] formed = '0;

  initial begin
    if (!$value$plusargs("script=%s", name)) $fatal(1, "+script=FILE is missing; `cargo run -p doorbell-npu --example vectors` makes one");
    file = $fopen(name, "r");
    if (file == 0) $fatal(1, "%0s cannot be read", name);
    @(posedge rst_n);
    while ($fscanf(file, "%h %h %h", word, form, fault) == 3) begin
      take = 1'b1;
      @(posedge clk);
      #1;
      if (found.fault !== fault[4:0]) fail($sformatf("word %h: error %0d, expected %0d", word, found.fault, fault));
      else if (fault == 0 && found.form !== form[5:0]) fail($sformatf("word %h: form %0d, expected %0d", word, found.form, form));
      // A word that is not taken changes nothing.
      take = 1'b0;
      word = ~word;
      if (chance(10)) begin
        @(posedge clk);
        #1;
        if (found.fault !== fault[4:0]) fail("a word that was not taken is decoded");
      end
      seen[fault[4:0]] = 1'b1;
      if (fault == 0) formed[form[5:0]] = 1'b1;
      count = count + 1;
    end
    if (count < 1000 || formed != '1) fail($sformatf("%0d words, kinds %b", count, formed));
    if (!seen[FAULT_UNKNOWN_OPCODE] || !seen[FAULT_UNKNOWN_FUNCTION] || !seen[FAULT_UNKNOWN_REGISTER]
        || !seen[FAULT_BAD_ROUTE] || !seen[FAULT_RESERVED_BITS]) fail("an error is missing");
    finish_bench("npu_decode_tb");
  end
endmodule
