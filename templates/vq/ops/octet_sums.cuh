// Octets of a warpgroup's lanes: 8 columns of an output, looked up and summed over residual stages,
// as 16-bit operand words.
//
//   elements   entries are summed in 16 bits; stages with scales in fp32 as they are looked up,
//              and rounded; one stage is scaled by its groups in 16 bits
//   bytes      formats whose sums fit bytes (byte_table.cuh): half of the shared-memory wavefronts.
//              Byte sums are exact as elements; scale() makes them numbers
#pragma once

#include <vq/codebook/codebook.cuh>
#include <vq/ops/byte_table.cuh>
#include <vq/ops/run_scales.cuh>

namespace vq {

// The factor of sums: a register only if there is one.
template <bool kAny>
struct SumFactor {
  VQ_DEVICE explicit SumFactor(const float*) {}
  VQ_DEVICE static float times(float sum) { return sum; }
};
template <>
struct SumFactor<true> {
  float factor;
  VQ_DEVICE explicit SumFactor(const float* at) : factor(load_constant(at)) {}
  VQ_DEVICE float times(float sum) const { return sum * factor; }
};

// True if the one stage's scale multiplies sums, and the scales of groups its entries. With minima
// it multiplies entries too, as it is no factor of a minimum.
template <class Plan>
VQ_HD constexpr bool scales_sums(const LinearConfig<Plan>& c) {
  return rebuilt(c.weights, false) == Rebuilt::kScaled && c.weights.stage_scales &&
         !c.weights.group_minima && in_one_unit(c);
}

template <class Plan, bool kBytes>
class OctetSums : SumFactor<scales_sums(Plan::config())> {
 public:
  using Work = LinearWork<Plan>;
  using Book = typename Work::Book;
  using Begun = typename Book::Begun;
  static constexpr auto kConfig = Plan::config();
  static constexpr FormatConfig kFormat = kConfig.weights;
  static constexpr Rebuilt kRebuilt = rebuilt(kFormat, false);
  static constexpr int kPasses = looked_up_stages(kFormat);
  using ByFactor = SumFactor<scales_sums(kConfig)>;

  VQ_DEVICE explicit OctetSums(const LinearArgs& args)
      : ByFactor(args.weights.scales), book_(args.weights, Work::kUnits) {}

  // Codebooks: codebook.cuh.
  VQ_DEVICE bool switch_to(i64 unit) { return book_.switch_to(unit); }
  VQ_DEVICE Begun begin_load() const { return book_.begin_load(thread_index()); }
  VQ_DEVICE void finish_load(const Begun& begun) { book_.finish_load(thread_index(), begun); }
  VQ_DEVICE void load() { book_.load(); }

  struct Octet {
    u32 words[kPasses][4];
  };
  // The factor of a group as look_up() takes it: of whatever unit, or without that of the stage.
  static constexpr bool kPaired =
      kRebuilt == Rebuilt::kScaled && (scales_sums(kConfig) || !kFormat.stage_scales);
  using GroupFactor = typename RunScales<Plan>::Factor;
  using Factor = Either<kPaired, Either<kFormat.group_minima, PairedTerms, u32>, GroupFactor>;
  VQ_DEVICE static Factor factor_of_group(GroupFactor factor) {
    if constexpr (kPaired) {
      return factor_of<kRebuilt, kConfig.element>(factor);
    } else {
      return factor;
    }
  }
  // Sub-vector e of the octet, of a unit counted from the bound one.
  template <class Code>
  VQ_DEVICE void look_up(Octet& to, int e, int unit, Factor factor, Code code) const {
    const auto look_up_by = [&](auto by) {
      VQ_UNROLL
      for (int pass = 0; pass < kPasses; ++pass) {
        rebuild<kRebuilt, kConfig.element>(to.words[pass] + e * kFormat.vector_size / 2, book_, 0,
                                           unit, pass, code, by);
      }
    };
    if constexpr (kPaired || kRebuilt != Rebuilt::kScaled) {
      look_up_by(factor);
    } else {
      look_up_by(factor_of<kRebuilt, kConfig.element>(factor_times(factor, book_.scale(unit, 0))));
    }
  }
  VQ_DEVICE static void sum(u32 (&words)[4], const Octet& octet) {
    VQ_UNROLL
    for (int i = 0; i < 4; ++i) {
      words[i] = octet.words[0][i];
      VQ_UNROLL
      for (int pass = 1; pass < kPasses; ++pass) {
        words[i] = add2<kConfig.element>(words[i], octet.words[pass][i]);
      }
    }
  }
  VQ_DEVICE float scaled(float sum) const { return this->times(sum); }

 private:
  Book book_;
};

template <class Plan>
class OctetSums<Plan, true> {
 public:
  using Work = LinearWork<Plan>;
  using Table = ByteTable<Plan>;
  using Begun = typename Table::Begun;
  static constexpr auto kConfig = Plan::config();
  static constexpr int kEntries = 8 / kConfig.weights.vector_size;
  static constexpr int kWords = kConfig.weights.vector_size / 4;  // words per entry, as bytes

  VQ_DEVICE explicit OctetSums(const LinearArgs& args) : table_(args) {}

  VQ_DEVICE bool switch_to(i64 unit) { return table_.switch_to(unit); }
  VQ_DEVICE Begun begin_load() const { return table_.begin_all(); }
  VQ_DEVICE void finish_load(const Begun& begun) { table_.finish_all(begun); }
  VQ_DEVICE void load() { finish_load(begin_load()); }

  struct Octet {
    typename Table::Looked entries[kEntries];
  };
  using Factor = float;
  VQ_DEVICE static Factor factor_of_group(float scale) { return scale; }
  template <class Code>
  VQ_DEVICE void look_up(Octet& to, int e, int, Factor, Code code) const {
    to.entries[e] = table_.look_up(code);
  }
  VQ_DEVICE static void sum(u32 (&words)[4], const Octet& octet) {
    VQ_UNROLL
    for (int e = 0; e < kEntries; ++e) {
      u32 bytes[kWords];
      Table::add_stages(bytes, octet.entries[e]);
      VQ_UNROLL
      for (int i = 0; i < kWords; ++i) {
        const U32x2 elements = elements_of_bytes<kConfig.element>(bytes[i]);
        words[2 * (e * kWords + i)] = elements.x;
        words[2 * (e * kWords + i) + 1] = elements.y;
      }
    }
  }
  VQ_DEVICE float scaled(float sum) const { return sum * table_.scale(); }

 private:
  Table table_;
};

}  // namespace vq
