#include "heuristics/fusion/exchange.h"

namespace vqgen::fusion {

Word looked_up(LinearFusion fusion, int vector_size, int lane, int number) {
  const int c = lane % 4;
  const int words = vector_size / 2;
  const int entry = number % 4 / words;
  const bool shares = fusion == LinearFusion::registers;
  const int octet = shares ? entry * words + c % words : c;
  const int entry_of_octet = shares ? c / words : entry;
  return {lane / 4 + number / 4 * 8, octet * 8 + entry_of_octet * vector_size + number % words * 2};
}

int ordered(LinearFusion fusion, int column) {
  if (fusion != LinearFusion::permute) return column;
  const int octet = column / 8;
  const int word = octet % 2 * 2 + octet / 2;
  return column % 8 / 2 * 8 + word * 2 + column % 2;
}

Word multiplied(LinearFusion fusion, int rows, int lane, int number) {
  const int octet = rows == 8 ? number / 2 : number % 2 * 2 + number / 2;
  return {lane / 4 + (rows == 8 ? number % 2 * 8 : 0), ordered(fusion, octet * 8 + lane % 4 * 2)};
}

Exchange exchange_of(LinearFusion fusion, int vector_size, int rows) {
  struct Place {
    int lane;
    int number;
  };
  std::array<std::array<Place, kColumns>, 16> places{};  // [output][column]
  const auto place_of = [&](Word word) -> Place& {
    return places.at(static_cast<std::size_t>(word.output))
        .at(static_cast<std::size_t>(word.column));
  };
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int number = 0; number < rows; ++number) {
      place_of(looked_up(fusion, vector_size, lane, number)) = {lane, number};
    }
  }
  Exchange exchange{fusion, vector_size, rows, {}, {}};
  exchange.results.resize(static_cast<std::size_t>(rows));
  for (int mask = 0; mask < kLanes; ++mask) {
    const std::size_t first = exchange.shuffles.size();
    for (int lane = 0; lane < kLanes; ++lane) {
      std::size_t next = first;  // of the shuffles that bring the lane a word
      for (int number = 0; number < rows; ++number) {
        const Place from = place_of(multiplied(fusion, rows, lane, number));
        if ((from.lane ^ lane) != mask) continue;
        int source = from.number;
        if (mask != 0) {
          if (next == exchange.shuffles.size()) exchange.shuffles.push_back({mask, {}});
          exchange.shuffles[next].sent[static_cast<std::size_t>(from.lane)] = from.number;
          source = rows + static_cast<int>(next++);
        }
        exchange.results[static_cast<std::size_t>(number)][static_cast<std::size_t>(lane)] = source;
      }
    }
  }
  return exchange;
}

}  // namespace vqgen::fusion
