// Quantizes files of floats to bundles: trains on calibration tensors, encodes, reports.
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

// Tensor names may hold stars (match_pattern). The keys' pattern selects the items; in the other
// patterns, which have as many stars, each star stands for what it matched in the keys' name.
struct QuantizeKvRequest : QuantizeRequest {
  std::filesystem::path calibration;  // same tensor names; empty: train on the input
  std::string keys;                   // [kv_heads, tokens, head_dim] or [batch, ...]
  std::string values;
  std::string queries;  // [query_heads, n, head_dim]; empty: none
  VqFormat key_format;
  VqFormat value_format;  // taken through for_values()
  bool key_gain = true;   // entries of keys times their gain (gain.h)
  // For keys in parts: the format by whose mean error over all items the channels are shared out
  // (split.h), on the training data. Empty: the channels as given.
  std::optional<VqFormat> split_by = {};
};

struct QuantizeWeightsRequest : QuantizeRequest {
  std::string weights;  // [out_features, in_features]
  std::string inputs;   // [n, in_features] in the same file; empty: none.
                        // A pattern without stars serves all items
  VqFormat format;
};

// Quality of one quantized tensor, in the domain before quantization.
struct TensorReport {
  std::string name;             // "layer0.keys"
  std::string format;           // "d8b8"
  double bits_per_element = 0;  // stored codes with row padding, without codebooks
  std::int64_t codebook_bytes = 0;
  ReconstructionError calibration;
  ReconstructionError input;
  // For keys: errors of what softmax sees (centered()), and the common part's share of the input.
  struct Centered {
    ReconstructionError calibration;
    ReconstructionError input;
    double common_share = 0;
  };
  std::optional<Centered> centered = {};
};

// Above this share, errors of what softmax sees are more than twice those with the common part.
inline constexpr double kMostCommon = 0.75;

struct QuantizeResult {
  Bundle bundle;
  std::vector<TensorReport> report;
};

// Quantizes a cache; all items are checked before training, by headers, then by data. Query j of n
// is token tokens - n + j and sees all tokens up to itself (batch = n, 0 without queries).
// Error(bad_input) on bad tensors, Error(infeasible) if no kernel reads the result.
QuantizeResult quantize_kv(const QuantizeKvRequest& request);
// Quantizes weights. With format.output_scales each row is divided by its RMS, which becomes its
// scale.
QuantizeResult quantize_weights(const QuantizeWeightsRequest& request);

}  // namespace vqgen
