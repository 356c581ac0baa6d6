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

CacheFault unreadable(const ArtifactLayer& layer, const StoredEntry& entry) {
  return {layer.path(), fmt::format("holds {}, which cannot be read, or which others can change",
                                    short_digest(entry.digest))};
}

}  // namespace

void cache_ls(Output& output) {
  const auto cache = open_cache(output);
  const std::int64_t now = std::time(nullptr);
  std::vector<CacheFault> faults;
  output.document = {{"layers", Json::array()}, {"entries", Json::array()}};
  for (const auto& layer : cache->layers()) {
    const std::string path = layer->path().string();
    std::int64_t count = 0;
    std::uint64_t total = 0;
    const Listing listing = layer->list();
    faults.insert(faults.end(), listing.faults.begin(), listing.faults.end());
    for (const StoredEntry& entry : listing.entries) {
      const auto front = layer->read(entry.digest, kPeekBytes);
      const auto key = front ? peek_key(front->bytes) : std::nullopt;
      const std::string kernel = key && !key->entries.empty() ? key->entries.front() : "";
      const char* const state = front && front->unreadable ? "unreadable" : "damaged";
      if (front && front->unreadable) faults.push_back(unreadable(*layer, entry));
      const std::int64_t age = std::max<std::int64_t>(0, now - entry.used_s);
      ++count;
      total += entry.bytes;
      output.line("{}  {:<8} {:>10} bytes {:>8}  {}  {}", short_digest(entry.digest),
                  key ? one_line(key->arch) : "-", entry.bytes, age_text(age),
                  key ? one_line(kernel) : state, one_line(path));
      output.document["entries"].push_back({{"digest", entry.digest},
                                            {"kernel", key ? Json(kernel) : Json(nullptr)},
                                            {"arch", key ? Json(key->arch) : Json(nullptr)},
                                            {"bytes", entry.bytes},
                                            {"age_s", age},
                                            {"layer", path}});
    }
    output.line("{}: {} entries, {} bytes", one_line(path), count, total);
    output.document["layers"].push_back({{"path", path}, {"entries", count}, {"bytes", total}});
  }
  report_faults(faults, output);
}

// Changes nothing: a damaged file is set aside by the compilation that meets it.
void cache_verify(Output& output) {
  CacheOptions options = cache_options(read_environment().cache);
  options.warning.clear();
  const ArtifactCache cache(std::move(options));
  note_warning(cache, output);
  std::int64_t checked = 0;
  std::int64_t damaged = cache.warning().empty() ? 0 : 1;  // a layer that cannot be opened
  output.document = {{"damaged", Json::array()}, {"unreadable", Json::array()}};
  std::vector<CacheFault> faults;
  for (const auto& layer : cache.layers()) {
    output.step("verifying {}", layer->path().string());
    const Listing listing = layer->list();
    faults.insert(faults.end(), listing.faults.begin(), listing.faults.end());
    for (const StoredEntry& entry : listing.entries) {
      const auto found = layer->read(entry.digest);
      if (!found) continue;  // removed since
      ++checked;
      if (is_artifact_of(found->bytes, entry.digest)) continue;
      ++damaged;
      const char* const state = found->unreadable ? "unreadable" : "damaged";
      output.line("{}: {} in {}", state, entry.digest, one_line(layer->path().string()));
      output.document[state].push_back(
          {{"digest", entry.digest}, {"layer", layer->path().string()}});
    }
  }
  output.line("{} entries checked", checked);
  output.document["checked"] = checked;
  report_faults(faults, output);
  report_damage(damaged, output);
  if (!faults.empty()) output.exit_code = static_cast<int>(ErrorKind::verification_failed);
}

}  // namespace vqgen::cli
