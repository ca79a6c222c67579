// npu_sampler against docs/engine.md, "Sampling", written once more: logits of all spreads, in chains of one to three words, with gaps; of some
// the token is given.
module npu_sampler_tb;
  import bench_pkg::*;
  import npu_unit_pkg::*;
  import npu_pkg::*;

  localparam int Most = 400;                  // logits of a chain

  logic clk, rst_n;
  int   cycle;
  clock_reset #(.Limit(400000)) u_clock (.clk_o(clk), .rst_no(rst_n), .cycle_o(cycle));

  npu_step_t   step;
  npu_end_t    ended = UNIT_FINE;
  logic        forget = 1'b0, begins = 1'b0, begun, idle, valid = 1'b0, last = 1'b0, ready, done = 1'b0, sample_valid;
  logic [31:0] logit = '0, token, logp;

  npu_sampler u_sampler (
    .clk_i(clk), .rst_ni(rst_n), .step_i(step), .forget_i(forget), .begin_i(begins), .begun_o(begun), .idle_o(idle),
    .logit_valid_i(valid), .logit_i(logit), .logit_last_i(last), .logit_ready_o(ready), .done_i(done), .end_i(ended),
    .sample_valid_o(sample_valid), .sample_token_o(token), .sample_logp_o(logp)
  );

  // ---------------------------------------------------------------- the specification
  function automatic logic [31:0] mix(input logic [31:0] x);
    x ^= x >> 16;
    x *= 32'h7FEB352D;
    x ^= x >> 15;
    x *= 32'h846CA68B;
    x ^= x >> 16;
    mix = x;
  endfunction

  function automatic longint line(input longint low, input longint high, input longint part);
    line = low + (((high - low) * part + 64'sd8388608) >>> 24);
  endfunction

  function automatic longint log2(input longint x);
    int          whole;
    logic [63:0] mantissa;
    int          index;
    whole = 0;
    for (int k = 0; k < 63; k++) if (x[k]) whole = k;
    mantissa = x << (63 - whole);
    index = int'(mantissa[62:55]);
    log2 = (longint'(whole) << 24) + line({39'd0, LOG2[25*index +: 25]}, {39'd0, LOG2[25*index + 25 +: 25]}, {40'd0, mantissa[54:31]});
  endfunction

  function automatic longint noise(input logic [31:0] bits);
    longint w;
    int     index;
    w = {31'd0, bits, 1'b1};
    index = int'(w[31:24]);
    if (bits[31]) noise = (64'sd24 << 24) - log2((64'sd33 << 24) - log2((64'sd1 << 33) - w));
    else noise = (64'sd33 << 24) - log2(w) - line({39'd0, RATIO[25*index +: 25]}, {39'd0, RATIO[25*index + 25 +: 25]}, {40'd0, w[23:0]});
  endfunction

  logic [31:0] a, b;                      // what hashes begin with
  int     logits [0:Most-1];
  longint powers [0:Most-1];
  longint blocks [0:Most/32];             // their sums
  int     expected_token;
  longint expected_logp;
  longint sum, low, lowest;               // of the highest bin, and of the two below

  task automatic sample(input int count);
    logic [31:0] position;
    longint      sharpness, key, best, ceiling, bin, highest, block, below, entry, part;
    logic        first;
    position = step.position + 1;
    a = mix(mix(step.seed ^ mix(step.rollout + 32'h9E3779B9)) + position * 32'h9E3779B9);
    b = mix(mix(position ^ mix(step.seed + 32'h9E3779B9)) + step.rollout);
    sharpness = (step.sharpness == 0) ? 64'sd1512775 : {36'd0, step.sharpness};
    best = 0;
    for (int v = 0; v < count; v++) begin
      key = longint'(logits[v]);
      if (step.sharpness != 0) key = key * sharpness + (noise(mix(mix(a + v * 32'h9E3779B9) ^ b)) <<< 6);
      if (v == 0 || key > best) begin
        best = key;
        expected_token = v;
      end
      powers[v] = longint'(logits[v]) * sharpness;
      powers[v] = (powers[v] >>> 20) + (powers[v][19] ? 64'sd1 : 64'sd0);
    end
    if (step.scores) expected_token = int'(step.seed);
    first = 1'b1;
    sum = 0;
    low = 0;
    lowest = 0;
    highest = 0;
    for (int from = 0; from < count; from += 32) begin
      ceiling = powers[from];
      for (int v = from; v < count && v < from + 32; v++) if (powers[v] > ceiling) ceiling = powers[v];
      ceiling = (ceiling + 1023) >>> 10;
      bin = ceiling >>> 4;
      if (first || bin > highest) begin
        lowest = first ? 0 : (bin == highest + 1) ? low : (bin == highest + 2) ? sum : 0;
        low = (!first && bin == highest + 1) ? sum : 0;
        sum = 0;
        highest = bin;
        first = 1'b0;
      end
      block = 0;
      for (int v = from; v < count && v < from + 32; v++) begin
        below = (ceiling <<< 10) - powers[v];
        entry = {43'd0, POWER[21*int'(below[9:0]) +: 21]};
        if (below >>> 10 <= 21) block = block + ((entry + ((64'sd1 << (below >>> 10)) >>> 1)) >>> (below >>> 10));
      end
      blocks[from / 32] = block;
      if (bin == highest) sum = sum + (block << ceiling[3:0]);
      else if (bin == highest - 1) low = low + (block << ceiling[3:0]);
      else if (bin == highest - 2) lowest = lowest + (block << ceiling[3:0]);
    end
    expected_logp = (powers[expected_token] <<< 14) - log2(sum + (low >>> 16) + (lowest >>> 32)) - ((highest * 16 - 20) <<< 24);
    // In two parts, as the product may have more than 64 bits.
    part = expected_logp & 64'hFF_FFFF;
    expected_logp = ((expected_logp >>> 24) * 64'sd11629080 + ((part * 64'sd11629080 + 64'sd2147483648) >>> 24)) >>> 8;
    if (expected_logp > 0) expected_logp = 0;
    if (expected_logp < -64'sd2147483648) expected_logp = -64'sd2147483648;
  endtask

  // Inside, too: a token and a log-probability show little of their last bits.
  int walked = 0;
  always @(posedge clk) if (rst_n) begin
    if (u_sampler.at_q[16] && step.sharpness != 0)
      expect_eq("noise", {32'd0, u_sampler.noise_q}, noise(mix(mix(a + u_sampler.token_q * 32'h9E3779B9) ^ b)) & 64'hFFFF_FFFF);
    if (u_sampler.end_q[0]) begin
      expect_eq("the highest bin", u_sampler.high_q, sum);
      expect_eq("the bin below", u_sampler.low_q, low);
      expect_eq("the lowest bin", u_sampler.lowest_q, lowest);
    end
    if (begins) walked <= 0;
    else if (u_sampler.walk_end_q[4]) begin
      expect_eq("a block's sum", {38'd0, u_sampler.block_q}, blocks[walked]);
      walked <= walked + 1;
    end
  end

  // ---------------------------------------------------------------- the runs
  int count, words, given, spread, base, sort, stop, top;

  initial begin
    step = '0;
    @(posedge clk);
    while (!rst_n) @(posedge clk);
    for (int run = 0; run < drawn(30, 60); run++) begin
      // Of some chains the first word fails.
      words = (run % 10 == 9) ? between(2, 3) : between(1, 3);
      count = 32 * below(words == 1 ? 4 : 6) + between(1, 32) + 32 * (words - 1);
      sort  = below(4);
      // Around what gives one to a few bins, at the sharpness of temperature 1.
      spread = 1 << between(2, (sort == 0) ? 30 : 17);
      base   = (sort == 1) ? 0 : below(60000) - 30000;
      step.token     = rnd();
      step.position  = rnd();
      step.seed      = rnd();
      step.rollout   = rnd();
      step.silent    = 1'b0;
      // A given token, likely or not.
      step.scores    = chance(30);
      if (step.scores) step.seed = 32'(below(count));
      step.sharpness = (sort == 3) ? 28'd0 : (sort == 2) ? 28'd1512775 : 28'(rnd() >> between(4, 20));
      for (int v = 0; v < count; v++) begin
        logits[v] = base + below(2 * spread) - spread;
        // The later blocks higher, or lower, by some powers of 2.
        if (sort != 0 && run % 3 == 1) logits[v] = logits[v] + 4000 * (v / 32);
        if (sort != 0 && run % 3 == 2) logits[v] = logits[v] - 4000 * (v / 32);
        if (chance(1)) logits[v] = chance(50) ? 32'sh7FFF_FFFF : 32'sh8000_0000;
        if (sort != 0 && logits[v] > (1 << 24)) logits[v] = 0;
      end
      // One likely token at the lowest place of a bin, all others at the highest one of the next bin but one: together they count.
      if (run % 6 == 5) begin
        step.sharpness = 28'd1048576;
        base = 16384 * (below(9) - 4);
        for (int v = 0; v < count; v++) logits[v] = base - 16384 - between(1024, 1030);
        logits[below(count)] = base - 1023;
      end
      // Each block in the bin above that of the block before: what was the highest bin becomes the bin below, and then the lowest.
      if (run % 6 == 4) begin
        step.sharpness = 28'd1048576;
        count = 32 * between(3, 5) + between(1, 32);
        if (step.scores) step.seed = 32'(below(count));
        for (int v = 0; v < count; v++) logits[v] = 16384 * (v / 32 - 2) + below(100);
      end
      // The highest twice, without noise: the first of them is the token.
      if (run % 6 == 2) begin
        step.sharpness = '0;
        step.scores    = 1'b0;
        top = 0;
        for (int v = 0; v < count; v++) if (logits[v] > logits[top]) top = v;
        logits[below(count)] = logits[top];
        logits[below(count)] = logits[top];
      end
      // A given token that lies far below the others, at the greatest sharpness or at one by which it just leaves 32 bits.
      if (run % 6 == 3) begin
        step.sharpness = (run % 12 == 3) ? '1 : 28'd1048576;
        step.scores    = 1'b1;
        for (int v = 0; v < count; v++) logits[v] = base + below(100);
        if (count == 1) count = 2;
        step.seed   = 32'(below(count));
        logits[(int'(step.seed) + 1) % count] = base + 100;
        logits[int'(step.seed)] = (run % 12 == 3) ? 32'sh8000_0000 : base - 32'sd5_000_000 - below(1_000_000);
      end
      sample(count);
      #1 begins = 1'b1;
      @(posedge clk);
      #1 begins = 1'b0;
      waits_for = $sformatf("run %0d of %0d logits is not over", run, count);
      given = 0;
      for (int word = 1; word <= words; word++) begin
        // All words but the last have whole blocks.
        stop = (word == words) ? count : 32 * word;
        while (given < stop) begin
          while (chance(20)) @(posedge clk);
          #1;
          valid = 1'b1;
          logit = logits[given];
          last  = given == count - 1;
          @(posedge clk);
          while (!ready) @(posedge clk);
          #1 valid = 1'b0;
          given = given + 1;
        end
        @(posedge clk);
        while (!idle) @(posedge clk);
        if (begun !== (word != words)) fail($sformatf("run %0d: begun is %b behind word %0d of %0d", run, begun, word, words));
        #1 done = 1'b1;
        ended = (run % 5 == 4 && (word == words || run % 10 == 9 || chance(30))) ? UNIT_MEMORY : UNIT_FINE;
        #1;
        if (sample_valid !== (word == words && ended == UNIT_FINE)) fail($sformatf("run %0d: a sample is there: %b", run, sample_valid));
        else if (sample_valid && {token, logp} !== {expected_token, expected_logp[31:0]})
          fail($sformatf("run %0d (%0d logits, sort %0d, spread %0d): token %0d logp %0d, expected %0d %0d", run, count, sort, spread,
                         token, $signed(logp), expected_token, expected_logp));
        @(posedge clk);
        #1 done = 1'b0;
        #1;
        if (sample_valid) fail("a sample without a word that is done");
        if (ended != UNIT_FINE) begin
          if (begun) fail("N6: a chain goes on behind a fault");
          word = words;
        end
      end
    end
    // A step that begins forgets what was begun.
    ended = UNIT_FINE;
    #1 begins = 1'b1;
    @(posedge clk);
    #1 begins = 1'b0;
    @(posedge clk);
    while (!idle) @(posedge clk);
    if (!begun) fail("a chain does not begin");
    #1 forget = 1'b1;
    @(posedge clk);
    #1 forget = 1'b0;
    #1;
    if (begun) fail("N6: what an earlier step began is there");
    finish_bench("npu_sampler_tb");
  end
endmodule
