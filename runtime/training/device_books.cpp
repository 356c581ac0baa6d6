#include "runtime/training/device_books.h"

#include <fmt/format.h>
#include <vq/args/training.h>

#include <bit>
#include <limits>

#include "generator/generate.h"

namespace vqgen {
namespace {

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

// Device memory of the most T that were asked for so far.
template <class T>
class Array {
 public:
  explicit Array(Backend& backend) : backend_(backend) {}
  T* of(std::size_t count) {
    if (buffer_.bytes() < count * sizeof(T)) {
      buffer_ = {};
      buffer_ = DeviceBuffer(backend_, count * sizeof(T));
    }
    return static_cast<T*>(buffer_.data());
  }
  T* filled(std::span<const T> values) {
    T* const memory = of(values.size());
    backend_.upload(memory, std::as_bytes(values));
    return memory;
  }

 private:
  Backend& backend_;
  DeviceBuffer buffer_;
};

class DeviceBooks : public VectorBooks {
 public:
  DeviceBooks(Backend& backend, ArtifactCache* cache, BookShape shape)
      : VectorBooks(std::move(shape)),
        backend_(backend),
        own_(backend),
        entries_(backend),
        factors_(backend),
        sums_(backend),
        peaks_(backend),
        picks_(backend),
        picked_(backend),
        begins_(backend) {
    const int size = shape_.dimension;
    if (!trains_on_devices(size)) {
      throw Error(ErrorKind::infeasible,
                  fmt::format("training: sub-vectors of {} are not trained on a device, but of 2, "
                              "4, 8 and 16; train on the CPU",
                              size));
    }
    if (shape_.begins.back() > std::numeric_limits<vq::u32>::max()) {
      throw Error(ErrorKind::infeasible,
                  fmt::format("training: {} sub-vectors at once are too many; give fewer than 2^32",
                              shape_.begins.back()));
    }
    std::int64_t most = 0;
    for (std::int64_t book = 0; book < shape_.books(); ++book) {
      most = std::max(most, shape_.count(book));
    }
    const std::optional<GpuSpec> device = backend.device();
    if (!device) throw device_error("training: this machine has no device; train on the CPU");
    source_ = training_source(size, shape_.books(), most, backend.machine(),
                              backend.machine() == Machine::cuda ? device->arch : "host");
    kernel_ = backend.load(compile_cached(backend, source_, cache).artifact, source_);
    const std::vector<vq::u32> begins(shape_.begins.begin(), shape_.begins.end());
    args_.begins = begins_.filled(begins);
    args_.blocks = static_cast<int>(source_.entries.front().grid.x);
    args_.books = static_cast<int>(shape_.books());
  }
  DeviceBooks(const DeviceBooks&) = delete;
  DeviceBooks& operator=(const DeviceBooks&) = delete;
  ~DeviceBooks() override {
    if (borrowed_ != nullptr) backend_.give_back(borrowed_, elements() * sizeof(float));
  }

  void take(std::span<const float> vectors) { args_.vectors = own_.filled(vectors); }
  void borrow(const float* vectors) {
    backend_.lend(vectors, elements() * sizeof(float));
    borrowed_ = vectors;
    args_.vectors = vectors;
    backend_.wait_for(nullptr);
  }

  std::vector<float> peaks() override {
    const std::size_t each = static_cast<std::size_t>(args_.blocks) * vq::kTrainingWarps;
    std::vector<vq::u32> bits(books() * each);
    args_.peaks = peaks_.of(bits.size());
    launch(TrainingKernel::peaks);
    download(bits, args_.peaks);
    std::vector<float> result;
    for (std::size_t book = 0; book < books(); ++book) {
      const auto begin = bits.begin() + static_cast<std::ptrdiff_t>(book * each);
      result.push_back(std::bit_cast<float>(
          *std::max_element(begin, begin + static_cast<std::ptrdiff_t>(each))));
    }
    return result;
  }

  std::vector<float> gather(std::span<const std::int64_t> picks) override {
    const std::vector<vq::u32> numbers(picks.begin(), picks.end());
    std::vector<float> result(picks.size() * size());
    args_.picks = picks_.filled(numbers);
    args_.picked = picked_.of(result.size());
    args_.count = static_cast<int>(picks.size() / books());
    launch(TrainingKernel::gather);
    download(result, args_.picked);
    return result;
  }

