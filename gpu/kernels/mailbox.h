// What the host and the kernel share beside the queues: one page per queue pair in host memory. The host writes the
// first part and the kernel the second; src/mailbox.rs is the same layout in Rust.
#ifndef DOORBELL_MAILBOX_H
#define DOORBELL_MAILBOX_H

#include "doorbell_contract.h"

// Odd: a session is wanted (or runs); even: none. Each change is one step up, so that no request is missed.
#define DOORBELL_SESSION_EXIT 0xFFFFFFFEu

// The registers that are fixed while a session runs.
struct doorbell_session {
  uint64_t sq_base;
  uint64_t cq_base;
  uint64_t token_base;
  uint64_t token_size;
  uint64_t kv_size;
  uint32_t sq_size;
  uint32_t cq_size;
  uint32_t sq_start;
  uint32_t cq_start;
  uint32_t checkpoint_default;
  uint32_t wait_states;
  uint32_t length_limit;
  uint32_t eos_threshold;
  uint32_t reward_threshold;
  uint32_t workers;  // rollouts that may run at a time; 0: as many as there are places
};

struct doorbell_mailbox {
  // ---- written by the host; `wanted` behind the others, with release order
  DOORBELL_ALIGNAS(64) uint32_t wanted;
  uint32_t sq_tail;
  uint32_t cq_head;
  uint32_t unused0[13];
  struct doorbell_session session;
  uint32_t unused1[28];
  // ---- written by the kernel; `reached` behind the others, with release order
  uint32_t reached;      // the `wanted` that the kernel has come to
  uint32_t sq_head;      // slots consumed up to
  uint32_t cq_tail;      // completions reserved up to
  uint32_t outstanding;  // descriptors consumed and not completed
  uint32_t asks;         // completions that asked for an interrupt
  uint32_t asked;        // index of the newest of them
  uint32_t waits_for;    // what the oldest descriptor that has not started waits for
  uint32_t heartbeat;    // rises as long as the front end lives
  uint32_t unused2[8];
  uint64_t counters[16];
  uint32_t unused3[912];
};

DOORBELL_ASSERT(sizeof(struct doorbell_mailbox) == 4096, "a mailbox is a page");
DOORBELL_ASSERT(DOORBELL_OFFSETOF(struct doorbell_mailbox, session.sq_base) == 64, "offset of session.sq_base");
DOORBELL_ASSERT(DOORBELL_OFFSETOF(struct doorbell_mailbox, session.sq_size) == 104, "offset of session.sq_size");
DOORBELL_ASSERT(DOORBELL_OFFSETOF(struct doorbell_mailbox, session.workers) == 140, "offset of session.workers");
DOORBELL_ASSERT(DOORBELL_OFFSETOF(struct doorbell_mailbox, reached) == 256, "offset of reached");
DOORBELL_ASSERT(DOORBELL_OFFSETOF(struct doorbell_mailbox, heartbeat) == 284, "offset of heartbeat");
DOORBELL_ASSERT(DOORBELL_OFFSETOF(struct doorbell_mailbox, counters) == 320, "offset of counters");

// What a front end waits for (R15): `waits_for`.
enum doorbell_wait {
  DOORBELL_WAIT_NOTHING = 0,
  DOORBELL_WAIT_COMPLETION_SLOT = 1,  // the host to release completions (R4)
  DOORBELL_WAIT_ROLLOUT = 2,          // an earlier descriptor of the same rollout (R5)
  DOORBELL_WAIT_FENCE = 3,            // earlier descriptors to complete, before or behind a fence (R7)
  DOORBELL_WAIT_STOP = 4,             // the rollout to end that is to be stopped (R8)
  DOORBELL_WAIT_WORKER = 5,           // a place among the rollouts that run
};

#endif
