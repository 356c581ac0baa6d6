// The codes of a warp's step in registers, for int8_mma attention: of keys lane (g, c) has its
// quarter of the row of token g of each tile of 8, of values its eighth of rows 2c and 2c + 1.
//
// Where pieces of 16 bytes are one part each, or two of 8 codes, ldmatrix loads them (plan.h): a
// word has four codes of a key, or of a pair of rows of values two each. Otherwise lanes load the
// codes of each part by themselves.
#pragma once

#include <vq/kernels/attention_int8_mma/byte_softmax.cuh>
#include <vq/kernels/attention_int8_mma/code_rounds.cuh>
#include <vq/kernels/attention_int8_mma/entry_columns.cuh>

namespace vq {

template <class Plan, bool kOfValues>
class LaneCodes {
 public:
  using Rounds = CodeRounds<Plan>;
  static constexpr LaneRow kRow = lane_row(Plan::config(), kOfValues);
  static constexpr int kTiles = kBytesStep / 8;
  static constexpr int kOfTile = kOfValues ? 2 : 1;  // rows of a lane
  static constexpr int kBytes = kOfValues ? Rounds::kValueRow : Rounds::kKeyRow;
  static constexpr int kStride = row_stride(Plan::config(), kBytes);
  // Bytes of a step beyond its rows.
  static constexpr int kBeyond = step_bytes(Plan::config(), kOfValues) - kBytesStep * kStride;
  using Rows = u32[kOfTile * kTiles][kRow.code_words];

  // Loads the codes of step `number` of the round.
  VQ_DEVICE static void load(Rows& to, const Rounds& rounds, int number) {
    if constexpr (kRow.matrices) {
      load_matrices(to, rounds, number);
    } else {
      VQ_UNROLL
      for (int i = 0; i < kOfTile * kTiles; ++i) {
        const int row = kOfValues ? 2 * place_in_group() + i % 2 : lane_group();
        const int of_tile = ByteSoftmax<Plan>::token_of(row);
        const int token = number * kBytesStep + i / kOfTile * 8 + of_tile;
        load_row(to[i], first_row(rounds) + static_cast<u32>(token * kStride + number * kBeyond),
                 Rounds::template turned<kBytes>(of_tile));
      }
    }
  }
  // The row of Rows that has the codes of row i.
  VQ_DEVICE static int row_of(int i) { return kRow.matrices && kOfValues ? i / 2 * 2 : i; }

  // The entry of code kNumber of a lane's in part kPlace; of rows by matrices that of the first or
  // the `odd` one of two.
  template <int kPlace, int kNumber>
  VQ_DEVICE static auto entry(const u32 (&codes)[kRow.code_words], int odd = 0) {
    constexpr LanePart kPart = kRow.parts[kPlace];
    const int byte = kRow.matrices      ? kPart.code_byte + kNumber + 2 * odd
                     : kPart.strided    ? of_row() % 4
                     : kPart.codes == 1 ? of_row() / kPart.sharers % 2
                                        : kNumber % 4;
    constexpr int kWord = kRow.matrices ? 0 : kPart.strided ? kNumber : kNumber / 4;
    return EntryColumns<Plan>::template look_up<kOfValues, kPlace>(codes[kPart.code_word + kWord],
                                                                   static_cast<u32>(byte));
  }

  // Entry number 0 or 1 of a mixed word: the upper half of the lanes has one alone.
  template <int kNumber>
  VQ_DEVICE static u32 mixed_entry(const u32 (&codes)[kRow.code_words]) {
    const int byte = in_upper_half() ? of_row() % 2 : kNumber;
    return EntryColumns<Plan>::look_up_mixed(codes[kRow.mixed_code_word], static_cast<u32>(byte));
  }

 private:
  VQ_DEVICE static bool in_upper_half() { return of_row() >= kRow.lanes / 2; }
  // This lane among those that share a row.
  VQ_DEVICE static int of_row() { return kOfValues ? lane_group() : place_in_group(); }
  VQ_DEVICE static u32 first_row(const Rounds& rounds) {
    return kOfValues ? rounds.values() : rounds.keys();
  }

