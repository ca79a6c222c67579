// What a host of RL rollouts does with a device: opens a group, has its members scored, reads their log-probabilities, and publishes
// versions of the policy. Every answer is held to the formulas of the contract, which are here once more.
// Usage: rollouts DEVICE [OPTIONS]
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "doorbell.h"

enum { MEMBERS = 3, PROMPT = 100, AREA = 256, LONGEST = 40, POLICY_AT = 32768, SECOND = 1000000 };
enum { PREFIX = 40, SALT = 0x1234567, SEED = 7 };

static int failures;

static void expect(int line, const char *what, int64_t found, int64_t expected) {
  if (found == expected) return;
  printf("line %d: %s is %" PRId64 " instead of %" PRId64 "\n", line, what, found, expected);
  failures++;
}
#define EXPECT(found, expected) expect(__LINE__, #found, (int64_t)(found), (int64_t)(expected))

static void must(int result, const char *what) {
  if (result == DOORBELL_OK) return;
  printf("%s: %s: %s\n", what, doorbell_result_name(result), doorbell_error_text());
  exit(2);
}

// Engine 0 of docs/contract.md.
static uint32_t mix(uint32_t x) {
  x ^= x >> 16;
  x *= DOORBELL_MIX_MUL_1;
  x ^= x >> 15;
  x *= DOORBELL_MIX_MUL_2;
  return x ^ x >> 16;
}

static uint32_t word_of(uint32_t salt, uint32_t rollout, uint32_t position) {
  uint32_t base = mix((SEED ^ mix(rollout + DOORBELL_GOLDEN)) + salt);
  return mix(base + position * DOORBELL_GOLDEN);
}

// Reads the tokens of a rollout, and their log-probabilities if `logps` is set, and holds them to a version's salt.
static void check_tokens(doorbell_device *device, uint32_t salt, uint32_t rollout, uint64_t at, uint32_t count, int logps,
                         uint32_t tokens[LONGEST]) {
  int32_t found[LONGEST];
  must(doorbell_tokens(device, at, tokens, count), "doorbell_tokens");
  if (logps) must(doorbell_logps(device, at, found, count), "doorbell_logps");
  for (uint32_t k = 0; k < count; k++) {
    uint32_t word = word_of(salt, rollout, PROMPT + k);
    EXPECT(tokens[k], word & 0x1FFFF);
    if (logps) EXPECT(found[k], -(int64_t)(word >> 12));
  }
}

static uint32_t length_of(uint32_t member) { return 5 + 11 * member; }

// Takes as many completions as are due, by the order in which they come.
static void take(doorbell_device *device, struct doorbell_hw_completion *ends, size_t due) {
  for (size_t seen = 0, count; seen < due; seen += count) {
    must(doorbell_wait(device, 60u * SECOND), "doorbell_wait");
    must(infer_poll_completion(device, ends + seen, due - seen, &count), "infer_poll_completion");
  }
}

static struct doorbell_hw_desc nothing(uint8_t opcode) {
  struct doorbell_hw_desc desc;
  memset(&desc, 0, sizeof desc);
  desc.opcode = opcode;
  desc.prefix_id = DOORBELL_PREFIX_NONE;
  desc.member = DOORBELL_MEMBER_NONE;
  return desc;
}

static void submit(doorbell_device *device, const struct doorbell_hw_desc *desc) {
  size_t submitted;
  must(doorbell_submit(device, desc, 1, &submitted), "doorbell_submit");
  EXPECT(submitted, 1);
}

static struct infer_decode decode_of(uint32_t rollout, uint32_t tokens, uint64_t at, uint16_t version) {
  struct infer_decode decode;
  memset(&decode, 0, sizeof decode);
  decode.size = sizeof decode;
  decode.rollout_id = rollout;
  decode.seq_len = PROMPT;
  decode.max_tokens = tokens;
  decode.delta_offset = at;
  decode.user_data = rollout;
  decode.seed = SEED;
  decode.policy_version = version;
  return decode;
}

