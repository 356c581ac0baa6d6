#include "runtime/ops/attention_decode/reference.h"

#include <algorithm>
#include <array>
#include <bit>
#include <bitset>
#include <cmath>
#include <limits>
#include <string>

#include "core/error.h"
#include "core/parallel.h"
#include "runtime/verify/basis.h"
#include "runtime/verify/row_decoder.h"

namespace vqgen {
namespace {

// Legendre's symbol of i - j in the field of 5, 9 or 13 elements: by Euler's criterion, or of 9
// elements a + b x with x x = -1 by a search for the root.
double square_sign(int q, int i, int j) {
  if (i == j) return 0;
  if (q == 9) {
    const int a = (i % 3 - j % 3 + 3) % 3, b = (i / 3 - j / 3 + 3) % 3;
    for (int c = 0; c < 3; ++c) {
      for (int d = 0; d < 3; ++d) {
        if ((c * c - d * d + 9) % 3 == a && 2 * c * d % 3 == b) return 1;
      }
    }
    return -1;
  }
  int power = 1;
  for (int k = 0; k < (q - 1) / 2; ++k) power = power * (i - j + q) % q;
  return power == 1 ? 1 : -1;
}

// Paley's second Hadamard matrix: a conference matrix with each entry a block of four.
double paley_entry(std::size_t order, std::size_t row, std::size_t column) {
  const int q = static_cast<int>(order) / 2 - 1;
  const int i = static_cast<int>(row) / 2, j = static_cast<int>(column) / 2;
  const std::size_t corner = row % 2 * 2 + column % 2;
  if (i == j) return std::array{1, -1, -1, -1}[corner];
  const double sign = i == 0 || j == 0 ? 1 : square_sign(q, i - 1, j - 1);
  return sign * std::array{1, 1, 1, -1}[corner];
}

void check(const AttentionData& d) {
  const QuantizedTensor& k = d.keys;
  require(d.values.batch == k.batch && d.values.heads == k.heads && d.values.rows == k.rows,
          "attention data: keys and values differ in shape");
  require(k.batch == d.batch, "attention data: keys.batch is not batch");
  const std::int64_t odd = k.columns >> std::countr_zero(static_cast<std::uint64_t>(k.columns));
  require(
      !k.format.hadamard || odd == 1 || (odd <= 7 && k.columns % 4 == 0),
      "attention data: hadamard needs a head_dim that is a power of two, or one times 12, 20 or "
      "28");
  require(!d.values.format.smooth && !d.values.format.hadamard,
          "attention data: values carry key transforms");
  require(k.heads > 0 && d.query_heads % k.heads == 0,
          "attention data: query_heads is no multiple of kv heads");
  require(
      d.query_start.empty() || (std::ssize(d.query_start) == d.batch + 1 && d.query_start[0] == 0 &&
                                std::is_sorted(d.query_start.begin(), d.query_start.end())),
      "attention data: query_start is not [batch + 1], ascending from 0");
  require(std::ssize(d.queries) == d.query_rows() * d.query_heads * k.columns,
          "attention data: queries are not [query rows][query_heads][head_dim]");
  const std::int64_t fresh = d.new_keys.empty() ? 0 : d.query_rows() * k.heads;
  require(std::ssize(d.new_keys) == fresh * k.columns &&
              std::ssize(d.new_values) == fresh * d.values.columns,
          "attention data: new_keys or new_values are not [query rows][kv_heads][columns]");
  require(std::ssize(d.lengths) == d.batch, "attention data: lengths are not [batch]");
  const auto all_within = [](const std::vector<std::int32_t>& values, std::int64_t max) {
    return std::all_of(values.begin(), values.end(), [=](auto v) { return v >= 0 && v <= max; });
  };
  require(all_within(d.lengths, k.rows), "attention data: a length outside 0..rows");
  require((d.recent_counts.empty() || std::ssize(d.recent_counts) == d.batch) &&
              all_within(d.recent_counts, d.max_recent_tokens),
          "attention data: windows are not [batch] within 0..max_recent_tokens");
  require(d.sink_logits.empty() || std::ssize(d.sink_logits) == d.query_heads,
          "attention data: sink_logits are not [query_heads]");
  require(d.tree_masks.empty() ||
              (std::ssize(d.tree_masks) == d.query_rows() &&
               std::ssize(d.new_keys) == fresh * k.columns && !d.query_start.empty()),
          "attention data: tree_masks are not [query rows], of tokens in new_keys");
  require((d.sinks.empty() || std::ssize(d.sinks) == d.batch) && all_within(d.sinks, d.max_sinks),
          "attention data: sinks are not [batch] within 0..max_sinks");
  const std::int64_t raw = d.batch * k.heads * d.raw_slots().count();
  require(
      std::ssize(d.raw_keys) == raw * k.columns &&
          std::ssize(d.raw_values) == raw * d.values.columns,
      "attention data: raw keys or values are not [batch][kv_heads][max_sinks + max_recent_tokens]"
      "[columns]");
}

// The rows of one tensor, sequence and head as doubles; a row that is read repeatedly is converted
// once.
class HeadRows {
 public:
  HeadRows(const AttentionData& data, std::int64_t columns, const RowDecoder* codes,
           const std::vector<std::uint16_t>& raw, const std::vector<std::uint16_t>& fresh,
           std::int64_t sequence, std::int64_t head)
      : data_(data),
        columns_(columns),
        codes_(codes),
        sequence_(sequence),
        head_(head),
        fresh_(fresh.data()) {
    const std::int64_t heads_before = sequence * data.keys.heads + head;
    raw_ = raw.data() + heads_before * data.raw_slots().count() * columns;
    rows_.fill(std::vector<double>(static_cast<std::size_t>(columns)));
    held_.fill(-1);
  }

