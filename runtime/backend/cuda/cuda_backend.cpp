#include "runtime/backend/cuda/cuda_backend.h"

#include <fmt/format.h>

#include <mutex>

#include "core/gpu/gpu_arch.h"
#include "runtime/backend/cuda/cuda_device.h"
#include "runtime/backend/cuda/cuda_graph.h"
#include "runtime/backend/cuda/helper_path.h"
#include "runtime/backend/cuda/nvrtc_compile.h"
#include "runtime/backend/cuda/nvrtc_file.h"

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
        CUlaunchConfig& shape = shapes_.emplace_back();
        shape.gridDimX = entry.grid.x;
        shape.gridDimY = entry.grid.y;
        shape.gridDimZ = entry.grid.z;
        shape.blockDimX = entry.threads;
        shape.blockDimY = shape.blockDimZ = 1;
        shape.sharedMemBytes = static_cast<unsigned>(entry.shared_bytes);
        if (dependent) {
          shape.attrs = &dependent_;
          shape.numAttrs = 1;
        }
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

  CUfunction function(std::size_t entry) const { return functions_.at(entry); }

  int resident_blocks(std::size_t entry, const KernelEntry& shape) const {
    const CudaContext::Scope scope(*context_);
    int blocks = 0;
    context_->api().check(context_->api().cuOccupancyMaxActiveBlocksPerMultiprocessor(
                              &blocks, function(entry), static_cast<int>(shape.threads),
                              static_cast<std::size_t>(shape.shared_bytes)),
                          "cuOccupancyMaxActiveBlocksPerMultiprocessor", shape.name);
    return blocks;
  }

 private:
  CUfunction prepare(const DriverApi& api, const KernelEntry& entry,
                     std::int64_t args_bytes) const {
    CUfunction function = nullptr;
    api.check(api.cuModuleGetFunction(&function, module_, entry.name.c_str()),
              "cuModuleGetFunction", entry.name);
    int threads = 0;  // the query also loads the code, which is otherwise left to the first launch
    api.check(api.cuFuncGetAttribute(&threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function),
              "cuFuncGetAttribute", entry.name);
    if (entry.threads > static_cast<unsigned>(threads)) {
      throw Error(ErrorKind::device, fmt::format("{}: {} threads a block are more than the {} it "
                                                 "was compiled for; regenerate it",
                                                 entry.name, entry.threads, threads));
    }
    // A launch does not compare sizes, but reads or leaves out what differs.
    std::size_t offset = 0;
    std::size_t bytes = 0;
    api.check(api.cuFuncGetParamInfo(function, 0, &offset, &bytes), "cuFuncGetParamInfo",
              entry.name);
    if (bytes != static_cast<std::size_t>(args_bytes)) {
      throw Error(ErrorKind::device, fmt::format("{}: takes {} bytes of arguments, not {}; "
                                                 "regenerate it",
                                                 entry.name, bytes, args_bytes));
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
  explicit CudaBackend(CudaOptions options)
      : options_(std::move(options)),
        nvrtc_options_{options_.nvrtc_path, options_.nvrtc_helper, options_.compile_longest} {}

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
    if (const auto file = unopened_nvrtc()) return identity(*file, source);
    return opened_compiler(source);
  }
  CompilerIdentity opened_compiler(const KernelSource& source) const override {
    const std::lock_guard lock(opening_mutex_);
    if (!nvrtc()) remember(NvrtcProcess(nvrtc_options_).nvrtc());
    return identity(*nvrtc(), source);
  }

  Artifact compile(const KernelSource& source) const override {
    require_machine(source);
    NvrtcProcess process(nvrtc_options_);
    remember(process.nvrtc());
    return nvrtc_compile(process, source);
  }

  std::unique_ptr<LoadedKernel> load(const Artifact& artifact,
                                     const KernelSource& source) override {
    require_machine(source);
    // Texts for older architectures do not wait (VQ_KERNEL).
    const bool dependent = options_.dependent_launches && arch_number(source.arch) >= 90;
    return std::make_unique<CudaKernel>(context(), artifact, source, dependent);
  }

  void* allocate(std::size_t bytes) override {
    const auto held = context();
    const CudaContext::Scope scope(*held);
    CUdeviceptr pointer = 0;
    // The driver refuses 0 bytes; a byte of its own keeps the pointer unique.
    held->api().check(held->api().cuMemAlloc(&pointer, bytes == 0 ? 1 : bytes), "cuMemAlloc",
                      fmt::format("{} bytes of {}", bytes, held->device().spec.name));
    return reinterpret_cast<void*>(pointer);
  }

  void release(void* pointer) noexcept override {
    if (pointer == nullptr) return;
    try {
      const auto held = context();
      const CudaContext::Scope scope(*held);
      held->api().cuMemFree(address(pointer));
    } catch (const Error&) {  // the context is lost, and its memory with it
    }
  }

  void upload(void* destination, std::span<const std::byte> source) override {
    if (source.empty()) return;
    const auto held = context();
    const CudaContext::Scope scope(*held);
    check(held->api().cuMemcpyHtoDAsync(address(destination), source.data(), source.size(),
                                        held->stream()),
          "cuMemcpyHtoDAsync");
    check(held->api().cuStreamSynchronize(held->stream()), "cuStreamSynchronize");
  }

  void download(std::span<std::byte> destination, const void* source) override {
    if (destination.empty()) return;
    const auto held = context();
    const CudaContext::Scope scope(*held);
    check(held->api().cuMemcpyDtoHAsync(destination.data(), address(source), destination.size(),
                                        held->stream()),
          "cuMemcpyDtoHAsync");
    check(held->api().cuStreamSynchronize(held->stream()), "cuStreamSynchronize");
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
    const auto held = context();
    const CudaContext::Scope scope(*held);
    last_launch_ = shape.name;
    check(static_cast<const CudaKernel&>(kernel).launch(entry, args, held->stream()),
          "cuLaunchKernelEx");
  }

  void synchronize() override {
    const auto held = context();
    const CudaContext::Scope scope(*held);
    check(held->api().cuStreamSynchronize(held->stream()), "cuStreamSynchronize");
  }

  bool capturing(void* stream) const override {
    const auto device = open();
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    device->api.check(device->api.cuStreamIsCapturing(static_cast<CUstream>(stream), &status),
                      "cuStreamIsCapturing", device->spec.name);
    return status != CU_STREAM_CAPTURE_STATUS_NONE;
  }
  void wait_for(void* stream) override {
    const auto held = context();
    const CudaContext::Scope scope(*held);
    check(held->api().cuStreamSynchronize(static_cast<CUstream>(stream)), "cuStreamSynchronize");
  }
  void zero(void* destination, std::size_t bytes, void* stream) override {
    if (bytes == 0) return;
    const auto held = context();
    const CudaContext::Scope scope(*held);
    check(
        held->api().cuMemsetD8Async(address(destination), 0, bytes, static_cast<CUstream>(stream)),
        "cuMemsetD8Async");
  }
  void make_current() override {
    const auto held = context();
    check(held->api().cuCtxSetCurrent(held->handle()), "cuCtxSetCurrent");
  }

  std::vector<double> time_us(std::span<const Launch> launches, int replays,
                              double warm_up_ms) override {
    const auto held = context();
    const CudaContext::Scope scope(*held);
    const CudaGraph graph(*held, [&] {
      for (const Launch& each : launches) launch(*each.kernel, *each.source, each.entry, each.args);
    });
    const auto checked = [&](CUresult result, const char* call) { check(result, call); };
    return graph.time_us(replays, warm_up_ms, checked);
  }

 private:
  static CUdeviceptr address(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

  static void require_machine(const KernelSource& source) {
    if (source.machine == Machine::cuda) return;
    throw Error(ErrorKind::bad_input,
                fmt::format("{}: generated for the host, not for CUDA; regenerate it", source.op));
  }

  // Faults of a kernel arrive at whatever call comes next, so all of them name the last launch.
  void check(CUresult result, const char* call) const {
    if (result == CUDA_SUCCESS) return;
    context_->api().check(result, call,
                          last_launch_.empty()
                              ? context_->device().spec.name
                              : fmt::format("the stream, last launch '{}'", last_launch_));
  }

  // Of what is open, or of the file that would be: they say the same.
  template <class Nvrtc>
  static CompilerIdentity identity(const Nvrtc& nvrtc, const KernelSource& source) {
    return {fmt::format("nvrtc {}.{} {}", nvrtc.major, nvrtc.minor, nvrtc.build),
            nvrtc_options(nvrtc.major, nvrtc.minor, source)};
  }

  // The file that will be opened, while none has been and where that can be told.
  std::optional<NvrtcFile> unopened_nvrtc() const {
    const std::lock_guard lock(mutex_);
    if (nvrtc_) return std::nullopt;
    if (!nvrtc_file_) {
      nvrtc_file_ = find_nvrtc(options_.nvrtc_path, nvrtc_helper_folder(options_.nvrtc_helper));
    }
    return nvrtc_file_;
  }

  // The one that was opened last; nullopt before.
  std::optional<OpenedNvrtc> nvrtc() const {
    const std::lock_guard lock(mutex_);
    return nvrtc_;
  }
  void remember(const OpenedNvrtc& opened) const {
    const std::lock_guard lock(mutex_);
    nvrtc_ = opened;
  }

  std::shared_ptr<const CudaDevice> open() const {
    const std::lock_guard lock(mutex_);
    if (!device_) {
      device_ = std::make_shared<CudaDevice>(
          options_.current_context ? open_current_device() : open_device(options_.device));
    }
    return device_;
  }

  std::shared_ptr<const CudaContext> context() {
    const auto device = open();
    const std::lock_guard lock(mutex_);
    if (!context_) context_ = std::make_shared<CudaContext>(device);
    return context_;
  }

  CudaOptions options_;
  NvrtcOptions nvrtc_options_;
  mutable std::mutex opening_mutex_;  // one process tells who NVRTC is
  mutable std::mutex mutex_;          // guards what is opened and found
  mutable std::optional<OpenedNvrtc> nvrtc_;
  mutable std::optional<NvrtcFile> nvrtc_file_;
  mutable std::shared_ptr<const CudaDevice> device_;
  std::shared_ptr<const CudaContext> context_;
  std::string last_launch_;
};

}  // namespace

std::unique_ptr<Backend> make_cuda_backend(CudaOptions options) {
  return std::make_unique<CudaBackend>(std::move(options));
}

}  // namespace vqgen
