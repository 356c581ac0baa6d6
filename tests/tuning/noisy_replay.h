// A replay with noise and a clock. Noise is a function of seed, plan, round and batch, so that an
// answer depends neither on earlier questions nor on the other finalists.
#pragma once

#include <fmt/format.h>

#include <cmath>

#include "core/plan/plan_name.h"
#include "runtime/tuning/journal/replay.h"
#include "runtime/verify/random.h"

namespace vqgen {

struct NoiseOptions {
  std::uint64_t seed = 1;  // of the noise
  double sigma = 0;        // of a plan in a round, relative
  double drift = 0;        // of a round, for all its plans, relative
  double batch = 0;        // of a plan in a batch of the finals, plus that of all plans, relative
  double process = 0;      // of a plan in this process, plus that of all plans, relative
  double candidate_s = 0;  // seconds of screening one candidate
  double round_s = 0;      // seconds of a round of finals, per plan
};

class NoisyReplay : public Evaluator {
 public:
  NoisyReplay(std::vector<Measurement> recorded, const NoiseOptions& options)
      : replay_(std::move(recorded)), options_(options) {}

  std::vector<Measurement> screen(std::span<const Plan> plans) override {
    std::vector<Measurement> answers = replay_.screen(plans);
    for (Measurement& m : answers) {
      spent_s_ += options_.candidate_s;
      if (m.outcome != Outcome::timed) continue;
      m.time_us *= noise(plan_name(m.plan), 0, 0);
      m.low_us = m.high_us = m.time_us;
    }
    return answers;
  }
  std::vector<FinalTimes> finals(std::span<const Plan> plans, int rounds) override {
    std::vector<FinalTimes> all = replay_.finals(plans, rounds);
    for (std::size_t i = 0; i < plans.size(); ++i) {
      for (std::size_t r = 0; r < all[i].us.size(); ++r) {
        const int round = static_cast<int>(r);
        all[i].us[r] *= noise(plan_name(plans[i]), round + 1, batch_of(round, rounds));
        spent_s_ += options_.round_s;
      }
    }
    return all;
  }
  double spent_s() const override { return spent_s_; }

 private:
  // FNV-1a: a stream of Random for each text.
  static std::uint64_t stream_of(const std::string& text) {
    std::uint64_t hash = 0xcbf29ce484222325u;
    for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
    return hash;
  }

  double noise(const std::string& name, int round, int batch) const {
    const auto draw = [&](const std::string& text) {
      return Random(options_.seed, stream_of(text)).normal();
    };
    const auto of_all_and_each = [&](double sigma, const std::string& what) {
      return sigma == 0 ? 0 : sigma * (draw(what) + draw(what + name));
    };
    return std::exp(options_.sigma * draw(fmt::format("{} {}", round, name)) +
                    options_.drift * draw(fmt::format("{} ", round)) +
                    of_all_and_each(options_.batch, fmt::format("batch {} ", batch)) +
                    of_all_and_each(options_.process, "process "));
  }

  ReplayEvaluator replay_;
  NoiseOptions options_;
  double spent_s_ = 0;
};

}  // namespace vqgen
