// How a simulation fails: the first cause is kept and thrown, and nothing ever aborts the process.
#pragma once

#include <cstdint>
#include <exception>
#include <string>

#include "doorbell-cosim/src/bridge.rs.h"

namespace doorbell {

// Thrown through the verilated model and out of every function of a simulator; cxx makes it a Rust error.
class SimulationError final : public std::exception {
public:
    SimulationError(FailureKind kind, std::string rule, std::string message)
        : kind{kind}, rule{std::move(rule)}, message{std::move(message)} {}
    const char* what() const noexcept override { return message.c_str(); }

    FailureKind kind;
    std::string rule;
    std::string message;
};

// A check of the memory side failed: `rule` is R1 … R15 or the AXI rule.
[[noreturn]] void fail_memory(const char* rule, std::string message);

// What the running model printed and whether it stopped. One per simulator, active on a thread while that simulator
// runs there, because Verilator's callbacks name no model.
struct ModelLog {
    std::string text;
    bool stopped = false;

    // The failing assertion as an error: takes the rule from the start of its message ("R4 slot not released").
    SimulationError assertion() const;
};

class ActiveLog {
public:
    explicit ActiveLog(ModelLog& log);
    ~ActiveLog();
    ActiveLog(const ActiveLog&) = delete;
    ActiveLog& operator=(const ActiveLog&) = delete;

private:
    ModelLog* previous_;
};

}  // namespace doorbell
