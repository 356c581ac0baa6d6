#include "core/json/format_version.h"

#include <fmt/format.h>

namespace vqgen {

std::string newer_format(std::int64_t version, std::int64_t known) {
  return fmt::format("is format version {}, and this vqgen knows up to {}; upgrade vqgen", version,
                     known);
}

std::int64_t format_version(const JsonCursor& file, const std::string& key, std::int64_t known) {
  if (!file.has(key)) return 1;
  const JsonCursor cursor = file.at(key);
  const std::int64_t version = cursor.integer(1, 1e9);
  if (version > known) cursor.fail(newer_format(version, known));
  return version;
}

}  // namespace vqgen
