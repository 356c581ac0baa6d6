#include "quantizer/train/train.h"

#include <cmath>
#include <set>
#include <thread>

#include "quantizer/encode.h"
#include "quantizer/integers.h"
#include "tests/quantizer/samples.h"

namespace vqgen {
namespace {

using samples::normal_tensor;
using samples::table_format;

TrainRequest request_for(const VqFormat& format, const FloatTensor& calibration,
                         std::uint64_t seed = 1) {
  TrainRequest request{"test", format, DType::f16, &calibration, {}};
  request.options.seed = seed;
  return request;
}

double error_with(const VqFormat& format, const FloatTensor& tensor) {
  const Codebooks codebooks = train_codebooks(request_for(format, tensor));
  return reconstruction_error(tensor, decode(encode(tensor, codebooks))).mse;
}

TEST(Train, TheSameSeedGivesTheSameBytesAndAnotherSeedOthers) {
  const FloatTensor tensor = normal_tensor(1, 2, 200, 32, 1);
  const VqFormat format = table_format(4, 6, Scope::head, 2);
  const Codebooks first = train_codebooks(request_for(format, tensor, 7));
  EXPECT_EQ(train_codebooks(request_for(format, tensor, 7)).entries, first.entries);
  EXPECT_NE(train_codebooks(request_for(format, tensor, 8)).entries, first.entries);
  Codebooks elsewhere;  // another thread has its own OpenMP settings
  std::thread([&] { elsewhere = train_codebooks(request_for(format, tensor, 7)); }).join();
  EXPECT_EQ(elsewhere.entries, first.entries);
}

// All formats with scales: of channels, of int8 entries and of others, in each stage.
TEST(Train, DeadChannelsTakeTheLeastScaleOfTheirHead) {
  FloatTensor tensor = normal_tensor(1, 2, 200, 16, 1);
  for (std::int64_t row = 0; row < 400; ++row) {
    for (std::size_t i = 4; i < 8; ++i) tensor.row(row)[i] = 0;  // of both heads
    for (float& value : tensor.row(row)) value *= tensor.head_of(row) == 0 ? 0.01f : 1.0f;
  }
  VqFormat scalar = table_format(2, 16, Scope::channel_group);
  scalar.decoder = Decoder::scalar;
  VqFormat entries = table_format(4, 3, Scope::channel_group, 2);
  entries.stage_scales = true;
  VqFormat integers = entries;
  integers.entry_type = EntryType::int8;
  VqFormat common = integers;
  common.common_scale = true;
  for (const VqFormat& format : {scalar, entries, integers, common}) {
    const Codebooks books = train_codebooks(request_for(format, tensor));
    std::vector<float> scales = books.stage_scales;
    if (format.is_scalar()) {
      for (const std::uint16_t bits : books.entries) scales.push_back(f16_to_float(bits));
    }
    const std::size_t units = format.is_scalar() ? 16 : 4;  // of a head
    const std::size_t stages = scales.size() / (2 * units);
    for (std::size_t head = 0; head < 2; ++head) {
      for (std::size_t stage = 0; stage < stages; ++stage) {
        const auto scale = [&](std::size_t unit) {
          return scales[(head * units + unit) * stages + stage];
        };
        float least = INFINITY;
        for (std::size_t unit = 0; unit < units; ++unit) {
          if (unit / (units / 4) != 1) least = std::min(least, scale(unit));
        }
        for (std::size_t unit = units / 4; unit < units / 2; ++unit) {
          if (format.common_scale && stage > 0) {
            EXPECT_EQ(scale(unit), scales[(head * units + unit) * stages]);
          } else {
            EXPECT_EQ(scale(unit), least) << head << ' ' << unit << ' ' << stage;
          }
        }
      }
    }
  }
}

TEST(Train, SamplingIsSeededToo) {
  const FloatTensor tensor = normal_tensor(1, 1, 2000, 16, 1);
  TrainRequest request = request_for(table_format(4, 3), tensor, 7);
  request.options.max_points = 400;
  request.options.max_points_per_entry = 50;
  const Codebooks first = train_codebooks(request);
  EXPECT_EQ(train_codebooks(request).entries, first.entries);
  request.options.seed = 8;
  EXPECT_NE(train_codebooks(request).entries, first.entries);
}

TEST(Train, FindsClustersThatAreThere) {
  // 16 well separated points with a little noise around each: every point gets an entry.
  FloatTensor tensor = normal_tensor(1, 1, 1600, 2, 1);
  for (std::int64_t row = 0; row < 1600; ++row) {
    tensor.row(row)[0] = tensor.row(row)[0] * 0.01f + static_cast<float>(row % 4) * 10.0f;
    tensor.row(row)[1] = tensor.row(row)[1] * 0.01f + static_cast<float>(row / 4 % 4) * 10.0f;
  }
  // Lloyd's iterations may keep two centroids in one cluster; one of a few seeds finds all
  // clusters.
  double best = INFINITY;
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    const Codebooks codebooks = train_codebooks(request_for(table_format(2, 5), tensor, seed));
    best = std::min(best, reconstruction_error(tensor, decode(encode(tensor, codebooks))).mse);
  }
  EXPECT_LT(best, 1e-3);
}

TEST(Train, ScalarScalesFollowTheLargestOfEachChannel) {
  FloatTensor tensor = normal_tensor(1, 2, 50, 8, 1);
  for (std::int64_t row = 0; row < 100; ++row) {
    tensor.row(row)[3] = 0.0f;                      // a channel of zeros
    tensor.row(row)[4] = row < 50 ? 5.0f : -0.25f;  // constants
    tensor.row(row)[5] *= 100.0f;
  }
  for (const Decoder decoder : {Decoder::scalar, Decoder::e4m3}) {
    VqFormat format{.vector_size = 2, .index_bits = 16, .scope = Scope::channel_group};
    format.decoder = decoder;
    const Codebooks codebooks = train_codebooks(request_for(format, tensor));
    ASSERT_EQ(codebooks.entries.size(), 16u);  // [head][channel]
    const FloatTensor decoded = decode(encode(tensor, codebooks));
    const float peak = scalar_peak(format);
    for (std::size_t channel = 0; channel < 16; ++channel) {
      float most = 0;
      float away = 0;
      for (std::int64_t row = 0; row < 50; ++row) {
        const std::int64_t at = static_cast<std::int64_t>(channel / 8) * 50 + row;
        most = std::max(most, std::abs(tensor.row(at)[channel % 8]));
        away = std::max(away, std::abs(tensor.row(at)[channel % 8] - decoded.row(at)[channel % 8]));
      }
      const float scale = element_to_float(DType::f16, codebooks.entries[channel]);
      if (channel % 8 == 3) {
        float least = INFINITY;
        for (std::size_t other = channel - 3; other < channel + 5; ++other) {
          const float own = element_to_float(DType::f16, codebooks.entries[other]);
          if (other != channel) least = std::min(least, own);
        }
        EXPECT_EQ(scale, least);
        EXPECT_EQ(away, 0.0f);
        continue;
      }
      EXPECT_GE(scale * peak, most);
      EXPECT_LE(scale * peak, most * 1.002f);
      // Half a step of e4m3 at the top of its range, where a step is 32.
      EXPECT_LE(away, scale * (decoder == Decoder::scalar ? 0.5f : 16.0f) * 1.0001f);
    }
    format.scope = Scope::head;
    const Codebooks by_head = train_codebooks(request_for(format, tensor));
    ASSERT_EQ(by_head.entries.size(), 4u);
    EXPECT_EQ(by_head.entries[0], by_head.entries[1]);
    FloatTensor huge = tensor;
    huge.data[0] = 1e9f;
    EXPECT_THROW(train_codebooks(request_for(format, huge)), Error);
  }
}

TEST(Train, ResidualStagesReduceTheErrorMonotonically) {
  const FloatTensor tensor = normal_tensor(1, 1, 400, 32, 1);
  for (const bool scales : {false, true}) {
    double before = INFINITY;
    for (int stages = 1; stages <= 4; ++stages) {
      VqFormat format = table_format(4, 4, Scope::tensor, stages);
      format.stage_scales = scales;
      const double error = error_with(format, tensor);
      EXPECT_LT(error, before * 0.8) << stages << " stages";
      before = error;
    }
  }
}

TEST(Train, WideVectorsAndManyStagesAreTrainedAndEncoded) {
  for (const int size : {16, 32, 48, 64, 80, 96, 128}) {
    const FloatTensor tensor = normal_tensor(1, 1, 300, size, 1);
    double before = INFINITY;
    for (const int stages : {1, 6, 36}) {
      const double error = error_with(table_format(size, 5, Scope::tensor, stages), tensor);
      EXPECT_LT(error, before * 0.97) << size << " x " << stages;
      before = error;
    }
  }
}

TEST(Train, WideVectorsThatAreTooFewOrNoNumbersAreRefused) {
  const VqFormat format = table_format(80, 6, Scope::tensor, 20);
  FloatTensor tensor = normal_tensor(1, 1, 63, 80, 1);
  const auto message = [&] {
    return message_of([&] { train_codebooks(request_for(format, tensor)); });
  };
  EXPECT_NE(message().find("63 sub-vectors cannot train 64 entries"), std::string::npos);
  tensor = normal_tensor(1, 1, 100, 80, 1);
  tensor.row(99)[79] = NAN;
  EXPECT_NE(message().find("elements must be finite"), std::string::npos) << message();
}

TEST(Train, MoreBitsAndNarrowerScopesReduceTheError) {
  FloatTensor tensor = normal_tensor(1, 2, 600, 16, 1);
  for (std::int64_t row = 0; row < tensor.row_count(); ++row) {
    for (std::size_t i = 0; i < 8; ++i) tensor.row(row)[i] *= 3.0f;
    for (float& value : tensor.row(row)) value *= static_cast<float>(1 + tensor.head_of(row));
  }
  EXPECT_LT(error_with(table_format(4, 6), tensor), error_with(table_format(4, 4), tensor));
  EXPECT_LT(error_with(table_format(4, 4, Scope::head), tensor),
            error_with(table_format(4, 4), tensor));
  EXPECT_LT(error_with(table_format(4, 4, Scope::channel_group), tensor),
            error_with(table_format(4, 4, Scope::head), tensor));
}

TEST(Train, StageScalesAreTheRootMeanSquareOfTheirResidual) {
  FloatTensor tensor = normal_tensor(1, 1, 500, 16, 1);
  for (float& value : tensor.data) value *= 1000.0f;
  VqFormat format = table_format(4, 5, Scope::tensor, 2);
  format.stage_scales = true;
  const Codebooks codebooks = train_codebooks(request_for(format, tensor));
  ASSERT_EQ(codebooks.stage_scales.size(), 2u);
  double energy = 0;
  for (const float value : tensor.data) energy += double{value} * value;
  const double size = static_cast<double>(tensor.data.size());
  EXPECT_NEAR(codebooks.stage_scales[0] / std::sqrt(energy / size), 1.0, 1e-5);

  Codebooks first = codebooks;  // stage 0 alone
  first.format.num_codebooks = 1;
  first.entries.resize(32 * 4);
  first.stage_scales.resize(1);
  const double left = reconstruction_error(tensor, decode(encode(tensor, first))).mse;
  EXPECT_NEAR(codebooks.stage_scales[1] / std::sqrt(left), 1.0, 1e-3);
}

TEST(Train, IntegersReachTheirEndsAndCostLittle) {
  FloatTensor tensor = normal_tensor(1, 2, 500, 16, 1);
  for (float& value : tensor.data) value *= 1000.0f;
  VqFormat format = table_format(4, 6, Scope::head, 2);
  format.stage_scales = true;
  const double exact = error_with(format, tensor);
  format.entry_type = EntryType::int8;
  const Codebooks codebooks = train_codebooks(request_for(format, tensor));
  const std::size_t stage_size = 64 * 4;
  ASSERT_EQ(codebooks.entries.size(), 4 * stage_size);
  for (std::size_t stage = 0; stage < 4; ++stage) {
    float peak = 0;
    for (std::size_t i = 0; i < stage_size; ++i) {
      const float value = f16_to_float(codebooks.entries[stage * stage_size + i]);
      EXPECT_EQ(value, std::round(value));
      peak = std::max(peak, std::abs(value));
    }
    EXPECT_EQ(peak, 127.0f) << stage;
  }
  const double rounded = reconstruction_error(tensor, decode(encode(tensor, codebooks))).mse;
  EXPECT_LT(rounded, exact * 1.02);
}

TEST(Train, StagesOfACommonScaleSumToBytesAndCostLittle) {
  const FloatTensor tensor = normal_tensor(1, 2, 500, 16, 1);
  VqFormat format = table_format(8, 6, Scope::head, 2);
  format.stage_scales = true;
  const double exact = error_with(format, tensor);
  format.entry_type = EntryType::int8;
  format.common_scale = true;
  const Codebooks codebooks = train_codebooks(request_for(format, tensor));
  ASSERT_EQ(codebooks.stage_scales.size(), 4u);
  const std::size_t unit_size = 2 * 64 * 8;
  for (std::size_t unit = 0; unit < 2; ++unit) {
    EXPECT_EQ(codebooks.stage_scales[2 * unit], codebooks.stage_scales[2 * unit + 1]);
    float peak = 0;
    for (std::size_t i = 0; i < unit_size; ++i) {
      const float value = f16_to_float(codebooks.entries[unit * unit_size + i]);
      EXPECT_EQ(value, std::round(value));
      peak = std::max(peak, std::abs(value));
    }
    EXPECT_EQ(peak, 63.0f) << unit;
  }
  EXPECT_LT(reconstruction_error(tensor, decode(encode(tensor, codebooks))).mse, exact * 1.02);
  Codebooks apart = codebooks;
  apart.stage_scales[1] *= 2;
  EXPECT_NE(message_of([&] { encode(tensor, apart); }).find("scales that differ"),
            std::string::npos);
  apart = codebooks;
  apart.entries[0] = f16_from_float(64.0f);
  EXPECT_NE(message_of([&] { encode(tensor, apart); }).find("from -63 to 63"), std::string::npos);
}

TEST(Train, TrainedEntriesBecomeIntegersWithTheirCodes) {
  const FloatTensor tensor = normal_tensor(1, 1, 300, 16, 1);
  VqFormat format = table_format(8, 5, Scope::tensor, 2);
  const QuantizedTensor exact = encode(tensor, train_codebooks(request_for(format, tensor)));
  for (const bool weights : {false, true}) {
    QuantizedTensor rounded = exact;
    const double change = round_to_integers(rounded, weights, "here");
    EXPECT_EQ(rounded.codes, exact.codes);
    EXPECT_EQ(rounded.format.common_scale, weights);
    EXPECT_TRUE(fits_stage_scales(rounded.format, rounded.stage_scales));
    for (const std::uint16_t bits : rounded.codebooks) {
      EXPECT_TRUE(fits_entries(rounded.format, f16_to_float(bits)));
    }
    EXPECT_NEAR(reconstruction_error(decode(exact), decode(rounded)).relative, change, 1e-12);
    EXPECT_GT(change, 0);
    EXPECT_LT(change, 0.02);
    EXPECT_NE(
        message_of([&] { round_to_integers(rounded, weights, "here"); }, ErrorKind::infeasible)
            .find("here: the entries are integers already"),
        std::string::npos);
  }
  QuantizedTensor zeros = exact;
  std::fill(zeros.codebooks.begin(), zeros.codebooks.end(), std::uint16_t{0});
  EXPECT_EQ(round_to_integers(zeros, true, "here"), 0.0);
}

TEST(Train, AnAllZeroTensorIsNoTrouble) {
  const FloatTensor zeros{1, 1, 64, 8, std::vector<float>(512, 0.0f)};
  VqFormat format = table_format(4, 4, Scope::tensor, 2);
  format.stage_scales = true;
  EXPECT_EQ(error_with(format, zeros), 0.0);
  format.entry_type = EntryType::int8;
  EXPECT_EQ(error_with(format, zeros), 0.0);
}

TEST(Train, ALatticeIsGivenAndItsScalesAreFitted) {
  FloatTensor tensor = normal_tensor(1, 2, 100, 32, 1);
  for (std::int64_t row = 100; row < 200; ++row) {
    for (float& value : tensor.row(row)) value *= 16.0f;
  }
  const VqFormat format = samples::lattice_format(Scope::head, 2, true);
  const Codebooks codebooks = train_codebooks(request_for(format, tensor));
  EXPECT_EQ(codebooks.entries, samples::lattice_codebooks(format, 2, DType::f16).entries);
  ASSERT_EQ(codebooks.stage_scales.size(), 4u);
  EXPECT_NEAR(codebooks.stage_scales[0], 1.0f, 0.15f);
  EXPECT_NEAR(codebooks.stage_scales[2] / codebooks.stage_scales[0], 16.0f, 2.0f);
  for (const std::size_t head : {0u, 2u}) {
    EXPECT_NEAR(codebooks.stage_scales[head + 1] / codebooks.stage_scales[head], 0.27f, 0.06f);
  }
  EXPECT_EQ(train_codebooks(request_for(format, tensor)).stage_scales, codebooks.stage_scales);

  double before = INFINITY;
  for (const int stages : {1, 2, 3}) {
    const double error = error_with(samples::lattice_format(Scope::head, stages, true), tensor);
    EXPECT_LT(error, before * 0.3) << stages;
    before = error;
  }
}

TEST(Train, ALatticeTakesFewVectorsZerosAndASample) {
  const VqFormat format = samples::lattice_format(Scope::tensor, 2, true);
  EXPECT_LT(error_with(format, normal_tensor(1, 1, 1, 8, 1)), 0.05);
  EXPECT_EQ(error_with(format, FloatTensor{1, 1, 3, 8, std::vector<float>(24, 0.0f)}), 0.0);
  const FloatTensor large = normal_tensor(1, 1, 10000, 8, 1);  // sampled, by the seed
  const auto scales = [&](std::uint64_t seed) {
    return train_codebooks(
               request_for(samples::lattice_format(Scope::tensor, 1, true), large, seed))
        .stage_scales;
  };
  EXPECT_EQ(scales(3), scales(3));
  VqFormat plain = format;
  plain.stage_scales = false;
  EXPECT_TRUE(train_codebooks(request_for(plain, large)).stage_scales.empty());
}

TEST(Train, RefusesTooFewVectorsAndSaysWhatToDo) {
  const FloatTensor tensor = normal_tensor(1, 2, 31, 8, 1);
  const std::string message =
      message_of([&] { train_codebooks(request_for(table_format(4, 6, Scope::head), tensor)); });
  EXPECT_EQ(message,
            "test: 62 sub-vectors cannot train 64 entries; calibrate on more tokens, lower "
            "index_bits, or widen the scope");
  train_codebooks(request_for(table_format(4, 6), tensor));
  message_of([&] { train_codebooks(request_for(table_format(4, 6), FloatTensor{})); });
}

TEST(Train, RefusesEntriesThatTheElementTypeCannotHold) {
  FloatTensor tensor = normal_tensor(1, 1, 64, 8, 1);
  for (float& value : tensor.data) value *= 1e6f;
  TrainRequest request = request_for(table_format(4, 3), tensor);
  EXPECT_NE(message_of([&] { train_codebooks(request); }).find("beyond f16"), std::string::npos);
  request.dtype = DType::bf16;
  train_codebooks(request);
}

TEST(Train, WarnsOfFewVectorsAndReportsProgress) {
  const FloatTensor tensor = normal_tensor(1, 2, 40, 8, 1);
  TrainRequest request = request_for(table_format(4, 4, Scope::head, 2), tensor);
  std::vector<std::string> warnings;
  std::vector<double> fractions;
  std::set<std::string> labels;
  request.options.warn = [&](const std::string& message) { warnings.push_back(message); };
  request.options.progress = [&](double fraction, const std::string& label) {
    fractions.push_back(fraction);
    labels.insert(label);
  };
  train_codebooks(request);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find("80 sub-vectors for 16 entries"), std::string::npos);
  EXPECT_TRUE(std::is_sorted(fractions.begin(), fractions.end()));
  EXPECT_EQ(fractions.front(), 0.0);
  EXPECT_EQ(fractions.back(), 1.0);
  EXPECT_TRUE(labels.contains("test: 2 codebooks, stage 2 of 2, iteration 1 of at most 30"));
}

}  // namespace
}  // namespace vqgen
