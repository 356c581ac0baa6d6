#include "runtime/ops/kv_append/reference.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include "core/parallel.h"
#include "runtime/ops/attention_decode/reference.h"
#include "runtime/verify/basis.h"
#include "runtime/verify/row_decoder.h"
#include "runtime/verify/row_parts.h"

namespace vqgen {
namespace {

double norm(std::span<const double> vector) {
  return std::sqrt(std::inner_product(vector.begin(), vector.end(), vector.begin(), 0.0));
}

double distance(std::span<const double> a, std::span<const double> b) {
  double squares = 0;
  for (std::size_t i = 0; i < a.size(); ++i) squares += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(squares);
}

// The share of itself by which an element of a row in the basis may be off: it is rounded, after
// sums in fp32. A row that is off by a share of its length changes either distance by no more.
double basis_rounding(DType dtype) { return dtype == DType::f16 ? 0x1p-10 : 0x1p-8; }
double basis_excess(DType dtype) { return 2 * basis_rounding(dtype); }

// One operand of the call.
struct Operand {
  const char* name;
  const QuantizedTensor& before;
  const std::vector<std::uint32_t>& codes;
  const std::vector<std::uint16_t>& elements;
  const std::vector<std::uint16_t>& raw_before;
  const std::vector<std::uint16_t>& raw;
  // `elements` in the basis of the rows; empty without one. Kernels round them to elements.
  std::vector<double> in_basis = {};
};

void join(AppendVerdict& all, const AppendVerdict& next) {
  if (all.ok) all.why = next.why;
  all.ok = all.ok && next.ok;
  all.excess = std::max(all.excess, next.excess);
  all.codes += next.codes;
}

// Judges one head of one sequence.
class HeadJudge {
 public:
  HeadJudge(const AppendData& data, const Operand& operand, const RowDecoder& books,
            std::int64_t sequence, std::int64_t head)
      : data_(data), operand_(operand), books_(books), sequence_(sequence), head_(head) {
    const auto b = static_cast<std::size_t>(sequence);
    const std::int64_t wanted = data.counts.empty() ? data.new_tokens : data.counts[b];
    first_ = data.positions[b];
    if (first_ < 0) return;
    count_ =
        std::max<std::int64_t>(0, std::min({wanted, data.new_tokens, data.keys.rows - first_}));
  }

  AppendVerdict judge() {
    std::vector<bool> of_row(static_cast<std::size_t>(t_.head_words()), false);
    const auto begin = static_cast<std::size_t>((sequence_ * t_.heads + head_) * t_.head_words());
    for (std::int64_t token = 0; token < t_.rows; ++token) {
      bool changed = false;
      for (std::int64_t word = 0; word < t_.row_words; ++word) {
        const std::size_t at = word_number(t_, sequence_, head_, token, word);
        of_row[at - begin] = true;
        changed = changed || operand_.codes[at] != t_.codes[at];
      }
      if (written(token)) {
        judge_row(token);
      } else if (changed) {
        fail(fmt::format("token {} was changed, but nothing is appended there", token));
      }
    }
    for (std::size_t i = 0; i < of_row.size(); ++i) {
      if (of_row[i] || operand_.codes[begin + i] == t_.codes[begin + i]) continue;
      fail("words between the rows of the layout were changed");
      break;
    }
    judge_raw();
    return verdict_;
  }

 private:
  void fail(const std::string& what) {
    if (!verdict_.ok) return;
    verdict_.ok = false;
    verdict_.why =
        fmt::format("{} of sequence {}, head {}: {}", operand_.name, sequence_, head_, what);
  }

  // True if the call encodes the token. A group or flush block is encoded whole, with its last
  // token.
  bool written(std::int64_t token) const {
    const std::int64_t together = std::max(t_.format.group_tokens, data_.flush_block);
    const std::int64_t last = token - token % together + together - 1;
    return last >= first_ && last < first_ + count_;
  }

  // The elements of a token: from the call if it is appended, else from the recent-token ring.
  const std::uint16_t* elements_of(std::int64_t token) const {
    if (token >= first_) return operand_.elements.data() + new_elements(token);
    const std::int64_t slots = data_.raw_slots().count();
    const std::int64_t slot = data_.raw_slots().recent(token);
    return operand_.raw_before.data() +
           ((sequence_ * t_.heads + head_) * slots + slot) * t_.columns;
  }

