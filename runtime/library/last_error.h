// How the C functions report a failure: a status, and a line that the thread keeps without a heap.
#pragma once

#include <vqgen/vqgen.h>

#include <cstdint>
#include <initializer_list>
#include <string>

#include "core/error.h"

namespace vqgen::library {

// Keeps the line, cut to what fits, with control characters made blanks; returns `status`.
vqgen_status fail(vqgen_status status, const char* message) noexcept;

// "the argument 'NAME' WHAT".
vqgen_status fail_argument(vqgen_status status, const char* name, const char* what) noexcept;

// Fails with VQGEN_RANGE: `name` is `count`, which is outside of what the op was prepared for.
vqgen_status fail_range(const char* name, std::int64_t count, std::int64_t least,
                        std::int64_t most) noexcept;

// The status of the exception in flight, whose line is kept.
vqgen_status fail_caught() noexcept;

// A text for vqgen_text_free().
char* copied(const std::string& text);

// Calls `act` and turns its exceptions into a status; a null among `wanted` is a bad argument.
template <class Act>
vqgen_status guarded(std::initializer_list<const void*> wanted, const Act& act) noexcept {
  for (const void* each : wanted) {
    if (each == nullptr) return fail(VQGEN_BAD_INPUT, "a null pointer where none may be");
  }
  try {
    return act();
  } catch (...) {
    return fail_caught();
  }
}

}  // namespace vqgen::library
