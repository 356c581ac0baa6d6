#include "runtime/backend/cuda/cuda_device.h"

#include <fmt/format.h>

#include <array>
#include <utility>

#include "core/error.h"
#include "core/gpu/gpu_arch.h"

namespace vqgen {
namespace {

// Reads attributes of one device into a GpuSpec and notes where each value comes from.
class SpecReader {
 public:
  SpecReader(const DriverApi& api, CUdevice device, GpuSpec& spec)
      : api_(api), device_(device), spec_(spec) {}

  int read(CUdevice_attribute attribute, const std::string& field, const char* source) {
    int value = 0;
    api_.check(api_.cuDeviceGetAttribute(&value, attribute, device_), "cuDeviceGetAttribute",
               source);
    if (!field.empty()) spec_.sources[field] = source;
    return value;
  }

 private:
  const DriverApi& api_;
  CUdevice device_;
  GpuSpec& spec_;
};

// Hopper's own instructions need the architecture-specific target.
std::string arch_of(int major, int minor) {
  return fmt::format("sm_{}{}{}", major, minor, major == 9 && minor == 0 ? "a" : "");
}

// The driver reports no granules: those of cuda_occupancy.h, where GpuSpec's defaults are those
// since compute capability 8.0.
void set_granules(GpuSpec& spec, int major) {
  if (major < 8) spec.shared_bytes_granule = 256;
  for (const char* field : {"registers_granule", "sm_partitions", "shared_bytes_granule"}) {
    spec.sources[field] = fmt::format("cuda_occupancy.h, compute capability {}.x", major);
  }
}

GpuSpec read_spec(const DriverApi& api, CUdevice device) {
  GpuSpec spec;
  SpecReader reader(api, device, spec);
#define VQGEN_READ(attribute, field) reader.read(CU_DEVICE_ATTRIBUTE_##attribute, field, #attribute)
  std::array<char, 256> name{};
  api.check(api.cuDeviceGetName(name.data(), static_cast<int>(name.size()), device),
            "cuDeviceGetName", "the device");
  spec.name = name.data();
  const int major = VQGEN_READ(COMPUTE_CAPABILITY_MAJOR, "arch");
  spec.arch = arch_of(major, VQGEN_READ(COMPUTE_CAPABILITY_MINOR, ""));
  spec.warpgroup_products = has_warpgroup_products(spec.arch);
  spec.bf16_products = has_bf16_products(spec.arch);
  spec.sources["warpgroup_products"] = "PTX ISA, wgmma.mma_async: requires sm_90a";
  spec.sms = VQGEN_READ(MULTIPROCESSOR_COUNT, "sms");
  spec.registers_per_sm = VQGEN_READ(MAX_REGISTERS_PER_MULTIPROCESSOR, "registers_per_sm");
  spec.max_threads_per_sm = VQGEN_READ(MAX_THREADS_PER_MULTIPROCESSOR, "max_threads_per_sm");
  spec.max_blocks_per_sm = VQGEN_READ(MAX_BLOCKS_PER_MULTIPROCESSOR, "max_blocks_per_sm");
  spec.shared_bytes_per_sm =
      VQGEN_READ(MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, "shared_bytes_per_sm");
  spec.shared_bytes_per_block =
      VQGEN_READ(MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, "shared_bytes_per_block");
  spec.shared_bytes_reserved =
      VQGEN_READ(RESERVED_SHARED_MEMORY_PER_BLOCK, "shared_bytes_reserved");
  set_granules(spec, major);
  spec.l2_bytes = VQGEN_READ(L2_CACHE_SIZE, "l2_bytes");
  spec.sm_clock_mhz = VQGEN_READ(CLOCK_RATE, "sm_clock_mhz") / 1e3;  // kHz
  // Two transfers a clock over the bus.
  const double memory_khz = VQGEN_READ(MEMORY_CLOCK_RATE, "");
  const double bus_bits = VQGEN_READ(GLOBAL_MEMORY_BUS_WIDTH, "");
  spec.memory_gbps = 2 * memory_khz * 1e3 * bus_bits / 8 / 1e9;
  spec.sources["memory_gbps"] = "2 x MEMORY_CLOCK_RATE x GLOBAL_MEMORY_BUS_WIDTH / 8";
#undef VQGEN_READ
  std::size_t memory_bytes = 0;
  api.check(api.cuDeviceTotalMem(&memory_bytes, device), "cuDeviceTotalMem", "the device");
  spec.memory_bytes = static_cast<std::int64_t>(memory_bytes);
  spec.sources["memory_bytes"] = "cuDeviceTotalMem";
  spec.sources["name"] = "cuDeviceGetName";
  complete_unreported(spec);
  return spec;
}

}  // namespace

CudaDevice open_device(int ordinal) {
  CudaDevice device;
  device.api = open_driver();
  const DriverApi& api = device.api;
  api.check(api.cuDriverGetVersion(&device.driver_version), "cuDriverGetVersion", "the driver");
  int count = 0;
  api.check(api.cuDeviceGetCount(&count), "cuDeviceGetCount", "the driver");
  if (ordinal < 0 || ordinal >= count) {
    throw Error(
        ErrorKind::device,
        fmt::format("no CUDA device number {}: the driver shows {}; choose another, or check "
                    "CUDA_VISIBLE_DEVICES and nvidia-smi",
                    ordinal, count));
  }
  api.check(api.cuDeviceGet(&device.handle, ordinal), "cuDeviceGet",
            fmt::format("device {}", ordinal));
  device.spec = read_spec(api, device.handle);
  return device;
}

CudaDevice open_current_device() {
  const DriverApi api = open_driver();
  CUcontext context = nullptr;
  api.check(api.cuCtxGetCurrent(&context), "cuCtxGetCurrent", "the driver");
  if (context == nullptr) {
    throw Error(ErrorKind::device,
                "no CUDA context is current on this thread; make one current or name a device");
  }
  CUdevice wanted = 0;
  api.check(api.cuCtxGetDevice(&wanted), "cuCtxGetDevice", "the current context");
  int ordinal = 0;
  for (CUdevice each = -1;; ++ordinal) {
    api.check(api.cuDeviceGet(&each, ordinal), "cuDeviceGet", fmt::format("device {}", ordinal));
    if (each == wanted) break;
  }
  CudaDevice device = open_device(ordinal);
  device.borrowed = context;
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

}  // namespace vqgen
