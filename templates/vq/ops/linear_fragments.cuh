// gemv and gemm on tensor cores: y = x W^T, W quantized and rebuilt in registers.
//
// mma.m16n8k16 multiplies 16 rows of a with 8 columns of b over 16 places of k. A dot product does
// not care in which order its columns come, so x is laid out to match the entries and not the other
// way round: a lane (g, c) = (lane / 4, lane % 4) gives 8 consecutive columns of an output, an
// octet w0..w7, as they come from the lookup. Two forms (layout/linear.h, fragment_rows):
//
//   halves   a0 = w01, a1 = w23, a2 = w45, a3 = w67 of output g: rows g and g + 8 of the product
//            are two halves of one output. The columns of b are 4 rows of x times the same halves,
//            so the sum is c0 + c3 of the lane (g, row). No register is moved.
//   pairs    outputs g and g + 8 (v0..v7): a = {w01, v01, w23, v23}, then {w45, v45, w67, v67}.
//            Twice the rows of x a product, for some moves.
//
// Residual stages add up in the accumulators. The x of a chunk stands in shared memory in the order
// in which lanes load it, without bank conflicts.
#pragma once

#include <vq/ops/fragment_codes.cuh>
#include <vq/ops/linear_work.cuh>

namespace vq {

template <class Plan>
class LinearFragments {
 public:
  using Work = LinearWork<Plan>;
  using Codes = FragmentCodes<Plan>;
  static constexpr LinearConfig kConfig = Plan::config();
  static constexpr FormatConfig kFormat = kConfig.weights;
  static constexpr bool kHalves = kConfig.fragment_rows == 4;
  static constexpr int kVectorSize = kFormat.vector_size;
  static constexpr int kWarpsAlong = kConfig.warps_along_columns;
  static constexpr int kWarpsAcross = kConfig.threads / 32 / kWarpsAlong;
  static constexpr int kOutputTiles = kConfig.outputs_per_warp / fragment_outputs(kConfig);
  static constexpr int kRowTiles = kConfig.rows_per_block / kConfig.fragment_rows;
  static constexpr int kOctets = run_octets(kConfig);
  static constexpr int kRunColumns = run_columns(kConfig);
  static constexpr int kRuns = kConfig.chunk_columns / kRunColumns;
  // Products an octet takes: one a stage, whose sums meet in the accumulators.
  static constexpr int kPasses = kFormat.stage_scales ? 1 : kFormat.residuals;
  // Accumulators of one sum, so that products need not wait for each other.
  static constexpr int kChains = kOutputTiles * kRowTiles < 4 && kOctets % 2 == 0 ? 2 : 1;
  using XWords = typename EntryWords<kHalves ? 4 : 8>::type;

  VQ_DEVICE explicit LinearFragments(const LinearArgs& args)
      : args_(args),
        book_(args.weights, Work::kUnits),
        codes_(args.weights.codes, first_output()),
        first_row_(block_y() * kConfig.rows_per_block) {}

  VQ_DEVICE void run() {
    clear_sums();
    const int along = warp() / kWarpsAcross;
    typename Codes::Run next;
    codes_.load(next, Work::begin() / kRunColumns + along);
    for (i64 first = Work::begin(); first < Work::end(); first += kConfig.chunk_columns) {
      sync_block();  // the last chunk has been read
      if (book_.switch_to(Work::bound_unit(first))) book_.load();
      stage_x(first);
      sync_block();
      for (int run = along; run < kRuns; run += kWarpsAlong) {
        const typename Codes::Run now = next;
        const bool last = run + kWarpsAlong >= kRuns;
        codes_.load(next, first / kRunColumns + (last ? kRuns + along : run + kWarpsAlong));
        multiply(now, first, run);
      }
    }
    join_chains();
    hand_over(along);
    if (along == 0) write();
  }

 private:
  VQ_DEVICE static XWords* staged_x() {
    return reinterpret_cast<XWords*>(shared_memory() + Work::at().x);
  }
  VQ_DEVICE static i64 first_output() {
    return Work::first_output() + warp() % kWarpsAcross * kConfig.outputs_per_warp;
  }
  // The output whose entries this lane looks up; `half` is 0 or 1 with pairs.
  VQ_DEVICE static i64 output_of(int tile, int half) {
    return first_output() + tile * fragment_outputs(kConfig) + half * 8 + lane() / 4;
  }

