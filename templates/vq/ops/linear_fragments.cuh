// gemv and gemm on tensor cores: y = x W^T, W quantized and rebuilt in registers.
//
// mma.m16n8k16 multiplies 16 outputs with 8 rows over 16 columns. A dot product does not care in
// which order its columns come, so x is laid out to match the entries and not the other way round:
// lane (g, c) = (lane / 4, lane % 4) holds 8 consecutive columns, an octet, of outputs g and g + 8,
//
//   entries of output g      w0 w1 | w2 w3 | w4 w5 | w6 w7      mma 0: a0 = w01, a2 = w23
//   entries of output g + 8  v0 v1 | v2 v3 | v4 v5 | v6 v7             a1 = v01, a3 = v23
//   x of row g               x0 x1 | x2 x3 | x4 x5 | x6 x7             b0 = x01, b1 = x23
//                                                               mma 1: the other halves
//
// so that what a lookup brings is an operand as it comes: no shuffle, no conversion. Residual
// stages add up in the accumulators. The x of a chunk stands in shared memory in the order in which
// lanes load it, one 16-byte access an octet and row tile, without bank conflicts.
#pragma once

#include <vq/ops/linear_work.cuh>

namespace vq {

template <class Plan>
class LinearFragments {
 public:
  using Work = LinearWork<Plan>;
  static constexpr LinearConfig kConfig = Plan::config();
  static constexpr FormatConfig kFormat = kConfig.weights;
  static constexpr int kVectorSize = kFormat.vector_size;
  static constexpr int kBits = kFormat.index_bits;
  static constexpr int kResiduals = kFormat.residuals;
  static constexpr int kWarpsAlong = kConfig.warps_along_columns;
  static constexpr int kWarpsAcross = kConfig.threads / 32 / kWarpsAlong;
  static constexpr int kOutputTiles = kConfig.outputs_per_warp / 16;
  static constexpr int kRowTiles = kConfig.rows_per_block / 8;
  static constexpr int kOctets = run_octets(kConfig);
  static constexpr int kRunWords = run_words(kConfig);
  static constexpr int kRunColumns = run_columns(kConfig);
  static constexpr int kRuns = kConfig.chunk_columns / kRunColumns;
  static constexpr int kTileWords = 32 * 4;  // of x, an octet and row tile

  VQ_DEVICE explicit LinearFragments(const LinearArgs& args)
      : args_(args),
        book_(args.weights, Work::kUnits),
        first_output_(Work::first_output() + i64{warp() % kWarpsAcross} * kConfig.outputs_per_warp),
        first_row_(block_y() * kConfig.rows_per_block) {}

  VQ_DEVICE void run() {
    for_each_sum([](float& sum, int, int, int) { sum = 0.0f; });
    const int along = warp() / kWarpsAcross;
    Codes next;
    load_codes(next, Work::begin(), along);
    for (i64 first = Work::begin(); first < Work::end(); first += kConfig.chunk_columns) {
      sync_block();  // the last chunk has been read
      if (book_.switch_to(Work::bound_unit(first))) book_.load();
      stage_x(first);
      sync_block();
      for (int run = along; run < kRuns; run += kWarpsAlong) {
        const Codes now = next;
        if (run + kWarpsAlong < kRuns) {
          load_codes(next, first, run + kWarpsAlong);
        } else {
          load_codes(next, first + kConfig.chunk_columns, along);
        }
        multiply(now, first, run);
      }
    }
    hand_over(along);
    if (along == 0) write();
  }

 private:
  // The codes of one run, of this lane's outputs.
  struct Codes {
    u32 words[kOutputTiles][2][kRunWords];
  };

  VQ_DEVICE static u32* staged_x() {
    return reinterpret_cast<u32*>(shared_memory() + Work::at().x);
  }
  VQ_DEVICE i64 output_of(int tile, int half) const {
    return first_output_ + tile * 16 + half * 8 + lane() / 4;
  }