  // The place of an appended token's first element.
  std::int64_t new_elements(std::int64_t token) const {
    return ((sequence_ * data_.new_tokens + token - first_) * t_.heads + head_) * t_.columns;
  }

  // True if the call brings the token into the basis of the rows.
  bool changes_basis(std::int64_t token) const {
    return token >= first_ && !operand_.in_basis.empty();
  }

  // The elements of a token as they are encoded.
  std::vector<double> transformed(std::int64_t token) const {
    const std::uint16_t* bits = elements_of(token);
    std::vector<double> x;
    for (std::int64_t i = 0; i < t_.columns; ++i) {
      x.push_back(changes_basis(token)
                      ? operand_.in_basis[static_cast<std::size_t>(new_elements(token) + i)]
                      : element_value(data_.dtype, bits[i]));
      if (t_.format.smooth) x.back() /= t_.smooth[static_cast<std::size_t>(head_ * t_.columns + i)];
    }
    return t_.format.hadamard ? rotated(x) : x;
  }

  void judge_row(std::int64_t token) {
    const VqFormat& f = t_.format;
    std::vector<double> x = transformed(token);
    const std::vector<std::uint32_t> words = row_words(t_, operand_.codes, sequence_, head_, token);
    if (f.scale_words(t_.columns) > 0 && !take_scales(token, x)) return;
    const auto size = static_cast<std::size_t>(f.vector_size);
    std::int64_t bit = 0;
    for (std::int64_t column = 0; column < t_.columns; column += f.vector_size) {
      const auto original = std::span(x).subspan(static_cast<std::size_t>(column), size);
      std::vector<double> left(original.begin(), original.end());
      for (int stage = 0; stage < f.num_codebooks; ++stage, bit += f.index_bits) {
        const std::int64_t book = unit_of(t_, head_, token, column) * f.num_codebooks + stage;
        const std::uint32_t code = read_code(words, bit, f.index_bits);
        const std::vector<double> point = books_.point(book, code);
        const double least = books_.least_distance(book, left);
        const double away = distance(left, point);
        const double excess =
            away == least ? 0 : (away - least) / (norm(f.hadamard ? x : original) + least);
        ++verdict_.codes;
        verdict_.excess = std::max(verdict_.excess, std::isnan(excess) ? 1.0 : excess);
        if (!(excess <= kAppendTolerance + (changes_basis(token) ? basis_excess(t_.dtype) : 0))) {
          fail(
              fmt::format("token {}, channel {}, stage {}: code {} is at a distance of {:.9g}, "
                          "where the least is {:.9g}",
                          token, column, stage, code, away, least));
        }
        for (std::size_t i = 0; i < size; ++i) left[i] -= point[i];
      }
    }
    for (; bit < (t_.row_words - f.scale_words(t_.columns)) * 32; ++bit) {
      if (read_code(words, bit, 1) == 0) continue;
      fail(fmt::format("token {}: padding is not zero", token));
      return;
    }
  }

  // Divides a token's elements by its scales, which are judged first. A scale maps the largest
  // magnitude of its numbers to the largest number. With zeros, the least number is the zero, to
  // the bit, and the range maps to the largest number.
  bool take_scales(std::int64_t token, std::vector<double>& x) {
    const VqFormat& f = t_.format;
    std::vector<std::vector<double>> rows{x};  // numbers that share scales
    for (std::int64_t i = 0; i < f.group_tokens; ++i) {
      rows.resize(static_cast<std::size_t>(i + 1));
      rows.back() = transformed(token - token % f.group_tokens + i);
    }
    const std::int64_t together = f.group_tokens > 0 ? 1 : f.scale_channels(t_.columns);
    for (std::int64_t first = 0; first < t_.columns; first += together) {
      std::vector<double> group;
      for (const std::vector<double>& row : rows) {
        group.insert(group.end(), row.begin() + first, row.begin() + first + together);
      }
      const ScaleOfToken by = scale_of_token(t_, operand_.codes, sequence_, head_, token, first);
      const ScaleOfToken right = right_scale(group);
      const double rounding = f.has_zeros() ? element_rounding(right.scale) : 0;
      if (by.zero != right.zero ||
          !(std::abs(by.scale - right.scale) <= kAppendTolerance * right.scale + rounding)) {
        fail(
            fmt::format("token {}, channel {}: scale {:.9g} and zero {:.9g} should be {:.9g} and "
                        "{:.9g}",
                        token, first, by.scale, by.zero, right.scale, right.zero));
        return false;
      }
      for (std::int64_t i = first; i < first + together; ++i) {
        double& value = x[static_cast<std::size_t>(i)];
        value = by.scale == 0 ? 0 : (value - by.zero) / by.scale;
      }
    }
    return true;
  }

