// Chooses the queue pair whose oldest descriptor goes to a worker next, in turns.
//
// turn_q is the queue pair that comes first; the others follow it in a circle.
module picker #(
  parameter int Queues = 4              // a power of two
) (
  input  logic                      clk_i,
  input  logic                      rst_ni,

  input  logic [Queues-1:0]         waits_i,    // the queue pair has a descriptor that waits
  input  logic [Queues-1:0]         slot_i,     // its completion queue has a slot for it (R4)
  input  logic                      worker_i,   // a worker is free

  output logic                      go_o,       // a descriptor goes to the worker in this cycle, …
  output logic [$clog2(Queues)-1:0] queue_o     // … of this queue pair
);
  localparam int Bits = $clog2(Queues);

  logic [Bits-1:0] turn_q;
  logic [Bits-1:0] candidate;

  // The first that waits, from turn_q on.
  always_comb begin
    queue_o   = turn_q;
    candidate = turn_q;
    for (int k = Queues - 1; k >= 0; k--) begin
      candidate = turn_q + Bits'(k);
      if (waits_i[candidate]) queue_o = candidate;
    end
  end

  assign go_o = worker_i && waits_i[queue_o] && slot_i[queue_o];

  // Whoever went is the last in the next turn.
  always_ff @(posedge clk_i) begin
    if (!rst_ni)   turn_q <= '0;
    else if (go_o) turn_q <= queue_o + 1'b1;
  end
endmodule
