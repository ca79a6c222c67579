// Watches one queue pair from the bus and predicts every completion (rules R1, R3 to R11, R14, R17). Its host (queue_host)
// tells it what it publishes, reads and releases; instance u_memory beside it is the shared memory. What belongs to the
// queue pair it tells by its part of the memory, and completions by their ID.
module scoreboard #(
  parameter int          Pair       = 0,
  parameter logic [63:0] Base       = 0,       // its part of the memory
  parameter int          Bytes      = 0,
  parameter int          TokenWords = 16384    // largest token region
) (
  input logic         clk_i,
  input logic         rst_ni,
  input logic [3:0]   aruser_i,
  input logic [63:0]  araddr_i,
  input logic [7:0]   arlen_i,
  input logic [5:0]   arid_i,
  input logic [5:0]   rid_i,
  input logic         arvalid_i,
  input logic         arready_i,
  input logic [1:0]   rresp_i,
  input logic         rlast_i,
  input logic         rvalid_i,
  input logic         rready_i,
  input logic         accept_i,
  input logic [5:0]   accept_id_i,
  input logic [63:0]  accept_addr_i,
  input logic [63:0]  accept_strb_i,
  input logic         effect_i,
  input logic         effect_error_i,
  input logic [5:0]   effect_id_i,
  input logic [63:0]  effect_addr_i,
  input logic [63:0]  effect_strb_i,
  input logic [511:0] effect_data_i,
  input logic [3:0]   awuser_i,
  input logic [5:0]   awid_i,
  input logic [63:0]  awaddr_i,
  input logic         awvalid_i
);
  import bench_pkg::*;
  import bench_reference_pkg::*;
  import desc_pkg::*;

  localparam int         Entries       = 2048;    // descriptors between publishing and the check
  localparam logic [5:0] LineId        = Pair;
  localparam logic [5:0] CompletionId  = 6'd16 + Pair;
  localparam logic [5:0] ReadId        = Pair;
  localparam logic [5:0] BackId        = 6'd16 + Pair;
  localparam logic [5:0] MessageId     = 6'd32 + Pair;
  localparam int         Patience      = 5000;    // cycles that a busy bus may hold up a message

  // ---------------------------------------------------------------- configuration, set by the bench
  logic [63:0] sq_base, cq_base, token_base, token_size, kv_size, logp_base, logp_size, model_base, model_size;
  logic [31:0] sq_key, sq_size, cq_size, length_limit, checkpoint_default, reward_threshold;
  logic [15:0] eos_threshold;
  logic [63:0] range_of [0:15];                   // of reward model 1: last, first
  logic [15:0] in_use;                            // workers
  int          owner;                             // function
  logic        on = 1'b0;                         // enabled: the checks apply
  logic        dead = 1'b0;                       // R12: disabled, and that was acknowledged: nothing may come

  function automatic logic mine(input logic [63:0] addr);
    mine = addr >= Base && addr - Base < Bytes;
  endfunction

  // What was promised to the bus.
  int writes_in_flight = 0, reads_in_flight = 0;
  logic reading;                                  // the beat belongs to the queue pair
  assign reading = rid_i == ReadId || rid_i == BackId;

  // ---------------------------------------------------------------- descriptors, by index modulo Entries
  logic [511:0] slot     [0:Entries-1];
  logic [31:0]  number   [0:Entries-1];           // running index
  logic [7:0]   code     [0:Entries-1];           // expected error code
  logic         fence    [0:Entries-1];           // a FENCE that counts
  logic         is_stop  [0:Entries-1];           // a STOP that counts
  logic         wrote    [0:Entries-1];           // a token line was on the bus
  logic         bad_line [0:Entries-1];           // a token line was answered with an error
  logic         visible  [0:Entries-1];           // its completion is in memory
  logic         checked  [0:Entries-1];           // the host has read it
  logic         claims   [0:Entries-1];           // a DECODE that token words were kept for
  logic         reads    [0:Entries-1];           // a REWARD or POLICY that needs its words
  logic         retired  [0:Entries-1];           // a DECODE of a version that was retired before it was submitted
  logic [31:0]  salt     [0:Entries-1];           // of the version that it names
  int           owner_of_word [0:TokenWords-1];        // entry + 1 of the descriptor that may write the word

  // Running indices.
  logic [31:0] oldest, tail, published, requested, received;   // of the SQ
  logic [31:0] cq_next, cq_visible, cq_seen, cq_released, last_sq_head;
  int          bad_beats;                         // beats of any kind

  // What the counters must say.
  int tokens, errors_seen, prefixes, read_beats, write_beats;

  function automatic int entry(input logic [31:0] index);
    entry = int'(index % Entries);
  endfunction

  task automatic start(input logic [31:0] sq_start, input logic [31:0] cq_start);
    oldest = sq_start; tail = sq_start; published = sq_start; requested = sq_start; received = sq_start;
    last_sq_head = sq_start;
    cq_next = cq_start; cq_visible = cq_start; cq_seen = cq_start;
    cq_released = cq_start; cq_answered = cq_start; cq_first = cq_start;
    messages = fires;                   // R12: none is on its way
    bad_beats = 0;
    tokens = 0; errors_seen = 0; prefixes = 0; read_beats = 0; write_beats = 0;
    reset_versions;
    for (int k = 0; k < TokenWords; k++) begin
      owner_of_word[k] = 0;
      pins[k]          = 0;
    end
    back_asked = 0; back_came = 0; ops = 0; ops_taken = 0;
    policy_pending = 1'b0;
    published_versions = 0;
    aborts = 0;
    taken  = sq_start;
    groups_on = 1'b0;
    for (int g = 0; g < Known; g++) group_live[g] = 1'b0;
    on   = 1'b1;
    dead = 1'b0;
  endtask

  task automatic stop;
    on = 1'b0;
  endtask

  task automatic end_of_life;
    on   = 1'b0;
    dead = 1'b1;
    if (writes_in_flight != 0 || reads_in_flight != 0)
      fail($sformatf("R12: ACTIVE of queue pair %0d fell with %0d writes and %0d reads in flight", Pair, writes_in_flight,
                     reads_in_flight));
  endtask

  always @(posedge clk_i) if (rst_ni) begin
    if (dead && awvalid_i && (awid_i >= 16 ? awid_i == CompletionId || awid_i == MessageId : mine(awaddr_i)))
      fail($sformatf("R12: a write of queue pair %0d behind its end", Pair));
    if (dead && arvalid_i && mine(araddr_i)) fail($sformatf("R12: a read of queue pair %0d behind its end", Pair));
    // R11: every address is the function's own.
    if (on && awvalid_i && (mine(awaddr_i) || awid_i == MessageId) && awuser_i !== owner)
      fail($sformatf("AWUSER is %0d, the function %0d", awuser_i, owner));
    if (on && arvalid_i && mine(araddr_i) && aruser_i !== owner)
      fail($sformatf("ARUSER is %0d, the function %0d", aruser_i, owner));
  end

  // ---------------------------------------------------------------- the host publishes
  function automatic logic range_free(input int word, input int count);
    range_free = 1'b1;
    for (int k = word; k < word + count; k++) if (owner_of_word[k] != 0 || pins[k] != 0) range_free = 1'b0;
  endfunction

  function automatic logic [7:0] classify(input logic [511:0] data, input logic [31:0] index);
    hw_desc_t desc;
    desc     = data;
    classify = ref_version(ref_error(data, sq_key, index, token_size, logp_size, kv_size, length_limit, bench.Engines),
                           desc, slot_with(desc.policy_version) >= 0, resident(desc.policy_version),
                           slot_with(desc.policy_version) >= 0 && slot_engine[slot_with(desc.policy_version)],
                           slot_with(desc.policy_version) >= 0 ? slot_positions[slot_with(desc.policy_version)] : 32'd0);
  endfunction

  // ---------------------------------------------------------------- versions, as the host knows them (R18)
  logic [15:0] slot_version [0:1];
  logic [7:0]  slot_state   [0:1];
  logic        slot_engine  [0:1];                // of engine 1, …
  logic [31:0] slot_positions [0:1];              // … whose sequences have so many
  int          slot_last;                         // the slot that was loaded last
  logic [31:0] salt_key;                          // of the run

  // Version 0 has salt 0; a host draws one for each that it publishes.
  function automatic logic [31:0] salt_of(input logic [15:0] version);
    salt_of = (version == 0) ? 32'd0 : ref_mix(salt_key + version);
  endfunction

  function automatic int slot_with(input logic [15:0] version);
    slot_with = -1;
    for (int s = 0; s < 2; s++) if (slot_state[s] != SLOT_EMPTY && slot_version[s] == version) slot_with = s;
  endfunction

  function automatic logic resident(input logic [15:0] version);
    resident = 1'b0;
    for (int s = 0; s < 2; s++) if (slot_state[s] == SLOT_RESIDENT && slot_version[s] == version) resident = 1'b1;
  endfunction

  task automatic reset_versions;
    slot_version[0] = 0; slot_state[0] = SLOT_RESIDENT;
    slot_version[1] = 0; slot_state[1] = SLOT_EMPTY;
    slot_engine[0] = 1'b0;
    slot_engine[1] = 1'b0;
    slot_last = 0;
    salt_key  = rnd();
  endtask

  function automatic logic [31:0] poison(input int word);
    poison = 32'hBAD0_0000 | word;                // no token and no log-probability looks like this
  endfunction

  task automatic publish(input logic [511:0] data);
    int e, word;
    hw_desc_t desc;
    e = entry(tail);
    desc = data;
    if (tail - oldest >= Entries) $fatal(1, "scoreboard: more than %0d descriptors in flight", Entries);
    slot[e]     = data;
    number[e]   = tail;
    code[e]     = classify(data, tail);
    fence[e]    = code[e] == 0 && desc.flags[FLAG_FENCE_BIT];
    is_stop[e]  = code[e] == 0 && desc.opcode == OP_STOP;
    wrote[e]    = 1'b0;
    bad_line[e] = 1'b0;
    visible[e]  = 1'b0;
    checked[e]  = 1'b0;
    posted[e]   = 1'b0;
    overrun[e]  = 1'b0;
    if (opens(e)) begin
      groups_on = 1'b1;
      may_busy[e] = could_be_open(desc.prefix_id);
      may_full[e] = could_be_taken() >= Entry_limit;
    end
    salt[e]     = salt_of(desc.policy_version);
    claims[e]   = code[e] == 0 && desc.opcode == OP_DECODE;
    reads[e]    = code[e] == 0 && (desc.opcode == OP_REWARD || desc.opcode == OP_POLICY);
    pin_of(e, 1);
    retired[e]  = code[e] == 0 && desc.opcode == OP_DECODE && !resident(desc.policy_version);
    if (code[e] == 0 && desc.opcode == OP_POLICY) begin
      policy_code[e]  = next_policy_code;
      policy_reads[e] = next_policy_reads;
      policy_image[e] = (desc.model_id == 16'd1) ? next_policy_image : 64'd0;
      policy_positions[e] = next_policy_positions;
      policy_may_be_busy[e] = next_may_be_busy;
      policy_pending  = 1'b1;
      retire_pending  = next_policy_code == ERR_NONE && desc.checkpoint != POLICY_WAIT;
      retire_version  = slot_version[slot_last];
      retire_mode     = desc.checkpoint[7:0];
    end
    if (claims[e]) begin
      word = int'(desc.delta_offset / 4);
      if (!range_free(word, int'(desc.max_tokens))) $fatal(1, "scoreboard: the bench reuses token words %0d", word);
      for (int k = word; k < word + int'(desc.max_tokens); k++) begin
        owner_of_word[k] = e + 1;
        u_memory.poke(token_base + 4 * k, poison(k));
        if (desc.flags[FLAG_LOGP_BIT]) u_memory.poke(logp_base + 4 * k, poison(k));
      end
    end
    tail = tail + 1;
  endtask

  task automatic disown(input int e);
    int word;
    hw_desc_t desc;
    desc = slot[e];
    word = int'(desc.delta_offset / 4);
    pin_of(e, -1);
    reads[e] = 1'b0;
    if (claims[e])
      for (int k = word; k < word + int'(desc.max_tokens); k++) if (owner_of_word[k] == e + 1) owner_of_word[k] = 0;
  endtask

  // ---------------------------------------------------------------- groups (R17)
  // What is known from outside: of a group, from the completion of its PREFILL on, which members the completions that the
  // host has read have ended. At most one group of a prefix is open at a time; a completion that comes while it is, of a
  // descriptor behind its PREFILL that names a member of it, belongs to it: it was open when that was admitted, too.
  localparam int Known       = 256;
  localparam int Entry_limit = 8;                 // CAP_GROUPS
  logic          groups_on;                       // there was one
  logic          group_live [0:Known-1];          // open, or something late may belong to it
  logic          group_open [0:Known-1];
  logic [31:0]   group_prefix [0:Known-1], group_index [0:Known-1], group_until [0:Known-1];
  int            group_size [0:Known-1];
  logic [63:0]   group_ended [0:Known-1];
  logic          may_busy [0:Entries-1];          // of a PREFILL, as it was published: its prefix may be open, …
  logic          may_full [0:Entries-1];          // … all entries may be taken
  logic          posted [0:Entries-1];            // has its place in the completion queue
  logic          overrun [0:Entries-1];           // of a PREFILL: a member was handed out before that
  logic [31:0]   taken;                           // descriptors below it were handed out
  int            groups_opened = 0, groups_closed = 0, groups_refused = 0, groups_stopped = 0;   // for the benches

  // A PREFILL that opens a group, unless it is refused.
  function automatic logic opens(input int which);
    opens = code[which] == 0 && slot[which][7:0] == OP_PREFILL && slot[which][HW_DESC_MAX_TOKENS_LSB +: 32] != 0;
  endfunction

  function automatic logic [31:0] prefix(input int which);
    prefix = slot[which][HW_DESC_PREFIX_ID_LSB +: 32];
  endfunction

  // It belongs to a group of this prefix that has so many members, if there is one.
  function automatic logic names(input int which, input logic [31:0] prefix_id, input int members);
    names = code[which] == 0 && prefix(which) == prefix_id
         && (ref_names_member(slot[which], members) || ref_stops_group(slot[which]));
  endfunction

  function automatic logic could_be_open(input logic [31:0] prefix_id);
    could_be_open = 1'b0;
    if (groups_on) begin
      for (int g = 0; g < Known; g++)
        if (group_live[g] && group_open[g] && group_prefix[g] == prefix_id) could_be_open = 1'b1;
      for (logic [31:0] k = oldest; k != tail; k = k + 1)
        if (!checked[entry(k)] && opens(entry(k)) && prefix(entry(k)) == prefix_id) could_be_open = 1'b1;
    end
  endfunction

  // Entries that may be taken. A group that is closed keeps its own as long as something late may belong to it.
  function automatic int could_be_taken();
    could_be_taken = 0;
    if (groups_on) begin
      for (int g = 0; g < Known; g++) if (group_live[g]) begin
        if (!group_open[g]) begin
          group_live[g] = 1'b0;
          for (logic [31:0] k = oldest; k != tail; k = k + 1)
            if (!checked[entry(k)] && int'(k - group_index[g]) > 0 && int'(group_until[g] - k) > 0
                && names(entry(k), group_prefix[g], group_size[g])) group_live[g] = 1'b1;
        end
        if (group_live[g]) could_be_taken = could_be_taken + 1;
      end
      for (logic [31:0] k = oldest; k != tail; k = k + 1)
        if (!checked[entry(k)] && opens(entry(k))) could_be_taken = could_be_taken + 1;
    end
  endfunction

  // The completion of a PREFILL with members: was it to be refused? 'open_now' are groups that were open when it was admitted.
  task automatic check_prefill(input int which, input hw_completion_t done, output logic refused);
    int   open_now, free_place;
    logic same;
    open_now   = 0;
    same       = 1'b0;
    free_place = -1;
    for (int g = 0; g < Known; g++) begin
      if (!group_live[g]) free_place = g;
      else if (group_open[g] && int'(number[which] - group_index[g]) > 0) begin
        open_now = open_now + 1;
        if (group_prefix[g] == prefix(which)) same = 1'b1;
      end
    end
    refused = done.status == STATUS_ERROR && (done.error == ERR_PREFIX_BUSY || done.error == ERR_GROUP_FULL);
    if (refused) begin
      groups_refused = groups_refused + 1;
      if (done.error == ERR_PREFIX_BUSY && !may_busy[which])
        fail($sformatf("R17: PREFILL %0d is PREFIX_BUSY, and no group of prefix %0h can be open", number[which], prefix(which)));
      if (done.error == ERR_GROUP_FULL && !may_full[which])
        fail($sformatf("R17: PREFILL %0d is GROUP_FULL, and there must be an entry", number[which]));
      if (done.error == ERR_GROUP_FULL && same)
        fail($sformatf("R17: PREFILL %0d is GROUP_FULL, and should be PREFIX_BUSY", number[which]));
    end else begin
      groups_opened = groups_opened + 1;
      if (same) fail($sformatf("R17: PREFILL %0d opens a group of prefix %0h, which is open", number[which], prefix(which)));
      if (open_now >= Entry_limit) fail($sformatf("R17: PREFILL %0d opens a group, and %0d are open", number[which], open_now));
      if (overrun[which]) fail($sformatf("R17: a member starts before PREFILL %0d has completed", number[which]));
      if (free_place < 0) $fatal(1, "scoreboard: more than %0d groups", Known);
      group_live[free_place]   = 1'b1;
      group_open[free_place]   = 1'b1;
      group_prefix[free_place] = prefix(which);
      group_index[free_place]  = number[which];
      group_size[free_place]   = int'(slot[which][HW_DESC_MAX_TOKENS_LSB +: 32]);
      group_ended[free_place]  = '0;
    end
  endtask

  // The completion of what may belong to a group: does it close it?
  task automatic check_member(input int which, input hw_completion_t done, output logic closes);
    logic        stop;
    logic [63:0] all;
    hw_desc_t    desc;
    desc   = slot[which];
    closes = 1'b0;
    stop   = desc.opcode == OP_STOP;
    for (int g = 0; g < Known; g++)
      if (group_live[g] && group_open[g] && int'(number[which] - group_index[g]) > 0
          && names(which, group_prefix[g], group_size[g])) begin
        all = 64'hFFFF_FFFF_FFFF_FFFF >> (64 - group_size[g]);
        if (ref_stops_group(desc)) begin
          groups_stopped = groups_stopped + 1;
          group_ended[g] = all;
          for (logic [31:0] k = group_index[g] + 1; k != number[which]; k = k + 1)
            if (int'(k - oldest) >= 0 && !checked[entry(k)] && names(entry(k), group_prefix[g], group_size[g]))
              fail($sformatf("R8: STOP %0d of a group completes before %0d", number[which], k));
        end else if (stop || done.status == STATUS_DONE || done.status == STATUS_STOPPED)
          group_ended[g] = group_ended[g] | (64'd1 << desc.member);
        if (group_ended[g] == all) begin
          closes         = 1'b1;
          groups_closed  = groups_closed + 1;
          group_open[g]  = 1'b0;
          group_until[g] = tail;
        end
      end
  endtask

  // R17: what belongs to a group is handed out once its PREFILL has its place in the completion queue. Whether this PREFILL
  // opens a group is known later.
  always @(posedge clk_i) if (rst_ni && on) begin
    if (bench.u_device.taken && bench.u_device.look_queue == Pair) begin
      if (groups_on) hand_out(taken);
      taken = taken + 1;
    end
    if (bench.u_device.posted && bench.u_device.posted_queue == Pair
        && (bench.u_device.u_completion_ring.completion[HW_COMPLETION_FLAGS_LSB +: 8] & CFLAG_NO_ECHO) == 0)
      posted[entry(bench.u_device.u_completion_ring.completion[31:0])] = 1'b1;
  end

  task automatic hand_out(input logic [31:0] index);
    logic        found;
    logic [31:0] k;
    found = 1'b0;
    k     = index;
    if (code[entry(index)] == 0 && (slot[entry(index)][8 + FLAG_COW_PREFIX_BIT]))
      while (!found && k != oldest) begin
        k = k - 1;
        if (opens(entry(k)) && names(entry(index), prefix(entry(k)), int'(slot[entry(k)][HW_DESC_MAX_TOKENS_LSB +: 32]))) begin
          found = 1'b1;
          if (!posted[entry(k)]) overrun[entry(k)] = 1'b1;
        end
      end
  endtask

  // ---------------------------------------------------------------- the device reads
  // R1: only published slots; R3: each once, in order.
  logic [31:0] ahead;
  always @(posedge clk_i) if (rst_ni && on && arvalid_i && arready_i && arid_i == ReadId) begin
    ahead = published - requested;
    if (araddr_i != sq_base + 64 * (requested % sq_size))
      fail($sformatf("R3: read of %h, expected slot %0d", araddr_i, requested));
    if (int'(arlen_i) + 1 > ahead)
      fail($sformatf("R1: read of slots %0d to %0d, published below %0d", requested, requested + arlen_i, published));
    if (requested % sq_size + arlen_i + 1 > sq_size) fail("R11: a read runs over the end of the queue");
    requested = requested + arlen_i + 1;
  end

  always @(posedge clk_i) if (!bench.m_axi_rst_ni) begin
    reads_in_flight = 0;
  end else begin
    if (rvalid_i && rready_i && reading && reads_in_flight != 0) begin
      if (rid_i == ReadId) read_beat;
      else                 back_beat;
      if (rlast_i) reads_in_flight = reads_in_flight - 1;
    end
    // R24: an access is known by its ID, and lies in the queue pair's memory.
    if (arvalid_i && arready_i && mine(araddr_i) != (arid_i == ReadId || arid_i == BackId))
      fail($sformatf("R24: a read of %h with ARID %0d", araddr_i, arid_i));
    if (arvalid_i && arready_i && mine(araddr_i)) reads_in_flight = reads_in_flight + 1;
  end

  // ---------------------------------------------------------------- what is read back (REWARD, POLICY)
  // Every read with its address and whether it was answered with an error, in order, and where each descriptor's begin.
  // Completions of a queue pair come in the order in which the device reads for them.
  localparam int Backs = 1024;
  logic [63:0] back_addr [0:Backs-1];
  logic        back_bad  [0:Backs-1];
  int          back_asked = 0, back_came = 0;
  always @(posedge clk_i) if (rst_ni && on && arvalid_i && arready_i && arid_i == BackId) begin
    if ((araddr_i < token_base || araddr_i + 64 > ((token_base + token_size + 63) & ~64'd63))
        && (araddr_i < model_base || araddr_i + 64 > model_base + model_size))
      fail($sformatf("R11: read of %h, outside the token and the MODEL region", araddr_i));
    back_addr[back_asked % Backs] = araddr_i;
    back_asked = back_asked + 1;
  end

  task automatic back_beat;
    if (rst_ni && on) begin
      if (rresp_i != 0) bad_beats = bad_beats + 1;
      back_bad[back_came % Backs] = rresp_i != 0;
      back_came  = back_came + 1;
      read_beats = read_beats + 1;
    end
  endtask

  int op_first [0:255];                           // the first read of each
  int ops = 0, ops_taken = 0;
  always @(posedge clk_i) if (rst_ni && on && bench.u_device.readback_valid && bench.u_device.readback_queue == Pair) begin
    op_first[ops % 256] = back_asked;
    ops = ops + 1;
  end

  // The reads of the next descriptor: lines from this address on, in order, no more than 'lines'; of a POLICY of engine 1 the
  // third is that of the image.
  task automatic take_reads(input logic [63:0] addr, input int lines, input logic [63:0] model_addr, output logic bad, output int taken);
    int          first, upto;
    logic [63:0] want_addr;
    bad   = 1'b0;
    first = op_first[ops_taken % 256];
    upto  = (ops_taken + 1 < ops) ? op_first[(ops_taken + 1) % 256] : back_asked;
    taken = upto - first;
    if (ops_taken >= ops) fail("R3: a completion of something that was never read for");
    if (taken > lines || upto > back_came) fail($sformatf("R11: %0d reads, %0d of them answered, for %0d lines", taken, back_came - first, lines));
    for (int k = first; k < upto; k++) begin
      want_addr = (model_addr != 0 && k == first + 2) ? model_addr : (addr & ~64'd63) + 64 * (k - first);
      if (back_addr[k % Backs] != want_addr) fail($sformatf("R11: read of %h, expected %h", back_addr[k % Backs], want_addr));
      if (back_bad[k % Backs]) bad = 1'b1;
    end
    ops_taken = ops_taken + 1;
  endtask

  int pins [0:TokenWords-1];                      // REWARDs and POLICYs that wait for these words: nobody may change them

  task automatic pin(input int word, input int count, input int by);
    for (int k = word; k < word + count; k++) pins[k] = pins[k] + by;
  endtask

  // What is done to memory that others need: the words of a REWARD, or of a POLICY's header.
  task automatic pin_of(input int e, input int by);
    hw_desc_t desc;
    desc = slot[e];
    if (reads[e]) pin(int'(desc.delta_offset / 4), desc.opcode == OP_POLICY ? (desc.model_id == 16'd1 ? 32 : 16) : int'(desc.max_tokens), by);
  endtask

  function automatic logic [31:0] score_of(input hw_desc_t desc);
    logic [31:0] digest, word, hits;
    logic        hit;
    digest = 32'h811C9DC5;
    hits   = 0;
    for (int k = 0; k < int'(desc.max_tokens); k++) begin
      word   = u_memory.peek(token_base + desc.delta_offset + 4 * k);
      digest = ref_digest(digest, word);
      hit    = 1'b0;
      for (int r = 0; r < 16; r++) if (word >= range_of[r][31:0] && word <= range_of[r][63:32]) hit = 1'b1;
      if (hit) hits = hits + 1;
    end
    score_of = (desc.reward_model_id == 0) ? ref_score(digest) : (hits > 32767) ? 32'h7FFF_FFFF : hits << 16;
  endfunction

  task automatic check_reward(input int which, inout hw_completion_t want);
    hw_desc_t    desc;
    logic [63:0] addr;
    logic        bad;
    int          lines, taken;
    desc  = slot[which];
    addr  = token_base + desc.delta_offset;
    lines = int'((addr % 64 + 4 * 64'(desc.max_tokens) + 63) / 64);
    take_reads(addr, lines, 64'd0, bad, taken);
    want.status = STATUS_SCORED;
    if (bad) begin
      want.status = STATUS_ERROR;
      want.error  = ERR_DMA_FAULT;
    end else begin
      if (taken != lines) fail($sformatf("R11: REWARD %0d has read %0d of %0d lines", number[which], taken, lines));
      want.result = score_of(desc);
    end
  endtask

  // R19: the host says what it expects when it submits one (policy_code); the slots change with its completion.
  task automatic check_policy(input int which, input hw_completion_t done, inout hw_completion_t want);
    hw_desc_t desc;
    logic     bad;
    int       taken, target;
    desc = slot[which];
    want.status = STATUS_DONE;
    take_reads(token_base + desc.delta_offset, policy_reads[which], policy_image[which], bad, taken);
    if (bad) want.error = ERR_DMA_FAULT;
    else     want.error = policy_code[which];
    if (done.error == ERR_POLICY_BUSY && policy_may_be_busy[which]) want.error = ERR_POLICY_BUSY;
    else if (!bad && taken != policy_reads[which]) fail($sformatf("R19: POLICY %0d has read %0d lines", number[which], taken));
    if (want.error == ERR_POLICY_BUSY) busy_seen = busy_seen + 1;
    if (want.error != 0) want.status = STATUS_ERROR;
    else begin
      target = 1 - slot_last;
      slot_version[target] = desc.policy_version;
      slot_state[target]   = SLOT_RESIDENT;
      slot_engine[target]    = desc.model_id == 16'd1;
      slot_positions[target] = policy_positions[which];
      if (desc.checkpoint == POLICY_KEEP)  slot_state[slot_last] = SLOT_KEPT;
      if (desc.checkpoint == POLICY_ABORT) slot_state[slot_last] = SLOT_ABORTED;
      slot_last = target;
      published_versions = published_versions + 1;
    end
    policy_pending = 1'b0;
  endtask
  logic [7:0]  next_policy_code = ERR_NONE;       // what the host expects of the POLICY that it submits next, …
  int          next_policy_reads = 1;             // … how many lines are read for it, …
  logic [63:0] next_policy_image = '0;            // … and of engine 1 where its image lies …
  logic [31:0] next_policy_positions = '0;        // … and how long its sequences are
  logic [7:0]  policy_code  [0:Entries-1];
  int          policy_reads [0:Entries-1];
  logic [63:0] policy_image [0:Entries-1];
  logic [31:0] policy_positions [0:Entries-1];
  logic        next_may_be_busy = 1'b0;
  logic        policy_may_be_busy [0:Entries-1];
  int          busy_seen = 0;
  logic        policy_pending = 1'b0;             // one is on its way …
  logic        retire_pending;                    // … that retires this version with this mode, if nothing speaks against it
  logic [15:0] retire_version;
  logic [7:0]  retire_mode;
  int          published_versions = 0;
  int          logps_seen = 0;
  int          superseded_seen = 0, scored_seen = 0, stale_seen = 0;

  // R19: some descriptor that names the version in this slot has no completion that the host has seen.
  function automatic logic in_use_yet(input int s);
    in_use_yet = 1'b0;
    for (logic [31:0] k = oldest; k != tail; k = k + 1)
      if (!checked[entry(k)] && code[entry(k)] == 0 && slot_state[s] != SLOT_EMPTY
          && (slot[entry(k)][7:0] == OP_DECODE || slot[entry(k)][7:0] == OP_PREFILL)
          && slot[entry(k)][HW_DESC_POLICY_VERSION_LSB +: 16] == slot_version[s]) in_use_yet = 1'b1;
  endfunction

  // The words that a REWARD reads are nobody's, or of DECODEs of its own rollout, which end before it.
  function automatic logic may_score(input hw_desc_t desc);
    int by;
    may_score = 1'b1;
    for (int k = int'(desc.delta_offset / 4); k < int'(desc.delta_offset / 4) + int'(desc.max_tokens); k++) begin
      by = owner_of_word[k];
      if (by != 0) if (rollout(by - 1) != desc.rollout_id) may_score = 1'b0;
    end
  endfunction

  // R20: with this mode the version of a descriptor was, or may have been, retired.
  function automatic logic may_retire(input int e, input logic [7:0] mode);
    hw_desc_t desc;
    int       s;
    desc = slot[e];
    s    = slot_with(desc.policy_version);
    may_retire = s >= 0 && slot_state[s] == (mode == POLICY_KEEP ? SLOT_KEPT : SLOT_ABORTED);
    if (policy_pending && retire_pending && retire_mode == mode && desc.policy_version == retire_version) may_retire = 1'b1;
  endfunction

  task automatic read_beat;
    if (rst_ni && on) begin
      if (rresp_i != 0) begin
        bad_beats = bad_beats + 1;
        if (policy_pending && reads[entry(received)] && slot[entry(received)][7:0] == OP_POLICY) policy_pending = 1'b0;
        code[entry(received)]    = ERR_DMA_FAULT;
        fence[entry(received)]   = 1'b0;
        is_stop[entry(received)] = 1'b0;
        disown(entry(received));
      end
      received = received + 1;
      read_beats = read_beats + 1;
    end
  endtask

  // ---------------------------------------------------------------- the device writes
  int          e, i_word;
  logic [63:0] place;

  // The words of the log-probabilities have the owners of their tokens.
  function automatic logic is_logp(input logic [63:0] addr);
    is_logp = addr >= logp_base && addr - logp_base + 4 <= logp_size;
  endfunction

  function automatic int word_of(input logic [63:0] addr);
    word_of = int'((addr - (is_logp(addr) ? logp_base : token_base)) / 4);
  endfunction

  // Entry that may write this word, or -1.
  function automatic int owner_of(input logic [63:0] addr);
    int own;
    owner_of = -1;
    if (!is_logp(addr) && (addr < token_base || addr - token_base + 4 > token_size))
      fail($sformatf("R11: token write to %h, outside the token region", addr));
    else if (owner_of_word[word_of(addr)] == 0)
      fail($sformatf("R10: token write to %h, which no descriptor in flight owns", addr));
    else begin
      own      = owner_of_word[word_of(addr)] - 1;
      owner_of = own;
      if (is_logp(addr) && !slot[own][8 + FLAG_LOGP_BIT])
        fail($sformatf("R11: log-probability of descriptor %0d, which has no LOGP", number[own]));
    end
  endfunction

  function automatic logic [31:0] rollout(input int which);
    rollout = slot[which][HW_DESC_ROLLOUT_ID_LSB +: 32];
  endfunction

  task automatic check_start(input int which);
    for (logic [31:0] k = oldest; k != number[which]; k = k + 1) begin
      if (!visible[entry(k)] && fence[entry(k)])
        fail($sformatf("R7: descriptor %0d runs, fence %0d is not complete", number[which], k));
      if (!visible[entry(k)] && fence[which])
        fail($sformatf("R7: fence %0d runs, descriptor %0d is not complete", number[which], k));
    end
  endtask

  logic accept_mine, effect_mine;
  assign accept_mine = accept_i && (accept_id_i >= 16 ? accept_id_i == CompletionId : mine(accept_addr_i));
  assign effect_mine = effect_i && (effect_id_i >= 16 ? effect_id_i == CompletionId : mine(effect_addr_i));
  logic accept_message, effect_message;
  assign accept_message = accept_i && accept_id_i == MessageId;
  assign effect_message = effect_i && effect_id_i == MessageId;
  always @(posedge clk_i)
    writes_in_flight = bench.m_axi_rst_ni ? writes_in_flight + int'(accept_mine || accept_message) - int'(effect_mine || effect_message) : 0;

  always @(posedge clk_i) if (rst_ni && on && accept_mine) begin
    write_beats = write_beats + 1;
    if (accept_id_i == CompletionId) begin
      for (int half = 0; half < 2; half++) begin
        case (accept_strb_i[32*half +: 32])
          32'd0: ;
          32'hFFFF_FFFF: begin
            place = cq_base + 32 * (cq_next % cq_size);
            if (accept_addr_i + 32 * half != place)
              fail($sformatf("R3: completion %0d goes to %h, expected %h", cq_next, accept_addr_i + 32 * half, place));
            if (cq_next - cq_released >= cq_size)
              fail($sformatf("R4: completion %0d overwrites a slot, released below %0d", cq_next, cq_released));
            cq_next = cq_next + 1;
          end
          default: fail("R4: part of a completion was written");
        endcase
      end
    end else begin
      if (accept_id_i != LineId) fail($sformatf("R24: a token line of queue pair %0d with AWID %0d", Pair, accept_id_i));
      if (accept_strb_i == 0) fail("R10: a token write of no bytes");
      for (int k = 0; k < 16; k++) if (accept_strb_i[4*k +: 4] != 0) begin
        if (accept_strb_i[4*k +: 4] != 4'hF) fail("R10: part of a token was written");
        e = owner_of(accept_addr_i + 4 * k);
        if (e >= 0) begin
          if (!wrote[e]) begin
            check_start(e);
            wrote[e]  = 1'b1;
            for (logic [31:0] n = number[e] + 1; n != tail; n = n + 1)
              if (wrote[entry(n)] && rollout(entry(n)) == rollout(e))
                fail($sformatf("R5: descriptor %0d runs after %0d of the same rollout", number[e], n));
          end
          if (checked[e]) fail($sformatf("R3: token of descriptor %0d after its completion", number[e]));
        end
      end
    end
  end

  always @(posedge clk_i) if (rst_ni && on && effect_mine) begin
    if (effect_error_i) bad_beats = bad_beats + 1;
    if (effect_id_i != CompletionId) begin
      if (effect_error_i) begin
        for (int k = 0; k < 16; k++) if (effect_strb_i[4*k] && owner_of_word[word_of(effect_addr_i + 4*k)] != 0)
          bad_line[owner_of_word[word_of(effect_addr_i + 4*k)] - 1] = 1'b1;
      end
    end else if (!effect_error_i) begin
      if (effect_strb_i[0])  see(effect_data_i[255:0]);
      if (effect_strb_i[32]) see(effect_data_i[511:256]);
    end
  end

  function automatic logic no_echo(input logic [7:0] error);
    no_echo = error == ERR_DMA_FAULT || error == ERR_BAD_CHECK;
  endfunction

  // Index of the descriptor that a completion belongs to; ok is low when there is none.
  task automatic find(input hw_completion_t done, output logic [31:0] index, output logic ok);
    logic unread;                       // of a slot that cannot be trusted, only the index is known
    unread = (done.flags & CFLAG_NO_ECHO) != 0;
    index  = unread ? done.result : done.user_data[31:0];
    ok     = index - oldest < tail - oldest;
    if (ok) ok = unread ? no_echo(code[entry(index)])
                        : slot[entry(index)][HW_DESC_USER_DATA_LSB +: 64] == done.user_data;
    if (!ok) fail($sformatf("R3: a completion with user_data %h and result %h belongs to no descriptor",
                            done.user_data, done.result));
  endtask

  // A completion has become visible.
  task automatic see(input hw_completion_t done);
    logic [31:0] index;
    logic ok;
    int which, other;
    find(done, index, ok);
    which = entry(index);
    if (ok) begin
      if (visible[which]) fail($sformatf("R3: descriptor %0d completes twice", index));
      visible[which] = 1'b1;
      for (logic [31:0] k = oldest; k != index; k = k + 1) begin
        other = entry(k);
        if (!visible[other]) begin
          if ((in_use & (in_use - 1)) == 0 ) fail($sformatf("R5: one worker completes %0d before %0d", index, k));
          if (rollout(other) == rollout(which) && !no_echo(code[other]) && !no_echo(code[which]))
            fail($sformatf("R5: %0d completes before %0d of the same rollout", index, k));
          if (fence[other]) fail($sformatf("R7: %0d completes before fence %0d", index, k));
          if (fence[which]) fail($sformatf("R7: fence %0d completes before %0d", index, k));
        end
      end
    end
    cq_visible = cq_visible + 1;
    retire;
  endtask

  task automatic retire;
    while (oldest != tail && checked[entry(oldest)] && visible[entry(oldest)]) oldest = oldest + 1;
  endtask

  // ---------------------------------------------------------------- the host reads a completion
  // ABORTs: the rollout, and what was published.
  logic [31:0] abort_rollout [0:255], abort_tail [0:255];
  int          aborts;
  task automatic abort(input logic [31:0] rollout_id);
    abort_rollout[aborts % 256] = rollout_id;
    abort_tail[aborts % 256]    = published;
    aborts = aborts + 1;
  endtask

  // R8: may this DECODE have been stopped? By any STOP behind it, of its rollout or its group, but one that is a fence: before
  // that it ended. Or by an ABORT.
  function automatic logic may_stop(input logic [31:0] index);
    may_stop = 1'b0;
    for (logic [31:0] k = index + 1; k != tail; k = k + 1) begin
      if (!fence[entry(k)] && is_stop[entry(k)]) begin
        if (ref_stops_group(slot[entry(k)])) begin
          if (slot[entry(index)][8 + FLAG_COW_PREFIX_BIT] && prefix(entry(k)) == prefix(entry(index))) may_stop = 1'b1;
        end else if (rollout(entry(k)) == rollout(entry(index))) may_stop = 1'b1;
      end
    end
    for (int k = 0; k < aborts && k < 256; k++)
      if (abort_rollout[k] == rollout(entry(index)) && int'(abort_tail[k] - index) > 0) may_stop = 1'b1;
  endfunction

  // What a DECODE must give; answered is what the device said it produced.
  task automatic decode(input int which, input int answered, input logic stopped, input logic superseded,
                        output hw_completion_t want);
    hw_desc_t    desc;
    logic [31:0] digest, since, hash, checkpoint, to_checkpoint, found;
    logic        eos, ended;
    int          n, word;
    desc = slot[which];
    word = int'(desc.delta_offset / 4);
    checkpoint = desc.checkpoint != 0 ? desc.checkpoint : checkpoint_default != 0 ? checkpoint_default : CHECKPOINT_NEVER;
    to_checkpoint = checkpoint;
    digest = 32'h811C9DC5;
    since  = digest;                    // RESIDENT: of the tokens since the last checkpoint
    want   = '0;
    want.status = STATUS_DONE;
    ended  = (stopped || superseded) && answered == 0;
    for (n = 0; n < int'(desc.max_tokens) && !ended; n = n + 1) begin
      hash   = ref_salted(desc.seed, desc.rollout_id, desc.seq_len + n, salt[which]);
      eos    = hash[31:17] < {1'b0, eos_threshold};
      digest = ref_digest(digest, {15'd0, hash[16:0]});
      since  = ref_digest(since, {15'd0, hash[16:0]});
      if (eos) want.flags = want.flags | CFLAG_EOS;
      found  = u_memory.peek(token_base + 4 * (word + n));
      if (found !== {15'd0, hash[16:0]} && n < answered && !bad_line[which])
        fail($sformatf("R6: token %0d of descriptor %0d is %h, expected %h", n, number[which], found, hash[16:0]));
      if (desc.flags[FLAG_LOGP_BIT]) begin
        found = u_memory.peek(logp_base + 4 * (word + n));
        if (found !== ref_logp(hash) && n < answered && !bad_line[which])
          fail($sformatf("R11: log-probability %0d of descriptor %0d is %h, expected %h", n, number[which], found, ref_logp(hash)));
      end
      to_checkpoint = to_checkpoint - 1;
      if ((eos && desc.flags[FLAG_EOS_STOPS_BIT]) || n + 1 == int'(desc.max_tokens)) ended = 1'b1;
      else if (stopped && n + 1 == answered) begin
        ended = 1'b1;
        want.status = STATUS_STOPPED;
      end else if (superseded && n + 1 == answered && !desc.flags[FLAG_RESIDENT_BIT]) begin
        ended = 1'b1;
        want.status = STATUS_SUPERSEDED;
      end else if (to_checkpoint == 0) begin
        if (!desc.flags[FLAG_RESIDENT_BIT]) begin
          ended = 1'b1;
          want.status = STATUS_REWARD_NEEDED;
        end else if (ref_below(since, reward_threshold)) begin
          ended = 1'b1;
          want.flags = want.flags | CFLAG_REJECTED;
        end else if (superseded && n + 1 == answered) begin
          ended = 1'b1;
          want.status = STATUS_SUPERSEDED;
        end
        to_checkpoint = checkpoint;
        since         = 32'h811C9DC5;
      end
    end
    if (stopped && answered == 0) want.status = STATUS_STOPPED;
    else if (superseded && answered == 0) want.status = STATUS_SUPERSEDED;
    if (retired[which] && answered != 0) fail($sformatf("R20: descriptor %0d adds %0d tokens under a version that was retired before", number[which], answered));
    for (int k = n; k < int'(desc.max_tokens); k++) begin
      found = u_memory.peek(token_base + 4 * (word + k));
      if (found !== poison(word + k)) fail($sformatf("R6: descriptor %0d wrote token %0d, beyond its %0d",
                                                     number[which], k, n));
      if (desc.flags[FLAG_LOGP_BIT]) begin
        found = u_memory.peek(logp_base + 4 * (word + k));
        if (found !== poison(word + k)) fail($sformatf("R11: descriptor %0d wrote log-probability %0d, beyond its %0d",
                                                       number[which], k, n));
      end
    end
    if (desc.flags[FLAG_LOGP_BIT]) logps_seen = logps_seen + n;
    tokens = tokens + n;
    want.final_seq_len = desc.seq_len + n;
    want.result        = digest;
    if (bad_line[which]) begin
      want.status = STATUS_ERROR;
      want.error  = ERR_DMA_FAULT;
    end
  endtask

  // Compares a completion with the reference. Returns the descriptor's index and entry.
  task automatic check(input hw_completion_t done, output logic [31:0] index, output hw_desc_t desc);
    logic           ok, stopped, superseded, refused, closes, stale;
    int             which;
    hw_completion_t want;
    find(done, index, ok);
    which = entry(index);
    desc  = slot[which];
    want  = '0;
    if (ok) begin
      if (checked[which]) fail($sformatf("R3: the host reads the completion of %0d twice", index));
      checked[which] = 1'b1;
      if (code[which] != 0) want.status = STATUS_ERROR;
      else if (desc.opcode == OP_STOP) want.status = STATUS_STOPPED;
      else want.status = STATUS_DONE;
      // R21: only once versions were published can a group be of another one than its member names.
      stale = code[which] == 0 && desc.opcode == OP_DECODE && done.status == STATUS_ERROR && done.error == ERR_STALE_PREFIX
           && desc.flags[FLAG_COW_PREFIX_BIT] && groups_on && (published_versions != 0 || policy_pending) && !wrote[which];
      if (stale) begin
        want.status        = STATUS_ERROR;
        want.error         = ERR_STALE_PREFIX;
        want.final_seq_len = desc.seq_len;
        stale_seen         = stale_seen + 1;
      end else if (code[which] == 0 && desc.opcode == OP_DECODE) begin
        // A fault hides whether it was stopped: then the length may be any, unless its score ended it.
        stopped = (may_stop(index) || may_retire(which, POLICY_ABORT)) && (done.status == STATUS_STOPPED
               || (bad_line[which] && (done.flags & CFLAG_REJECTED) == 0));
        superseded = !stopped && may_retire(which, POLICY_KEEP) && (done.status == STATUS_SUPERSEDED
               || (bad_line[which] && (done.flags & CFLAG_REJECTED) == 0));
        if (done.status == STATUS_SUPERSEDED) superseded_seen = superseded_seen + 1;
        decode(which, int'(done.final_seq_len - desc.seq_len), stopped, superseded, want);
      end else begin
        want.error = code[which];
        if (code[which] == 0 && desc.opcode == OP_REWARD) begin
          check_reward(which, want);
          scored_seen = scored_seen + 1;
        end
        if (code[which] == 0 && desc.opcode == OP_POLICY) check_policy(which, done, want);
        if (no_echo(code[which]) && !reads[which]) begin
          want.result = index;
          want.flags  = CFLAG_NO_ECHO;
        end else want.final_seq_len = {1'b0, desc.seq_len[30:0]};
      end
      refused = 1'b0;
      closes  = 1'b0;
      if (opens(which)) check_prefill(which, done, refused);
      else if (groups_on && code[which] == 0) check_member(which, done, closes);
      if (refused) begin
        want.status = STATUS_ERROR;
        want.error  = done.error;
      end
      if (closes) want.flags = want.flags | CFLAG_GROUP_DONE;
      if (!no_echo(code[which])) begin
        want.user_data       = desc.user_data;
        want.rollout_id      = desc.rollout_id;
        want.reward_model_id = desc.reward_model_id;
      end
      if (code[which] == 0 && desc.opcode == OP_PREFILL && !refused) prefixes = prefixes + 1;
      if (reads[which] && want.error != 0) want.result = '0;
      if (want.status == STATUS_ERROR) errors_seen = errors_seen + 1;
      want.sq_head   = done.sq_head;
      want.worker_id = done.worker_id;
      want.phase     = done.phase;
      if (done !== want)
        fail($sformatf("R6: completion of %0d is %h, expected %h (opcode %h flags %h)", index, done, want,
                       desc.opcode, desc.flags));
      if (done.worker_id >= 16 || !in_use[done.worker_id[3:0]])
        fail($sformatf("worker_id %0d, in use are %b", done.worker_id, in_use));
      if (done.sq_head - oldest > received - oldest || done.sq_head - oldest <= index - oldest)
        fail($sformatf("sq_head %0d with completion of %0d, read are %0d", done.sq_head, index, received));
      if (done.sq_head - last_sq_head > received - last_sq_head)
        fail($sformatf("sq_head runs from %0d back to %0d", last_sq_head, done.sq_head));
      last_sq_head = done.sq_head;
      disown(which);
    end
    cq_seen = cq_seen + 1;
    retire;
  endtask

  // ---------------------------------------------------------------- R14
  // Completions count by their write responses, whether these are errors or not; ARM in the cycle in which the register is
  // written. Both fire in that cycle, and a message behind it is on the bus. What comes by COALESCE_TIME is late by
  // the number of queue pairs at most.
  logic [63:0] message_addr;            // its entry in the table, set by the host
  logic [31:0] message_data;
  logic        masked = 1'b1;           // … or about to be
  logic [15:0] coalesce_count;
  logic [31:0] coalesce_time;
  logic        armed = 1'b0, sees = 1'b0, timed = 1'b0, could_expire = 1'b0, owed = 1'b0, aw_held = 1'b0, fires_now;
  logic [31:0] arm_index, cq_answered, cq_first, above;
  logic        asked_bit [0:4095];      // of completions that were answered, by index
  int          now = 0, due, fired_at = 0, latency = 0, overdue = 0, n_above;
  int          armings = 0, fires = 0, expired = 0, messages = 0;    // for the benches

  function automatic logic asks(input hw_completion_t done);
    logic [31:0] index;                 // the host may have read it already
    index = done.user_data[31:0];
    asks  = done.status == STATUS_ERROR || done.flags[CFLAG_GROUP_DONE_BIT]
         || (number[entry(index)] == index && code[entry(index)] == 0 && slot[entry(index)][8 + FLAG_INTERRUPT_BIT]);
  endfunction

  task automatic answer(input hw_completion_t done);
    asked_bit[cq_answered % 4096] = asks(done);
    cq_answered = cq_answered + 1;
  endtask

  // Of what is answered, at or above ARM: how many, and does one ask?
  task automatic look(input logic anew);
    n_above   = 0;
    fires_now = 1'b0;
    above     = cq_answered - 1 - arm_index;
    for (logic [31:0] k = cq_answered; k != cq_first && !above[31] && n_above < 4096; k = k - 1) begin
      n_above = n_above + 1;
      if (asked_bit[(k - 1) % 4096]) fires_now = 1'b1;
      above = k - 2 - arm_index;
    end
    if (coalesce_count != 0 && n_above >= int'({16'd0, coalesce_count})) fires_now = 1'b1;
    sees = n_above != 0;
    if (fires_now) fire;
    else if (n_above != 0 && coalesce_time != 0 && (anew || !timed)) begin
      timed = 1'b1;
      due   = now + int'(coalesce_time);
    end
  endtask

  task automatic fire;
    armed    = 1'b0;
    timed    = 1'b0;
    owed     = 1'b1;
    overdue  = 0;
    fired_at = now;
    fires    = fires + 1;
  endtask

  always @(posedge clk_i) begin
    now = now + 1;
    if (!rst_ni) begin
      armed        = 1'b0;
      timed        = 1'b0;
      could_expire = 1'b0;
      owed         = 1'b0;
      masked       = 1'b1;
      aw_held      = 1'b0;
      messages     = fires;
    end else begin
      // The cycle before has brought the end of a time.
      if (bench.u_device.on[Pair] && armed && could_expire) begin
        if (!bench.u_device.armed[Pair]) begin
          if (now - 1 < due) fail($sformatf("R14: COALESCE_TIME fires %0d cycles early", due - now + 1));
          fire;
          fired_at = now - 1;
          expired  = expired + 1;
        end else if (now - 1 >= due + bench.Queues - 1) fail($sformatf("R14: COALESCE_TIME has passed %0d cycles ago", now - 1 - due));
      end
      if (!bench.u_device.on[Pair]) begin
        armed = 1'b0;
        timed = 1'b0;
        owed  = 1'b0;                   // R12: what is pending is dropped
      end
      if (on && bench.u_device.armed[Pair] !== armed) fail($sformatf("R14: armed is %b, expected %b", bench.u_device.armed[Pair], armed));

      // A message comes to the bus.
      if (awvalid_i && awid_i == MessageId && !aw_held) begin
        messages = messages + 1;
        latency  = now - fired_at;
        if (messages > fires) fail($sformatf("R14: message %0d, and only %0d of %0d armings have fired", messages, fires, armings));
        if (latency > 2) owed = 1'b0;
      end
      aw_held = awvalid_i && awid_i == MessageId && !bench.m_axi_awready;
      if (accept_message) begin
        if (accept_addr_i !== (message_addr & ~64'd63) || accept_strb_i !== 64'hF << message_addr[5:0]
            || bench.accept_data !== 512'(message_data) << {message_addr[5:2], 5'd0})
          fail($sformatf("R14: message %h with strobes %h at %h", bench.accept_data, accept_strb_i, accept_addr_i));
      end
      if (effect_message && effect_error_i && on) bad_beats = bad_beats + 1;
      overdue = (owed && !masked && on) ? overdue + 1 : 0;
      if (overdue == Patience) fail("R14: no message for what has fired");

      // What happens in this cycle.
      if (effect_i && effect_id_i == CompletionId && bench.u_device.inner_rst_n) begin
        if (effect_strb_i[0])  answer(effect_data_i[255:0]);
        if (effect_strb_i[32]) answer(effect_data_i[511:256]);
      end
      // A drain that has nothing left tells of any completion at or above ARM.
      if (bench.u_device.drained[Pair] && bench.u_device.on[Pair] && armed && sees
          && !(bench.u_device.arm && bench.u_device.bell_queue == Pair)) fire;
      could_expire = timed && bench.u_device.on[Pair];
      if (bench.u_device.arm && bench.u_device.bell_queue == Pair) begin
        armings      = armings + 1;
        arm_index    = bench.u_device.index;
        armed        = 1'b1;
        sees         = 1'b0;
        timed        = 1'b0;
        could_expire = 1'b0;
        look(1'b1);
      end else if (armed && effect_i && effect_id_i == CompletionId && bench.u_device.on[Pair]) look(1'b0);
    end
  end
endmodule
