#include "tests/sweep/hard_append.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "quantizer/parts.h"
#include "tests/sweep/plans.h"

namespace vqgen::test {
namespace {

using Elements = std::vector<std::uint16_t>;

class Hardener {
 public:
  Hardener(Hard kind, DType dtype, std::uint64_t seed)
      : kind_(kind), dtype_(dtype), random_(seed) {}

  // Changes each part by itself.
  void change_parts(QuantizedTensor& tensor, Elements& rows) {
    if (!tensor.format.in_parts()) return change(tensor, rows);
    const auto columns = static_cast<std::size_t>(tensor.columns);
    std::vector<QuantizedTensor> parts;
    for (std::size_t i = 0; i < tensor.format.parts.size(); ++i) {
      parts.push_back(take_part(tensor, i));
      const std::vector<int>& channels = tensor.format.parts[i].channels;
      Elements of_part;
      for (std::size_t row = 0; row < rows.size(); row += columns) {
        for (const int channel : channels)
          of_part.push_back(rows[row + static_cast<std::size_t>(channel)]);
      }
      change(parts.back(), of_part);
      auto next = of_part.begin();
      for (std::size_t row = 0; row < rows.size(); row += columns) {
        for (const int channel : channels) rows[row + static_cast<std::size_t>(channel)] = *next++;
      }
    }
    const QuantizedTensor joined = join_parts(tensor.format, parts, tensor.columns);
    tensor.codebooks = joined.codebooks;
    tensor.stage_scales = joined.stage_scales;
  }

 private:
  // Changes codebooks first, since rows of new tokens are made from them.
  void change(QuantizedTensor& tensor, Elements& rows) {
    const auto size = static_cast<std::size_t>(tensor.format.vector_size);
    Elements& books = tensor.codebooks;
    const std::size_t entries = books.size() / size;
    const auto of_book = static_cast<std::size_t>(tensor.format.entries());
    if (kind_ == Hard::copies) {  // copies of the first half of a book, or of the previous entry
      for (std::size_t i = 0; i < entries; ++i) {
        if (i % of_book < of_book / 2) continue;
        const std::size_t from =
            below(2) == 0 ? i / of_book * of_book + below(of_book / 2) : i - i % 2;
        std::copy_n(books.begin() + at(from, size), size, books.begin() + at(i, size));
      }
    }
    // One lane of the tensor-core tile gets all copies of an entry of 32.
    if (kind_ == Hard::one_entry || kind_ == Hard::in_turn) {
      const std::size_t kept = kind_ == Hard::one_entry ? 1 : 32;
      for (std::size_t i = 0; i < entries; ++i) {
        const std::size_t from = i / of_book * of_book + i % of_book % kept;
        std::copy_n(books.begin() + at(from, size), size, books.begin() + at(i, size));
      }
    }
    if (kind_ == Hard::one_side) {
      for (std::uint16_t& element : books) element &= 0x7fff;
      return beside(tensor, rows);
    }
    if (kind_ == Hard::large || kind_ == Hard::small) {
      const float factor = kind_ == Hard::large ? large() : small();
      for (Elements* each : {&books, &rows}) multiply(*each, factor);
    }
    // Squared distances reach the limits of fp32, though entries do not.
    if (kind_ == Hard::scaled && !tensor.stage_scales.empty()) {
      const float factor = dtype_ == DType::f16 ? 1.0f : 0x1p-36f;
      constexpr float kScale = 0x1p-38f;
      multiply(books, factor);
      multiply(rows, factor * kScale);
      for (float& scale : tensor.stage_scales) scale *= kScale;
    }
    if (kind_ != Hard::none) return halfway(tensor, rows);
    const std::array numbers{std::numeric_limits<float>::infinity(),
                             -std::numeric_limits<float>::infinity(),
                             std::numeric_limits<float>::quiet_NaN()};
    for (std::size_t i = 0; i < rows.size(); i += 1 + below(300)) rows[i] = put(numbers[i % 3]);
  }

