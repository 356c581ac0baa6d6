// From files of floats to bundles: train on calibration tensors, encode, report.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "quantizer/bundle.h"
#include "quantizer/encode.h"
#include "quantizer/train/train.h"

namespace vqgen {

struct QuantizeRequest {
  std::filesystem::path input;
  std::optional<DType> dtype;  // none: the keys' or weights' own, or f16 for F32
  bool keep_original = false;
  bool any_format = false;           // also where no kernel reads the result
  std::vector<std::string> exclude;  // tensors that are left out, by names that may hold stars
  // Called with each item as it will be, formats and sizes without data, once all are judged and
  // before the first is trained. May be empty; what it throws passes through.
  std::function<void(const BundleItem& item)> judged;
  TrainOptions options;
};

// Tensor names may hold stars (match_pattern). The keys' pattern chooses the items; in the other
// patterns each star stands for what it matched in the keys' name, so they have as many stars.
struct QuantizeKvRequest : QuantizeRequest {
  std::filesystem::path calibration;  // same tensor names; empty: train on the input
  std::string keys;                   // [kv_heads, tokens, head_dim] or [batch, ...]
  std::string values;
  std::string queries;  // [query_heads, n, head_dim]; empty: none
  VqFormat key_format;
  VqFormat value_format;  // taken through for_values()
  // Of keys in parts: the format by which the channels are shared out anew (split.h), by the mean
  // error over all items, on what is trained on. Empty: the channels are as they are given.
  std::optional<VqFormat> split_by = {};
};

struct QuantizeWeightsRequest : QuantizeRequest {
  std::string weights;  // [out_features, in_features]
  std::string inputs;   // [n, in_features] in the same file; empty: none.
                        // Without stars the same tensor serves all items
  VqFormat format;
};

// How well one tensor was quantized, in the domain before quantization.
struct TensorReport {
  std::string name;             // "layer0.keys"
  std::string format;           // "d8b8"
  double bits_per_element = 0;  // stored codes with row padding, without codebooks
  std::int64_t codebook_bytes = 0;
  ReconstructionError calibration;
  ReconstructionError input;
  // Of keys: the errors of what softmax sees (centered()), and the share of all else in the input.
  struct Centered {
    ReconstructionError calibration;
    ReconstructionError input;
    double common_share = 0;
  };
  std::optional<Centered> centered = {};
};

// Above it, errors beside what softmax sees are more than twice those that count the common part.
inline constexpr double kMostCommon = 0.75;

struct QuantizeResult {
  Bundle bundle;
  std::vector<TensorReport> report;
};

// Query j of n belongs to token tokens - n + j and attends to all tokens up to its own: one
// sequence a query, each with this cache (batch = n, keys.batch = 1). Without queries batch = 0.
// Error(bad_input) on missing tensors, types that are not read, shapes that disagree, too few
// sub-vectors, NaN or infinity, and formats that do not fit; Error(infeasible) where no kernel
// reads the result. All items are judged so before the first is trained: by the headers, then by
// the data.
QuantizeResult quantize_kv(const QuantizeKvRequest& request);
// With format.output_scales each row is first divided by its RMS, which becomes its scale.
QuantizeResult quantize_weights(const QuantizeWeightsRequest& request);

}  // namespace vqgen
