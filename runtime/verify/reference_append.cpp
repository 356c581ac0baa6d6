#include "runtime/verify/reference_append.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "runtime/parallel.h"
#include "runtime/verify/reference_attention.h"
#include "runtime/verify/reference_threads.h"
#include "runtime/verify/row_decoder.h"

namespace vqgen {
namespace {

using Vector = std::vector<double>;

double norm(std::span<const double> vector) {
  double squares = 0;
  for (const double each : vector) squares += each * each;
  return std::sqrt(squares);
}

double distance(std::span<const double> a, std::span<const double> b) {
  double squares = 0;
  for (std::size_t i = 0; i < a.size(); ++i) squares += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(squares);
}

// Tokens that a sequence gets: number i of the call is token first + i.
struct Appended {
  std::int64_t first = 0, count = 0;
};

Appended appended(const AppendData& data, std::int64_t sequence) {
  const auto b = static_cast<std::size_t>(sequence);
  const std::int64_t first = data.positions[b];
  const std::int64_t wanted = data.counts.empty() ? data.new_tokens : data.counts[b];
  if (first < 0) return {};
  return {first,
          std::max<std::int64_t>(0, std::min({wanted, data.new_tokens, data.keys.rows - first}))};
}

// One operand of the call.
struct Operand {
  const char* name;
  const QuantizedTensor& before;
  const std::vector<std::uint32_t>& codes;
  const std::vector<std::uint16_t>& elements;
  const std::vector<std::uint16_t>& raw_before;
  const std::vector<std::uint16_t>& raw;
};

void fail(AppendVerdict& verdict, const Operand& operand, std::int64_t sequence, std::int64_t head,
          const std::string& what) {
  if (!verdict.ok) return;
  verdict.ok = false;
  verdict.why = fmt::format("{} of sequence {}, head {}: {}", operand.name, sequence, head, what);
}

void join(AppendVerdict& all, const AppendVerdict& next) {
  if (all.ok) all.why = next.why;
  all.ok = all.ok && next.ok;
  all.excess = std::max(all.excess, next.excess);
  all.codes += next.codes;
}

// The elements of a new token as they are encoded.
Vector transformed(const AppendData& data, const Operand& operand, std::int64_t sequence,
                   std::int64_t head, std::int64_t number) {
  const QuantizedTensor& t = operand.before;
  const std::int64_t row = (sequence * data.new_tokens + number) * t.heads + head;
  Vector x;
  for (std::int64_t i = 0; i < t.columns; ++i) {
    x.push_back(
        element_value(data.dtype, operand.elements[static_cast<std::size_t>(row * t.columns + i)]));
    if (t.format.smooth) x.back() /= t.smooth[static_cast<std::size_t>(head * t.columns + i)];
  }
  return t.format.hadamard ? rotated(x) : x;
}

void judge_row(AppendVerdict& verdict, const RowDecoder& books, const Operand& operand,
               std::int64_t sequence, std::int64_t head, std::int64_t token, const Vector& x) {
  const QuantizedTensor& t = operand.before;
  const VqFormat& f = t.format;
  std::vector<std::uint32_t> words;
  for (std::int64_t word = 0; word < t.row_words; ++word) {
    words.push_back(operand.codes[word_number(t, sequence, head, token, word)]);
  }
  const auto size = static_cast<std::size_t>(f.vector_size);
  std::int64_t bit = 0;
  for (std::int64_t column = 0; column < t.columns; column += f.vector_size) {
    const std::span<const double> original =
        std::span(x).subspan(static_cast<std::size_t>(column), size);
    Vector left(original.begin(), original.end());
    for (int stage = 0; stage < f.residuals; ++stage, bit += f.index_bits) {
      const std::int64_t book = unit_of(t, head, token, column) * f.residuals + stage;
      const std::uint32_t code = read_code(words, bit, f.index_bits);
      const Vector point = books.point(book, code);
      const double least = books.least_distance(book, left);
      const double away = distance(left, point);
      const double excess =
          away == least ? 0 : (away - least) / (norm(f.hadamard ? x : original) + least);
      ++verdict.codes;
      verdict.excess = std::max(verdict.excess, std::isnan(excess) ? 1.0 : excess);
      if (!(excess <= kAppendTolerance)) {
        fail(
            verdict, operand, sequence, head,
            fmt::format("token {}, channel {}, stage {}: code {} is at a distance of {:.9g}, where "
                        "the least is {:.9g}",
                        token, column, stage, code, away, least));
      }
      for (std::size_t i = 0; i < size; ++i) left[i] -= point[i];
    }
  }
  for (; bit < t.row_words * 32; ++bit) {
    if (read_code(words, bit, 1) == 0) continue;
    fail(verdict, operand, sequence, head, fmt::format("token {}: padding is not zero", token));
    return;
  }
}

void judge_raw(AppendVerdict& verdict, const AppendData& data, const Operand& operand,
               std::int64_t sequence, std::int64_t head) {
  const QuantizedTensor& t = operand.before;
  const std::int64_t slots = std::int64_t{data.max_sinks} + data.max_window;
  const auto begin = (sequence * t.heads + head) * slots * t.columns;
  const auto end = begin + slots * t.columns;
  std::vector<std::uint16_t> expected(operand.raw_before.begin() + begin,
                                      operand.raw_before.begin() + end);
  const Appended tokens = appended(data, sequence);
  for (std::int64_t i = 0; i < tokens.count; ++i) {
    const std::int64_t token = tokens.first + i;
    const std::int64_t row = (sequence * data.new_tokens + i) * t.heads + head;
    const auto put = [&](std::int64_t slot) {
      std::copy_n(operand.elements.begin() + row * t.columns, t.columns,
                  expected.begin() + slot * t.columns);
    };
    if (token < data.max_sinks) put(token);
    if (data.max_window > 0) put(data.max_sinks + token % data.max_window);
  }
  const auto wrong = std::mismatch(expected.begin(), expected.end(), operand.raw.begin() + begin);
  if (wrong.first == expected.end()) return;
  fail(verdict, operand, sequence, head,
       fmt::format("raw slot {} is not what it has to be",
                   (wrong.first - expected.begin()) / t.columns));
}

void judge_head(AppendVerdict& verdict, const AppendData& data, const RowDecoder& books,
                const Operand& operand, std::int64_t sequence, std::int64_t head) {
  const QuantizedTensor& t = operand.before;
  const Appended tokens = appended(data, sequence);
  std::vector<bool> of_row(static_cast<std::size_t>(t.head_words()), false);
  const auto begin = static_cast<std::size_t>((sequence * t.heads + head) * t.head_words());
  for (std::int64_t token = 0; token < t.rows; ++token) {
    const std::int64_t number = token - tokens.first;
    const bool written = number >= 0 && number < tokens.count;
    bool changed = false;
    for (std::int64_t word = 0; word < t.row_words; ++word) {
      const std::size_t at = word_number(t, sequence, head, token, word);
      of_row[at - begin] = true;
      changed = changed || operand.codes[at] != t.codes[at];
    }
    if (written) {
      const Vector x = transformed(data, operand, sequence, head, number);
      judge_row(verdict, books, operand, sequence, head, token, x);
    } else if (changed) {
      fail(verdict, operand, sequence, head,
           fmt::format("token {} was changed, but nothing is appended there", token));
    }
  }
  for (std::size_t i = 0; i < of_row.size(); ++i) {
    if (of_row[i] || operand.codes[begin + i] == t.codes[begin + i]) continue;
    fail(verdict, operand, sequence, head, "words between the rows of the layout were changed");
    break;
  }
  judge_raw(verdict, data, operand, sequence, head);
}

void check(const AppendData& data, const Operand& operand) {
  const QuantizedTensor& t = operand.before;
  require(t.batch == data.batch && t.heads == data.keys.heads && t.rows == data.keys.rows &&
              t.columns == data.keys.columns,
          "append data: keys and values differ in shape, or from the batch");
  require(operand.codes.size() == t.codes.size() && operand.raw.size() == operand.raw_before.size(),
          "append data: the result has another size than the cache");
  require(std::ssize(operand.elements) == data.batch * data.new_tokens * t.heads * t.columns,
          "append data: new elements are not [batch][new_tokens][kv_heads][head_dim]");
  require(std::ssize(operand.raw) ==
              data.batch * t.heads * (data.max_sinks + data.max_window) * t.columns,
          "append data: raw slots are not [batch][kv_heads][max_sinks + max_window][head_dim]");
  require(std::ssize(data.positions) == data.batch &&
              (data.counts.empty() || std::ssize(data.counts) == data.batch),
          "append data: positions or counts are not [batch]");
}

AppendVerdict judge_operand(const AppendData& data, const Operand& operand) {
  check(data, operand);
  const QuantizedTensor& t = operand.before;
  const RowDecoder books(t);  // which judges the rest of the tensor's sizes
  const std::int64_t heads = data.batch * t.heads;
  std::vector<AppendVerdict> verdicts(static_cast<std::size_t>(heads));
  const int threads = reference_threads(heads * data.new_tokens * t.columns * t.format.entries() *
                                        t.format.residuals * 8);
  in_parallel(verdicts.size(), threads, [&](std::size_t i) {
    const auto number = static_cast<std::int64_t>(i);
    judge_head(verdicts[i], data, books, operand, number / t.heads, number % t.heads);
  });
  AppendVerdict all;
  for (const AppendVerdict& each : verdicts) join(all, each);
  return all;
}

}  // namespace

AppendVerdict judge_append(const AppendData& data, const AppendResult& result) {
  AppendVerdict both = judge_operand(
      data, {"keys", data.keys, result.key_codes, data.new_keys, data.raw_keys, result.raw_keys});
  join(both, judge_operand(data, {"values", data.values, result.value_codes, data.new_values,
                                  data.raw_values, result.raw_values}));
  return both;
}

}  // namespace vqgen
