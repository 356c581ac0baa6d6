// What a launch requires of its arguments, judged without touching what they point to: presence,
// alignment, strides. No allocation, no lock, no string.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <functional>

#include "runtime/library/last_error.h"
#include "runtime/library/record.h"
#include "runtime/ops/ops.h"

namespace vqgen::library {

struct Workspace {
  void* pointer = nullptr;
  std::size_t bytes = 0;
};

// Judges arguments one after the other and keeps the first fault.
class FirstFault {
 public:
  void present(const char* name, const void* pointer, std::uintptr_t mask, bool wanted = true) {
    if (status_ != VQGEN_OK || !wanted) return;
    if (pointer == nullptr) {
      status_ =
          fail_argument(VQGEN_BAD_INPUT, name, "is null; the op's description lists what it takes");
    } else if ((reinterpret_cast<std::uintptr_t>(pointer) & mask) != 0) {
      const std::string why = fmt::format("is not aligned to {} bytes; align it", mask + 1);
      status_ = fail_argument(VQGEN_ALIGNMENT, name, why.c_str());
    }
  }
  void refuse(const char* name, const char* why) {
    if (status_ == VQGEN_OK) status_ = fail_argument(VQGEN_BAD_INPUT, name, why);
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
  // A stride that alone separates `count` things must not be 0, which would make them one.
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

// The bytes that an address must be a multiple of, as a mask.
template <class Op>
std::uintptr_t mask_of(const About<Op>& about, const Op& op, const Demands& demands) {
  switch (about.aligned) {
    case Aligned::word:
      return kWordAlignment - 1;
    case Aligned::element:
      return kElementAlignment - 1;
    case Aligned::entry:
      return kEntryAlignment - 1;
    case Aligned::access:
      break;
  }
  return about.content(op) == Content::i8 ? demands.codes_mask : demands.elements_mask;
}

// One argument of a call of `size` tokens or rows.
template <class Op, class H, class D, class S, class Args>
void examine(FirstFault& fault, const Array<Op, H, D, S>& each, const Op& op,
             const Demands& demands, const Args& args, std::int64_t size) {
  const void* const pointer = std::invoke(each.host, args);
  const About<Op>& about = each.about;
  if (is_taken(about, op)) {
    const bool empty = size == 0 && about.least == 0 && about.free_with == nullptr;
    fault.present(each.name, pointer, mask_of(about, op, demands),
                  !empty && (!about.optional || pointer != nullptr));
  } else if (about.refused != nullptr && pointer != nullptr) {
    fault.refuse(each.name, about.refused);
  }
}

template <class Op, class H, class D, class F, class P, class Args>
void examine(FirstFault& fault, const Tensor<Op, H, D, F, P>& each, const Op& op,
             const Demands& demands, const Args& args, std::int64_t) {
  fault.quantized(each.name, args.*each.host, demands.codes_mask, (op.*each.format).stage_scales);
}

template <class Op, class G, class... Arrays, class Args>
void examine(FirstFault& fault, const Parts<Op, G, Arrays...>& parts, const Op& op,
             const Demands& demands, const Args& args, std::int64_t size) {
  fault.require(args.*parts.given == parts.count(op), VQGEN_BAD_INPUT,
                "parts is not the number of the config; prepare an op of as many");
  if (size == 0) return;
  const auto list = [&](const auto& each) {
    const auto* const pointers = args.*each.host;
    fault.present(each.name, pointers, alignof(void*) - 1);
    for (int i = 0; i < parts.count(op) && fault.status() == VQGEN_OK; ++i) {
      fault.present(each.name, pointers[i], mask_of(each.about, op, demands));
    }
  };
  std::apply([&](const auto&... each) { (list(each), ...); }, parts.arrays);
}

// What an op requires of its arguments together.
void examine_together(FirstFault& fault, const AttentionDecode& op, const Demands& demands,
                      const vqgen_attention_args& args);
void examine_together(FirstFault& fault, const KvAppend& op, const Demands& demands,
                      const vqgen_append_args& args);
void examine_together(FirstFault& fault, const KvDequantize& op, const Demands& demands,
                      const vqgen_kv_dequantize_args& args);
void examine_together(FirstFault& fault, const WeightDequantize& op, const Demands& demands,
                      const vqgen_weight_dequantize_args& args);

}  // namespace vqgen::library
