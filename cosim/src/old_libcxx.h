// Forced into the bridge's units by build.rs for emscripten, before cxx's header. The libc++ of emscripten 3.1 takes an iterator for
// contiguous only if it names an element type, which that of rust::Slice does not: so there it is one of random access, as in C++17.
#pragma once

#include <algorithm>
#include <array>
#include <iterator>
#include <memory>
#include <ranges>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#if defined(_LIBCPP_VERSION) && _LIBCPP_VERSION < 15000
#define contiguous_iterator_tag random_access_iterator_tag
#define contiguous_iterator random_access_iterator
#define contiguous_range random_access_range
#endif