  ScaleOfToken right_scale(std::span<const double> group) const {
    double most = 0, low = INFINITY, high = -INFINITY;
    for (const double value : group) {
      if (!std::isfinite(value)) continue;
      most = std::max(most, std::abs(value));
      low = std::min(low, value);
      high = std::max(high, value);
    }
    const auto peak = static_cast<double>(scalar_peak(t_.format));
    if (!t_.format.has_zeros()) return {most > 0 ? most / peak : 1, 0};
    return low <= high ? ScaleOfToken{(high - low) / peak, low} : ScaleOfToken{0, 0};
  }

  // Half of the distance between elements near `value`.
  double element_rounding(double value) const {
    return t_.dtype == DType::f16 ? std::max(0x1p-11 * value, 0x1p-25)
                                  : std::max(0x1p-8 * value, 0x1p-134);
  }

  // Is the slot the row that the call brought into the basis?
  bool is_rounded(std::int64_t token, const std::uint16_t* slot) const {
    const double* const row = operand_.in_basis.data() + new_elements(token);
    const double length = norm(std::span(row, static_cast<std::size_t>(t_.columns)));
    for (std::int64_t i = 0; i < t_.columns; ++i) {
      const double off = std::abs(element_value(data_.dtype, slot[i]) - row[i]);
      if (!(off <= basis_rounding(t_.dtype) * std::abs(row[i]) + 1e-5 * length)) return false;
    }
    return true;
  }

  void judge_raw() {
    const std::int64_t slots = data_.raw_slots().count();
    const auto begin = (sequence_ * t_.heads + head_) * slots * t_.columns;
    std::vector<std::uint16_t> expected(operand_.raw_before.begin() + begin,
                                        operand_.raw_before.begin() + begin + slots * t_.columns);
    for (std::int64_t token = first_; token < first_ + count_; ++token) {
      const auto put = [&](std::int64_t slot) {
        const auto to = expected.begin() + slot * t_.columns;
        const std::uint16_t* const written = operand_.raw.data() + begin + slot * t_.columns;
        if (!changes_basis(token)) {
          std::copy_n(operand_.elements.begin() + new_elements(token), t_.columns, to);
        } else if (is_rounded(token, written)) {
          std::copy_n(written, t_.columns, to);
        } else {
          *to = static_cast<std::uint16_t>(~*written);
        }
      };
      if (token < data_.max_sinks) put(token);
      if (data_.max_recent_tokens > 0) put(data_.raw_slots().recent(token));
    }
    const auto wrong =
        std::mismatch(expected.begin(), expected.end(), operand_.raw.begin() + begin).first;
    if (wrong == expected.end()) return;
    fail(fmt::format("raw slot {} is not what it has to be",
                     (wrong - expected.begin()) / t_.columns));
  }

