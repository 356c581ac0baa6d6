#include "runtime/cache/nearest.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "runtime/cache/artifact_file.h"

namespace vqgen {
namespace {

std::string shown(const std::string& value) { return value; }
std::string shown(const std::vector<std::string>& values) {
  return fmt::format("{}", fmt::join(values, " "));
}

// "arch differs: 'sm_80' is stored, 'sm_90a' is wanted".
std::string difference(const ArtifactKey& stored, const ArtifactKey& wanted,
                       const std::string& name) {
  std::string text;
  for_each_field<ArtifactKey>([&](const auto& field) {
    if (field.name != name) return;
    text = fmt::format("{} differs: '{}' is stored, '{}' is wanted", name,
                       shown(stored.*field.member), shown(wanted.*field.member));
  });
  return text;
}

}  // namespace

std::vector<std::string> differing_fields(const ArtifactKey& stored, const ArtifactKey& wanted) {
  std::vector<std::string> names;
  for_each_field<ArtifactKey>([&](const auto& field) {
    if (stored.*field.member != wanted.*field.member) names.emplace_back(field.name);
  });
  return names;
}

std::optional<Nearest> nearest_entry(std::span<const std::unique_ptr<ArtifactLayer>> layers,
                                     const ArtifactKey& wanted) {
  std::optional<Nearest> best;
  std::size_t fewest = 0;
  for (const auto& layer : layers) {
    const std::vector<StoredEntry> entries = layer->entries();
    for (const StoredEntry& entry : std::span(entries).first(std::min(entries.size(), kMaxPeeks))) {
      const auto bytes = layer->read(entry.digest, kPeekBytes);
      auto key = bytes ? peek_key(bytes->bytes) : std::nullopt;
      if (!key) continue;
      if (key->text_sha256 != wanted.text_sha256 && key->entries != wanted.entries) continue;
      const std::size_t differing = differing_fields(*key, wanted).size();
      if (best && differing >= fewest) continue;
      best = Nearest{layer->path().string(), entry.digest, *std::move(key)};
      fewest = differing;
    }
  }
  return best;
}

std::string miss_reason(const std::optional<Nearest>& nearest, const ArtifactKey& wanted) {
  if (!nearest) return "no entry";
  std::vector<std::string> names = differing_fields(nearest->key, wanted);
  if (names.empty()) return "no entry";  // stored by another process since
  // That the text is another says less than why it is.
  if (names.front() == "text_sha256") std::rotate(names.begin(), names.begin() + 1, names.end());
  std::string reason = difference(nearest->key, wanted, names.front());
  names.erase(names.begin());
  if (!names.empty()) reason += fmt::format("; {} too", fmt::join(names, ", "));
  return reason;
}

}  // namespace vqgen
