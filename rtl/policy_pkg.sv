// Arithmetic of the contract (docs/contract.md, rule R2 and engine 0), as functions shared by modules and benches.
package policy_pkg;
  import desc_pkg::*;

  // lowbias32: 32-bit finaliser with good avalanche.
  function automatic logic [31:0] mix(input logic [31:0] value);
    logic [31:0] x;
    x = value ^ (value >> 16);
    x = x * MIX_MUL_1;
    x = x ^ (x >> 15);
    x = x * MIX_MUL_2;
    mix = x ^ (x >> 16);
  endfunction

  function automatic logic [31:0] digest_step(input logic [31:0] digest, input logic [31:0] token);
    digest_step = (digest ^ token) * DIGEST_PRIME;
  endfunction

  // R2: what the check word of a slot must be, for the descriptor's running index.
  function automatic logic [31:0] check_word(input logic [511:0] slot, input logic [31:0] index);
    logic [31:0] sum;
    logic [31:0] word;
    sum = (index + 32'd1) * GOLDEN;
    for (int k = 0; k < 15; k++) begin
      word = slot[32*k +: 32];
      sum = sum ^ (word << (2*k + 1)) ^ (word >> (31 - 2*k));
    end
    check_word = sum;
  endfunction
endpackage
