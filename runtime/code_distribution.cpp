#include "runtime/code_distribution.h"

#include <fmt/format.h>

#include "core/access/access_counts.h"
#include "core/files/digest.h"
#include "core/files/files.h"
#include "core/plan/tuned_row.h"
#include "quantizer/access_counts.h"
#include "quantizer/bundle.h"

namespace vqgen {
namespace {

CodeDistribution zipf(const std::string& text) {
  const std::optional<double> skew = zipf_skew(text == "zipf" ? "zipf:1" : text);
  if (!skew) {
    throw Error(ErrorKind::bad_input,
                fmt::format("codes '{}': S of zipf:S must be a number above 0 and at most {}", text,
                            kMostSkew));
  }
  return {.name = fmt::format("zipf:{}", *skew), .pattern = CodePattern::zipf, .skew = *skew};
}

CodeDistribution captured(const std::string& file) {
  CodeDistribution codes{.pattern = CodePattern::captured, .source = file};
  std::string text;
  if (file.ends_with(".json")) {
    text = read_text(file, kMostProfileBytes);
    codes.profiles = read_access_counts(parse_json(text, file), file);
  } else {
    codes.profiles = profile_bundle(read_bundle(std::filesystem::path(file)));
    text = access_counts_text(codes.profiles);
  }
  codes.name = captured_name(text);
  return codes;
}

}  // namespace

std::string captured_name(std::string_view text) {
  constexpr std::size_t kShownDigits = 12;
  return "profile:" + sha256_hex(std::as_bytes(std::span(text))).substr(0, kShownDigits);
}

CodeDistribution read_codes(const std::string& text) {
  if (text == "uniform") return {};
  if (text == "zipf" || text.starts_with("zipf:")) return zipf(text);
  if (!std::filesystem::exists(text)) {
    throw Error(
        ErrorKind::bad_input,
        fmt::format("codes '{}': no distribution and no file; write uniform, zipf:S, or name "
                    "a profile or a bundle",
                    text));
  }
  return captured(text);
}

HardInput hard_input(const CodeDistribution& codes, std::uint64_t seed, const Problem& problem) {
  HardInput input{.seed = seed, .codes = codes.pattern, .skew = codes.skew};
  if (codes.pattern == CodePattern::captured) {
    input.captured = match_access_counts(codes.profiles, problem, codes.source);
  }
  return input;
}

}  // namespace vqgen
