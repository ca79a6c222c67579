// image_check against the contract ("Which error", 12): sound records and headers of random shapes and of the largest ones, then each
// rule broken by as little as there is, alone and with others: the check, alignments, ends that lie one byte behind their
// region and sums that wrap, tokens at the edge of the vocabulary, every number of the shape beside its bounds, heads that
// cannot share, a block whose lines leave 32 bits. An unsound record leaves the one before it as it is.
module image_check_tb;
  import bench_pkg::*;
  import bench_reference_pkg::*;
  import desc_pkg::*;
  import core_pkg::*;

  logic clk, rst_n;
  int   cycle;
  clock_reset #(.Limit(400000)) u_clock (.clk_o(clk), .rst_no(rst_n), .cycle_o(cycle));

  logic         run = 1'b0, is_header = 1'b0, done, sound;
  logic [511:0] line = '0;
  logic [63:0]  model_size = '0;
  image_t       image;

  image_check u_check (
    .clk_i(clk), .run_i(run), .header_i(is_header), .line_i(line), .model_size_i(model_size), .done_o(done), .sound_o(sound),
    .image_o(image)
  );

  int   sounds [0:1], unsounds [0:1];      // records, headers
  int   least;
  initial for (int k = 0; k < 2; k++) begin sounds[k] = 0; unsounds[k] = 0; end

  // The record that was sound last, as image_o shows it.
  logic [511:0] kept = '0;
  logic         was_kept = 1'b0;
  function automatic image_t image_of(input hw_image_t record);
    image_of = {record.offset, record.length, record.program_at, record.words, record.vocabulary, record.positions, record.block_lines,
                record.end_0, record.end_1, record.end_2, record.end_3};
  endfunction

  task automatic judge(input logic head, input logic [511:0] data, input string what);
    logic want;
    int   waited;
    want = head ? ref_model_sound(data, kept) : ref_image_sound(data, model_size);
    run       <= 1'b1;
    is_header <= head;
    line      <= data;
    waited = 0;
    @(posedge clk);
    #1;
    while (!done) begin
      if (sound) fail("sound before it is known");
      waits_for = "the bench waits for image_check";
      waited = waited + 1;
      @(posedge clk);
      #1;
    end
    if (waited != (head ? 12 : 29)) fail($sformatf("it takes %0d cycles", waited));
    if (sound !== want) fail($sformatf("R25: %0s, %0s: sound is %b, expected %b (%h)", head ? "header" : "HwImage", what, sound, want, data));
    repeat (below(3)) begin
      @(posedge clk);
      #1;
      if (!done || sound !== want) fail("the answer does not stay");
    end
    if (want) sounds[head] = sounds[head] + 1;
    else      unsounds[head] = unsounds[head] + 1;
    @(posedge clk);
    run <= 1'b0;
    if (want && !head) begin
      kept     = data;
      was_kept = 1'b1;
    end
    @(posedge clk);
    #1;
    if (done) fail("done without a line");
    if (was_kept && image !== image_of(kept)) fail("R25: the image is not that of the last sound HwImage");
  endtask

  // The record with another number in it, sealed.
  function automatic logic [511:0] with64(input logic [511:0] record, input int at, input logic [63:0] value);
    record[at +: 64] = value;
    with64 = ref_fold_seal(record);
  endfunction
  function automatic logic [511:0] with32(input logic [511:0] record, input int at, input logic [31:0] value);
    record[at +: 32] = value;
    with32 = ref_fold_seal(record);
  endfunction

  // A number that is likely to be a bound, or beside one.
  function automatic logic [31:0] edge_of(input logic [31:0] bound);
    case (below(5))
      0: edge_of = bound;
      1: edge_of = bound + 1;
      2: edge_of = bound + 32;
      3: edge_of = 32'd1 << below(32);
      default: edge_of = bound - 1;
    endcase
  endfunction

  // The largest number that a shape may have there.
  function automatic logic [31:0] most(input int k);
    most = (k == 4) ? 256 : (k == 5 || k == 7) ? 65536 : (k == 6) ? 1048576 : 4096;
  endfunction

  task automatic case_records(input logic [511:0] header);
    logic [511:0] record, other;
    hw_image_t    r;
    record = ref_record_of(header, 64 * below(100));
    r      = record;
    model_size = r.offset + r.length;
    judge(1'b0, record, "as it should be, and no byte behind it");
    // R2's like: one bit, anywhere.
    judge(1'b0, record ^ (512'd1 << below(512)), "a bit of it");
    judge(1'b0, '0, "cleared memory");
    model_size = r.offset + r.length - 1;
    judge(1'b0, record, "a region that ends a byte early");
    model_size = 64'd0;
    judge(1'b0, record, "no region");
    model_size = '1;
    judge(1'b0, with64(record, HW_IMAGE_OFFSET_LSB, -64'd64), "offset + length wraps");
    judge(1'b0, with64(record, HW_IMAGE_OFFSET_LSB, 64'h8000_0000_0000_0000), "a far offset");
    judge(1'b0, with64(record, HW_IMAGE_OFFSET_LSB, r.offset ^ (64'd1 << below(6))), "a misaligned offset");
    judge(1'b0, with64(record, HW_IMAGE_LENGTH_LSB, r.length + (64'd1 << below(6))), "a misaligned length");
    judge(1'b0, with64(record, HW_IMAGE_PROGRAM_AT_LSB, r.program_at ^ (64'd1 << below(6))), "a misaligned program");
    judge(1'b0, with64(record, HW_IMAGE_PROGRAM_AT_LSB, -64'd64), "program_at + words wraps");
    judge(1'b0, with32(record, HW_IMAGE_WORDS_LSB, 0), "no words");
    judge(1'b0, with32(record, HW_IMAGE_WORDS_LSB, 32'((r.length - r.program_at) / 8)), "words up to its end");
    judge(1'b0, with32(record, HW_IMAGE_WORDS_LSB, 32'((r.length - r.program_at) / 8) + 1), "a word behind its end");
    judge(1'b0, with32(record, HW_IMAGE_WORDS_LSB, 32'h2000_0000), "words whose bytes wrap at 2^32");
    judge(1'b0, with32(record, HW_IMAGE_WORDS_LSB, '1), "as many words as there can be");
    // As many words, and as far a program, as the NPU counts with.
    other = with64(record, HW_IMAGE_LENGTH_LSB, r.program_at + 64'h10_0000);
    judge(1'b0, with32(other, HW_IMAGE_WORDS_LSB, 32'd65535), "65,535 words");
    judge(1'b0, with32(other, HW_IMAGE_WORDS_LSB, 32'd65536), "65,536 words");
    judge(1'b0, with32(other, HW_IMAGE_WORDS_LSB, 32'd1 << between(16, 17)), "a bit of the words that the NPU has not");
    other = with64(record, HW_IMAGE_LENGTH_LSB, 64'h200_0000_0000);
    other = with64(other, HW_IMAGE_OFFSET_LSB, 64'd0);
    judge(1'b0, with64(other, HW_IMAGE_PROGRAM_AT_LSB, 64'h0FF_FFFF_FFC0), "the last line at which a program may begin");
    judge(1'b0, with64(other, HW_IMAGE_PROGRAM_AT_LSB, 64'h100_0000_0000), "the line behind it");
    for (int k = 0; k < 4; k++) begin
      judge(1'b0, with32(record, HW_IMAGE_END_0_LSB + 32*k, r.vocabulary), $sformatf("end_%0d is no token", k));
      judge(1'b0, with32(record, HW_IMAGE_END_0_LSB + 32*k, r.vocabulary - 1), $sformatf("end_%0d is the last token", k));
      judge(1'b0, with32(record, HW_IMAGE_END_0_LSB + 32*k, 32'hFFFF_FFFE), $sformatf("end_%0d is beside 'none'", k));
    end
    // What the header is held against is not looked at before.
    other = record;
    other[HW_IMAGE_IMAGE_CHECK_LSB +: 32] = rnd();
    other[HW_IMAGE_POSITIONS_LSB +: 32]   = rnd();
    other[HW_IMAGE_BLOCK_LINES_LSB +: 32] = rnd();
    judge(1'b0, ref_fold_seal(other), "numbers of its header");
    other = ref_fold_seal({rnd(), rnd(), rnd(), rnd(), rnd(), rnd(), rnd(), rnd(), rnd(), rnd(), rnd(), rnd(), rnd(), rnd(), rnd(), rnd()});
    judge(1'b0, other, "anything");
    judge(1'b0, record, "sound again");
  endtask

  task automatic case_headers(input logic [511:0] header);
    logic [511:0] record;
    judge(1'b1, header, "as it should be");
    judge(1'b1, header ^ (512'd1 << below(480)), "a bit of it");
    judge(1'b1, header ^ (512'd1 << between(480, 511)), "a bit that nobody looks at");
    for (int k = 0; k < 8; k++) judge(1'b1, header ^ (512'd1 << (8 * k + below(8))), "another beginning");
    judge(1'b1, {header[511:96], 32'd1, header[63:0]}, "another layout");
    judge(1'b1, {header[511:480], 32'h10_0000, header[447:0]}, "an epsilon of 1");
    judge(1'b1, {header[511:480], 32'hF_FFFF, header[447:0]}, "the largest epsilon");
    judge(1'b1, {header[511:192], kept[HW_IMAGE_PROGRAM_AT_LSB +: 64], header[127:0]}, "a file up to the program");
    judge(1'b1, {header[511:192], kept[HW_IMAGE_PROGRAM_AT_LSB +: 64] + 64'd1, header[127:0]}, "a file a byte longer");
    judge(1'b1, {header[511:192], 64'h1_0000_0000 | kept[HW_IMAGE_PROGRAM_AT_LSB +: 64], header[127:0]}, "a file that is longer by 2^32");
    judge(1'b1, '0, "cleared memory");
    judge(1'b1, kept, "an HwImage");
    // Against a record that says something else.
    record = kept;
    for (int k = 0; k < 4; k++) begin
      judge(1'b0, with32(record, k == 0 ? HW_IMAGE_IMAGE_CHECK_LSB : k == 1 ? HW_IMAGE_POSITIONS_LSB
                                 : k == 2 ? HW_IMAGE_BLOCK_LINES_LSB : HW_IMAGE_VOCABULARY_LSB,
                         record[(k == 0 ? HW_IMAGE_IMAGE_CHECK_LSB : k == 1 ? HW_IMAGE_POSITIONS_LSB
                                 : k == 2 ? HW_IMAGE_BLOCK_LINES_LSB : HW_IMAGE_VOCABULARY_LSB) +: 32] + (chance(50) ? 1 : 32'h0010_0000)),
            "another number");
      judge(1'b1, header, "not that of its record");
    end
    judge(1'b0, record, "sound again");
  endtask

  // Shapes: one number of it changed, and the record made to fit, so that nothing but the shape speaks against it.
  task automatic case_shape(input logic [511:0] drawn, input int k, input logic [31:0] value);
    logic [511:0] header;
    header = drawn;
    header[192 + 32*k +: 32] = value;
    model_size = '1;
    judge(1'b0, with32(ref_record_of(header, 0), HW_IMAGE_END_0_LSB, '1), "of a shape");
    if (kept[HW_IMAGE_VOCABULARY_LSB +: 32] == header[384 +: 32]) judge(1'b1, header, $sformatf("number %0d of the shape is %0d", k, value));
  endtask

  logic [511:0] header;
  initial begin
    @(posedge rst_n);
    for (int n = 0; n < 60; n++) begin
      header = ref_random_model();
      case_records(header);
      case_headers(header);
      for (int k = 0; k < 8; k++) begin
        case_shape(header, k, most(k));
        case_shape(header, k, most(k) + (chance(50) ? 32 : 1));
        case_shape(header, k, 0);
        case_shape(header, k, edge_of(chance(50) ? most(k) : header[192 + 32*k +: 32]));
      end
      // Layers with keys and values of their own: one, all of them, one more than there are.
      case_shape(header, 1, {16'd1, header[224 +: 16]});
      case_shape(header, 1, {2{header[224 +: 16]}});
      case_shape(header, 1, {header[224 +: 16] + 16'd1, header[224 +: 16]});
      case_shape(header, 1, {16'd1, 16'd0});
    end
    // As many lines of a block as there can be leave 32 bits: no record can say it.
    header = ref_random_model();
    header[224 +: 32] = 4096;
    header[256 +: 32] = 4096;
    header[288 +: 32] = 4096;
    header[320 +: 32] = 256;
    case_shape(header, 0, 64);
    header[320 +: 32] = 224;             // and the largest that it can
    case_shape(header, 0, 64);
    $display("sound: %0d records, %0d headers; not: %0d, %0d", sounds[0], sounds[1], unsounds[0], unsounds[1]);
    least = (sounds[1] < unsounds[1]) ? sounds[1] : unsounds[1];
    if (sounds[0] < 500 || least < 500 || unsounds[0] < 500) fail("too few of a kind");
    finish_bench("image_check_tb");
  end
endmodule
