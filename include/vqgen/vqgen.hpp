// C++20 interface of libvqgen: vqgen.h with owning handles, and exceptions instead of statuses. It
// is header-only over the C functions, so that program and library need no common C++ ABI.
//
//   vqgen::Runtime runtime;                                  // device 0, default cache
//   vqgen::Op op = runtime.prepare_file("config.json");      // throws vqgen::StatusError
//   void* workspace = allocate(op.workspace_bytes());
//   vqgen_linear_args args{.rows = 1, .x = x, .y = y, .weights = weights};
//   op.launch(args, workspace, op.workspace_bytes(), stream);
#pragma once

#include <vqgen/vqgen.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

// The inline namespace keeps these classes apart from the library's own if it is linked statically.
namespace vqgen {
inline namespace api0 {

// Thrown by all calls that fail; what() is one line with what failed, on what, and the remedy.
class StatusError : public std::runtime_error {
 public:
  StatusError(vqgen_status status, const char* message)
      : std::runtime_error(message), status_(status) {}
  vqgen_status status() const noexcept { return status_; }

 private:
  vqgen_status status_;
};

// Throws StatusError unless the status is VQGEN_OK.
inline void require(vqgen_status status) {
  if (status != VQGEN_OK) throw StatusError(status, vqgen_last_error());
}

// A prepared op, from Runtime::prepare(): an owning handle, cheap to move, whose kernels stay
// loaded as long as it lives. Synchronize its launches before it goes. Thread-safe.
class Op {
 public:
  // Takes ownership of the handle.
  explicit Op(vqgen_op* owned) : op_(owned, &vqgen_op_release) {}

  vqgen_provenance provenance() const { return vqgen_op_provenance(op_.get()); }
  // Bytes of 16-byte aligned device memory for any launch; for launches of `count` tokens or rows.
  std::size_t workspace_bytes() const { return vqgen_op_workspace_bytes(op_.get()); }
  std::size_t workspace_bytes(std::int64_t count) const {
    return vqgen_op_workspace_bytes_for(op_.get(), count);
  }
  // Tokens or rows that the kernel for `count` of them was made for; 0 if there is none.
  std::int64_t bucket(std::int64_t count) const { return vqgen_op_bucket(op_.get(), count); }
  // JSON with problem, arguments and plans (vqgen_op_description()); lives as long as this.
  const char* description() const { return vqgen_op_description(op_.get()); }
  vqgen_op* get() const { return op_.get(); }

  // Queue the op's kernels on `stream` (null: the default stream) and return; launch.h has the
  // arguments. They set struct_bytes, allocate nothing unless they throw, and throw StatusError.
  void launch(vqgen_attention_args args, void* workspace, std::size_t workspace_bytes,
              void* stream = nullptr) const {
    args.struct_bytes = sizeof(args);
    require(vqgen_attention_launch(op_.get(), &args, workspace, workspace_bytes, stream));
  }
  void launch(vqgen_linear_args args, void* workspace, std::size_t workspace_bytes,
              void* stream = nullptr) const {
    args.struct_bytes = sizeof(args);
    require(vqgen_linear_launch(op_.get(), &args, workspace, workspace_bytes, stream));
  }

  void launch(vqgen_append_args args, void* workspace, std::size_t workspace_bytes,
              void* stream = nullptr) const {
    args.struct_bytes = sizeof(args);
    require(vqgen_append_launch(op_.get(), &args, workspace, workspace_bytes, stream));
  }
  void launch(vqgen_kv_dequantize_args args, void* stream = nullptr) const {
    args.struct_bytes = sizeof(args);
    require(vqgen_kv_dequantize_launch(op_.get(), &args, stream));
  }
  void launch(vqgen_weight_dequantize_args args, void* stream = nullptr) const {
    args.struct_bytes = sizeof(args);
    require(vqgen_weight_dequantize_launch(op_.get(), &args, stream));
  }
  void launch(vqgen_merge_args args, void* stream = nullptr) const {
    args.struct_bytes = sizeof(args);
    require(vqgen_attention_merge_launch(op_.get(), &args, stream));
  }
  void launch(vqgen_scalar_args args, void* workspace, std::size_t workspace_bytes,
              void* stream = nullptr) const {
    args.struct_bytes = sizeof(args);
    require(vqgen_scalar_launch(op_.get(), &args, workspace, workspace_bytes, stream));
  }

 private:
  std::unique_ptr<vqgen_op, decltype(&vqgen_op_release)> op_;
};

// Errors of [tokens][channels] fp32 matrices in host memory (vqgen_measure_scalar_errors()).
inline vqgen_scalar_errors measure_scalar_errors(const float* original, const float* restored,
                                                 std::int64_t tokens, std::int64_t channels,
                                                 const float* queries = nullptr,
                                                 std::int64_t query_count = 0) {
  vqgen_scalar_errors errors{};
  require(vqgen_measure_scalar_errors(original, restored, tokens, channels, queries, query_count,
                                      &errors));
  return errors;
}

// The options that vqgen_options_init() sets.
inline vqgen_options default_options() {
  vqgen_options options;
  vqgen_options_init(&options);
  return options;
}

// One device and one context of it. Ops may outlive it. Thread-safe; functions throw StatusError.
class Runtime {
 public:
  explicit Runtime(const vqgen_options& options = default_options())
      : runtime_(create(options), &vqgen_runtime_destroy) {}

  // Prepares an op from a config's JSON, or a config file; not while this thread captures a stream
  // (vqgen_prepare()).
  Op prepare(const std::string& config, void* stream = nullptr) const {
    vqgen_op* op = nullptr;
    require(vqgen_prepare(runtime_.get(), config.c_str(), stream, &op));
    return Op(op);
  }
  Op prepare_file(const std::string& path, void* stream = nullptr) const {
    vqgen_op* op = nullptr;
    require(vqgen_prepare_file(runtime_.get(), path.c_str(), stream, &op));
    return Op(op);
  }
  // Prepares all configs, `threads` at a time (1..256), and keeps their ops.
  void prefetch(std::span<const std::string> configs, int threads) const {
    std::vector<const char*> texts;
    for (const std::string& each : configs) texts.push_back(each.c_str());
    require(vqgen_prefetch(runtime_.get(), texts.data(), texts.size(), threads));
  }
  // From now on an op that this runtime does not have yet is VQGEN_MISS.
  void freeze() const { vqgen_freeze(runtime_.get()); }
  // JSON array of {"most", "plan"}: plans that launches of `least` to `most` can reach.
  std::string enumerate(const std::string& config, std::int64_t least, std::int64_t most) const {
    char* text = nullptr;
    require(vqgen_enumerate(runtime_.get(), config.c_str(), least, most, &text));
    const std::unique_ptr<char, decltype(&vqgen_text_free)> owned(text, &vqgen_text_free);
    return owned.get();
  }
  // Does nothing; kept for programs that call it (vqgen_workspace_init()).
  void init_workspace(void* workspace, std::size_t bytes, void* stream = nullptr) const {
    require(vqgen_workspace_init(runtime_.get(), workspace, bytes, stream));
  }
  // Makes the CUDA context current on this thread, as launches need it.
  void make_current() const { require(vqgen_make_current(runtime_.get())); }
  // Waits for all work on the stream.
  void synchronize(void* stream = nullptr) const {
    require(vqgen_synchronize(runtime_.get(), stream));
  }
  vqgen_runtime* get() const { return runtime_.get(); }

 private:
  static vqgen_runtime* create(const vqgen_options& options) {
    vqgen_runtime* runtime = nullptr;
    require(vqgen_runtime_create(&options, &runtime));
    return runtime;
  }
  std::unique_ptr<vqgen_runtime, decltype(&vqgen_runtime_destroy)> runtime_;
};

// An owned array of `count` elements in device memory, 256-byte aligned, for tests and small
// programs. It must not outlive its runtime.
template <class T>
class DeviceArray {
 public:
  DeviceArray(const Runtime& runtime, std::size_t count) : runtime_(runtime.get()), count_(count) {
    require(vqgen_alloc(runtime_, count * sizeof(T), &pointer_));
  }
  DeviceArray(const Runtime& runtime, std::span<const T> values)
      : DeviceArray(runtime, values.size()) {
    require(vqgen_upload(runtime_, pointer_, values.data(), values.size_bytes()));
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() { vqgen_free(runtime_, pointer_); }

  T* data() const { return static_cast<T*>(pointer_); }
  // Copies the elements to the host; synchronize launches that write them first.
  std::vector<T> fetch() const {
    std::vector<T> values(count_);
    require(vqgen_download(runtime_, values.data(), pointer_, count_ * sizeof(T)));
    return values;
  }

 private:
  vqgen_runtime* runtime_;
  std::size_t count_;
  void* pointer_ = nullptr;
};

// Registers memory that kernels of the host backend may touch while this lives
// (vqgen_register_host_memory()). It must not outlive its runtime.
class Lent {
 public:
  Lent(const Runtime& runtime, const void* memory, std::size_t bytes)
      : runtime_(runtime.get()), memory_(memory), bytes_(bytes) {
    require(vqgen_register_host_memory(runtime_, memory_, bytes_));
  }
  Lent(Lent&& other) noexcept
      : runtime_(other.runtime_),
        memory_(std::exchange(other.memory_, nullptr)),
        bytes_(other.bytes_) {}
  Lent& operator=(Lent&&) = delete;
  ~Lent() { vqgen_unregister_host_memory(runtime_, memory_, bytes_); }

 private:
  vqgen_runtime* runtime_;
  const void* memory_;
  std::size_t bytes_;
};

// Copies codes of `heads` heads in host memory from one layout to another (vqgen_repack()).
inline std::vector<std::uint32_t> repack(std::span<const std::uint32_t> codes, vqgen_layout from,
                                         vqgen_layout to, std::int64_t heads, std::int64_t rows,
                                         std::int64_t row_words) {
  const std::int64_t words = vqgen_layout_words(to, heads, rows, row_words);
  if (words == 0) throw StatusError(VQGEN_BAD_INPUT, vqgen_last_error());
  std::vector<std::uint32_t> result(static_cast<std::size_t>(words));
  require(vqgen_repack(codes.data(), from, static_cast<std::int64_t>(codes.size()), result.data(),
                       to, words, heads, rows, row_words));
  return result;
}

}  // namespace api0
}  // namespace vqgen