  // A single byte comes with its neighbour; one of a strided part comes with its word.
  VQ_DEVICE static void load_row(u32 (&to)[kRow.code_words], u32 row, u32 turned) {
    for_each_number<0, kRow.count>([&](auto i) {
      constexpr LanePart kPart = kRow.parts[i];
      constexpr int kCodes = kPart.codes;
      const auto place = [&](int byte) {
        return row + (static_cast<u32>(kPart.first_byte + byte) ^ turned);
      };
      if constexpr (kCodes == 0) {
        return;
      } else if constexpr (kPart.strided) {
        VQ_UNROLL
        for (int j = 0; j < kCodes; ++j) {
          to[kPart.code_word + j] = load_shared_at<u32>(place(j * kRow.lanes + of_row() / 4 * 4));
        }
      } else {
        const int own = of_row() / kPart.sharers;
        using Words = Either<kCodes <= 2, u16, EntryWords<(kCodes <= 4 ? 2 : kCodes / 2)>>;
        const Words words = load_shared_at<Words>(place(kCodes == 1 ? own & ~1 : own * kCodes));
        VQ_UNROLL
        for (int j = 0; j < ceil_div(kCodes, 4); ++j) to[kPart.code_word + j] = word_of(words, j);
      }
    });
    if constexpr (kRow.mixed_word >= 0) {
      constexpr LanePart kPairs = kRow.parts[kRow.pairs], kQuads = kRow.parts[kRow.quads];
      const int byte = in_upper_half() ? mixed_byte(kQuads, kRow.lanes, of_row())
                                       : mixed_byte(kPairs, kRow.lanes, of_row());
      to[kRow.mixed_code_word] = load_shared_at<u16>(row + (static_cast<u32>(byte) ^ turned));
    }
  }

  // All tiles, a matrix of 8 tokens and 16 bytes each.
  VQ_DEVICE static void load_matrices(Rows& to, const Rounds& rounds, int number) {
    static_assert(kTiles == 4, "a tile per matrix");
    const int of_tile = ByteSoftmax<Plan>::token_of(lane() % 8);
    const int token = number * kBytesStep + lane() / 8 * 8 + of_tile;
    const u32 turned = Rounds::template turned<32>(of_tile);
    for_each_number<0, 2>([&](auto piece) {
      const u8* const row = (kOfValues ? rounds.value_rows() : rounds.key_rows()) +
                            token * kStride + number * kBeyond +
                            (static_cast<u32>(piece * 16) ^ turned);
      u32 words[kTiles];
      if constexpr (kOfValues) {
        ldmatrix_x4_trans(words, reinterpret_cast<const u32*>(row));
      } else {
        ldmatrix_x4(words, reinterpret_cast<const u32*>(row));
      }
      VQ_UNROLL
      for (int tile = 0; tile < kTiles; ++tile) {
        to[tile * kOfTile][piece] = is_dealt(piece) ? exchanged(words[tile]) : words[tile];
      }
    });
  }
  VQ_HD static constexpr bool is_dealt(int piece) {
    bool dealt = false;
    for (int i = 0; i < kRow.count; ++i) {
      if (kRow.parts[i].code_word == piece) dealt = kRow.parts[i].dealt;
    }
    return dealt;
  }
  // This lane's codes of both parts of a piece, of which lanes of the lower half have one and those
  // of the upper half the other.
  VQ_DEVICE static u32 exchanged(u32 own) {
    const bool upper = of_row() >= kRow.lanes / 2;
    const u32 other = shuffle_xor(own, kOfValues ? 16 : 2);
    if constexpr (kOfValues) return byte_permute(own, other, upper ? 0x3715u : 0x6240u);
    return byte_permute(own, other, upper ? 0x3276u : 0x5410u);
  }
};

}  // namespace vq
