// NVRTC compiles every example config for every architecture, in both element types for sm_75 (no
// bf16 instructions) and for the lattice (adds elements), and also GEMM fusions and kernels with
// the last block's merge. Needs no GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <set>

#include "core/gpu/gpu_arch.h"
#include "core/profiles.h"
#include "generator/generate.h"
#include "heuristics/space.h"
#include "runtime/backend/cuda/cuda_backend.h"
#include "runtime/prepare.h"
#include "runtime/training/device_books.h"
#include "tests/kernel_cache.h"
#include "tests/source_folder.h"
#include "tests/sweep/plans.h"
#include "tests/thirds.h"

namespace vqgen {
namespace {

bool on_lattice(const Problem& problem) {
  const Linear* op = as_linear(problem);
  return op != nullptr && op->weights.decoder == Decoder::e8p;
}

// A GPU of each architecture; plans of its other GPUs differ only in sizes.
constexpr const char* kOneOfEach[] = {"t4", "a100", "a10", "l40s", "h200", "b200", "rtx5090"};

// Backend and GPU. Skips with a message if NVRTC does not know the architecture, as versions before
// 12.8 do not know Blackwell.
class Architectures : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    KernelSource empty;
    empty.text = "extern \"C\" __global__ void empty() {}\n";
    empty.op = "empty";
    empty.arch = gpu.arch;
    empty.entries.push_back({"empty", Dim3{}, 32, 0});
    try {
      backend->compile(empty);
    } catch (const Error& error) {
      const std::string why = error.what();
      if (why.find("cannot compile for") == why.npos) throw;
      GTEST_SKIP() << why;
    }
  }
  const std::unique_ptr<Backend> backend = test::keeping_kernels(make_cuda_backend());
  const GpuSpec gpu = find_gpu(GetParam());
};

TEST_P(Architectures, EveryExampleCompiles) {
  std::vector<std::pair<std::filesystem::path, DType>> cases;
  for (const auto& file :
       std::filesystem::directory_iterator(test::source_folder() / "examples/configs")) {
    if (file.path().extension() != ".json") continue;
    cases.emplace_back(file.path(), DType::f16);
    if (gpu.arch == "sm_75" || on_lattice(read_config(file.path()).problem)) {
      cases.emplace_back(file.path(), DType::bf16);
    }
  }
  EXPECT_GE(cases.size(), gpu.arch == "sm_75" ? 16u : 9u);
  std::sort(cases.begin(), cases.end());
  if (gpu.arch == "sm_75") cases = test::a_third(cases);
  for (const auto& [file, dtype] : cases) {
    SCOPED_TRACE(file);
    Config config = read_config(file);
    std::visit(
        [&](auto& op) {
          using Type = decltype(op.dtype);
          op.dtype = dtype == DType::f16 ? Type::f16 : Type::bf16;
        },
        config.problem);
    const Prepared prepared = prepare(config, gpu, *backend, nullptr);
    ASSERT_EQ(prepared.artifact.kernels.size(), prepared.source.entries.size());
    EXPECT_EQ(prepared.source.arch, gpu.arch);
    for (const KernelResources& kernel : prepared.artifact.kernels) {
      EXPECT_GT(kernel.registers, 0) << kernel.name;
      EXPECT_LE(kernel.registers, 255) << kernel.name;
    }
  }
}

TEST_P(Architectures, TrainingCompilesAndKeepsToItsRegisters) {
  for (const int vector_size : {2, 4, 8, 16}) {
    const KernelSource source = training_source(vector_size, 1, 1, Machine::cuda, gpu.arch);
    for (const KernelResources& kernel : backend->compile(source).kernels) {
      EXPECT_EQ(kernel.spill_bytes, 0) << kernel.name;
      EXPECT_LE(kernel.registers, 128) << kernel.name;
    }
  }
}

TEST_P(Architectures, EveryFusionCompiles) {
  for (const int vector_size : test::a_third({2, 4, 8})) {
    Gemm op;
    op.shape = {.rows = 8, .out_features = 256, .in_features = 512};
    op.weights = {.vector_size = vector_size, .index_bits = 6, .num_codebooks = 2};
    LinearMma plan;
    plan.codebook = all_shared(op.weights.entries());
    for (const LinearFusion fusion : {LinearFusion::registers, LinearFusion::shared}) {
      for (const int rows : {4, 8}) {
        plan.fusion = fusion;
        plan.fragment_rows = rows;
        plan.chunk_columns = 512;
        ASSERT_TRUE(check(plan, op, gpu).ok) << check(plan, op, gpu).reason;
        const Artifact artifact = backend->compile(generate(op, plan, gpu, Machine::cuda, {}));
        const KernelResources& kernel = artifact.kernels.front();
        EXPECT_GT(kernel.registers, 0);
        EXPECT_LE(kernel.registers * plan.threads, 65536) << enum_name(fusion) << vector_size;
        constexpr int kFewSpills = 128;  // bytes; the most seen is 72
        EXPECT_LE(kernel.spill_bytes, kFewSpills) << enum_name(fusion) << vector_size;
      }
    }
  }
}

