// Small tensors, codebooks and bundles for the quantizer's tests.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "core/error.h"
#include "quantizer/bundle.h"
#include "quantizer/encode.h"
#include "quantizer/safetensors.h"
#include "quantizer/units.h"
#include "tests/message_of.h"

namespace vqgen::samples {

inline std::vector<float> normal_floats(std::int64_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

inline FloatTensor normal_tensor(std::int64_t batch, std::int64_t heads, std::int64_t rows,
                                 std::int64_t columns, std::uint32_t seed) {
  return {batch, heads, rows, columns, normal_floats(batch * heads * rows * columns, seed)};
}

inline std::vector<std::uint16_t> bits_of(const std::vector<float>& values, DType dtype) {
  std::vector<std::uint16_t> bits;
  for (const float value : values) bits.push_back(element_from_float(dtype, value));
  return bits;
}

// Random codebooks; stage scales fall by half from stage to stage.
inline Codebooks random_codebooks(const VqFormat& format, std::int64_t units, DType dtype,
                                  std::uint32_t seed) {
  Codebooks result{format, dtype, units, {}, {}, {}};
  const std::int64_t stages = units * format.num_codebooks;
  result.entries =
      bits_of(normal_floats(stages * format.entries() * format.vector_size, seed), dtype);
  if (format.stage_scales) {
    for (std::int64_t i = 0; i < stages; ++i) {
      result.stage_scales.push_back(1.0f / static_cast<float>(1 << (i % format.num_codebooks)));
    }
  }
  return result;
}

inline VqFormat table_format(int vector_size, int index_bits, Scope scope = Scope::tensor,
                             int num_codebooks = 1) {
  VqFormat format;
  format.vector_size = vector_size;
  format.index_bits = index_bits;
  format.scope = scope;
  format.num_codebooks = num_codebooks;
  return format;
}

inline VqFormat lattice_format(Scope scope, int num_codebooks, bool stage_scales) {
  VqFormat format = table_format(8, 16, scope, num_codebooks);
  format.decoder = Decoder::e8p;
  format.stage_scales = stage_scales;
  return format;
}

// The lattice's table for every unit and stage; stage scales fall by half from stage to stage.
inline Codebooks lattice_codebooks(const VqFormat& format, std::int64_t units, DType dtype) {
  Codebooks result = random_codebooks(format, units, dtype, 1);
  const std::vector<std::uint16_t> table = bits_of(e8p_table(), dtype);
  for (std::size_t i = 0; i < result.entries.size(); ++i) {
    result.entries[i] = table[i % table.size()];
  }
  return result;
}

// An attention item with every optional part, and a weights item with the same.
inline Bundle full_bundle(DType dtype = DType::f16) {
  AttentionData attention;
  attention.dtype = dtype;
  VqFormat keys = table_format(4, 5, Scope::head, 2);
  keys.smooth = keys.hadamard = keys.stage_scales = true;
  const VqFormat values = table_format(2, 3, Scope::channel_group);
  const FloatTensor cache = normal_tensor(1, 2, 6, 16, 1);
  attention.keys = encode(cache, random_codebooks(keys, 2, dtype, 2));
  attention.keys.smooth.assign(32, 1.5f);
  attention.values = encode(cache, random_codebooks(values, 16, dtype, 3));
  attention.batch = 3;
  attention.query_heads = 4;
  attention.queries = bits_of(normal_floats(3 * 4 * 16, 4), dtype);
  attention.lengths = {4, 0, 6};
  attention.recent_counts = {2, 0, 1};
  attention.sinks = {1, 0, 1};
  attention.max_recent_tokens = 2;
  attention.max_sinks = 1;
  attention.raw_keys = bits_of(normal_floats(2 * 3 * 16, 5), dtype);
  attention.raw_values = bits_of(normal_floats(2 * 3 * 16, 6), dtype);
  attention.original_keys = attention.original_values = bits_of(cache.data, dtype);

  LinearData gemv;
  gemv.dtype = dtype;
  VqFormat weights = table_format(4, 4, Scope::tile);
  weights.tile_rows = 5;
  weights.tile_columns = 8;
  weights.output_scales = true;
  const FloatTensor matrix = normal_tensor(1, 1, 10, 16, 7);
  gemv.weights = encode(matrix, random_codebooks(weights, 4, dtype, 8));
  gemv.weights.output_scales.assign(10, 0.5f);
  gemv.input_rows = 2;
  gemv.x = bits_of(normal_floats(2 * 16, 9), dtype);
  gemv.original_weights = bits_of(matrix.data, dtype);
  return Bundle{{{"layer0", attention}, {"blocks.0.q", gemv}}};
}

// A weights item in the lattice's format.
inline Bundle lattice_bundle(DType dtype = DType::f16) {
  LinearData gemv;
  gemv.dtype = dtype;
  const VqFormat format = lattice_format(Scope::channel_group, 2, true);
  gemv.weights = encode(normal_tensor(1, 1, 10, 16, 7), lattice_codebooks(format, 2, dtype));
  return Bundle{{{"blocks.0.q", gemv}}};
}

// Views of all tensors of a serialized file, to write it again with changes. `bytes` must outlive
// them.
inline std::vector<TensorView> views_of(const std::vector<std::byte>& bytes) {
  const SafetensorsFile file(bytes, "views");
  std::uint64_t data_bytes = 0;
  for (const TensorInfo& info : file.tensors()) data_bytes = std::max(data_bytes, info.end);
  const auto data = std::span(bytes).last(static_cast<std::size_t>(data_bytes));
  std::vector<TensorView> views;
  for (const TensorInfo& info : file.tensors()) {
    views.push_back({info.name, info.type, info.shape,
                     data.subspan(static_cast<std::size_t>(info.begin),
                                  static_cast<std::size_t>(info.end - info.begin))});
  }
  return views;
}

// A temporary directory.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "vqgen-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~TemporaryDirectory() { std::filesystem::remove_all(path_); }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

}  // namespace vqgen::samples
