// completion_arbiter: one item per cycle from those that can go, in rotation, none starves. Sources and the write port with
// and without stalls. In a turn of the token lines nothing but a line goes (R28).
module completion_arbiter_tb;
  import bench_pkg::*;
  import core_pkg::*;
  localparam int Workers = 4;

  logic clk, rst_n;
  int   cycle;
  clock_reset #(.Limit(60000)) u_clock (.clk_o(clk), .rst_no(rst_n), .cycle_o(cycle));

  logic                       clear = 1'b0;
  logic [Workers-1:0]         valid = '0, has_line = '0, has_done = '0, take, delivered;
  logic [3:0]                 worker;
  logic                       any_taken, line_waits, line_valid, done_valid;
  logic [Workers-1:0]         line_ready = '0, line_place = '0;
  logic                       line_turn = 1'b0;
  int                         turns = 0;

  completion_arbiter #(.Workers(Workers)) u_arbiter (
    .clk_i(clk), .rst_ni(rst_n && !clear), .valid_i(valid), .has_line_i(has_line), .has_done_i(has_done),
    .take_o(take), .taken_o(any_taken), .worker_o(worker), .delivered_o(delivered), .line_waits_o(line_waits),
    .line_place_i(line_place), .line_turn_i(line_turn), .line_valid_o(line_valid), .line_ready_i(line_ready), .done_valid_o(done_valid)
  );

  int                 stall_in, stall_line, last = Workers - 1, expected, k, taken = 0;
  int                 passed [0:Workers-1];
  logic [Workers-1:0] can, now;

  initial for (int w = 0; w < Workers; w++) passed[w] = 0;

  always @(posedge clk) if (rst_n && !clear) begin
    can = '0;
    for (int w = 0; w < Workers; w++)
      can[w] = !clear && valid[w] && (has_line[w] ? line_ready[w] : !line_turn);
    expected = -1;
    for (int s = 1; s <= Workers; s++) begin
      k = (last + s) % Workers;
      if (expected < 0 && can[k]) expected = k;
    end
    expect_eq("taken", any_taken, expected >= 0);
    k = 0;
    for (int w = 0; w < Workers; w++) if (valid[w] && has_line[w] && line_place[w]) k = 1;
    expect_eq("line_waits", line_waits, k);
    if (line_turn && any_taken && !line_valid) fail("R28: something takes a line's turn");
    if (line_turn && line_waits && line_ready == line_place) begin
      expect_eq("a line takes its turn", line_valid, 1);
      turns = turns + 1;
    end
    if (expected < 0) begin
      expect_eq("take", take, 0);
      expect_eq("line_valid", line_valid, 0);
      expect_eq("done_valid", done_valid, 0);
    end else begin
      expect_eq("take", take, 1 << expected);
      expect_eq("worker", worker, expected);
      expect_eq("line_valid", line_valid, has_line[expected]);
      expect_eq("done_valid", done_valid, has_done[expected]);
      expect_eq("delivered", delivered, has_done[expected] ? 1 << expected : 0);
      last  = expected;
      taken = taken + 1;
      for (int w = 0; w < Workers; w++) begin
        passed[w] = (!can[w] || w == expected) ? 0 : passed[w] + 1;
        if (passed[w] >= Workers) fail($sformatf("worker %0d starves", w));
      end
    end
    for (int w = 0; w < Workers; w++) if (!valid[w] || take[w]) begin
      valid[w] <= !chance(stall_in);
      case (below(3))
        0: {has_line[w], has_done[w]} <= 2'b10;
        1: {has_line[w], has_done[w]} <= 2'b01;
        default: {has_line[w], has_done[w]} <= 2'b11;
      endcase
    end
    for (int w = 0; w < Workers; w++) now[w] = !chance(stall_line);
    line_place <= now;
    line_ready <= chance(stall_line) ? '0 : now;
    line_turn  <= chance(20);
    clear      <= below(500) == 0;
  end else if (clear) begin
    last = Workers - 1;
    for (int w = 0; w < Workers; w++) passed[w] = 0;
    valid <= '0;
    clear <= 1'b0;
  end

  initial begin
    for (int m = 0; m < 4; m++) begin
      stall_in   = m[0] ? 70 : 0;
      stall_line = m[1] ? 50 : 0;
      repeat (1600) @(posedge clk);
    end
    if (turns < 100) fail($sformatf("only %0d turns of lines", turns));
    if (taken < 2000) fail($sformatf("only %0d items", taken));
    finish_bench("completion_arbiter_tb");
  end
endmodule
