#include "core/access/access_counts.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <numeric>
#include <set>

#include "core/access/takes_access_counts.h"
#include "core/error.h"
#include "core/files/files.h"
#include "core/json/format_version.h"

namespace vqgen {
namespace {

constexpr int kSchema = 1;
constexpr std::uint64_t kMostFileBytes = std::uint64_t{1} << 28;

struct AccessCountsFile {
  int schema = kSchema;
  std::vector<AccessCounts> profiles;

  static constexpr auto fields() {
    using F = AccessCountsFile;
    return std::make_tuple(
        field("schema", &F::schema, optional_in(1, kSchema), "version of the file's format"),
        field("profiles", &F::profiles, required(), "one a tensor"));
  }
};

class Validator {
 public:
  Validator(const AccessCounts& profile, const std::string& where)
      : profile_(profile), parts_(profile.parts), where_(where) {}

  void run() const {
    const VqFormat& format = profile_.format;
    agree("/num_codebooks", profile_.num_codebooks, format.num_codebooks);
    agree("/entries", profile_.entries, format.entries());
    if (format.scope == Scope::tensor) agree("/units", profile_.units, 1);
    const auto entries = static_cast<std::size_t>(profile_.entries);
    const std::size_t codebooks = profile_.codebooks();
    // Division avoids overflow with numbers from outside.
    const auto stages = static_cast<std::size_t>(profile_.num_codebooks);
    const bool fits = profile_.counts.size() % entries == 0 && codebooks % stages == 0 &&
                      codebooks / stages == static_cast<std::size_t>(profile_.units);
    if (!fits) {
      fail("/counts", fmt::format("{} numbers are not {} units of {} stages of {} entries",
                                  profile_.counts.size(), profile_.units, stages, entries));
    }
    sum("/counts", profile_.counts);
    sizes(codebooks);
    for (std::size_t codebook = 0; codebook < codebooks; ++codebook) {
      sums(codebook);
      ranks(codebook);
    }
  }

 private:
  [[noreturn]] void fail(const char* path, const std::string& problem) const {
    throw Error(ErrorKind::bad_input,
                fmt::format("{}{}: {}; count its accesses again", where_, path, problem));
  }
  void agree(const char* path, std::int64_t given, std::int64_t should) const {
    if (given != should) fail(path, fmt::format("is {} where the format has {}", given, should));
  }
  void size(const char* path, std::size_t given, std::size_t should) const {
    if (given != should) fail(path, fmt::format("holds {} numbers where {} belong", given, should));
  }

  std::int64_t sum(const char* path, std::span<const std::int64_t> counts) const {
    std::int64_t total = 0;
    for (const std::int64_t count : counts) {
      if (count < 0 || count > kMostAccesses - total) {
        fail(path, fmt::format("accesses must be 0 or more and at most {} in all", kMostAccesses));
      }
      total += count;
    }
    return total;
  }

  void sizes(std::size_t codebooks) const {
    if (parts_.number < 1 || parts_.number > 1024) {
      fail("/parts/number", fmt::format("is {}, not 1 to 1024", parts_.number));
    }
    if (parts_.hot < 1 || parts_.hot > profile_.entries ||
        !std::has_single_bit(static_cast<unsigned>(parts_.hot))) {
      fail("/parts/hot",
           fmt::format("is {}, no power of two up to {}", parts_.hot, profile_.entries));
    }
    const std::size_t rows = codebooks * static_cast<std::size_t>(parts_.number);
    size("/parts/accesses", parts_.accesses.size(), rows);
    size("/parts/counts", parts_.counts.size(), rows * hot());
    size("/parts/common", parts_.common.size(), rows * levels());
  }

