// Each call of a timing reads the codes and codebooks of another layer: the number of places, and
// the arrays that launches of all ops get; each launch runs on the host to check its result.
#include "runtime/rotation.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include <vq/args/attention_decode.h>
#include <vq/args/attention_merge.h>
#include <vq/args/kv_append.h>
#include <vq/args/linear.h>

#include "core/profiles.h"
#include "heuristics/choose.h"
#include "runtime/measure.h"
#include "tests/core/support.h"
#include "tests/tuning/host_with.h"

namespace vqgen {
namespace {

constexpr std::int64_t kMiB = 1 << 20;

TEST(Rotation, OthersTouchThreeCachesBetweenTwoCallsOnOnePlace) {
  for (const std::int64_t l2 : {4 * kMiB, 60 * kMiB, 126 * kMiB}) {
    for (const std::int64_t codes : {100'000l, 512 * 1024l, 2 * kMiB, 33 * kMiB, 180 * kMiB}) {
      for (const std::int64_t codebooks : {512l, 32 * 1024l, kMiB, 9 * kMiB, 500 * kMiB}) {
        const Rotation r = rotation_of({codes, codes, codebooks}, l2);
        if (3 * l2 / codes > kMostPlaces) continue;
        EXPECT_GE(std::max(r.codes - 1, 1) * codes, 3 * l2);
        EXPECT_GE((r.codebooks - 1) * (codes + codebooks), 3 * l2);
        EXPECT_GE(r.codebooks, 2);
        EXPECT_TRUE(r.codes == 1 || r.codes % r.codebooks == 0);
        EXPECT_EQ(r.calls % r.places(), 0);
        EXPECT_GE(r.calls, 16);
        EXPECT_LE(r.codebooks * codebooks, 2 * (3 * l2 + 2 * (codes + codebooks)));
        EXPECT_LE(r.codes * codes, std::max(kMostStored, codes));
      }
    }
  }
}

// Experts with rows take turns: calls on one of them are as far apart as those on one layer.
TEST(Rotation, ExpertsTakeTurns) {
  for (const int turns : {1, 3, 8, 128}) {
    for (const std::int64_t codes : {1024l, 512 * 1024l, 15 * kMiB, 117 * kMiB}) {
      const std::int64_t codebooks = codes / 64;
      const Rotation r = rotation_of({codes, codes * turns, codebooks, turns}, 50 * kMiB);
      EXPECT_EQ(r.turns, turns);
      EXPECT_EQ(r.calls % r.places(), 0);
      EXPECT_EQ(r.places() % turns, 0);
      EXPECT_LE(r.places(), kMostPlaces + turns * r.codes);
      if (150 * kMiB / codes > kMostPlaces / 2) continue;
      EXPECT_GE(std::max<std::int64_t>(std::int64_t{turns} * r.codes - turns, turns) * codes,
                150 * kMiB);
    }
  }
}

TEST(Rotation, PlacesAreBounded) {
  const Rotation tiny = rotation_of({64, 64, 32}, 60 * kMiB);
  EXPECT_EQ(tiny.codes, kMostPlaces);
  EXPECT_EQ(tiny.codebooks, kMostPlaces);
  const Rotation huge = rotation_of({40'000 * kMiB, 40'000 * kMiB, kMiB}, 60 * kMiB);
  EXPECT_EQ(huge.codes, 1);
  EXPECT_EQ(huge.codebooks, 2);
  // A cache of 300 MiB, of which a call writes few rows.
  const Rotation append = rotation_of({4096, 300 * kMiB, 64 * 1024}, 60 * kMiB);
  EXPECT_EQ(append.codes, 3);
  EXPECT_EQ(append.codebooks % 3, 0);
  for (std::int64_t stored = kMiB; stored < 300 * kMiB; stored += 7 * kMiB) {
    const Rotation r = rotation_of({4096, stored, 512 * 1024}, 60 * kMiB);
    EXPECT_TRUE(r.codes % r.codebooks == 0 || r.codebooks % r.codes == 0) << stored;
    EXPECT_EQ(r.calls % r.codes, 0) << stored;
    EXPECT_EQ(r.calls % r.codebooks, 0) << stored;
  }
  EXPECT_GE((append.codebooks - 1) * (64 * 1024 + 4096), 180 * kMiB);
}

// The arrays that one launch got, and its output.
struct SeenLaunch {
  std::vector<const void*> codes,
      codebooks;  // of each tensor; codebooks with scales and smooth factors
  std::vector<std::byte> output;
};

// Notes the launches that would be timed, and runs each on poisoned outputs.
class NotingBackend final : public test::HostWith {
 public:
  std::vector<double> time_us(std::span<const Launch> launches, int, double) override {
    seen.clear();
    for (const Launch& each : launches) note(each);
    return {8.0};
  }

  std::vector<SeenLaunch> seen;
  Problem problem;

 private:
  template <class Args>
  static Args args_of(const Launch& launch) {
    Args args{};
    std::memcpy(&args, launch.args.data(), sizeof(args));
    return args;
  }
  void run(const Launch& each, SeenLaunch& noted, void* output, std::size_t bytes) {
    noted.output.assign(bytes, std::byte{0xff});
    upload(output, noted.output);
    launch(*each.kernel, *each.source, each.entry, each.args);
    download(noted.output, output);
  }
  void note(const Launch& each) {
    SeenLaunch& noted = seen.emplace_back();
    if (const auto* op = std::get_if<AttentionDecode>(&problem)) {
      const auto args = args_of<vq::AttentionDecodeArgs>(each);
      noted.codes = {args.keys.codes, args.values.codes, args.raw_keys, args.raw_values};
      noted.codebooks = {args.keys.codebooks, args.values.codebooks, args.key_smooth};
      run(each, noted, args.out,
          std::size_t{2} * static_cast<std::size_t>(op->shape.query_heads * op->shape.head_dim));
    } else if (const auto* append = std::get_if<KvAppend>(&problem)) {
      const auto args = args_of<vq::KvAppendArgs>(each);
      noted.codes = {args.keys.codes, args.values.codes, args.raw_keys, args.raw_values};
      noted.codebooks = {args.keys.codebooks, args.values.codebooks, args.key_smooth};
      const auto words = args.keys.head_stride * append->shape.kv_heads;
      run(each, noted, args.keys.codes, static_cast<std::size_t>(4 * words));
    } else if (const auto* merge = std::get_if<AttentionMerge>(&problem)) {
      const auto args = args_of<vq::AttentionMergeArgs>(each);
      noted.codes = {args.outs[0], args.outs[1], args.lses[0], args.lses[1]};
      run(each, noted, args.out, static_cast<std::size_t>(merge->shape.head_dim) * 2);
    } else {
      const auto& shape = as_linear(problem)->shape;
      const auto args = args_of<vq::LinearArgs>(each);
      noted.codes = {args.weights.codes};
      noted.codebooks = {args.weights.codebooks, args.weights.scales, args.output_scales};
      run(each, noted, args.y,
          std::size_t{2} * static_cast<std::size_t>(shape.rows * shape.out_features));
    }
  }
};

Json tiny_attention() {
  return edited(attention_json(), {{"/shape/batch", "1"},
                                   {"/shape/tokens", "40"},
                                   {"/shape/recent_tokens", "8"},
                                   {"/keys/index_bits", "4"},
                                   {"/keys/smooth", "true"},
                                   {"/values/index_bits", "4"}});
}
Json tiny_append() {
  return edited(append_json(), {{"/shape/batch", "1"},
                                {"/shape/tokens", "40"},
                                {"/shape/recent_tokens", "8"},
                                {"/keys/index_bits", "4"},
                                {"/keys/smooth", "true"},
                                {"/values/index_bits", "4"}});
}
Json tiny_merge() {
  return edited(merge_json(), {{"/shape/rows", "3"}, {"/shape/heads", "1"}, {"/shape/parts", "2"}});
}
Json tiny_product(const char* op) {
  return edited(gemv_json(), {{"/op", op},
                              {"/shape/out_features", "48"},
                              {"/shape/in_features", "64"},
                              {"/weights/index_bits", "4"},
                              {"/weights/stage_scales", "true"},
                              {"/weights/output_scales", "true"}});
}

class Rotated : public testing::TestWithParam<Json> {
 protected:
  // The launches of one measurement by the rules' plan.
  std::vector<SeenLaunch> timed(const MeasureOptions& options) {
    backend_.problem = read_config(GetParam(), "tiny").problem;
    GpuSpec gpu = find_gpu("a100");
    gpu.l2_bytes = 8192;
    Measurer measurer(backend_, gpu, backend_.problem, options);
    const Plan plan = choose(backend_.problem, gpu, {.chooser = Chooser::rules});
    CompiledPlan candidate = measurer.compile(plan);
    EXPECT_EQ(candidate.source.entries.size(), 1u);
    measurer.verify(candidate);
    EXPECT_EQ(candidate.measurement.outcome, Outcome::timed) << candidate.measurement.why;
    measurer.time(candidate);
    EXPECT_EQ(std::ssize(backend_.seen), measurer.rotation().calls);
    places_ = measurer.rotation();
    return backend_.seen;
  }

  NotingBackend backend_;
  Rotation places_;
};

// How many of the launches get an array that no previous one got.
std::size_t distinct(const std::vector<SeenLaunch>& launches,
                     std::vector<const void*> SeenLaunch::*arrays, std::size_t which) {
  std::set<const void*> all;
  for (const SeenLaunch& each : launches) all.insert((each.*arrays)[which]);
  return all.size();
}

TEST_P(Rotated, EachPlaceHasCodesAndCodebooksOfItsOwnAndTheSameResult) {
  const std::vector<SeenLaunch> launches = timed({});
  ASSERT_GE(places_.codebooks, 3);
  for (std::size_t i = 0; i < launches[0].codebooks.size(); ++i) {
    ASSERT_NE(launches[0].codebooks[i], nullptr) << i;
    EXPECT_EQ(distinct(launches, &SeenLaunch::codebooks, i), places_.codebooks) << i;
  }
  for (std::size_t i = 0; i < launches[0].codes.size(); ++i) {
    ASSERT_NE(launches[0].codes[i], nullptr) << i;
    EXPECT_EQ(distinct(launches, &SeenLaunch::codes, i), places_.codes) << i;
  }
  // The first place is the one that verify() judged.
  for (const SeenLaunch& each : launches) EXPECT_EQ(each.output, launches[0].output);
}

// The experts with rows change from call to call, and repeat with the layers.
TEST(RotatedExperts, HaveRowsInTurns) {
  NotingBackend backend;
  const Json config =
      edited(tiny_product(R"("gemv")"),
             {{"/shape/m", "2"}, {"/shape/experts", "9"}, {"/shape/total_rows", "4"}});
  backend.problem = read_config(config, "tiny").problem;
  GpuSpec gpu = find_gpu("a100");
  gpu.l2_bytes = 8192;
  MeasureOptions options;
  options.input.active_experts = 2;
  Measurer measurer(backend, gpu, backend.problem, options);
  const Rotation rotation = measurer.rotation();
  EXPECT_EQ(rotation.turns, 4);  // 2 of 9 each
  EXPECT_EQ(measurer.code_bytes(), 2 * 48 * 4 * as_linear(backend.problem)->weights.row_words(64));
  CompiledPlan candidate =
      measurer.compile(choose(backend.problem, gpu, {.chooser = Chooser::rules}));
  measurer.verify(candidate);
  ASSERT_EQ(candidate.measurement.outcome, Outcome::timed) << candidate.measurement.why;
  measurer.time(candidate);
  ASSERT_EQ(std::ssize(backend.seen), rotation.calls);
  ASSERT_GT(rotation.codes, 1);
  for (std::size_t call = 0; call < backend.seen.size(); ++call) {
    const std::size_t turn = call % 4;
    EXPECT_EQ(backend.seen[call].codes, backend.seen[call - turn].codes) << call;
    for (std::size_t other = 0; other < 4; ++other) {
      EXPECT_EQ(backend.seen[call].output == backend.seen[other].output, other == turn) << call;
    }
  }
}

TEST_P(Rotated, WarmCodebooksAreThoseOfTheFirstPlace) {
  MeasureOptions options;
  options.codebooks = CodebookCaching::warm;
  const std::vector<SeenLaunch> launches = timed(options);
  for (std::size_t i = 0; i < launches[0].codebooks.size(); ++i) {
    EXPECT_EQ(distinct(launches, &SeenLaunch::codebooks, i), 1u) << i;
  }
  EXPECT_EQ(distinct(launches, &SeenLaunch::codes, 0), places_.codes);
}

TEST_P(Rotated, AHostTimesOneCallOnOnePlace) {
  EXPECT_EQ(timed(on_host({})).size(), 1u);
  EXPECT_EQ(places_.codes, 1);
  EXPECT_EQ(places_.codebooks, 1);
}

INSTANTIATE_TEST_SUITE_P(Ops, Rotated,
                         testing::Values(tiny_attention(), tiny_append(), tiny_merge(),
                                         tiny_product("\"gemv\""), tiny_product("\"gemm\"")),
                         [](const auto& each) {
                           return each.param.at("op").template get<std::string>();
                         });

}  // namespace
}  // namespace vqgen
