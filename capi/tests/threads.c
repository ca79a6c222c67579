// Calls every function in moments of a thread's life in which the thread-local values of the library may be gone: in the
// destructors of keys, in each of their rounds, in a thread that called nothing before, and when the program ends.
// Usage: threads DEVICE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "doorbell.h"

static pthread_key_t key;
static const char *name;
static int failures;
static int rounds;

static void expect(int line, const char *what, int found, int expected) {
  // A refusal has a text at any time.
  if (found == expected && (found == DOORBELL_OK || doorbell_error_text()[0] != 0)) return;
  printf("line %d: %s: %s instead of %s (%s)\n", line, what, doorbell_result_name(found), doorbell_result_name(expected),
         doorbell_error_text());
  failures++;
}
#define EXPECT(call, code) expect(__LINE__, #call, call, code)

// Every function, refused.
static void refused(doorbell_device *closed) {
  doorbell_device *device;
  size_t count;
  struct doorbell_hw_completion completion;
  struct doorbell_hw_desc desc;
  uint32_t token;
  int32_t logp;
  struct infer_decode decode = {.size = sizeof decode, .max_tokens = 1};
  struct doorbell_features features = {.size = sizeof features};
  memset(&desc, 0, sizeof desc);
  EXPECT(doorbell_open("nonsense", NULL, &device), DOORBELL_UNKNOWN_DEVICE);
  EXPECT(doorbell_open(name, "nonsense", &device), DOORBELL_BAD_OPTION);
  EXPECT(doorbell_close(closed), DOORBELL_BAD_HANDLE);
  EXPECT(doorbell_get_features(closed, &features), DOORBELL_BAD_HANDLE);
  EXPECT(infer_submit_decode(closed, &decode), DOORBELL_BAD_HANDLE);
  EXPECT(infer_submit_decode(closed, NULL), DOORBELL_BAD_ARGUMENT);
  EXPECT(doorbell_submit(closed, &desc, 1, &count), DOORBELL_BAD_HANDLE);
  EXPECT(infer_poll_completion(closed, &completion, 1, &count), DOORBELL_BAD_HANDLE);
  EXPECT(doorbell_wait(closed, 0), DOORBELL_BAD_HANDLE);
  EXPECT(doorbell_tokens(closed, 0, &token, 1), DOORBELL_BAD_HANDLE);
  EXPECT(doorbell_logps(closed, 0, &logp, 1), DOORBELL_BAD_HANDLE);
  EXPECT(doorbell_publish(closed, 0, 1, 0, 0, 0, &count), DOORBELL_BAD_HANDLE);
  EXPECT(doorbell_in_flight(closed, &count), DOORBELL_BAD_HANDLE);
  if (!strstr(doorbell_error_text(), "no open device")) failures++;
  if (doorbell_api_version() == 0 || !doorbell_result_name(-1)) failures++;
}

// A device used from its opening to its end.
static void used(void) {
  doorbell_device *device;
  size_t count;
  struct doorbell_hw_completion completion;
  uint32_t tokens[4];
  int32_t logp;
  struct infer_decode decode = {.size = sizeof decode, .max_tokens = 4};
  EXPECT(doorbell_open(name, NULL, &device), DOORBELL_OK);
  EXPECT(infer_submit_decode(device, &decode), DOORBELL_OK);
  EXPECT(doorbell_wait(device, 60000000), DOORBELL_OK);
  EXPECT(infer_poll_completion(device, &completion, 1, &count), DOORBELL_OK);
  if (count != 1) failures++;
  EXPECT(doorbell_tokens(device, 0, tokens, 4), DOORBELL_OK);
  EXPECT(doorbell_logps(device, 0, &logp, 1), DOORBELL_OUT_OF_BOUNDS);
  EXPECT(doorbell_wait(device, 0), DOORBELL_TIMED_OUT);
  EXPECT(doorbell_close(device), DOORBELL_OK);
  refused(device);
}

static void end(void *device) {
  rounds++;
  if (device != &key) EXPECT(doorbell_close(device), DOORBELL_OK);
  refused(device);
  used();
  // Once more, as long as the system goes on with that.
  pthread_setspecific(key, &key);
}

static void *uses_first(void *unused) {
  doorbell_device *device;
  (void)unused;
  refused(NULL);
  EXPECT(doorbell_open(name, NULL, &device), DOORBELL_OK);
  pthread_setspecific(key, device);
  return NULL;
}

static void *calls_nothing(void *unused) {
  (void)unused;
  pthread_setspecific(key, &key);
  return NULL;
}

static void at_exit(void) {
  used();
  if (failures) _Exit(1);
}

int main(int argc, char **argv) {
  void *(*threads[])(void *) = {uses_first, calls_nothing};
  if (argc != 2) return 2;
  name = argv[1];
  if (pthread_key_create(&key, end) || atexit(at_exit)) return 3;
  for (int k = 0; k < 2; k++) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, threads[k], NULL) || pthread_join(thread, NULL)) return 4;
  }
  // A call of another thread leaves no text here.
  if (doorbell_error_text()[0] != 0) failures++;
  refused(NULL);
  if (rounds < 4) return 5;
  printf("%d failures\n", failures);
  return failures != 0;
}
