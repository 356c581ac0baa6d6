#include "tests/golden/choices.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "core/error.h"
#include "core/files/files.h"
#include "core/plan/plan_name.h"
#include "core/problem/config.h"
#include "core/profiles.h"
#include "heuristics/choose.h"

namespace vqgen::test {
namespace {

const std::filesystem::path kFolder = VQGEN_SOURCE_DIR "/tests/golden";

std::vector<std::string> lines_of(const std::filesystem::path& path) {
  std::istringstream text(read_text(path));
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

std::string choice(const Problem& problem, const GpuSpec& gpu) {
  try {
    return plan_name(choose(problem, gpu));
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::infeasible) throw;
    return fmt::format("refused: {}", error.what());
  }
}

}  // namespace

std::filesystem::path choices_file() { return kFolder / "choices.txt"; }

std::vector<std::string> golden_problems() { return lines_of(kFolder / "problems.jsonl"); }

Choices choices_of(const std::string& problem) {
  const Config config = read_config(parse_json(problem, "problems.jsonl"), "problems.jsonl");
  Choices choices;
  for (const std::string& gpu : gpu_names()) choices[gpu] = choice(config.problem, find_gpu(gpu));
  return choices;
}

std::string text_of(const std::string& problem, const Choices& choices) {
  std::vector<std::pair<std::string, std::string>> lines;  // GPUs and plan, by the first GPU
  for (const auto& [gpu, plan] : choices) {
    const auto same = std::find_if(lines.begin(), lines.end(),
                                   [&](const auto& line) { return line.second == plan; });
    if (same == lines.end()) {
      lines.emplace_back(gpu, plan);
    } else {
      same->first += " " + gpu;
    }
  }
  std::string text = problem + "\n";
  for (const auto& [gpus, plan] : lines) text += fmt::format("  {}: {}\n", gpus, plan);
  return text;
}

std::map<std::string, Choices> read_choices() {
  std::map<std::string, Choices> all;
  Choices* choices = nullptr;
  for (const std::string& line : lines_of(choices_file())) {
    if (line.starts_with("{")) {
      choices = &all[line];
      continue;
    }
    const std::size_t colon = line.find(": ");
    if (choices == nullptr || !line.starts_with("  ") || colon == std::string::npos) {
      throw std::runtime_error("choices.txt: neither a problem nor a plan: " + line);
    }
    std::istringstream gpus(line.substr(0, colon));
    for (std::string gpu; gpus >> gpu;) (*choices)[gpu] = line.substr(colon + 2);
  }
  return all;
}

std::string difference(const Choices& was, const Choices& is) {
  Choices both = was;
  both.insert(is.begin(), is.end());
  const auto in = [](const Choices& choices, const std::string& gpu) {
    const auto found = choices.find(gpu);
    return found == choices.end() ? std::string("nothing") : found->second;
  };
  std::map<std::pair<std::string, std::string>, std::vector<std::string>> gpus_of;
  for (const auto& [gpu, unused] : both) {
    if (in(was, gpu) != in(is, gpu)) gpus_of[{in(was, gpu), in(is, gpu)}].push_back(gpu);
  }
  std::string text;
  for (const auto& [plans, gpus] : gpus_of) {
    text +=
        fmt::format("  {}\n    - {}\n    + {}\n", fmt::join(gpus, " "), plans.first, plans.second);
  }
  return text;
}

}  // namespace vqgen::test
