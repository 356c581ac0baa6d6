// How this process was built, which its kernels must follow: a sanitized library loads only into a
// sanitized program.
#pragma once

namespace vqgen::host {

#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace vqgen::host
