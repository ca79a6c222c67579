// Whether the next word of a program may begin, while earlier ones run on other units.
//
// A word reads the lines of on-chip memory from read_first to before read_stop, and writes those from write_first to before write_stop: at least one of
// each. It may do so in any cycle, from the one after it was taken up to the one in which its unit is done. A unit runs one word at a time.
module hazards #(
  parameter int Units = 3
) (
  input  logic             clk_i,
  input  logic             rst_ni,

  input  logic             valid_i,        // there is a next word; it stays until it is taken
  input  logic [1:0]       unit_i,         // that it runs on
  input  logic [7:0]       read_first_i,
  input  logic [7:0]       read_stop_i,
  input  logic [7:0]       write_first_i,
  input  logic [7:0]       write_stop_i,
  output logic             taken_o,        // it begins

  input  logic [Units-1:0] done_i          // the unit is done with its word
);
  typedef struct packed {
    logic [7:0] first;
    logic [7:0] stop;
  } range_t;

  function automatic logic meets(input range_t x, input range_t y);
    meets = x.first < y.stop && y.first < x.stop;
  endfunction

  range_t reads, writes;
  assign reads  = {read_first_i, read_stop_i};
  assign writes = {write_first_i, write_stop_i};

  // What is in flight on each unit.
  logic [Units-1:0] busy_q;
  logic [15:0]      reads_q  [0:Units-1];
  logic [15:0]      writes_q [0:Units-1];

  logic raw, waw;
  always_comb begin
    raw = 1'b0;
    waw = 1'b0;
    for (int u = 0; u < Units; u++) begin
      if (busy_q[u]) begin
        raw = raw || meets(writes_q[u], reads);
        waw = waw || meets(writes_q[u], writes);
      end
    end
  end

  assign taken_o = valid_i && !busy_q[unit_i] && !raw && !waw;

  always_ff @(posedge clk_i) begin
    busy_q <= busy_q & ~done_i;
    if (taken_o) begin
      busy_q[unit_i]   <= 1'b1;
      reads_q[unit_i]  <= reads;
      writes_q[unit_i] <= writes;
    end
    if (!rst_ni) busy_q <= '0;
  end
endmodule
