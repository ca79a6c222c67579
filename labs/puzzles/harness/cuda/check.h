// How a check of a puzzle ends.
#ifndef DOORBELL_PUZZLES_CHECK_H
#define DOORBELL_PUZZLES_CHECK_H

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace check {

__attribute__((format(printf, 1, 2))) inline std::string text(const char* format, ...) {
  char line[1024];
  va_list list;
  va_start(list, format);
  std::vsnprintf(line, sizeof line, format, list);
  va_end(list);
  return line;
}

// What is wrong, the rule that it breaks, and what shows it.
[[noreturn]] inline void still_wrong(const std::string& what, const std::string& why, const std::string& shown) {
  std::printf("STILL WRONG: %s\n%s\n\n%s\n", what.c_str(), why.c_str(), shown.c_str());
  std::fflush(stdout);
  std::_Exit(1);
}

[[noreturn]] inline void solved(const std::string& what) {
  std::printf("SOLVED: %s\n", what.c_str());
  std::fflush(stdout);
  std::_Exit(0);
}

}  // namespace check

#endif
