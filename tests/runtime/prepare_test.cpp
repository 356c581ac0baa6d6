// prepare() with access_counts: compiles, places by the kernel's registers, and compiles at most
// once more, only if that gains something.
#include "runtime/prepare.h"

#include "core/access/access_counts.h"
#include "core/files/files.h"
#include "core/profiles.h"
#include "tests/cache/fixtures.h"
#include "tests/core/access_counts_samples.h"
#include "tests/core/support.h"

namespace vqgen {
namespace {

class Prepare : public testing::Test {
 protected:
  // 4 of 256 entries of each stage take most of the accesses.
  Prepare() {
    std::vector<std::int64_t> counts(256, 1);
    std::fill_n(counts.begin(), 4, 200);
    AccessCounts profile = profile_of({{counts}}, 1);
    profile.operand = Operand::weights;
    profile.format.scope = Scope::tensor;
    profile.format.vector_size = 4;
    const std::string file = (folder_.path() / "p.json").string();
    publish_text(file, access_counts_text({profile}));
    config_ = read_config(
        edited(gemv_json(), {{"/weights", R"({"vector_size": 4, "index_bits": 8})"}}), "c.json");
    config_.access_counts = file;
    backend_.describe = [this](const KernelSource& source, KernelResources& kernel) {
      const bool held = source.text.find("codebook.registers = 4;") != std::string::npos;
      kernel.registers = held ? held_ : bare_;
      kernel.spill_bytes = held ? held_spills_ : 0;
    };
  }
  Prepared prepared(ArtifactCache* cache = nullptr) {
    return prepare(config_, gpu_, backend_, cache,
                   {.chooser = Chooser::rules, .place = {.strategy = Strategy::paper}});
  }
  static int registers(const Prepared& prepared) {
    return placement_of(prepared.plan, Operand::weights)->registers;
  }
  static std::string last_reason(const Prepared& prepared) {
    return prepared.placements.at(0).reasons.back();
  }

  TempFolder folder_;
  Config config_;
  GpuSpec gpu_ = find_gpu("h200");
  test::CountingBackend backend_;
  int bare_ = 40;
  int held_ = 56;
  int held_spills_ = 0;
};

TEST_F(Prepare, CompilesAgainWithTheRegistersThatAreFree) {
  const Prepared result = prepared();
  EXPECT_EQ(registers(result), 4) << last_reason(result);
  EXPECT_EQ(backend_.compilations, 2);
  EXPECT_NE(result.source.text.find("codebook.registers = 4;"), std::string::npos);
  EXPECT_EQ(result.artifact.kernels.front().registers, 56);
  EXPECT_EQ(result.placements.at(0).placement.registers, 4);
}

TEST_F(Prepare, CompilesOnceWhereNothingChanges) {
  bare_ = 255;  // no register is free
  EXPECT_EQ(registers(prepared()), 0);
  EXPECT_EQ(backend_.compilations, 1);
  bare_ = 0;  // a machine without registers, such as the host
  const Prepared result = prepared();
  EXPECT_EQ(registers(result), 0);
  EXPECT_EQ(backend_.compilations, 2);
  expect_words(last_reason(result), {"known once the kernel is compiled"});
}

TEST_F(Prepare, KeepsTheFirstKernelWhereTheSecondIsWorse) {
  held_spills_ = 64;
  Prepared result = prepared();
  EXPECT_EQ(registers(result), 0);
  EXPECT_EQ(backend_.compilations, 2);
  EXPECT_EQ(result.source.entries.front().name.find("_r4"), std::string::npos);
  expect_words(last_reason(result), {"tried, but the kernel then spills 64 bytes"});
  held_spills_ = 0;
  config_ = read_config(edited(to_json(config_.problem), {{"/shape/out_features", "65536"}}), "c");
  config_.access_counts = (folder_.path() / "p.json").string();
  bare_ = 50;
  held_ = 200;  // one block instead of four
  result = prepared();
  EXPECT_EQ(registers(result), 0);
  expect_words(last_reason(result), {"tried, but the kernel then takes 200", "blocks stay"});
}

TEST_F(Prepare, BothKernelsAreCached) {
  ArtifactCache cache({.folder = folder_.path() / "cache"});
  EXPECT_FALSE(prepared(&cache).cache_hit);
  EXPECT_TRUE(prepared(&cache).cache_hit);
  EXPECT_EQ(backend_.compilations, 2);
}

TEST_F(Prepare, WithoutAccessCountsThereIsOneKernelAndNoReason) {
  config_.access_counts.reset();
  const Prepared result = prepared();
  EXPECT_EQ(backend_.compilations, 1);
  EXPECT_TRUE(result.placements.empty());
  EXPECT_EQ(result.plan, plan_for(config_, gpu_, Chooser::rules));
}

TEST_F(Prepare, StrategyPaperSetsTheFusionAndTheConfigGoesOverIt) {
  const auto fusion_of = [this](Strategy strategy) {
    const Plan plan =
        plan_with(config_, gpu_, access_counts_of(config_), {.place = {.strategy = strategy}}).plan;
    return std::get<LinearMma>(plan).fusion;
  };
  EXPECT_EQ(fusion_of(Strategy::measured), LinearFusion::permute);
  EXPECT_EQ(fusion_of(Strategy::paper), LinearFusion::registers);
  config_.plan = parse_json(R"({"fusion": "shared"})", "plan");
  EXPECT_EQ(fusion_of(Strategy::paper), LinearFusion::shared);
}

// The plan is refused before its codebooks are placed by the profile, since placing counts what its
// blocks do.
TEST_F(Prepare, APlanThatCannotRunIsRefusedBeforeItIsPlaced) {
  for (const char* fixed :
       {R"({"dataflow": "mma", "threads": 32, "warps_along_columns": 2})",
        R"({"dataflow": "wgmma", "threads": 64, "fetch_only_warps": 2, "prefetch_steps": 1})"}) {
    config_.plan = parse_json(fixed, "plan");
    EXPECT_NE(message_of([&] { prepared(); }, ErrorKind::infeasible).find("/plan"),
              std::string::npos)
        << fixed;
  }
}

TEST_F(Prepare, TheConfigsOwnBoundariesGoFirst) {
  config_.plan = parse_json(R"({"codebook": {"registers": 1, "shared": 100}})", "plan");
  const Prepared result = prepared();
  EXPECT_EQ(*placement_of(result.plan, Operand::weights),
            (Placement{.registers = 1, .shared = 100}));
  EXPECT_EQ(backend_.compilations, 1);
  EXPECT_EQ(result.placements.at(0).placement, *placement_of(result.plan, Operand::weights));
  expect_words(last_reason(result), {"the config's own plan fixes boundaries"});
}

TEST_F(Prepare, AMissingOrWrongProfileIsAnError) {
  const auto message = [&] { return message_of([&] { prepared(); }); };
  config_.access_counts = (folder_.path() / "none.json").string();
  expect_words(message(), {"none.json"});
  publish_text(*config_.access_counts, R"({"schema": 1, "profiles": []})");
  expect_words(message(), {"none.json: holds no profile of weights"});
  EXPECT_EQ(backend_.compilations, 0);
}

}  // namespace
}  // namespace vqgen
