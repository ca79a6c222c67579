// What vec.norm divides by: 2^46 / √((squares / count + ε) · 2^k), with k so that the root has 31 bits. A division of 64 steps, a
// root of 32 (the last bit is nonsense's: squares that wrapped), an inverse of 17: a bit a step, all by one subtractor.
// Of vec.cut the mean alone, then √(2^10 · squares / count).
module npu_rms (
  input  logic        clk_i,
  input  logic        rst_ni,

  input  logic        start_i,          // only while nothing runs
  input  logic [63:0] squares_i,
  input  logic [16:0] count_i,          // stays until ready_o
  input  logic [31:0] epsilon_i,        // likewise
  input  logic        mean_i,           // likewise: the mean alone
  input  logic        plain_i,          // likewise: the root of 2^10 times the mean, without ε and without an inverse
  output logic        ready_o,          // what follows is of the last start
  output logic [24:0] mean_o,           // of mean_i alone
  output logic [31:0] root_o,
  output logic [15:0] inverse_o,
  output logic [4:0]  half_o            // k / 2
);
  localparam logic [2:0] READY = 3'd0, MEAN = 3'd1, EPSILON = 3'd2, HALF = 3'd3, SCALE = 3'd4, ROOT = 3'd5, INVERSE = 3'd6;

  logic [2:0]  phase_q;
  logic [5:0]  left_q;                  // steps behind this one
  logic [63:0] number_q;                // what is divided, then what is left of it above the quotient; the mean; what the root is of
  logic [34:0] rest_q;
  logic [31:0] root_q;
  logic [16:0] inverse_q;
  logic [4:0]  half_q;

  assign ready_o   = phase_q == READY;
  assign mean_o    = number_q[24:0];
  assign root_o    = root_q;
  assign inverse_o = inverse_q[16] ? 16'hFFFF : inverse_q[15:0];
  assign half_o    = half_q;

  // Half of the largest even number by which 62 bits hold the value shifted.
  function automatic logic [4:0] half_shift(input logic [63:0] value);
    half_shift = '0;
    for (int k = 0; k < 31; k++) if (value[2*k +: 2] != '0) half_shift = 5'(30 - k);
    if (value[63:62] != '0) half_shift = '0;
  endfunction

  /* verilator lint_off BLKSEQ */  // names for what is between two stages
  logic [36:0] offered, taken;
  logic        fits, ends;
  logic [63:0] mean;
  always_ff @(posedge clk_i) begin
    if (phase_q != READY) begin
      ends = left_q == '0;
      case (phase_q)
        EPSILON: begin
          mean     = number_q + {32'd0, epsilon_i};
          number_q <= (mean == '0) ? 64'd1 : mean;
          phase_q  <= HALF;
        end
        HALF: begin
          half_q  <= half_shift(number_q);
          phase_q <= SCALE;
        end
        SCALE: begin
          number_q <= number_q << {half_q, 1'b0};
          rest_q   <= '0;
          root_q   <= '0;
          left_q   <= 6'd31;
          phase_q  <= ROOT;
        end
        default: begin
          case (phase_q)
            MEAN:    begin offered = {1'b0, rest_q, number_q[63]};   taken = {20'd0, count_i};          end
            ROOT:    begin offered = {rest_q, number_q[63:62]};      taken = {3'd0, root_q, 2'b01};     end
            default: begin offered = {1'b0, rest_q, 1'b0};           taken = {5'd0, root_q};            end
          endcase
          fits   = offered >= taken;
          rest_q <= fits ? offered[34:0] - taken[34:0] : offered[34:0];
          left_q <= left_q - 1'b1;
          case (phase_q)
            MEAN: begin
              number_q <= {number_q[62:0], fits};
              if (plain_i) half_q <= 5'd5;
              if (ends) phase_q <= mean_i ? READY : plain_i ? SCALE : EPSILON;
            end
            ROOT: begin
              number_q <= {number_q[61:0], 2'b00};
              root_q   <= {root_q[30:0], fits};
              if (ends) begin
                // 2^46 without its last 17 bits is less than any root, which has 31 or 32.
                rest_q    <= 35'd1 << 29;
                inverse_q <= '0;
                left_q    <= 6'd16;
                phase_q   <= plain_i ? READY : INVERSE;
              end
            end
            default: begin
              inverse_q <= {inverse_q[15:0], fits};
              if (ends) phase_q <= READY;
            end
          endcase
        end
      endcase
    end else if (start_i) begin
      phase_q  <= MEAN;
      left_q   <= 6'd63;
      number_q <= squares_i + {48'd0, count_i[16:1]};
      rest_q   <= '0;
    end
    if (!rst_ni) phase_q <= READY;
  end
  /* verilator lint_on BLKSEQ */

`ifndef SYNTHESIS
  always_ff @(posedge clk_i) begin
    if (start_i) begin
      if (rst_ni && phase_q != READY) $fatal(1, "N1 npu_rms: started before it was ready");
    end
    if (phase_q == INVERSE) begin
      if (rst_ni && root_q[31:30] == '0) $fatal(1, "N4 npu_rms: root %h has less than 31 bits", root_q);
    end
  end
`endif
endmodule
