// Divides the places of a common store among sources: half of them evenly, as each source's own; any source may use
// the other half. So a source whose places are not given back stalls only itself.
module place_quota #(
  parameter int Sources = 4,            // 1 to 32
  parameter int Places  = 128           // at least two per source
) (
  input  logic               clk_i,
  input  logic               rst_ni,
  input  logic               clear_i,      // all places are free
  input  logic               take_i,       // one place is taken by source taker_i; only when ready_o says so
  input  logic [(Sources == 1 ? 1 : $clog2(Sources))-1:0] taker_i,
  input  logic               give_i,       // one is given back by source giver_i
  input  logic [(Sources == 1 ? 1 : $clog2(Sources))-1:0] giver_i,
  output logic [Sources-1:0] ready_o       // early: the source may take a place
);
  if (Sources < 1) begin : gen_bad_sources
    localparam bit SourcesMustBeAtLeast1 = {-1{1'b1}};   // ends the elaboration
  end

  if (Places < 2 * Sources) begin : gen_bad_places
    localparam bit PlacesMustBeTwoPerSourceOrMore = {-1{1'b1}};   // ends the elaboration
  end

  localparam int CountBits = $clog2(Places + 1);
  localparam int Own       = Places / (2 * Sources);
  localparam int Shared    = Places - Own * Sources;

  localparam int SourceBits = (Sources == 1) ? 1 : $clog2(Sources);

  // As many as an index can name: the simulation needs to check none.
  logic [CountBits-1:0]         count_q [0:(1 << SourceBits)-1];
  /* verilator lint_off UNUSEDSIGNAL */
  logic [(1 << SourceBits)-1:0] own_full_q;
  /* verilator lint_on UNUSEDSIGNAL */
  logic [CountBits-1:0]         shared_q;

  assign ready_o = (shared_q == CountBits'(Shared)) ? ~own_full_q[Sources-1:0] : '1;

  always_ff @(posedge clk_i) begin
    if (!rst_ni || clear_i) begin
      for (int s = 0; s < (1 << SourceBits); s++) count_q[s] <= '0;
      shared_q   <= '0;
      own_full_q <= '0;
    end else if (take_i || give_i) begin
      if (!(take_i && give_i && giver_i == taker_i)) begin    // else the place changes hands
        if (take_i) begin
          count_q[taker_i]    <= count_q[taker_i] + 1'b1;
          own_full_q[taker_i] <= count_q[taker_i] + 1'b1 >= CountBits'(Own);
        end
        if (give_i) begin
          count_q[giver_i]    <= count_q[giver_i] - 1'b1;
          own_full_q[giver_i] <= count_q[giver_i] > CountBits'(Own);
        end
        shared_q <= shared_q + CountBits'(take_i && count_q[taker_i] >= CountBits'(Own))
                             - CountBits'(give_i && count_q[giver_i] > CountBits'(Own));
      end
    end
  end

`ifndef SYNTHESIS
  always_ff @(posedge clk_i) begin
    if (take_i) begin
      if (rst_ni && !clear_i && !ready_o[taker_i])
        $fatal(1, "R4 place_quota: source %0d takes a place that it has not (%m)", taker_i);
    end
    if (give_i) begin
      if (rst_ni && !clear_i && !(take_i && giver_i == taker_i) && count_q[giver_i] == '0)
        $fatal(1, "R3 place_quota: source %0d gives back what it has not (%m)", giver_i);
    end
  end
`endif
endmodule
