#include "runtime/backend/cuda/cuda_backend.h"

#include <fmt/format.h>

#include <atomic>
#include <mutex>

#include "core/gpu/gpu_arch.h"
#include "runtime/backend/cuda/cuda_device.h"
#include "runtime/backend/cuda/nvrtc_compile.h"

namespace vqgen {
namespace {

// A block gets this much shared memory without asking.
constexpr std::int64_t kDefaultSharedBytes = 48 * 1024;

std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

class CudaKernel final : public LoadedKernel {
 public:
  // `dependent`: launches may begin while what is before them on the stream ends.
  CudaKernel(std::shared_ptr<const CudaContext> context, const Artifact& artifact,
             const KernelSource& source, bool dependent)
      : context_(std::move(context)) {
    dependent_.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    dependent_.value.programmaticStreamSerializationAllowed = 1;
    const DriverApi& api = context_->api();
    const CudaContext::Scope scope(*context_);
    const std::string what =
        fmt::format("{} for {} (device {}, driver CUDA {})", source.op, source.arch,
                    context_->device().spec.arch, version_text(context_->device().driver_version));
    api.check(api.cuModuleLoadData(&module_, artifact.binary.data()), "cuModuleLoadData", what);
    try {
      for (const KernelEntry& entry : source.entries) {
        functions_.push_back(prepare(api, entry, source.args_bytes));
        names_.push_back(entry.name);
        // Grid, block, shared memory, stream, attributes.
        shapes_.push_back({entry.grid.x, entry.grid.y, entry.grid.z, entry.threads, 1, 1,
                           static_cast<unsigned>(entry.shared_bytes), nullptr, &dependent_,
                           dependent ? 1u : 0u});
      }
    } catch (const Error&) {
      api.cuModuleUnload(module_);
      throw;
    }
  }
  CudaKernel(const CudaKernel&) = delete;
  CudaKernel& operator=(const CudaKernel&) = delete;
  ~CudaKernel() override {
    try {
      const CudaContext::Scope scope(*context_);
      context_->api().cuModuleUnload(module_);
    } catch (const Error&) {  // the context is lost, and the module with it
    }
  }

  void enqueue(std::size_t entry, std::span<const std::byte> args, void* stream) const override {
    const CUresult result = launch(entry, args, static_cast<CUstream>(stream));
    if (result != CUDA_SUCCESS) context_->api().check(result, "cuLaunchKernelEx", names_[entry]);
  }

  CUresult launch(std::size_t entry, std::span<const std::byte> args, CUstream stream) const {
    CUlaunchConfig shape = shapes_[entry];
    shape.hStream = stream;
    void* parameters[] = {const_cast<std::byte*>(args.data())};
    return context_->api().cuLaunchKernelEx(&shape, functions_[entry], parameters, nullptr);
  }

  int resident_blocks(std::size_t entry, const KernelEntry& shape) const {
    const CudaContext::Scope scope(*context_);
    int blocks = 0;
    context_->api().check(context_->api().cuOccupancyMaxActiveBlocksPerMultiprocessor(
                              &blocks, functions_.at(entry), static_cast<int>(shape.threads),
                              static_cast<std::size_t>(shape.shared_bytes)),
                          "cuOccupancyMaxActiveBlocksPerMultiprocessor", shape.name);
    return blocks;
  }

 private:
  CUfunction prepare(const DriverApi& api, const KernelEntry& entry,
                     std::int64_t args_bytes) const {
    const auto check = [&](CUresult result, const char* call) {
      api.check(result, call, entry.name);
    };
    CUfunction function = nullptr;
    check(api.cuModuleGetFunction(&function, module_, entry.name.c_str()), "cuModuleGetFunction");
    int threads = 0;  // the query also loads the code, which is otherwise left to the first launch
    check(api.cuFuncGetAttribute(&threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function),
          "cuFuncGetAttribute");
    if (entry.threads > static_cast<unsigned>(threads)) {
      throw device_error(
          "{}: {} threads per block are more than the {} it was compiled for; regenerate it",
          entry.name, entry.threads, threads);
    }
    // A launch does not compare sizes, but reads or leaves out what differs.
    std::size_t offset = 0;
    std::size_t bytes = 0;
    check(api.cuFuncGetParamInfo(function, 0, &offset, &bytes), "cuFuncGetParamInfo");
    if (bytes != static_cast<std::size_t>(args_bytes)) {
      throw device_error("{}: takes {} bytes of arguments, not {}; regenerate it", entry.name,
                         bytes, args_bytes);
    }
    if (entry.shared_bytes > kDefaultSharedBytes) {
      api.check(api.cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                       static_cast<int>(entry.shared_bytes)),
                "cuFuncSetAttribute",
                fmt::format("{} with {} bytes of shared memory", entry.name, entry.shared_bytes));
    }
    return function;
  }