  // x of the chunk as [run][octet][row tile][lane]; zeros past its rows and columns.
  VQ_DEVICE void stage_x(i64 first) const {
    constexpr int kPlaces = kRuns * kOctets * kRowTiles * 32;
    for (int place = thread_index(); place < kPlaces; place += kConfig.threads) {
      const int column_of_b = place % 32 / 4;
      const int tile = place / 32 % kRowTiles;
      const int octet = place / 32 / kRowTiles % kOctets;
      const int run = place / 32 / kRowTiles / kOctets;
      const int in_tile = kHalves ? column_of_b / 2 : column_of_b;
      const U32x4 x = octet_of_x(first_row_ + tile * kConfig.fragment_rows + in_tile,
                                 first + run * kRunColumns + (place % 4 * kOctets + octet) * 8);
      if constexpr (kHalves) {
        const bool upper = column_of_b % 2 == 1;
        store_shared(staged_x() + place, {upper ? x.y : x.x, upper ? x.w : x.z});
      } else {
        store_shared(staged_x() + place, x);
      }
    }
  }
  VQ_DEVICE U32x4 octet_of_x(int row, i64 column) const {
    U32x4 words{};
    if (row >= Work::kRows) return words;
    const u16* from = args_.x + row * Work::kInFeatures + column;
    if constexpr (Work::kInFeatures % 8 == 0) {
      if (column < Work::kInFeatures) words = load_global(reinterpret_cast<const U32x4*>(from));
    } else {
      const auto pair = [&](int i) {
        u32 both = 0;
        if (column + i < Work::kInFeatures) both = load_global(from + i);
        if (column + i + 1 < Work::kInFeatures) both |= u32{load_global(from + i + 1)} << 16;
        return both;
      };
      words = {pair(0), pair(2), pair(4), pair(6)};
    }
    return words;
  }

  VQ_DEVICE void multiply(const typename Codes::Run& codes, i64 first, int run) {
    VQ_UNROLL
    for (int octet = 0; octet < kOctets; ++octet) {
      XWords x[kRowTiles];
      VQ_UNROLL
      for (int tile = 0; tile < kRowTiles; ++tile) {
        const int place = ((run * kOctets + octet) * kRowTiles + tile) * 32;
        x[tile] = load_shared(staged_x() + place + lane());
      }
      const i64 column = first + run * kRunColumns + (lane() % 4 * kOctets + octet) * 8;
      VQ_UNROLL
      for (int tile = 0; tile < kOutputTiles; ++tile) {
        VQ_UNROLL
        for (int pass = 0; pass < kPasses; ++pass) {
          multiply_octet(codes, tile, octet, pass, column, first, x, sum_[octet % kChains][tile]);
        }
      }
    }
  }

  VQ_DEVICE void multiply_octet(const typename Codes::Run& codes, int tile, int octet, int pass,
                                i64 column, i64 first, const XWords (&x)[kRowTiles],
                                float (&sum)[kRowTiles][4]) const {
    u32 w[4];
    rebuild(w, codes.words[tile][0], octet, pass, output_of(tile, 0), column, first);
    if constexpr (kHalves) {
      VQ_UNROLL
      for (int row_tile = 0; row_tile < kRowTiles; ++row_tile) {
        mma_m16n8k16<kConfig.element>(sum[row_tile], w, {x[row_tile].x, x[row_tile].y});
      }
    } else {
      u32 v[4];
      rebuild(v, codes.words[tile][1], octet, pass, output_of(tile, 1), column, first);
      VQ_UNROLL
      for (int row_tile = 0; row_tile < kRowTiles; ++row_tile) {
        mma_m16n8k16<kConfig.element>(sum[row_tile], {w[0], v[0], w[1], v[1]},
                                      {x[row_tile].x, x[row_tile].y});
        mma_m16n8k16<kConfig.element>(sum[row_tile], {w[2], v[2], w[3], v[3]},
                                      {x[row_tile].z, x[row_tile].w});
      }
    }
  }

  // An octet of one output as four operand words: the entries of stage `pass` as they come or,
  // where stages have scales, the scaled sum of all stages rounded to 16 bits.
  VQ_DEVICE void rebuild(u32 (&words)[4], const u32* codes, int octet, int pass, i64 output,
                         i64 column, i64 first) const {
    VQ_UNROLL
    for (int s = 0; s < 8 / kVectorSize; ++s) {
      u32* to = words + s * kVectorSize / 2;
      const int unit = Work::unit_in_chunk(output, column + s * kVectorSize, first);
      if constexpr (kFormat.stage_scales) {
        float value[kVectorSize];
        book_.decode(value, unit, [&](int stage) { return Codes::at(codes, octet, s, stage); });
        VQ_UNROLL
        for (int i = 0; i < kVectorSize; i += 2) {
          to[i / 2] = pack2<kConfig.element>(value[i], value[i + 1]);
        }
      } else {
        const auto entry = book_.entry(unit, pass, Codes::at(codes, octet, s, pass));
        VQ_UNROLL
        for (int i = 0; i < kVectorSize / 2; ++i) to[i] = word_of(entry, i);
      }
    }
  }

