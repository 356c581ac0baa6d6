// Where loads stand among other instructions, as far as ptxas lets a program say so, and loads that
// come before what they load is sure to stand there.
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
// Of what the last launch may still write, before after_last_launch() too: the old value or the new
// one, for what changes no result. Past L1, which would keep it.
VQ_DEVICE i32 load_hint(const i32* pointer) {
  i32 value;
  asm volatile("ld.relaxed.gpu.global.b32 %0, [%1];" : "=r"(value) : "l"(pointer) : "memory");
  return value;
}

}  // namespace vq
