// Hard data of attention_decode.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <utility>
#include <vector>

#include "runtime/ops/attention_decode/reference.h"
#include "runtime/verify/row_decoder.h"
#include "runtime/verify/uneven_channels.h"

namespace vqgen {
namespace {

constexpr double kScoreSpread = 2.5;  // natural log units
constexpr std::size_t kScoreSamples = 256;
constexpr double kMaxGain = 8;  // keeps values O(1) if chance makes scores near 0

// Independent streams of one seed: a change to one tensor leaves the others as they were.
enum Stream : std::uint64_t {
  kKeys,
  kValues,
  kKeyCodes,
  kValueCodes,
  kQueries,
  kRaw,
  kExtents,
  kPrefixes,
  kUnevenChannels = 9,
  kSinkLogits,
  kTrees
};

std::vector<std::int32_t> make_lengths(int batch, std::int64_t tokens, LengthPattern pattern,
                                       Random& random) {
  const auto full = static_cast<std::int32_t>(tokens);
  std::vector<std::int32_t> lengths(static_cast<std::size_t>(batch), full);
  if (pattern == LengthPattern::full) return lengths;
  const std::int32_t musts[] = {full, 0, 1};
  for (std::size_t b = 0; b < lengths.size(); ++b) {
    std::int64_t length = random.below(tokens) + 1;
    if (random.chance(0.5)) length = length / 64 * 64 + random.below(3) - 1;
    const bool must = batch > 1 && b < std::size(musts);
    length = std::clamp<std::int64_t>(length, 1, tokens);
    lengths[b] = must ? musts[b] : static_cast<std::int32_t>(length);
  }
  random.shuffle(lengths);
  return lengths;
}

// Draws 0..max per sequence, both ends among them; empty if the maximum is 0.
std::vector<std::int32_t> make_extents(int batch, int max, Random& random) {
  if (max == 0) return {};
  std::vector<std::int32_t> extents(static_cast<std::size_t>(batch));
  for (std::int32_t& extent : extents) extent = static_cast<std::int32_t>(random.below(max + 1));
  extents[0] = max;
  if (batch > 1) extents[1] = 0;
  random.shuffle(extents);
  return extents;
}

// Logits about as large as a log-sum-exp, and some that leave a head nothing, or all.
std::vector<float> make_sink_logits(const AttentionShape& shape, std::uint64_t seed) {
  if (!shape.sink_logits) return {};
  Random random(seed, kSinkLogits);
  std::vector<float> logits(static_cast<std::size_t>(shape.query_heads));
  for (float& logit : logits) {
    logit = static_cast<float>(3 * random.normal() + std::log(static_cast<double>(shape.tokens)));
    if (random.chance(0.05)) logit = random.chance(0.5) ? 200 : -200;
  }
  return logits;
}

// Where each sequence's query tokens begin. Lengths and windows leave room for them: in the cache
// if they will follow it, and in the recent-token ring if they are there.
void add_query_tokens(AttentionData& data, int most, const HardInput& input, Random& random) {
  if (most == 1) return;
  std::vector<std::int32_t> counts(data.lengths.size(), most);
  if (input.counts == LengthPattern::ragged) {
    counts = make_extents(static_cast<int>(data.batch), most, random);
  }
  data.query_start.push_back(0);
  for (std::size_t b = 0; b < counts.size(); ++b) {
    const auto room = static_cast<std::int32_t>(data.keys.rows);
    counts[b] = std::min(counts[b], room);
    data.query_start.push_back(data.query_start.back() + counts[b]);
    if (input.fresh) {
      data.lengths[b] = std::min(data.lengths[b], room - counts[b]);
    } else if (!data.recent_counts.empty()) {
      const std::int32_t others = std::max(counts[b] - 1, 0);
      const std::int32_t held = data.max_recent_tokens - (data.flush_block - 1);
      data.recent_counts[b] = std::max(std::min(data.recent_counts[b], held - others), 0);
    }
  }
  const auto fresh = input.fresh ? data.query_rows() * data.keys.heads : 0;
  data.new_keys.resize(static_cast<std::size_t>(fresh * data.keys.columns));
  data.new_values.resize(static_cast<std::size_t>(fresh * data.values.columns));
}

// A tree of each sequence's drafts: chains, bushes and what is between. Some drafts see any of
// those before them. Bits that do not count are random.
void add_trees(AttentionData& data, std::uint64_t seed) {
  Random random(seed, kTrees);
  data.tree_masks.resize(static_cast<std::size_t>(data.query_rows()));
  for (std::int64_t b = 0; b < data.batch; ++b) {
    const auto [first, last] = data.query_rows(b);
    const double chain = 0.25 * static_cast<double>(random.below(5));
    std::vector<std::uint64_t> paths;
    for (std::int64_t i = 0; i < last - first; ++i) {
      const std::uint64_t own = std::uint64_t{1} << i;
      const std::int64_t parent = random.chance(chain) ? i - 1 : random.below(i + 1) - 1;
      std::uint64_t path = parent < 0 ? own : paths[static_cast<std::size_t>(parent)] | own;
      const std::uint64_t any = random.bits();
      if (random.chance(0.1)) path = any | own;
      paths.push_back(path & (2 * own - 1));
      const std::uint64_t behind = ~(2 * own - 1);
      data.tree_masks[static_cast<std::size_t>(first + i)] =
          static_cast<std::int64_t>((paths.back() & ~own) | (any & (own | behind)));
    }
  }
}

// For each of a sequence's [rows]: whether the row is read from its codes.
std::vector<bool> rows_in_use(const AttentionData& data, std::int64_t sequence) {
  std::vector<bool> used(static_cast<std::size_t>(data.keys.rows));
  for (std::int64_t t = 0; t < data.lengths[static_cast<std::size_t>(sequence)]; ++t) {
    used[static_cast<std::size_t>(t)] = token_place(data, sequence, t) == TokenPlace::codes;
  }
  return used;
}

// Lets some sequences begin with the code pages of the previous sequence.
void repeat_prefixes(AttentionData& data, int page_tokens, Random& random) {
  const std::int64_t pages = data.keys.rows / page_tokens;
  for (std::int64_t b = 1; b < data.keys.batch && pages > 0; ++b) {
    if (random.chance(0.5)) continue;
    const std::int64_t rows = (random.below(pages) + 1) * page_tokens;
    for (QuantizedTensor* tensor : {&data.keys, &data.values}) {
      const std::int64_t words = stored_words(tensor->format.layout, rows, tensor->row_words);
      for (std::int64_t head = 0; head < tensor->heads; ++head) {
        const auto to = tensor->codes.begin() + (b * tensor->heads + head) * tensor->head_words();
        std::copy_n(to - tensor->heads * tensor->head_words(), words, to);
      }
    }
  }
}

// Up to kScoreSamples of a head's key rows in use, [head_dim] each.
std::vector<std::vector<double>> sample_keys(const AttentionData& data, const RowDecoder& decoder,
                                             const std::vector<bool>& used, std::int64_t sequence,
                                             std::int64_t head) {
  std::vector<std::int64_t> rows;
  for (std::size_t t = 0; t < used.size(); ++t) {
    if (used[t]) rows.push_back(static_cast<std::int64_t>(t));
  }
  std::vector<std::vector<double>> samples(std::min(rows.size(), kScoreSamples));
  for (std::size_t i = 0; i < samples.size(); ++i) {
    samples[i].resize(static_cast<std::size_t>(data.keys.columns));
    decoder.decode(sequence, head, rows[i * rows.size() / samples.size()], samples[i]);
  }
  return samples;
}

// The factor that gives a transformed query's scores a spread of kScoreSpread: their standard
// deviation or, if keys are too few or all equal, their root mean square.
double score_gain(const std::vector<double>& query,
                  const std::vector<std::vector<double>>& samples) {
  if (samples.empty()) return 1;
  double sum = 0, squares = 0;
  for (const std::vector<double>& key : samples) {
    double score = 0;
    for (std::size_t i = 0; i < key.size(); ++i) score += query[i] * key[i];
    sum += score;
    squares += score * score;
  }
  const double count = static_cast<double>(samples.size());
  const double dim = static_cast<double>(query.size());
  const double mean_square = squares / count / dim;
  const double variance = mean_square - sum / count * (sum / count) / dim;
  const bool varied = samples.size() >= 16 && variance > mean_square / 4096;
  const double spread = std::sqrt(varied ? variance : mean_square);
  return std::min(kScoreSpread / spread, kMaxGain);
}

// Draws queries, raw keys and raw values of one sequence and head. Raw keys get the magnitude that
// spreads their scores like those of the quantized keys, on average over the queries.
void fill_head(AttentionData& data, const std::vector<std::vector<double>>& samples,
               std::int64_t sequence, std::int64_t head, Random& query_random, Random& raw_random) {
  const std::int64_t dim = data.keys.columns;
  const std::int64_t value_dim = data.values.columns;
  const std::int64_t group = data.query_heads / data.keys.heads;
  const auto put = [&](std::vector<std::uint16_t>& to, std::int64_t index, double value) {
    to[static_cast<std::size_t>(index)] = element_from_float(data.dtype, static_cast<float>(value));
  };
  const std::vector<double> query_magnitudes = channel_magnitudes(dim, query_random);
  const std::vector<double> key_magnitudes = channel_magnitudes(dim, raw_random);
  const std::vector<double> value_magnitudes = channel_magnitudes(value_dim, raw_random);
  double raw_variance = 0;  // of a score, summed over the queries
  std::vector<double> query(static_cast<std::size_t>(dim));
  const auto [first, last] = data.query_rows(sequence);
  for (std::int64_t row = first; row < last; ++row) {
    for (std::int64_t q = 0; q < group; ++q) {
      for (std::size_t i = 0; i < query.size(); ++i) {
        query[i] = query_random.normal() * query_magnitudes[i];
      }
      const double gain = score_gain(transformed_query(data.keys, head, query), samples);
      const std::int64_t at = (row * data.query_heads + head * group + q) * dim;
      for (std::size_t i = 0; i < query.size(); ++i) {
        put(data.queries, at + static_cast<std::int64_t>(i), query[i] * gain);
        const double product = query[i] * gain * key_magnitudes[i];
        raw_variance += product * product / static_cast<double>(dim);
      }
    }
  }
  const double queries = static_cast<double>(std::max<std::int64_t>(last - first, 1) * group);
  const double key_gain = std::min(kScoreSpread / std::sqrt(raw_variance / queries), kMaxGain);
  const std::int64_t slots = data.raw_slots().count();
  const auto fill = [&](std::vector<std::uint16_t>& keys, std::vector<std::uint16_t>& values,
                        std::int64_t row) {
    for (std::int64_t i = 0; i < std::max(dim, value_dim); ++i) {
      const auto channel = static_cast<std::size_t>(i);
      if (i < dim)
        put(keys, row * dim + i, raw_random.normal() * key_magnitudes[channel] * key_gain);
      if (i < value_dim)
        put(values, row * value_dim + i, raw_random.normal() * value_magnitudes[channel]);
    }
  };
  for (std::int64_t slot = 0; slot < slots; ++slot) {
    fill(data.raw_keys, data.raw_values, (sequence * data.keys.heads + head) * slots + slot);
  }
  if (data.new_keys.empty()) return;
  for (std::int64_t row = first; row < last; ++row) {
    fill(data.new_keys, data.new_values, row * data.keys.heads + head);
  }
}

}  // namespace

AttentionData make_attention_data(const AttentionDecode& problem, const HardInput& input) {
  const AttentionShape& shape = problem.shape;
  AttentionData data;
  data.dtype = problem.dtype;
  data.paging_seed = input.seed;
  data.page_order = input.page_order;
  data.batch = shape.batch;
  data.query_heads = shape.query_heads;
  data.max_recent_tokens = shape.recent_tokens;
  data.raw_page_tokens = shape.raw_page_tokens;
  data.flush_block = shape.flush_block;
  data.max_sinks = shape.sinks;
  data.sliding_window = shape.sliding_window;
  data.attention_chunk = shape.attention_chunk;
  data.shared_prefix = shape.shared_prefix;
  data.logit_softcap = shape.logit_softcap;
  data.sink_logits = make_sink_logits(shape, input.seed);
  Random extents(input.seed, kExtents);
  data.lengths = make_lengths(shape.batch, shape.tokens, input.lengths, extents);
  if (!input.given_lengths.empty()) data.lengths = input.given_lengths;
  data.recent_counts = make_extents(shape.batch, most_raw(shape), extents);
  data.sinks = make_extents(shape.batch, shape.sinks, extents);

  TensorShape tensor{.batch = shape.batch, .heads = shape.kv_heads, .rows = shape.tokens};
  const auto make = [&](const VqFormat& format, int columns, Stream stream) {
    Random random(input.seed, stream);
    tensor.columns = columns;
    tensor.units = kv_units(format, shape.kv_heads, columns);
    return make_hard_tensor(format, problem.dtype, tensor, 1, random);
  };
  data.keys = make(problem.keys, shape.head_dim, kKeys);
  data.values = make(problem.values, shape.value_dim(), kValues);
  HardInput given = input;
  given.fresh = (input.fresh && !shape.shared_prefix) || shape.tree_mask;
  add_query_tokens(data, shape.query_tokens, given, extents);
  if (shape.tree_mask) add_trees(data, input.seed);

  std::vector<std::vector<bool>> used;
  for (std::int64_t b = 0; b < tensor.batch; ++b) used.push_back(rows_in_use(data, b));
  const auto patterned = [&](std::int64_t sequence, std::int64_t row) {
    return used[static_cast<std::size_t>(sequence)][static_cast<std::size_t>(row)];
  };
  Random key_codes(input.seed, kKeyCodes);
  Random value_codes(input.seed, kValueCodes);
  fill_codes(data.keys, law_of(input, 0), key_codes, patterned);
  fill_codes(data.values, law_of(input, 1), value_codes, patterned);

  // Shared pages are read from memory once, so full lengths, which are timed, have none.
  if (shape.page_tokens > 0 && input.lengths == LengthPattern::ragged) {
    Random prefixes(input.seed, kPrefixes);
    repeat_prefixes(data, shape.page_tokens, prefixes);
  }

  const std::int64_t raw = tensor.batch * tensor.heads * problem.raw_slots();
  data.raw_keys.resize(static_cast<std::size_t>(raw * shape.head_dim));
  data.raw_values.resize(static_cast<std::size_t>(raw * shape.value_dim()));
  data.queries.resize(
      static_cast<std::size_t>(data.query_rows() * data.query_heads * shape.head_dim));
  std::vector<bool> uneven;
  if (input.uneven) {
    Random channels(input.seed, kUnevenChannels);
    uneven = make_uneven(data.keys, channels);
  }
  const RowDecoder decoder(data.keys);
  Random queries(input.seed, kQueries);
  Random raws(input.seed, kRaw);
  for (std::int64_t b = 0; b < tensor.batch; ++b) {
    for (std::int64_t head = 0; head < tensor.heads; ++head) {
      auto samples = sample_keys(data, decoder, used[static_cast<std::size_t>(b)], b, head);
      for (std::size_t i = 0; i < uneven.size() / static_cast<std::size_t>(tensor.heads); ++i) {
        if (!uneven[static_cast<std::size_t>(head * shape.head_dim) + i]) continue;
        for (std::vector<double>& key : samples) key[i] = 0;
      }
      fill_head(data, samples, b, head, queries, raws);
    }
  }
  return data;
}

}  // namespace vqgen
