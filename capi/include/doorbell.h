// Doorbell's devices for C and C++: open one by name, submit work orders, poll completions, read tokens.
//
//   doorbell_device *device;
//   if (doorbell_open("rtl", "workers=4 token_bytes=65536", &device) != DOORBELL_OK) puts(doorbell_error_text());
//   infer_submit_decode(device, &(struct infer_decode){.size = sizeof(struct infer_decode), .max_tokens = 16});
//   struct doorbell_hw_completion completion;
//   size_t count = 0;
//   while (infer_poll_completion(device, &completion, 1, &count) == DOORBELL_OK && count == 0) {}
//
// Link libdoorbell.so, or libdoorbell.a with what `rustc --print native-static-libs` names (for the RTL stdc++ and z too).
//
// Every function may be called from any thread; calls on one device take turns. A handle is a number in disguise and is
// never looked through: a closed one, or garbage, gives DOORBELL_BAD_HANDLE. NULL and misaligned pointers give
// DOORBELL_BAD_ARGUMENT; other pointers must be valid for what is said of them. Nothing aborts, and no exception or
// panic leaves a function: not in a destructor of a thread's key or in a function of atexit() either.
#ifndef DOORBELL_H
#define DOORBELL_H

#include "doorbell_contract.h"

#if defined(__cplusplus)
extern "C" {
#endif

// Version of this interface: [31:16] major, of which a program needs the same, [15:0] minor, of which it needs no less.
#define DOORBELL_API_VERSION 0x00010002u

// What functions return. Numbers stay; later versions add to them.
enum doorbell_result {
  DOORBELL_OK = 0,
  DOORBELL_FULL = 1,           // nothing was submitted: the queue is full, poll
  DOORBELL_TIMED_OUT = 2,      // the deadline passed; nothing else happened
  DOORBELL_BAD_ARGUMENT = -1,  // a pointer is NULL or misaligned, a size or number out of range
  DOORBELL_BAD_HANDLE = -2,    // no open device
  DOORBELL_UNKNOWN_DEVICE = -3,
  DOORBELL_BAD_OPTION = -4,    // an option that there is not, or a value that it cannot have
  DOORBELL_UNAVAILABLE = -5,   // not part of this build, no such hardware, no memory
  DOORBELL_OUT_OF_BOUNDS = -6, // tokens outside the token region, or another region
  DOORBELL_HUNG = -7,          // the device made no progress for as long as its patience lasts (R15)
  DOORBELL_DEVICE_FAILED = -8, // the device failed or broke the contract: close it
  DOORBELL_INTERNAL = -9,      // a fault of this library: close the device
  DOORBELL_BAD_WEIGHTS = -10   // a file that is missing or damaged, or weights that are no integers or of another shape
};

// An open device.
typedef struct doorbell_device doorbell_device;

// Weights of a language model, which the oracle of docs/engine.md runs.
typedef struct doorbell_weights doorbell_weights;

// A DECODE. Set all of it to 0, then size to sizeof(struct infer_decode): later versions append fields, and take the shorter
// structure of an earlier one.
struct infer_decode {
  uint32_t size;
  uint32_t rollout_id;
  uint32_t seq_len;       // tokens that the rollout has already
  uint32_t max_tokens;    // tokens to add at most, at least 1
  uint64_t delta_offset;  // byte offset of their place in the token region, a multiple of 4
  uint64_t user_data;     // comes back in the completion
  uint32_t checkpoint;    // tokens between checkpoints; 0 is the device's default
  uint32_t seed;          // of the sampling policy
  uint32_t flags;         // DOORBELL_FLAG_...
  uint32_t reserved;      // 0
  // Since 1.1.
  uint32_t prefix_id;      // with DOORBELL_FLAG_COW_PREFIX: the shared prefix, 0 one like any other; else nothing
  uint16_t member;         // with DOORBELL_FLAG_COW_PREFIX: member of its group, or DOORBELL_MEMBER_NONE; else nothing
  uint16_t policy_version; // version of the policy that it runs under
};
DOORBELL_ASSERT(sizeof(struct infer_decode) == 56, "size of infer_decode");
DOORBELL_ASSERT(DOORBELL_OFFSETOF(struct infer_decode, delta_offset) == 16, "offset of delta_offset");
DOORBELL_ASSERT(DOORBELL_OFFSETOF(struct infer_decode, checkpoint) == 32, "offset of checkpoint");
DOORBELL_ASSERT(DOORBELL_OFFSETOF(struct infer_decode, prefix_id) == 48, "offset of prefix_id");
DOORBELL_ASSERT(DOORBELL_OFFSETOF(struct infer_decode, policy_version) == 54, "offset of policy_version");

// What a device can do. Set size to sizeof(struct doorbell_features).
struct doorbell_features {
  uint32_t size;
  uint32_t capability;    // DOORBELL_CAP_...
  uint32_t groups;        // groups that a queue pair may have at a time; 0: none
  uint32_t policy_slots;  // versions of the policy that a function may have resident; 0: version 0 alone
  uint32_t reward_models; // reward_model_id below it is known
  uint32_t functions;     // functions, to each of which a version is published
};
DOORBELL_ASSERT(sizeof(struct doorbell_features) == 24, "size of doorbell_features");
DOORBELL_ASSERT(DOORBELL_OFFSETOF(struct doorbell_features, functions) == 20, "offset of functions");

// Weights that made a part of a sequence, as the spans of versions in a server's answer say.
struct doorbell_span {
  doorbell_weights *weights;
  size_t end; // place behind the last token that they made, with the prompt's tokens before the answer's
};

// The version of this library, as DOORBELL_API_VERSION.
uint32_t doorbell_api_version(void);

// What went wrong in the last call of this thread that did not return DOORBELL_OK, in words, at most 2,047 bytes; "" before
// the first. Valid until this thread's next call.
const char *doorbell_error_text(void);

// The name of a code, such as "DOORBELL_FULL"; never NULL.
const char *doorbell_result_name(int result);

// Opens the device `name` ("model", "rtl", "gpu", "pcie", "vfio-user") and stores its handle, or NULL. "pcie" needs the option address=,
// as 0000:00:03.0, and "vfio-user" the option socket=. `options` may be NULL, or holds pairs
// as "sq_depth=64 workers=4", apart by blanks or commas; an unknown key lists all. An option that is for other devices is a BAD_OPTION.
int doorbell_open(const char *name, const char *options, doorbell_device **device);

// Closes the device, without waiting: what is in flight is lost.
int doorbell_close(doorbell_device *device);

// Stores what every queue pair of the device can do.
int doorbell_get_features(doorbell_device *device, struct doorbell_features *features);

// Submits one DECODE; its tokens are in the token region when its completion has been polled.
int infer_submit_decode(doorbell_device *device, const struct infer_decode *decode);

// Submits the head of `count` descriptors with one doorbell, as much as there is room for, and stores how many that was.
// The check words are filled in. DOORBELL_FULL if it was none of at least one.
//
// So go a PREFILL that opens a group (max_tokens members of prefix_id), behind which infer_submit_decode may send its members at
// once, a STOP of one or of all, and a REWARD of tokens whose DECODE has completed, or is of the same rollout. The option "ranges"
// sets the ranges of reward model 1. In a descriptor of zeros set prefix_id to DOORBELL_PREFIX_NONE and member to
// DOORBELL_MEMBER_NONE, unless it names them.
int doorbell_submit(doorbell_device *device, const struct doorbell_hw_desc *descs, size_t count, size_t *submitted);

// Copies up to `capacity` completions and stores how many; 0 if none is there yet. Gives a simulated device time.
int infer_poll_completion(doorbell_device *device, struct doorbell_hw_completion *completions, size_t capacity,
                          size_t *count);

// Returns once a completion can be polled. DOORBELL_TIMED_OUT after `microseconds`; at once if nothing is in flight.
int doorbell_wait(doorbell_device *device, uint64_t microseconds);

// Copies `count` tokens from `delta_offset` bytes into the token region.
int doorbell_tokens(doorbell_device *device, uint64_t delta_offset, uint32_t *tokens, size_t count);

// Copies `count` log-probabilities, Q16.16, of the tokens from `delta_offset` bytes into the token region on, those of one DECODE
// with DOORBELL_FLAG_LOGP. The option "logp_bytes" gives the device a region for them, as long as the token region where all have
// some.
int doorbell_logps(doorbell_device *device, uint64_t delta_offset, int32_t *logps, size_t count);

// Publishes `version` of the policy, with `salt`: writes its header to `delta_offset` bytes into the token region, a multiple of 64
// with 64 bytes that no DECODE writes, and submits a POLICY to each function. `mode` (DOORBELL_POLICY_...) says what becomes of the
// version before. Stores how many completions come, all with `user_data` and DOORBELL_STATUS_DONE where it is resident; send DECODEs
// of it behind those. DOORBELL_FULL if a queue has no room: then nothing was submitted.
int doorbell_publish(doorbell_device *device, uint64_t delta_offset, uint16_t version, uint32_t salt, uint32_t mode,
                     uint64_t user_data, size_t *completions);

// Stores how many descriptors were submitted and not yet polled.
int doorbell_in_flight(doorbell_device *device, size_t *count);

// Reads weights and stores their handle, or NULL. `path` is an image, or a directory of Hugging Face with safetensors, which are rounded to
// integers as `doorbell serve` rounds them. Close them with doorbell_weights_close.
int doorbell_weights_open(const char *path, doorbell_weights **weights);

// Closes weights. A call of doorbell_score that uses them goes on.
int doorbell_weights_close(doorbell_weights *weights);

// Stores the log-probability of each of `count` tokens of a sequence given those before it, Q16.16, as a device computes it that draws at
// `temperature` (0: at 1). The first token has none: 0 is stored.
//
// A span begins where the one before ends, and the last one ends at `count`. Its weights take the step that adds each of its tokens. That
// step makes keys and values of the token before, so later tokens read what earlier spans made, as after an update that keeps rollouts. The
// weights of all spans need one shape, and the sequence at most as many tokens as their context. Takes all cores.
int doorbell_score(const struct doorbell_span *spans, size_t span_count, double temperature, const uint32_t *tokens,
                   size_t count, int32_t *logps);

#if defined(__cplusplus)
}
#endif

#endif
