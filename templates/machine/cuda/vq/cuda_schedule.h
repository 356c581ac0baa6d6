// Scheduling hints to ptxas: where loads go among other instructions, and loads issued before their
// data is known to be final.
#pragma once

#include <vq/types.h>

namespace vq {

// ptxas sinks loads to their first use, where they are waited for, but not past this.
VQ_DEVICE void loads_first() { __syncwarp(); }
// Always 0, which ptxas does not know: a load whose address has it added is issued only once `word`
// has come. ptxas counts loads by six counters and waits for all loads of one.
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
// Loads what the previous launch may still write, before after_last_launch() too: returns the old
// value or the new one, so it must not affect results. It bypasses L1, which would keep the value.
VQ_DEVICE i32 load_hint(const i32* pointer) {
  i32 value;
  asm volatile("ld.relaxed.gpu.global.b32 %0, [%1];" : "=r"(value) : "l"(pointer) : "memory");
  return value;
}

}  // namespace vq
