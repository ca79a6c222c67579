// How a check of a puzzle ends.
#ifndef DOORBELL_PUZZLES_CHECK_H
#define DOORBELL_PUZZLES_CHECK_H

namespace check {

// Prints what is wrong, and the rule that it breaks. What shows it is printed next, by printf, and then end() is called.
__attribute__((format(printf, 2, 3))) void still_wrong(const char* why, const char* what, ...);

// Ends the check: something is wrong.
[[noreturn]] void end();

// Ends the check: nothing is wrong.
[[noreturn]] __attribute__((format(printf, 1, 2))) void solved(const char* what, ...);

}  // namespace check

#endif
