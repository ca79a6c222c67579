// Calls every function with arguments that are wrong, each of which must give its code and a text, and then opens and
// closes devices again and again. Usage: arguments DEVICE
#include <stdio.h>
#include <string.h>

#include "doorbell.h"

static int failures;

static void expect(int line, const char *what, int found, int expected) {
  if (found == expected && (found == DOORBELL_OK || doorbell_error_text()[0] != 0)) return;
  printf("line %d: %s: %s instead of %s (%s)\n", line, what, doorbell_result_name(found), doorbell_result_name(expected),
         doorbell_error_text());
  failures++;
}
#define EXPECT(call, code) expect(__LINE__, #call, call, code)
#define BAD DOORBELL_BAD_ARGUMENT

int main(int argc, char **argv) {
  if (argc != 2) return 2;
  const char *name = argv[1];
  doorbell_device *device = (doorbell_device *)1;
  size_t count = 7;
  struct doorbell_hw_completion completions[2];
  struct doorbell_hw_desc descs[3];
  uint32_t tokens[4];
  int32_t logps[4];
  struct doorbell_features features;
  struct infer_decode decode;
  memset(descs, 0, sizeof descs);
  memset(&decode, 0, sizeof decode);
  memset(&features, 0, sizeof features);

  if (doorbell_api_version() >> 16 != DOORBELL_API_VERSION >> 16) return 3;
  if (strcmp(doorbell_result_name(DOORBELL_HUNG), "DOORBELL_HUNG") != 0 || !doorbell_result_name(12345)) return 4;

  // Opening.
  EXPECT(doorbell_open(NULL, NULL, &device), BAD);
  if (device != NULL) return 5;
  EXPECT(doorbell_open(name, NULL, NULL), BAD);
  EXPECT(doorbell_open(name, NULL, (doorbell_device **)1), BAD);
  EXPECT(doorbell_open("", NULL, &device), DOORBELL_UNKNOWN_DEVICE);
  EXPECT(doorbell_open("toaster", NULL, &device), DOORBELL_UNKNOWN_DEVICE);
  EXPECT(doorbell_open("\xff\xfe", NULL, &device), BAD);
  EXPECT(doorbell_open(name, "\xff", &device), BAD);
  EXPECT(doorbell_open(name, "nonsense", &device), DOORBELL_BAD_OPTION);
  EXPECT(doorbell_open(name, "sq_depth=3", &device), DOORBELL_BAD_OPTION);
  EXPECT(doorbell_open(name, "sq_depth=0", &device), DOORBELL_BAD_OPTION);
  EXPECT(doorbell_open(name, "sq_depth=99999999999999999999", &device), DOORBELL_BAD_OPTION);
  EXPECT(doorbell_open(name, "token_bytes=0xffffffffffffffff", &device), DOORBELL_BAD_OPTION);
  EXPECT(doorbell_open(name, "fault=nonsense", &device), DOORBELL_BAD_OPTION);
  EXPECT(doorbell_open(name, "ranges=9", &device), DOORBELL_BAD_OPTION);
  // Options that are for other devices.
  EXPECT(doorbell_open(name, "gpus=3", &device), DOORBELL_BAD_OPTION);
  EXPECT(doorbell_open(name, "sq_depth=8, sms=7", &device), DOORBELL_BAD_OPTION);
  EXPECT(doorbell_open(name, "socket=/x", &device), DOORBELL_BAD_OPTION);
  EXPECT(doorbell_open(name, "address=0000:00:03.0", &device), DOORBELL_BAD_OPTION);
  EXPECT(doorbell_open(name, "token_bytes=0x4000000000000", &device), DOORBELL_UNAVAILABLE);

  // Weights, and the tokens that they score.
  doorbell_weights *weights = (doorbell_weights *)1;
  struct doorbell_span span = {NULL, 1};
  EXPECT(doorbell_weights_open(NULL, &weights), BAD);
  if (weights != NULL) return 11;
  EXPECT(doorbell_weights_open("there is no such file", NULL), BAD);
  EXPECT(doorbell_weights_open("there is no such file", &weights), DOORBELL_BAD_WEIGHTS);
  EXPECT(doorbell_weights_open(".", &weights), DOORBELL_BAD_WEIGHTS);
  EXPECT(doorbell_weights_close(NULL), DOORBELL_BAD_HANDLE);
  EXPECT(doorbell_weights_close((doorbell_weights *)&span), DOORBELL_BAD_HANDLE);
  tokens[0] = 0;
  EXPECT(doorbell_score(&span, 1, 1.0, tokens, 1, logps), DOORBELL_BAD_HANDLE);
  EXPECT(doorbell_score(&span, 1, -1.0, tokens, 1, logps), BAD);
  EXPECT(doorbell_score(NULL, 1, 1.0, tokens, 1, logps), BAD);
  EXPECT(doorbell_score(&span, 1, 1.0, NULL, 1, logps), BAD);
  EXPECT(doorbell_score(&span, 1, 1.0, tokens, 1, NULL), BAD);
  EXPECT(doorbell_score(&span, 1, 1.0, tokens, ~(size_t)0, logps), BAD);
  EXPECT(doorbell_score(NULL, 0, 1.0, NULL, 0, NULL), DOORBELL_OK);

  // Handles that are none.
  doorbell_device *none[] = {NULL, (doorbell_device *)0x1234567, (doorbell_device *)&descs, (doorbell_device *)~(size_t)0};
  decode.size = sizeof decode;
  for (size_t k = 0; k < sizeof none / sizeof *none; k++) {
    EXPECT(doorbell_close(none[k]), DOORBELL_BAD_HANDLE);
    EXPECT(doorbell_wait(none[k], 0), DOORBELL_BAD_HANDLE);
    EXPECT(doorbell_in_flight(none[k], &count), DOORBELL_BAD_HANDLE);
    EXPECT(doorbell_submit(none[k], descs, 1, &count), DOORBELL_BAD_HANDLE);
    EXPECT(doorbell_tokens(none[k], 0, tokens, 1), DOORBELL_BAD_HANDLE);
    EXPECT(doorbell_logps(none[k], 0, logps, 1), DOORBELL_BAD_HANDLE);
    EXPECT(doorbell_publish(none[k], 0, 1, 0, DOORBELL_POLICY_WAIT, 0, &count), DOORBELL_BAD_HANDLE);
    features.size = sizeof features;
    EXPECT(doorbell_get_features(none[k], &features), DOORBELL_BAD_HANDLE);
    EXPECT(infer_submit_decode(none[k], &decode), DOORBELL_BAD_HANDLE);
    EXPECT(infer_poll_completion(none[k], completions, 2, &count), DOORBELL_BAD_HANDLE);
  }

  // An open device, and pointers and numbers that are wrong.
  EXPECT(doorbell_open(name, "sq_depth=2, cq_depth=2 token_bytes=64", &device), DOORBELL_OK);
  EXPECT(infer_submit_decode(device, NULL), BAD);
  EXPECT(infer_submit_decode(device, (const struct infer_decode *)((const char *)&decode + 1)), BAD);
  decode.size = 4;
  EXPECT(infer_submit_decode(device, &decode), BAD);
  decode.size = sizeof decode + 8;
  EXPECT(infer_submit_decode(device, &decode), BAD);
  decode.size = sizeof decode;
  decode.flags = 0x40;
  EXPECT(infer_submit_decode(device, &decode), BAD);
  decode.flags = 0x101;
  EXPECT(infer_submit_decode(device, &decode), BAD);
  decode.flags = 0;
  decode.reserved = 1;
  EXPECT(infer_submit_decode(device, &decode), BAD);
  decode.reserved = 0;
  EXPECT(doorbell_submit(device, NULL, 1, &count), BAD);
  EXPECT(doorbell_submit(device, descs, 1, NULL), BAD);
  EXPECT(doorbell_submit(device, descs, ~(size_t)0, &count), BAD);
  EXPECT(doorbell_submit(device, (const struct doorbell_hw_desc *)((const char *)descs + 8), 1, &count), BAD);
  EXPECT(doorbell_submit(device, NULL, 0, &count), DOORBELL_OK);
  EXPECT(infer_poll_completion(device, NULL, 1, &count), BAD);
  EXPECT(infer_poll_completion(device, completions, 1, NULL), BAD);
  EXPECT(infer_poll_completion(device, completions, ~(size_t)0 / 2, &count), BAD);
  EXPECT(infer_poll_completion(device, NULL, 0, &count), DOORBELL_OK);
  EXPECT(doorbell_tokens(device, 0, NULL, 1), BAD);
  EXPECT(doorbell_tokens(device, 0, (uint32_t *)((char *)tokens + 1), 1), BAD);
  EXPECT(doorbell_tokens(device, 0, tokens, ~(size_t)0), BAD);
  EXPECT(doorbell_tokens(device, 2, tokens, 1), DOORBELL_OUT_OF_BOUNDS);
  EXPECT(doorbell_tokens(device, 60, tokens, 2), DOORBELL_OUT_OF_BOUNDS);
  EXPECT(doorbell_tokens(device, ~(uint64_t)3, tokens, 2), DOORBELL_OUT_OF_BOUNDS);
  EXPECT(doorbell_tokens(device, 60, tokens, 1), DOORBELL_OK);
  EXPECT(doorbell_in_flight(device, NULL), BAD);
  EXPECT(doorbell_logps(device, 0, NULL, 1), BAD);
  EXPECT(doorbell_logps(device, 0, (int32_t *)((char *)logps + 1), 1), BAD);
  EXPECT(doorbell_logps(device, 0, logps, ~(size_t)0), BAD);
  EXPECT(doorbell_logps(device, 0, logps, 1), DOORBELL_OUT_OF_BOUNDS); // it was given no region for them
  EXPECT(doorbell_publish(device, 0, 1, 0, DOORBELL_POLICY_WAIT, 0, NULL), BAD);
  EXPECT(doorbell_publish(device, 0, 1, 0, 3, 0, &count), BAD);
  EXPECT(doorbell_publish(device, 0, 1, 0, 0x100, 0, &count), BAD);
  EXPECT(doorbell_publish(device, 64, 1, 0, DOORBELL_POLICY_WAIT, 0, &count), DOORBELL_OUT_OF_BOUNDS);
  EXPECT(doorbell_publish(device, 2, 1, 0, DOORBELL_POLICY_WAIT, 0, &count), DOORBELL_OUT_OF_BOUNDS);
  EXPECT(doorbell_publish(device, ~(uint64_t)63, 1, 0, DOORBELL_POLICY_WAIT, 0, &count), DOORBELL_OUT_OF_BOUNDS);
  EXPECT(doorbell_get_features(device, NULL), BAD);
  EXPECT(doorbell_get_features(device, (struct doorbell_features *)((char *)&features + 1)), BAD);
  features.size = 4;
  EXPECT(doorbell_get_features(device, &features), BAD);
  features.size = sizeof features;
  EXPECT(doorbell_get_features(device, &features), DOORBELL_OK);

  // Nothing of that was submitted. Two slots take two of three, and then no more.
  EXPECT(doorbell_in_flight(device, &count), DOORBELL_OK);
  if (count != 0) return 6;
  EXPECT(doorbell_wait(device, 1000), DOORBELL_TIMED_OUT);
  EXPECT(doorbell_submit(device, descs, 3, &count), DOORBELL_OK);
  if (count != 2) return 7;
  EXPECT(doorbell_submit(device, descs, 1, &count), DOORBELL_FULL);
  if (count != 0) return 8;
  decode.max_tokens = 1;
  EXPECT(infer_submit_decode(device, &decode), DOORBELL_FULL);
  EXPECT(doorbell_publish(device, 0, 1, 0, DOORBELL_POLICY_WAIT, 0, &count), DOORBELL_FULL);
  if (count != 0) return 10;
  EXPECT(doorbell_wait(device, 60000000), DOORBELL_OK);
  size_t seen = 0;
  while (seen < 2) {
    EXPECT(infer_poll_completion(device, completions, 2, &count), DOORBELL_OK);
    seen += count;
  }
  // A malformed DECODE is the device's to refuse (R10), not the interface's.
  decode.max_tokens = 0;
  EXPECT(infer_submit_decode(device, &decode), DOORBELL_OK);
  EXPECT(doorbell_wait(device, 60000000), DOORBELL_OK);
  EXPECT(infer_poll_completion(device, completions, 1, &count), DOORBELL_OK);
  if (count != 1 || completions[0].status != DOORBELL_STATUS_ERROR) return 9;
  EXPECT(doorbell_close(device), DOORBELL_OK);
  EXPECT(doorbell_close(device), DOORBELL_BAD_HANDLE);
  EXPECT(infer_poll_completion(device, completions, 1, &count), DOORBELL_BAD_HANDLE);

  // A device that hangs is told, and can be closed.
  EXPECT(doorbell_open(name, "fault=hang patience=20", &device), DOORBELL_OK);
  decode.max_tokens = 1;
  int result = DOORBELL_OK;
  for (unsigned k = 0; k < 1000 && result == DOORBELL_OK; k++) {
    result = infer_submit_decode(device, &decode);
    if (result == DOORBELL_OK) result = doorbell_wait(device, 60000000);
    if (result == DOORBELL_OK) result = infer_poll_completion(device, completions, 1, &count);
  }
  EXPECT(result, DOORBELL_HUNG);
  EXPECT(doorbell_close(device), DOORBELL_OK);

  // What a device holds goes with it, work in flight included.
  for (unsigned k = 0; k < 50; k++) {
    EXPECT(doorbell_open(name, "token_bytes=4096", &device), DOORBELL_OK);
    EXPECT(infer_submit_decode(device, &decode), DOORBELL_OK);
    if (k % 2) EXPECT(doorbell_wait(device, 60000000), DOORBELL_OK);
    EXPECT(doorbell_close(device), DOORBELL_OK);
  }
  printf("%s: %d failures\n", name, failures);
  return failures ? 1 : 0;
}
