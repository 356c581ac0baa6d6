// How many places a call's data has on a device, so that calls that rotate through them find
// nothing of theirs in L2: each layer of a model has codes and codebooks of its own.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "core/format/quantized_tensor.h"
#include "core/json/fields.h"

namespace vqgen {

// rotated: each call reads the codebooks of another layer. warm: all calls read the same ones,
// which stay in L2.
enum class CodebookCaching { rotated, warm };
template <>
inline constexpr auto enum_names<CodebookCaching> = std::array{"rotated", "warm"};

// The bytes of a layer. Codes include raw tokens, codebooks include scales and smooth factors.
struct LayerBytes {
  std::int64_t codes = 0;      // read or written by a call
  std::int64_t stored = 0;     // taken by one more place of the codes
  std::int64_t codebooks = 0;  // all codebooks
  int turns = 1;  // grouped GEMMs: calls until each expert has had rows; codes and codebooks
                  // are what one of the calls reads
};

// Layer l uses place l % codes of the codes and l % codebooks of the codebooks. Call i of a timing
// belongs to layer i / turns; a grouped GEMM is in turn i % turns, in which other experts have
// rows.
struct Rotation {
  int codes = 1;
  int codebooks = 1;
  int calls = 1;  // timed by one replay
  int turns = 1;

  // After so many calls places repeat.
  int places() const { return std::max(codes, codebooks) * turns; }
};

// Between two calls on one place, other calls touch three times `l2_bytes`, in codes alone and in
// codes and codebooks together; codes of three L2 caches need one place. Codebooks have at least
// two places. Numbers of places and calls divide each other, so that replays continue seamlessly.
inline constexpr int kMostPlaces = 4096;  // bounds the graph; beyond it, data may stay in L2
// Beyond so many bytes of codes, layers share places (kv_append, which writes few rows).
inline constexpr std::int64_t kMostStored = std::int64_t{1} << 30;
Rotation rotation_of(const LayerBytes& layer, std::int64_t l2_bytes);

// The offsets of experts' rows in a turn, with as many rows in total. Turn 0 has the data's own; in
// turn t the rows go to other experts, as far as there are any.
std::vector<std::int32_t> offsets_of_turn(const LinearData& data, int turn);

}  // namespace vqgen