  // [columns]; valid until row() is called for another token at the same place. For
  // TokenPlace::fresh, `token` is the row number.
  const double* row(TokenPlace place, std::int64_t token) {
    const auto which = static_cast<std::size_t>(place);
    std::vector<double>& row = rows_[which];
    if (held_[which] == token) return row.data();
    held_[which] = token;
    if (place == TokenPlace::codes) {
      codes_->decode(sequence_, head_, token, row);
      return row.data();
    }
    const std::uint16_t* bits = nullptr;
    if (place == TokenPlace::fresh) {
      bits = fresh_ + (token * data_.keys.heads + head_) * columns_;
    } else {
      const std::int64_t slot = place == TokenPlace::sink ? token : data_.raw_slots().recent(token);
      bits = raw_ + slot * columns_;
    }
    for (double& value : row) value = element_value(data_.dtype, *bits++);
    return row.data();
  }

 private:
  const AttentionData& data_;
  std::int64_t columns_;
  const RowDecoder* codes_;
  std::int64_t sequence_, head_;
  const std::uint16_t* raw_ = nullptr;
  const std::uint16_t* fresh_;
  std::array<std::vector<double>, 4> rows_;
  std::array<std::int64_t, 4> held_{};
};

struct Query {
  std::vector<double> raw;          // as given, for tokens in no slot
  std::vector<double> in_basis;     // for raw slots
  std::vector<double> transformed;  // for codes
  double shift = 0;                 // its product with the mean of the keys
  std::vector<double> weights;      // [tokens seen]: scores, then probabilities
  std::vector<double> sum;          // of values in their basis
  double of_basis = 0;              // the weights of these
  std::int64_t first = 0;           // token that it sees
  std::int64_t alone = 0;           // tokens that it would see behind its ancestors alone
  std::vector<bool> hidden;         // [tokens seen], drafts that are no ancestors; empty: none
  double sink = 0;                  // logit
  double* out = nullptr;
  double* lse = nullptr;
};

double dot(const std::vector<double>& a, const double* b) {
  std::array<double, 4> sums{};  // four chains, so that additions overlap
  std::size_t i = 0;
  for (; i + 4 <= a.size(); i += 4) {
    for (std::size_t j = 0; j < 4; ++j) sums[j] += a[i + j] * b[i + j];
  }
  for (; i < a.size(); ++i) sums[0] += a[i] * b[i];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// Turns the scores from `first` on into probabilities, which with exp(sink) sum to 1; returns the
// log of the sum of exponentials. The others become 0, as do those of -inf.
double softmax(std::vector<double>& scores, std::int64_t first, double sink) {
  const std::span<double> seen(scores.begin() + first, scores.end());
  std::fill(scores.begin(), scores.begin() + first, 0.0);
  double largest = sink;
  for (const double score : seen) largest = std::max(largest, score);
  if (largest == -std::numeric_limits<double>::infinity()) return largest;
  double sum = std::exp(sink - largest);
  for (double& score : seen) sum += score = std::exp(score - largest);
  for (double& score : seen) score /= sum;
  return largest + std::log(sum);
}

// For each of the tokens that a draft sees in a chain: whether its tree hides the token from it.
std::vector<bool> hidden_drafts(const AttentionData& data, std::int64_t sequence,
                                std::int64_t row) {
  const std::int64_t cached = data.lengths[static_cast<std::size_t>(sequence)];
  const std::int64_t own = row - data.query_rows(sequence).first;
  std::vector<bool> hidden(static_cast<std::size_t>(cached + own + 1), false);
  const std::bitset<64> seen(
      static_cast<std::uint64_t>(data.tree_masks[static_cast<std::size_t>(row)]));
  for (std::int64_t draft = 0; draft < own; ++draft) {
    hidden[static_cast<std::size_t>(cached + draft)] = !seen[static_cast<std::size_t>(draft)];
  }
  return hidden;
}

// The queries of a sequence that read one head of its cache.
void attend(const AttentionData& data, double softmax_scale, std::int64_t sequence,
            std::int64_t kv_head, HeadRows& keys, HeadRows& values, std::vector<Query>& queries) {
  const std::int64_t behind_cache =
      data.query_rows(sequence).first - data.lengths[static_cast<std::size_t>(sequence)];
  std::size_t longest = 0;
  for (const Query& query : queries) longest = std::max(longest, query.weights.size());
  const auto for_each_token = [&](const auto& visit) {
    for (std::size_t t = 0; t < longest; ++t) {
      const auto token = static_cast<std::int64_t>(t);
      for (Query& query : queries) {
        if (t >= query.weights.size() || token < query.first) continue;
        if (!query.hidden.empty() && query.hidden[t]) continue;
        const TokenPlace place = token_place(data, sequence, token, query.alone);
        visit(query, query.weights[t], place,
              place == TokenPlace::fresh ? behind_cache + token : token);
      }
    }
  };
  for_each_token([&](Query& query, double& score, TokenPlace place, std::int64_t token) {
    const auto& operand = place == TokenPlace::codes   ? query.transformed
                          : place == TokenPlace::fresh ? query.raw
                                                       : query.in_basis;
    const double shift = place == TokenPlace::fresh ? 0 : query.shift;
    score = (dot(operand, keys.row(place, token)) + shift) * softmax_scale;
    const double cap = data.logit_softcap;
    if (cap > 0) score = cap * std::tanh(score / cap);
  });
  for (Query& query : queries) {
    for (std::size_t t = 0; t < query.hidden.size(); ++t) {
      if (query.hidden[t]) query.weights[t] = -std::numeric_limits<double>::infinity();
    }
  }
  for (Query& query : queries) *query.lse = softmax(query.weights, query.first, query.sink);
  for_each_token([&](Query& query, double weight, TokenPlace place, std::int64_t token) {
    const double* row = values.row(place, token);
    const bool fresh = place == TokenPlace::fresh;
    double* const to = fresh ? query.out : query.sum.data();
    if (!fresh) query.of_basis += weight;
    for (std::int64_t i = 0; i < data.values.columns; ++i) to[i] += weight * row[i];
  });
  for (Query& query : queries) {
    const std::vector<double> back = out_of_basis(data.values, kv_head, query.sum, query.of_basis);
    for (std::size_t i = 0; i < back.size(); ++i) query.out[i] += back[i];
  }
}

// Decoders are null if no token is read from codes.
AttentionResult attention(const AttentionData& data, double softmax_scale,
                          const RowDecoder* key_codes, const RowDecoder* value_codes) {
  check(data);
  const std::int64_t dim = data.keys.columns;
  const std::int64_t value_dim = data.values.columns;
  const std::int64_t heads = data.keys.heads;
  const std::int64_t group = data.query_heads / heads;
  AttentionResult result;
  result.out.resize(static_cast<std::size_t>(data.query_rows() * data.query_heads * value_dim));
  result.lse.resize(static_cast<std::size_t>(data.query_rows() * data.query_heads));
  const std::int64_t pairs = data.batch * heads;
  const int threads =
      reference_threads(data.query_rows() * data.query_heads * data.keys.rows * (dim + value_dim));
  in_parallel(static_cast<std::size_t>(pairs), threads, [&](std::size_t pair) {
    const std::int64_t sequence = static_cast<std::int64_t>(pair) / heads;
    const std::int64_t head = static_cast<std::int64_t>(pair) % heads;
    std::vector<Query> queries;
    const auto [first, last] = data.query_rows(sequence);
    for (std::int64_t i = first * group; i < last * group; ++i) {
      const std::int64_t row = i / group;
      const std::int64_t number = row * data.query_heads + head * group + i % group;
      Query& query = queries.emplace_back();
      for (std::int64_t channel = 0; channel < dim; ++channel) {
        const auto bits = data.queries[static_cast<std::size_t>(number * dim + channel)];
        query.raw.push_back(element_value(data.dtype, bits));
      }
      query.in_basis = into_basis(data.keys, head, query.raw, false);
      query.transformed = transformed_query(data.keys, head, query.raw);
      query.shift = dot_mean(data.keys, head, query.raw);
      query.sum.resize(static_cast<std::size_t>(value_dim));
      const std::int64_t seen = std::max<std::int64_t>(0, data.seen_by(sequence, row));
      query.weights.resize(static_cast<std::size_t>(seen));
      query.alone = seen;
      if (!data.tree_masks.empty()) {
        query.hidden = hidden_drafts(data, sequence, row);
        query.alone -= std::count(query.hidden.begin(), query.hidden.end(), true);
      }
      query.first = data.first_seen(query.alone);
      query.sink = data.sink_logits.empty()
                       ? -std::numeric_limits<double>::infinity()
                       : static_cast<double>(
                             data.sink_logits[static_cast<std::size_t>(number % data.query_heads)]);
      query.out = result.out.data() + number * value_dim;
      query.lse = result.lse.data() + number;
    }
    HeadRows keys(data, dim, key_codes, data.raw_keys, data.new_keys, sequence, head);
    HeadRows values(data, value_dim, value_codes, data.raw_values, data.new_values, sequence, head);
    attend(data, softmax_scale, sequence, head, keys, values, queries);
  });
  return result;
}

}  // namespace

TokenPlace token_place(const AttentionData& data, std::int64_t sequence, std::int64_t token,
                       std::int64_t seen) {
  const auto b = static_cast<std::size_t>(sequence);
  if (!data.new_keys.empty() && token >= data.lengths[b]) return TokenPlace::fresh;
  if (!data.sinks.empty() && token < data.sinks[b]) return TokenPlace::sink;
  const std::int64_t together =
      std::max({data.keys.format.group_tokens, data.values.format.group_tokens, 1});
  const std::int64_t held =
      data.new_keys.empty() ? seen : std::min<std::int64_t>(seen, data.lengths[b]);
  std::int64_t end = held - held % together;
  if (!data.recent_counts.empty()) end = std::min(end, seen - data.recent_counts[b]);
  return token < end - end % data.flush_block ? TokenPlace::codes : TokenPlace::recent_tokens;
}

TokenPlace token_place(const AttentionData& data, std::int64_t sequence, std::int64_t token) {
  const std::int64_t last = data.query_rows(sequence).second - 1;
  return token_place(data, sequence, token, data.seen_by(sequence, last));
}

std::vector<double> rotated(std::span<const double> x) {
  const std::size_t size = x.size();
  const double magnitude = 1 / std::sqrt(static_cast<double>(size));
  const std::size_t order = std::has_single_bit(size) ? 1 : 4 * (size >> std::countr_zero(size));
  const std::size_t run = size / order;
  std::vector<double> result(size);
  for (std::size_t i = 0; i < size; ++i) {
    for (std::size_t j = 0; j < size; ++j) {
      const bool even = std::popcount(i % run & j % run) % 2 == 0;
      const double sign = order == 1 ? 1 : paley_entry(order, i / run, j / run);
      result[j] += x[i] * sign * (even ? magnitude : -magnitude);
    }
  }
  return result;
}

std::vector<double> transformed_query(const QuantizedTensor& keys, std::int64_t kv_head,
                                      std::span<const double> query) {
  std::vector<double> result = into_basis(keys, kv_head, query, false);
  if (keys.format.smooth) {
    const float* smooth = keys.smooth.data() + kv_head * keys.columns;
    for (double& each : result) each *= static_cast<double>(*smooth++);
  }
  return keys.format.hadamard ? rotated(result) : result;
}

float softmax_scale(const AttentionDecode& op) {
  return 1.0f / std::sqrt(static_cast<float>(op.shape.head_dim));
}

AttentionResult reference_attention(const AttentionData& data, double softmax_scale) {
  const RowDecoder keys(data.keys);
  const RowDecoder values(data.values);
  return attention(data, softmax_scale, &keys, &values);
}

AttentionResult reference_attention_unquantized(const AttentionData& data, double softmax_scale) {
  require(!data.original_keys.empty() && !data.original_values.empty(),
          "attention data: the tensors before quantization were not kept");
  // Makes every token a sink: the raw storage is then the original tensor itself.
  AttentionData plain;
  plain.dtype = data.dtype;
  for (QuantizedTensor* tensor : {&plain.keys, &plain.values}) {
    tensor->batch = data.batch;
    tensor->heads = data.keys.heads;
    tensor->rows = data.keys.rows;
  }
  plain.keys.columns = data.keys.columns;
  plain.values.columns = data.values.columns;
  plain.batch = data.batch;
  plain.query_heads = data.query_heads;
  plain.queries = data.queries;
  plain.query_start = data.query_start;
  plain.sliding_window = data.sliding_window;
  plain.attention_chunk = data.attention_chunk;
  plain.shared_prefix = data.shared_prefix;
  plain.logit_softcap = data.logit_softcap;
  plain.sink_logits = data.sink_logits;
  plain.tree_masks = data.tree_masks;
  plain.new_keys = data.new_keys;
  plain.new_values = data.new_values;
  plain.lengths = plain.sinks = data.lengths;
  plain.max_sinks = static_cast<int>(data.keys.rows);
  plain.raw_keys = data.original_keys;
  plain.raw_values = data.original_values;
  return attention(plain, softmax_scale, nullptr, nullptr);
}

}  // namespace vqgen
