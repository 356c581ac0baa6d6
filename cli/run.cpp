// vqgen run: a kernel on data, judged by the double-precision reference.
#include "runtime/run.h"

#include <algorithm>

#include "cli/shared_options.h"

namespace vqgen::cli {
namespace {

struct RunArguments {
  std::string config, backend, check, gpu, data;
  std::uint64_t seed = 1;
  int active_experts = 0;  // 0: experts have numbers of rows that are drawn, some none
};

struct BackendChoice {
  std::unique_ptr<Backend> backend;
  std::string reason;
};

BackendChoice choose_backend(const RunArguments& options, const Environment& environment) {
  const std::string& flag = options.backend;
  if (options.check == "races") {
    if (flag == "cuda") {
      throw Error(ErrorKind::bad_input,
                  "--check races runs on the host alone; name --backend host, or on the GPU use "
                  "compute-sanitizer --tool racecheck");
    }
    return {make_host(environment, true), "the one that checks races"};
  }
  std::unique_ptr<Backend> cuda = make_cuda(environment);
  if (flag == "cuda") return {std::move(cuda), "named by --backend"};
  if (flag == "host") return {make_host(environment), "named by --backend"};
  if (cuda->device()) return {std::move(cuda), "this machine has a device"};
  return {make_host(environment), "this machine has no CUDA device"};
}

Json item_json(const ItemReport& item) {
  Json json = {{"name", item.name},
               {"ok", item.ok},
               {"rel_err", item.rel_err},
               {"max_abs_err", item.max_abs_err},
               {"tolerance", item.tolerance}};
  if (!item.ok) json["why"] = item.why;
  if (item.lse_max_abs_err) json["lse_max_abs_err"] = *item.lse_max_abs_err;
  if (item.scalar_errors) {
    json["l2_error"] = item.scalar_errors->l2;
    json["largest_error"] = item.scalar_errors->largest;
    json["mean_score_error"] = item.scalar_errors->mean_score;
    json["clamped"] = item.clamped;
  }
  if (item.rel_err_unquantized) json["rel_err_unquantized"] = *item.rel_err_unquantized;
  return json;
}

void print_item(const Output& output, const ItemReport& item) {
  output.line("{}  {}  rel_err {:.2e} (at most {:.0e})  max_abs_err {:.2e}{}", item.name,
              item.ok ? "ok" : "WRONG", item.rel_err, item.tolerance, item.max_abs_err,
              item.rel_err_unquantized
                  ? fmt::format("  against unquantized {:.4f}", *item.rel_err_unquantized)
                  : "");
  if (!item.ok) output.line("  {}", item.why);
  if (const auto& errors = item.scalar_errors) {
    output.line(
        "{}  L2 error {:.6g}, largest error {:.6g}, mean attention-score error {:.6g}; clamped "
        "elements {}",
        item.name, errors->l2, errors->largest, errors->mean_score, item.clamped);
  }
}

// The worst of all items, under the names that scripts read, and the items themselves.
Json summary(const std::vector<ItemReport>& items) {
  const auto worst =
      std::max_element(items.begin(), items.end(), [](const ItemReport& a, const ItemReport& b) {
        return std::pair(!a.ok, a.rel_err) < std::pair(!b.ok, b.rel_err);
      });
  Json json = item_json(*worst);
  json.erase("name");
  for (const ItemReport& item : items) {
    json["max_abs_err"] = std::max(json["max_abs_err"].get<double>(), item.max_abs_err);
    if (item.lse_max_abs_err) {
      json["lse_max_abs_err"] =
          std::max(json["lse_max_abs_err"].get<double>(), *item.lse_max_abs_err);
    }
    if (item.rel_err_unquantized) {
      json["rel_err_unquantized"] =
          std::max(json.value("rel_err_unquantized", 0.0), *item.rel_err_unquantized);
    }
    json["items"].push_back(item_json(item));
  }
  return json;
}

void run(const RunArguments& options, Output& output) {
  const Environment environment = read_environment();
  const Config config = read_config(std::filesystem::path(options.config));
  require_active_experts(options.active_experts, config.problem);
  const BackendChoice chosen = choose_backend(options, environment);
  const GpuChoice gpu = choose_gpu(options.gpu, config, *chosen.backend);
  std::optional<NamedBundle> bundle;
  if (!options.data.empty()) {
    bundle = NamedBundle{options.data, read_bundle(std::filesystem::path(options.data))};
    require_fit(config, *bundle);
  }
  const std::unique_ptr<ArtifactCache> cache = make_cache(environment);
  const auto tables = make_tables(environment);
  output.step("planning and compiling {}", options.config);
  const Prepared prepared =
      prepare(config, gpu.spec, *chosen.backend, cache.get(), {.tables = tables.get()});
  note_warning(*cache, output);
  output.step("running {} and its reference", options.config);
  HardInput input{.seed = options.seed, .uneven = true, .active_experts = options.active_experts};
  const Linear* const product = as_linear(config.problem);
  const bool grouped = product != nullptr && product->shape.grouped();
  if (grouped && options.active_experts == 0) input.lengths = LengthPattern::ragged;
  const std::vector<ItemReport> items =
      run_verified(config, prepared, *chosen.backend, bundle ? &*bundle : nullptr, input);
  output.line("backend {}: {}", chosen.backend->name(), chosen.reason);
  output.line("planned for {}: {}", gpu.spec.name, gpu.reason);
  for (const ItemReport& item : items) print_item(output, item);
  if (options.check == "races") output.line("no races between threads");

  output.document = summary(items);
  output.document["backend"] = chosen.backend->name();
  output.document["backend_reason"] = chosen.reason;
  if (!options.check.empty()) output.document["check"] = options.check;
  output.document["gpu"] = gpu.spec.name;
  output.document["gpu_reason"] = gpu.reason;
  output.document["plan_from"] = to_json(prepared.from);
  output.document["kernel"] = prepared.source.entries.front().name;
  output.document["seed"] = options.seed;
  if (!output.document["ok"].get<bool>()) {
    output.exit_code = static_cast<int>(ErrorKind::verification_failed);
    output.note("vqgen: verification failed: the kernel's result differs from the reference");
  }
}

}  // namespace

void add_run(CLI::App& app, Output& output) {
  const auto [command, options] = add_command<RunArguments>(
      app, output, "run",
      "Run a config's kernels on data and compare with the double-precision reference", run);
  add_examples(*command, "vqgen run examples/configs/tinycode-layer.json --backend host",
               "vqgen run examples/configs/tinycode-layer.json --data out/cache");
  command->add_option("config", options->config, "config.json")->required();
  command
      ->add_option("--backend", options->backend,
                   "Where to run [cuda if this machine has a device, else host]")
      ->check(CLI::IsMember({"host", "cuda"}));
  command
      ->add_option(
          "--check", options->check,
          "On the host, report threads that touch the same memory without a barrier between them")
      ->check(CLI::IsMember({"races"}));
  command->add_option("--gpu", options->gpu, "The GPU to plan for: a name, a JSON file, or auto");
  command->add_option("--data", options->data, "A bundle of vqgen quantize [generated hard input]");
  add_active_experts(*command, options->active_experts);
  command->add_option("--seed", options->seed, "Seed of the generated input")
      ->capture_default_str()
      ->check(whole_number(0, kMostSeed));
}

}  // namespace vqgen::cli
