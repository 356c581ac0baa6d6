// vqgen count-accesses: how often each entry of a bundle's codebooks is read, and whether the hot
// entries are hot all over the tensor.
#include <algorithm>

#include "cli/command.h"
#include "core/access/access_counts_summary.h"
#include "core/files/files.h"
#include "quantizer/access_counts.h"

namespace vqgen::cli {
namespace {

struct ProfileArguments {
  std::string data, out;
  int parts = kAccessCountsParts;
};

// "44.1", or "-" where the codebook has no more entries than that.
std::string top_percent(const AccessCountsFigures& figures, std::size_t k) {
  if (k + 1 >= figures.top_share.size()) return "-";
  return fmt::format("{:.1f}", 100 * figures.top_share[k]);
}

std::string steady_text(const AccessCountsSteadiness& steady) {
  const std::vector<double>& share = steady.share.back();
  const auto [least, most] = std::minmax_element(share.begin(), share.end());
  return fmt::format("top {} take {:.1f}-{:.1f} %, overlap {:.2f}", 1 << (steady.share.size() - 1),
                     100 * *least, 100 * *most, steady.overlap.back());
}

constexpr const char* kRow =
    "{:<{}} {:>7} {:>9} {:>10} {:>8} {:>8} {:>6} {:>6} | {:>5} {:>5} "
    "{:>5} {:>5} {:>5} | {}";

void print_table(const Output& output, const std::vector<AccessCounts>& profiles) {
  std::size_t width = 6;
  for (const AccessCounts& each : profiles) width = std::max(width, each.name().size());
  output.line(kRow, "tensor", width, "format", "codebooks", "accesses", "mean", "sigma", "hot",
              "below", "8", "16", "32", "64", "half", "from part to part");
  for (const AccessCounts& each : profiles) {
    const AccessCountsFigures total = summarise(each);
    output.line(kRow, one_line(each.name()), width, short_name(each.format), each.codebooks(),
                total.accesses, fmt::format("{:.1f}", total.mean),
                fmt::format("{:.1f}", total.sigma), fmt::format("{:.1f}", total.hot_entries),
                fmt::format("{:.1f}", 100 * total.below_mean), top_percent(total, 3),
                top_percent(total, 4), top_percent(total, 5), top_percent(total, 6),
                top_percent(total, total.top_share.size() - 2), steady_text(steadiness(each)));
  }
  output.line(
      "mean: accesses per entry; hot: entries above mean + 3 sigma; below: % of entries below the "
      "mean;");
  output.line(
      "8 to half: % of accesses that so many hottest entries take; overlap: of each part's "
      "hottest with the whole's");
}

Json tensor_json(const AccessCounts& profile) {
  const AccessCountsFigures total = summarise(profile);
  const AccessCountsSteadiness steady = steadiness(profile);
  return {{"item", profile.item},
          {"operand", enum_name(profile.operand)},
          {"format", short_name(profile.format)},
          {"codebooks", profile.codebooks()},
          {"accesses", total.accesses},
          {"mean", total.mean},
          {"sigma", total.sigma},
          {"hot_entries", total.hot_entries},
          {"below_mean", total.below_mean},
          {"top_share", total.top_share},
          {"parts", {{"share", steady.share}, {"overlap", steady.overlap}}}};
}

void profile(const ProfileArguments& options, Output& output) {
  require_place("count-accesses", "--out", options.out);
  std::error_code ignored;
  if (std::filesystem::equivalent(options.data, options.out, ignored)) {
    throw Error(ErrorKind::bad_input,
                "count-accesses: --data and --out name one file; name another");
  }
  output.step("counting {}", options.data);
  const Bundle bundle = read_bundle(std::filesystem::path(options.data));
  const std::vector<AccessCounts> profiles = profile_bundle(bundle, options.parts);
  if (profiles.empty()) {
    throw Error(ErrorKind::bad_input, options.data + ": holds no items; quantize again");
  }
  output.document = {{"data", options.data}, {"out", options.out}, {"tensors", Json::array()}};
  publish_text(options.out, access_counts_text(profiles));
  if (output.json) {
    for (const AccessCounts& each : profiles) {
      output.document["tensors"].push_back(tensor_json(each));
    }
  } else {
    print_table(output, profiles);
  }
  output.line("wrote {}", options.out);
}

}  // namespace

void add_count_accesses(CLI::App& app, Output& output) {
  const auto [command, options] = add_command<ProfileArguments>(
      app, output, "count-accesses",
      "Count how often each codebook entry of a bundle is read, and how steadily", profile);
  add_examples(*command, "vqgen count-accesses --data out/cache --out out/counts.json",
               "vqgen count-accesses --data out/weights --out out/weight-counts.json --parts 8");
  command->add_option("--data", options->data, "A bundle of vqgen quantize")->required();
  command->add_option("--out", options->out, "The access counts to write, JSON")->required();
  command->add_option("--parts", options->parts, "Parts of the rows that are compared")
      ->capture_default_str()
      ->check(whole_number(1, 1024));
}

}  // namespace vqgen::cli
