// The oldest architecture that kernels run on.
#pragma once

#include <string>
#include <string_view>

namespace vqgen {

// Tensor-core products m16n8k8 of f16 require it (PTX ISA, mma).
inline constexpr int kLeastArch = 75;

// Why no kernel runs on it, with the remedy; empty where kernels do, and of what is malformed.
std::string unsupported_arch(std::string_view arch);

}  // namespace vqgen
