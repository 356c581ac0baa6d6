// The lookup table of lut attention: inner products of each sub-vector of the transformed query
// with all key entries, in units of log2 and with the stage's scale,
//
//   table [plane][stage][entry][column][head]   column: sub-vector, head: of the plane
//
// (columns: kernels/attention_lut/plan.h). An access of 16, 8 or 4 bytes is served for as many
// lanes at once as 128 bytes hold: 1, 2 or 4 groups of 8. Lanes of a group read adjacent columns,
// and groups start at different sub-vectors of their runs, so there are no bank conflicts whatever
// the codes, if runs are long enough and columns are a multiple of 128 bytes.
//
// The fill is fp32, from entries read once by 16-byte loads: tensor cores would need the query in
// 16 bits or in two parts, and the fill is short beside a split's tokens.
#pragma once

#include <vq/ops/attention_rows.cuh>

namespace vq {

VQ_DEVICE void set_word(u32& words, int, u32 value) { words = value; }
VQ_DEVICE void set_word(U32x2& words, int i, u32 value) { (i == 0 ? words.x : words.y) = value; }
VQ_DEVICE void set_word(U32x4& words, int i, u32 value) {
  (i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w) = value;
}

template <class Plan>
struct ScoreTable {
  using Format = CacheFormat<Plan, AttentionPart::kWhole, true>;
  using Rows = CacheRows<Plan, Format>;
  using Book = typename Rows::Book;
  static constexpr auto kConfig = Plan::config();
  static constexpr FormatConfig kFormat = kConfig.keys;
  static constexpr int kVectorSize = kFormat.vector_size;
  static constexpr int kResiduals = kFormat.num_codebooks;
  static constexpr int kEntries = entries(kFormat);
  static constexpr int kSubVectors = Rows::kSubVectors;
  static constexpr int kColumns = table_columns(kConfig);
  static constexpr int kHeads = table_heads(kConfig);  // heads per plane
  static constexpr int kPlanes = table_planes(kConfig);
  static constexpr bool kHalves = kConfig.table_bits == 16;
  static constexpr int kRun = lane_sub_vectors(kConfig);
  static constexpr int kPhaseGroups =  // lane groups that an access serves at once
      kHeads * kConfig.table_bits >= 128  ? 1
      : kHeads * kConfig.table_bits == 64 ? 2
                                          : 4;
  using Word = EntryWords<kHeads * kConfig.table_bits / 16>;  // an access

  // sums[h] += the products of the plane's heads with one entry.
  VQ_DEVICE static void add(float* sums, int plane, int stage, u32 code, int column) {
    const Word word = load_shared(words() + place(plane, stage, code, column));
    VQ_UNROLL
    for (int h = 0; h < kHeads; ++h) sums[h] += product(word, h);
  }

  VQ_DEVICE static int sub_vector_of(int column) {
    return column % kTableLanes * kRun + column / kTableLanes;
  }
  VQ_DEVICE static int column_of(int sub_vector) {
    return sub_vector % kRun * kTableLanes + sub_vector / kRun;
  }

  // All products, from query [heads_per_block][head_dim] fp32 in shared memory. All threads.
  VQ_DEVICE static void fill(const Book& book, const float* query) {
    constexpr int kLaneColumns = kColumns < 32 ? kColumns : 32;
    constexpr int kStep = kConfig.threads / kLaneColumns;
    constexpr int kRuns = kEntries / Book::kRunEntries;
    for (int column = thread_index() % kLaneColumns; column < kColumns; column += kLaneColumns) {
      const int sub_vector = sub_vector_of(column);
      if (thread_index() >= kStep * kLaneColumns || sub_vector >= kSubVectors) continue;
      VQ_UNROLL
      for (int plane = 0; plane < kPlanes; ++plane) {
        float own[kHeads][kVectorSize];
        load_own(own, plane, sub_vector, query);
        VQ_UNROLL
        for (int stage = 0; stage < kResiduals; ++stage) {
          const float scale = book.scale(Rows::unit_of(sub_vector), stage);
          for (int run = thread_index() / kLaneColumns; run < kRuns; run += kStep) {
            const U32x4 entries = book.run(Rows::unit_of(sub_vector), stage, run);
            VQ_UNROLL
            for (int i = 0; i < Book::kRunEntries; ++i) {
              const u32 code = static_cast<u32>(run * Book::kRunEntries + i);
              store_shared(words() + place(plane, stage, code, column),
                           products(own, entries, i, scale));
            }
          }
        }
      }
    }
  }

 private:
  VQ_DEVICE static Word* words() {
    return shared_part<Word>(shared_layout(kConfig, AttentionPart::kWhole).table);
  }
  VQ_DEVICE static u32 place(int plane, int stage, u32 code, int column) {
    return (static_cast<u32>(plane * kResiduals + stage) * static_cast<u32>(kEntries) + code) *
               static_cast<u32>(kColumns) +
           static_cast<u32>(column);
  }

  VQ_DEVICE static float product(Word word, int h) {
    if constexpr (sizeof(Word) == 2) {
      return to_float<Element::f16>(word);
    } else if constexpr (kHalves) {
      return to_float<Element::f16>(static_cast<u16>(word_of(word, h / 2) >> (h % 2 * 16)));
    } else {
      return float_from_bits(word_of(word, h));
    }
  }

  // The plane's query sub-vectors; zeros for heads past the block's.
  VQ_DEVICE static void load_own(float (&own)[kHeads][kVectorSize], int plane, int sub_vector,
                                 const float* query) {
    VQ_UNROLL
    for (int h = 0; h < kHeads; ++h) {
      const int head = plane * kHeads + h;
      VQ_UNROLL
      for (int i = 0; i < kVectorSize; ++i) {
        own[h][i] =
            head < kConfig.heads_per_block
                ? load_shared(query + head * kConfig.head_dim + sub_vector * kVectorSize + i)
                : 0.0f;
      }
    }
  }

  // Entry i of a run, with the heads of a plane.
  VQ_DEVICE static Word products(const float (&own)[kHeads][kVectorSize], U32x4 entries, int i,
                                 float scale) {
    float value[kVectorSize];
    VQ_UNROLL
    for (int j = 0; j < kVectorSize; j += 2) {
      const u32 pair = word_of(entries, (i * kVectorSize + j) / 2);
      value[j] = scale * to_float<kConfig.element>(static_cast<u16>(pair & 0xffffu));
      value[j + 1] = scale * to_float<kConfig.element>(static_cast<u16>(pair >> 16));
    }
    float product[kHeads];
    VQ_UNROLL
    for (int h = 0; h < kHeads; ++h) {
      product[h] = 0.0f;
      VQ_UNROLL
      for (int j = 0; j < kVectorSize; ++j) product[h] += own[h][j] * value[j];
    }
    return packed(product);
  }

  // f16 saturates: a score so far off decides alone.
  VQ_DEVICE static float clamped(float value) {
    constexpr float kMost = 65504.0f;
    return value > kMost ? kMost : value < -kMost ? -kMost : value;
  }
  VQ_DEVICE static Word packed(const float (&product)[kHeads]) {
    if constexpr (sizeof(Word) == 2) {
      return from_float<Element::f16>(clamped(product[0]));
    } else {
      Word word{};
      VQ_UNROLL
      for (int w = 0; w < static_cast<int>(sizeof(Word)) / 4; ++w) {
        if constexpr (kHalves) {
          set_word(word, w,
                   pack2<Element::f16>(clamped(product[2 * w]), clamped(product[2 * w + 1])));
        } else {
          set_word(word, w, float_bits(product[w]));
        }
      }
      return word;
    }
  }
};

}  // namespace vq