  // Sums over the parts of a codebook.
  void sums(std::size_t codebook) const {
    const auto number = static_cast<std::size_t>(parts_.number);
    const auto accesses = std::span(parts_.accesses).subspan(codebook * number, number);
    if (sum("/parts/accesses", accesses) != sum("/counts", profile_.codebook(codebook))) {
      fail("/parts/accesses", fmt::format("the parts of codebook {} are not its whole", codebook));
    }
    for (std::size_t part = 0; part < number; ++part) {
      const std::size_t row = codebook * number + part;
      if (sum("/parts/counts", std::span(parts_.counts).subspan(row * hot(), hot())) >
          accesses[part]) {
        fail("/parts/counts", fmt::format("part {} of codebook {} has fewer accesses than its "
                                          "hottest entries",
                                          part, codebook));
      }
      for (std::size_t k = 0; k < levels(); ++k) {
        const int common = parts_.common[row * levels() + k];
        if (common < 0 || common > 1 << k) {
          fail("/parts/common",
               fmt::format("{} entries in common where only {} are compared", common, 1 << k));
        }
      }
    }
  }

  // Entry by entry, the parts make up the whole.
  void ranks(std::size_t codebook) const {
    const std::vector<std::uint32_t> order = hot_first(profile_.codebook(codebook));
    const auto number = static_cast<std::size_t>(parts_.number);
    for (std::size_t rank = 0; rank < hot(); ++rank) {
      std::int64_t total = 0;  // sum of the checked numbers
      for (std::size_t part = 0; part < number; ++part) {
        total += parts_.counts[(codebook * number + part) * hot() + rank];
      }
      if (total != profile_.codebook(codebook)[order[rank]]) {
        fail("/parts/counts", fmt::format("the parts of entry {} of codebook {} are not its whole",
                                          order[rank], codebook));
      }
    }
  }

  std::size_t hot() const { return static_cast<std::size_t>(parts_.hot); }
  std::size_t levels() const {
    return static_cast<std::size_t>(std::bit_width(static_cast<unsigned>(parts_.hot)));
  }

  const AccessCounts& profile_;
  const AccessCountsParts& parts_;
  const std::string& where_;
};

struct Wanted {
  Operand operand;
  VqFormat format;
  std::int64_t units;
};

std::vector<Wanted> operands_of(const Problem& problem, const std::string& source) {
  if (const std::string why = why_no_access_counts(problem); !why.empty()) {
    throw Error(ErrorKind::bad_input, fmt::format("{}: {}", source, why));
  }
  const auto of_cache = [&](const auto& op) -> std::vector<Wanted> {
    const auto& shape = op.shape;
    return {{Operand::keys, op.keys, kv_units(op.keys, shape.kv_heads, shape.head_dim)},
            {Operand::values, op.values, kv_units(op.values, shape.kv_heads, shape.value_dim())}};
  };
  if (const auto* op = std::get_if<AttentionDecode>(&problem)) return of_cache(*op);
  if (const auto* op = std::get_if<KvDequantize>(&problem)) return of_cache(*op);
  const auto of_weights = [](const auto& op, std::int64_t units) -> std::vector<Wanted> {
    return {{Operand::weights, op.weights, units}};
  };
  if (const auto* op = std::get_if<WeightDequantize>(&problem)) {
    return of_weights(*op,
                      weight_units(op->weights, op->shape.out_features, op->shape.in_features));
  }
  const Linear& op = *as_linear(problem);
  return of_weights(op, weight_units(op));
}

void require_fit(const AccessCounts& profile, const Wanted& wanted, const std::string& source) {
  const std::string name = fmt::format("{}: the profile of {}", source, profile.name());
  if (without_layout(profile.format) != without_layout(wanted.format)) {
    throw Error(ErrorKind::bad_input,
                fmt::format("{} is of format {} where the config has {}; profile a bundle of the "
                            "config's format",
                            name, to_json(profile.format).dump(), to_json(wanted.format).dump()));
  }
  if (profile.units != wanted.units) {
    throw Error(ErrorKind::bad_input,
                fmt::format("{} has {} units where the config's shape has {}; profile a tensor of "
                            "that shape",
                            name, profile.units, wanted.units));
  }
}

}  // namespace

std::vector<std::uint32_t> hot_first(std::span<const std::int64_t> counts) {
  std::vector<std::uint32_t> order(counts.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return counts[a] > counts[b]; });
  return order;
}