  static std::ptrdiff_t at(std::size_t entry, std::size_t size) {
    return static_cast<std::ptrdiff_t>(entry * size);
  }
  std::size_t below(std::size_t end) { return random_() % end; }
  void multiply(Elements& elements, float factor) const {
    for (std::uint16_t& element : elements) {
      element = put(factor * element_to_float(dtype_, element));
    }
  }
  std::uint16_t put(float value) const { return element_from_float(dtype_, value); }
  float large() const { return dtype_ == DType::f16 ? 4000.0f : 1e30f; }
  float small() const { return dtype_ == DType::f16 ? 1e-6f : 1e-36f; }

  // The index of the first stage's codebook for the sub-vector at element `i` of rows.
  static std::size_t first_book(const QuantizedTensor& tensor, std::size_t i) {
    const auto columns = static_cast<std::size_t>(tensor.columns);
    const auto heads = static_cast<std::size_t>(tensor.heads);
    const auto of_head = std::max<std::size_t>(1, static_cast<std::size_t>(tensor.units) / heads);
    const std::size_t head = tensor.units == 1 ? 0 : i / columns % heads;
    const std::size_t unit = head * of_head + i % columns / (columns / of_head);
    return unit * static_cast<std::size_t>(tensor.format.num_codebooks);
  }

  // Makes sub-vectors y opposite to all entries c, at the distance at which B + y c - |c|^2 / 2 is
  // zero for two entries and negative for the others, up to rounding. B is the largest |c|^2 / 2,
  // which the kernel uses if its first tile is the whole codebook.
  void beside(const QuantizedTensor& tensor, Elements& rows) {
    const auto size = static_cast<std::size_t>(tensor.format.vector_size);
    const auto entries = static_cast<std::size_t>(tensor.format.entries());
    std::vector<double> book(entries * size), below_most(entries);
    const auto product = [&](const std::vector<double>& y, std::size_t entry) {
      return std::inner_product(y.begin(), y.end(), book.begin() + at(entry, size), 0.0);
    };
    for (std::size_t i = 0; i < rows.size(); i += size) {
      const std::size_t number = first_book(tensor, i);
      for (std::size_t k = 0; k < book.size(); ++k) {
        book[k] = element_to_float(dtype_, tensor.codebooks[number * book.size() + k]);
      }
      double most = 0.0;
      for (std::size_t e = 0; e < entries; ++e) {
        const std::vector<double> entry(book.begin() + at(e, size), book.begin() + at(e + 1, size));
        below_most[e] = -0.5 * product(entry, e);
        most = std::max(most, -below_most[e]);
      }
      for (double& each : below_most) each += most;
      // Moves y away until the last estimate becomes 0, then sideways until another one does.
      std::vector<double> y(size), aside(size);
      for (std::size_t d = 0; d < size; ++d) {
        y[d] = -1.0 - static_cast<double>(below(100)) / 400;
        aside[d] = static_cast<double>(below(200)) / 100 - 1.0;
      }
      double far = 0.0;
      std::size_t nearest = 0;
      for (std::size_t e = 0; e < entries; ++e) {
        const double wanted = -below_most[e] / product(y, e);
        if (wanted > far) {
          far = wanted;
          nearest = e;
        }
      }
      for (double& each : y) each *= far;
      const double turn = product(aside, nearest) / (2.0 * (most - below_most[nearest]));
      for (std::size_t d = 0; d < size; ++d) aside[d] -= turn * book[nearest * size + d];
      double more = std::numeric_limits<double>::infinity();
      for (std::size_t e = 0; e < entries; ++e) {
        const double rises = product(aside, e);
        if (e != nearest && rises > 0.0)
          more = std::min(more, -(below_most[e] + product(y, e)) / rises);
      }
      const double scale = tensor.stage_scales.empty() ? 1.0 : tensor.stage_scales[number];
      for (std::size_t d = 0; d < size; ++d) {
        rows[i + d] =
            put(static_cast<float>(scale * (y[d] + (std::isfinite(more) ? more : 0.0) * aside[d])));
      }
    }
  }

