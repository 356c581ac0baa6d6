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
  int iterations = 30;  // most k-means iterations, as VecInfer (sec. 5)
  // A unit with more sub-vectors than both limits is trained on a sample of the larger limit.
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
  DType dtype = DType::f16;                  // type of the entries
  const FloatTensor* calibration = nullptr;  // in the domain that is quantized; finite
  TrainOptions options;
};

// Error(bad_input) that begins with `name` where a codebook would have fewer sub-vectors of such a
// tensor than entries, or as of unit_map(). The tensor's data is not looked at.
void require_trainable(const VqFormat& format, const FloatTensor& sizes, const std::string& name);

// The largest magnitude that is trained on, whose square is a float.
inline constexpr float kMostMagnitude = 0x1p60f;

// The bits of an entry; Error(bad_input) that begins with `name` if it is beyond the type.
std::uint16_t entry_bits(float entry, DType dtype, const std::string& name);

// 1 where all are zero: what values are divided by.
float root_mean_square(std::span<const float> values);

// Trains stage 0 on the sub-vectors and stage s on the rounded residual of stage s-1, divided by
// stage scales (RMS, or for int8 so that the largest entry is 127) if any; of lattices only the
// scales. Independent of the thread count. Error(bad_input) on untrainable data or formats.
Codebooks train_codebooks(const TrainRequest& request);

// train_codebooks() from the units' sub-vectors in `books`, all of which are used and which end as
// the last stage's input. The decoder must be table; scope and `calibration` are ignored.
Codebooks train_books(VectorBooks& books, const TrainRequest& request);

}  // namespace vqgen
