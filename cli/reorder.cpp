// vqgen reorder: a bundle whose entries are numbered hot-first.
#include "quantizer/reorder.h"

#include "cli/command.h"
#include "core/hotness_summary.h"
#include "quantizer/hotness.h"

namespace vqgen::cli {
namespace {

struct Options {
  std::string data, out;
};

void reorder(const Options& options, Output& output) {
  require_place("reorder", "--out", options.out);
  Bundle bundle = read_bundle(std::filesystem::path(options.data));
  const std::vector<HotnessProfile> before = profile_bundle(bundle, 1);
  if (before.empty()) {
    throw Error(ErrorKind::bad_input, options.data + ": holds no items; quantize again");
  }
  reorder_hot_first(bundle);
  write_bundle(options.out, bundle);
  output.document = {{"data", options.data}, {"out", options.out}, {"tensors", Json::array()}};
  for (const HotnessProfile& profile : before) {
    const int boundary = profile.entries / 4;
    const double was = share_below(profile, boundary, Numbering::current);
    const double is = share_below(profile, boundary, Numbering::hot_first);
    output.line("{}  {}  the first {} of {} entries took {:.1f} % of the accesses, now {:.1f} %",
                one_line(profile.name()), short_name(profile.format), boundary, profile.entries,
                100 * was, 100 * is);
    output.document["tensors"].push_back({{"item", profile.item},
                                          {"operand", enum_name(profile.operand)},
                                          {"format", short_name(profile.format)},
                                          {"boundary", boundary},
                                          {"share_below_before", was},
                                          {"share_below_after", is}});
  }
  output.line("wrote {}", options.out);
}

}  // namespace

void add_reorder(CLI::App& app, Output& output) {
  auto* command = app.add_subcommand(
      "reorder", "Number a bundle's entries by how often they are read; results stay bit-equal");
  auto options = std::make_shared<Options>();
  command->add_option("--data", options->data, "A bundle of vqgen quantize")->required();
  command->add_option("--out", options->out, "The bundle to write; may be the same")->required();
  command->add_flag("--json", output.json, "One JSON document on stdout");
  command->callback([options, &output] { reorder(*options, output); });
}

}  // namespace vqgen::cli
