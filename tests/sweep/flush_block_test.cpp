// Flush blocks (VQKV, sec. 3.3): a block is encoded whole with its last token, mostly from the
// recent-token ring, and read raw until all of it has left the window.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "core/error.h"
#include "generator/generate.h"
#include "runtime/backend/host/host_backend.h"
#include "runtime/ops/attention_decode/reference.h"
#include "runtime/ops/kv_dequantize/reference.h"
#include "tests/message_of.h"
#include "tests/sweep/cases.h"
#include "tests/sweep/harness.h"
#include "tests/sweep/plans.h"
#include "tests/sweep/prompts.h"

namespace vqgen::test {
namespace {

constexpr int kBatch = 8;
constexpr int kPrompt = 45;  // the last block is not full

struct BatchCase {
  const char* name;
  Plan dataflow;
  int head_dim, recent_tokens, page_tokens;
  VqFormat keys, values;
};

VqFormat table(int vector_size, int bits, int stages, Scope scope) {
  return {.vector_size = vector_size, .index_bits = bits, .num_codebooks = stages, .scope = scope};
}

// Gives all parts of keys the format `alone`; every other channel is the second part's.
VqFormat two_parts(int head_dim, const VqFormat& alone) {
  std::vector<VqFormat> parts{alone, alone};
  for (int channel = 0; channel < head_dim; ++channel) {
    parts[static_cast<std::size_t>(channel % 2)].channels.push_back(channel);
  }
  return in_parts(std::move(parts));
}

std::vector<BatchCase> batch_cases() {
  VqFormat turned = table(4, 6, 2, Scope::head);
  turned.smooth = turned.hadamard = turned.stage_scales = true;
  VqFormat scaled = table(4, 16, 1, Scope::tensor);
  scaled.decoder = Decoder::affine;
  scaled.token_scales = true;
  scaled.group_channels = 32;
  return {
      {"simt", AppendSimt{}, 64, 13, 0, turned, scaled},
      {"lanes, parts", AppendSimt{}, 64, 8, 16, two_parts(64, table(4, 5, 2, Scope::head)),
       table(8, 6, 1, Scope::tensor)},
      {"mma", AppendMma{}, 64, 16, 32, turned, table(8, 8, 1, Scope::tensor)},
      {"gemm", AppendGemm{}, 64, 8, 0, wide(32, 3, 6), wide(64, 2, 5)},
      {"products, parts", AppendGemm{}, 96, 11, 16, two_parts(96, wide(48, 2, 5)),
       wide(96, 2, 6, Scope::head)},
  };
}

KvAppend append_of(const BatchCase& from, int new_tokens, int flush_block = kBatch) {
  KvAppend op;
  op.shape = {.batch = 2,
              .kv_heads = 2,
              .head_dim = from.head_dim,
              .tokens = 50,
              .new_tokens = new_tokens,
              .recent_tokens = from.recent_tokens,
              .sinks = 3,
              .page_tokens = from.page_tokens,
              .flush_block = flush_block};
  op.keys = from.keys;
  op.values = from.values;
  validate(op, from.name);
  return op;
}

class FlushBlock : public SweepTest<> {
 protected:
  static Kernel kernel(const Problem& op, const Plan& like) {
    const Plan plan = rules_plan(like, op, sweep_gpu());
    const Verdict verdict = check(plan, op, sweep_gpu());
    EXPECT_TRUE(verdict.ok) << verdict.reason;
    return Kernel(*sweep_backend(), op, plan, sweep_gpu());
  }
  // The cache with the first `tokens` of both sequences' prompts, for its reader.
  static AttentionData read(const AttentionDecode& reader, const AppendData& all,
                            const AppendResult& cache, std::int32_t tokens) {
    AttentionData data = make_attention_data(reader, {.seed = 22});
    data.keys = all.keys;
    data.values = all.values;
    take_cache(data, cache);
    data.lengths.assign(2, tokens);
    return data;
  }
  // Expects right results, and that codes of raw tokens are never read.
  static void expect_right(const AttentionDecode& op, const AttentionData& data, Kernel& reader) {
    const AttentionResult reference = reference_of(op, data);
    const AttentionOutput out = reader.run(data);
    EXPECT_TRUE(is_right(reference, out, op.dtype));
    if (op.shape.query_tokens > 1) return;
    AttentionData changed = data;
    change_unread_codes(changed, [](std::uint32_t& word) { word ^= 0xffffffffu; });
    expect_same_bits(out, reader.run(changed));
  }
};

// Appending one token at a time, several, more than the ring has slots, and all at once gives equal
// codes and raw slots; tokens encoded one by one have these codes too. Nothing else is written.
class FlushBlockPrompt : public FlushBlock, public testing::WithParamInterface<std::size_t> {};
INSTANTIATE_TEST_SUITE_P(Cases, FlushBlockPrompt, testing::Range(std::size_t{0}, std::size_t{5}),
                         [](const auto& each) {
                           return test_name(batch_cases()[each.param].name);
                         });
TEST_P(FlushBlockPrompt, InPartsIsTheCacheThatIsAppendedAtOnce) {
  const BatchCase from = batch_cases()[GetParam()];
  SCOPED_TRACE(from.name);
  const AppendData all = prompt_of(append_of(from, 1), kPrompt, 3);
  const auto appended = [&](int part) {
    return append_in_parts(kernel(append_of(from, part), from.dataflow), all, part);
  };
  const AppendResult once = appended(kPrompt);
  for (const int part : a_third({1, 7, 21}, third_after(GetParam()))) {
    SCOPED_TRACE(part);
    expect_same(appended(part), once);
  }
  const KvAppend one_by_one = append_of(from, kPrompt, 1);
  AppendResult expected = append_in_parts(kernel(one_by_one, from.dataflow),
                                          prompt_of(one_by_one, kPrompt, 3), kPrompt);
  const auto leave = [&](const QuantizedTensor& before, std::vector<std::uint32_t>& codes) {
    for (std::int64_t head = 0; head < 4; ++head) {
      const auto first = (head * before.rows + kPrompt / kBatch * kBatch) * before.row_words;
      const auto last = (head + 1) * before.rows * before.row_words;
      std::copy(before.codes.begin() + first, before.codes.begin() + last, codes.begin() + first);
    }
  };
  leave(all.keys, expected.key_codes);
  leave(all.values, expected.value_codes);
  expect_same(once, expected);
}

// A step that fills a block may split rows; it writes no slot that it reads.
TEST_F(FlushBlock, SplitsChangeNoBit) {
  const BatchCase from = batch_cases().front();
  const KvAppend op = append_of(from, 1);
  AppendData data = make_append_data(op, {.seed = 4});
  data.positions = {15, 47};
  const AppendResult right = kernel(op, AppendSimt{}).run(data);
  const AppendVerdict verdict = judge_append(data, right);
  EXPECT_TRUE(verdict.ok) << verdict.why;
  EXPECT_GT(verdict.codes, 0);
  const AppendSimt plan{.threads = 64, .splits = 4, .tokens_per_block = 3};
  ASSERT_TRUE(check(plan, op, sweep_gpu()).ok) << check(plan, op, sweep_gpu()).reason;
  expect_same(Kernel(*sweep_backend(), op, plan, sweep_gpu()).run(data), right);
}

// Several sequences in a GPU block, at different places of their flush blocks or inactive, change
// no bit.
TEST_F(FlushBlock, SequencesOfABlockChangeNoBit) {
  KvAppend op = append_of(batch_cases()[2], 3);
  op.shape.batch = 5;
  AppendData data = make_append_data(op, {.seed = 4});
  for (const auto& [tokens, sequences] : {std::pair{10, 3}, std::pair{4, 2}, std::pair{1, 5}}) {
    const AppendMma plan{
        .tokens_per_block = tokens, .sequences_per_block = sequences, .row_tiles = 2};
    ASSERT_TRUE(check(plan, op, sweep_gpu()).ok) << check(plan, op, sweep_gpu()).reason;
    for (const auto& positions :
         {std::vector{15, 45, -1, 12, 21}, {0, 1, 2, 3, 4}, {5, 6, 13, 14, 29}}) {
      data.positions = positions;
      const AppendResult right = kernel(op, AppendSimt{}).run(data);
      const AppendVerdict verdict = judge_append(data, right);
      EXPECT_TRUE(verdict.ok) << verdict.why;
      expect_same(Kernel(*sweep_backend(), op, plan, sweep_gpu()).run(data), right);
    }
  }
}

// Lengths near a block's end, and windows of every size, which end within blocks.
TEST_F(FlushBlock, IsReadRawUntilAllOfItLeaves) {
  for (const std::size_t number : {1u, 2u, 3u}) {
    const BatchCase from = batch_cases()[number];
    SCOPED_TRACE(from.name);
    const KvAppend op = append_of(from, kPrompt);
    const AttentionDecode reader = reader_of(op, 4);
    std::vector<Kernel> readers;
    for (const Plan& like : {Plan(AttentionSimt{}), Plan(AttentionLut{}), Plan(AttentionChannels{}),
                             Plan(AttentionMma{}), Plan(AttentionHistogram{})}) {
      const Plan plan = rules_plan(like, reader, sweep_gpu());
      if (check(plan, reader, sweep_gpu()).ok) readers.push_back(kernel(reader, like));
    }
    EXPECT_GE(readers.size(), number == 1 ? 1u : 2u);
    const KvDequantize decode{reader.dtype,
                              {.batch = 2,
                               .kv_heads = 2,
                               .head_dim = from.head_dim,
                               .tokens = 50,
                               .recent_tokens = from.recent_tokens,
                               .sinks = 3,
                               .page_tokens = from.page_tokens,
                               .flush_block = kBatch},
                              reader.keys,
                              reader.values};
    Kernel dense = kernel(decode, DequantizeSimt{});
    Kernel append = kernel(op, from.dataflow);
    const AppendData all = prompt_of(op, kPrompt, 5);
    for (const int tokens : {7, 8, 24, 31, kPrompt}) {
      SCOPED_TRACE(tokens);
      AppendData step = all;
      const AppendResult cache = append_part(append, all, 0, tokens, step);
      AttentionData data = read(reader, all, cache, tokens);
      data.recent_counts = {0, std::min(tokens, most_raw(op.shape))};
      data.sinks = {2, 0};
      for (Kernel& each : readers) expect_right(reader, data, each);
      const DequantizeVerdict verdict =
          judge_dequantize(data, reference_dequantize(data), dense.run_dequantize(data));
      EXPECT_TRUE(verdict.why.empty()) << verdict.why;
    }
  }
}

// Several query tokens, whose keys are in the cache or come with the query: a block leaves each
// one's window at its own time.
TEST_F(FlushBlock, LeavesTheWindowOfEachQueryTokenAtItsTime) {
  BatchCase from = batch_cases()[2];
  from.recent_tokens = 24;
  AttentionDecode reader = reader_of(append_of(from, 1), 4);
  reader.shape.query_tokens = 5;
  for (const Plan& like :
       {Plan(AttentionSimt{}), Plan(AttentionMma{}), Plan(AttentionChannels{})}) {
    Kernel attention = kernel(reader, like);
    for (const bool fresh : {false, true}) {
      for (const std::int32_t length : {3, 14, 23, 24, 26, 36}) {
        AttentionData data = make_attention_data(reader, {.seed = 23, .fresh = fresh});
        data.lengths.assign(2, length);
        data.recent_counts = {0, 7};
        SCOPED_TRACE(testing::Message() << dataflow_name(like) << ' ' << fresh << ' ' << length);
        expect_right(reader, data, attention);
      }
    }
  }
}

// Rejected drafts that had filled a block: with correspondingly smaller windows the cache is read
// right, and later tokens have the bits that they have without drafts.
TEST_F(FlushBlock, TokensThatAreTakenBackLeaveNoTrace) {
  const BatchCase from = batch_cases()[0];
  constexpr int kDrafts = 5;
  constexpr int kHeld = 22;  // the drafts fill the block that ends at 24
  const KvAppend op = append_of(from, 7);
  const AppendData all = prompt_of(op, kPrompt, 6);
  const AppendData drafts = prompt_of(op, kPrompt, 7);
  Kernel append = kernel(op, from.dataflow);
  const AttentionDecode reader = reader_of(op, 4);
  Kernel attention = kernel(reader, AttentionSimt{});
  AppendData step = all;
  step.new_tokens = op.shape.new_tokens;
  int length = 0;
  for (; length < kHeld; length += 2) append_part(append, all, length, 2, step);
  AppendData with_drafts = step;
  AppendResult cache = append_part(append, drafts, kHeld, kDrafts, with_drafts);
  step = with_drafts;
  for (int first = kHeld; first < kPrompt; first += 1) {
    AttentionData data = read(reader, all, cache, first);
    const int most = most_raw(op.shape);
    data.recent_counts = {0, std::min(most, std::max(most - kDrafts, 0) + first - kHeld)};
    data.sinks = {3, 1};
    AttentionData plain = data;  // the cache without drafts
    expect_right(reader, data, attention);
    AppendData without = all;
    without.new_tokens = op.shape.new_tokens;
    for (int t = 0; t < first; t += 7) {
      take_cache(plain, append_part(append, all, t, std::min(7, first - t), without));
    }
    expect_same_bits(attention.run(data), attention.run(plain));
    cache = append_part(append, all, first, 1, step);
  }
}

// Each fault changes one place of the text.
TEST_F(FlushBlock, TheJudgesFindWhatWrongKernelsDo) {
  const BatchCase from = batch_cases().front();
  const KvAppend op = append_of(from, 20);
  const Plan plan = rules_plan(AppendSimt{}, op, sweep_gpu());
  AppendData data = make_append_data(op, {.seed = 8});
  data.positions = {2, 21};
  const Fault faults[] = {
      {"number < 0 ? load_global_coherent(ring + place)\n                           : "
       "load_global(fresh(work.batch, number) + place)",
       "load_global(fresh(work.batch, number < 0 ? 0 : number) + place)"},
      {"kConfig.flush_block * kConfig.flush_block - before", "1 - before"},
      {"work.first -= before;", ""},
      {"if (share == 0) rows.keep_visited(own);", ""},
      {"const int newest = work.all - 1 - (work.all - 1 - number) % kConfig.max_recent_tokens;",
       "const int newest = number;"},
      {"number >= 0 && token < kConfig.max_sinks", "false"},
      {"Raw::window_slot(work.position + number)", "Raw::window_slot(work.position)"},
  };
  const auto right = [&](Kernel& kernel) { return judge_append(data, kernel.run(data)).ok; };
  Kernel whole(*sweep_backend(), op, plan, sweep_gpu());
  ASSERT_TRUE(right(whole));
  expect_faults_found(op, plan, faults, right);

  const AttentionDecode reader = reader_of(op, 4);
  const Plan lanes = rules_plan(AttentionSimt{}, reader, sweep_gpu());
  AttentionData held = make_attention_data(reader, {.seed = 9});
  held.lengths.assign(2, 34);
  held.recent_counts = {4, 5};
  const AttentionResult reference = reference_of(reader, held);
  const Fault fault[] = {{"return kBatch > 1 ? whole(end) : end;", "return end;"}};
  expect_faults_found(reader, lanes, fault, [&](Kernel& faulty) {
    return is_right(reference, faulty.run(held), reader.dtype);
  });
}

// More new tokens than ring slots overwrite slots from which the call encodes old tokens.
TEST(FlushBlockRaces, ASlotIsWrittenByWhomItIsReadBy) {
  const auto backend = test_host({.check_races = true});
  for (const std::size_t number : {0u, 1u, 3u}) {
    const BatchCase from = batch_cases()[number];
    SCOPED_TRACE(from.name);
    const KvAppend op = append_of(from, 30);
    const Plan plan = rules_plan(from.dataflow, op, sweep_gpu());
    AppendData data = make_append_data(op, {.seed = 10});
    const KernelSource right = generate(op, plan, sweep_gpu(), Machine::host, {});
    const auto run = [&](const KernelSource& source) {
      return execute(*backend, *backend->load(backend->compile(source), source), source, op, plan,
                     data);
    };
    for (const std::vector<std::int32_t>& positions : {std::vector{2, 21}, {13, 7}}) {
      data.positions = positions;
      EXPECT_TRUE(judge_append(data, run(right)).ok);
    }
    if (number > 0) continue;
    const KernelSource wrong =
        with_fault(right, "before + number < kConfig.max_recent_tokens && newest >= 0",
                   "number >= 0 && number >= work.all - kConfig.max_recent_tokens");
    EXPECT_THAT(device_error([&] { run(wrong); }), testing::HasSubstr("race"));
  }
}

}  // namespace
}  // namespace vqgen::test
