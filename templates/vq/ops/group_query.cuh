// The query times the scales of a key group, for fragment_scores.cuh. Keys are zero + scale n, with
// a scale and a zero for each channel and group of tokens, so
//
//   score   q . key = sum of q zero + sum of (q scale) n
//
// The first sum is one number for all tokens of the group: an MMA whose operand a is the zeros,
// equal in all rows. For the second a warp makes q scale for each group, in two parts
// (query_fragments.cuh), as operand b of the MMA with n: lane l makes the octet of channels l /
// kSharing for every kSharing-th head.
//
//   shared memory per warp   rows of operand words (plan.h): [part][head], then the zeros; then the
//                            words of scales and zeros as loaded, one per channel
#pragma once

#include <vq/codebook/affine_operands.cuh>
#include <vq/ops/query_fragments.cuh>
#include <vq/tokens/cached_rows.cuh>

namespace vq {

// Format::config() is the keys' format. Shared memory is addressed by functions of constants alone,
// as in codebook.cuh.
template <class Plan, class Format>
class GroupQuery {
 public:
  static constexpr auto kConfig = Plan::config();
  static constexpr FormatConfig kFormat = Format::config();
  static constexpr Element kElement = kConfig.element;
  static constexpr int kHeadDim = kConfig.head_dim;
  static constexpr int kHeads = kConfig.heads_per_block;
  using Operand = AffineKeys<kElement, kFormat.vector_size>;
  using Query = QueryFragments<Plan, 2, kElement, Operand, false>;
  using Octet = typename Query::Octet;
  static constexpr int kQuads = Query::kQuads;
  static constexpr int kOctets = kHeadDim / 8;  // octets per row
  static constexpr int kSharing = 32 / kOctets;
  static constexpr int kOfRow = static_cast<int>(scale_words(kFormat, kHeadDim));
  static constexpr int kFirstScale = static_cast<int>(code_words(kFormat, kHeadDim));  // in a row
  static_assert(kHeadDim % 8 == 0 && kOctets <= 32, "");

  // Peak magnitude of the scaled query. Scales of f16 are at most 131008 / 15. If products are
  // subnormal in f16, as for a small scale, a score loses up to 2^-24 of them, which matters for
  // queries of thousands.
  static constexpr float kPeak = 4.0f;

  // Words that one copy moves: of one token's row, and 8 bytes at most, which go by way of L1:
  // codes lie in the same sectors.
  VQ_HD static constexpr int width() {
    const bool pairs = kFormat.layout.rows * kFormat.layout.words == 1 &&
                       kConfig.code_words % 2 == 0 && kOfRow % 2 == 0;
    return pairs ? 2 : 1;
  }
  // Offset of this lane's words of the first copy from the group's first row; row(i) is the word
  // offset of row i of the group.
  template <class Row>
  VQ_DEVICE static int first_place(Row row) {
    return place_of(lane() * width(), row);
  }
  // Begins to copy a group's scales and zeros to shared memory, after make() has used the last
  // ones. `from` is the address of this lane's first words.
  template <class Row>
  VQ_DEVICE static void copy(const u32* from, Row row) {
    using Words = Either<width() == 2, U32x2, u32>;
    constexpr int kEach = width() * 32;
    // Rows of the next copy are as many further in all lanes, whole groups of them.
    constexpr bool kAlike = kEach % (kOfRow * kFormat.layout.rows) == 0;
    VQ_UNROLL
    for (int i = 0; i < ceil_div(kHeadDim, kEach); ++i) {
      const int channel = i * kEach + lane() * width();
      if (kHeadDim % kEach != 0 && channel >= kHeadDim) continue;
      const int further =
          kAlike ? row(i * kEach / kOfRow) : place_of(channel, row) - first_place(row);
      copy_async(reinterpret_cast<Words*>(scales() + channel),
                 reinterpret_cast<const Words*>(from + further));
    }
    copy_async_commit();
  }

  // All lanes: waits for what copy() brings.
  VQ_DEVICE static void await_copy() {
    copy_async_wait<0>();
    sync_warp();
  }
  // The scales and zeros of an octet of channels, once they are copied.
  VQ_DEVICE static void read_copied(u32 (&words)[8], int octet) {
    load_words<4>(words, scales() + octet * 8, LoadShared());
    load_words<4>(words + 4, scales() + octet * 8 + 4, LoadShared());
  }

