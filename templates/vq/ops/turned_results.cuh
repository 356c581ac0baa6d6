// Epilogue that transposes wgmma sums within a warp and writes results by rows. wgmma leaves a lane
// rows of two outputs, whose stores would be 2 or 4 bytes wide; transposed, a lane has four outputs
// of a row, and four lanes write 32 bytes of y or 64 of partials:
//
//   lane (g, c)    outputs g and g + 8, of rows 2 c and 2 c + 1
//   turned         outputs 2 c, 2 c + 1 and 8 + 2 c, 9 + 2 c, of row g
//   exchanged      c even: outputs 2 c .. 2 c + 3; c odd: 6 + 2 c .. 9 + 2 c
//
// A lane whose outputs are 2 g and 2 g + 1 (fragment_codes.cuh) has outputs 4 c .. 4 c + 3 after
// the transposition.
#pragma once

#include <vq/lanes/fragment_lanes.cuh>
#include <vq/ops/linear_work.cuh>

namespace vq {

// kTogether is the number of a lane's adjacent outputs.
template <class Plan, int kTogether>
struct TurnedResults {
  using Work = LinearWork<Plan>;
  static constexpr auto kConfig = Plan::config();
  static constexpr i64 kOutputs = Work::kOutFeatures;
  static constexpr bool kTurns = !keeps_sums(kConfig) && kOutputs % 4 == 0 && kTogether <= 2;

  // All lanes, of 16 outputs from `output` on and 8 rows from `row` on: sum(half, i) is the lane's
  // sum of output `half` and row 2 c + i, scale[half] the output's.
  template <class Sum>
  VQ_DEVICE static void write(const LinearArgs& args, int row, i64 output, const float (&scale)[2],
                              Sum sum) {
    const int c = place_in_group();
    output += kTogether == 2 ? 4 * c : c / 2 * 4 + c % 2 * 8;
    row += lane_group();
    const bool wanted = row < Work::rows(args) && output < kOutputs;
    if constexpr (stores_partials(kConfig)) {
      u32 low[2], high[2];  // halves of the sums' bits
      VQ_UNROLL
      for (int half = 0; half < 2; ++half) {
        const u32 bits[2] = {float_bits(sum(half, 0)), float_bits(sum(half, 1))};
        low[half] = movmatrix_trans(first_halves(bits[0], bits[1]));
        high[half] = movmatrix_trans(second_halves(bits[0], bits[1]));
      }
      const U32x2 lows = side_by_side(low);
      const U32x2 highs = side_by_side(high);
      const U32x4 quad{first_halves(lows.x, highs.x), second_halves(lows.x, highs.x),
                       first_halves(lows.y, highs.y), second_halves(lows.y, highs.y)};
      if (wanted) {
        store_global(reinterpret_cast<U32x4*>(Work::partial(args, row, output)), quad);
      }
    } else {
      u32 words[2];
      VQ_UNROLL
      for (int half = 0; half < 2; ++half) {
        words[half] = movmatrix_trans(pack2<kConfig.element>(
            Work::scaled(sum(half, 0), scale[half]), Work::scaled(sum(half, 1), scale[half])));
      }
      const U32x2 quad = side_by_side(words);
      if (wanted) Work::store_quad(args.y + row * kOutputs + output, quad);
    }
  }

 private:
  // The low halves of two words, and their high halves.
  VQ_DEVICE static u32 first_halves(u32 a, u32 b) { return byte_permute(a, b, 0x5410u); }
  VQ_DEVICE static u32 second_halves(u32 a, u32 b) { return byte_permute(a, b, 0x7632u); }

  // 16 bits of four outputs side by side, of what turning left of either half.
  VQ_DEVICE static U32x2 side_by_side(const u32 (&turned)[2]) {
    if constexpr (kTogether == 2) {
      return {first_halves(turned[0], turned[1]), second_halves(turned[0], turned[1])};
    } else {
      const bool odd = place_in_group() % 2 != 0;
      const u32 got = shuffle_xor(odd ? turned[0] : turned[1], 1);
      return {odd ? got : turned[0], odd ? turned[1] : got};
    }
  }
};

}  // namespace vq
