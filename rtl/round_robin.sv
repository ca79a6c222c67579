// Round-robin grant, combinational. The requester after the last one that was accepted comes first.
module round_robin #(
  parameter int N = 4               // 1 to 16
) (
  /* verilator lint_off UNUSEDSIGNAL */  // one alone is always the next
  input  logic         clk_i,
  input  logic         rst_ni,
  input  logic [N-1:0] request_i,
  output logic [N-1:0] grant_o,     // one-hot, or zero without a request
  output logic [3:0]   number_o,    // the same as a number
  input  logic         accept_i     // the grant was used: move on
  /* verilator lint_on UNUSEDSIGNAL */
);
  if (N < 1 || N > 16) begin : gen_bad_n
    localparam bit NMustBe1To16 = {-1{1'b1}};   // ends the elaboration
  end

  if (N == 1) begin : gen_one
    assign grant_o  = request_i;
    assign number_o = '0;
  end else begin : gen_many
    // Requesters above the last one that was served.
    logic [N-1:0] above_q;
    logic [N-1:0] preferred, candidates;

    // Conditionals: nothing of it is worked out while nobody asks.
    assign preferred  = request_i & above_q;
    assign candidates = (preferred != '0) ? preferred : request_i;
    assign grant_o    = (request_i != '0) ? candidates & (~candidates + 1'b1) : '0;
    assign number_o   = (request_i != '0) ? {(16'(grant_o) & 16'hFF00) != '0, (16'(grant_o) & 16'hF0F0) != '0,
                                             (16'(grant_o) & 16'hCCCC) != '0, (16'(grant_o) & 16'hAAAA) != '0} : '0;

    always_ff @(posedge clk_i) begin
      if (!rst_ni) above_q <= '1;
      else if (accept_i) above_q <= ~(grant_o | (grant_o - 1'b1));
    end
  end
endmodule
