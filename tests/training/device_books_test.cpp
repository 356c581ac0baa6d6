// K-means on a device against K-means on the CPU. VQGEN_TEST_BACKEND: host (default), race or cuda.
#include "runtime/training/device_books.h"

#include <cmath>
#include <cstdlib>
#include <limits>

#include "quantizer/train/kmeans.h"
#include "quantizer/train/train.h"
#include "runtime/backend/cuda/cuda_backend.h"
#include "runtime/backend/host/host_backend.h"
#include "tests/kernel_cache.h"
#include "tests/quantizer/samples.h"

namespace vqgen {
namespace {

using samples::normal_floats;
using samples::table_format;

std::string wanted_backend() {
  const char* wanted = std::getenv("VQGEN_TEST_BACKEND");
  return wanted != nullptr ? wanted : "host";
}

class DeviceBooks : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    const std::string wanted = wanted_backend();
    if (wanted == "cuda") {
      const char* nvrtc = std::getenv("VQGEN_NVRTC");
      backend_ =
          test::keeping_kernels(make_cuda_backend({.nvrtc_path = nvrtc != nullptr ? nvrtc : ""}))
              .release();
    } else {
      backend_ = test::keeping_kernels(make_host_backend({.order = LaneOrder::random,
                                                          .seed = 1,
                                                          .check_races = wanted == "race",
                                                          .optimize = false}))
                     .release();
    }
    cache_ = new ArtifactCache(CacheOptions{});  // in memory
  }
  static void TearDownTestSuite() {
    delete cache_;
    delete backend_;
  }
  void SetUp() override {
    if (!backend_->device()) GTEST_SKIP() << "VQGEN_TEST_BACKEND=cuda, but there is no GPU";
  }

  static std::unique_ptr<VectorBooks> on_device(const std::vector<float>& vectors,
                                                BookShape shape) {
    return make_device_books(*backend_, cache_, vectors, std::move(shape));
  }

  static inline Backend* backend_ = nullptr;
  static inline ArtifactCache* cache_ = nullptr;
};

// Books of one vector, of a few, and of more vectors than a block takes.
BookShape ragged(int dimension) { return {dimension, {0, 1, 601, 601 + 2100}}; }

std::vector<float> vectors_of(const BookShape& shape, std::uint32_t seed = 1) {
  std::vector<float> vectors = normal_floats(shape.begins.back() * shape.dimension, seed);
  for (std::size_t i = 0; i < vectors.size(); ++i) {
    vectors[i] = vectors[i] * static_cast<float>(1 + i % 3) + 0.5f;
  }
  return vectors;
}

// The sums per entry may differ by vectors between two entries; the sums over all entries may not.
void expect_like_sums(const std::vector<std::int64_t>& sums,
                      const std::vector<std::int64_t>& wanted, int dimension, std::int64_t books) {
  const auto fields = static_cast<std::size_t>(sum_fields(dimension));
  ASSERT_EQ(sums.size(), wanted.size());
  const std::size_t of_book = sums.size() / static_cast<std::size_t>(books);
  std::int64_t moved = 0;
  std::int64_t vectors = 0;
  for (std::size_t book = 0; book < static_cast<std::size_t>(books); ++book) {
    std::vector<std::int64_t> total(fields), wanted_total(fields);
    for (std::size_t i = book * of_book; i < (book + 1) * of_book; ++i) {
      total[i % fields] += sums[i];
      wanted_total[i % fields] += wanted[i];
      if (i % fields == fields - 1) moved += std::abs(sums[i] - wanted[i]);
    }
    for (std::size_t field = 0; field < fields; ++field) {
      if (field == fields - 2) {
        EXPECT_NEAR(static_cast<double>(total[field]) / static_cast<double>(wanted_total[field]), 1,
                    1e-5);
      } else {
        EXPECT_EQ(total[field], wanted_total[field]) << "field " << field;
      }
    }
    vectors += total[fields - 1];
  }
  EXPECT_LE(moved, vectors / 500);
}

TEST_F(DeviceBooks, SumAndSubtractAsTheCpuDoes) {
  for (const int dimension : {2, 4, 8, 16}) {
    const BookShape shape = ragged(dimension);
    const std::vector<float> vectors = vectors_of(shape);
    const auto device = on_device(vectors, shape);
    const auto host = make_host_books(vectors, shape);
    std::vector<SumFactors> factors;
    const std::vector<float> peaks = host->peaks();
    EXPECT_EQ(device->peaks(), peaks);
    for (std::int64_t book = 0; book < 3; ++book) {
      factors.push_back(
          sum_factors(peaks[static_cast<std::size_t>(book)], shape.count(book), dimension));
    }
    const std::vector<std::int64_t> picks{0, 0, 599, 3, 2099, 0};
    EXPECT_EQ(device->gather(picks), host->gather(picks));
    // One entry; some; more than shared memory holds, and not a multiple of what a round takes.
    for (const int entries : {1, 37, 16384 / 4 / dimension + 3}) {
      if (entries > 1000 && wanted_backend() != "cuda") continue;  // slow, and d8 has two slices
      const std::vector<float> table = normal_floats(3 * entries * dimension, 7);
      std::vector<std::int64_t> sums, wanted;
      host->sum(table, factors, wanted);
      device->sum(table, factors, sums);
      expect_like_sums(sums, wanted, dimension, 3);
    }
    const std::vector<float> table = normal_floats(3 * 5 * dimension, 8);
    device->subtract(table);
    host->subtract(table);
    const std::vector<std::int64_t> some{0, 0, 0, 300, 599, 17, 0, 2099, 1024};
    const std::vector<float> left = device->gather(some), wanted_left = host->gather(some);
    for (std::size_t i = 0; i < left.size(); ++i) EXPECT_NEAR(left[i], wanted_left[i], 1e-5);
  }
}

