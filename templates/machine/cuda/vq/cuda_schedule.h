// Where loads stand among other instructions, as far as ptxas lets a program say so.
#pragma once

#include <vq/types.h>

namespace vq {

// ptxas sinks loads to their first use, where they are waited for, but not past this.
VQ_DEVICE void loads_first() { __syncwarp(); }
// 0, known once `word` is loaded: what an address has it added for is not loaded before. ptxas
// counts loads on their way by six counters, and waits for all loads of one.
VQ_DEVICE u32 zero_behind(u32 word) {
  u32 zero;
  asm volatile(
      "{\n"
      ".reg .u32 none;\n"
      "mov.u32 none, %%nctaid.x;\n"
      "shr.u32 none, none, 31;\n"  // ptxas does not know that it is 0
      "and.b32 %0, %1, none;\n"
      "}"
      : "=r"(zero)
      : "r"(word));
  return zero;
}

}  // namespace vq
