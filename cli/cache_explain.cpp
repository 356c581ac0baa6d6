// vqgen cache explain: what the kernels of a config are looked up by, and on a miss what is
// nearest. Nothing is compiled, and nothing in the cache changes.
#include <fmt/ranges.h>

#include "cli/cache_commands.h"
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
  output.line("  nearest: {} in {}; differs in {}", short_digest(near->digest),
              one_line(near->layer), fmt::join(differs, ", "));
  json["nearest"] = {{"digest", near->digest}, {"layer", near->layer}, {"differs", differs}};
  return json;
}

}  // namespace

// In two steps where there is hotness, as prepare() goes: the second kernel depends on the
// registers of the first, so that it is known only where that is in the cache.
void cache_explain(const std::string& config_path, const std::string& gpu_name, Output& output) {
  const Config config = read_config(std::filesystem::path(config_path));
  const Environment environment = read_environment();
  const std::unique_ptr<Backend> backend = make_cuda(environment);
  const GpuChoice gpu = choose_gpu(gpu_name, config, *backend);
  const std::unique_ptr<ArtifactCache> cache = open_cache(output);
  const std::vector<HotnessProfile> profiles = hotness_of(config);
  output.document = {
      {"gpu", gpu.spec.name}, {"gpu_reason", gpu.reason}, {"kernels", Json::array()}};

  const auto key_of = [&](const Plan& plan) {
    const KernelSource source = source_for(config, plan, gpu.spec, backend->machine());
    return artifact_key(source, backend->compiler(source));
  };
  const auto explain = [&](const ArtifactKey& key) {
    const Lookup found = cache->peek(key);
    output.document["kernels"].push_back(explain_key(*cache, key, found, output));
    return found.artifact ? found.artifact->kernels.front().registers : 0;
  };
  const auto tables = make_tables(environment);
  PlanOptions options{.tables = tables.get()};
  options.place.registers = std::nullopt;
  const Plan first = plan_with(config, gpu.spec, profiles, options).plan;
  const ArtifactKey first_key = key_of(first);
  output.line("gpu {} ({}): {}", gpu.spec.name, gpu.spec.arch, gpu.reason);
  const int registers = explain(first_key);
  if (profiles.empty() || registers == 0) return;
  options.place.registers = registers;
  const Plan second = plan_with(config, gpu.spec, profiles, options).plan;
  if (!(second == first)) explain(key_of(second));
}

}  // namespace vqgen::cli
