// What a runtime is made of. This is the library's edge to the world, as cli/ is the tool's, and
// its only place that reads the environment.
#include <fmt/format.h>

#include "runtime/backend/cuda/cuda_backend.h"
#include "runtime/backend/host/host_backend.h"
#include "runtime/environment.h"
#include "runtime/library/registry.h"

namespace vqgen::library {
namespace {

std::string given_or(const char* given, const char* name) {
  return given != nullptr ? given : environment_variable(name).value_or("");
}

void require_range(const char* name, std::int32_t value, int least, int most) {
  if (value >= least && value <= most) return;
  throw Error(ErrorKind::bad_input,
              fmt::format("vqgen_options: {} is {}, not within {}..{}", name, value, least, most));
}

// A given folder replaces the one that the environment names, and nothing else.
std::unique_ptr<ArtifactCache> make_cache(const char* given) {
  CacheEnvironment environment = read_cache_environment();
  const bool unwritten = given != nullptr && *given == '\0';
  if (unwritten) {
    environment.temporary.reset();  // where a folder would be made
  } else if (given != nullptr) {
    environment.vqgen_cache_dir = given;
  }
  CacheOptions options = cache_options(environment);
  if (unwritten) {
    if (options.read_only.empty()) return nullptr;
    options.folder.reset();
    options.warning.clear();
  }
  return std::make_unique<ArtifactCache>(std::move(options));
}

}  // namespace

std::unique_ptr<Registry> make_registry(const vqgen_options& options) {
  require_range("backend", options.backend, VQGEN_CUDA, VQGEN_HOST);
  require_range("miss", options.miss, VQGEN_COMPILE, VQGEN_FALLBACK);
  require_range("max_buckets", options.max_buckets, 1, 32);
  require_range("threads", options.threads, 1, 256);
  require_range("dependent_launches", options.dependent_launches, -1, 1);
  RegistryOptions chosen;
  chosen.miss = static_cast<MissPolicy>(options.miss);
  chosen.max_buckets = options.max_buckets;
  chosen.threads = options.threads;
  chosen.tables = find_tables(read_tuned_environment(), Damage::skip);
  std::shared_ptr<Backend> backend;
  if (options.backend == VQGEN_HOST) {
    backend = make_host_backend({.compiler = given_or(options.compiler, "VQGEN_CXX")});
  } else {
    require_range("device", options.device, VQGEN_CURRENT_CONTEXT, 1 << 20);
    backend = make_cuda_backend({.nvrtc_path = given_or(options.nvrtc, "VQGEN_NVRTC"),
                                 .nvrtc_helper = given_or(nullptr, "VQGEN_NVRTC_HELPER"),
                                 .device = std::max(options.device, 0),
                                 .current_context = options.device == VQGEN_CURRENT_CONTEXT,
                                 .dependent_launches = options.dependent_launches < 0
                                                           ? read_dependent_launches()
                                                           : options.dependent_launches == 1});
    backend->release(backend->allocate(1));  // opens device and context, or says why not
    chosen.gpu = backend->device();
  }
  return std::make_unique<Registry>(std::move(backend), make_cache(options.cache_dir),
                                    std::move(chosen));
}

}  // namespace vqgen::library
