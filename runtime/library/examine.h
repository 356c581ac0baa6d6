// What a launch asks of its arguments, judged without touching what they point to: presence,
// alignment, strides. No allocation, no lock, no string.
#pragma once

#include <cstdint>

#include "runtime/alignment.h"
#include "runtime/library/last_error.h"
#include "runtime/library/record.h"

namespace vqgen::library {

struct Workspace {
  void* pointer = nullptr;
  std::size_t bytes = 0;
};

// Looks at arguments one after the other and keeps the first fault.
class FirstFault {
 public:
  void present(const char* name, const void* pointer, std::uintptr_t mask, bool wanted = true) {
    if (status_ != VQGEN_OK || !wanted) return;
    if (pointer == nullptr) {
      status_ =
          fail_argument(VQGEN_BAD_INPUT, name, "is null; the op's description lists what it takes");
    } else if ((reinterpret_cast<std::uintptr_t>(pointer) & mask) != 0) {
      status_ = fail_argument(VQGEN_ALIGNMENT, name,
                              "is not aligned as the op's description says; align it");
    }
  }
  void absent(const char* name, const void* pointer, bool wanted) {
    if (status_ != VQGEN_OK || !wanted || pointer == nullptr) return;
    status_ = fail_argument(VQGEN_BAD_INPUT, name,
                            "is given, and query_tokens of the config is 1; leave it null, or "
                            "prepare with more");
  }
  void stride(const char* name, std::int64_t count, std::uintptr_t mask, int bytes) {
    if (status_ != VQGEN_OK) return;
    if (count < 0) {
      status_ = fail_argument(VQGEN_BAD_INPUT, name, "is negative; strides are 0 or more");
    } else if ((static_cast<std::uint64_t>(count) * static_cast<unsigned>(bytes) & mask) != 0) {
      status_ = fail_argument(VQGEN_ALIGNMENT, name,
                              "is not a multiple of the alignment; pad what it spans");
    }
  }
  // Of `count` things that are told apart by it alone: 0 would be the first one for all.
  void apart(const char* name, std::int64_t stride, std::int64_t count, bool wanted = true) {
    if (status_ != VQGEN_OK || !wanted || stride != 0 || count <= 1) return;
    status_ = fail_argument(VQGEN_BAD_INPUT, name,
                            "is 0, which makes heads or sequences one; give the stride of the "
                            "memory (sequences share tokens by a block table, with page_tokens)");
  }
  void quantized(const char* name, const vqgen_quantized& each, std::uintptr_t mask, bool scales) {
    present(name, each.codes, mask);
    present(name, each.codebooks, kEntryAlignment - 1);
    present(name, each.scales, kWordAlignment - 1, scales);
    stride(name, each.batch_stride, mask, 4);
    stride(name, each.head_stride, mask, 4);
  }
  void require(bool holds, vqgen_status status, const char* message) {
    if (status_ == VQGEN_OK && !holds) status_ = fail(status, message);
  }
  void workspace(const Workspace& given, std::size_t needed) {
    if (needed == 0) return;
    require(given.pointer != nullptr && given.bytes >= needed, VQGEN_WORKSPACE,
            "the workspace is null or smaller than vqgen_op_workspace_bytes(); give as much");
    require((reinterpret_cast<std::uintptr_t>(given.pointer) & (kEntryAlignment - 1)) == 0,
            VQGEN_WORKSPACE, "the workspace is not 16-byte aligned; align it");
  }
  vqgen_status status() const { return status_; }

 private:
  vqgen_status status_ = VQGEN_OK;
};

void examine(FirstFault& fault, const AttentionShape& shape, const Demands& demands,
             const vqgen_attention_args& args);
void examine(FirstFault& fault, const AppendShape& shape, const Demands& demands,
             const vqgen_append_args& args);
void examine(FirstFault& fault, const DequantizeShape& shape, const Demands& demands,
             const vqgen_kv_dequantize_args& args);
void examine(FirstFault& fault, const MergeShape& shape, const Demands& demands,
             const vqgen_merge_args& args);

}  // namespace vqgen::library
