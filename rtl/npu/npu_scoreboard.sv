// Issues the words of a gang to four units, in the order of the program; which gang's word a unit takes, the units' arbiter says. A word is held back while one on another unit, issued before it and not
// done, meets it: RAW, WAR, WAW by lines of on-chip memory, KV by layer. Words behind a MEMCPY that is not asynchronous wait until it is done.
//
// A word is for all contexts of the gang. A context for which a unit cannot finish it has no more words, and the others go on.
//
// There is no queue in front of a unit: a word waits for its unit where it is made ready. Queues of four would spare one cycle of a step
// of SmolLM2's shape, of 2.2 million, by the interpreter's scoreboard. So at most four words are in flight, and the one that waits is
// compared with one of them in a cycle, while they run.
module npu_scoreboard
  import npu_pkg::*;
  import npu_unit_pkg::*;
  import npu_control_pkg::*;
#(
  parameter int Contexts = 1                  // of the gang, 1 to 8
) (
  input  logic              clk_i,
  input  logic              rst_ni,
  input  logic              start_i,          // a step begins; nothing is in flight
  input  logic [Contexts-1:0] contexts_i,     // that take part in it

  input  logic              issue_valid_i,
  input  npu_issue_t        issue_i,          // stays until it is taken
  output logic              issue_taken_o,

  output logic              asks_o,           // the word may go to its unit …
  input  logic              granted_i,        // … which is free, and this gang's turn

  output logic [UNITS-1:0]  start_o,
  input  logic [UNITS-1:0]  idle_i,
  input  logic [UNITS-1:0]  done_i,           // for all contexts
  input  logic [UNITS-1:0][Contexts-1:0] fails_i,   // contexts for which the unit just found that it cannot finish its word, beside done_i or before …
  input  logic [UNITS-1:0][3:0] end_i,        // … and why, an npu_end_t

  output logic              quiet_o,          // no unit has a word
  output logic [Contexts-1:0] alive_o,        // contexts whose words were all finished, in this very cycle as well
  output logic              failed_o,         // no context is left: no word is issued any more
  output logic [Contexts-1:0] stopped_o,      // contexts of which a unit could not finish a word …
  output logic [Contexts-1:0][$bits(npu_log_t)-1:0] log_o   // … an npu_log_t: which. Of several, the first of the program
);
  // What a word in flight reads and writes.
  typedef struct packed {
    npu_range_t  a;
    npu_range_t  b;
    npu_range_t  w;
    logic        kv_read;
    logic        kv_write;
    logic [30:0] layer;
  } flight_t;

  function automatic logic meets(input npu_range_t x, input npu_range_t y);
    meets = x.used && y.used && {1'b0, x.start} < y.stop && {1'b0, y.start} < x.stop;
  endfunction

  /* verilator lint_off UNUSEDSIGNAL */
  function automatic flight_t flight_of(input npu_issue_t issue);
  /* verilator lint_on UNUSEDSIGNAL */
    flight_of.a        = issue.a;
    flight_of.b        = issue.b;
    flight_of.w        = issue.w;
    flight_of.kv_read  = issue.kv_read;
    flight_of.kv_write = issue.kv_write;
    flight_of.layer    = issue.op.layer;
  endfunction

  function automatic logic between(input flight_t earlier, input flight_t word);
    logic raw, war, waw, kv;
    raw = meets(earlier.w, word.a) || meets(earlier.w, word.b);
    war = meets(earlier.a, word.w) || meets(earlier.b, word.w);
    waw = meets(earlier.w, word.w);
    kv  = earlier.layer == word.layer
        && ((earlier.kv_write && (word.kv_read || word.kv_write)) || (earlier.kv_read && word.kv_write));
    between = raw || war || waw || kv;
  endfunction

  function automatic logic [4:0] fault_of(input npu_end_t why);
    case (why)
      UNIT_TOKEN:    fault_of = FAULT_BAD_TOKEN;
      UNIT_POSITION: fault_of = FAULT_BAD_POSITION;
      UNIT_MISSING:  fault_of = FAULT_BLOCK_MISSING;
      UNIT_BLOCK:    fault_of = FAULT_BLOCK_OUT_OF_RANGE;
      UNIT_OUTPUT:   fault_of = FAULT_OUTPUT_OUT_OF_RANGE;
      UNIT_NO_FIRST: fault_of = FAULT_NO_FIRST;
      default:       fault_of = FAULT_MEMORY;
    endcase
  endfunction

  // The units that fail for a context.
  function automatic logic [UNITS-1:0] of_context(input logic [UNITS*Contexts-1:0] fails, input int place);
    for (int u = 0; u < UNITS; u++) of_context[u] = fails[u*Contexts + place];
  endfunction

  logic [UNITS-1:0]            busy_q, start_q;
  logic [$bits(flight_t)-1:0]  flight_q [0:UNITS-1];
  logic [$bits(npu_place_t)-1:0] place_q [0:UNITS-1];
  logic                        sync_q;         // a word is in flight for which all others wait
  logic [UNITS-1:0]            held_q;         // units that the word waits for
  logic [1:0]                  at_q;           // the one it is compared with
  logic                        known_q;        // it was compared with all
  // Units whose word is of an earlier place in the program than this one's.
  logic [UNITS-1:0]            older_q [0:UNITS-1];
  logic [Contexts-1:0]         stopped_q;

  assign start_o   = start_q;
  assign quiet_o   = busy_q == '0;
  assign failed_o  = (contexts_i & ~stopped_q) == '0;
  assign stopped_o = stopped_q;

  logic [Contexts-1:0] stops;                  // in this very cycle
  always_comb begin
    stops = '0;
    for (int u = 0; u < UNITS; u++) stops |= fails_i[u];
  end
  assign alive_o = contexts_i & ~stopped_q & ~stops;

  for (genvar c = 0; c < Contexts; c++) begin : gen_context
    logic [UNITS-1:0] before_q;                // units whose word was in flight before the one that is logged
    npu_place_t       log_place_q;
    logic [4:0]       log_fault_q;
    assign log_o[c] = {log_place_q, log_fault_q};

    always_ff @(posedge clk_i) begin
      if (stops[c] && !start_i) begin
        for (int u = 0; u < UNITS; u++) begin
          // Words that begin later are none of its. Icarus 11 takes no constant behind a variable in a selection.
          if (((of_context(fails_i, c) >> u) & UNITS'(1)) != '0 && (older_q[u] & of_context(fails_i, c)) == '0
              && (!stopped_q[c] || before_q[u])) begin
            before_q    <= older_q[u];
            log_place_q <= place_q[u];
            log_fault_q <= fault_of(end_i[u]);
          end
        end
        stopped_q[c] <= 1'b1;
      end
      if (start_i || !rst_ni) stopped_q[c] <= 1'b0;
    end
  end

  assign asks_o        = issue_valid_i && known_q && held_q == '0 && !sync_q && !busy_q[issue_i.where] && alive_o != '0;
  assign issue_taken_o = asks_o && granted_i;

  always_ff @(posedge clk_i) begin
    if (start_i) begin
      known_q  <= 1'b0;
      at_q     <= '0;
      held_q   <= '0;
    end
    start_q <= '0;
    if (issue_valid_i || busy_q != '0) begin
      if (issue_valid_i && !known_q) begin
        // A unit runs its words one behind the other, so its own are no hazard.
        held_q[at_q] <= busy_q[at_q] && at_q != issue_i.where && between(flight_q[at_q], flight_of(issue_i));
        at_q         <= at_q + 2'd1;
        known_q      <= at_q == 2'd3;
      end
      if (issue_taken_o) begin
        start_q[issue_i.where]  <= 1'b1;
        flight_q[issue_i.where] <= flight_of(issue_i);
        place_q[issue_i.where]  <= issue_i.place;
        busy_q[issue_i.where]   <= 1'b1;
        sync_q                  <= issue_i.sync;
        known_q                 <= 1'b0;
        for (int u = 0; u < UNITS; u++) older_q[u] <= older_q[u] & ~(UNITS'(1) << issue_i.where);
        older_q[issue_i.where]  <= busy_q;
      end
      if (done_i != '0) begin
        busy_q <= busy_q & ~done_i;
        if (issue_taken_o) busy_q[issue_i.where] <= 1'b1;
        for (int u = 0; u < UNITS; u++) begin
          if (done_i[u]) held_q[u] <= 1'b0;
        end
        if (done_i[UNIT_MEM]) sync_q <= 1'b0;
      end
    end
    if (!rst_ni) begin
      busy_q   <= '0;
      start_q  <= '0;
      sync_q   <= 1'b0;
      known_q  <= 1'b0;
      at_q     <= '0;
      held_q   <= '0;
    end
  end

`ifndef SYNTHESIS
  always_ff @(posedge clk_i) begin
    if (start_i) begin
      if (rst_ni && busy_q != '0) $fatal(1, "N6 npu_scoreboard: a step begins with words in flight");
    end
    if (done_i != '0) begin
      if (rst_ni && (done_i & ~busy_q) != '0) $fatal(1, "N1 npu_scoreboard: units %b are done without a word", done_i & ~busy_q);
      if (rst_ni && (done_i & start_q) != '0) $fatal(1, "N1 npu_scoreboard: units %b are done before they begin", done_i & start_q);
    end
    if (start_q != '0) begin
      if (rst_ni && (start_q & ~idle_i) != '0) $fatal(1, "N1 npu_scoreboard: units %b begin in the middle of a word", start_q & ~idle_i);
    end
  end
`endif
endmodule
