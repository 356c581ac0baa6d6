// vqgen import: a checkpoint of another tool to a model folder.
#include "quantizer/import/import_model.h"

#include "cli/command.h"

namespace vqgen::cli {
namespace {

struct ImportArguments {
  std::string source, out, like, dtype;
  bool dense = false;
};

void tell(const ImportReport& report, const Output& output) {
  if (!report.left_out.empty()) output.note("not copied: {}", some_of(report.left_out));
  for (const std::string& note : report.notes) output.note("{}", note);
}

void report_import(const ImportReport& report, const std::string& out, Output& output) {
  output.document.update({{"out", out},
                          {"kinds", Json::array()},
                          {"left_out", report.left_out},
                          {"notes", report.notes}});
  for (const ImportedKind& kind : report.kinds) {
    output.line("{} -> {}  {} {}  {} bytes -> {} bytes", kind.from, kind.to, kind.count, kind.unit,
                kind.bytes_before, kind.bytes_after);
    output.document["kinds"].push_back({{"from", kind.from},
                                        {"to", kind.to},
                                        {"unit", kind.unit},
                                        {"count", kind.count},
                                        {"bytes_before", kind.bytes_before},
                                        {"bytes_after", kind.bytes_after}});
  }
  output.line("wrote {}", out);
}

void import_checkpoint(const ImportArguments& options, Output& output) {
  output.step("reading {}", options.source);
  ImportRequest request;
  request.source = options.source;
  request.out = options.out;
  request.like = options.like;
  if (!options.dtype.empty()) request.dtype = enum_of<DType>(options.dtype);
  request.dense = options.dense;
  request.judged = [&](const ImportReport& report) { tell(report, output); };
  request.progress = [&](double share, const std::string& tensor) { output.show(share, tensor); };
  report_import(import_model(request), options.out, output);
}

}  // namespace

void add_import(CLI::App& app, Output& output) {
  const auto [command, options] = add_command<ImportArguments>(
      app, output, "import", "Turn a downloaded AQLM, QuIP# or GGUF checkpoint into a model folder",
      import_checkpoint);
  add_examples(*command, "vqgen import Llama-3-8B-AQLM-2x8 --out out/llama-aqlm",
               "vqgen import llama-IQ2_XXS.gguf --out out/llama-iq2 --like Llama-3-8B");
  command
      ->add_option(
          "source", options->source,
          "The folder of an AQLM, QuIP# or bitsandbytes model, or a GGUF file, of splits the first")
      ->required();
  command->add_option("--out", options->out, "The folder to write")->required();
  command->add_option("--like", options->like,
                      "GGUF: a folder with config.json and tokenizer of the unquantized model");
  command
      ->add_option("--dtype", options->dtype,
                   "GGUF: element type of the weights [bf16 if some are in the file, else f16]")
      ->check(CLI::IsMember({"f16", "bf16"}));
  command->add_flag("--dense", options->dense,
                    "GGUF: make all weights dense, also those whose codes a kernel reads");
}

}  // namespace vqgen::cli
