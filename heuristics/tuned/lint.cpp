#include "heuristics/tuned/lint.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>

#include "core/profiles.h"
#include "heuristics/check.h"

namespace vqgen {
namespace {

// The device class that a file's name stands for; empty where it stands for none.
std::string class_named(const std::string& name) {
  const std::string stem = std::filesystem::path(name).stem().string();
  const std::vector<std::string> known = gpu_names();
  if (std::find(known.begin(), known.end(), stem) == known.end()) return "";
  return find_gpu(stem).name;
}

class RowLint {
 public:
  RowLint(const TunedRow& row, std::string where, std::vector<LintFinding>& findings)
      : row_(row), where_(std::move(where)), findings_(findings) {}

  void figures(double (*tolerance)(DType)) {
    if (row_.noise == 0) say("noise of 0: nothing was repeated");
    if (row_.noise > kMostNoise) {
      say("noise of {:.0f} % is more than {:.0f} %", 100 * row_.noise, 100 * kMostNoise);
    }
    slower_than("the default plan", row_.default_us);
    slower_than("the runner-up", row_.runner_up_us);
    const DType dtype = std::visit([](const auto& op) { return op.dtype; }, row_.problem);
    if (row_.rel_err > tolerance(dtype)) {
      say("rel_err {:.1e} is more than the {:.0e} allowed in {}", row_.rel_err, tolerance(dtype),
          enum_name(dtype));
    }
  }

  void circumstances(const std::string& wanted_class) {
    if (!wanted_class.empty() && row_.gpu != wanted_class) {
      say("device class '{}' in the file of '{}'", row_.gpu, wanted_class);
    }
    const TuneEnvironment& world = row_.environment;
    for (const auto& [name, value] : {std::pair("device", &world.device),
                                      {"driver", &world.driver},
                                      {"compiler", &world.compiler},
                                      {"vqgen", &world.vqgen}}) {
      if (value->empty()) say("the environment's {} is empty", name);
    }
    if (world.device == "replay") say("times of a recording, which no device was asked for");
    const MeasurePolicy& policy = row_.policy;
    if (!names_codes(policy.codes)) {
      say("codes '{}' are none of uniform, zipf:S with S up to {} and profile:DIGEST", policy.codes,
          kMostSkew);
    }
    if (!policy.of_gpu()) {
      say("timed by '{}', which says nothing of a GPU", policy.timer);
    }
    if (policy.of_gpu() && policy.l2 != kL2Cold && policy.l2 != kL2CodesCold) {
      say("policy l2 '{}' is neither {} nor {}, as GPUs are timed", policy.l2, kL2Cold,
          kL2CodesCold);
    }
    if (policy.rounds < 1) say("{} rounds of finals", policy.rounds);
  }

  void plans(const std::optional<GpuSpec>& gpu) {
    if (!gpu) {
      say("no GPU profile is of device class '{}', so that its plans cannot be checked", row_.gpu);
      return;
    }
    judge("the winner", row_.plan, *gpu);
    judge("the default plan", row_.default_plan, *gpu);
    judge("the runner-up", row_.runner_up, *gpu);
  }

 private:
  template <class... Args>
  void say(fmt::format_string<Args...> text, Args&&... args) {
    findings_.push_back({where_, fmt::format(text, std::forward<Args>(args)...)});
  }
  // The winner was found by rounds in pairs; medians of all rounds may differ by as much again.
  void slower_than(const char* what, double us) {
    if (row_.time_us <= us * (1 + 2 * row_.noise)) return;
    say("the winner, {:.2f} us, is slower than {}, {:.2f} us, by more than the noise", row_.time_us,
        what, us);
  }
  void judge(const char* what, const Plan& plan, const GpuSpec& gpu) {
    const Verdict verdict = check(plan, row_.problem, gpu);
    if (!verdict.ok) say("{} cannot run: {}", what, verdict.reason);
  }

  const TunedRow& row_;
  std::string where_;
  std::vector<LintFinding>& findings_;
};

}  // namespace

std::vector<LintFinding> lint(const TunedTable& table, const std::string& name,
                              double (*tolerance)(DType)) {
  std::vector<LintFinding> findings;
  std::map<std::string, std::optional<GpuSpec>> gpus;
  const std::string wanted_class = class_named(name);
  for (std::size_t i = 0; i < table.rows.size(); ++i) {
    const TunedRow& row = table.rows[i];
    const auto [gpu, fresh] = gpus.try_emplace(row.gpu);
    if (fresh) gpu->second = gpu_of_class(row.gpu);
    RowLint each(row, fmt::format("{}:{}", name, i + 2), findings);
    each.figures(tolerance);
    each.circumstances(wanted_class);
    each.plans(gpu->second);
  }
  return findings;
}

}  // namespace vqgen