  // Runs past the end of the columns are zeros: their x are zeros too.
  VQ_DEVICE void load_codes(Codes& codes, i64 first, int run) const {
    const i64 word = (first / kRunColumns + run) * 4 * kRunWords + lane() % 4 * kRunWords;
    VQ_UNROLL
    for (int tile = 0; tile < kOutputTiles; ++tile) {
      VQ_UNROLL
      for (int half = 0; half < 2; ++half) {
        const i64 wanted = output_of(tile, half);
        const i64 output = wanted < Work::kOutFeatures ? wanted : Work::kOutFeatures - 1;
        const u32* row = args_.weights.codes + output * Work::kRowWords;
        VQ_UNROLL
        for (int i = 0; i < kRunWords; i += kConfig.code_words) {
          load_words<kConfig.code_words>(codes.words[tile][half] + i, row, word + i);
        }
      }
    }
  }
  template <int kWords>
  VQ_DEVICE static void load_words(u32* to, const u32* row, i64 word) {
    const bool inside = word + kWords <= Work::kRowWords;
    if constexpr (kWords == 4) {
      U32x4 four{};
      if (inside) four = load_global(reinterpret_cast<const U32x4*>(row + word));
      to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
    } else if constexpr (kWords == 2) {
      U32x2 two{};
      if (inside) two = load_global(reinterpret_cast<const U32x2*>(row + word));
      to[0] = two.x, to[1] = two.y;
    } else {
      to[0] = inside ? load_global(row + word) : 0u;
    }
  }

