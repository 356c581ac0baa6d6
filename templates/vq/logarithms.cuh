// Between natural logarithms, of which log-sum-exps and logits are, and the base 2 of exp2().
#pragma once

namespace vq {

inline constexpr float kLog2E = 1.44269504088896340736f;
inline constexpr float kLn2 = 0.69314718055994530942f;

}  // namespace vq