  const AppendData& data_;
  const Operand& operand_;
  const RowDecoder& books_;
  const std::int64_t sequence_, head_;
  const QuantizedTensor& t_ = operand_.before;
  std::int64_t first_ = 0, count_ = 0;  // of the tokens that the sequence gets
  AppendVerdict verdict_;
};

void check(const AppendData& data, const Operand& operand) {
  const QuantizedTensor& t = operand.before;
  require(t.batch == data.batch && t.heads == data.keys.heads && t.rows == data.keys.rows,
          "append data: keys and values differ in shape, or from the batch");
  require(operand.codes.size() == t.codes.size() && operand.raw.size() == operand.raw_before.size(),
          "append data: the result has another size than the cache");
  require(std::ssize(operand.elements) == data.batch * data.new_tokens * t.heads * t.columns,
          "append data: new elements are not [batch][new_tokens][kv_heads][head_dim]");
  require(
      std::ssize(operand.raw) == data.batch * t.heads * data.raw_slots().count() * t.columns,
      "append data: raw slots are not [batch][kv_heads][max_sinks + max_recent_tokens][head_dim]");
  require(std::ssize(data.positions) == data.batch &&
              (data.counts.empty() || std::ssize(data.counts) == data.batch),
          "append data: positions or counts are not [batch]");
  require(t.format.group_tokens <= data.max_recent_tokens &&
              (data.flush_block == 1 || data.flush_block <= data.max_recent_tokens),
          "append data: the window holds no group or batch of tokens");
}

AppendVerdict judge_operand(const AppendData& data, const Operand& operand);

// Rows [..][heads][columns] in the basis of the tensor; none without one.
std::vector<double> rows_in_basis(const QuantizedTensor& tensor,
                                  const std::vector<std::uint16_t>& rows) {
  std::vector<double> all;
  if (!has_basis(tensor.format)) return all;
  std::vector<double> row;
  for (std::int64_t number = 0; number < std::ssize(rows) / tensor.columns; ++number) {
    row.clear();
    for (std::int64_t i = 0; i < tensor.columns; ++i) {
      const auto at = static_cast<std::size_t>(number * tensor.columns + i);
      row.push_back(element_value(tensor.dtype, rows[at]));
    }
    const std::vector<double> z = into_basis(tensor, number % tensor.heads, row);
    all.insert(all.end(), z.begin(), z.end());
  }
  return all;
}

// Each part on its own: its codes, and its channels of elements and raw slots.
AppendVerdict judge_parts(const AppendData& data, const Operand& operand) {
  const QuantizedTensor& tensor = operand.before;
  const std::vector<QuantizedTensor> before = split_rows(tensor, tensor.codes);
  const std::vector<QuantizedTensor> after = split_rows(tensor, operand.codes);
  AppendVerdict all;
  for (std::size_t i = 0; i < before.size(); ++i) {
    const auto of_part = [&](const std::vector<std::uint16_t>& rows) {
      return split_elements(std::span(rows), tensor.columns, tensor.format.parts[i]);
    };
    const std::string name = fmt::format("{}, part {}", operand.name, i);
    const std::vector<std::uint16_t> elements = of_part(operand.elements);
    const std::vector<double> in_basis = split_elements(std::span<const double>(operand.in_basis),
                                                        tensor.columns, tensor.format.parts[i]);
    const std::vector<std::uint16_t> raw_before = of_part(operand.raw_before);
    const std::vector<std::uint16_t> raw = of_part(operand.raw);
    join(all, judge_operand(data, {name.c_str(), before[i], after[i].codes, elements, raw_before,
                                   raw, in_basis}));
  }
  return all;
}

AppendVerdict judge_operand(const AppendData& data, const Operand& operand) {
  if (operand.before.format.in_parts()) return judge_parts(data, operand);
  check(data, operand);
  const QuantizedTensor& t = operand.before;
  const RowDecoder books(t);  // also judges the rest of the tensor's sizes
  const std::int64_t heads = data.batch * t.heads;
  std::vector<AppendVerdict> verdicts(static_cast<std::size_t>(heads));
  const int threads = reference_threads(heads * data.new_tokens * t.columns * t.format.entries() *
                                        t.format.num_codebooks * 8);
  in_parallel(verdicts.size(), threads, [&](std::size_t i) {
    const auto number = static_cast<std::int64_t>(i);
    verdicts[i] = HeadJudge(data, operand, books, number / t.heads, number % t.heads).judge();
  });
  AppendVerdict all;
  for (const AppendVerdict& each : verdicts) join(all, each);
  return all;
}

}  // namespace

double append_tolerance(const AppendData& data) {
  const bool basis = has_basis(data.keys.format) || has_basis(data.values.format);
  return kAppendTolerance + (basis ? basis_excess(data.dtype) : 0);
}

AppendVerdict judge_append(const AppendData& data, const AppendResult& result) {
  AppendVerdict both =
      judge_operand(data, {"keys", data.keys, result.key_codes, data.new_keys, data.raw_keys,
                           result.raw_keys, rows_in_basis(data.keys, data.new_keys)});
  join(both, judge_operand(
                 data, {"values", data.values, result.value_codes, data.new_values, data.raw_values,
                        result.raw_values, rows_in_basis(data.values, data.new_values)}));
  return both;
}

}  // namespace vqgen
