// How many places a call's data has on a device, so that calls that take turns on them find nothing
// of theirs in the second-level cache: each layer of a model has codes and codebooks of its own.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "core/format/quantized_tensor.h"
#include "core/json/fields.h"

namespace vqgen {

// rotated: each call reads the codebooks of another layer. warm: all calls read the same ones,
// which stay in the cache.
enum class CodebookCaching { rotated, warm };
template <>
inline constexpr auto enum_names<CodebookCaching> = std::array{"rotated", "warm"};

// What a layer owns. Codes stand for raw tokens too, codebooks for scales and smooth factors.
struct LayerBytes {
  std::int64_t codes = 0;      // that a call reads or writes
  std::int64_t stored = 0;     // that one more place of the codes takes
  std::int64_t codebooks = 0;  // all of them
  int turns = 1;  // of grouped products: calls until each expert has had rows; codes and codebooks
                  // are what one of them reads
};

// Layer l is on place l % codes of the codes and l % codebooks of the codebooks. Call i of a timing
// is of layer i / turns, and of grouped products in turn i % turns, in which other experts have
// rows.
struct Rotation {
  int codes = 1;
  int codebooks = 1;
  int calls = 1;  // that a replay times
  int turns = 1;

  // After so many calls places repeat.
  int places() const { return std::max(codes, codebooks) * turns; }
};

// Between two calls on one place others touch three times `l2_bytes`: of codes alone, and of codes
// and codebooks together. Codebooks have two places at least, since they are read until a call
// ends. Places of codes are a multiple of those of codebooks, and calls of both: the next replay
// begins where one ends. Bounds, and what holds beyond them:
//
// - kMostPlaces, or a few more, which a graph of that many launches sets: where three caches hold
//   more layers than that, data may stay in the cache. Such a call takes hardly longer than an
//   empty one.
// - Codes of three caches have one place: a call leaves nothing of their beginning.
// - kMostStored bytes of codes, which kv_append would pass, since a call writes few of its rows:
//   these then share places.
inline constexpr int kMostPlaces = 4096;
inline constexpr std::int64_t kMostStored = std::int64_t{1} << 30;
Rotation rotation_of(const LayerBytes& layer, std::int64_t l2_bytes);

// The offsets of experts' rows in a turn, of as many rows in all: turn 0 has the data's own, and in
// turn t others have the rows of those that have some, as far as there are such.
std::vector<std::int32_t> offsets_of_turn(const LinearData& data, int turn);

}  // namespace vqgen