  void sum(std::span<const float> entries, std::span<const SumFactors> factors,
           std::vector<std::int64_t>& sums) override {
    set_entries(entries);
    std::vector<float> pairs;
    for (const SumFactors& each : factors) pairs.insert(pairs.end(), {each.element, each.distance});
    args_.factors = factors_.filled(pairs);
    sums.resize(entries.size() / size() * (size() + 2));
    args_.sums = sums_.of(sums.size());
    backend_.zero(args_.sums, sums.size() * sizeof(vq::u64), nullptr);
    backend_.wait_for(nullptr);
    launch(TrainingKernel::sums);
    download(sums, args_.sums);
  }

  void subtract(std::span<const float> entries) override {
    set_entries(entries);
    args_.left = own_.of(elements());
    launch(TrainingKernel::subtract);
    backend_.synchronize();
    args_.vectors = args_.left;
  }

 private:
  std::size_t books() const { return static_cast<std::size_t>(shape_.books()); }
  std::size_t size() const { return static_cast<std::size_t>(shape_.dimension); }
  std::size_t elements() const { return static_cast<std::size_t>(shape_.begins.back()) * size(); }

  void set_entries(std::span<const float> entries) {
    args_.entries = entries_.filled(entries);
    args_.count = static_cast<int>(entries.size() / size() / books());
  }
  void launch(TrainingKernel kernel) {
    backend_.launch(*kernel_, source_, static_cast<std::size_t>(kernel), bytes_of(args_));
  }
  template <class T>
  void download(std::vector<T>& to, const void* from) {
    backend_.download(std::as_writable_bytes(std::span(to)), from);
  }

  Backend& backend_;
  KernelSource source_;
  std::unique_ptr<LoadedKernel> kernel_;
  vq::TrainingArgs args_{};
  const float* borrowed_ = nullptr;
  Array<float> own_, entries_, factors_;
  Array<vq::u64> sums_;
  Array<vq::u32> peaks_, picks_;
  Array<float> picked_;
  Array<vq::u32> begins_;
};

}  // namespace

bool trains_on_devices(int vector_size) {
  return vector_size == 2 || vector_size == 4 || vector_size == 8 || vector_size == 16;
}

KernelSource training_source(int vector_size, std::int64_t books, std::int64_t vectors,
                             Machine machine, const std::string& arch) {
  const std::int64_t most = vq::kTrainingBooksAtOnce;
  const std::int64_t of_block = vq::training_block_vectors(vector_size);
  const auto size = [](std::int64_t blocks) { return static_cast<unsigned>(blocks); };
  const Dim3 grid{size((vectors + of_block - 1) / of_block), size(std::min(books, most)),
                  size((books + most - 1) / most)};
  KernelSource source;
  source.op = "training";
  source.machine = machine;
  source.arch = arch;
  source.text = template_text("vq/training/training.cuh", machine) + "#line 1 \"entries\"\n";
  source.args_bytes = sizeof(vq::TrainingArgs);
  for (const char* kernel : {"sums", "subtract", "peaks", "gather"}) {
    const std::string function = fmt::format("training_{}", kernel);
    source.entries.push_back({fmt::format("{}_d{}", function, vector_size), grid,
                              vq::kTrainingThreads, vq::training_shared_bytes(vector_size)});
    source.text +=
        fmt::format("VQ_KERNEL({}, {}, vq::TrainingArgs) {{ vq::{}<{}>(args); }}\n",
                    source.entries.back().name, vq::kTrainingThreads, function, vector_size);
  }
  return source;
}

std::unique_ptr<VectorBooks> make_device_books(Backend& backend, ArtifactCache* cache,
                                               std::span<const float> vectors, BookShape shape) {
  auto books = std::make_unique<DeviceBooks>(backend, cache, std::move(shape));
  books->take(vectors);
  return books;
}

std::unique_ptr<VectorBooks> borrow_device_books(Backend& backend, ArtifactCache* cache,
                                                 const float* vectors, BookShape shape) {
  auto books = std::make_unique<DeviceBooks>(backend, cache, std::move(shape));
  books->borrow(vectors);
  return books;
}

}  // namespace vqgen
