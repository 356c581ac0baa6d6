#include "runtime/rotation.h"

#include "core/ceil_div.h"

namespace vqgen {
namespace {

// A graph of one short call would mostly time its launch.
constexpr int kLeastCalls = 16;

std::int64_t rounded_up(std::int64_t value, std::int64_t step) {
  return ceil_div(value, step) * step;
}

// How many places of so many bytes make all but one exceed three L2 caches; at most `most`.
std::int64_t places(std::int64_t bytes, std::int64_t l2_bytes, std::int64_t most) {
  const std::int64_t each = std::max<std::int64_t>(bytes, 1);
  return std::min(ceil_div(3 * l2_bytes, each) + 1, most);
}

// The rotation of layers that are read in one turn.
Rotation of_one_turn(const LayerBytes& layer, std::int64_t l2_bytes, std::int64_t most) {
  const auto places = [&](std::int64_t bytes) { return vqgen::places(bytes, l2_bytes, most); };
  const std::int64_t together = places(layer.codes + layer.codebooks);
  if (layer.codes >= 3 * l2_bytes) return {1, static_cast<int>(together), kLeastCalls};
  const std::int64_t least = places(layer.codes);
  const std::int64_t times = least / together;
  std::int64_t codebooks = ceil_div(least, times);
  const std::int64_t wanted = rounded_up(least, codebooks);
  const std::int64_t stored = std::max<std::int64_t>(layer.stored, 1);
  std::int64_t codes = std::clamp<std::int64_t>(kMostStored / stored, 1, wanted);
  if (codes < wanted) {  // both must repeat together
    if (codes < codebooks) {
      codebooks = rounded_up(codebooks, codes);
    } else {
      codes -= codes % codebooks;
    }
  }
  return {static_cast<int>(codes), static_cast<int>(codebooks),
          static_cast<int>(rounded_up(kLeastCalls, std::max(codes, codebooks)))};
}

}  // namespace

Rotation rotation_of(const LayerBytes& layer, std::int64_t l2_bytes) {
  LayerBytes whole = layer;
  whole.codes *= layer.turns;
  whole.codebooks *= layer.turns;
  Rotation rotation = of_one_turn(whole, l2_bytes, std::max(kMostPlaces / layer.turns, 1));
  rotation.turns = layer.turns;
  rotation.calls = static_cast<int>(rounded_up(rotation.calls, rotation.places()));
  return rotation;
}

std::vector<std::int32_t> offsets_of_turn(const LinearData& data, int turn) {
  std::vector<std::size_t> order = experts_with_rows(data);
  const std::size_t touched = order.size();
  const std::size_t experts = data.expert_rows.size() - 1;
  for (std::size_t e = 0; e < experts; ++e) {
    if (data.expert_rows[e] == data.expert_rows[e + 1]) order.push_back(e);
  }
  std::vector<std::int32_t> rows(experts);
  for (std::size_t i = 0; i < touched; ++i) {
    const std::size_t from = order[i];
    const std::size_t to = order[(i + static_cast<std::size_t>(turn) * touched) % experts];
    rows[to] = data.expert_rows[from + 1] - data.expert_rows[from];
  }
  return offsets_of(rows);
}

}  // namespace vqgen