std::string why_no_access_counts(const Problem& problem) {
  if (std::holds_alternative<KvAppend>(problem)) {
    return "kv_append compares with every entry, so access counts place none of them; remove "
           "access_counts";
  }
  if (std::holds_alternative<AttentionMerge>(problem) || as_scalar(problem) != nullptr) {
    return fmt::format("{} has no codebooks to place; remove access_counts", op_name(problem));
  }
  std::string why;
  const auto judge = [&](Operand operand, const VqFormat& format) {
    if (format.in_parts()) {
      why =
          "codebooks of keys in parts are in global memory, so access counts place none of them; "
          "remove access_counts";
    } else if (format.is_scalar() && why.empty()) {
      why = fmt::format("{} of format {} have no codebooks to place; remove access_counts",
                        enum_name(operand), short_name(format));
    }
  };
  std::visit([&](const auto& op) { for_each_operand(op, judge); }, problem);
  return why;
}

void validate(const AccessCounts& profile, const std::string& where) {
  Validator(profile, where).run();
}

std::vector<AccessCounts> read_access_counts(const std::filesystem::path& path) {
  return read_access_counts(parse_json(read_text(path, kMostFileBytes), path.string()),
                            path.string());
}

std::vector<AccessCounts> read_access_counts(const Json& json, const std::string& source) {
  const JsonCursor root(json, source);
  format_version(root, "schema", kSchema);
  AccessCountsFile file;
  read_fields(root, file);
  std::set<std::string> names;
  for (std::size_t i = 0; i < file.profiles.size(); ++i) {
    const std::string path = fmt::format("/profiles/{}", i);
    validate(file.profiles[i], fmt::format("{}: {}", source, path));
    if (!names.insert(file.profiles[i].name()).second) {
      root.at("profiles")
          .at(i)
          .fail(fmt::format("'{}' is there twice; remove one", file.profiles[i].name()));
    }
  }
  return std::move(file.profiles);
}

std::string access_counts_text(const std::vector<AccessCounts>& profiles) {
  std::string text = fmt::format("{{\"schema\": {}, \"profiles\": [", kSchema);
  for (std::size_t i = 0; i < profiles.size(); ++i) {
    text += i == 0 ? "\n" : ",\n";
    text += to_json(profiles[i]).dump();
  }
  return text + "\n]}\n";
}

std::vector<AccessCounts> match_access_counts(const std::vector<AccessCounts>& profiles,
                                              const Problem& problem, const std::string& source) {
  std::vector<AccessCounts> matched;
  for (const Wanted& wanted : operands_of(problem, source)) {
    AccessCounts all;
    int items = 0;
    std::int64_t accesses = 0;
    for (const AccessCounts& profile : profiles) {
      if (profile.operand != wanted.operand) continue;
      require_fit(profile, wanted, source);
      accesses = std::accumulate(profile.counts.begin(), profile.counts.end(), accesses);
      if (accesses > kMostAccesses) {
        throw Error(ErrorKind::bad_input,
                    fmt::format("{}: the items have more than {} accesses to {} in all; profile "
                                "fewer of them",
                                source, kMostAccesses, enum_name(wanted.operand)));
      }
      if (items++ == 0) {
        all = profile;
        all.parts = {};
        continue;
      }
      all.item = fmt::format("{} items", items);
      all.units += profile.units;
      all.counts.insert(all.counts.end(), profile.counts.begin(), profile.counts.end());
    }
    if (items == 0) {
      throw Error(
          ErrorKind::bad_input,
          fmt::format("{}: holds no profile of {}, which {} has; profile a bundle that does",
                      source, enum_name(wanted.operand), op_name(problem)));
    }
    matched.push_back(std::move(all));
  }
  return matched;
}

}  // namespace vqgen
