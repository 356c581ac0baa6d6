// vqgen cache ls and verify.
#include <ctime>

#include "cli/cache_commands.h"
#include "runtime/cache/artifact_file.h"

namespace vqgen::cli {
namespace {

// "3 d", "5 h", "12 min", "8 s".
std::string age_text(std::int64_t seconds) {
  if (seconds >= 2 * 86400) return fmt::format("{} d", seconds / 86400);
  if (seconds >= 2 * 3600) return fmt::format("{} h", seconds / 3600);
  if (seconds >= 2 * 60) return fmt::format("{} min", seconds / 60);
  return fmt::format("{} s", seconds);
}

}  // namespace

void cache_ls(Output& output) {
  const auto cache = open_cache(output);
  const std::int64_t now = std::time(nullptr);
  output.document = {{"layers", Json::array()}, {"entries", Json::array()}};
  for (const auto& layer : cache->layers()) {
    const std::string path = layer->path().string();
    std::int64_t count = 0;
    std::uint64_t total = 0;
    for (const StoredEntry& entry : layer->entries()) {
      const auto front = layer->read(entry.digest, kPeekBytes);
      const auto key = front ? peek_key(*front) : std::nullopt;
      const std::string kernel = key && !key->entries.empty() ? key->entries.front() : "";
      const std::int64_t age = std::max<std::int64_t>(0, now - entry.used_s);
      ++count;
      total += entry.bytes;
      output.line("{}  {:<8} {:>10} bytes {:>8}  {}  {}", short_digest(entry.digest),
                  key ? key->arch : "-", entry.bytes, age_text(age), key ? kernel : "damaged",
                  path);
      output.document["entries"].push_back({{"digest", entry.digest},
                                            {"kernel", key ? Json(kernel) : Json(nullptr)},
                                            {"arch", key ? Json(key->arch) : Json(nullptr)},
                                            {"bytes", entry.bytes},
                                            {"age_s", age},
                                            {"layer", path}});
    }
    output.line("{}: {} entries, {} bytes", path, count, total);
    output.document["layers"].push_back({{"path", path}, {"entries", count}, {"bytes", total}});
  }
}

// Changes nothing: a damaged file is set aside by the compilation that meets it.
void cache_verify(Output& output) {
  CacheOptions options = cache_options(read_environment().cache);
  options.warning.clear();
  const ArtifactCache cache(std::move(options));
  note_warning(cache, output);
  std::int64_t checked = 0;
  std::int64_t damaged = cache.warning().empty() ? 0 : 1;  // a layer that cannot be opened
  output.document["damaged"] = Json::array();
  for (const auto& layer : cache.layers()) {
    for (const StoredEntry& entry : layer->entries()) {
      const auto bytes = layer->read(entry.digest);
      if (!bytes) continue;  // removed since
      ++checked;
      if (is_artifact_of(*bytes, entry.digest)) continue;
      ++damaged;
      output.line("damaged: {} in {}", entry.digest, layer->path().string());
      output.document["damaged"].push_back(
          {{"digest", entry.digest}, {"layer", layer->path().string()}});
    }
  }
  output.line("{} entries checked", checked);
  output.document["checked"] = checked;
  report_damage(damaged, output);
}

}  // namespace vqgen::cli
