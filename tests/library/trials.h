// One launch of a prepared op on hard input, judged by the double-precision reference: on the host
// and on a GPU, directly or captured.
#pragma once

#include <cmath>

#include "runtime/device_data.h"
#include "runtime/ops/attention_decode/reference.h"
#include "runtime/ops/attention_merge/reference.h"
#include "runtime/ops/kv_append/reference.h"
#include "runtime/ops/kv_dequantize/reference.h"
#include "runtime/ops/linear/reference.h"
#include "runtime/verify/compare.h"
#include "runtime/verify/hard_input.h"
#include "tests/library/fake_backend.h"
#include "tests/library/paged_cache.h"
#include "tests/library/small_configs.h"

namespace vqgen::library::test {

inline vqgen_op* prepared(vqgen_runtime* runtime, const Json& config) {
  vqgen_op* op = nullptr;
  EXPECT_EQ(vqgen_prepare(runtime, config.dump().c_str(), nullptr, &op), VQGEN_OK)
      << vqgen_last_error();
  return op;
}

// A quantized tensor on the device.
inline vqgen_quantized public_args(DeviceData& device, const QuantizedTensor& tensor) {
  return {device.input(tensor.codes), device.input(tensor.codebooks),
          device.input(tensor.stage_scales),
          tensor.batch == 1 ? 0 : tensor.heads * tensor.head_words(), tensor.head_words()};
}

// A poisoned workspace of exactly the required size: the host backend finds a byte too many.
inline DeviceBuffer make_workspace(vqgen_runtime* runtime, const vqgen_op* op, std::int64_t count) {
  Backend& backend = runtime->registry->backend();
  DeviceBuffer workspace(backend, vqgen_op_workspace_bytes_for(op, count));
  backend.upload(workspace.data(), std::vector<std::byte>(workspace.bytes(), std::byte{0xff}));
  return workspace;
}

// Attention over `tokens` tokens with an op that may have been prepared for more. `paging_seed`
// draws the pages.
class AttentionTrial {
 public:
  AttentionTrial(vqgen_runtime* runtime, AttentionDecode op, std::int64_t tokens,
                 std::uint64_t paging_seed = 1)
      : runtime_(runtime),
        backend_(runtime->registry->backend()),
        op_(resized_op(op, tokens)),
        data_(make_attention_data(op_, {.seed = static_cast<std::uint64_t>(tokens),
                                        .lengths = LengthPattern::ragged,
                                        .counts = LengthPattern::ragged,
                                        .fresh = tokens % 2 == 1})),
        device_(backend_) {
    const auto results = static_cast<std::size_t>(data_.query_rows() * op_.shape.query_heads);
    args_.query_start = device_.input(data_.query_start);
    make_masks_sound();
    args_.tree_mask = device_.input(data_.tree_masks);
    args_.new_keys = device_.input(data_.new_keys);
    args_.new_values = device_.input(data_.new_values);
    args_.struct_bytes = sizeof(args_);
    args_.tokens = tokens;
    args_.query = device_.input(data_.queries);
    args_.keys = public_args(device_, data_.keys);
    args_.values = public_args(device_, data_.values);
    read_pages(args_, pool_, data_, op_.shape.page_tokens, device_, paging_seed);
    args_.key_smooth = device_.input(data_.keys.smooth);
    args_.raw_keys = device_.input(data_.raw_keys);
    args_.raw_values = device_.input(data_.raw_values);
    args_.raw_head_stride = op_.raw_slots() * op_.shape.head_dim;
    args_.raw_batch_stride = op_.shape.kv_heads * args_.raw_head_stride;
    args_.lengths = device_.input(data_.lengths);
    args_.recent_counts = device_.input(data_.recent_counts);
    args_.sinks = device_.input(data_.sinks);
    args_.out =
        device_.output<std::uint16_t>(results * static_cast<std::size_t>(op_.shape.head_dim));
    args_.lse = device_.output<float>(results);
    device_.poison_outputs();
  }
  vqgen_status launch(const vqgen_op* op, void* stream = nullptr) {
    workspace_ = make_workspace(runtime_, op, args_.tokens);
    return relaunch(op, stream);
  }
  // Launches with the existing workspace: a capture allows no allocation and no copy.
  vqgen_status relaunch(const vqgen_op* op, void* stream) {
    return launch_in(workspace_.data(), workspace_.bytes(), op, stream);
  }
  vqgen_status launch_in(void* workspace, std::size_t bytes, const vqgen_op* op, void* stream) {
    return vqgen_attention_launch(op, &args_, workspace, bytes, stream);
  }
  void poison() { device_.poison_outputs(); }
  vqgen_attention_args& args() { return args_; }
  PageOrder order() const { return pool_.order; }
  void expect_right() const {
    const AttentionResult reference =
        reference_attention(data_, 1 / std::sqrt(static_cast<double>(op_.shape.head_dim)));
    const Comparison out = compare(reference.out, device_.fetch<std::uint16_t>(0), op_.dtype);
    EXPECT_TRUE(out.ok) << out.rel_err;
    EXPECT_TRUE(compare_lse(reference.lse, device_.fetch<float>(1), op_.dtype).ok);
    device_.require_inputs_unchanged();
  }

