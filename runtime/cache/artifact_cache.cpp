#include "runtime/cache/artifact_cache.h"

#include <fmt/format.h>

#include "core/files.h"
#include "runtime/cache/artifact_file.h"

namespace vqgen {
namespace {

constexpr std::uint64_t kMaxFileBytes = std::uint64_t{1} << 30;

std::optional<std::vector<std::byte>> read_if_there(const std::filesystem::path& path) {
  std::error_code code;
  if (!std::filesystem::is_regular_file(path, code)) return std::nullopt;
  try {
    return read_file(path, kMaxFileBytes);
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

ArtifactCache::ArtifactCache(std::filesystem::path folder) : folder_(std::move(folder)) {}

// Two levels, so that no folder grows large.
std::filesystem::path ArtifactCache::path_of(const ArtifactKey& key) const {
  const std::string hex = key.hex();
  return folder_ / hex.substr(0, 2) / (hex + ".vqk");
}

std::optional<Artifact> ArtifactCache::find(const ArtifactKey& key) {
  const std::filesystem::path path = path_of(key);
  const auto bytes = read_if_there(path);
  std::optional<Artifact> artifact;
  if (bytes) artifact = decode_artifact(*bytes, key);
  const bool damaged = bytes && !artifact;
  if (damaged) {
    std::error_code ignored;  // read-only, or another process was faster
    std::filesystem::rename(path, path.string() + ".damaged", ignored);
  }
  const std::lock_guard lock(mutex_);
  ++(artifact ? counts_.hits : counts_.misses);
  if (damaged) ++counts_.damaged;
  return artifact;
}

bool ArtifactCache::store(const ArtifactKey& key, const Artifact& artifact) {
  if (!warning().empty()) return false;
  const std::filesystem::path path = path_of(key);
  try {
    std::error_code code;
    std::filesystem::create_directories(path.parent_path(), code);
    if (code) {
      throw Error(ErrorKind::bad_input,
                  fmt::format("{}: {}", path.parent_path().string(), code.message()));
    }
    publish_file(path, encode_artifact(key, artifact));
  } catch (const Error& error) {
    const std::lock_guard lock(mutex_);
    if (warning_.empty()) {
      warning_ = fmt::format(
          "compiled kernels are not kept: {}; set VQGEN_CACHE_DIR to a folder "
          "that can be written",
          error.what());
    }
    return false;
  }
  const std::lock_guard lock(mutex_);
  ++counts_.stored;
  return true;
}

std::string ArtifactCache::warning() const {
  const std::lock_guard lock(mutex_);
  return warning_;
}

CacheCounts ArtifactCache::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

CompileResult compile_cached(const Backend& backend, const KernelSource& source,
                             ArtifactCache* cache) {
  if (cache == nullptr) return {backend.compile(source), false};
  const ArtifactKey key = artifact_key(source, backend.compiler(source));
  if (auto artifact = cache->find(key)) return {*std::move(artifact), true};
  CompileResult result{backend.compile(source), false};
  cache->store(key, result.artifact);
  return result;
}

std::optional<std::filesystem::path> default_cache_dir(const CacheEnvironment& environment) {
  const auto& chosen = environment.vqgen_cache_dir;
  if (chosen && !chosen->empty()) return std::filesystem::path(*chosen);
  const auto absolute = [](const std::optional<std::string>& value) {
    return value && std::filesystem::path(*value).is_absolute();
  };
  if (absolute(environment.xdg_cache_home)) {
    return std::filesystem::path(*environment.xdg_cache_home) / "vqgen";
  }
  if (absolute(environment.home)) {
    return std::filesystem::path(*environment.home) / ".cache" / "vqgen";
  }
  return std::nullopt;
}

}  // namespace vqgen