// A group: its PREFILL, its members at once behind it, and GROUP_DONE with the last of them (R17).
static void group(doorbell_device *device) {
  struct doorbell_hw_desc open = nothing(DOORBELL_OP_PREFILL);
  open.prefix_id = open.rollout_id = PREFIX;
  open.user_data = PREFIX;
  open.seq_len = PROMPT;
  open.max_tokens = MEMBERS;
  submit(device, &open);
  for (uint16_t member = 0; member < MEMBERS; member++) {
    struct infer_decode decode = decode_of(PREFIX + 1 + member, length_of(member), AREA * member, 0);
    decode.flags = DOORBELL_FLAG_COW_PREFIX | DOORBELL_FLAG_LOGP;
    decode.prefix_id = PREFIX;
    decode.member = member;
    must(infer_submit_decode(device, &decode), "infer_submit_decode");
  }
  struct doorbell_hw_completion ends[MEMBERS + 1];
  take(device, ends, MEMBERS + 1);
  for (unsigned k = 0; k <= MEMBERS; k++) {
    EXPECT(ends[k].status, DOORBELL_STATUS_DONE);
    EXPECT((ends[k].flags & DOORBELL_CFLAG_GROUP_DONE) != 0, k == MEMBERS);
  }
  EXPECT(ends[0].user_data, PREFIX);

  // What each is worth, by both models.
  uint32_t tokens[MEMBERS][LONGEST];
  for (uint32_t member = 0; member < MEMBERS; member++) {
    uint32_t rollout = PREFIX + 1 + member, count = length_of(member), digest = DOORBELL_DIGEST_INIT, hits = 0;
    check_tokens(device, 0, rollout, AREA * member, count, 1, tokens[member]);
    for (uint32_t k = 0; k < count; k++) {
      uint32_t token = tokens[member][k];
      digest = (digest ^ token) * DOORBELL_DIGEST_PRIME;
      hits += token <= 65535 || (token >= 100000 && token <= 110000);
    }
    for (uint16_t model = 0; model < 2; model++) {
      struct doorbell_hw_desc reward = nothing(DOORBELL_OP_REWARD);
      reward.rollout_id = rollout;
      reward.reward_model_id = model;
      reward.delta_offset = AREA * member;
      reward.max_tokens = count;
      reward.user_data = model;
      submit(device, &reward);
      struct doorbell_hw_completion end;
      take(device, &end, 1);
      EXPECT(end.status, DOORBELL_STATUS_SCORED);
      EXPECT(end.reward_model_id, model);
      EXPECT(end.result, model == 0 ? (digest >> 16 ^ (digest & 0xFFFF)) : hits << 16);
    }
  }
  // The STOP of a whole group that nobody came to ends it.
  struct doorbell_hw_desc stop = nothing(DOORBELL_OP_STOP), end[2] = {open, stop};
  end[1].flags = DOORBELL_FLAG_COW_PREFIX;
  end[1].rollout_id = end[1].prefix_id = PREFIX;
  size_t submitted;
  must(doorbell_submit(device, end, 2, &submitted), "doorbell_submit");
  EXPECT(submitted, 2);
  take(device, ends, 2);
  EXPECT(ends[1].status, DOORBELL_STATUS_STOPPED);
  EXPECT(ends[1].flags, DOORBELL_CFLAG_GROUP_DONE);
}

static void publish(doorbell_device *device, uint16_t version, uint32_t salt, uint32_t mode, uint32_t functions) {
  size_t due;
  must(doorbell_publish(device, POLICY_AT, version, salt, mode, 77, &due), "doorbell_publish");
  EXPECT(due, functions);
  for (size_t k = 0; k < due; k++) {
    struct doorbell_hw_completion end;
    take(device, &end, 1);
    EXPECT(end.status, DOORBELL_STATUS_DONE);
    EXPECT(end.user_data, 77);
  }
}

