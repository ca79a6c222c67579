// Where the address of a register access lies: its page, queue pair and function. Looked at only in the cycle of an
// access.
module register_place
  import core_pkg::*, desc_pkg::BLOCK_DEVICE, desc_pkg::BLOCK_WORKER;
#(
  parameter int Queues    = 1,
  parameter int Functions = 1
) (
  input  logic        valid_i,
  input  logic [17:0] addr_i,
  output place_t      place_o    // all 0 without an access
);
  logic [4:0]  page;             // of the device for a function, for a queue pair; of a function, its queue pair; of a queue pair
  logic [8:0]  numbers;          // known, queue pair, function
  logic [17:0] offset;
  logic        known;

  // Expressions, not a function or a process: Icarus 11 wakes a process of defaults too often, and Verilator computes what
  // is called in every cycle.
  assign page    = valid_i ? {addr_i[17:10] == 8'h01, addr_i[17:8] == 10'h008 || addr_i[17:8] == 10'h010, addr_i[17:16] == 2'b01 && !addr_i[11],
                              addr_i[17:16] == 2'b01 && addr_i[11], addr_i[17:16] == 2'b10} : '0;
  assign numbers = valid_i ? {addr_i[17:12] == BLOCK_DEVICE[17:12] || addr_i[17:12] == BLOCK_WORKER[17:12] || page[3:0] != '0,
                              page[3] ? addr_i[7:4] : page[1] ? addr_i[10:7] : page[0] ? addr_i[15:12] : 4'd0,
                              page[4] ? addr_i[9:6] : page[2:1] != '0 ? addr_i[15:12] : 4'd0} : '0;
  assign offset  = valid_i ? (page[4] ? {addr_i[17:10], 4'd0, addr_i[5:0]}
                            : page[3] ? {addr_i[17:8], 4'd0, addr_i[3:0]}
                            : page[1] ? {addr_i[17:16], 4'd0, 1'b1, 4'd0, addr_i[6:0]}
                            : page[2:0] != '0 ? {addr_i[17:16], 4'd0, addr_i[11:0]} : addr_i) : '0;
  assign known   = {1'b0, numbers[7:4]} < 5'(Queues) && {1'b0, numbers[3:0]} < 5'(Functions);
  assign place_o = valid_i ? (known ? {numbers, page[1], offset} : {9'd0, page[1], offset}) : '0;
endmodule
