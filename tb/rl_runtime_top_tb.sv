// Directed cases of the whole device, each named.
module rl_runtime_top_tb;
  import bench_pkg::*;
  import desc_pkg::*;

  top_bench #(.Workers(4)) bench ();

  hw_desc_t desc;

  task automatic case_basic_decode;
    bench.default_config;
    bench.enable;
    bench.make_decode(7, 20, 3, desc);
    bench.put(desc);
    bench.ring;
    bench.await_completions(1, 500);
    if (bench.last_done.final_seq_len != 20) fail("a plain DECODE must run to its end");
    bench.expect_all_done;
    bench.disable_device;
    bench.check_counters;
    $display("case basic decode");
  endtask

  initial begin
    @(posedge bench.rst_n);
    @(posedge bench.clk);
    case_basic_decode;
    finish_bench("rl_runtime_top_tb");
  end
endmodule
