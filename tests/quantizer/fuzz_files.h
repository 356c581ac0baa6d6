// Mutates valid files and requires that the readers either accept the result or throw vqgen::Error
// of one line. An input depends only on the seed and its number.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"

namespace vqgen {

inline constexpr std::uint64_t kFuzzSeed = 20240607;

class Mutator {
 public:
  Mutator(std::uint64_t seed, const std::vector<std::string>& corpus)
      : random_(seed), corpus_(corpus) {}

  std::size_t below(std::size_t bound) { return bound == 0 ? 0 : random_() % bound; }

  // Makes one to four changes to `text`.
  std::string mutate(std::string text) {
    for (std::size_t left = 1 + below(4); left > 0; --left) change(text);
    return text;
  }

 private:
  void change(std::string& text) {
    const std::size_t place = below(text.size() + 1);
    const std::size_t end = place + below(std::min<std::size_t>(text.size() - place, 64) + 1);
    switch (below(7)) {
      case 0:  // flip a bit
        if (place < text.size()) {
          text[place] = static_cast<char>(text[place] ^ (1 << below(8)));
        }
        break;
      case 1:  // any byte
        if (place < text.size()) text[place] = static_cast<char>(below(256));
        break;
      case 2:
        text.resize(place);
        break;  // cut
      case 3:
        text.erase(place, end - place);
        break;  // drop a part
      case 4:
        text.insert(place, text, place, end - place);
        break;   // repeat a part
      case 5: {  // splice in a part of another file
        const std::string& other = corpus_[below(corpus_.size())];
        text.insert(place, other, below(other.size()), below(200));
        break;
      }
      default:
        number(text, place);
        break;
    }
  }

  // Replaces the digits at or after `place` by a number that is hard for readers.
  void number(std::string& text, std::size_t place) {
    static constexpr const char* kNumbers[] = {
        "0",   "-1",        "4294967296",       "1e999", "-0.0", "18446744073709551615",
        "2.5", "999999999", "9007199254740993", "65537", "true", "9223372036854775808"};
    const std::size_t first = text.find_first_of("0123456789", place);
    if (first == std::string::npos) return;
    const std::size_t last = text.find_first_not_of("0123456789", first);
    const std::size_t length = (last == std::string::npos ? text.size() : last) - first;
    text.replace(first, length, kNumbers[below(std::size(kNumbers))]);
  }

  std::mt19937_64 random_;
  const std::vector<std::string>& corpus_;
};

inline std::chrono::duration<double> fuzz_duration() {
  const char* seconds = std::getenv("VQGEN_FUZZ_SECONDS");
  return std::chrono::duration<double>(seconds != nullptr ? std::atof(seconds) : 5.0);
}

// Feeds `read(mutator, base)` for the set time; `read` mutates corpus[base] and reads the result.
template <class Read>
void fuzz(const std::string& name, const std::vector<std::string>& corpus, const Read& read) {
  std::size_t inputs = 0;
  std::size_t accepted = 0;
  const auto begin = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - begin < fuzz_duration()) {
    Mutator mutator(kFuzzSeed + inputs, corpus);
    try {
      read(mutator, mutator.below(corpus.size()));
      ++accepted;
    } catch (const Error& error) {  // is right, if it is one line
      if (std::string_view(error.what()).find('\n') != std::string_view::npos) {
        FAIL() << name << ": seed " << kFuzzSeed << ", input " << inputs << ": " << error.what();
      }
    } catch (const std::exception& error) {
      FAIL() << name << ": seed " << kFuzzSeed << ", input " << inputs << ": " << error.what();
    }
    ++inputs;
  }
  std::cout << fmt::format("{}: seed {}, {} inputs, {} accepted ({:.1f} %)\n", name, kFuzzSeed,
                           inputs, accepted,
                           100.0 * static_cast<double>(accepted) / static_cast<double>(inputs));
  EXPECT_GT(inputs, 0u);
  EXPECT_GT(accepted, 0u);
}

}  // namespace vqgen
