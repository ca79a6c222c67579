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

  // Within ±(2^26 - 1), of a number of 32 bits; within ±(2^24 - 1).
  function automatic logic [31:0] within26(input logic signed [31:0] value);
    within26 = (value > 32'(RESIDUAL)) ? 32'(RESIDUAL) : (value < -32'(RESIDUAL)) ? -32'(RESIDUAL) : value;
  endfunction
  function automatic logic [31:0] within24(input logic signed [31:0] value);
    within24 = (value > 32'(GATE)) ? 32'(GATE) : (value < -32'(GATE)) ? -32'(GATE) : value;
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

  function automatic logic signed [63:0] round16(input logic signed [63:0] value);
    round16 = (value + 64'sd32768) >>> 16;
  endfunction
  // The same of any 64 bits: nothing is added that could overflow.
  function automatic logic signed [63:0] round10_any(input logic signed [63:0] value);
    round10_any = (value >>> 10) + $signed({63'd0, value[9]});
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

  // [value >> shift], of 63 bits. A bit stays below, so that no shift is as good as any.
  function automatic logic signed [63:0] shifted_of(input logic signed [63:0] value, input logic [5:0] shift);
    logic signed [63:0] twice;
    twice = ((value <<< 1) >>> shift) + 64'sd1;
    shifted_of = twice >>> 1;
  endfunction

  // Within 16 bits.
  function automatic logic [15:0] half_of(input logic signed [63:0] value);
    half_of = (value > 64'sd32767) ? 16'd32767 : (value < -64'sd32767) ? 16'h8001 : value[15:0];
  endfunction

  // What is shifted left, at the top of what a shift to the right by 26 less as many brings to its place; what leaves the residual
  // stream's bounds on the way stays beyond them.
  function automatic logic signed [63:0] raised(input logic signed [63:0] value);
    if (value[63:26] != '0 && value[63:26] != '1) raised = value[63] ? 64'shC000_0000_0000_0000 : 64'sh3FFF_FFFF_FFFF_FFFF;
    else raised = {{11{value[26]}}, value[26:0], 26'd0};
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

  // Where Φ is looked up: 6 bits of entry, 7 between it and the next, and two below.
  function automatic logic [14:0] gelu_at(input logic signed [31:0] x);
    gelu_at = (x < -32'sd4096) ? 15'd0 : (x > 32'sd4095) ? 15'h7FFC : {!x[12], x[11:0], 2'b00};
  endfunction

  // Where tanh of a magnitude is looked up: 8 bits of entry, 8 between it and the next.
  function automatic logic [15:0] tanh_at(input logic signed [31:0] x);
    logic [31:0] magnitude;
    magnitude = x[31] ? -x : x;
    tanh_at = (magnitude[31:12] != '0) ? 16'hFFFF : {magnitude[11:0], 4'd0};
  endfunction

  // ⌈16 · largest / 127⌉, at least 1, of a head within ±STORED: 2^30 / 127 and less than 1 in 8,729,608 more.
  function automatic logic [15:0] scale_of(input logic [18:0] largest);
    logic [63:0] quotient;
    quotient = (({41'd0, largest, 4'd0} + 64'd126) * 64'd8454661) >> 30;
    scale_of = (quotient == '0) ? 16'd1 : 16'(quotient);
  endfunction
endpackage
