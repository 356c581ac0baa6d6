// vqgen cache explain: what the kernels of a config are looked up by, and on a miss what is
// nearest. Nothing is compiled, and nothing in the cache changes.
#include <fmt/ranges.h>

#include "cli/shared_options.h"
#include "core/plan/main_kernel.h"
#include "runtime/prepare.h"

namespace vqgen::cli {
namespace {

Json explain_key(const ArtifactCache& cache, const ArtifactKey& key, const Lookup& found,
                 Output& output) {
  output.line("{}: {}", key.hex(), found.artifact ? "hit in " + one_line(found.layer) : "miss");
  const Json fields = to_json(key);
  for_each_field<ArtifactKey>([&](const auto& field) {
    output.line("  {:<12} {}", field.name, fields[field.name].dump());
  });
  Json json{{"digest", key.hex()},
            {"key", fields},
            {"cache", found.artifact ? "hit" : "miss"},
            {"layer", found.artifact ? Json(found.layer) : Json(nullptr)}};
  if (found.artifact) return json;
  const auto near = nearest_entry(cache.layers(), key);
  json["cache_miss"] = found.damaged ? "damaged" : miss_reason(near, key);
  json["nearest"] = nullptr;
  output.line("  {}", one_line(json["cache_miss"].get<std::string>()));
  if (!near) return json;
  const std::vector<std::string> differs = differing_fields(near->key, key);
  output.line("  nearest: {} in {}; differs in {}", near->digest.substr(0, 12),
              one_line(near->layer), fmt::join(differs, ", "));
  json["nearest"] = {{"digest", near->digest}, {"layer", near->layer}, {"differs", differs}};
  return json;
}

// Two steps with access counts, as in prepare(): the second kernel depends on the registers of the
// first, so that it is known only if the first is in the cache.
void explain_misses(const PlanRequest& request, Output& output) {
  const PlanSetting setting = plan_setting(request);
  const auto& [environment, config, tables, plan, backend, gpu] = setting;
  const std::unique_ptr<ArtifactCache> cache = make_cache(environment);
  note_warning(*cache, output);
  const std::vector<AccessCounts> profiles = access_counts_of(config);
  output.document["kernels"] = Json::array();

  const auto key_of = [&](const Plan& each) {
    const KernelSource source =
        source_for(setting.config, each, setting.gpu.spec, setting.backend->machine());
    return artifact_key(source, setting.backend->compiler(source));
  };
  const auto explain = [&](const ArtifactKey& key, std::size_t main) {
    const Lookup found = cache->peek(key);
    output.document["kernels"].push_back(explain_key(*cache, key, found, output));
    return found.artifact ? found.artifact->kernels.at(main).registers : 0;
  };
  PlanOptions options = plan;
  options.place.registers = std::nullopt;
  const Plan first = plan_with(config, gpu.spec, profiles, options).plan;
  const ArtifactKey first_key = key_of(first);
  report_gpu(gpu, output);
  const int registers = explain(first_key, main_kernel(first, config.problem));
  if (profiles.empty() || registers == 0) return;
  options.place.registers = registers;
  const Plan second = plan_with(config, gpu.spec, profiles, options).plan;
  if (!(second == first)) explain(key_of(second), main_kernel(second, config.problem));
}

}  // namespace

void add_cache_explain(CLI::App& cache, Output& output) {
  const auto [command, request] = add_command<PlanRequest>(
      cache, output, "explain", "Say what a config's kernels are looked up by, and what is near",
      explain_misses);
  add_examples(*command, "vqgen cache explain examples/configs/tinycode-layer.json --gpu h200",
               "vqgen cache explain examples/configs/tinycode-layer.json --gpu h200 --json");
  command->add_option("config", request->config, "config.json")->required();
  command->add_option("--gpu", request->gpu, "The GPU to plan for: a name, a JSON file, or auto");
}

}  // namespace vqgen::cli