 private:
  // Drafts see themselves and none behind, as a launch on the host requires.
  void make_masks_sound() {
    for (std::int64_t b = 0; b < data_.batch && !data_.tree_masks.empty(); ++b) {
      const auto [first, last] = data_.query_rows(b);
      for (std::int64_t row = first; row < last; ++row) {
        const std::uint64_t own = std::uint64_t{1} << (row - first);
        auto& mask = data_.tree_masks[static_cast<std::size_t>(row)];
        mask = static_cast<std::int64_t>((static_cast<std::uint64_t>(mask) & (own - 1)) | own);
      }
    }
  }
  static AttentionDecode resized_op(AttentionDecode op, std::int64_t tokens) {
    op.shape.tokens = tokens;
    return op;
  }
  vqgen_runtime* runtime_;
  Backend& backend_;
  AttentionDecode op_;
  AttentionData data_;
  PagePool pool_;
  DeviceData device_;
  DeviceBuffer workspace_;
  vqgen_attention_args args_{};
};

// A GEMM of `rows` rows (for experts, at most as many in total), without spare room in x and y.
class LinearTrial {
 public:
  LinearTrial(vqgen_runtime* runtime, Linear op, int rows)
      : runtime_(runtime),
        backend_(runtime->registry->backend()),
        op_(std::move(op)),
        device_(backend_) {
    (op_.shape.grouped() ? op_.shape.total_rows : op_.shape.rows) = rows;
    data_ = make_linear_data(
        op_, {.seed = static_cast<std::uint64_t>(rows), .lengths = LengthPattern::ragged});
    args_.struct_bytes = sizeof(args_);
    args_.m = data_.input_rows;
    args_.expert_rows = device_.input(data_.expert_rows);
    args_.x = device_.input(data_.x);
    args_.weights = public_args(device_, data_.weights);
    args_.output_scales = device_.input(data_.weights.output_scales);
    args_.y = device_.output<std::uint16_t>(
        static_cast<std::size_t>(data_.input_rows * op_.shape.out_features));
    device_.poison_outputs();
  }
  vqgen_linear_args& args() { return args_; }
  vqgen_status launch(const vqgen_op* op, void* stream = nullptr) {
    workspace_ = make_workspace(runtime_, op, args_.m);
    return relaunch(op, stream);
  }
  vqgen_status relaunch(const vqgen_op* op, void* stream) {
    return launch_in(workspace_.data(), workspace_.bytes(), op, stream);
  }
  vqgen_status launch_in(void* workspace, std::size_t bytes, const vqgen_op* op, void* stream) {
    return vqgen_linear_launch(op, &args_, workspace, bytes, stream);
  }
  void poison() { device_.poison_outputs(); }
  void expect_right() const {
    const Comparison y =
        compare(reference_linear(data_), device_.fetch<std::uint16_t>(0), op_.dtype);
    EXPECT_TRUE(y.ok) << y.rel_err;
    device_.require_inputs_unchanged();
  }

