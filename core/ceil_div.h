// Division that rounds up.
#pragma once

#include <cstdint>

namespace vqgen {

// a >= 0, b > 0. (Beside vq::ceil_div of the templates, whose i64 is another type of 64 bits.)
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace vqgen
