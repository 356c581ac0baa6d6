// x of a chunk in shared memory, for the mma GEMM: [run][step][row tile]; a row tile is
// fragment_rows rows by the 4 octets of a step (layout/linear.h). Two orders of a row tile:
//
//   permuted   fusion permute: [lane], in which lane (g, c) takes the octet that it also looks up.
//              Pairs: octet c of row g. Halves: words 0 and 2, or 1 and 3, of octet c of row g / 2
//              One row of x by lane: row r of the tile is octet r of it, and zeros
//   natural    other fusions: rows of 4 octets, read by ldmatrix as a row-major operand is
//
// Neither has bank conflicts, nor have the stores (steps_together): lanes served at once take
// consecutive steps of x.
#pragma once

#include <vq/args/linear.h>
#include <vq/ops/fragment_exchange.cuh>
#include <vq/ops/linear_work.cuh>

namespace vq {

template <class Plan>
class FragmentX {
 public:
  static constexpr auto kConfig = Plan::config();
  static constexpr bool kHalves = kConfig.fragment_rows == 4;
  static constexpr bool kNatural = kConfig.fusion != LinearFusion::permute;
  static constexpr int kWords = kHalves ? 2 : 4;  // per lane and row tile
  static constexpr bool kByLane = sums_by_lane(kConfig);

  // Zeros past the rows and columns of x. All threads; sync_block before and after.
  VQ_DEVICE static void stage(const LinearArgs& args, int first_row, i64 first_column) {
    constexpr int kPlaces = kConfig.chunk_columns / kRunColumns * kSteps * kRowTiles * kTilePlaces;
    constexpr int kTogether = steps_together(kConfig);
    constexpr int kTurns = kSteps / kTogether;
    for (int i = thread_index(); i < kPlaces; i += kConfig.threads) {
      const int in_tile = i / kTogether % kTilePlaces;
      const int tile = i / kTogether / kTilePlaces % kRowTiles;
      const int turn = i / kTogether / kTilePlaces / kRowTiles;
      const int step = turn % kTurns * kTogether + i % kTogether;
      const int run = turn / kTurns;
      const int first = first_place(run, step, tile);
      // If lanes sum by themselves, other lanes' octets come from the row past the last: zeros.
      const int row =
          kByLane ? (in_tile / 8 == in_tile % 4 ? 0 : 1) : in_tile / (kHalves && !kNatural ? 8 : 4);
      const U32x4 x = LinearWork<Plan>::x_octet(
          args, first_row + tile * kConfig.fragment_rows + row,
          first_column + run * kRunColumns + octet_column(kStreams, kRunOctets, step, in_tile % 4));
      if constexpr (kNatural) {
        store_shared(octets() + first + tile_place(row, in_tile % 4), x);
      } else if constexpr (kHalves) {
        const bool upper = in_tile / 4 % 2 == 1;
        store_shared(half_octets() + first + in_tile, {upper ? x.y : x.x, upper ? x.w : x.z});
      } else {
        store_shared(octets() + first + in_tile, x);
      }
    }
  }

  // The lane's operand words of a row tile. Pairs: two products' b, one after the other.
  VQ_DEVICE static void load(u32 (&x)[kWords], int run, int step, int tile) {
    const int first = first_place(run, step, tile);
    if constexpr (kNatural && kHalves) {  // column n of b: half n % 2 of row n / 2
      const int n = ldmatrix_row();
      ldmatrix_x2(x, words_at(first + tile_place(n / 2, n % 2 * 2 + ldmatrix_number() % 2)));
    } else if constexpr (kNatural) {
      ldmatrix_x4(x, words_at(first + tile_place(ldmatrix_row(), ldmatrix_number())));
    } else if constexpr (kHalves) {
      const U32x2 words = load_shared(half_octets() + first + lane());
      x[0] = words.x, x[1] = words.y;
    } else {
      const U32x4 words = load_shared(octets() + first + lane());
      x[0] = words.x, x[1] = words.y, x[2] = words.z, x[3] = words.w;
    }
  }

 private:
  static constexpr int kStreams = code_streams(kConfig);
  static constexpr int kRunOctets = run_octets(kConfig);
  static constexpr int kRunColumns = run_columns(kConfig);
  static constexpr int kSteps = run_steps(kConfig);
  static constexpr int kRowTiles = kConfig.rows_per_block / kConfig.fragment_rows;
  static constexpr int kTilePlaces = kNatural ? kConfig.fragment_rows * 4 : 32;
  static constexpr i64 kOffset = shared_layout(kConfig).x;

  // First place of a row tile; places count octets, or half octets if they are stored so.
  VQ_DEVICE static int first_place(int run, int step, int tile) {
    constexpr int kGap = step_gap_bytes(kConfig) / (kHalves && !kNatural ? 8 : 16);
    const int number = run * kSteps + step;
    return (number * kRowTiles + tile) * kTilePlaces + number * kGap;
  }

  VQ_DEVICE static U32x4* octets() { return shared_part<U32x4>(kOffset); }
  VQ_DEVICE static U32x2* half_octets() { return reinterpret_cast<U32x2*>(octets()); }
  VQ_DEVICE static const u32* words_at(int place) {
    return reinterpret_cast<const u32*>(octets() + place);
  }
};

}  // namespace vq
