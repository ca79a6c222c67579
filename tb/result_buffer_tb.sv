// result_buffer: three lanes fill lines of random descriptors, items are taken in any order of lanes. Every item comes
// out once, per lane in order, with its words, digest and end, and of a descriptor with log-probabilities its line twice; a lane that is not read stops, the others
// do not.
module result_buffer_tb;
  import bench_pkg::*;
  localparam int Workers = 3;
  localparam int Many    = 4;           // items of a lane under way, at most

  logic clk, rst_n;
  int   cycle;
  clock_reset #(.Limit(60000)) u_clock (.clk_o(clk), .rst_no(rst_n), .cycle_o(cycle));

  logic                  clear = 1'b0;
  logic [Workers-1:0]    ready, token, finish, done, valid, has_line, has_done, take, with_logp = '0, second = '0;
  logic                  item_logp, again;
  logic [Workers*32-1:0] logp_data;
  logic [Workers*32-1:0] token_data = '0, position = '0, digest = '0;
  logic [Workers*4-1:0]  how = '0;
  logic [3:0]            read_worker;
  logic [511:0]          line_data;
  logic [31:0]           item_digest;
  logic [3:0]            item_last, item_how;

  result_buffer #(.Workers(Workers)) u_buffer (
    .clk_i(clk), .rst_ni(rst_n && !clear), .ready_o(ready), .token_i(token), .line_i(token), .token_data_i(token_data), .logp_i(with_logp), .logp_data_i(logp_data),
    .position_i(position), .finish_i(finish), .done_i(done), .digest_i(digest), .how_i(how), .valid_o(valid),
    .has_line_o(has_line), .has_done_o(has_done), .take_i(take), .read_worker_i(read_worker),
    .line_data_o(line_data), .last_o(item_last), .logp_o(item_logp), .again_o(again), .digest_o(item_digest), .how_o(item_how)
  );

  // ---------------------------------------------------------------- lanes: the next thing that each would send
  int                 stall_in, stall_out;
  logic [Workers-1:0] want = '0, next_token = '0, next_finish = '0, next_done = '0;
  int                 left [0:Workers-1];     // tokens of the descriptor behind the shown one

  assign token  = want & ready & next_token;
  assign finish = want & ready & next_finish;
  assign done   = want & ready & next_done;

  assign logp_data = ~token_data;       // told from a token in every word

  // Items as they must come out; entry lane * Many + number modulo Many.
  logic [511:0] want_data [0:Workers*Many-1];
  logic [15:0]  want_words [0:Workers*Many-1];
  logic [31:0]  want_digest [0:Workers*Many-1];
  logic [3:0]   want_last [0:Workers*Many-1], want_how [0:Workers*Many-1];
  logic         want_done [0:Workers*Many-1], want_logp [0:Workers*Many-1];
  logic         more;
  int           seconds = 0;
  int           made [0:Workers-1], taken [0:Workers-1];
  int           at, word, moved = 0, picked;

  // A fresh descriptor of a lane.
  task automatic begin_descriptor(input int w);
    logic [31:0] start;
    left[w] = chance(15) ? 0 : chance(50) ? between(1, 6) : between(1, 50);
    start   = below(16);
    position[w*32 +: 32] <= start;
    with_logp[w]         <= rnd();
    show(w, start, left[w] != 0);
  endtask

  task automatic show(input int w, input logic [31:0] at_position, input logic adds);
    token_data[w*32 +: 32] <= rnd();
    digest[w*32 +: 32]     <= rnd();
    how[w*4 +: 4]          <= rnd();
    next_token[w]          <= adds;
    next_done[w]           <= left[w] <= 1;
    next_finish[w]         <= left[w] <= 1 || at_position % 16 == 15;
  endtask

  // ---------------------------------------------------------------- taking
  logic [Workers-1:0] choice = '0;
  assign take = choice & valid & ~(choice & valid - 1'b1);
  always_comb begin
    read_worker = '0;
    for (int w = 0; w < Workers; w++) if (take[w]) read_worker = 4'(w);
  end

  initial for (int w = 0; w < Workers; w++) begin
    made[w] = 0; taken[w] = 0;
    for (int k = 0; k < Many; k++) want_words[w*Many + k] = '0;
  end

  always @(posedge clk) if (rst_n) begin
    choice <= chance(stall_out) ? '0 : rnd();
    for (int w = 0; w < Workers; w++) begin
      if (valid[w] !== (made[w] != taken[w])) fail($sformatf("lane %0d: valid is %b with %0d items", w, valid[w], made[w] - taken[w]));
      if (ready[w] !== (made[w] - taken[w] < 2)) fail($sformatf("lane %0d: ready is %b with %0d items", w, ready[w], made[w] - taken[w]));
    end
    for (int w = 0; w < Workers; w++) if (take[w]) begin
      at = w*Many + taken[w] % Many;
      expect_eq("has_line", has_line[w], want_words[at] != 0);
      more = want_logp[at] && !second[w];     // its log-probabilities come behind it, and only then the end
      expect_eq("has_done", has_done[w], want_done[at] && !more);
      expect_eq("R11: logp", item_logp, second[w]);
      expect_eq("R11: again", again, more);
      if (want_words[at] != 0) expect_eq("last", item_last, want_last[at]);
      if (want_done[at]) begin
        expect_eq("digest", item_digest, want_digest[at]);
        expect_eq("how", item_how, want_how[at]);
      end
      for (int k = 0; k < 16; k++) if (want_words[at][k] && line_data[32*k +: 32] !== (want_data[at][32*k +: 32] ^ {32{second[w]}}))
        fail($sformatf("lane %0d word %0d is %h, expected %h", w, k, line_data[32*k +: 32], want_data[at][32*k +: 32]));
      second[w] <= more;
      if (more) seconds = seconds + 1;
      else begin
        want_words[at] = '0;
        taken[w] = taken[w] + 1;
        moved    = moved + 1;
      end
    end
    for (int w = 0; w < Workers; w++) begin
      if (token[w] || finish[w]) begin
        at   = w*Many + made[w] % Many;
        word = int'(position[w*32 +: 4]);
        if (token[w]) begin
          want_data[at][32*word +: 32] = token_data[w*32 +: 32];
          want_words[at][word] = 1'b1;
        end
        if (finish[w]) begin
          want_last[at]     = position[w*32 +: 4];
          want_digest[at]   = digest[w*32 +: 32];
          want_how[at]      = how[w*4 +: 4];
          want_done[at]     = done[w];
          want_logp[at]     = token[w] && with_logp[w];
          made[w] = made[w] + 1;
        end
        if (done[w]) begin_descriptor(w);
        else begin
          left[w] = left[w] - 1;
          position[w*32 +: 32] <= position[w*32 +: 32] + 1;
          show(w, position[w*32 +: 32] + 1, 1'b1);
        end
      end
      want[w] <= !chance(stall_in);
    end
  end else for (int w = 0; w < Workers; w++) begin_descriptor(w);

  initial begin
    for (int k = 0; k < 8; k++) begin
      stall_in  = k[0] ? 50 : 0;
      stall_out = k[1] ? 70 : 0;
      repeat (1000) @(posedge clk);
    end
    if (moved < 1000) fail($sformatf("only %0d items", moved));
    if (seconds < 300) fail($sformatf("only %0d lines of log-probabilities", seconds));
    finish_bench("result_buffer_tb");
  end
endmodule
