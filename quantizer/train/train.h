// Codebook training for each unit and residual stage: k-means, or the scale of a lattice.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "quantizer/encode.h"
#include "quantizer/train/vector_books.h"
#include "quantizer/units.h"

namespace vqgen {

struct TrainOptions {
  std::uint64_t seed = 1;
  int iterations = 30;  // of k-means at most, as VecInfer (sec. 5)
  // Of a unit with more sub-vectors than this and than max_points_per_entry an entry, a sample of
  // the larger of the two is trained on.
  std::int64_t max_points = 1 << 20;
  int max_points_per_entry = 256;
  MakeBooks make_books = make_host_books;  // where k-means runs
  // Called from the training thread with the share done (0..1) and what is being trained.
  std::function<void(double fraction, const std::string& label)> progress;
  // Called with one line where training will work but badly, such as few vectors an entry.
  std::function<void(const std::string& message)> warn;
};

struct TrainRequest {
  std::string name;  // for messages: "calibration.safetensors: layer0.k"
  VqFormat format;
  DType dtype = DType::f16;                  // of the entries
  const FloatTensor* calibration = nullptr;  // in the domain that is quantized; finite
  TrainOptions options;
};

// Error(bad_input) that begins with `name` where a codebook would have fewer sub-vectors of such a
// tensor than entries, or as of unit_map(). The tensor's data is not looked at.
void require_trainable(const VqFormat& format, const FloatTensor& sizes, const std::string& name);

// The largest magnitude that is trained on, whose square is a float.
inline constexpr float kMostMagnitude = 0x1p60f;

// 1 where all are zero: what values are divided by.
float root_mean_square(std::span<const float> values);

// Stage 0 is trained on the sub-vectors, stage s on what stage s-1, rounded to the element type,
// left of them. With format.stage_scales the vectors of a stage are first divided by their RMS,
// which becomes that stage's scale. Int8 entries are those divided by a step, which the scale
// takes, and rounded, the largest to 127; with format.common_scale that of the first stage to
// entry_peak(), and the other stages take its scale, by which the few that pass entry_peak() are
// clamped. The same request gives the same bytes whatever the number
// of threads. Error(bad_input) on empty calibration, fewer sub-vectors than entries in a unit,
// formats that the quantizer does not support, elements that are no finite numbers or beyond 2^60,
// and entries too large for the element type. What make_books throws passes through.
//
// A lattice has its table given (core/format/e8p.h); what is fitted, with format.stage_scales, is
// the scale of each stage (lattice_scale()), on a sample.
Codebooks train_codebooks(const TrainRequest& request);

// The same of the sub-vectors of each unit as they stand in `books`, which keep what the last stage
// but one left of them; all are used. The format's decoder is table, its scope is not asked.
// `calibration` is not either.
Codebooks train_books(VectorBooks& books, const TrainRequest& request);

}  // namespace vqgen
