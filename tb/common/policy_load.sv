// Rollouts that never pause, for benches that publish under load: each goes on where it was cut, under the newest version
// that its host knows, until its budget is there. Drives the queue_host 'host' that it stands in.
module policy_load;
  import bench_pkg::*;
  import bench_reference_pkg::*;
  import desc_pkg::*;

  localparam int Most = 32;
  localparam int From = 16;             // token words; those below are a policy's header

  int rollouts = 0, longest = 100, residents = 20;
  int left [0:Most-1];                  // of the budget
  logic flying [0:Most-1];
  int place = From;
  int finished = 0, superseded = 0, aborted = 0, rejected = 0;
  logic draining = 1'b0;                // no rollout begins anew

  task automatic start(input int count, input int most);
    rollouts = count;
    longest  = most;
    place    = From;
    draining = 1'b0;
    for (int r = 0; r < Most; r++) begin
      flying[r] = 1'b0;
      left[r]   = 0;
    end
  endtask

  task automatic put_one(input int r, output logic done);
    hw_desc_t desc;
    done = 1'b0;
    if (left[r] == 0) left[r] = between(1, longest);
    if (place + left[r] + 16 > int'(host.token_size / 4)) place = From;
    if (host.sq_space() > 0 && host.u_score.range_free(place, left[r])) begin
      desc = host.blank(OP_DECODE, 32'h700 + r);
      desc.max_tokens     = left[r];
      desc.seq_len        = 1000;
      desc.delta_offset   = 4 * place;
      desc.policy_version = host.u_score.slot_version[host.u_score.slot_last];
      desc.checkpoint     = chance(30) ? between(1, 30) : CHECKPOINT_NEVER;
      desc.flags[FLAG_RESIDENT_BIT] = chance(residents);
      host.put(desc);
      place     = place + left[r] + below(3);
      flying[r] = 1'b1;
      done      = 1'b1;
    end
  endtask

  // What has come is looked at, what can go on goes on.
  task automatic step;
    logic got, any;
    int   r, added;
    got = 1'b1;
    while (got) begin
      host.poll(got);
      if (got && host.last_desc.opcode == OP_DECODE) begin
        r = int'(host.last_desc.rollout_id - 32'h700);
        if (!flying[r]) fail("R3: a rollout completes that was not submitted");
        flying[r] = 1'b0;
        added     = int'(host.last_done.final_seq_len - host.last_desc.seq_len);
        left[r]   = left[r] - added;
        case (host.last_done.status)
          STATUS_DONE: begin
            if (host.last_done.flags[CFLAG_REJECTED_BIT]) begin
              rejected = rejected + 1;
              left[r]  = 0;
            end else if (left[r] != 0) fail($sformatf("R20: rollout %0d ends with %0d tokens to go", r, left[r]));
            else finished = finished + 1;
          end
          STATUS_STOPPED: begin
            aborted = aborted + 1;
            left[r] = 0;
          end
          STATUS_SUPERSEDED: superseded = superseded + 1;
          STATUS_REWARD_NEEDED: ;
          default: fail($sformatf("a DECODE ends with status %h, error %h", host.last_done.status, host.last_done.error));
        endcase
      end
    end
    host.release_seen;
    any = 1'b0;
    for (int k = 0; k < rollouts; k++) if (!flying[k] && !(draining && left[k] == 0)) begin
      put_one(k, got);
      any = any || got;
    end
    if (any) host.ring;
  endtask
endmodule
