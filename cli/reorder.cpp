// vqgen reorder: a bundle whose entries are numbered hot-first.

#include "cli/command.h"
#include "core/access/access_counts_summary.h"
#include "quantizer/access_counts.h"

namespace vqgen::cli {
namespace {

struct ReorderArguments {
  std::string data, out, profile;
};

void reorder_bundle(const ReorderArguments& options, Output& output) {
  require_place("reorder", "--out", options.out);
  output.step("reordering {}", options.data);
  Bundle bundle = read_bundle(std::filesystem::path(options.data));
  const std::vector<AccessCounts> before = profile_bundle(bundle, 1);
  if (before.empty()) {
    throw Error(ErrorKind::bad_input, options.data + ": holds no items; quantize again");
  }
  reorder(bundle, options.profile.empty()
                      ? before
                      : read_access_counts(std::filesystem::path(options.profile)));
  const std::vector<AccessCounts> after = profile_bundle(bundle, 1);
  write_bundle(options.out, bundle);
  output.document = {{"data", options.data}, {"out", options.out}, {"tensors", Json::array()}};
  for (std::size_t i = 0; i < before.size(); ++i) {
    const AccessCounts& profile = before[i];
    const int boundary = profile.entries / 4;
    const double was = share_below(profile, boundary, Numbering::current);
    const double now = share_below(after[i], boundary, Numbering::current);
    output.line("{}  {}  the first {} of {} entries took {:.1f} % of the accesses, now {:.1f} %",
                one_line(profile.name()), short_name(profile.format), boundary, profile.entries,
                100 * was, 100 * now);
    output.document["tensors"].push_back({{"item", profile.item},
                                          {"operand", enum_name(profile.operand)},
                                          {"format", short_name(profile.format)},
                                          {"boundary", boundary},
                                          {"share_below_before", was},
                                          {"share_below_after", now}});
  }
  output.line("wrote {}", options.out);
}

}  // namespace

void add_reorder(CLI::App& app, Output& output) {
  const auto [command, options] = add_command<ReorderArguments>(
      app, output, "reorder",
      "Number a bundle's entries by how often they are read; results stay bit-equal",
      reorder_bundle);
  add_examples(
      *command, "vqgen reorder --data out/cache --out out/hot-first",
      "vqgen reorder --data out/cache --out out/hot-first --access-counts out/counts.json");
  command->add_option("--data", options->data, "A bundle of vqgen quantize")->required();
  command->add_option("--out", options->out, "The bundle to write; may be the same")->required();
  command->add_option("--access-counts", options->profile,
                      "Access counts of other data with the same codebooks [the bundle's own]");
}

}  // namespace vqgen::cli