  // All lanes: makes the operand of a group, once all have done with the last one, and the products
  // of its zeros with the heads, as take_scores() has scores. read(words, octet) reads as
  // read_copied() does.
  template <class Read>
  VQ_DEVICE static void make(float (&zeros)[kQuads], Read read) {
    u32 words[8], scale[4], zero[4];
    read(words, octet());
    VQ_UNROLL
    for (int i = 0; i < 4; ++i) {
      const u32 first = words[Operand::channel(2 * i)];
      const u32 second = words[Operand::channel(2 * i + 1)];
      scale[i] = byte_permute(first, second, 0x5410u);
      zero[i] = byte_permute(first, second, 0x7632u);
    }
    const bool has_octet = kOctets * kSharing == 32 || lane() / kSharing < kOctets;
    const int number = lane() % kSharing;
    // Words 0 and 1 are what multiply_zeros() has of row g, words 2 and 3 of row g + 8.
    const u32 rows[4] = {zero[0], zero[2], zero[1], zero[3]};
    if (has_octet && number == 0) store_octet(own() + place(2 * kHeads), rows);
    VQ_UNROLL
    for (int i = 0; i < ceil_div(kHeads, kSharing); ++i) {
      const int head = i * kSharing + number;
      if (!has_octet || (kHeads % kSharing != 0 && head >= kHeads)) continue;
      u32 high[4], low[4];
      load_octet(high, query_words(0) + place(Query::row_of(head, 0)), true);
      load_octet(low, query_words(0) + place(Query::row_of(head, 1)), true);
      VQ_UNROLL
      for (int w = 0; w < 4; ++w) {
        const u32 product = fused2<kElement>(high[w], scale[w], 0x80008000u);
        const u32 left = fused2<kElement>(high[w], scale[w], product ^ 0x80008000u);
        low[w] = fused2<kElement>(low[w], scale[w], left);
        high[w] = product;
      }
      store_octet(own() + place(Query::row_of(head, 0)), high);
      store_octet(own() + place(Query::row_of(head, 1)), low);
    }
    sync_warp();
    multiply_zeros(zeros);
  }

  VQ_DEVICE static void read(Octet& to, int octet) { Query::read_from(own(), to, octet); }
  template <int kTiles>
  VQ_DEVICE static void multiply(float (&sums)[(kTiles + 1) / 2][Query::kProducts][4],
                                 const u32 (&octets)[kTiles][4], const Octet& query_octet) {
    Query::multiply(sums, octets, query_octet);
  }

 private:
  template <class Row>
  VQ_DEVICE static int place_of(int channel, Row row) {
    return row(channel / kOfRow) + CodeRows<Format, Plan>::word(kFirstScale + channel % kOfRow);
  }
  // The block's: in stage 0 what takes scales, in stage 1 what does not.
  VQ_DEVICE static u32* query_words(int stage) {
    return shared_part<u32>(fragments_layout(kConfig).query_words) +
           stage * query_word(Query::kQuarter, 4, 2 * kHeads, 0, 0);
  }
  VQ_DEVICE static u32* own() {
    return shared_part<u32>(fragments_layout(kConfig).group_query) +
           warp() * group_query_words(kConfig);
  }
  VQ_DEVICE static u32* scales() {
    return own() + query_word(Query::kQuarter, 4, 2 * kHeads + 1, 0, 0);
  }
  VQ_DEVICE static int octet() {
    const int own = lane() / kSharing;
    return kOctets * kSharing == 32 || own < kOctets ? own : kOctets - 1;
  }
  // Offset of this lane's octet in row `row`.
  VQ_DEVICE static int place(int row) {
    constexpr int kOfQuarter = kOctets / 4;
    return query_word(Query::kQuarter, 4, row, octet() / kOfQuarter, octet() % kOfQuarter * 4);
  }
  VQ_DEVICE static void store_octet(u32* to, const u32 (&words)[4]) {
    store_shared(reinterpret_cast<U32x4*>(to), U32x4{words[0], words[1], words[2], words[3]});
  }

  // The zeros of an octet are operand a as they are read, words 0 and 1 in rows g, 2 and 3 in rows
  // g + 8: of the products with words 0 and 1 of the query rows g count, of the others rows g + 8.
  VQ_DEVICE static void multiply_zeros(float (&zeros)[kQuads]) {
    float sums[2][kQuads][4] = {};
    VQ_UNROLL
    for (int i = 0; i < Query::kOctets; ++i) {
      Octet query_octet;
      Query::read_from(query_words(1), query_octet, i);
      u32 a[4];
      load_octet(a, own() + query_word(Query::kQuarter, 4, 2 * kHeads, place_in_group(), i * 4),
                 true);
      VQ_UNROLL
      for (int quad = 0; quad < kQuads; ++quad) {
        VQ_UNROLL
        for (int half = 0; half < 2; ++half) {
          const u32 b[2] = {query_octet.words[quad][2 * half],
                            query_octet.words[quad][2 * half + 1]};
          mma_m16n8k16<kElement>(sums[half][quad], a, b);
        }
      }
    }
    VQ_UNROLL
    for (int quad = 0; quad < kQuads; ++quad) {
      zeros[quad] = (sums[0][quad][0] + sums[0][quad][1]) + (sums[1][quad][2] + sums[1][quad][3]);
    }
  }
};

}  // namespace vq
