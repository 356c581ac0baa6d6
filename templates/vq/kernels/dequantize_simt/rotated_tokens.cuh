// Applies the inverse Hadamard transform to rows of several tokens on tensor cores: row H, from
// entries as stored.
//
// A slab is 16 octets of channels: a token of 128 channels, half of a token of 256 (first the
// halves' sum, then their difference), or two tokens of 64, eight apart. H factors into H over
// octet numbers times H over places in an octet. The first is an MMA whose operands are exact: k is
// the octet, with one MMA per place; columns are 8 tokens. The second is butterfly steps among the
// sums of one lane:
//
//   in    lane (g, c): octets 2c, 2c + 1, 2c + 8 and 2c + 9 of token g
//   out   lane (g, c): octets g and g + 8 of tokens 2c and 2c + 1
//
// No channel moves between lanes, and each group of 8 lanes stores contiguous bytes.
#pragma once

#include <vq/kernels/dequantize_simt/octet_entries.cuh>
#include <vq/lanes/fragment_lanes.cuh>
#include <vq/transform.cuh>

namespace vq {

// `Rows` is CacheRows of a share that is the head; its staged rows begin at byte kCodes of shared
// memory.
template <class Rows, Element kElement, i64 kCodes>
class RotatedTokens {
 public:
  using Book = typename Rows::Book;
  static constexpr FormatConfig kFormat = Rows::kFormat;
  static constexpr int kHeadDim = Rows::kHeadDim;
  // Stage scales must cover whole rows, so that they can be applied to MMA sums.
  static constexpr bool kPossible = kFormat.hadamard && paley_order(kHeadDim) == 1 &&
                                    kHasMma<kElement> && Rows::kPieces == 1 &&
                                    (!kFormat.stage_scales || kFormat.unit_elements >= kHeadDim);
  static constexpr int kTokens = kHeadDim == 64 ? 16 : 8;  // tokens per warp at a time
  static constexpr int kHalves = kHeadDim == 256 ? 2 : 1;
  static constexpr int kPieces = 4;                       // octets per lane and half
  static constexpr int kOctets = kHeadDim == 64 ? 1 : 2;  // that they are of

  // For a piece: its token, counted from the first; which of the lane's octets it is; and its
  // element offset from piece 0 in the destination, in the first half.
  VQ_DEVICE static int token(int piece) { return 2 * place_in_group() + tokens_on(piece); }
  VQ_DEVICE static constexpr int octet(int piece) { return kHeadDim == 64 ? 0 : piece / 2; }
  VQ_DEVICE static constexpr int place(int piece) {
    return tokens_on(piece) * kHeadDim + 64 * octet(piece);
  }
  // The first channel of one of the lane's octets, in the first half.
  VQ_DEVICE static int channel(int octet) { return 8 * lane_group() + 64 * octet; }

  VQ_DEVICE RotatedTokens() {
    const u32 signs = sign(2 * place_in_group()) | sign(2 * place_in_group() + 1) << 16;
    constexpr u32 kOne = kElement == Element::f16 ? 0x3c003c00u : 0x3f803f80u;
    const u32 ones = kOne | signs;
    const u32 across = kHeadDim == 64 ? 0 : ones;  // tokens do not mix
    signs_[0] = ones;
    signs_[1] = across;
    signs_[2] = across;
    signs_[3] = kHeadDim == 64 ? ones : ones ^ 0x80008000u;
  }

  // Channels of each piece of a half, times sqrt(head_dim). row(token) is where a token's staged
  // row begins, in words. All lanes of the warp.
  template <class Row>
  VQ_DEVICE void load(float (&value)[kPieces][8], const Book& book, int half, Row row) const {
    const int row_of_first = row(lane_group());
    const int rows[2] = {row_of_first, kHeadDim == 64 ? row(lane_group() + 8) : row_of_first};
    float sums[8][kPieces] = {};  // sums by place in an octet
    VQ_UNROLL
    for (int stage = 0; stage < kFormat.num_codebooks; ++stage) {
      VQ_UNROLL
      for (int slab = 0; slab < kHalves; ++slab) {
        u32 octets[4][4];
        VQ_UNROLL
        for (int i = 0; i < 4; ++i) {
          const int number =
              16 * slab + 2 * place_in_group() + i % 2 + (kHeadDim == 64 ? 0 : i / 2 * 8);
          octet_entries<Rows, kElement, kCodes>(octets[i], book, rows[i / 2], number, stage);
        }
        const u32 turn = (half & slab) != 0 ? 0x80008000u : 0;
        const u32 signs[4] = {signs_[0] ^ turn, signs_[1] ^ turn, signs_[2] ^ turn,
                              signs_[3] ^ turn};
        VQ_UNROLL
        for (int j = 0; j < 8; ++j) add_product(sums[j], signs, octets, j, book, stage);
        // No look-up of the next ones before: their registers would cost resident blocks.
        if constexpr (kFormat.num_codebooks * kHalves > 1) loads_first();
      }
    }
    VQ_UNROLL
    for (int i = 0; i < kPieces; ++i) {
      VQ_UNROLL
      for (int j = 0; j < 8; ++j) value[i][j] = sums[j][i];
      hadamard_steps(value[i]);
    }
  }

 private:
  VQ_DEVICE static constexpr int tokens_on(int piece) {
    return piece % 2 + (kHeadDim == 64 ? piece / 2 * 8 : 0);
  }

  // The sign bit of what H has at this lane's row and a column.
  VQ_DEVICE static u32 sign(int column) {
    const u32 both = static_cast<u32>(lane_group() & column);
    return (0x96u >> both & 1u) << 15;  // bit n is the parity of n
  }

  // Adds the j-th channels of all octets.
  VQ_DEVICE static void add_product(float (&sum)[kPieces], const u32 (&signs)[4],
                                    const u32 (&octets)[4][4], int j, const Book& book, int stage) {
    const u32 halves = j % 2 == 0 ? 0x5410u : 0x7632u;
    const u32 columns[2] = {byte_permute(octets[0][j / 2], octets[1][j / 2], halves),
                            byte_permute(octets[2][j / 2], octets[3][j / 2], halves)};
    if constexpr (kFormat.stage_scales) {
      float product[kPieces] = {};
      mma_m16n8k16<kElement>(product, signs, columns);
      VQ_UNROLL
      for (int i = 0; i < kPieces; ++i) sum[i] += book.scale(0, stage) * product[i];
    } else {
      mma_m16n8k16<kElement>(sum, signs, columns);
    }
  }

  u32 signs_[4];  // H of the numbers of octets, an operand a
};

}  // namespace vq