  // x of the chunk as [run][octet][row tile][lane][4 words]; zeros past its rows and columns.
  VQ_DEVICE void stage_x(i64 first) const {
    constexpr int kPlaces = kRuns * kOctets * kRowTiles * 32;
    for (int place = thread_index(); place < kPlaces; place += kConfig.threads) {
      const int tile = place / 32 % kRowTiles;
      const int octet = place / 32 / kRowTiles % kOctets;
      const int run = place / 32 / kRowTiles / kOctets;
      const int row = first_row_ + tile * 8 + place % 32 / 4;
      const i64 column = first + run * kRunColumns + (place % 4 * kOctets + octet) * 8;
      store_shared(reinterpret_cast<U32x4*>(staged_x()) + place, octet_of_x(row, column));
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

  VQ_DEVICE void multiply(const Codes& codes, i64 first, int run) {
    VQ_UNROLL
    for (int octet = 0; octet < kOctets; ++octet) {
      U32x4 x[kRowTiles];
      const u32* staged = staged_x() + (run * kOctets + octet) * kRowTiles * kTileWords;
      VQ_UNROLL
      for (int tile = 0; tile < kRowTiles; ++tile) {
        x[tile] = load_shared(reinterpret_cast<const U32x4*>(staged) + tile * 32 + lane());
      }
      const i64 column = first + run * kRunColumns + (lane() % 4 * kOctets + octet) * 8;
      VQ_UNROLL
      for (int tile = 0; tile < kOutputTiles; ++tile) {
        for_each_stage([&](auto rebuild) {
          u32 low[4];
          u32 high[4];
          rebuild(low, codes.words[tile][0], octet, output_of(tile, 0), column, first);
          rebuild(high, codes.words[tile][1], octet, output_of(tile, 1), column, first);
          const u32 a0[4] = {low[0], high[0], low[1], high[1]};
          const u32 a1[4] = {low[2], high[2], low[3], high[3]};
          VQ_UNROLL
          for (int row_tile = 0; row_tile < kRowTiles; ++row_tile) {
            const u32 b0[2] = {x[row_tile].x, x[row_tile].y};
            const u32 b1[2] = {x[row_tile].z, x[row_tile].w};
            mma_m16n8k16<kConfig.element>(sum_[tile][row_tile], a0, b0);
            mma_m16n8k16<kConfig.element>(sum_[tile][row_tile], a1, b1);
          }
        });
      }
    }
  }

  // Calls body(rebuild) for each operand whose sum is the weights: the entries of each stage as
  // they come, or, where stages have scales, their scaled sum rounded to 16 bits.
  template <class Body>
  VQ_DEVICE void for_each_stage(Body body) const {
    if constexpr (kFormat.stage_scales) {
      body([this](u32(&words)[4], const u32* codes, int octet, i64 output, i64 column, i64 first) {
        VQ_UNROLL
        for (int s = 0; s < 8 / kVectorSize; ++s) {
          float value[kVectorSize];
          const i64 unit = Work::unit_in_chunk(output, column + s * kVectorSize, first);
          book_.decode(value, unit, [&](int stage) { return code_at(codes, octet, s, stage); });
          VQ_UNROLL
          for (int i = 0; i < kVectorSize; i += 2) {
            words[(s * kVectorSize + i) / 2] = pack2<kConfig.element>(value[i], value[i + 1]);
          }
        }
      });
    } else {
      VQ_UNROLL
      for (int stage = 0; stage < kResiduals; ++stage) {
        body([this, stage](u32(&words)[4], const u32* codes, int octet, i64 output, i64 column,
                           i64 first) {
          VQ_UNROLL
          for (int s = 0; s < 8 / kVectorSize; ++s) {
            const i64 unit = Work::unit_in_chunk(output, column + s * kVectorSize, first);
            const auto entry = book_.entry(unit, stage, code_at(codes, octet, s, stage));
            VQ_UNROLL
            for (int i = 0; i < kVectorSize / 2; ++i) {
              words[s * kVectorSize / 2 + i] = word_of(entry, i);
            }
          }
        });
      }
    }
  }

  // The code of sub-vector s and stage of an octet, its place known when the loops are unrolled.
  VQ_DEVICE static u32 code_at(const u32* words, int octet, int s, int stage) {
    const int bit = ((octet * (8 / kVectorSize) + s) * kResiduals + stage) * kBits;
    const int shift = bit % 32;
    u32 code = words[bit / 32] >> shift;
    if (shift + kBits > 32) code |= words[bit / 32 + 1] << (32 - shift);
    return code & ((1u << kBits) - 1u);
  }

  // The warps that share the columns hand their sums over, half of them to the other half at a
  // time.
  VQ_DEVICE void hand_over(int along) {
    constexpr int kSums = kOutputTiles * kRowTiles * 4;
    float* floats = reinterpret_cast<float*>(shared_memory() + Work::at().x);
    VQ_UNROLL
    for (int half = kWarpsAlong / 2; half > 0; half /= 2) {
      float* slot =
          floats + (along % half * kWarpsAcross + warp() % kWarpsAcross) * kSums * 32 + lane();
      sync_block();  // what stood there has been read
      if (along >= half && along < 2 * half) {
        for_each_sum([&](float& sum, int tile, int row_tile, int i) {
          store_shared(slot + ((tile * kRowTiles + row_tile) * 4 + i) * 32, sum);
        });
      }
      sync_block();
      if (along < half) {
        for_each_sum([&](float& sum, int tile, int row_tile, int i) {
          sum += load_shared(slot + ((tile * kRowTiles + row_tile) * 4 + i) * 32);
        });
      }
    }
  }

  // Accumulator i of a lane: output lane / 4 + 8 (i / 2), row 2 (lane % 4) + i % 2.
  VQ_DEVICE void write() {
    for_each_sum([this](float& sum, int tile, int row_tile, int i) {
      const i64 output = output_of(tile, i / 2);
      const int row = first_row_ + row_tile * 8 + lane() % 4 * 2 + i % 2;
      if (output < Work::kOutFeatures && row < Work::kRows) Work::write(args_, row, output, sum);
    });
  }

  template <class Visit>
  VQ_DEVICE void for_each_sum(Visit visit) {
    VQ_UNROLL
    for (int tile = 0; tile < kOutputTiles; ++tile) {
      VQ_UNROLL
      for (int row_tile = 0; row_tile < kRowTiles; ++row_tile) {
        VQ_UNROLL
        for (int i = 0; i < 4; ++i) visit(sum_[tile][row_tile][i], tile, row_tile, i);
      }
    }
  }

  const LinearArgs& args_;
  typename Work::Book book_;
  i64 first_output_;
  int first_row_;
  float sum_[kOutputTiles][kRowTiles][4];
};

template <class Plan>
VQ_DEVICE void linear_fragments(const LinearArgs& args) {
  LinearFragments<Plan>(args).run();
}

}  // namespace vq
