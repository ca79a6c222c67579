// What reads the token region: REWARD, which scores tokens that lie there, and POLICY, which publishes a version whose
// header lies there (rule R19). Each queue pair may have one here, a context. It comes from completion_ring once all of its queue pair that
// was before it is posted (so its tokens are in memory), and goes back there with its result; a version is loaded before its completion is
// posted. Reads are single beats, in order, some ahead of what is scored, with an ID of their queue pair's and places for their data of its
// own: what the bus withholds from one holds up no other.
//
// One context is active at a time. It yields to others that could go after a line that was scored, and at once while it waits for the
// bus. A POLICY, which has three lines at most, otherwise keeps its turn. So a context waits for each other one at most 17 cycles for a line, or
// 110 for a POLICY, before each line of its own. Alone it loses nothing.
//
// What belongs to a queue pair that is disabled is abandoned: nothing more is read for it, and what is in flight is awaited.
//
// A POLICY of engine 1 has two lines more, each asked for once the one before it is sound: the HwImage behind its header, and the
// header of the image in the MODEL region (rule R25), which image_check judges. One that waited meanwhile has its HwImage judged again.
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

  // A descriptor whose turn it is. Its queue pair has no other here.
  input  logic         valid_i,
  input  logic [3:0]   queue_i,
  input  logic         publishes_i,     // a POLICY; else a REWARD
  input  logic         model_i,         // the reward model
  input  logic [31:0]  what_i,          // how many tokens; of a POLICY: engine, mode (3: none), version
  input  logic [63:0]  addr_i,          // where they, or its header, lie
  // What became of it; stays until it is taken.
  output logic [Queues-1:0] done_o,
  input  logic [3:0]   done_queue_i,    // that of this queue pair, combinational
  output logic [7:0]   error_o,
  output logic [31:0]  result_o,
  input  logic         done_taken_i,
  output logic         idle_o,          // nothing is here that is not done

  // The read port.
  output logic         read_valid_o,
  output logic [3:0]   read_queue_o,
  output logic [63:0]  read_addr_o,
  output logic [3:0]   read_owner_o,
  input  logic         read_ready_i,
  input  logic         beat_i,
  input  logic [3:0]   beat_queue_i,
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
  localparam int Ahead     = 4;            // a power of two
  localparam int QueueBits = (Queues == 1) ? 1 : $clog2(Queues);
  localparam int Slots     = 1 << QueueBits;
  localparam int CountBits = $clog2(Ahead + 1);
  localparam int PtrBits   = $clog2(Ahead);

  logic [QueueBits-1:0] start_pair, new_pair, hand_pair, ask_pair, beat_pair, done_pair;
  assign start_pair = (Queues == 1) ? '0 : start_queue_i[QueueBits-1:0];
  assign new_pair   = (Queues == 1) ? '0 : queue_i[QueueBits-1:0];
  assign beat_pair  = (Queues == 1) ? '0 : beat_queue_i[QueueBits-1:0];
  assign done_pair  = (Queues == 1) ? '0 : done_queue_i[QueueBits-1:0];

  // The function of each queue pair.
  logic [Slots-1:0][3:0] owner_q;
  always_ff @(posedge clk_i) begin
    if (start_i) owner_q[start_pair] <= start_config_i.owner;
  end

  // ---------------------------------------------------------------- lines of each context
  logic [Slots-1:0]      live_q, done_q;             // there is one; its result is there
  logic [Slots-1:0]      more_q, full_q, faulty_q;   // a line is to be asked for; Ahead of them were, and are not done with
  logic [Slots-1:0]      on, wants;
  logic [Slots-1:0][CountBits-1:0] ahead_q, flying_q, here_q;   // lines that were asked for and not done with; whose data has not come; has
  logic [Slots-1:0][PtrBits-1:0]   put_q, get_q;
  logic [57:0]           line_q   [0:Slots-1];       // the next one to be asked for
  logic [27:0]           unread_q [0:Slots-1];
  logic [511:0]          data_mem [0:Slots*Ahead-1];
  logic                  asks;
  /* verilator lint_off UNUSEDSIGNAL */  // 4 bits, whatever was built
  logic [3:0]            ask_number;
  /* verilator lint_on UNUSEDSIGNAL */
  logic [Queues-1:0]     ask_grant_unused;
  assign on    = Slots'(on_i);
  assign wants = (live_q != '0) ? live_q & more_q & ~full_q & ~faulty_q & on : '0;

  round_robin #(.N(Queues)) u_ask_robin (
    .clk_i, .rst_ni,
    .request_i (wants[Queues-1:0]),
    .grant_o   (ask_grant_unused),
    .number_o  (ask_number),
    .accept_i  (asks)
  );
  assign ask_pair      = (Queues == 1) ? '0 : ask_number[QueueBits-1:0];
  assign read_valid_o  = wants != '0;
  assign read_queue_o  = 4'(ask_pair);
  assign read_addr_o   = read_valid_o ? {line_q[ask_pair], 6'd0} : '0;
  assign read_owner_o  = read_valid_o ? owner_q[ask_pair] : '0;
  assign asks          = read_valid_o && read_ready_i;
  assign fault_o       = beat_i && beat_fault_i;
  assign fault_queue_o = 4'(beat_pair);

  // ---------------------------------------------------------------- the context in hand
  localparam logic [2:0] Ask   = 3'd1;    // POLICY: what speaks against it before its header is read
  localparam logic [2:0] Read  = 3'd2;    // lines come and are scored, or the header comes
  localparam logic [2:0] Check = 3'd3;    // POLICY: the check word of the header, a hash per cycle
  localparam logic [2:0] Load  = 3'd4;    // POLICY: loads the version, if nothing speaks against it by now
  localparam logic [2:0] End   = 3'd5;    // awaits what is still in flight
  localparam logic [2:0] Image = 3'd7;    // POLICY of engine 1: the HwImage, then the header of the image, come and are judged

  // What is kept of one that is not in hand; of a line nothing is scored then.
  typedef struct packed {
    logic [2:0]  state;
    logic        publishes;
    logic        model;
    logic        language;                // a POLICY of engine 1, …
    logic        named;                   // … whose image's header was asked for
    logic [17:0] what;
    logic [3:0]  first;                   // words: of the next line that is scored, …
    logic [3:0]  last;                    // … and of the last one
    logic [27:0] unscored;                // lines
    logic [7:0]  error;
    logic [31:0] digest;
    logic [15:0] tokens;
  } context_t;
  localparam int ContextBits = 117;

  logic        busy_q;                    // there is one: nothing of all this is looked at else
  logic [QueueBits-1:0] hand_q;
  context_t    hand, fresh;
  logic [2:0]  state_q;
  logic [3:0]  owner;
  logic        publishes_q, model_q, language_q, named_q, hand_on;
  logic [17:0] what_q;
  logic [27:0] unscored_q;
  logic [3:0]  first_q, last_q;
  logic [7:0]  error_q;
  logic        turn_q;                    // it has scored a line since its turn came
  logic        header_q;                  // the image's header is looked at, behind the HwImage
  /* verilator lint_off UNUSEDSIGNAL */  // with an engine that has images
  logic        header_since_q;            // … since this cycle
  /* verilator lint_on UNUSEDSIGNAL */

  assign hand_pair     = (Queues == 1) ? '0 : hand_q;
  assign owner         = busy_q ? owner_q[hand_pair] : '0;
  assign range_owner_o = owner;
  assign ask_queue_o   = 4'(hand_pair);

  // ---------------------------------------------------------------- those that are not
  logic [Slots-1:0]      parked_q, could, quitting;
  logic [Slots-1:0][1:0] need_q;          // lines without which it cannot go; 3: nothing may be in flight
  logic [ContextBits-1:0] parked_mem [0:Slots-1];
  logic [Queues-1:0]     turn_grant_unused;
  /* verilator lint_off UNUSEDSIGNAL */  // 4 bits, whatever was built
  logic [3:0]            turn_number;
  /* verilator lint_on UNUSEDSIGNAL */
  logic [QueueBits-1:0]  turn_pair;
  logic                  direct, switches, takes;
  logic [1:0]            need;
  assign quitting = ~on | faulty_q;
  for (genvar q = 0; q < Slots; q++) begin : gen_could
    assign could[q] = parked_q[q] && ((need_q[q] == 2'd3) ? flying_q[q] == '0 : here_q[q] >= CountBits'(need_q[q]) || quitting[q]);
  end

  round_robin #(.N(Queues)) u_turn_robin (
    .clk_i, .rst_ni,
    .request_i (could[Queues-1:0]),
    .grant_o   (turn_grant_unused),
    .number_o  (turn_number),
    .accept_i  (takes)
  );
  assign turn_pair = (Queues == 1) ? '0 : turn_number[QueueBits-1:0];
  assign direct    = valid_i && !busy_q && parked_q == '0;      // at once
  assign takes     = could != '0 && (!busy_q || switches);

  // ---------------------------------------------------------------- scores: a step of the oldest line
  logic         line_valid, line_done, eats, seeks, quits, waits;
  logic [511:0] line;
  logic [PtrBits-1:0] at;
  logic        scores, last_line;
  logic [3:0]  step_q, last;
  logic [31:0] word, digest_q;
  logic [15:0] hits_q, hits, tokens_q;              // words in a range; those of them that count
  logic [16:0] tokens;

  assign at         = get_q[hand_pair] + PtrBits'(header_q);
  assign line_valid = busy_q && here_q[hand_pair] > CountBits'(header_q);
  assign line       = line_valid ? data_mem[{hand_pair, at}] : '0;
  assign range_number_o = step_q;

  // ---------------------------------------------------------------- the header of a policy
  logic [1:0]  hash_q;
  logic [31:0] mixed_q;
  /* verilator lint_off UNUSEDSIGNAL */  // a line has more words
  hw_policy_t  header;
  /* verilator lint_on UNUSEDSIGNAL */
  logic        fits;
  logic        judged, sound;             // the line that is there is judged, and was sound
  logic [57:0] model_line;                // where the image's header lies
  assign header        = line[HW_POLICY_BITS-1:0];
  assign ask_version_o = what_q[15:0];
  assign load_salt_o   = language_q ? '0 : header.salt;
  assign load_mode_o   = what_q[17:16];
  assign load_engine_o = language_q;

  // ---------------------------------------------------------------- a cycle of it
  always_comb begin
    hand_on   = 1'b0;
    quits     = 1'b0;
    waits     = 1'b0;
    switches  = 1'b0;
    scores    = 1'b0;
    last_line = 1'b0;
    last      = '0;
    line_done = 1'b0;
    word      = '0;
    fits      = 1'b0;
    eats      = 1'b0;
    need      = 2'd1;
    if (busy_q) begin
      hand_on   = on[hand_pair];
      quits     = quitting[hand_pair];
      // It waits for the bus, or has had its line.
      waits     = (state_q == End) ? flying_q[hand_pair] != '0
                : !quits && ((state_q == Read) ? step_q == '0 && (!line_valid || (turn_q && !publishes_q)) : state_q == Image && !line_valid);
      switches  = Queues > 1 && waits && could != '0 && !valid_i;    // what comes is written where it would go
      need      = (state_q == End) ? 2'd3 : named_q ? 2'd2 : 2'd1;
      scores    = state_q == Read && line_valid && !publishes_q && !quits && !switches;
      last_line = unscored_q == 28'd1;
      last      = last_line ? last_q : 4'd15;
      line_done = scores && step_q == 4'd15;
      if (scores) word = line[{step_q, 5'd0} +: 32];
      fits      = header.version == what_q[15:0] && header.model_id == {15'd0, language_q}
               && header.length == {25'd0, language_q, 6'd0} && header.check == mixed_q;
      // A line is done with.
      eats      = line_done || (state_q == Check && hash_q == 2'd3 && fits && language_q);
    end
  end

  // Beside the process: policy_slots answers in between. Another line is to be asked for.
  assign ask_o  = busy_q && (state_q == Ask || state_q == Load);
  assign load_o = busy_q && state_q == Load && hand_on;
  assign seeks  = busy_q && ((state_q == Ask && hand_on && what_q[17:16] != 2'd3 && !ask_resident_i && !ask_occupied_i) || (eats && publishes_q)
                            || (Engines > 1 && state_q == Image && !quits && sound && !header_q && !named_q));

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
    logic [57:0] model_base_q [0:Slots-1];
    logic [63:0] model_size_q [0:Slots-1];
    always_ff @(posedge clk_i) begin
      if (start_i) begin
        model_base_q[start_pair] <= start_models_i.model_base[63:6];
        model_size_q[start_pair] <= start_models_i.model_size;
      end
    end

    image_check u_image_check (
      .clk_i,
      .run_i        (state_q == Image && line_valid && !header_since_q),
      .header_i     (header_q),
      .line_i       (line),
      .model_size_i (model_size_q[hand_pair]),
      .done_o       (judged),
      .sound_o      (sound),
      .image_o      (load_image_o)
    );
    assign model_line = model_base_q[hand_pair] + line[HW_IMAGE_OFFSET_LSB + 6 +: 58];
  end else begin : gen_no_language
    assign {judged, sound} = '0;
    assign model_line   = '0;
    assign load_image_o = '0;
  end

  // ---------------------------------------------------------------- lines of each context
  logic [31:0] last_word;
  assign last_word = (valid_i && !publishes_i) ? {28'd0, addr_i[5:2]} + what_i - 32'd1 : '0;

  always_ff @(posedge clk_i) begin
    if (beat_i) data_mem[{beat_pair, put_q[beat_pair]}] <= beat_fault_i ? '0 : beat_data_i;   // with an error anything may stand there
  end

  for (genvar q = 0; q < Slots; q++) begin : gen_lines
    logic asks_here, beats_here, eats_here, seeks_here, news_here;
    assign news_here  = valid_i && new_pair == QueueBits'(q);
    assign asks_here  = asks && ask_pair == QueueBits'(q);
    assign beats_here = beat_i && beat_pair == QueueBits'(q) && flying_q[q] != '0;
    assign eats_here  = eats && hand_pair == QueueBits'(q);
    assign seeks_here = seeks && hand_pair == QueueBits'(q);
    always_ff @(posedge clk_i) begin
      if (live_q[q]) begin
        if (asks_here) begin
          line_q[q]   <= line_q[q] + 58'd1;
          unread_q[q] <= unread_q[q] - 28'd1;
          more_q[q]   <= unread_q[q] != 28'd1;
        end
        if (seeks_here) begin
          unread_q[q] <= 28'd1;
          more_q[q]   <= 1'b1;
          if (state_q == Image) line_q[q] <= model_line;
        end
        if (asks_here != eats_here) begin
          ahead_q[q] <= asks_here ? ahead_q[q] + 1'b1 : ahead_q[q] - 1'b1;
          full_q[q]  <= asks_here && ahead_q[q] == CountBits'(Ahead - 1);
        end
        if (asks_here != beats_here) flying_q[q] <= asks_here ? flying_q[q] + 1'b1 : flying_q[q] - 1'b1;
        if (beats_here != eats_here) here_q[q] <= beats_here ? here_q[q] + 1'b1 : here_q[q] - 1'b1;
        if (beats_here) put_q[q] <= put_q[q] + 1'b1;
        if (eats_here) get_q[q] <= get_q[q] + 1'b1;
        if (beats_here && beat_fault_i) faulty_q[q] <= 1'b1;
      end
      if (news_here) begin
        line_q[q]   <= addr_i[63:6];
        unread_q[q] <= last_word[31:4] + 28'd1;
        more_q[q]   <= !publishes_i;
        full_q[q]   <= 1'b0;
        faulty_q[q] <= 1'b0;
        ahead_q[q]  <= '0;
        here_q[q]   <= '0;
        put_q[q]    <= '0;
        get_q[q]    <= '0;
      end
      if (!rst_ni) flying_q[q] <= '0;
    end
  end
  // ---------------------------------------------------------------- state
  logic [39:0] result_mem [0:Slots-1];    // error, result
  logic        ends;
  logic [31:0] score;
  assign ends     = busy_q && state_q == End && flying_q[hand_pair] == '0;
  assign score    = (error_q != ERR_NONE || publishes_q) ? '0
                  : !model_q ? {16'd0, digest_q[31:16] ^ digest_q[15:0]} : tokens_q[15] ? 32'h7FFF_FFFF : {tokens_q, 16'd0};
  assign done_o   = done_q[Queues-1:0];
  assign idle_o   = live_q == '0;
  assign {error_o, result_o} = (done_q != '0) ? result_mem[done_pair] : '0;

  always_comb begin
    hand  = '0;
    fresh = '0;
    if (switches) begin
      hand.state     = state_q;
      hand.publishes = publishes_q;
      hand.model     = model_q;
      hand.language  = language_q;
      hand.named     = named_q;
      hand.what      = what_q;
      hand.first     = first_q;
      hand.last      = last_q;
      hand.unscored  = unscored_q;
      hand.error     = error_q;
      hand.digest    = digest_q;
      hand.tokens    = tokens_q;
    end
    if (valid_i) begin
      fresh.state     = publishes_i ? Ask : Read;
      fresh.publishes = publishes_i;
      fresh.model     = model_i;
      fresh.language  = Engines > 1 && publishes_i && what_i[18];
      fresh.what      = what_i[17:0];
      fresh.first     = addr_i[5:2];
      fresh.last      = last_word[3:0];
      fresh.unscored  = last_word[31:4] + 28'd1;
      fresh.error     = ERR_NONE;
      fresh.digest    = DIGEST_INIT;
    end
  end

  // What is read in this process stands before what writes it, which costs a simulation no copy.
  always_ff @(posedge clk_i) begin
    if (busy_q) begin
      header_since_q <= 1'b0;
      case (state_q)
        Ask: begin
          if (!hand_on) state_q <= End;
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
            if (faulty_q[hand_pair]) error_q <= ERR_DMA_FAULT;
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
            if (faulty_q[hand_pair]) error_q <= ERR_DMA_FAULT;
          end else if (judged && !sound) begin
            state_q <= End;
            error_q <= ERR_BAD_POLICY;
          end else if (judged && header_q) begin
            state_q <= Load;
          end else if (judged) begin
            named_q        <= 1'b1;
            header_q       <= 1'b1;
            header_since_q <= 1'b1;
          end
        end
        Load: begin
          state_q <= End;
          // Another queue pair of the function may have loaded the same version meanwhile.
          if (ask_resident_i)      error_q <= ERR_BAD_POLICY;
          else if (ask_occupied_i) error_q <= ERR_POLICY_BUSY;
        end
        default: if (ends) begin
          busy_q                <= 1'b0;
          result_mem[hand_pair] <= {error_q, score};
        end
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
        turn_q     <= 1'b1;
      end
    end
    if (switches) parked_mem[hand_pair] <= hand;
    else if (valid_i) parked_mem[new_pair] <= fresh;
    if (direct || takes) begin
      busy_q   <= 1'b1;
      hand_q   <= takes ? turn_pair : new_pair;
      {state_q, publishes_q, model_q, language_q, named_q, what_q, first_q, last_q, unscored_q, error_q, digest_q, tokens_q}
               <= takes ? parked_mem[turn_pair] : fresh;
      step_q   <= '0;
      hits_q   <= '0;
      hash_q   <= '0;
      turn_q   <= 1'b0;
      header_q <= 1'b0;
      header_since_q <= 1'b0;
    end
    if (!rst_ni) busy_q <= 1'b0;
  end

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      live_q   <= '0;
      done_q   <= '0;
      parked_q <= '0;
    end else if (valid_i || switches || takes || ends || done_taken_i) begin
      if (ends) begin
        live_q[hand_pair] <= 1'b0;
        done_q[hand_pair] <= 1'b1;
      end
      if (done_taken_i) done_q[done_pair] <= 1'b0;
      if (takes) parked_q[turn_pair] <= 1'b0;
      if (switches) begin
        parked_q[hand_pair] <= 1'b1;
        need_q[hand_pair]   <= need;
      end
      if (valid_i) begin
        live_q[new_pair] <= 1'b1;
        if (!direct) begin
          parked_q[new_pair] <= 1'b1;
          need_q[new_pair]   <= {1'b0, !publishes_i};
        end
      end
    end
  end

`ifndef SYNTHESIS
  initial if ($bits(hand) != ContextBits) $fatal(1, "readback: ContextBits must be %0d", $bits(hand));
  always_ff @(posedge clk_i) begin
    if (rst_ni && (valid_i || beat_i || done_taken_i)) begin
      if (valid_i && (live_q[new_pair] || done_q[new_pair])) $fatal(1, "R3 readback: a descriptor comes while its queue pair has one here");
      if (done_taken_i && !done_q[done_pair]) $fatal(1, "R3 readback: a result is taken that is not there");
      if (beat_i && flying_q[beat_pair] == '0) $fatal(1, "R3 readback: data comes that was not asked for");
    end
    if (rst_ni && busy_q) begin
      if (load_o && faulty_q[hand_pair]) $fatal(1, "R19 readback: a version is loaded from a header that could not be read");
      if (parked_q[hand_pair]) $fatal(1, "R16 readback: queue pair %0d waits for its turn and has it", hand_pair);
    end
  end
`endif
endmodule