  // Three of four sub-vectors are midway between two entries of the first stage; in half of them up
  // to a rounding.
  void halfway(const QuantizedTensor& tensor, Elements& rows) {
    const auto size = static_cast<std::size_t>(tensor.format.vector_size);
    const auto entries = static_cast<std::size_t>(tensor.format.entries());
    for (std::size_t i = 0; i < rows.size(); i += size) {
      if (below(4) == 0) continue;
      const std::size_t book = first_book(tensor, i);
      const float scale = tensor.stage_scales.empty() ? 1.0f : tensor.stage_scales[book];
      const std::size_t a = (book * entries + below(entries)) * size;
      const std::size_t b = (book * entries + below(entries)) * size;
      for (std::size_t d = 0; d < size; ++d) {
        rows[i + d] = put(0.5f * scale * element_to_float(dtype_, tensor.codebooks[a + d]) +
                          0.5f * scale * element_to_float(dtype_, tensor.codebooks[b + d]));
      }
      if (below(2) == 0) rows[i + below(size)] ^= 1;
    }
  }

  Hard kind_;
  DType dtype_;
  std::mt19937_64 random_;
};

}  // namespace

AppendData hard_data(const KvAppend& op, Hard kind) {
  AppendData data = make_append_data(op, {.seed = 51, .lengths = LengthPattern::ragged});
  Hardener hardener(kind, op.dtype, 52);
  hardener.change_parts(data.keys, data.new_keys);
  hardener.change_parts(data.values, data.new_values);
  return data;
}

std::size_t differences(const AppendResult& a, const AppendResult& b) {
  std::size_t count = 0;
  for (const auto member : {&AppendResult::key_codes, &AppendResult::value_codes}) {
    for (std::size_t i = 0; i < (a.*member).size(); ++i) count += (a.*member)[i] != (b.*member)[i];
  }
  return count;
}

void expect_bits_of_lanes(const KvAppend& op, const std::vector<Plan>& plans) {
  Kernel lanes(*sweep_backend(), op, rules_plan<AppendSimt>(op, sweep_gpu()), sweep_gpu());
  std::vector<Kernel> all;
  for (const Plan& plan : plans) {
    ASSERT_TRUE(check(plan, op, sweep_gpu()).ok) << check(plan, op, sweep_gpu()).reason;
    all.emplace_back(*sweep_backend(), op, plan, sweep_gpu());
  }
  for (const Hard kind : kAllHard) {
    const AppendData data = hard_data(op, kind);
    const AppendResult right = lanes.run(data);
    // The other kinds leave the range of fp32, so their codes are only compared.
    const bool judged = kind == Hard::halfway || kind == Hard::copies || kind == Hard::in_turn ||
                        kind == Hard::one_entry;
    EXPECT_TRUE(!judged || judge_append(data, right).ok) << judge_append(data, right).why;
    for (Kernel& each : all) {
      const AppendResult result = each.run(data);
      EXPECT_EQ(differences(right, result), 0u) << static_cast<int>(kind);
      EXPECT_EQ(result.raw_keys, right.raw_keys);
      EXPECT_EQ(result.raw_values, right.raw_values);
    }
  }
}

void expect_estimates_checked(const KvAppend& op, const Plan& plan, std::span<const Fault> faults) {
  std::vector<AppendData> inputs;
  std::vector<AppendResult> right;
  Kernel lanes(*sweep_backend(), op, rules_plan<AppendSimt>(op, sweep_gpu()), sweep_gpu());
  for (const Hard kind : kAllHard) {
    inputs.push_back(hard_data(op, kind));
    right.push_back(lanes.run(inputs.back()));
  }
  expect_faults_found(op, plan, faults, [&](Kernel& faulty) {
    bool same = true;
    for (std::size_t i = 0; same && i < inputs.size(); ++i) {
      same = differences(right[i], faulty.run(inputs[i])) == 0;
    }
    return same;
  });
}

}  // namespace vqgen::test
