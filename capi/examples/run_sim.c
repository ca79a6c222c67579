// Runs a few rollouts on a device and on the model, prints what came back, and exits 1 where the two disagree.
//
//   run_sim [DEVICE [OPTIONS]]        by default: rtl "workers=4"; a function of PCI Express is pcie "address=0000:00:03.0"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "doorbell.h"

enum { ROLLOUTS = 8, LONGEST = 40, SECOND = 1000000 };

struct answer {
  struct doorbell_hw_completion completion;
  uint32_t tokens[LONGEST];
};

static void must(int result, const char *what) {
  if (result == DOORBELL_OK) return;
  fprintf(stderr, "run_sim: %s: %s: %s\n", what, doorbell_result_name(result), doorbell_error_text());
  exit(2);
}

static uint32_t length_of(uint32_t rollout) { return 1 + rollout * 11 % LONGEST; }

// Runs every rollout on the device and keeps its answers, by rollout.
static void run(const char *name, const char *options, struct answer answers[ROLLOUTS]) {
  doorbell_device *device;
  must(doorbell_open(name, options, &device), name);
  for (uint32_t rollout = 0; rollout < ROLLOUTS; rollout++) {
    struct infer_decode decode = {0};
    decode.size = sizeof decode;
    decode.rollout_id = rollout;
    decode.seq_len = 100 * rollout;
    decode.max_tokens = length_of(rollout);
    decode.delta_offset = 4u * LONGEST * rollout;
    decode.user_data = rollout;
    decode.seed = 7;
    must(infer_submit_decode(device, &decode), "infer_submit_decode");
  }
  for (unsigned polled = 0; polled < ROLLOUTS;) {
    must(doorbell_wait(device, 60u * SECOND), "doorbell_wait");
    struct doorbell_hw_completion completions[4];
    size_t count = 0;
    must(infer_poll_completion(device, completions, 4, &count), "infer_poll_completion");
    for (size_t k = 0; k < count; k++, polled++) {
      uint32_t rollout = completions[k].rollout_id;
      if (rollout >= ROLLOUTS || completions[k].user_data != rollout) {
        fprintf(stderr, "run_sim: %s: a completion of nothing that was submitted\n", name);
        exit(1);
      }
      answers[rollout].completion = completions[k];
    }
  }
  for (uint32_t rollout = 0; rollout < ROLLOUTS; rollout++) {
    must(doorbell_tokens(device, 4u * LONGEST * rollout, answers[rollout].tokens, length_of(rollout)), "doorbell_tokens");
  }
  must(doorbell_close(device), "doorbell_close");
}

// Compares what the contract fixes: everything but queue position, worker and phase.
static int same(const struct answer *a, const struct answer *b, uint32_t tokens) {
  const struct doorbell_hw_completion *x = &a->completion, *y = &b->completion;
  if (x->user_data != y->user_data || x->rollout_id != y->rollout_id || x->final_seq_len != y->final_seq_len ||
      x->result != y->result || x->status != y->status || x->error != y->error || x->flags != y->flags) {
    return 0;
  }
  for (uint32_t k = 0; k < tokens; k++) {
    if (a->tokens[k] != b->tokens[k]) return 0;
  }
  return 1;
}

int main(int argc, char **argv) {
  const char *name = argc > 1 ? argv[1] : "rtl";
  const char *options = argc > 2 ? argv[2] : argc > 1 ? "" : "workers=4";
  static struct answer found[ROLLOUTS], expected[ROLLOUTS];
  run(name, options, found);
  run("model", "", expected);

  int agree = 1;
  for (uint32_t rollout = 0; rollout < ROLLOUTS; rollout++) {
    const struct doorbell_hw_completion *completion = &found[rollout].completion;
    uint32_t length = length_of(rollout);
    int right = completion->status == DOORBELL_STATUS_DONE && same(&found[rollout], &expected[rollout], length);
    printf("rollout %" PRIu32 ": status %u, length %" PRIu32 ", digest %08" PRIx32 ", tokens", rollout,
           (unsigned)completion->status, completion->final_seq_len, completion->result);
    for (uint32_t k = 0; k < length && k < 4; k++) printf(" %" PRIu32, found[rollout].tokens[k]);
    printf("%s%s\n", length > 4 ? " ..." : "", right ? "" : "   DIFFERS FROM THE MODEL");
    agree = agree && right;
  }
  printf("%s and model: %s\n", name, agree ? "identical" : "different");
  return agree ? 0 : 1;
}