TEST_P(Architectures, SlicesCompile) {
  for (const bool integers : {false, true}) {
    for (const int rows : {1, 8}) {
      Gemv op;
      op.shape = {.rows = rows, .out_features = 4096, .in_features = 4096};
      constexpr std::int64_t kSliceBytes = 2 * 65536;  // which not all GPUs give a block
      op.weights = {.vector_size = 8,
                    .index_bits = gpu.shared_bytes_per_block > kSliceBytes + 32768 ? 16 : 8};
      if (integers) op.weights.entry_type = EntryType::int8, op.weights.stage_scales = true;
      const auto plan = test::rules_plan<LinearSlicedCodebook>(op, gpu);
      ASSERT_TRUE(check(plan, op, gpu).ok) << check(plan, op, gpu).reason;
      const Artifact artifact = backend->compile(generate(op, plan, gpu, Machine::cuda, {}));
      const KernelResources& kernel = artifact.kernels.front();
      EXPECT_GT(kernel.registers, 0);
      EXPECT_LE(kernel.registers * plan.threads, 65536) << rows << integers;
      EXPECT_EQ(kernel.spill_bytes, 0) << rows << integers;
    }
  }
}

// VQKV's stages of 4096 entries, whose tables fit a block, and of 65,536.
TEST_P(Architectures, BinsCompile) {
  AttentionDecode op;
  op.shape = {.batch = 8,
              .query_heads = 32,
              .kv_heads = 8,
              .head_dim = 128,
              .tokens = 65536,
              .recent_tokens = 1024,
              .sinks = 4};
  op.keys = find_format("vqkv-llama-3.1-8b-keys", "test");
  op.values = find_format("vqkv-llama-3.1-8b-values", "test");
  for (const bool small : {false, true}) {
    if (small) {
      for (VqFormat& part : op.keys.parts) part.index_bits = 12;
      op.keys = in_parts(op.keys.parts);
      op.values.index_bits = 12;
    }
    op.keys = with_layout(op.keys, {kWideRows, 1});
    op.values = with_layout(op.values, {kWideRows, 1});
    const auto plan = std::get<AttentionHistogram>(choose(op, gpu));
    const Artifact artifact = backend->compile(generate(op, plan, gpu, Machine::cuda, {}));
    ASSERT_EQ(artifact.kernels.size(), 6u);
    for (const KernelResources& kernel : artifact.kernels) {
      EXPECT_GT(kernel.registers, 0);
      EXPECT_LE(kernel.spill_bytes, 1024) << small;  // of scores on Blackwell; none before
    }
  }
}

TEST_P(Architectures, AttentionByBytesKeepsToItsRegisters) {
  if (!has_byte_products(gpu.arch)) GTEST_SKIP() << gpu.arch << " has no products of bytes";
  std::uint64_t number = 0;
  for (const int head_dim : {64, 128}) {
    for (const int group : test::a_third({1, 4, 8}, test::third_after(number++))) {
      AttentionDecode op;
      op.shape = {.batch = 16,
                  .query_heads = 8 * group,
                  .kv_heads = 8,
                  .head_dim = head_dim,
                  .tokens = 16384};
      op.dtype = group == 4 ? DType::bf16 : DType::f16;
      op.keys = find_format("vecinfer-d4b8i8", "test");
      op.values = for_values(op.keys);
      for (const int page_tokens : {0, 64}) {
        op.shape.page_tokens = page_tokens;
        SCOPED_TRACE(testing::Message() << head_dim << ' ' << group << ' ' << page_tokens);
        const auto plan = test::rules_plan<AttentionInt8Mma>(op, gpu);
        ASSERT_TRUE(check(plan, op, gpu).ok) << check(plan, op, gpu).reason;
        const Artifact artifact = backend->compile(generate(op, plan, gpu, Machine::cuda, {}));
        const KernelResources& kernel = artifact.kernels.front();
        EXPECT_LE(kernel.registers * plan.threads, 65536);
        // 28 on sm_89. Two quads of heads in pages keep half of the query's words in local memory.
        const int most = !gpu.warpgroup_products ? 32 : group > 4 && page_tokens > 0 ? 128 : 0;
        EXPECT_LE(kernel.spill_bytes, most);
      }
    }
  }
}