TEST_F(DeviceBooks, KMeansGivesTheCodebooksOfTheCpuAndTheSameTwice) {
  for (const int dimension : {4, 8}) {
    const BookShape shape{dimension, {0, 900, 2500}};
    const std::vector<float> vectors = vectors_of(shape);
    const auto entries_of = [&](VectorBooks& books) {
      std::vector<SumFactors> factors;
      for (const float peak : books.peaks()) factors.push_back(sum_factors(peak, 1600, dimension));
      return kmeans(books, {24, 4, {11, 12}, factors, {}});
    };
    const auto device = on_device(vectors, shape);
    const std::vector<float> entries = entries_of(*device);
    EXPECT_EQ(entries_of(*device), entries);
    const std::vector<float> wanted = entries_of(*make_host_books(vectors, shape));
    ASSERT_EQ(entries.size(), wanted.size());
    for (std::size_t i = 0; i < entries.size(); ++i) EXPECT_NEAR(entries[i], wanted[i], 1e-5) << i;
  }
}

TEST_F(DeviceBooks, TrainStagesOfTensors) {
  const FloatTensor tensor = samples::normal_tensor(1, 2, 120, 16, 3);
  VqFormat format = table_format(4, 4, Scope::head, 2);
  format.stage_scales = true;
  TrainRequest request{"test", format, DType::f16, &tensor, {}};
  request.options.iterations = 4;
  const Codebooks wanted = train_codebooks(request);
  request.options.make_books = [](std::vector<float> vectors, BookShape shape) {
    return on_device(vectors, std::move(shape));
  };
  const Codebooks codebooks = train_codebooks(request);
  ASSERT_EQ(codebooks.entries.size(), wanted.entries.size());
  for (std::size_t i = 0; i < wanted.entries.size(); ++i) {
    EXPECT_NEAR(f16_to_float(codebooks.entries[i]), f16_to_float(wanted.entries[i]), 2e-3) << i;
  }
  for (std::size_t i = 0; i < wanted.stage_scales.size(); ++i) {
    EXPECT_NEAR(codebooks.stage_scales[i] / wanted.stage_scales[i], 1, 1e-4);
  }
}

TEST_F(DeviceBooks, BorrowedVectorsStayAsTheyAre) {
  const BookShape shape{4, {0, 100}};
  const std::vector<float> vectors = vectors_of(shape);
  const DeviceBuffer memory(*backend_, vectors.size() * sizeof(float));
  backend_->upload(memory.data(), std::as_bytes(std::span(vectors)));
  const auto books =
      borrow_device_books(*backend_, cache_, static_cast<const float*>(memory.data()), shape);
  TrainRequest request{"test", table_format(4, 3, Scope::tensor, 3), DType::f16, nullptr, {}};
  const Codebooks codebooks = train_books(*books, request);
  EXPECT_EQ(codebooks.entries.size(), 3u * 8 * 4);
  std::vector<float> after(vectors.size());
  backend_->download(std::as_writable_bytes(std::span(after)), memory.data());
  EXPECT_EQ(after, vectors);
}

TEST_F(DeviceBooks, RefuseWhatIsNoNumberAndTooFewVectors) {
  const BookShape shape{4, {0, 700, 1400}};
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(),
                          -std::numeric_limits<float>::infinity(), 0x1p61f}) {
    std::vector<float> vectors = vectors_of(shape);
    vectors[4 * 1399 + 2] = bad;
    TrainRequest request{"test", table_format(4, 4), DType::f16, nullptr, {}};
    for (const auto& books : {on_device(vectors, shape), make_host_books(vectors, shape)}) {
      const std::string why = message_of([&] { train_books(*books, request); });
      EXPECT_NE(why.find("elements must be finite and at most 2^60"), why.npos) << why;
    }
  }
  const BookShape one{4, {0, 1}};
  TrainRequest request{"test", table_format(4, 4), DType::f16, nullptr, {}};
  EXPECT_EQ(message_of([&] { train_books(*on_device(vectors_of(one), one), request); }),
            "test: 1 sub-vectors cannot train 16 entries; calibrate on more tokens, lower "
            "index_bits, or widen the scope");
  const BookShape odd{3, {0, 1}};
  EXPECT_EQ(
      message_of([&] { on_device(vectors_of(odd), odd); }, ErrorKind::infeasible),
      "training: sub-vectors of 3 are not trained on a device, but of 2, 4, 8 and 16; train on "
      "the CPU");
}

}  // namespace
}  // namespace vqgen
