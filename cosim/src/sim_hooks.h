// Forced into every C++ unit by build.rs (-include), before any Verilator header: replaces the functions with which a
// verilated model prints, stops or aborts the process.
#pragma once

#define VL_USER_FINISH
#define VL_USER_STOP
#define VL_USER_FATAL
#define VL_PRINTF doorbell_sim_printf

int doorbell_sim_printf(const char* format, ...) __attribute__((format(printf, 1, 2)));
