// No source takes another one's places (R28): place_quota. A place that is taken is given back once, which its user is held to (asserted in place_quota;
// writer_f for the places of token lines, ring_f for those of completions).
module quota_f #(
  parameter int Sources = 3,
  parameter int Places  = 6
) (
  input logic       clk_i,
  input logic       clear_i, take_i, give_i,
  input logic [1:0] taker_i, giver_i
);
  localparam int Own    = Places / (2 * Sources);
  localparam int Shared = Places - Own * Sources;
  logic run = 1'b0;
  always_ff @(posedge clk_i) run <= 1'b1;

  logic [Sources-1:0] ready;
  place_quota #(.Sources(Sources), .Places(Places)) u_quota (.clk_i, .rst_ni(run), .clear_i, .take_i, .taker_i, .give_i, .giver_i, .ready_o(ready));

  // ---------------------------------------------------------------- what each holds
  logic [Sources-1:0][4:0] held = '0;
  logic [6:0] all, shared;
  always_comb begin
    all    = '0;
    shared = '0;
    for (int s = 0; s < Sources; s++) begin
      all = all + 7'(held[s]);
      if (held[s] > 5'(Own)) shared = shared + 7'(held[s]) - 7'(Own);
    end
  end
  always_ff @(posedge clk_i) begin
    for (int s = 0; s < Sources; s++) begin
      if (!run || clear_i) held[s] <= '0;
      else held[s] <= held[s] + 5'(take_i && taker_i == 2'(s)) - 5'(give_i && giver_i == 2'(s));
    end
  end

  // ---------------------------------------------------------------- what is assumed
  always_comb begin
    assume (taker_i < 2'(Sources) && giver_i < 2'(Sources));
    if (take_i) assume (ready[taker_i]);
    if (give_i) assume (held[giver_i] != '0);
  end

  // ---------------------------------------------------------------- what is asserted
`ifndef REACH
  always_comb if (run) begin
    assert (all <= 7'(Places) && shared <= 7'(Shared));
    for (int s = 0; s < Sources; s++) begin
      // Of its own a source may always take, whatever the others hold; of the rest as long as there is some.
      assert (ready[s] == (held[s] < 5'(Own) || shared < 7'(Shared)));
      assert (u_quota.count_q[s] == 4'(held[s]) && u_quota.own_full_q[s] == (held[s] >= 5'(Own)));
    end
    assert (u_quota.shared_q == 4'(shared));
  end
`endif

  // What must be reachable, for the proof to say anything.
`ifdef REACH
  always_comb case (`REACH)
    0:       assert (all != 7'(Places));
    1:       assert (!(ready == 3'b010 && held[0] == 5'(Own + Shared)));
    default: assert (!(ready == '1 && shared == 7'(Shared - 1) && take_i && give_i && taker_i != giver_i));
  endcase
`endif
endmodule
