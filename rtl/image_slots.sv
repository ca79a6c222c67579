// What engine 1 has of the versions of the policy (rule R25): of each function's two slots, whether its version is one of engine
// 1, and where that one's model lies. Written when a version is loaded; a slot that has a user is not loaded anew, so what
// is read here for a descriptor stays true while it lives.
module image_slots
  import core_pkg::*;
#(
  parameter int Functions = 1
) (
  /* verilator lint_off UNUSEDSIGNAL */  // numbers of functions have 4 bits, whatever was built
  input  logic         clk_i,
  input  logic         rst_ni,

  input  logic         begin_i,         // the versions of a function begin anew: none is of engine 1
  input  logic [3:0]   begin_owner_i,
  input  logic         load_i,          // a version is loaded; not of a function that begins
  input  logic [3:0]   load_owner_i,
  input  logic         load_slot_i,
  input  logic         load_engine_i,   // of engine 1, with this image
  input  image_t       load_image_i,

  // Of the version that a slot of the submission queue names, combinational; all 0 without look_i.
  input  logic         look_i,
  input  logic [3:0]   look_owner_i,
  input  logic         look_slot_i,
  output logic         engine_o,
  output logic [31:0]  positions_o,     // of a version of engine 1

  // The engine reads the image of a descriptor that it runs, combinational.
  input  logic [3:0]   image_owner_i,
  input  logic         image_slot_i,
  output image_t       image_o
  /* verilator lint_on UNUSEDSIGNAL */
);
  localparam int FunctionBits = (Functions == 1) ? 1 : $clog2(Functions);
  localparam int Slots        = 2 << FunctionBits;

  // Index: function, slot.
  logic [Slots-1:0]          engine_q;
  logic [$bits(image_t)-1:0] image_mem     [0:Slots-1];
  logic [31:0]               positions_mem [0:Slots-1];    // once more: so each memory has one read port
  logic [FunctionBits:0]     load_place, look_place, image_place;
  logic [FunctionBits-1:0]   begin_owner;
  assign begin_owner = (Functions == 1) ? '0 : begin_owner_i[FunctionBits-1:0];
  assign load_place  = {(Functions == 1) ? FunctionBits'(0) : load_owner_i[FunctionBits-1:0], load_slot_i};
  assign look_place  = {(Functions == 1) ? FunctionBits'(0) : look_owner_i[FunctionBits-1:0], look_slot_i};
  assign image_place = {(Functions == 1) ? FunctionBits'(0) : image_owner_i[FunctionBits-1:0], image_slot_i};

  always_ff @(posedge clk_i) begin
    if (!rst_ni) engine_q <= '0;
    else begin
      if (load_i)  engine_q[load_place]            <= load_engine_i;
      if (begin_i) engine_q[{begin_owner, 1'b0}] <= 1'b0;
      if (begin_i) engine_q[{begin_owner, 1'b1}] <= 1'b0;
    end
    if (load_i && load_engine_i) begin
      image_mem[load_place]     <= load_image_i;
      positions_mem[load_place] <= load_image_i.positions;
    end
  end

  assign engine_o    = look_i && engine_q[look_place];
  assign positions_o = look_i ? positions_mem[look_place] : '0;
  assign image_o     = image_mem[image_place];

`ifndef SYNTHESIS
  always_ff @(posedge clk_i) begin
    if (rst_ni && load_i && begin_i && load_place[FunctionBits:1] == begin_owner)
      $fatal(1, "R18 image_slots: a version is loaded of a function that begins");
  end
`endif
endmodule