// Queries, new rows and results; sm_75 has no products in bf16.
TEST_P(Architectures, BasesCompile) {
  AttentionDecode op;
  op.dtype = DType::bf16;
  op.shape = {.batch = 4, .query_heads = 8, .kv_heads = 2, .head_dim = 128, .tokens = 4096};
  op.shape.query_tokens = 2;
  op.keys = op.values = {.vector_size = 4, .index_bits = 8, .scope = Scope::head};
  op.keys.center = op.keys.klt = op.values.center = op.values.klt = true;
  validate(op, "test");
  const auto plan = test::rules_plan<AttentionSimt>(op, gpu);
  const KernelSource source = generate(op, plan, gpu, Machine::cuda, {});
  const Artifact artifact = backend->compile(source);
  ASSERT_GE(artifact.kernels.size(), 3u);
  for (std::size_t i = 0; i < artifact.kernels.size(); ++i) {
    const KernelResources& kernel = artifact.kernels[i];
    if (kernel.name.find("_basis") == kernel.name.npos) continue;
    EXPECT_LE(kernel.registers * static_cast<int>(source.entries[i].threads), 65536);
    EXPECT_EQ(kernel.spill_bytes, 0) << kernel.name;
  }
}

// Keys with every transform and residual stages, values on the lattice.
TEST_P(Architectures, AppendCompiles) {
  KvAppend op;
  op.dtype = DType::bf16;
  op.shape = {.batch = 4,
              .kv_heads = 8,
              .head_dim = 128,
              .tokens = 4096,
              .new_tokens = 2,
              .recent_tokens = 16,
              .sinks = 4};
  op.keys = {.vector_size = 8, .index_bits = 12, .num_codebooks = 2, .scope = Scope::head};
  op.keys.smooth = op.keys.hadamard = op.keys.stage_scales = true;
  op.values = {.vector_size = 8, .index_bits = 16, .num_codebooks = 2};
  op.values.decoder = Decoder::e8p;
  const auto plan = std::get<AppendSimt>(choose(op, gpu));
  const Artifact artifact = backend->compile(generate(op, plan, gpu, Machine::cuda, {}));
  const KernelResources& kernel = artifact.kernels.front();
  EXPECT_GT(kernel.registers, 0);
  EXPECT_LE(kernel.registers * plan.threads, 65536);
  constexpr int kFewSpills = 128;  // bytes
  EXPECT_LE(kernel.spill_bytes, kFewSpills);
  std::printf("%d registers, %d bytes spilled\n", kernel.registers, kernel.spill_bytes);
}

TEST_P(Architectures, AppendOfManyTokensCompiles) {
  for (const auto& [vector_size, batch] :
       test::a_third({std::pair{2, 1}, {4, 1}, {8, 1}, {4, 256}})) {
    KvAppend op;
    op.dtype = gpu.bf16_products ? DType::bf16 : DType::f16;
    op.shape = {.batch = batch,
                .kv_heads = 8,
                .head_dim = 128,
                .tokens = 4096,
                .new_tokens = batch == 1 ? 4096 : 1};
    op.keys = {
        .vector_size = vector_size, .index_bits = 10, .num_codebooks = 2, .scope = Scope::head};
    op.keys.smooth = op.keys.hadamard = op.keys.stage_scales = true;
    op.values = {.vector_size = vector_size, .index_bits = 8, .scope = Scope::tensor};
    const auto plan = std::get<AppendMma>(choose(op, gpu));
    const Artifact artifact = backend->compile(generate(op, plan, gpu, Machine::cuda, {}));
    const KernelResources& kernel = artifact.kernels.front();
    EXPECT_LE(kernel.registers * plan.threads, 65536);
    constexpr int kFewSpills = 192;  // bytes; the most seen is 180, on sm_100
    EXPECT_LE(kernel.spill_bytes, kFewSpills) << vector_size;
    std::printf("%d registers, %d bytes spilled\n", kernel.registers, kernel.spill_bytes);
  }
}

TEST_P(Architectures, AppendOfWideSubVectorsCompiles) {
  for (const DType dtype : test::a_third({DType::f16, DType::bf16})) {
    if (dtype == DType::bf16 && !gpu.bf16_products) continue;
    KvAppend op;
    op.dtype = dtype;
    op.shape = {.batch = 1, .kv_heads = 8, .head_dim = 128, .tokens = 4096, .new_tokens = 4096};
    op.keys = find_format("vqkv-llama-3.1-8b-keys", "test");
    op.values = find_format("vqkv-llama-3.1-8b-values", "test");
    if (gpu.shared_bytes_per_block <= 65536) op.values.vector_size = 64;  // of four tiles
    const auto plan = std::get<AppendGemm>(choose(op, gpu));
    const Artifact artifact = backend->compile(generate(op, plan, gpu, Machine::cuda, {}));
    const KernelResources& kernel = artifact.kernels.front();
    EXPECT_LE(kernel.registers * plan.threads, 65536);
    constexpr int kSpills = 512;  // bytes, of 128 channels
    EXPECT_LE(kernel.spill_bytes, kSpills);
    std::printf("%d registers, %d bytes spilled\n", kernel.registers, kernel.spill_bytes);
  }
}

