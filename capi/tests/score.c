// Scores tokens under weights: score IMAGE TOKEN... The first half of them is of one handle and the rest of another one of the same weights. Prints
// the log-probabilities, one a line.
#include <stdio.h>
#include <stdlib.h>

#include "doorbell.h"

#define MOST 64

static int checked(int result) {
  if (result != DOORBELL_OK) printf("%s: %s\n", doorbell_result_name(result), doorbell_error_text());
  return result;
}

int main(int argc, char **argv) {
  size_t count = (size_t)argc - 2;
  if (argc < 3 || count > MOST) return 2;
  struct doorbell_span spans[2] = {{NULL, count / 2}, {NULL, count}};
  uint32_t tokens[MOST];
  int32_t logps[MOST];
  for (size_t k = 0; k < count; k++) tokens[k] = (uint32_t)strtoul(argv[k + 2], NULL, 10);
  for (size_t k = 0; k < 2; k++)
    if (checked(doorbell_weights_open(argv[1], &spans[k].weights))) return 1;
  if (checked(doorbell_score(spans, 2, 1.0, tokens, count, logps))) return 1;
  for (size_t k = 0; k < count; k++) printf("%d\n", (int)logps[k]);
  // A handle of weights is none of a device, and the other way round.
  if (doorbell_close((doorbell_device *)spans[0].weights) != DOORBELL_BAD_HANDLE) return 3;
  for (size_t k = 0; k < 2; k++)
    if (checked(doorbell_weights_close(spans[k].weights))) return 1;
  if (doorbell_score(spans, 2, 1.0, tokens, count, logps) != DOORBELL_BAD_HANDLE) return 4;
  return 0;
}
