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

  // The same in steps of one multiplication each: mix(x) is mix_last(mix_second(mix_first(x))).
  function automatic logic [31:0] mix_first(input logic [31:0] value);
    mix_first = (value ^ (value >> 16)) * MIX_MUL_1;
  endfunction

  function automatic logic [31:0] mix_second(input logic [31:0] value);
    mix_second = (value ^ (value >> 15)) * MIX_MUL_2;
  endfunction

  function automatic logic [31:0] mix_last(input logic [31:0] value);
    mix_last = value ^ (value >> 16);
  endfunction

  function automatic logic [31:0] digest_step(input logic [31:0] digest, input logic [31:0] token);
    digest_step = (digest ^ token) * DIGEST_PRIME;
  endfunction

  // R2: word k of a submission queue's key, as the check words need it. Wires and inverters.
  function automatic logic [31:0] key_word(input logic [31:0] key, input int k);
    key_word = ((key << (2*k + 1)) | (key >> (31 - 2*k))) ^ mix(32'(k + 1) * GOLDEN);
  endfunction

  // R2: the check word from the sum over a slot.
  function automatic logic [31:0] check_word(input logic [63:0] sum);
    check_word = sum[63:32] ^ sum[31:0];
    if (check_word == '0) check_word = '1;
  endfunction
endpackage