  std::shared_ptr<const CudaContext> context_;
  CUmodule module_ = nullptr;
  std::vector<CUfunction> functions_;
  CUlaunchAttribute dependent_{};
  std::vector<CUlaunchConfig> shapes_;  // an entry each, all but the stream
  std::vector<std::string> names_;
};

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(CudaOptions options) : options_(std::move(options)) {}

  std::string_view name() const override { return "cuda"; }
  Machine machine() const override { return Machine::cuda; }

  std::optional<GpuSpec> device() const override {
    try {
      return open()->spec;
    } catch (const Error&) {
      return std::nullopt;
    }
  }

  std::string driver() const override {
    try {
      return "CUDA " + version_text(open()->driver_version);
    } catch (const Error&) {
      return Backend::driver();
    }
  }

  CompilerIdentity compiler(const KernelSource& source) const override {
    if (const auto nvrtc = known_nvrtc()) return identity(*nvrtc, source);
    return opened_compiler(source);
  }
  CompilerIdentity opened_compiler(const KernelSource& source) const override {
    const std::lock_guard one(opening_mutex_);
    if (!opened_) remember(NvrtcProcess(options_).nvrtc());
    return identity(*known_nvrtc(), source);
  }

  Artifact compile(const KernelSource& source) const override {
    require_machine(source);
    NvrtcProcess process(options_);
    remember(process.nvrtc());
    return nvrtc_compile(process, source);
  }

  std::unique_ptr<LoadedKernel> load(const Artifact& artifact,
                                     const KernelSource& source) override {
    require_machine(source);
    // Texts for older architectures do not wait (VQ_KERNEL).
    const bool dependent = options_.dependent_launches && has_dependent_launches(source.arch);
    context();
    return std::make_unique<CudaKernel>(context_, artifact, source, dependent);
  }

  void* allocate(std::size_t bytes) override {
    const CudaContext::Scope scope(context());
    CUdeviceptr pointer = 0;
    // The driver refuses 0 bytes; a byte of its own keeps the pointer unique.
    api().check(api().cuMemAlloc(&pointer, bytes == 0 ? 1 : bytes), "cuMemAlloc",
                fmt::format("{} bytes of {}", bytes, context_->device().spec.name));
    return reinterpret_cast<void*>(pointer);
  }

  void release(void* pointer) noexcept override {
    if (pointer == nullptr) return;
    try {
      const CudaContext::Scope scope(context());
      api().cuMemFree(address(pointer));
    } catch (const Error&) {  // the context is lost, and its memory with it
    }
  }

  void upload(void* destination, std::span<const std::byte> source) override {
    if (source.empty()) return;
    const CudaContext::Scope scope(context());
    check(api().cuMemcpyHtoDAsync(address(destination), source.data(), source.size(),
                                  context_->stream()),
          "cuMemcpyHtoDAsync");
    synchronize();
  }

  void download(std::span<std::byte> destination, const void* source) override {
    if (destination.empty()) return;
    const CudaContext::Scope scope(context());
    check(api().cuMemcpyDtoHAsync(destination.data(), address(source), destination.size(),
                                  context_->stream()),
          "cuMemcpyDtoHAsync");
    synchronize();
  }

  std::optional<int> resident_blocks(LoadedKernel& kernel, const KernelSource& source,
                                     std::size_t entry) const override {
    return static_cast<const CudaKernel&>(kernel).resident_blocks(entry, source.entries.at(entry));
  }

  void launch(LoadedKernel& kernel, const KernelSource& source, std::size_t entry,
              std::span<const std::byte> args) override {
    const KernelEntry& shape = source.entries.at(entry);
    if (args.size() != static_cast<std::size_t>(source.args_bytes)) {
      throw Error(ErrorKind::bad_input, fmt::format("{}: {} bytes of arguments, {} wanted",
                                                    shape.name, args.size(), source.args_bytes));
    }
    const CudaContext::Scope scope(context());
    last_launch_ = shape.name;
    check(static_cast<const CudaKernel&>(kernel).launch(entry, args, context_->stream()),
          "cuLaunchKernelEx");
  }

