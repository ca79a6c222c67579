// round_robin: one-hot, only to a requester, the next one after the last that was accepted, none starves.
module round_robin_tb;
  import bench_pkg::*;

  logic clk, rst_n;
  int   cycle;
  clock_reset #(.Limit(30000)) u_clock (.clk_o(clk), .rst_no(rst_n), .cycle_o(cycle));

  int   busy, stall;                    // percent: a requester asks, a grant is not used
  logic use_it = 1'b0;

  for (genvar g = 0; g < 3; g++) begin : gen_n
    localparam int N = (g == 0) ? 1 : (g == 1) ? 4 : 16;
    logic [N-1:0] request = '0, grant;
    logic         accept;
    logic [3:0]   number;
    int           last = N - 1, expected, k;
    int           waited [0:N-1];       // grants to others since it began to ask

    assign accept = use_it && request != '0;
    round_robin #(.N(N)) u_arbiter (.clk_i(clk), .rst_ni(rst_n), .request_i(request), .grant_o(grant),
                             .number_o(number), .accept_i(accept));

    initial for (int w = 0; w < N; w++) waited[w] = 0;

    always @(posedge clk) if (rst_n) begin
      expected = -1;
      for (int s = 1; s <= N; s++) begin
        k = (last + s) % N;
        if (expected < 0 && request[k]) expected = k;
      end
      if (expected < 0) begin
        if (grant !== '0) fail($sformatf("N %0d: grant %b without a request", N, grant));
      end else if (grant !== N'(1) << expected || number !== expected)
        fail($sformatf("N %0d: grant %b, number %0d of requests %b, expected %0d", N, grant, number, request, expected));
      if (accept) begin
        last = expected;
        for (int w = 0; w < N; w++) begin
          waited[w] = (!request[w] || w == expected) ? 0 : waited[w] + 1;
          if (waited[w] >= N) fail($sformatf("N %0d: requester %0d starves", N, w));
        end
      end
      for (int w = 0; w < N; w++)
        if (!request[w] || (accept && grant[w])) request[w] <= chance(busy);
    end
  end

  always @(posedge clk) use_it <= !chance(stall);

  initial begin
    for (int m = 0; m < 6; m++) begin
      busy  = (m % 3 == 0) ? 100 : (m % 3 == 1) ? 50 : 10;
      stall = (m < 3) ? 0 : 50;
      repeat (600) @(posedge clk);
    end
    finish_bench("round_robin_tb");
  end
endmodule
