// Plans of simt kv_append. A decode step has few rows: as many blocks as the GPU has room for share
// a row, and the spare warps of a block share a codebook's entries.
#include <algorithm>
#include <bit>

#include "core/ceil_div.h"
#include "heuristics/kernels/append.h"

namespace vqgen {
namespace {

constexpr int kMostTokens = 8;     // per block: enough to amortize reading a codebook
constexpr int kMostSequences = 8;  // likewise, where each has few tokens
constexpr int kWarpsAnSm = 16;     // that hide the latency of loads of entries
constexpr int kMostAppendThreads = 512;
constexpr int kEntriesALane = 4;  // at least: as many loads are begun before the first is used

// Runs of sub-vectors that the warps of a block share, of the tensor that has fewer.
int runs_of_block(const KvAppend& op, const AppendSimt& plan) {
  const auto config = configured(plan, op);
  const auto runs = [&](const vq::FormatConfig& format) {
    return vq::ceil_div(vq::share_sub_vectors(config, format), vq::run_sub_vectors(config, format));
  };
  int least = runs(config.values);
  vq::for_each_format(
      config, [&](const vq::FormatConfig& format) { least = std::min(least, runs(format)); });
  return plan.tokens_per_block * plan.sequences_per_block * least;
}

// Warps that have no run of their own help with the entries of another's.
AppendSimt with_threads(const KvAppend& op, AppendSimt plan, int threads) {
  plan.threads = threads;
  const int runs = runs_of_block(op, plan);
  const int warps = threads / 32;
  plan.warps_along_entries = 1;
  while (plan.warps_along_entries < warps && warps / plan.warps_along_entries > runs) {
    plan.warps_along_entries *= 2;
  }
  return plan;
}

const char* operand_of(const vq::FormatConfig& format) {
  return format.part.of_values ? "values" : "keys";
}

template <class Config>
void judge_operand(Judge& judge, const Config& config, const vq::FormatConfig& format,
                   const char* operand) {
  // Numbers per thread, besides the registers of distances.
  constexpr int kMostNumbers = 64;
  const int numbers = vq::run_sub_vectors(config, format) * vq::piece_elements(format);
  judge.require(
      numbers <= kMostNumbers,
      "{}: sub_vectors_per_warp {} are {} numbers in the registers of a thread, more than "
      "{}; use fewer",
      operand, config.sub_vectors_per_warp, numbers, kMostNumbers);
}

// A warp alone begins an instruction every other clock, at best; loads cost some 300 (ideal_us).
constexpr double kLoadsAnInstruction = 2.0 / 300;
constexpr int kLoadsAhead = 4;  // ops/append_rows.cuh

// Work of one tensor's blocks, added to `to` by their share of all; the longer chain counts.
template <class Config>
void count_tensor(BlockWork& to, const Config& config, const vq::FormatConfig& format,
                  double share_of_blocks) {
  const double stages = format.num_codebooks;
  const int share = vq::share_sub_vectors(config, format);
  const int run = vq::run_sub_vectors(config, format);
  const std::int64_t items =
      std::int64_t{config.tokens_per_block} * config.sequences_per_block * vq::ceil_div(share, run);
  const bool lattice = format.decoder == Decoder::e8p;
  const std::int64_t loads = ceil_div(vq::entries(format), 32 * config.warps_along_entries);
  // Decoding an entry and comparing: a subtraction and an FMA per number, and three to keep the
  // nearest; for the lattice also signs and the cheapest flip, for two shifts.
  const double compare =
      run * (lattice ? 2.0 * (7 * format.vector_size + 8) : 2.0 * format.vector_size + 3);
  const double a_load = format.vector_size + compare;
  const double warp_loads = static_cast<double>(loads * config.warps_along_entries);
  const double lookups = static_cast<double>(items) * stages * warp_loads;
  to.lookups += share_of_blocks * lookups;
  to.arithmetic += share_of_blocks * lookups * a_load;
  to.lines += share_of_blocks * lookups * format.vector_size * 2 * 32 / 128;
  const std::int64_t units = ceil_div(share * format.vector_size, format.unit_elements);
  to.l2_bytes += share_of_blocks * static_cast<double>(units) *
                 static_cast<double>(vq::unit_codebook_elements(format)) * 2;
  const int groups = config.threads / 32 / config.warps_along_entries;
  const double turns = static_cast<double>(ceil_div(items, groups)) * stages;
  to.chain = std::max(to.chain, turns * static_cast<double>(loads) *
                                    (1.0 / kLoadsAhead + a_load * kLoadsAnInstruction));
  constexpr int kOthers = 24;  // registers
  to.registers = std::max(to.registers, kOthers + (run + kLoadsAhead) * vq::piece_elements(format));
  // Positions, the row, and of each stage the entry that was taken.
  to.prologue = std::max(to.prologue, 2 + stages);
}

template <class Config>
std::string share_line(const char* operand, const Config& config, const vq::FormatConfig& format) {
  return fmt::format(
      "{}: {} blocks per row, of {} of its {} sub-vectors; {} are compared with an entry once it "
      "is loaded",
      operand, vq::shares(config, format), vq::share_sub_vectors(config, format),
      vq::sub_vectors(config, format), vq::run_sub_vectors(config, format));
}

}  // namespace

void judge_plan(Judge& judge, const AppendSimt& plan, const KvAppend& op, const GpuSpec& gpu) {
  judge.require(std::has_single_bit(static_cast<unsigned>(plan.warps_along_entries)),
                "warps_along_entries {} is not a power of two", plan.warps_along_entries);
  judge.require(plan.threads / 32 % plan.warps_along_entries == 0,
                "warps_along_entries {} does not divide the {} warps of a block",
                plan.warps_along_entries, plan.threads / 32);
  judge_rows(judge, plan, op);
  judge_sequences(judge, plan, op);
  judge.require(
      plan.sequences_per_block == 1 || least_window(op.keys, op.values) == 0,
      "sequences_per_block {}: tokens of a sequence that share scales take a block; set it "
      "to 1",
      plan.sequences_per_block);
  judge_codebooks(judge, op, gpu);
  if (!judge.ok()) return;
  const auto config = configured(plan, op);
  vq::for_each_format(config, [&](const vq::FormatConfig& format) {
    judge_operand(judge, config, format, operand_of(format));
  });
  judge_block(judge, plan.threads, call_shape(plan, op).shared_bytes(), gpu);
}

AppendSimt choose_plan(AppendSimt plan, const KvAppend& op, const GpuSpec& gpu) {
  const std::int64_t wanted = std::int64_t{kAppendBlocks} * gpu.sms;
  while (plan.tokens_per_block * 2 <= std::min(visited_tokens(op), kMostTokens)) {
    AppendSimt more = plan;
    more.tokens_per_block *= 2;
    if (append_blocks(more, op) < wanted) break;
    plan = more;
  }
  // Sequences of few tokens share blocks, so that a block's code and codebook serve several rows.
  const int most = std::min(kMostSequences / visited_tokens(op), op.shape.batch);
  while (least_window(op.keys, op.values) == 0 && plan.sequences_per_block * 2 <= most) {
    AppendSimt more = plan;
    more.sequences_per_block *= 2;
    if (append_blocks(more, op) < wanted) break;
    plan = more;
  }
  take_splits(plan, op, wanted);
  plan = with_threads(op, plan, plan.threads);
  const int entries = std::max(op.keys.entries(), op.values.entries());
  while (plan.threads < kMostAppendThreads &&
         append_blocks(plan, op) * plan.threads / 32 < std::int64_t{kWarpsAnSm} * gpu.sms) {
    const AppendSimt more = with_threads(op, plan, plan.threads * 2);
    if (entries < 32 * more.warps_along_entries * kEntriesALane) break;
    plan = more;
  }
  return plan;
}

// Codebooks are read from global memory in their stored form.
void add_candidates(Candidates& to, AppendSimt plan, const KvAppend& op, SpacePlacement allowed) {
  using P = AppendSimt;
  if (allowed == SpacePlacement::shared) return;
  to.add(choose_plan(plan, op, to.gpu));
  for_each_of(plan,
              {{&P::threads, {64, 128, 256, 512}},
               {&P::splits, {1, 2, 4, 8, 16}},
               {&P::tokens_per_block, {1, 4, 16}},  // more than there are is refused
               {&P::sequences_per_block, {1, 8}},
               {&P::warps_along_entries, {1, 2, 4, 8, 16}},
               {&P::sub_vectors_per_warp, {1, 2, 4, 8}}},
              [&] {
                if (plan.warps_along_entries <= plan.threads / 32) to.add(plan);
              });
}

PlanUse use_of(const AppendSimt& plan, const KvAppend& op) { return append_plan_use(plan, op); }

// No coefficients are fitted to it yet: the counts order candidates for the tuner's first looks, at
// the GPU's ceilings.
void count_work(BlockWork& to, const AppendSimt& plan, const KvAppend& op, const PlanUse&,
                ConflictTable&) {
  const auto config = configured(plan, op);
  const double all = vq::key_shares(config) + vq::value_shares(config);
  vq::for_each_format(config, [&](const vq::FormatConfig& format) {
    count_tensor(to, config, format, vq::shares(config, format) / all);
  });
}

std::vector<std::string> explain_plan(const AppendSimt& plan, const KvAppend& op) {
  const auto config = configured(plan, op);
  std::vector<std::string> lines{
      fmt::format("tokens_per_block {}: of {} new tokens per sequence, at most",
                  plan.tokens_per_block, op.shape.new_tokens)};
  vq::for_each_format(config, [&](const vq::FormatConfig& format) {
    lines.push_back(share_line(operand_of(format), config, format));
  });
  lines.push_back(fmt::format(
      "warps_along_entries {}: of {} warps per block, those that share the entries of a codebook",
      plan.warps_along_entries, plan.threads / 32));
  return lines;
}

}  // namespace vqgen