  void synchronize() override { wait_for(context().stream()); }

  bool capturing(void* stream) const override {
    const auto device = open();
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    device->api.check(device->api.cuStreamIsCapturing(static_cast<CUstream>(stream), &status),
                      "cuStreamIsCapturing", device->spec.name);
    return status != CU_STREAM_CAPTURE_STATUS_NONE;
  }
  void wait_for(void* stream) override {
    const CudaContext::Scope scope(context());
    check(api().cuStreamSynchronize(static_cast<CUstream>(stream)), "cuStreamSynchronize");
  }
  void zero(void* destination, std::size_t bytes, void* stream) override {
    if (bytes == 0) return;
    const CudaContext::Scope scope(context());
    check(api().cuMemsetD8Async(address(destination), 0, bytes, static_cast<CUstream>(stream)),
          "cuMemsetD8Async");
  }
  void make_current() override {
    check(context().api().cuCtxSetCurrent(context_->handle()), "cuCtxSetCurrent");
  }

  std::vector<double> time_us(std::span<const Launch> launches, int replays,
                              double warm_up_ms) override {
    const CudaContext::Scope scope(context());
    const auto queue = [&] {
      for (const Launch& each : launches) launch(*each.kernel, *each.source, each.entry, each.args);
    };
    const auto checked = [&](CUresult result, const char* call) { check(result, call); };
    return context_->time_us(queue, replays, warm_up_ms, checked);
  }

 private:
  static CUdeviceptr address(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

  static void require_machine(const KernelSource& source) {
    if (source.machine == Machine::cuda) return;
    throw Error(ErrorKind::bad_input,
                fmt::format("{}: generated for the host, not for CUDA; regenerate it", source.op));
  }

  // A kernel's fault surfaces in whatever call comes next, so every error names the previous
  // launch.
  void check(CUresult result, const char* call) const {
    if (result == CUDA_SUCCESS) return;
    context_->api().check(result, call,
                          last_launch_.empty()
                              ? context_->device().spec.name
                              : fmt::format("the stream, last launch '{}'", last_launch_));
  }

  // Identity of the open library, or of the file that would be opened: both are the same.
  static CompilerIdentity identity(const NvrtcFile& nvrtc, const KernelSource& source) {
    return {fmt::format("nvrtc {}.{} {}", nvrtc.major, nvrtc.minor, nvrtc.build),
            nvrtc_options(nvrtc.major, nvrtc.minor, source)};
  }

  // The library opened last, else the file that will be opened; nullopt if unknown.
  std::optional<NvrtcFile> known_nvrtc() const {
    const std::lock_guard lock(mutex_);
    if (!nvrtc_)
      nvrtc_ = find_nvrtc(options_.nvrtc_path, nvrtc_helper_folder(options_.nvrtc_helper));
    return nvrtc_;
  }
  void remember(const NvrtcFile& opened) const {
    const std::lock_guard lock(mutex_);
    nvrtc_ = opened;
    opened_ = true;
  }

  std::shared_ptr<const CudaDevice> open() const {
    const std::lock_guard lock(mutex_);
    if (!device_) {
      device_ = std::make_shared<CudaDevice>(
          options_.current_context ? open_current_device() : open_device(options_.device));
    }
    return device_;
  }

  // Once it has returned, a thread may read context_.
  const CudaContext& context() {
    const auto device = open();
    const std::lock_guard lock(mutex_);
    if (!context_) context_ = std::make_shared<CudaContext>(device);
    return *context_;
  }
  const DriverApi& api() const { return context_->api(); }

  CudaOptions options_;
  mutable std::mutex opening_mutex_;  // one process tells who NVRTC is
  mutable std::mutex mutex_;          // guards what is opened and found
  mutable std::optional<NvrtcFile> nvrtc_;
  mutable std::atomic<bool> opened_{false};  // nvrtc_ is of an opened library
  mutable std::shared_ptr<const CudaDevice> device_;
  std::shared_ptr<const CudaContext> context_;
  std::string last_launch_;
};

}  // namespace

std::unique_ptr<Backend> make_cuda_backend(CudaOptions options) {
  return std::make_unique<CudaBackend>(std::move(options));
}

}  // namespace vqgen
