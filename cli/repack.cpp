// vqgen repack: a bundle whose codes are stored in another layout, or whose entries are integers.
#include "quantizer/pack.h"

#include <charconv>

#include "cli/command.h"
#include "core/access/access_counts.h"
#include "core/json/json.h"
#include "quantizer/bundle.h"
#include "quantizer/integers.h"

namespace vqgen::cli {
namespace {

struct RepackArguments {
  std::string data, out, layout, entries, operand;
};

// "4x1": rows of a group, words of a run.
CodeLayout read_layout(const std::string& text) {
  CodeLayout layout;
  const char* const end = text.data() + text.size();
  const auto rows = std::from_chars(text.data(), end, layout.rows);
  bool fine = rows.ec == std::errc() && rows.ptr != end && *rows.ptr == 'x';
  if (fine) {
    const auto words = std::from_chars(rows.ptr + 1, end, layout.words);
    fine = words.ec == std::errc() && words.ptr == end;
  }
  if (!fine) {
    throw Error(ErrorKind::bad_input,
                fmt::format("repack: --layout '{}' is not ROWSxWORDS, such as 4x1", text));
  }
  if (const std::string problem = layout_problem(layout); !problem.empty()) {
    throw Error(ErrorKind::bad_input, fmt::format("repack: --layout {}: {}", text, problem));
  }
  return layout;
}

std::optional<Operand> read_operand(const std::string& text) {
  if (text.empty()) return {};
  const Json name = text;
  return static_cast<Operand>(JsonCursor(name, "repack", "--operand").choice(enum_names<Operand>));
}

void repack_bundle(const RepackArguments& options, Output& output) {
  require_place("repack", "--out", options.out);
  if (options.layout.empty() && options.entries.empty()) {
    throw Error(ErrorKind::bad_input, "repack: give --layout, --entries int8, or both");
  }
  if (!options.entries.empty() && options.entries != "int8") {
    throw Error(ErrorKind::bad_input,
                fmt::format("repack: --entries '{}' is not int8", options.entries));
  }
  const std::optional<CodeLayout> layout =
      options.layout.empty() ? std::nullopt : std::optional(read_layout(options.layout));
  const std::optional<Operand> operand = read_operand(options.operand);
  output.step("repacking {}", options.data);
  Bundle bundle = read_bundle(std::filesystem::path(options.data));
  output.document = {{"data", options.data}, {"out", options.out}, {"tensors", Json::array()}};
  std::vector<std::string> lines;
  const auto repack_one = [&](const std::string& item, Operand each, QuantizedTensor& tensor) {
    if (operand && *operand != each) return;
    const std::string before = short_name(tensor.format);
    std::optional<double> error;
    if (!options.entries.empty()) {
      const std::string where = fmt::format("{}: {}.{}", options.data, item, enum_name(each));
      error = round_to_integers(tensor, each == Operand::weights, where);
    }
    if (layout) repack(tensor, *layout);
    lines.push_back(fmt::format("{}.{}  {} is now {}, {} words", one_line(item), enum_name(each),
                                before, short_name(tensor.format), tensor.codes.size()));
    if (error) lines.back() += fmt::format(", off by {:.2e} of its norm", *error);
    output.document["tensors"].push_back({{"item", item},
                                          {"operand", enum_name(each)},
                                          {"format", short_name(tensor.format)},
                                          {"layout", to_json(tensor.format.layout)},
                                          {"words", tensor.codes.size()}});
    if (error) output.document["tensors"].back()["relative_change"] = *error;
  };
  for (BundleItem& item : bundle.items) {
    if (auto* cache = std::get_if<AttentionData>(&item.data)) {
      repack_one(item.name, Operand::keys, cache->keys);
      repack_one(item.name, Operand::values, cache->values);
    } else {
      repack_one(item.name, Operand::weights, std::get<LinearData>(item.data).weights);
    }
  }
  if (lines.empty()) {
    throw Error(ErrorKind::bad_input,
                fmt::format("{}: holds no {}; name another operand or bundle", options.data,
                            operand ? enum_name(*operand) : "items"));
  }
  write_bundle(options.out, bundle);
  for (const std::string& line : lines) output.line("{}", line);
  output.line("wrote {}", options.out);
}

}  // namespace

void add_repack(CLI::App& app, Output& output) {
  const auto [command, options] = add_command<RepackArguments>(
      app, output, "repack",
      "Store a bundle's codes in another layout, to the same results, or its entries as int8",
      repack_bundle);
  add_examples(*command, "vqgen repack out/weights --entries int8 --out out/weights-int8",
               "vqgen repack out/weights --layout 4x1 --out out/weights-4x1");
  command->add_option("data", options->data, "A bundle of vqgen quantize")->required();
  command->add_option("--layout", options->layout,
                      "ROWSxWORDS: rows per group and words per run, such as 4x1; 1x1 is plain");
  command->add_option("--entries", options->entries,
                      "Round the entries to int8 with scales, and print the change; takes int8");
  command->add_option("--operand", options->operand,
                      "The operand to repack: keys, values or weights [all]");
  command->add_option("--out", options->out, "The bundle to write; may be the same")->required();
}

}  // namespace vqgen::cli
