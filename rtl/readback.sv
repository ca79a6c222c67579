// What reads the token region: REWARD, which scores tokens that lie there, and POLICY, which publishes a version whose
// header lies there (rule R19). One at a time. It comes from completion_ring once all of its rollout that was before it is
// posted (so its tokens are in memory), and goes back there with its result; a version is loaded before its completion is
// posted. Reads are single beats, in order, some ahead of what is scored.
//
// What belongs to a queue pair that is disabled is abandoned: nothing more is read for it, and what is in flight is awaited.
//
// A POLICY of engine 1 has two lines more, each asked for once the one before it is sound: the HwImage behind its header, and the
// header of the image in the MODEL region (rule R25), which image_check judges.
//
// A line takes 16 cycles: by model 0 a word of it in each, by model 1 a range, which is compared with all of its words.
module readback
  import desc_pkg::*;
  import core_pkg::*;
  import policy_pkg::*;
#(
  parameter int Queues  = 1,
  parameter int Engines = 1
) (
  /* verilator lint_off UNUSEDSIGNAL */  // numbers of queue pairs have 4 bits, whatever was built
  input  logic         clk_i,
  input  logic         rst_ni,

  input  logic         start_i,         // a queue pair starts, with this configuration
  input  logic [3:0]   start_queue_i,
  input  queue_config_t start_config_i,
  input  model_config_t start_models_i,
  input  logic [Queues-1:0] on_i,

  // The descriptor whose turn it is.
  output logic         ready_o,         // early
  input  logic         valid_i,         // only with ready_o
  input  logic [3:0]   queue_i,
  input  logic         publishes_i,     // a POLICY; else a REWARD
  input  logic         model_i,         // the reward model
  input  logic [31:0]  what_i,          // how many tokens; of a POLICY: engine, mode (3: none), version
  input  logic [63:0]  addr_i,          // where they, or its header, lie
  // What became of it; stays until it is taken.
  output logic         done_o,
  output logic [7:0]   error_o,
  output logic [31:0]  result_o,
  input  logic         done_taken_i,

  // The read port.
  output logic         read_valid_o,
  output logic [63:0]  read_addr_o,
  output logic [3:0]   read_owner_o,
  input  logic         read_ready_i,
  input  logic         beat_i,
  input  logic [511:0] beat_data_i,
  input  logic         beat_fault_i,
  output logic         fault_o,         // the memory answered a read of this queue pair with an error
  output logic [3:0]   fault_queue_o,

  // A range of a function, combinational.
  output logic [3:0]   range_owner_o,
  output logic [3:0]   range_number_o,
  input  logic [63:0]  range_i,         // last, first

  // policy_slots.
  output logic         ask_o,
  output logic [3:0]   ask_queue_o,
  output logic [15:0]  ask_version_o,
  input  logic         ask_resident_i,
  input  logic         ask_occupied_i,
  output logic         load_o,
  output logic [31:0]  load_salt_o,     // of engine 1 it counts for nothing
  output logic [1:0]   load_mode_o,
  output logic         load_engine_o,   // of engine 1, with this image
  output image_t       load_image_o
  /* verilator lint_on UNUSEDSIGNAL */
);
  localparam int Ahead     = 4;
  localparam int CountBits = $clog2(Ahead + 1);
  localparam int QueueBits = (Queues == 1) ? 1 : $clog2(Queues);

  // The function of each queue pair.
  logic [3:0] owner_q [0:(1 << QueueBits)-1];
  always_ff @(posedge clk_i) begin
    if (start_i) owner_q[(Queues == 1) ? '0 : start_queue_i[QueueBits-1:0]] <= start_config_i.owner;
  end

  // ---------------------------------------------------------------- what is in hand
  localparam logic [2:0] Free  = 3'd0;    // nothing
  localparam logic [2:0] Ask   = 3'd1;    // POLICY: what speaks against it before its header is read
  localparam logic [2:0] Read  = 3'd2;    // lines come and are scored, or the header comes
  localparam logic [2:0] Check = 3'd3;    // POLICY: the check word of the header, a hash per cycle
  localparam logic [2:0] Load  = 3'd4;    // POLICY: loads the version, if nothing speaks against it by now
  localparam logic [2:0] End   = 3'd5;    // awaits what is still in flight
  localparam logic [2:0] Done  = 3'd6;    // the result waits to be taken
  localparam logic [2:0] Image = 3'd7;    // POLICY of engine 1: the HwImage, then the header of the image, come and are judged

  logic [2:0]  state_q;
  logic        busy_q;                    // the state is not Free: nothing of all this is looked at else
  logic        done_q;                    // the state is Done
  logic [3:0]  queue_q, owner;
  logic        publishes_q, model_q, on;
  logic [17:0] what_q;
  logic [57:0] line_q;                    // the next one to be read
  logic [27:0] unread_q, unscored_q;      // lines
  logic [3:0]  first_q, last_q;           // words: of the next line that is scored, and of the last one
  logic [CountBits-1:0] ahead_q, flying_q;    // lines that were asked for and not scored; whose data has not come
  logic        faulty_q;
  logic [7:0]  error_q;
  logic [31:0] score_q;

  assign ready_o       = !busy_q;
  assign done_o        = done_q;
  assign error_o       = error_q;
  assign result_o      = (error_q == ERR_NONE && !publishes_q) ? score_q : '0;
  assign owner         = busy_q ? owner_q[(Queues == 1) ? '0 : queue_q[QueueBits-1:0]] : '0;
  assign range_owner_o = owner;
  assign read_owner_o  = owner;
  assign fault_queue_o = queue_q;
  assign ask_queue_o   = queue_q;

  // ---------------------------------------------------------------- lines
  logic         line_valid, line_done, wanted, asks, quits, ending, reading, fifo_full_unused;
  logic [511:0] line;
  logic [CountBits-1:0] count_unused;
  logic         follows;                  // a POLICY of engine 1 has done with its line, and asks for another one

  assign read_valid_o = wanted;
  assign read_addr_o  = {line_q, 6'd0};
  assign asks         = wanted && read_ready_i;
  assign fault_o      = beat_i && beat_fault_i;

  sync_fifo #(.Width(512), .Depth(Ahead), .Quiet(1'b1)) u_lines (
    .clk_i, .rst_ni,
    .clear_i (ending),
    .push_i  (beat_i && reading),
    .data_i  (beat_data_i),
    .full_o  (fifo_full_unused),
    .valid_o (line_valid),
    .data_o  (line),
    .pop_i   (line_done || follows),
    .count_o (count_unused)
  );

  // ---------------------------------------------------------------- scores: a step of the oldest line
  logic        scores, last_line;
  logic [3:0]  step_q, last;
  logic [31:0] word, digest_q;
  logic [15:0] hits_q, hits, tokens_q;              // words in a range; those of them that count
  logic [16:0] tokens;

  assign range_number_o = step_q;

  // ---------------------------------------------------------------- the header of a policy
  logic [1:0]  hash_q;
  logic [31:0] mixed_q;
  /* verilator lint_off UNUSEDSIGNAL */  // a line has more words
  hw_policy_t  header;
  /* verilator lint_on UNUSEDSIGNAL */
  logic        fits;
  logic        language_q;                  // what is in hand is a POLICY of engine 1
  logic        judged, sound;             // the line that is there is judged, and was sound
  logic        model_line_q;              // the line is the image's header
  logic [57:0] model_line;                // where that lies
  assign header        = line[HW_POLICY_BITS-1:0];
  assign ask_version_o = what_q[15:0];
  assign load_salt_o   = language_q ? '0 : header.salt;
  assign load_mode_o   = what_q[17:16];
  assign load_engine_o = language_q;

  // ---------------------------------------------------------------- a cycle of it
  always_comb begin
    on        = 1'b0;
    reading   = 1'b0;
    ending    = 1'b0;
    quits     = 1'b0;
    wanted    = 1'b0;
    scores    = 1'b0;
    last_line = 1'b0;
    last      = '0;
    line_done = 1'b0;
    word      = '0;
    fits      = 1'b0;
    ask_o     = 1'b0;
    load_o    = 1'b0;
    if (busy_q) begin
      on        = (on_i & Queues'(16'd1 << queue_q)) != '0;
      reading   = state_q == Read || (Engines > 1 && state_q == Image);
      ending    = state_q == End;
      quits     = !on || faulty_q;
      wanted    = reading && !quits && unread_q != '0 && ahead_q != CountBits'(Ahead);
      scores    = reading && line_valid && !publishes_q && !quits;
      last_line = unscored_q == 28'd1;
      last      = last_line ? last_q : 4'd15;
      line_done = scores && step_q == 4'd15;
      if (scores) word = line[{step_q, 5'd0} +: 32];
      fits      = header.version == what_q[15:0] && header.model_id == {15'd0, language_q}
               && header.length == {25'd0, language_q, 6'd0} && header.check == mixed_q;
      ask_o     = state_q == Ask || state_q == Load;
      load_o    = state_q == Load && on;
    end
  end

  // The step's range with all words of the line.
  always_comb begin
    hits   = '0;
    tokens = '0;
    if (scores) begin
      for (int w = 0; w < 16; w++)
        hits[w] = hits_q[w] || (line[32*w +: 32] >= range_i[31:0] && line[32*w +: 32] <= range_i[63:32]);
      tokens = {1'b0, tokens_q} + 17'($countones({16'd0, hits & (16'hFFFF << first_q) & (16'hFFFF >> (4'd15 - last))}));
    end
  end

  // ---------------------------------------------------------------- a POLICY of engine 1
  if (Engines > 1) begin : gen_language
    // The MODEL region of each queue pair's function.
    logic [57:0] model_base_q [0:(1 << QueueBits)-1];
    logic [63:0] model_size_q [0:(1 << QueueBits)-1];
    logic [QueueBits-1:0] start_pair, pair;
    assign start_pair = (Queues == 1) ? '0 : start_queue_i[QueueBits-1:0];
    assign pair       = (Queues == 1) ? '0 : queue_q[QueueBits-1:0];
    always_ff @(posedge clk_i) begin
      if (start_i) begin
        model_base_q[start_pair] <= start_models_i.model_base[63:6];
        model_size_q[start_pair] <= start_models_i.model_size;
      end
    end

    image_check u_image_check (
      .clk_i,
      .run_i        (state_q == Image && line_valid),
      .header_i     (model_line_q),
      .line_i       (line),
      .model_size_i (model_size_q[pair]),
      .done_o       (judged),
      .sound_o      (sound),
      .image_o      (load_image_o)
    );
    always_ff @(posedge clk_i) if (valid_i) language_q <= publishes_i && what_i[18];
    assign model_line = model_base_q[pair] + line[HW_IMAGE_OFFSET_LSB + 6 +: 58];
    assign follows    = language_q && !quits && ((state_q == Check && hash_q == 2'd3 && fits)
                                            || (state_q == Image && sound && !model_line_q));
  end else begin : gen_no_language
    assign {language_q, judged, sound, follows} = '0;
    assign model_line   = '0;
    assign load_image_o = '0;
  end

  // ---------------------------------------------------------------- state
  logic [31:0] last_word;
  assign last_word = (valid_i && !publishes_i) ? {28'd0, addr_i[5:2]} + what_i - 32'd1 : '0;

  // What is read in this process stands before what writes it, which costs a simulation no copy.
  always_ff @(posedge clk_i) begin
    if (busy_q) begin
      case (state_q)
        Ask: begin
          if (!on) state_q <= End;
          else if (what_q[17:16] == 2'd3 || ask_resident_i) begin
            state_q <= End;
            error_q <= ERR_BAD_POLICY;
          end else if (ask_occupied_i) begin
            state_q <= End;
            error_q <= ERR_POLICY_BUSY;
          end else state_q <= Read;
        end
        Read: begin
          if (quits) begin
            state_q <= End;
            if (faulty_q) error_q <= ERR_DMA_FAULT;
          end else if (publishes_q && line_valid) begin
            state_q <= Check;
          end else if (line_done && last_line) begin
            state_q <= End;
          end
        end
        Check: begin
          mixed_q <= (hash_q == 2'd0) ? mix(line[31:0] ^ GOLDEN) : (hash_q == 2'd1) ? mix(mixed_q ^ line[63:32])
                   : (hash_q == 2'd2) ? mix(mixed_q ^ line[95:64]) : mixed_q;
          if (hash_q == 2'd3) begin
            state_q <= !fits ? End : language_q ? Image : Load;
            if (!fits) error_q <= ERR_BAD_POLICY;
          end
          hash_q <= hash_q + 2'd1;
        end
        Image: if (Engines > 1) begin
          if (quits) begin
            state_q <= End;
            if (faulty_q) error_q <= ERR_DMA_FAULT;
          end else if (judged && !sound) begin
            state_q <= End;
            error_q <= ERR_BAD_POLICY;
          end else if (judged && model_line_q) begin
            state_q <= Load;
          end
        end
        Load: begin
          state_q <= End;
          if (ask_occupied_i) error_q <= ERR_POLICY_BUSY;
        end
        End: begin
          score_q <= !model_q ? {16'd0, digest_q[31:16] ^ digest_q[15:0]} : tokens_q[15] ? 32'h7FFF_FFFF : {tokens_q, 16'd0};
          if (flying_q == '0) begin
            state_q <= Done;
            done_q  <= 1'b1;
          end
        end
        Done: begin
          if (done_taken_i) begin
            state_q <= Free;
            busy_q  <= 1'b0;
            done_q  <= 1'b0;
          end
        end
        default: ;
      endcase

      if (scores) begin
        if (step_q >= first_q && step_q <= last) digest_q <= digest_step(digest_q, word);
        hits_q <= line_done ? '0 : hits;
        step_q <= step_q + 4'd1;
      end
      if (line_done) begin
        first_q    <= '0;
        unscored_q <= unscored_q - 28'd1;
        tokens_q   <= tokens[15] || tokens[16] ? 16'h8000 : tokens[15:0];    // saturated
      end

      if (asks) begin
        line_q   <= line_q + 58'd1;
        unread_q <= unread_q - 28'd1;
      end
      if (follows) begin
        unread_q     <= 28'd1;
        ahead_q      <= '0;
        model_line_q <= judged;
        if (judged) line_q <= model_line;
      end else ahead_q <= ahead_q + CountBits'(asks) - CountBits'(line_done);
      flying_q <= flying_q + CountBits'(asks) - CountBits'(beat_i);
      if (fault_o) faulty_q <= 1'b1;
    end
    if (valid_i) begin
      state_q     <= publishes_i ? Ask : Read;
      busy_q      <= 1'b1;
      queue_q     <= queue_i;
      publishes_q <= publishes_i;
      model_q     <= model_i;
      what_q      <= what_i[17:0];
      line_q      <= addr_i[63:6];
      first_q     <= addr_i[5:2];
      last_q      <= last_word[3:0];
      unread_q    <= last_word[31:4] + 28'd1;
      unscored_q  <= last_word[31:4] + 28'd1;
      ahead_q     <= '0;
      faulty_q    <= 1'b0;
      error_q     <= ERR_NONE;
      step_q      <= '0;
      hits_q      <= '0;
      digest_q    <= DIGEST_INIT;
      tokens_q    <= '0;
      hash_q      <= '0;
    end
    if (!rst_ni) begin
      state_q  <= Free;
      busy_q   <= 1'b0;
      done_q   <= 1'b0;
      flying_q <= '0;
    end
  end

`ifndef SYNTHESIS
  always_ff @(posedge clk_i) begin
    if (rst_ni && (valid_i || beat_i || done_taken_i)) begin
      if (valid_i && busy_q) $fatal(1, "R3 readback: a descriptor comes while one is in hand");
      if (done_taken_i && !done_o) $fatal(1, "R3 readback: a result is taken that is not there");
      if (beat_i && flying_q == '0) $fatal(1, "R3 readback: data comes that was not asked for");
    end
    if (rst_ni && busy_q) begin
      if (load_o && faulty_q) $fatal(1, "R19 readback: a version is loaded from a header that could not be read");
    end
  end
`endif
endmodule
