#include "runtime/backend/cuda/cuda_device.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <chrono>
#include <type_traits>
#include <utility>

#include "core/gpu/gpu_arch.h"
#include "runtime/backend/backend.h"

namespace vqgen {
namespace {

constexpr const char* kRemedy = "install an NVIDIA driver for CUDA 12.4 or newer";

template <class Function>
void look_up(void* library, const char* name, Function& function) {
  void* const symbol = ::dlsym(library, name);
  if (symbol == nullptr) {
    throw device_error("the CUDA driver is too old: libcuda.so.1 has no {}; {}", name, kRemedy);
  }
  function = reinterpret_cast<Function>(symbol);
}

// Opens libcuda and initialises it; it stays open for the life of the process. Error(device) where
// there is no driver or it is too old. Thread-safe.
DriverApi open_driver() {
  void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const reason = ::dlerror();
    throw device_error("no CUDA driver: {}; {}", reason != nullptr ? reason : "libcuda.so.1",
                       kRemedy);
  }
  DriverApi api;
#define VQGEN_TEXT(text) #text
#define VQGEN_LOOK_UP(function) look_up(library, VQGEN_TEXT(function), api.function);
  VQGEN_DRIVER_FUNCTIONS(VQGEN_LOOK_UP)
  look_up(library, "cuEventElapsedTime", api.event_elapsed_time);
#undef VQGEN_LOOK_UP
#undef VQGEN_TEXT
  api.check(api.cuInit(0), "cuInit", "the CUDA driver");
  return api;
}

// A handle of the driver that is destroyed with its owner.
template <class Handle>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, CUresult (*)(Handle)>;

// Reads the device's facts from the driver, with the source of each value.
GpuSpec read_spec(const DriverApi& api, CUdevice device) {
  GpuSpec spec;
  const auto read = [&](CUdevice_attribute attribute, const std::string& field,
                        const char* source) {
    int value = 0;
    api.check(api.cuDeviceGetAttribute(&value, attribute, device), "cuDeviceGetAttribute", source);
    if (!field.empty()) spec.sources[field] = source;
    return value;
  };
#define VQGEN_READ(field, attribute) \
  spec.field = read(CU_DEVICE_ATTRIBUTE_##attribute, #field, #attribute)
  std::array<char, 256> name{};
  api.check(api.cuDeviceGetName(name.data(), static_cast<int>(name.size()), device),
            "cuDeviceGetName", "the device");
  spec.name = name.data();
  const int major =
      read(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, "arch", "COMPUTE_CAPABILITY_MAJOR");
  const int minor =
      read(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, "", "COMPUTE_CAPABILITY_MINOR");
  // Hopper's own instructions need the architecture-specific target.
  spec.arch = fmt::format("sm_{}{}{}", major, minor, major == 9 && minor == 0 ? "a" : "");
  spec.warpgroup_products = has_warpgroup_products(spec.arch);
  spec.bf16_products = has_bf16_products(spec.arch);
  spec.sources["warpgroup_products"] = "PTX ISA, wgmma.mma_async: requires sm_90a";
  VQGEN_READ(sms, MULTIPROCESSOR_COUNT);
  VQGEN_READ(registers_per_sm, MAX_REGISTERS_PER_MULTIPROCESSOR);
  VQGEN_READ(max_threads_per_sm, MAX_THREADS_PER_MULTIPROCESSOR);
  VQGEN_READ(max_blocks_per_sm, MAX_BLOCKS_PER_MULTIPROCESSOR);
  VQGEN_READ(shared_bytes_per_sm, MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
  VQGEN_READ(shared_bytes_per_block, MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
  VQGEN_READ(shared_bytes_reserved, RESERVED_SHARED_MEMORY_PER_BLOCK);
  // The driver does not report granules; these are from cuda_occupancy.h, as GpuSpec's defaults
  // hold since compute capability 8.0.
  if (major < 8) spec.shared_bytes_granule = 256;
  for (const char* field : {"registers_granule", "sm_partitions", "shared_bytes_granule"}) {
    spec.sources[field] = fmt::format("cuda_occupancy.h, compute capability {}.x", major);
  }
  VQGEN_READ(l2_bytes, L2_CACHE_SIZE);
  VQGEN_READ(sm_clock_mhz, CLOCK_RATE);
#undef VQGEN_READ
  spec.sm_clock_mhz /= 1e3;  // kHz
  // Two transfers a clock over the bus.
  const double memory_khz = read(CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, "", "MEMORY_CLOCK_RATE");
  const double bus_bits =
      read(CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, "", "GLOBAL_MEMORY_BUS_WIDTH");
  spec.memory_gbps = 2 * memory_khz * 1e3 * bus_bits / 8 / 1e9;
  spec.sources["memory_gbps"] = "2 x MEMORY_CLOCK_RATE x GLOBAL_MEMORY_BUS_WIDTH / 8";
  std::size_t memory_bytes = 0;
  api.check(api.cuDeviceTotalMem(&memory_bytes, device), "cuDeviceTotalMem", "the device");
  spec.memory_bytes = static_cast<std::int64_t>(memory_bytes);
  spec.sources["memory_bytes"] = "cuDeviceTotalMem";
  spec.sources["name"] = "cuDeviceGetName";
  complete_unreported(spec);
  return spec;
}

// Describes the driver and the device that was found.
void describe(CudaDevice& device) {
  const DriverApi& api = device.api;
  api.check(api.cuDriverGetVersion(&device.driver_version), "cuDriverGetVersion", "the driver");
  device.spec = read_spec(api, device.handle);
}

}  // namespace

void DriverApi::check(CUresult result, const char* call, const std::string& what) const {
  if (result == CUDA_SUCCESS) return;
  const char* name = nullptr;
  const char* text = nullptr;
  if (cuGetErrorName(result, &name) != CUDA_SUCCESS) name = "unknown code";
  if (cuGetErrorString(result, &text) != CUDA_SUCCESS) text = "no description";
  throw device_error("{} on {}: {} ({}: {})", call, what, name, static_cast<int>(result), text);
}

CudaDevice open_device(int ordinal) {
  CudaDevice device;
  device.api = open_driver();
  const DriverApi& api = device.api;
  int count = 0;
  api.check(api.cuDeviceGetCount(&count), "cuDeviceGetCount", "the driver");
  if (ordinal < 0 || ordinal >= count) {
    throw device_error(
        "no CUDA device number {}: the driver shows {}; choose another, or check "
        "CUDA_VISIBLE_DEVICES and nvidia-smi",
        ordinal, count);
  }
  api.check(api.cuDeviceGet(&device.handle, ordinal), "cuDeviceGet",
            fmt::format("device {}", ordinal));
  describe(device);
  return device;
}

CudaDevice open_current_device() {
  CudaDevice device;
  device.api = open_driver();
  const DriverApi& api = device.api;
  api.check(api.cuCtxGetCurrent(&device.borrowed), "cuCtxGetCurrent", "the driver");
  if (device.borrowed == nullptr) {
    throw device_error(
        "no CUDA context is current on this thread; make one current or name a device");
  }
  api.check(api.cuCtxGetDevice(&device.handle), "cuCtxGetDevice", "the current context");
  describe(device);
  return device;
}

CudaContext::CudaContext(std::shared_ptr<const CudaDevice> device)
    : device_(std::move(device)), context_(device_->borrowed) {
  const std::string& name = device_->spec.name;
  if (context_ == nullptr) {
    api().check(api().cuDevicePrimaryCtxRetain(&context_, device_->handle),
                "cuDevicePrimaryCtxRetain", name);
  }
  try {
    const Scope scope(*this);
    api().check(api().cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate", name);
  } catch (const Error&) {
    release();
    throw;
  }
}

void CudaContext::release() const {
  if (device_->borrowed == nullptr) api().cuDevicePrimaryCtxRelease(device_->handle);
}

CudaContext::~CudaContext() {
  try {
    const Scope scope(*this);
    api().cuStreamDestroy(stream_);
  } catch (const Error&) {  // the context is lost, and the stream with it
  }
  release();
}

CudaContext::Scope::Scope(const CudaContext& context) : api_(context.api()) {
  const std::string& name = context.device_->spec.name;
  api_.check(api_.cuThreadExchangeStreamCaptureMode(&mode_), "cuThreadExchangeStreamCaptureMode",
             name);
  const CUresult pushed = api_.cuCtxPushCurrent(context.context_);
  if (pushed == CUDA_SUCCESS) return;
  api_.cuThreadExchangeStreamCaptureMode(&mode_);
  api_.check(pushed, "cuCtxPushCurrent", name);
}

CudaContext::Scope::~Scope() {
  api_.cuThreadExchangeStreamCaptureMode(&mode_);
  CUcontext popped = nullptr;
  api_.cuCtxPopCurrent(&popped);
}

std::vector<double> CudaContext::time_us(
    const std::function<void()>& queue, int replays, double warm_up_ms,
    const std::function<void(CUresult, const char*)>& check) const {
  const std::string what = "a graph of launches";
  CUgraph captured = nullptr;
  api().check(api().cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
              "cuStreamBeginCapture", what);
  try {
    queue();
  } catch (...) {
    api().cuStreamEndCapture(stream_, &captured);
    if (captured != nullptr) api().cuGraphDestroy(captured);
    throw;
  }
  api().check(api().cuStreamEndCapture(stream_, &captured), "cuStreamEndCapture", what);
  const Owned<CUgraph> graph(captured, api().cuGraphDestroy);
  CUgraphExec made = nullptr;
  api().check(api().cuGraphInstantiate(&made, captured, 0), "cuGraphInstantiate", what);
  const Owned<CUgraphExec> executable(made, api().cuGraphExecDestroy);
  const auto make_event = [&] {
    CUevent event = nullptr;
    api().check(api().cuEventCreate(&event, CU_EVENT_DEFAULT), "cuEventCreate", "a timer");
    return Owned<CUevent>(event, api().cuEventDestroy);
  };
  const Owned<CUevent> begin = make_event();
  const Owned<CUevent> end = make_event();
  using Clock = std::chrono::steady_clock;
  const auto warm = Clock::now() + std::chrono::duration<double, std::milli>(warm_up_ms);
  do {
    check(api().cuGraphLaunch(executable.get(), stream_), "cuGraphLaunch");
    if (warm_up_ms > 0) check(api().cuStreamSynchronize(stream_), "cuStreamSynchronize");
  } while (Clock::now() < warm);
  return timed_runs(replays, [&] {
    check(api().cuEventRecord(begin.get(), stream_), "cuEventRecord");
    check(api().cuGraphLaunch(executable.get(), stream_), "cuGraphLaunch");
    check(api().cuEventRecord(end.get(), stream_), "cuEventRecord");
    check(api().cuStreamSynchronize(stream_), "cuStreamSynchronize");
    float milliseconds = 0;
    check(api().event_elapsed_time(&milliseconds, begin.get(), end.get()), "cuEventElapsedTime");
    return 1000.0 * static_cast<double>(milliseconds);
  });
}

}  // namespace vqgen
