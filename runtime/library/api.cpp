// The C functions except launches: handles, and exceptions turned into statuses.
#include <cstring>

#include "core/json/json.h"
#include "core/json/json_text.h"
#include "core/parallel.h"
#include "runtime/library/last_error.h"
#include "runtime/library/registry.h"

using namespace vqgen::library;

namespace {

vqgen_status fail_refused(Refusal refusal) {
  static constexpr std::pair<vqgen_status, const char*> kRefusals[] = {
      {VQGEN_OK, ""},
      {VQGEN_MISS, "the op is new and the runtime is frozen; prefetch it before"},
      {VQGEN_MISS, "the op is in no cache and the policy is not to compile; compile it before"},
      {VQGEN_CAPTURING,
       "the op is new and the stream is being captured; prepare it before the capture"}};
  const auto& [status, why] = kRefusals[static_cast<std::size_t>(refusal)];
  return status == VQGEN_OK ? status : fail(status, why);
}

vqgen_status hand_out(Outcome outcome, vqgen_op** op) {
  if (outcome.refusal != Refusal::none) return fail_refused(outcome.refusal);
  *op = new vqgen_op{std::move(outcome.record), outcome.provenance};
  return VQGEN_OK;
}

}  // namespace

char* vqgen::library::copied(const std::string& text) {
  char* const copy = ::strdup(text.c_str());
  if (copy == nullptr) throw std::bad_alloc();
  return copy;
}

const char* vqgen_status_name(vqgen_status status) {
  static constexpr const char* kNames[] = {"ok",        "unknown",   "bad_input", "infeasible",
                                           "unknown",   "device",    "miss",      "capturing",
                                           "workspace", "alignment", "range",     "internal"};
  const auto number = static_cast<std::size_t>(status);
  return number < std::size(kNames) ? kNames[number] : "unknown";
}

const char* vqgen_version() { return VQGEN_VERSION; }

void vqgen_options_init(vqgen_options* options) {
  if (options == nullptr) return;
  *options = {};
  options->struct_bytes = sizeof(*options);
  options->max_buckets = 16;
  options->threads = 1;
  options->dependent_launches = -1;
}

vqgen_status vqgen_runtime_create(const vqgen_options* options, vqgen_runtime** runtime) {
  return guarded({runtime}, [&] {
    *runtime = nullptr;
    vqgen_options chosen;
    vqgen_options_init(&chosen);
    if (options != nullptr) {
      if (options->struct_bytes != sizeof(chosen)) {
        return fail(VQGEN_BAD_INPUT,
                    "vqgen_options has another size than the library's; call vqgen_options_init()");
      }
      chosen = *options;
    }
    *runtime = new vqgen_runtime{make_registry(chosen)};
    return VQGEN_OK;
  });
}

void vqgen_runtime_destroy(vqgen_runtime* runtime) { delete runtime; }

vqgen_status vqgen_make_current(vqgen_runtime* runtime) {
  return guarded({runtime}, [&] {
    runtime->registry->backend().make_current();
    return VQGEN_OK;
  });
}

vqgen_status vqgen_prepare(vqgen_runtime* runtime, const char* config, void* stream,
                           vqgen_op** op) {
  return guarded({runtime, config, op}, [&] {
    *op = nullptr;
    static const std::string source = "config";
    return hand_out(runtime->registry->prepare(config, source, stream), op);
  });
}

vqgen_status vqgen_prepare_file(vqgen_runtime* runtime, const char* path, void* stream,
                                vqgen_op** op) {
  return guarded({runtime, path, op}, [&] {
    *op = nullptr;
    return hand_out(runtime->registry->prepare_file(path, stream), op);
  });
}

vqgen_status vqgen_prefetch(vqgen_runtime* runtime, const char* const* configs, size_t count,
                            int32_t threads) {
  if (count == 0) return VQGEN_OK;
  return guarded({runtime, configs}, [&] {
    if (threads < 1 || threads > 256) {
      return fail(VQGEN_BAD_INPUT, "threads of vqgen_prefetch() is not within 1..256");
    }
    // A status and its line belong to a thread, so the other threads' lines are copied.
    std::vector<vqgen_status> statuses(count, VQGEN_OK);
    std::vector<std::string> lines(count);
    vqgen::in_parallel(count, threads, [&](std::size_t i) {
      statuses[i] = guarded({configs[i]}, [&] {
        const std::string source = "config " + std::to_string(i);
        return fail_refused(runtime->registry->prepare(configs[i], source, nullptr, 1).refusal);
      });
      if (statuses[i] != VQGEN_OK) lines[i] = vqgen_last_error();
    });
    for (std::size_t i = 0; i < count; ++i) {
      if (statuses[i] != VQGEN_OK) return fail(statuses[i], lines[i].c_str());
    }
    return VQGEN_OK;
  });
}

void vqgen_freeze(vqgen_runtime* runtime) {
  if (runtime != nullptr) runtime->registry->freeze();
}

vqgen_status vqgen_enumerate(vqgen_runtime* runtime, const char* config, int64_t least,
                             int64_t most, char** json) {
  return guarded({runtime, config, json}, [&] {
    *json = nullptr;
    vqgen::Json list = vqgen::Json::array();
    for (const BucketPlan& each : runtime->registry->enumerate(config, least, most)) {
      list.push_back({{"most", each.most},
                      {"plan", vqgen::to_json(each.plan)},
                      {"plan_from", vqgen::to_json(each.from)}});
    }
    *json = copied(vqgen::json_text(list, 2));
    return VQGEN_OK;
  });
}

void vqgen_text_free(char* text) { std::free(text); }

vqgen_status vqgen_alloc(vqgen_runtime* runtime, size_t bytes, void** pointer) {
  return guarded({runtime, pointer}, [&] {
    *pointer = nullptr;
    *pointer = runtime->registry->backend().allocate(bytes);
    return VQGEN_OK;
  });
}

void vqgen_free(vqgen_runtime* runtime, void* pointer) {
  if (runtime == nullptr || pointer == nullptr) return;
  runtime->registry->backend().release(pointer);
}

vqgen_status vqgen_register_host_memory(vqgen_runtime* runtime, const void* memory, size_t bytes) {
  if (bytes == 0) return VQGEN_OK;
  return guarded({runtime, memory}, [&] {
    runtime->registry->backend().lend(memory, bytes);
    return VQGEN_OK;
  });
}

void vqgen_unregister_host_memory(vqgen_runtime* runtime, const void* memory, size_t bytes) {
  if (runtime == nullptr || memory == nullptr || bytes == 0) return;
  runtime->registry->backend().give_back(memory, bytes);
}

vqgen_status vqgen_upload(vqgen_runtime* runtime, void* device, const void* host, size_t bytes) {
  if (bytes == 0) return VQGEN_OK;
  return guarded({runtime, device, host}, [&] {
    runtime->registry->backend().upload(device, {static_cast<const std::byte*>(host), bytes});
    return VQGEN_OK;
  });
}

vqgen_status vqgen_download(vqgen_runtime* runtime, void* host, const void* device, size_t bytes) {
  if (bytes == 0) return VQGEN_OK;
  return guarded({runtime, device, host}, [&] {
    runtime->registry->backend().download({static_cast<std::byte*>(host), bytes}, device);
    return VQGEN_OK;
  });
}

vqgen_status vqgen_workspace_init(vqgen_runtime*, void*, size_t, void*) { return VQGEN_OK; }

vqgen_status vqgen_synchronize(vqgen_runtime* runtime, void* stream) {
  return guarded({runtime}, [&] {
    runtime->registry->backend().wait_for(stream);
    return VQGEN_OK;
  });
}
