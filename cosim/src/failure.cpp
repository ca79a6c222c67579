#include "failure.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <utility>

#include "verilated.h"

namespace doorbell {
namespace {

thread_local ModelLog* active_log = nullptr;

// A model that prints for ever must not eat the memory; what comes first matters.
constexpr std::size_t kMaxLog = 1 << 20;

void append(const char* text) {
    if (active_log == nullptr) {
        std::fputs(text, stderr);
    } else if (active_log->text.size() < kMaxLog) {
        active_log->text += text;
    }
}

}  // namespace

void fail_memory(const char* rule, std::string message) {
    throw SimulationError{FailureKind::Memory, rule, std::move(message)};
}

SimulationError ModelLog::assertion() const {
    // Verilator prints "[time] %Error: file:line: Assertion failed in scope: text" ("%Fatal:" in later versions).
    const char* const marker = "Assertion failed in ";
    const std::size_t found = std::min(text.find(marker), text.size());
    const std::size_t start = found == 0 ? 0 : text.rfind('\n', found - 1) + 1;
    std::string line = text.substr(start, text.find('\n', start) - start);
    std::string where;
    const std::size_t severity = line.find('%');
    const std::size_t place = severity == std::string::npos ? severity : line.find(": ", severity);
    const std::size_t scope = line.find(marker);
    if (place != std::string::npos && scope != std::string::npos && place + 2 < scope) {
        where = line.substr(place + 2, scope - place - 4);
        const std::size_t colon = line.find(": ", scope);
        const std::size_t name = scope + std::char_traits<char>::length(marker);
        where += " in " + line.substr(name, colon - name);
        line = colon == std::string::npos ? std::string{} : line.substr(colon + 2);
    }
    std::size_t digits = 1;
    while (digits < line.size() && line[digits] >= '0' && line[digits] <= '9') ++digits;
    std::string rule;
    if (line.size() > 1 && line[0] == 'R' && digits > 1) {
        rule = line.substr(0, digits);
        const std::size_t rest = line.find_first_not_of(" :", digits);
        line = rest == std::string::npos ? std::string{} : line.substr(rest);
    }
    if (line.empty()) line = "assertion failed";
    if (!where.empty()) line += " (" + where + ")";
    return SimulationError{FailureKind::Assertion, std::move(rule), std::move(line)};
}

ActiveLog::ActiveLog(ModelLog& log) : previous_{std::exchange(active_log, &log)} {}
ActiveLog::~ActiveLog() { active_log = previous_; }

}  // namespace doorbell

int doorbell_sim_printf(const char* format, ...) {
    char buffer[4096];
    va_list arguments;
    va_start(arguments, format);
    const int length = std::vsnprintf(buffer, sizeof buffer, format, arguments);
    va_end(arguments);
    doorbell::append(buffer);
    return length;
}

// $error, $fatal, $stop and failed assertions: the evaluation goes on to its end, then the clock loop throws.
void vl_stop(const char*, int, const char*) VL_MT_UNSAFE {
    if (doorbell::active_log != nullptr) doorbell::active_log->stopped = true;
}

// The same where the evaluation does not go on.
void doorbell_stop() {
    if (doorbell::active_log != nullptr) throw doorbell::active_log->assertion();
    vl_fatal("", 0, "", "assertion failed");
    __builtin_unreachable();
}

void vl_finish(const char* file, int line, const char* scope) VL_MT_UNSAFE {
    doorbell::append("$finish");
    vl_stop(file, line, scope);
}

// Errors of the simulator itself (no convergence, a bad context). It must not return: the caller would loop for ever.
void vl_fatal(const char* file, int line, const char*, const char* message) VL_MT_UNSAFE {
    std::string place = file != nullptr && file[0] != '\0' ? std::string{file} + ":" + std::to_string(line) + ": " : "";
    throw doorbell::SimulationError{doorbell::FailureKind::Simulator, "", place + message};
}
