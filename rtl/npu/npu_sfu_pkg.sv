// What a lane of the SFU computes: docs/engine.md's numbers, exact for any bytes. Values that are not of 32 bits have 64; what the
// upper ones hold is their sign.
package npu_sfu_pkg;
  import npu_pkg::*;

  // The nearest number of 32 bits.
  function automatic logic [31:0] bound32(input logic signed [63:0] value);
    bound32 = (value[63:31] == '0 || value[63:31] == '1) ? value[31:0] : {value[63], {31{!value[63]}}};
  endfunction

  function automatic logic [31:0] bound_residual(input logic signed [63:0] value);
    bound_residual = (value > 64'(RESIDUAL)) ? 32'(RESIDUAL) : (value < -64'(RESIDUAL)) ? -32'(RESIDUAL) : value[31:0];
  endfunction

  // [value >> 10], [value >> 14], [value >> 15]: halves go up.
  function automatic logic signed [63:0] round10(input logic signed [63:0] value);
    round10 = (value + 64'sd512) >>> 10;
  endfunction
  function automatic logic signed [63:0] round14(input logic signed [63:0] value);
    round14 = (value + 64'sd8192) >>> 14;
  endfunction
  function automatic logic signed [63:0] round15(input logic signed [63:0] value);
    round15 = (value + 64'sd16384) >>> 15;
  endfunction

  // Bits that a magnitude takes beyond 15, which is how far a vector is shifted; of a sum of magnitudes by OR as of the largest.
  function automatic logic [5:0] shift_of(input logic [52:0] magnitude);
    shift_of = '0;
    for (int k = 15; k < 53; k++) if (magnitude[k]) shift_of = 6'(k - 14);
  endfunction

  // The same of a block, beyond 7.
  function automatic logic [3:0] down_of(input logic [14:0] magnitude);
    down_of = '0;
    for (int k = 7; k < 15; k++) if (magnitude[k]) down_of = 4'(k - 6);
  endfunction

  // [value >> shift] within 16 bits. A bit stays below, so that no shift is as good as any.
  function automatic logic [15:0] half_of(input logic signed [63:0] value, input logic [5:0] shift);
    logic signed [63:0] twice;
    twice = ((value <<< 1) >>> shift) + 64'sd1;
    twice = twice >>> 1;
    half_of = (twice > 64'sd32767) ? 16'd32767 : (twice < -64'sd32767) ? 16'h8001 : twice[15:0];
  endfunction

  // [half >> down] within 8 bits.
  function automatic logic [7:0] mantissa_of(input logic signed [31:0] half, input logic [3:0] down);
    logic signed [31:0] twice;
    twice = ((half <<< 1) >>> down) + 32'sd1;
    twice = twice >>> 1;
    mantissa_of = (twice > 32'sd127) ? 8'd127 : (twice < -32'sd127) ? 8'h81 : twice[7:0];
  endfunction

  // Where the logistic function is looked up: 6 bits of entry, 9 between it and the next.
  function automatic logic [14:0] logistic_at(input logic signed [31:0] x);
    logistic_at = (x < -32'sd16384) ? 15'd0 : (x > 32'sd16383) ? 15'h7FFF : {!x[14], x[13:0]};
  endfunction

  // ⌈16 · largest / 127⌉, at least 1, of a head within ±STORED: 2^30 / 127 and less than 1 in 8,729,608 more.
  function automatic logic [15:0] scale_of(input logic [18:0] largest);
    logic [63:0] quotient;
    quotient = (({41'd0, largest, 4'd0} + 64'd126) * 64'd8454661) >> 30;
    scale_of = (quotient == '0) ? 16'd1 : 16'(quotient);
  endfunction
endpackage