// One DECODE under a version; its completion, and its tokens if it is DONE.
static struct doorbell_hw_completion run(doorbell_device *device, uint32_t rollout, uint16_t version, uint32_t salt) {
  struct infer_decode decode = decode_of(rollout, LONGEST, 16384, version);
  must(infer_submit_decode(device, &decode), "infer_submit_decode");
  struct doorbell_hw_completion end;
  take(device, &end, 1);
  uint32_t tokens[LONGEST];
  if (end.status == DOORBELL_STATUS_DONE) check_tokens(device, salt, rollout, 16384, LONGEST, 0, tokens);
  return end;
}

// Versions come, stay beside the one before, and replace it (R18 to R20).
static void versions(doorbell_device *device, uint32_t functions) {
  for (uint32_t rollout = 0; rollout < 8; rollout++) EXPECT(run(device, rollout, 0, 0).status, DOORBELL_STATUS_DONE);
  EXPECT(run(device, 9, 1, SALT).error, DOORBELL_ERR_BAD_VERSION);
  publish(device, 1, SALT, DOORBELL_POLICY_WAIT, functions);
  for (uint32_t rollout = 0; rollout < 8; rollout++) {
    EXPECT(run(device, rollout, 0, 0).status, DOORBELL_STATUS_DONE);
    EXPECT(run(device, rollout, 1, SALT).status, DOORBELL_STATUS_DONE);
  }
  publish(device, 2, SALT + 1, DOORBELL_POLICY_KEEP, functions);
  for (uint32_t rollout = 0; rollout < 8; rollout++) {
    struct doorbell_hw_completion end = run(device, rollout, 1, SALT);
    EXPECT(end.status, DOORBELL_STATUS_SUPERSEDED);
    EXPECT(end.final_seq_len, PROMPT);
    EXPECT(run(device, rollout, 2, SALT + 1).status, DOORBELL_STATUS_DONE);
    EXPECT(run(device, rollout, 0, 0).error, DOORBELL_ERR_BAD_VERSION);
  }
  // A header that is not where the device would read it is the device's to refuse (R10).
  size_t due;
  must(doorbell_publish(device, POLICY_AT + 16, 3, 0, DOORBELL_POLICY_WAIT, 78, &due), "doorbell_publish");
  for (size_t k = 0; k < due; k++) {
    struct doorbell_hw_completion end;
    take(device, &end, 1);
    EXPECT(end.error, DOORBELL_ERR_BAD_REGION);
  }
}

// The structure of version 1.0, which ended with `reserved`.
static void older_structure(doorbell_device *device) {
  struct infer_decode decode = decode_of(5, 4, 0, 0);
  decode.size = 48;
  decode.member = 1;
  decode.policy_version = 99; // beyond its end
  must(infer_submit_decode(device, &decode), "infer_submit_decode");
  struct doorbell_hw_completion end;
  take(device, &end, 1);
  EXPECT(end.status, DOORBELL_STATUS_DONE);
  decode.flags = DOORBELL_FLAG_COW_PREFIX;
  must(infer_submit_decode(device, &decode), "infer_submit_decode");
  take(device, &end, 1);
  EXPECT(end.error, DOORBELL_ERR_BAD_PREFIX);
}

int main(int argc, char **argv) {
  if (argc < 2) return 2;
  char options[256];
  snprintf(options, sizeof options, "token_bytes=65536 logp_bytes=65536 ranges=0..65535+100000..110000+9..8 %s",
           argc > 2 ? argv[2] : "");
  doorbell_device *device;
  must(doorbell_open(argv[1], options, &device), "doorbell_open");
  struct doorbell_features features = {.size = sizeof features};
  must(doorbell_get_features(device, &features), "doorbell_get_features");
  uint32_t all = DOORBELL_CAP_PREFILL | DOORBELL_CAP_REWARD | DOORBELL_CAP_LOGP | DOORBELL_CAP_POLICY;
  EXPECT(features.capability & all, all);
  EXPECT(features.groups > 0, 1);
  EXPECT(features.policy_slots, 2);
  EXPECT(features.reward_models, 2);
  older_structure(device);
  group(device);
  versions(device, features.functions);
  must(doorbell_close(device), "doorbell_close");
  printf("%s: %d failures\n", argv[1], failures);
  return failures ? 1 : 0;
}