 private:
  vqgen_runtime* runtime_;
  Backend& backend_;
  Linear op_;
  LinearData data_;
  DeviceData device_;
  DeviceBuffer workspace_;
  vqgen_linear_args args_{};
};

// New tokens for a cache with room for `tokens`, with an op that may have been prepared for more.
class AppendTrial {
 public:
  AppendTrial(KvAppend op, vqgen_runtime* runtime, std::int64_t tokens,
              std::uint64_t paging_seed = 1, LengthPattern lengths = LengthPattern::full)
      : op_(resized_op(std::move(op), tokens)),
        data_(make_append_data(op_,
                               {.seed = static_cast<std::uint64_t>(tokens), .lengths = lengths})),
        device_(runtime->registry->backend()) {
    args_.struct_bytes = sizeof(args_);
    args_.tokens = tokens;
    args_.new_keys = device_.input(data_.new_keys);
    args_.new_values = device_.input(data_.new_values);
    args_.positions = device_.input(data_.positions);
    args_.counts = device_.input(data_.counts);
    args_.keys = read(data_.keys);
    args_.values = read(data_.values);
    const auto words = [&](const auto& each) { return device_.state(each); };
    if (op_.shape.page_tokens > 0) {
      pool_ = make_pool(data_.keys, data_.values, room(), op_.shape.page_tokens, false,
                        Random(paging_seed));
      set_pages(args_, pool_, device_, words);
    } else {
      args_.keys.codes = words(data_.keys.codes);
      args_.values.codes = words(data_.values.codes);
    }
    args_.key_smooth = device_.input(data_.keys.smooth);
    args_.raw_keys = device_.state(data_.raw_keys);
    args_.raw_values = device_.state(data_.raw_values);
    args_.raw_head_stride = op_.raw_slots() * op_.shape.head_dim;
    args_.raw_batch_stride = op_.shape.kv_heads * args_.raw_head_stride;
    device_.poison_outputs();
  }
  vqgen_status launch(const vqgen_op* op, void* stream = nullptr) {
    return vqgen_append_launch(op, &args_, nullptr, 0, stream);
  }
  // The cache as it was before.
  void poison() { device_.poison_outputs(); }
  vqgen_append_args& args() { return args_; }
  PageOrder order() const { return pool_.order; }
  void expect_right() const {
    AppendResult result{device_.fetch<std::uint32_t>(0), device_.fetch<std::uint32_t>(1),
                        device_.fetch<std::uint16_t>(2), device_.fetch<std::uint16_t>(3)};
    if (op_.shape.page_tokens > 0) {
      EXPECT_TRUE(take_rows(pool_, data_.keys, data_.values, room(), result.key_codes,
                            result.value_codes, result.key_codes, result.value_codes))
          << "words of the pool that are no row's of a sequence have changed";
    }
    const AppendVerdict verdict = judge_append(data_, result);
    EXPECT_TRUE(verdict.ok) << verdict.why;
    EXPECT_GT(verdict.codes, 0);
    device_.require_inputs_unchanged();
  }

 private:
  static KvAppend resized_op(KvAppend op, std::int64_t tokens) {
    op.shape.tokens = tokens;
    return op;
  }
  // All arrays except the codes.
  vqgen_quantized read(const QuantizedTensor& tensor) {
    return {nullptr, device_.input(tensor.codebooks), device_.input(tensor.stage_scales),
            tensor.heads * tensor.head_words(), tensor.head_words()};
  }
  // The tokens for which each sequence has pages: all of its room, appended to or not.
  std::vector<std::int32_t> room() const {
    return std::vector<std::int32_t>(data_.positions.size(),
                                     static_cast<std::int32_t>(data_.keys.rows));
  }
  KvAppend op_;
  AppendData data_;
  PagePool pool_;
  DeviceData device_;
  vqgen_append_args args_{};
};

// Dequantizes the first `tokens` of a cache of the op's size.
class DequantizeTrial {
 public:
  DequantizeTrial(KvDequantize op, vqgen_runtime* runtime, std::int64_t tokens,
                  std::uint64_t paging_seed = 1)
      : op_(std::move(op)),
        data_(make_dequantize_data(
            op_, {.seed = static_cast<std::uint64_t>(tokens), .lengths = LengthPattern::ragged})),
        device_(runtime->registry->backend()) {
    const auto elements = static_cast<std::size_t>(op_.shape.batch * op_.shape.kv_heads * tokens *
                                                   op_.shape.head_dim);
    args_.struct_bytes = sizeof(args_);
    args_.tokens = tokens;
    args_.out_keys = device_.output<std::uint16_t>(elements);
    args_.out_values = device_.output<std::uint16_t>(elements);
    args_.keys = public_args(device_, data_.keys);
    args_.values = public_args(device_, data_.values);
    read_pages(args_, pool_, data_, op_.shape.page_tokens, device_, paging_seed);
    args_.key_smooth = device_.input(data_.keys.smooth);
    args_.raw_keys = device_.input(data_.raw_keys);
    args_.raw_values = device_.input(data_.raw_values);
    args_.raw_head_stride = op_.raw_slots() * op_.shape.head_dim;
    args_.raw_batch_stride = op_.shape.kv_heads * args_.raw_head_stride;
    args_.lengths = device_.input(data_.lengths);
    args_.recent_counts = device_.input(data_.recent_counts);
    args_.sinks = device_.input(data_.sinks);
    device_.poison_outputs();
  }
  vqgen_status launch(const vqgen_op* op, void* stream = nullptr) {
    return vqgen_kv_dequantize_launch(op, &args_, stream);
  }
  void poison() { device_.poison_outputs(); }
  PageOrder order() const { return pool_.order; }
  vqgen_kv_dequantize_args& args() { return args_; }
  void expect_right() const {
    const DequantizeVerdict verdict =
        judge_dequantize(data_, reference_dequantize(data_), {whole(0), whole(1)});
    EXPECT_TRUE(verdict.comparison.ok) << verdict.why;
    device_.require_inputs_unchanged();
  }

