// The checker of a puzzle in a browser: one run, of the state that an argument names (+state=N). What it prints is its answer.
#include <memory>

#include <verilated.h>

#include "Vbench.h"

// $finish ends the run, and prints nothing of its own.
void vl_finish(const char *, int, const char *) VL_MT_UNSAFE { Verilated::threadContextp()->gotFinish(true); }

int main(int argc, char **argv) {
  const auto context = std::make_unique<VerilatedContext>();
  context->commandArgs(argc, argv);
  const auto bench = std::make_unique<Vbench>(context.get());
  while (!context->gotFinish()) {
    bench->eval();
    if (!bench->eventsPending()) {
      break;
    }
    context->time(bench->nextTimeSlot());
  }
  bench->final();
}
