// Plans of histogram attention: as few passes over the tokens as shared memory allows.
#include "heuristics/kernels/attention.h"

namespace vqgen {
namespace {

constexpr int kMostBinHeads = 8;  // that a lookup of 16 bytes brings
constexpr int kLeastWidth = 16;   // channels and entries of a tensor-core product

void judge_columns(Judge& judge, const VqFormat& format, const char* operand) {
  judge.require(format.decoder == Decoder::table && format.entry_type == EntryType::element &&
                    !format.stage_scales && !format.smooth && !format.hadamard,
                "{}: dataflow histogram takes plain codebooks of elements, without scales and "
                "transforms; use dataflow simt",
                operand);
  judge.require(format.vector_size % kLeastWidth == 0,
                "{}: entries of {} elements are no multiple of the {} of dataflow histogram; use "
                "dataflow simt",
                operand, format.vector_size, kLeastWidth);
  judge.require(format.entries() >= kLeastWidth,
                "{}: codebooks of {} entries are smaller than the {} of dataflow histogram; use "
                "dataflow simt",
                operand, format.entries(), kLeastWidth);
}

// Registers of a score thread: sums of a token's heads, and a word of its codes.
int registers_of(const vq::BinsConfig& c) {
  return c.tokens_per_thread * (vq::padded_heads(c) + 1) + 24;
}

// Blocks of bins of a sequence and split.
std::int64_t fill_blocks(const AttentionHistogram& plan, const AttentionDecode& op) {
  const auto config = configured(plan, op);
  return std::int64_t{op.shape.kv_heads} * vq::column_blocks(config) * vq::bin_head_blocks(config) *
         plan.bin_slices;
}

// Two tables in flight if they fit, for codebooks one of whose tables fits. Lookups of larger ones
// go to global memory: L2 serves a sector each.
void choose_tables(AttentionHistogram& plan, const AttentionDecode& op, const GpuSpec& gpu) {
  const auto fits = [&](int entries, int in_flight) {
    plan.shared_entries = entries;
    plan.tables_in_flight = in_flight;
    return vq::scores_shared(configured(plan, op)).total <= gpu.shared_bytes_per_block;
  };
  int most = 0;
  for_each_part(op.keys, op.shape.head_dim, [&](const VqFormat& keys, int) {
    if (keys.entries() > most && fits(keys.entries(), 1)) most = keys.entries();
  });
  if (!fits(most, 2)) plan.tables_in_flight = 1;
}

// Bins of one head, so that a block reads the codes of as many columns as it can at once; the
// fewest slices of the entries with which they fit. Columns are shared evenly: 3, 3 and 2 of them
// take longer than 2 each.
void choose_bins(AttentionHistogram& plan, const AttentionDecode& op, const GpuSpec& gpu) {
  const auto fits = [&](const AttentionHistogram& candidate) {
    return vq::bins_shared(configured(candidate, op)).total <= gpu.shared_bytes_per_block;
  };
  plan.bin_heads = 1;
  while (plan.bin_slices < op.values.entries() / kLeastWidth && !fits(plan)) plan.bin_slices *= 2;
  const int columns = vq::columns_of(configured(plan, op).values);
  for (int share = columns; share > 1; --share) {
    AttentionHistogram more = plan;
    more.columns_per_block = share;
    if (columns % share != 0 || !fits(more)) continue;
    plan = more;
    break;
  }
  const int heads = vq::padded_heads(configured(plan, op));
  while (plan.columns_per_block == columns && plan.bin_heads < heads) {
    AttentionHistogram more = plan;
    more.bin_heads *= 2;
    if (!fits(more)) break;
    plan = more;
  }
  // Registers limit it: powers of four tokens of each head, twice.
  if (plan.bin_heads > 2) plan.bin_threads = 512;
}

// The fewest splits of a sequence's tokens with which histogram blocks, one per SM, fill nine
// tenths of their waves.
int even_waves(std::int64_t blocks, const AttentionDecode& op, int threads, const GpuSpec& gpu) {
  const std::int64_t most = std::clamp<std::int64_t>(op.shape.tokens / (16 * threads), 1, 64);
  for (int splits = 1; splits < most; ++splits) {
    const std::int64_t places = ceil_div(blocks * splits, std::int64_t{gpu.sms}) * gpu.sms;
    if (blocks * splits * 10 >= places * 9) return splits;
  }
  return static_cast<int>(most);
}

// Rows of the products that have the same codebooks.
std::int64_t product_rows(const AttentionHistogram& plan, const AttentionDecode& op) {
  const auto config = configured(plan, op);
  return vq::bin_sizes(config).unit_rows(config.values.per_head, op.shape.batch);
}

// Blocks of products, were there no splits of the entries.
std::int64_t product_blocks(const AttentionHistogram& plan, const AttentionDecode& op) {
  const auto config = configured(plan, op);
  return ceil_div(product_rows(plan, op), std::int64_t{plan.rows_per_block}) *
         vq::columns_of(config.values) * (config.values.per_head ? op.shape.kv_heads : 1);
}

// Sets the rows of a GEMM block, at most `most`, so that no block is half empty and shared memory
// has room for `blocks` blocks.
void choose_rows(AttentionHistogram& plan, int most, int blocks, const AttentionDecode& op,
                 const GpuSpec& gpu) {
  const std::int64_t rows = product_rows(plan, op);
  plan.rows_per_block = most;
  while (
      plan.rows_per_block > kLeastWidth &&
      (plan.rows_per_block / 2 >= rows ||
       vq::bin_products_shared(configured(plan, op)).total * blocks > gpu.shared_bytes_per_block)) {
    plan.rows_per_block /= 2;
  }
}

// Two blocks of 128 rows per SM if there are 4096 entries for each; else one of 64 rows: partials
// of more entry splits cost more to merge than they save. Nine tenths of a wave are enough.
void choose_products(AttentionHistogram& plan, const AttentionDecode& op, const GpuSpec& gpu) {
  constexpr int kMostSplits = 16;
  constexpr int kManyEntries = 4096;
  const auto choose = [&](int rows, int blocks, int least_entries) {
    choose_rows(plan, rows, blocks, op, gpu);
    const std::int64_t own = product_blocks(plan, op);
    const auto enough = [&] {
      return own * plan.entry_splits * 10 >= std::int64_t{9} * blocks * gpu.sms;
    };
    plan.entry_splits = 1;
    while (!enough() && plan.entry_splits < kMostSplits &&
           op.values.entries() / plan.entry_splits >= 2 * least_entries) {
      plan.entry_splits *= 2;
    }
    return enough() && plan.rows_per_block == rows;
  };
  if (op.values.entries() >= kManyEntries && choose(128, 2, kManyEntries)) return;
  choose(64, 1, 2 * kLeastWidth);
}

}  // namespace

void judge_plan(Judge& judge, const AttentionHistogram& plan, const AttentionDecode& op,
                const GpuSpec& gpu) {
  judge.require(op.dtype == DType::f16 || gpu.bf16_products,
                "{} has no mma in bf16; use dataflow simt, or dtype f16", gpu.name);
  for_each_part(op.keys, op.shape.head_dim,
                [&](const VqFormat& keys, int) { judge_columns(judge, keys, "keys"); });
  judge_columns(judge, op.values, "values");
  judge.require(op.shape.value_dim() == op.shape.head_dim,
                "value_head_dim {} is not head_dim {}, as dataflow histogram takes; use another "
                "dataflow",
                op.shape.value_dim(), op.shape.head_dim);
  judge.require(!op.values.in_parts(),
                "values in parts are not built in dataflow histogram; use simt");
  judge.require(op.shape.page_tokens == 0,
                "a cache in pages is not built in dataflow histogram; use dataflow simt");
  judge.require(op.shape.query_tokens == 1,
                "{} query tokens are more than the 1 of dataflow histogram; use dataflow simt",
                op.shape.query_tokens);
  judge.require(op.shape.sliding_window == 0 && op.shape.attention_chunk == 0 &&
                    op.shape.logit_softcap == 0 && !op.shape.sink_logits,
                "sliding_window, attention_chunk, logit_softcap and sink_logits are not built in "
                "dataflow histogram; use dataflow simt");
  judge.require(
      op.group() <= kMostBinHeads,
      "{} query heads of a KV head are more than the {} of dataflow histogram; use dataflow simt",
      op.group(), kMostBinHeads);
  judge.require(std::has_single_bit(static_cast<unsigned>(plan.bin_heads)),
                "bin_heads {} is no power of two", plan.bin_heads);
  judge.require(plan.rows_per_block % 16 == 0, "rows_per_block {} is not a multiple of 16",
                plan.rows_per_block);
  judge.require(plan.tokens_per_thread % 4 == 0, "tokens_per_thread {} is not a multiple of 4",
                plan.tokens_per_thread);
  for (const auto& [name, count] :
       {std::pair{"bin_slices", plan.bin_slices}, std::pair{"entry_splits", plan.entry_splits}}) {
    judge.require(std::has_single_bit(static_cast<unsigned>(count)) &&
                      op.values.entries() / count >= kLeastWidth,
                  "{} {} does not split the {} entries of a value codebook into powers of two of "
                  "at least {}",
                  name, count, op.values.entries(), kLeastWidth);
  }
  if (!judge.ok()) return;
  const auto config = configured(plan, op);
  judge.require(plan.columns_per_block <= vq::columns_of(config.values),
                "columns_per_block {} is more than the {} columns of the values",
                plan.columns_per_block, vq::columns_of(config.values));
  const int registers = registers_of(config);
  const int most = std::min(255, gpu.registers_per_sm / plan.threads);
  judge.require(registers <= most,
                "tokens_per_thread {} takes {} registers per thread, of {}; lower it or threads",
                plan.tokens_per_thread, registers, most);
  judge.require(fill_blocks(plan, op) <= 65535, "{} blocks of bins exceed the grid's second axis",
                fill_blocks(plan, op));
  judge.require(std::int64_t{op.shape.batch} <= 65535, "{} sequences exceed the grid's third axis",
                op.shape.batch);
  const vq::CallShape shape = call_shape(plan, op);
  judge.require(shape.workspace_bytes <= static_cast<std::int64_t>(gpu.memory_bytes) / 2,
                "tables, scores and bins take {:.3g} bytes, more than half of the {} of {}; use "
                "another dataflow",
                static_cast<double>(shape.workspace_bytes), gpu.memory_bytes, gpu.name);
  judge_codebooks(judge, op, gpu);
  judge_block(judge, plan.threads, shape.shared_bytes(), gpu);
  judge_block(judge, plan.bin_threads, vq::bins_shared(config).total, gpu);
}

AttentionHistogram choose_plan(AttentionHistogram plan, const AttentionDecode& op,
                               const GpuSpec& gpu) {
  if (op.group() > 4) plan.tokens_per_thread /= 2;
  choose_tables(plan, op, gpu);
  choose_bins(plan, op, gpu);
  plan.splits = even_waves(fill_blocks(plan, op) * op.shape.batch, op, plan.bin_threads, gpu);
  choose_products(plan, op, gpu);
  return plan;
}

void add_candidates(Candidates& to, AttentionHistogram plan, const AttentionDecode& op,
                    SpacePlacement allowed) {
  if (allowed == SpacePlacement::shared) return;  // which places no entry
  using P = AttentionHistogram;
  plan = choose_plan(plan, op, to.gpu);
  const int tokens = plan.tokens_per_thread;
  const int columns = plan.columns_per_block;
  for_each_of(plan,
              {{&P::threads, {plan.threads, 1024, 256}},
               {&P::bin_threads, {plan.bin_threads, 512}},
               {&P::tokens_per_thread, {tokens, tokens / 2, tokens * 2}},
               {&P::splits, {plan.splits, plan.splits * 2, (plan.splits + 1) / 2}},
               {&P::columns_per_block, {columns, (columns + 1) / 2}},
               {&P::bin_heads, {plan.bin_heads, std::min(plan.bin_heads * 2, kMostBinHeads)}},
               {&P::entry_splits, {plan.entry_splits, plan.entry_splits * 2}}},
              [&] { to.add(plan); });
}

// Products look all entries up once; what is looked up per token are numbers.
PlanUse use_of(const AttentionHistogram& plan, const AttentionDecode& op) {
  PlanUse use = use_of<AttentionHistogram>(plan, op);
  const double rows = static_cast<double>(op.shape.batch) * op.shape.kv_heads;
  for (OperandUse& each : use.operands) {
    each.lookups = rows * static_cast<double>(each.codebook_bytes()) / each.entry_bytes();
    each.fills = 0;
  }
  return use;
}

void count_work(BlockWork& to, const AttentionHistogram& plan, const AttentionDecode& op,
                const PlanUse&, ConflictTable&) {
  // Work of score and histogram blocks, per SM's share of the tokens: one number per column and
  // head, at the fitted wavefronts per 32.
  const auto c = configured(plan, op);
  double columns = vq::columns_of(c.values) * 3.5 * op.group();
  for (int i = 0; i < vq::key_formats(c); ++i)
    columns += vq::columns_of(vq::key_format(c, i)) * 6.2;
  const double tokens = static_cast<double>(op.shape.tokens) * op.shape.batch * op.shape.kv_heads;
  const double of_block = tokens / 32 * columns / static_cast<double>(to.blocks);
  to.passes += of_block;
  to.arithmetic += of_block;
  to.registers = registers_of(c);
}

std::vector<std::string> explain_plan(const AttentionHistogram& plan, const AttentionDecode& op) {
  const auto config = configured(plan, op);
  const vq::BinsHanded at = vq::bins_handed(vq::bin_sizes(config), op.shape.batch, op.shape.tokens);
  return {
      fmt::format("workspace: {} bytes of tables, {} of large scores, {} of powers, {} of bins",
                  at.large - at.tables, at.powers - at.large, at.maxima - at.powers,
                  at.total - at.bins),
      fmt::format("bins: {} of {} value columns a block, {} of {} heads, {} of {} entries",
                  plan.columns_per_block, vq::columns_of(config.values), vq::summed_heads(config),
                  op.group(), vq::slice_entries(config), op.values.entries())};
}

}  // namespace vqgen