  // The chains become one; with halves, accumulator 0 becomes the sum of the lane's output and row.
  VQ_DEVICE void join_chains() {
    for_each_sum([this](float(&sum)[4], int tile, int row_tile) {
      VQ_UNROLL
      for (int chain = 1; chain < kChains; ++chain) {
        VQ_UNROLL
        for (int i = 0; i < 4; ++i) sum[i] += sum_[chain][tile][row_tile][i];
      }
      if constexpr (kHalves) sum[0] += sum[3];
    });
  }

  // The warps that share the columns hand their sums over, half of them to the other half at a
  // time.
  VQ_DEVICE void hand_over(int along) {
    constexpr int kLaneSums = kHalves ? 1 : 4;
    float* floats = reinterpret_cast<float*>(shared_memory() + Work::at().x);
    VQ_UNROLL
    for (int half = kWarpsAlong / 2; half > 0; half /= 2) {
      const int slot = along % half * kWarpsAcross + warp() % kWarpsAcross;
      const auto place = [&](int tile, int row_tile, int i) {
        const int sum = ((slot * kOutputTiles + tile) * kRowTiles + row_tile) * kLaneSums + i;
        return floats + sum * 32 + lane();
      };
      sync_block();  // what stood there has been read
      if (along >= half && along < 2 * half) {
        for_each_sum([&](float(&sum)[4], int tile, int row_tile) {
          VQ_UNROLL
          for (int i = 0; i < kLaneSums; ++i) store_shared(place(tile, row_tile, i), sum[i]);
        });
      }
      sync_block();
      if (along < half) {
        for_each_sum([&](float(&sum)[4], int tile, int row_tile) {
          VQ_UNROLL
          for (int i = 0; i < kLaneSums; ++i) sum[i] += load_shared(place(tile, row_tile, i));
        });
      }
    }
  }

  // Halves: output lane / 4, row lane % 4. Pairs: accumulator i is output lane / 4 + 8 (i / 2), row
  // 2 (lane % 4) + i % 2.
  VQ_DEVICE void write() {
    for_each_sum([this](float(&sum)[4], int tile, int row_tile) {
      const int first_row = first_row_ + row_tile * kConfig.fragment_rows;
      VQ_UNROLL
      for (int i = 0; i < (kHalves ? 1 : 4); ++i) {
        const i64 output = output_of(tile, i / 2);
        const int row = first_row + (kHalves ? lane() % 4 : lane() % 4 * 2 + i % 2);
        if (output < Work::kOutFeatures && row < Work::kRows) {
          Work::write(args_, row, output, sum[i]);
        }
      }
    });
  }

  VQ_DEVICE void clear_sums() {
    VQ_UNROLL
    for (int chain = 0; chain < kChains; ++chain) {
      VQ_UNROLL
      for (int tile = 0; tile < kOutputTiles; ++tile) {
        VQ_UNROLL
        for (int row_tile = 0; row_tile < kRowTiles; ++row_tile) {
          VQ_UNROLL
          for (int i = 0; i < 4; ++i) sum_[chain][tile][row_tile][i] = 0.0f;
        }
      }
    }
  }

  // Visits the sums of the first chain.
  template <class Visit>
  VQ_DEVICE void for_each_sum(Visit visit) {
    VQ_UNROLL
    for (int tile = 0; tile < kOutputTiles; ++tile) {
      VQ_UNROLL
      for (int row_tile = 0; row_tile < kRowTiles; ++row_tile) {
        visit(sum_[0][tile][row_tile], tile, row_tile);
      }
    }
  }

  const LinearArgs& args_;
  typename Work::Book book_;
  Codes codes_;
  int first_row_;
  float sum_[kChains][kOutputTiles][kRowTiles][4];
};

template <class Plan>
VQ_DEVICE void linear_fragments(const LinearArgs& args) {
  LinearFragments<Plan>(args).run();
}

}  // namespace vq