 private:
  // An output as if all rows had been dequantized: the missing ones come from the reference.
  std::vector<std::uint16_t> whole(std::size_t number) const {
    const DequantizeResult reference = reference_dequantize(data_);
    const std::vector<double>& rows = number == 0 ? reference.keys : reference.values;
    const std::vector<std::uint16_t> written = device_.fetch<std::uint16_t>(number);
    const auto dim = static_cast<std::size_t>(op_.shape.head_dim);
    const auto held = static_cast<std::size_t>(op_.shape.tokens) * dim;
    const std::size_t given = static_cast<std::size_t>(args_.tokens) * dim;
    std::vector<std::uint16_t> all(rows.size(), kUnwritten);
    for (std::size_t i = 0; i < all.size(); ++i) {
      const std::size_t head = i / held;
      const auto length = static_cast<std::size_t>(
          data_.lengths[head / static_cast<std::size_t>(op_.shape.kv_heads)]);
      if (i % held < given) {
        all[i] = written[head * given + i % held];
      } else if (i % held < length * dim) {
        all[i] = element_from_float(op_.dtype, static_cast<float>(rows[i]));
      }
    }
    return all;
  }
  KvDequantize op_;
  AttentionData data_;
  PagePool pool_;
  DeviceData device_;
  vqgen_kv_dequantize_args args_{};
};

// Merges `rows` rows of query tokens; the data decides whether in place of a part.
class MergeTrial {
 public:
  MergeTrial(AttentionMerge op, vqgen_runtime* runtime, std::int64_t rows)
      : dtype_(op.dtype), data_(data_of(op, rows)), device_(runtime->registry->backend()) {
    for (const MergePart& part : data_.parts) {
      const bool here = static_cast<int>(outs_.size()) == data_.in_place;
      outs_.push_back(here ? device_.state(part.out) : device_.input(part.out));
      lses_.push_back(here ? device_.state(part.lse) : device_.input(part.lse));
      if (!here) continue;
      args_.out = const_cast<void*>(outs_.back());
      args_.lse = const_cast<float*>(lses_.back());
    }
    if (data_.in_place < 0) {
      args_.out = device_.output<std::uint16_t>(data_.parts[0].out.size());
      args_.lse = device_.output<float>(data_.parts[0].lse.size());
    }
    args_.struct_bytes = sizeof(args_);
    args_.rows = rows;
    args_.parts = static_cast<std::int32_t>(outs_.size());
    args_.outs = outs_.data();
    args_.lses = lses_.data();
    device_.poison_outputs();
  }
  vqgen_status launch(const vqgen_op* op, void* stream = nullptr) {
    return vqgen_attention_merge_launch(op, &args_, stream);
  }
  void poison() { device_.poison_outputs(); }
  void expect_right() const {
    const AttentionResult reference = reference_merge(data_);
    EXPECT_TRUE(compare(reference.out, device_.fetch<std::uint16_t>(0), dtype_).ok);
    EXPECT_TRUE(compare_lse(reference.lse, device_.fetch<float>(1), dtype_).ok);
    device_.require_inputs_unchanged();
  }

 private:
  static MergeData data_of(AttentionMerge op, std::int64_t rows) {
    op.shape.rows = rows;
    return make_merge_data(
        op, {.seed = static_cast<std::uint64_t>(rows), .lengths = LengthPattern::ragged});
  }
  DType dtype_;
  MergeData data_;
  DeviceData device_;
  std::vector<const void*> outs_;
  std::vector<const float*> lses_;
  vqgen_merge_args args_{};
};

}  // namespace vqgen::library::test
