// event_ring: R23 against a reference that follows each descriptor through a device of its own, whose moments it chooses at random:
// slots, workers, tokens, places, completions one or two to a response, some of them lost. Every event is compared with what
// happened, its slot with the ring, and what was not told with EVENTS_DROPPED. Hosts read now and then, or never; rings
// of 2 to 64 slots, ports that are busy, responses that are withheld or errors, faults, disables and starts.
//   +lives=N   descriptors of each queue pair
module event_ring_tb;
  import bench_pkg::*;

  logic clk, rst_n;
  int   cycle;
  clock_reset #(.Limit(100_000_000)) u_clock (.clk_o(clk), .rst_no(rst_n), .cycle_o(cycle));

  int lives;
  initial if (!$value$plusargs("lives=%d", lives)) lives = 3000;

  event_ring_run #(.Queues(1), .Functions(1), .Workers(2)) u_one  (.clk(clk), .rst_n(rst_n), .lives(lives));
  event_ring_run #(.Queues(3), .Functions(2), .Workers(3)) u_many (.clk(clk), .rst_n(rst_n), .lives(lives));

  initial begin
    @(posedge rst_n);
    while (!(u_one.over && u_many.over)) @(posedge clk);
    finish_bench("event_ring_tb");
  end
endmodule

module event_ring_run #(
  parameter int Queues    = 1,
  parameter int Functions = 1,
  parameter int Workers   = 2
) (
  input logic clk,
  input logic rst_n,
  input int   lives
);
  import bench_pkg::*;
  import desc_pkg::*;
  import core_pkg::*;

  localparam int Places  = 16;          // of completion_ring
  localparam int Fetched = 8;           // slots of a queue pair that wait for a worker
  localparam int Items   = 8192;        // descriptors that are remembered
  localparam int Posted  = 1024;        // completions of a queue pair likewise
  localparam int Unanswered = 150;

  logic over = 1'b0;

  // ---------------------------------------------------------------- what is driven, at the falling edge
  logic        start = 1'b0, rel = 1'b0, slot = 1'b0, take = 1'b0, delivered = 1'b0, reads = 1'b0, posts = 1'b0;
  logic        ready = 1'b1, ack = 1'b0, ack_error = 1'b0;
  logic [3:0]  start_pair = '0, rel_owner = '0, read_owner = '0, slot_pair = '0, take_pair = '0, take_worker = '0;
  logic [3:0]  delivered_worker = '0, delivered_pair = '0, posted_pair = '0, answered_pair = '0, place = '0, posted_place = '0;
  logic [31:0] rel_head = '0, posted_index = '0, answered_to = '0;
  logic [1:0]  answered = '0, seen = '0;
  logic [5:0]  ack_id = '0;
  logic [Workers-1:0]   begun = '0, token = '0, done = '0;
  logic [6*Queues-1:0]  raised = '0;
  logic [Queues-1:0]    on = '0, active = '0;
  logic [Queues-1:0][3:0] owner;
  queue_config_t config_now = '0;
  for (genvar q = 0; q < Queues; q++) begin : gen_owner
    assign owner[q] = 4'(q % Functions);
  end

  logic         rel_ok, event_valid, event_urgent;
  logic [3:0]   event_owner;
  logic [31:0]  head_now, tail_now, dropped_now;
  logic [63:0]  event_addr;
  logic [255:0] event_data;
  logic [Queues-1:0] waits, busy;
  hw_event_t    found;
  assign found = event_data;

  event_ring #(.Queues(Queues), .Functions(Functions), .Workers(Workers), .FetchDepth((Queues == 1) ? Fetched : 4*Fetched), .Depth(Places)) u_dut (
    .held_i('0),
    .clk_i(clk), .rst_ni(rst_n), .start_i(start), .start_queue_i(start_pair), .start_config_i(config_now), .on_i(on), .active_i(active),
    .owner_i(owner), .release_i(rel), .release_owner_i(rel_owner), .release_head_i(rel_head), .release_ok_o(rel_ok),
    .read_owner_i(read_owner), .head_o(head_now), .tail_o(tail_now), .dropped_o(dropped_now),
    .slot_i(slot), .slot_queue_i(slot_pair), .taken_i(take), .taken_queue_i(take_pair), .taken_worker_i(take_worker),
    .begun_i(begun), .token_i(token), .done_i(done), .delivered_i(delivered), .delivered_worker_i(delivered_worker),
    .delivered_queue_i(delivered_pair), .delivered_reads_i(reads), .delivered_place_i(place), .posted_i(posts),
    .posted_queue_i(posted_pair), .posted_place_i(posted_place), .posted_index_i(posted_index), .answered_i(answered),
    .answered_queue_i(answered_pair), .answered_to_i(answered_to), .visible_i(seen), .raised_i(raised),
    .event_valid_o(event_valid), .event_urgent_o(event_urgent), .event_owner_o(event_owner), .event_addr_o(event_addr),
    .event_data_o(event_data), .event_ready_i(ready), .ack_i(ack), .ack_id_i(ack_id), .ack_error_i(ack_error),
    .waits_o(waits), .busy_o(busy)
  );

  // ---------------------------------------------------------------- descriptors, where they are
  longint      fetched_at [0:Items-1], started_at [0:Items-1], first_at [0:Items-1], ended_at [0:Items-1], visible_at [0:Items-1];
  logic        has_first [0:Items-1], is_read [0:Items-1], is_lost [0:Items-1];
  int          pair_of [0:Items-1], worker_of [0:Items-1];
  int          items = 0;
  int          wait_item [0:Queues*64-1], wait_new [0:Queues-1], wait_old [0:Queues-1];
  int          work_item [0:Workers*8-1], work_new [0:Workers-1], work_begun [0:Workers-1], work_done [0:Workers-1], work_old [0:Workers-1];
  int          place_item [0:Places-1];                     // -1: free
  longint      place_since [0:Places-1];
  int          post_item [0:Queues*Posted-1];
  longint      post_since [0:Queues*Posted-1];
  logic [31:0] tail [0:Queues-1], vis [0:Queues-1], told [0:Queues-1];
  int          made [0:Queues-1], underway [0:Queues-1];      // underway: between its slot and its completion's answer
  longint      now = 0, cycles = 0;
  int          raises [0:Queues-1], told_bits [0:Queues-1];
  logic [8:0]  pending_bits [0:Queues-1];

  // ---------------------------------------------------------------- rings
  logic        runs [0:Functions-1], ran [0:Functions-1], life [0:Functions-1];
  logic [31:0] given [0:Functions-1], head [0:Functions-1], answers [0:Functions-1], skipped [0:Functions-1], errors_of [0:Functions-1];
  logic [63:0] base [0:Functions-1];
  logic [31:0] size [0:Functions-1];
  int          patience;
  int          n_life = 0, n_fault = 0, n_skip = 0, n_error = 0, n_starts = 0, n_double = 0, n_urgent = 0, n_lost = 0;
  // Of the phase of the test.
  logic        lazy, calm, faulty;
  logic        closing = 1'b0, opening = 1'b0;    // every queue pair stops, and none starts; one starts at once
  int          last_pair = 0;                     // the last that became inactive

  initial begin
    for (int q = 0; q < Queues; q++) begin
      wait_new[q] = 0; wait_old[q] = 0; tail[q] = '0; vis[q] = '0; told[q] = '0; made[q] = 0; underway[q] = 0;
      raises[q] = 0; told_bits[q] = 0; pending_bits[q] = '0;
    end
    for (int w = 0; w < Workers; w++) begin
      work_new[w] = 0; work_begun[w] = 0; work_done[w] = 0; work_old[w] = 0;
    end
    for (int p = 0; p < Places; p++) place_item[p] = -1;
    for (int f = 0; f < Functions; f++) begin
      runs[f] = 1'b0; ran[f] = 1'b0; life[f] = 1'b0; given[f] = '0; head[f] = '0; answers[f] = '0; skipped[f] = '0; errors_of[f] = '0;
      base[f] = '0; size[f] = '0;
    end
    lazy = 1'b0; calm = 1'b1; faulty = 1'b0; patience = 0;
  end

  // Completions up to an index were passed over without an event.
  task automatic pass_over(input int q, input logic [31:0] upto);
    if (upto - told[q] > 2000) $fatal(1, "told %h upto %h", told[q], upto);
    while (told[q] != upto) begin
      if (!is_lost[post_item[q*Posted + int'(told[q] % Posted)]]) begin
        skipped[q % Functions] = skipped[q % Functions] + 1;
        n_skip = n_skip + 1;
      end
      told[q] = told[q] + 1;
    end
  endtask

  function automatic logic [30:0] since(input longint moment, input longint from);
    since = 31'(moment - from);
  endfunction

  int i, f, q;
  logic [31:0] used;
  logic        phase, any, some;
  always @(posedge clk) if (rst_n) begin
    any = 1'b0;
    for (int k = 0; k < Functions; k++) if (ran[k]) any = 1'b1;

    // An event goes to the port.
    if (event_valid && ready) begin
      f     = int'(event_owner);
      q     = int'(found.queue_id);
      used  = given[f] - head[f];
      phase = (given[f] & size[f]) == '0;
      if (!runs[f]) fail($sformatf("R23: an event of function %0d, which has no ring", f));
      if (q >= Queues || q % Functions != f) fail($sformatf("R23: an event of queue pair %0d in the ring of function %0d", q, f));
      if (event_addr !== base[f] + 64'(32 * (given[f] & (size[f] - 1)))) fail($sformatf("R23: event %0d at %h", given[f], event_addr));
      if (found.stamp[63] !== phase || found.visible[31] !== phase) fail($sformatf("R23: phases of event %0d", given[f]));
      if (used >= size[f]) fail($sformatf("R23: event %0d of a ring that is full", given[f]));
      if (event_urgent) n_urgent = n_urgent + 1;
      if (found.kind == EVENT_LIFE) begin
        if (used >= size[f] - ((size[f] == 2) ? 1 : size[f] / 4)) fail($sformatf("R23: LIFE event %0d in the last quarter", given[f]));
        if (found.index - told[q] >= vis[q] - told[q]) fail($sformatf("R23: LIFE of completion %0d, told %0d, visible %0d", found.index, told[q], vis[q]));
        else begin
          pass_over(q, found.index);
          i = post_item[q*Posted + int'(found.index % Posted)];
          told[q] = found.index + 1;
          n_life  = n_life + 1;
          if (is_lost[i]) fail($sformatf("R23: LIFE of completion %0d, which is lost", found.index));
          if (found.worker_id !== 16'(worker_of[i])) fail($sformatf("R23: worker %0d of completion %0d", found.worker_id, found.index));
          if (found.stamp[62:0] !== 63'(fetched_at[i])) fail($sformatf("R23: stamp %0d of completion %0d, fetched at %0d", found.stamp[62:0], found.index, fetched_at[i]));
          if (found.start !== 32'(since(started_at[i], fetched_at[i]))) fail($sformatf("R23: start %0d of completion %0d", found.start, found.index));
          if (found.first_token !== 32'(since(first_at[i], fetched_at[i]))) fail($sformatf("R23: first token %0d of completion %0d, not %0d", found.first_token, found.index, first_at[i] - fetched_at[i]));
          if (found.ended !== 32'(since(ended_at[i], fetched_at[i]))) fail($sformatf("R23: end %0d of completion %0d, not %0d", found.ended, found.index, ended_at[i] - fetched_at[i]));
          if (found.visible[30:0] !== since(visible_at[i], fetched_at[i])) fail($sformatf("R23: visible %0d of completion %0d, not %0d", found.visible[30:0], found.index, visible_at[i] - fetched_at[i]));
        end
      end else if (found.kind == EVENT_FAULT) begin
        n_fault = n_fault + 1;
        if (found.start[8:0] == '0 || found.start[31:9] != '0 || (found.start[8:0] & ~pending_bits[q]) != '0)
          fail($sformatf("R23: faults %h of queue pair %0d, of %h", found.start, q, pending_bits[q]));
        if (found.ended != '0 || found.first_token != '0 || found.worker_id != '0) fail("R23: a FAULT has moments");
        told_bits[q] = told_bits[q] + $countones(found.start[8:0]);
      end else fail($sformatf("R23: an event of kind %0d", found.kind));
      given[f] = given[f] + 1;
    end
    if (ack) begin
      f = int'(ack_id) - 48;
      answers[f] = answers[f] + 1;
      if (ack_error) begin
        errors_of[f] = errors_of[f] + 1;
        n_error      = n_error + 1;
      end
    end

    // Registers.
    f = int'(read_owner);
    if (!start && head_now !== head[f]) fail($sformatf("R23: EQ_HEAD of function %0d is %0d", f, head_now));
    if (!start && tail_now !== answers[f] - 32'(ack && int'(ack_id) - 48 == f)) fail($sformatf("R23: EQ_TAIL of function %0d is %0d", f, tail_now));
    if (rel) begin
      f = int'(rel_owner);
      // Written is what has its slot.
      used = given[f] + 32'(event_valid && !ready && int'(event_owner) == f) - head[f];
      if (rel_ok !== (ran[f] && rel_head - head[f] <= used)) fail($sformatf("R23: EQ_HEAD %0d of function %0d: %b", rel_head, f, rel_ok));
      if (rel_ok) head[f] = rel_head;
    end

    // What happens to descriptors in this cycle.
    if (slot) begin
      i = items % Items;
      items = items + 1;
      pair_of[i] = int'(slot_pair); fetched_at[i] = now; has_first[i] = 1'b0; is_read[i] = 1'b0; is_lost[i] = 1'b0;
      wait_item[int'(slot_pair)*64 + wait_new[slot_pair] % 64] = i;
      wait_new[slot_pair] = wait_new[slot_pair] + 1;
      underway[slot_pair]   = underway[slot_pair] + 1;
      made[slot_pair]     = made[slot_pair] + 1;
    end
    if (take) begin
      i = wait_item[int'(take_pair)*64 + wait_old[take_pair] % 64];
      wait_old[take_pair] = wait_old[take_pair] + 1;
      worker_of[i] = int'(take_worker);
      work_item[int'(take_worker)*8 + work_new[take_worker] % 8] = i;
      work_new[take_worker] = work_new[take_worker] + 1;
    end
    for (int w = 0; w < Workers; w++) begin
      i = work_item[w*8 + work_done[w] % 8];
      if ((token[w] || done[w]) && !has_first[i]) begin
        has_first[i] = 1'b1;
        first_at[i]  = now;
      end
      if (done[w]) begin
        ended_at[i]  = now;
        work_done[w] = work_done[w] + 1;
      end
      if (begun[w]) begin
        started_at[work_item[w*8 + work_begun[w] % 8]] = now;
        work_begun[w] = work_begun[w] + 1;
      end
    end
    if (posts) begin
      q = int'(posted_pair);
      i = place_item[posted_place];
      place_item[posted_place] = -1;
      if (is_read[i]) begin
        first_at[i] = now;
        ended_at[i] = now;
      end
      post_item[q*Posted + int'(tail[q] % Posted)]  = i;
      post_since[q*Posted + int'(tail[q] % Posted)] = cycles;
      tail[q] = tail[q] + 1;
    end
    if (delivered) begin
      i = work_item[int'(delivered_worker)*8 + work_old[delivered_worker] % 8];
      work_old[delivered_worker] = work_old[delivered_worker] + 1;
      is_read[i]         = reads;
      place_item[place]  = i;
      place_since[place] = cycles;
    end
    if (answered != 0) begin
      q = int'(answered_pair);
      if (answered == 2) n_double = n_double + 1;
      for (int k = 0; k < int'(answered); k++) begin
        i = post_item[q*Posted + int'((vis[q] + 32'(k)) % Posted)];
        visible_at[i] = now;
        is_lost[i]    = seen == 0;
        if (seen == 0) n_lost = n_lost + 1;
      end
      vis[q]    = vis[q] + 32'(answered);
      underway[q] = underway[q] - int'(answered);
      if (!life[q % Functions]) told[q] = vis[q];
    end
    for (int k = 0; k < Queues; k++) begin
      for (int b = 0; b < 6; b++) if (raised[b*Queues + k] && runs[k % Functions]) begin
        pending_bits[k][b == 5 ? FAULT_BUS_TIMEOUT_BIT : b] = 1'b1;
        raises[k] = raises[k] + 1;
      end
    end

    // Lives of queue pairs and rings. A completion of what was disabled is dropped with its place.
    for (int p = 0; p < Places; p++) if (place_item[p] >= 0 && !on[pair_of[place_item[p]]] && cycles > place_since[p]) begin
      underway[pair_of[place_item[p]]] = underway[pair_of[place_item[p]]] - 1;
      place_item[p] = -1;
    end
    if (start) begin
      active[start_pair] = 1'b1;
      on[start_pair]     = 1'b1;
    end
    now    = now + longint'(any || start);
    for (int k = 0; k < Functions; k++) ran[k] = runs[k];
    cycles = cycles + 1;
    for (int k = 0; k < Queues; k++) if (active[k] && !on[k]) begin
      underway[k]   = underway[k] - (wait_new[k] - wait_old[k]);
      wait_old[k] = wait_new[k];
    end
  end

  // ---------------------------------------------------------------- driving
  int          pick, free_place, n, stop_chance, want, life_count;
  logic [31:0] expected;
  logic        found_one;

  // The end of a queue pair's life: nothing of it is under way (R12). The end of a ring: all is told, or counted.
  task automatic deactivate(input int k);
    if (busy[k]) fail($sformatf("R12: queue pair %0d is inactive and busy", k));
    pass_over(k, vis[k]);
    active[k] = 1'b0;
    last_pair = k;
    some = 1'b0;
    for (int o = 0; o < Queues; o++) if (o % Functions == k % Functions && active[o]) some = 1'b1;
    if (!some && runs[k % Functions]) begin
      f = k % Functions;
      if (given[f] != answers[f] || (event_valid && int'(event_owner) == f)) fail($sformatf("R12: events of function %0d are under way", f));
      runs[f]  = 1'b0;
      expected = skipped[f] + errors_of[f];
      read_owner = 4'(f);
      #0;
      if (faulty ? dropped_now < expected : dropped_now !== expected)
        fail($sformatf("R23: function %0d has dropped %0d events, expected %0d", f, dropped_now, expected));
    end
  endtask

  task automatic quiet;
    @(negedge clk);
    {start, rel, slot, take, delivered, reads, posts, ack, ack_error} = '0;
    begun = '0; token = '0; done = '0; raised = '0; answered = '0; seen = '0;
    config_now = '0;
  endtask

  task automatic tick;
    quiet;
    ready = calm ? 1'b1 : chance(patience);
    if (event_valid && event_urgent) ready = 1'b1;

    // Lives.
    for (int k = 0; k < Queues; k++) if (active[k] && !on[k] && underway[k] == 0 && !busy[k]) deactivate(k);
    pick = opening ? last_pair : below(Queues);
    if (closing) on = '0;
    else if (!active[pick] && (opening || chance(20))) begin
      some = 1'b0;
      f    = pick % Functions;
      for (int o = 0; o < Queues; o++) if (o % Functions == f && active[o]) some = 1'b1;
      start      = 1'b1;
      start_pair = 4'(pick);
      if (!some) begin
        life[f]  = calm || chance(85);
        size[f]  = calm ? 32'd64 : chance(10) ? 32'd0 : 32'd2 << below(6);
        base[f]  = {32'h12, 24'(rnd()), 8'd0} & ~64'h3F;
        runs[f]  = size[f] != 0;
        if (size[f] == 0) life[f] = 1'b0;
        given[f] = '0; head[f] = '0; answers[f] = '0; skipped[f] = '0; errors_of[f] = '0;
        n_starts = n_starts + 1;
      end
      for (int o = 0; o < Queues; o++) if (o % Functions == f && !some) pending_bits[o] = '0;
      config_now.owner     = 4'(f);
      config_now.eq_starts = !some;
      config_now.eq_base   = base[f];
      config_now.eq_size   = size[f][16:0];
      config_now.eq_life   = life[f];
      config_now.cq_start  = chance(30) ? 32'hFFFF_FFF0 + 32'(below(16)) : rnd();
      tail[pick] = config_now.cq_start; vis[pick] = tail[pick]; told[pick] = tail[pick];
    end else if (on[pick] && below(1000) < stop_chance) on[pick] = 1'b0;

    // A slot arrives; one goes to a worker; workers.
    pick = below(Queues);
    if (on[pick] && wait_new[pick] - wait_old[pick] < Fetched && chance(60)) begin
      slot      = 1'b1;
      slot_pair = 4'(pick);
    end
    pick = below(Queues);
    n    = below(Workers);
    if (on[pick] && wait_new[pick] != wait_old[pick] && work_new[n] - work_begun[n] < 2 && chance(70)) begin
      take        = 1'b1;
      take_pair   = 4'(pick);
      take_worker = 4'(n);
    end
    for (int w = 0; w < Workers; w++) begin
      found_one = work_begun[w] != work_done[w];            // it runs one
      if (found_one && work_done[w] - work_old[w] < 2) begin
        token[w] = chance(60);
        done[w]  = chance(25);
      end
      if ((!found_one || done[w]) && work_new[w] != work_begun[w] && chance(70)) begun[w] = 1'b1;
    end

    // An end is delivered, a completion is posted, one or two are answered.
    free_place = -1;
    for (int p = 0; p < Places; p++) if (place_item[p] < 0) free_place = p;
    n = below(Workers);
    if (free_place >= 0 && work_done[n] != work_old[n]) begin
      delivered        = 1'b1;
      delivered_worker = 4'(n);
      delivered_pair   = 4'(pair_of[work_item[n*8 + work_old[n] % 8]]);
      place            = 4'(free_place);
      reads            = chance(15);
    end
    n = below(Places);
    if (place_item[n] >= 0 && on[pair_of[place_item[n]]] && cycles > place_since[n]) begin
      pick = pair_of[place_item[n]];
      if (tail[pick] - vis[pick] < Unanswered) begin
        posts        = 1'b1;
        posted_pair  = 4'(pick);
        posted_place = 4'(n);
        posted_index = tail[pick];
      end
    end
    pick = below(Queues);
    if (vis[pick] != tail[pick] && cycles >= post_since[pick*Posted + int'(vis[pick] % Posted)] + 3 && chance(calm ? 60 : 40)) begin
      answered = 2'd1;
      if (!vis[pick][0] && vis[pick] + 1 != tail[pick] && cycles >= post_since[pick*Posted + int'((vis[pick] + 1) % Posted)] + 3 && chance(70))
        answered = 2'd2;
      answered_pair = 4'(pick);
      answered_to   = vis[pick] + 32'(answered);
      seen          = (!calm && chance(5)) ? 2'd0 : answered;
    end
    if (faulty) for (int k = 0; k < 6*Queues; k++) raised[k] = below(300) == 0;

    // The bus, the host.
    n = below(Functions);
    if (given[n] != answers[n] && chance(calm ? 80 : 30)) begin
      ack       = 1'b1;
      ack_id    = 6'd48 + 6'(n);
      ack_error = !calm && chance(5);
    end
    read_owner = 4'(below(Functions));
    n = below(Functions);
    if (calm || !lazy || chance(2)) begin
      rel       = chance(calm ? 90 : 30);
      rel_owner = 4'(n);
      rel_head  = chance(5) ? head[n] - 1 : chance(5) ? given[n] + 2 : head[n] + 32'(below(int'(answers[n] - head[n]) + 1));
      if (calm && chance(80)) rel_head = answers[n];
      if (start || (ack && int'(ack_id) - 48 == n)) rel = 1'b0;
    end
  endtask

  task automatic run(input int more);
    life_count = items + more;
    while (items < life_count) tick;
  endtask

  // Faults in the cycle in which the last queue pair becomes inactive, a start `gap` cycles later. The ring that ended takes no
  // event of them any more, and the ring that starts is empty.
  task automatic faults_at_the_end(input int gap);
    closing = 1'b1;
    while (active != '0) tick;
    raised = '1;
    repeat (gap - 1) tick;
    closing = 1'b0;
    opening = 1'b1;
    tick;
    opening = 1'b0;
    run(20);
  endtask

  initial begin
    stop_chance = 0;
    @(posedge rst_n);
    repeat (4) tick;
    // A host that keeps up, a port that is free: nothing is dropped.
    run(lives / 4);
    if (n_skip != 0 || n_lost != 0) fail($sformatf("R23: %0d events were dropped, and there was room for all", n_skip));
    if (n_life == 0) fail("no LIFE event was seen");
    for (int gap = 1; gap <= 3; gap++) faults_at_the_end(gap);
    if (n_fault != 0) fail($sformatf("R23: %0d FAULT events of a ring that had ended", n_fault));
    calm = 1'b0;
    for (int k = 0; k < 12; k++) begin
      lazy        = k % 2 == 1;
      patience    = (k % 3 == 0) ? 60 : (k % 3 == 1) ? 0 : 5;
      stop_chance = (k % 4 == 3) ? 20 : 3;
      faulty      = k >= 6;
      run(lives / 16);
    end
    if (n_double == 0 || n_error == 0 || n_skip == 0 || n_lost == 0 || n_urgent == 0 || n_starts < 4 || n_fault == 0)
      fail($sformatf("not tried: doubles %0d, errors %0d, drops %0d, lost %0d, urgent %0d, starts %0d, faults %0d", n_double, n_error, n_skip, n_lost, n_urgent, n_starts, n_fault));
    $display("%0d queue pairs: %0d LIFE, %0d FAULT, %0d dropped, %0d lost, %0d errors, %0d rings", Queues, n_life, n_fault, n_skip, n_lost, n_error, n_starts);
    quiet;                                                  // the other goes on
    over = 1'b1;
  end
endmodule