TEST_P(Architectures, DecodeCompiles) {
  KvDequantize op;
  op.dtype = DType::bf16;
  op.shape = {
      .batch = 4, .kv_heads = 8, .head_dim = 256, .tokens = 4096, .recent_tokens = 16, .sinks = 4};
  op.keys = {.vector_size = 8, .index_bits = 11, .num_codebooks = 2, .scope = Scope::head};
  op.keys.smooth = op.keys.hadamard = op.keys.stage_scales = true;
  op.values = {.vector_size = 8, .index_bits = 16, .num_codebooks = 2};
  op.values.decoder = Decoder::e8p;
  const auto plan = std::get<DequantizeSimt>(choose(op, gpu));
  const Artifact artifact = backend->compile(generate(op, plan, gpu, Machine::cuda, {}));
  const KernelResources& kernel = artifact.kernels.front();
  EXPECT_GT(kernel.registers, 0);
  EXPECT_LE(kernel.registers, 160);  // the most seen is 155; with one stage and 128 channels 80
  EXPECT_EQ(kernel.spill_bytes, 0);
  std::printf("%d registers\n", kernel.registers);
}

TEST_P(Architectures, MergeCompiles) {
  AttentionMerge op;
  op.dtype = DType::bf16;
  op.shape = {.rows = 4096, .heads = 32, .head_dim = 80, .parts = 8};
  const auto plan = std::get<MergeSimt>(choose(op, gpu));
  const Artifact artifact = backend->compile(generate(op, plan, gpu, Machine::cuda, {}));
  const KernelResources& kernel = artifact.kernels.front();
  EXPECT_GT(kernel.registers, 0);
  EXPECT_LE(kernel.registers, 96);  // loads of 8 parts in flight are 40
  EXPECT_EQ(kernel.spill_bytes, 0);
  std::printf("%d registers\n", kernel.registers);
}

// Attention and GEMV merge in one kernel, within the registers that a block of its threads has.
TEST_P(Architectures, TheLastBlockCompiles) {
  for (const char* name : {"llama3-8b-attention-2bit", "llama3-8b-up-aqlm-2x8"}) {
    const Config config =
        read_config(test::source_folder() / "examples/configs" / (std::string(name) + ".json"));
    Plan plan = choose(config.problem, gpu, {.chooser = Chooser::rules});
    const int splits =
        as_linear(config.problem) == nullptr ? 20 : 1;  // a full round of loads, and a rest
    ASSERT_TRUE(test::change_own(
        plan, [&](auto& own) requires requires { own.splits; } {
          own.splits = std::max(own.splits, splits);
          if constexpr (requires { own.chunk_columns; }) {
            if (own.splits > 1) return;
            own.chunk_columns /= 2;
            own.splits = 2;
          }
        }))
        << name;
    const auto merging = merged_by_last_block(plan, config.problem, gpu);
    ASSERT_TRUE(merging.has_value()) << name;
    const Artifact artifact =
        backend->compile(generate(config.problem, *merging, gpu, Machine::cuda, {}));
    ASSERT_EQ(artifact.kernels.size(), 1u);
    const int threads = std::visit([](const auto& each) { return each.threads; }, *merging);
    EXPECT_LE(artifact.kernels.front().registers * threads, 65536) << name;
    constexpr int kFewSpills = 96;  // bytes; the most seen is 72, on sm_75
    EXPECT_LE(artifact.kernels.front().spill_bytes, kFewSpills) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Gpu, Architectures, testing::ValuesIn(kOneOfEach),
                         [](const auto& gpu) { return std::string(gpu.param); });

TEST_P(Architectures, AConfigCompilesForEveryProfileOfIt) {
  const Config config =
      read_config(test::source_folder() / "examples/configs/llama3-8b-up-aqlm-2x8.json");
  for (const std::string& name : gpu_names()) {
    if (find_gpu(name).arch != gpu.arch || name == GetParam()) continue;
    SCOPED_TRACE(name);
    EXPECT_EQ(prepare(config, find_gpu(name), *backend, nullptr).source.arch, gpu.arch);
  }
}

TEST(ArchitecturesOfProfiles, AreAmongThem) {
  std::set<std::string> known;
  for (const char* name : kOneOfEach) known.insert(find_gpu(name).arch);
  for (const std::string& name : gpu_names()) EXPECT_TRUE(known.contains(find_gpu(name).arch));
}

}  // namespace
}  // namespace vqgen
