// What the blocks of GEMV and GEMM share: their columns and codebook units, where sums go, and how
// split-K sums merge.
#pragma once

#include <vq/args/linear.h>
#include <vq/layout/linear.h>
#include <vq/codebook/codebook.cuh>
#include <vq/ops/block_sums.cuh>
#include <vq/ops/experts.cuh>
#include <vq/ops/splits.cuh>

namespace vq {

template <class Plan>
struct LinearWork {
  static constexpr auto kConfig = Plan::config();
  static constexpr int kRows = matrix_rows(kConfig);
  static constexpr i64 kTotalRows = kConfig.total_rows;
  static constexpr i64 kOutFeatures = kConfig.out_features;
  static constexpr i64 kInFeatures = kConfig.in_features;
  static constexpr i64 kColumns = y_columns(kConfig);
  static constexpr int kChunk = chunk_columns(kConfig);
  static constexpr i64 kUnitRows = kConfig.unit_rows;
  static constexpr i64 kUnitsPerRow = units_per_row(kConfig);
  static constexpr i64 kUnits = expert_units(kConfig);
  static constexpr int kBlockOutputs = outputs_per_block(kConfig);
  static constexpr CodeLayout kLayout = kConfig.weights.layout;
  static constexpr i64 kRowWords = padded_words(kLayout, row_words(kConfig.weights, kInFeatures));

  VQ_HD static constexpr auto at() { return shared_layout(kConfig); }
  struct Weights {
    VQ_HD static constexpr FormatConfig config() { return kConfig.weights; }
    VQ_HD static constexpr CodebookShared shared() { return at().codebook; }
  };
  using Book = Codebook<Weights, kConfig.element, units_per_chunk(kConfig), kConfig.threads>;

  // This block's of the splits, and of the slots of rows.
  VQ_DEVICE static int split() {
    if constexpr (kConfig.experts == 0) return block_z();
    return block_z() % splits(kConfig);
  }
  VQ_DEVICE static int slot() { return block_z() / splits(kConfig); }

  // The columns [begin, end) of this block's split: whole chunks, but for the matrix's end.
  VQ_DEVICE static i64 begin() { return share() * split(); }
  VQ_DEVICE static i64 end() {
    const i64 end = share() * (split() + 1);
    return end < kInFeatures ? end : kInFeatures;
  }

  VQ_DEVICE static i64 first_output() { return i64{block_x()} * kBlockOutputs; }

  // Rows of x and y in this call: 1 to kRows.
  VQ_DEVICE static int rows(const LinearArgs& args) {
    if constexpr (kRows == 1) {
      return 1;
    } else {
      return args.rows;
    }
  }
  // True if the block has any row, and then it has its first one.
  VQ_DEVICE static bool has_rows(const LinearArgs& args) {
    if constexpr (kRows <= kConfig.rows_per_block) {
      return true;
    } else {
      return block_y() * kConfig.rows_per_block < rows(args);
    }
  }

  // The unit of the block's first output at a chunk's first column: what the codebook is bound to.
  VQ_DEVICE static i64 bound_unit(i64 first_column) {
    return unit_of(first_output(), first_column);
  }
  // The unit of an element of the chunk, counted from the bound one. Elements past the matrix's
  // end, which count for nothing, have one too.
  VQ_DEVICE static int unit_in_chunk(i64 output, i64 column, i64 first_column) {
    constexpr bool kOneColumn = chunk_in_one_unit(kConfig);
    constexpr bool kOneRow = kUnitRows >= kOutFeatures || kUnitRows % kBlockOutputs == 0;
    if constexpr (kOneColumn && kOneRow) return 0;
    const i64 of_row = kOneRow || output >= kOutFeatures ? first_output() : output;
    const i64 of_column = kOneColumn || column >= kInFeatures ? first_column : column;
    return static_cast<int>(unit_of(of_row, of_column) - bound_unit(first_column));
  }

  // 8 columns of a row of x, of a chunk that begins within it; zeros past its columns. Past its
  // rows zeros, or row 0 where that is the cheaper: nobody writes their sums.
  VQ_DEVICE static U32x4 x_octet(const LinearArgs& args, int row, i64 column) {
    constexpr bool kWholeRows =
        kRows % kConfig.rows_per_block == 0 && kConfig.rows_per_block % 8 == 0;
    constexpr bool kWholeChunks = kInFeatures % kChunk == 0;
    U32x4 words{};
    if (!kWholeRows && row >= rows(args)) return words;
    const u16* from = args.x + (row < rows(args) ? row : 0) * kInFeatures + column;
    if constexpr (kInFeatures % 8 == 0) {
      if (kWholeChunks || column < kInFeatures)
        words = load_global(reinterpret_cast<const U32x4*>(from));
    } else {
      const auto pair = [&](int i) {
        u32 both = 0;
        if (column + i < kInFeatures) both = load_global(from + i);
        if (column + i + 1 < kInFeatures) both |= u32{load_global(from + i + 1)} << 16;
        return both;
      };
      words = {pair(0), pair(2), pair(4), pair(6)};
    }
    return words;
  }

  // Where this block's split stores its sum of an output and row; 16-byte aligned if `output` is a
  // multiple of four and partials are aligned.
  VQ_DEVICE static float* partial(const LinearArgs& args, int row, i64 output) {
    return args.partials + (split() * kTotalRows + row) * kOutFeatures + output;
  }

  // The sum of one output and row over the columns of this block's split.
  VQ_DEVICE static void write(const LinearArgs& args, int row, i64 output, float sum) {
    if constexpr (keeps_sums(kConfig)) {
      BlockSums<LinearWork>::store(row - block_y() * kConfig.rows_per_block,
                                   static_cast<int>(output - first_output()), sum);
    } else if constexpr (stores_partials(kConfig)) {
      store_global(partial(args, row, output), sum);
    } else {
      finish(args, row, output, sum);
    }
  }

  // The scale of an output, loaded early.
  VQ_DEVICE static float output_scale(const LinearArgs& args, i64 output) {
    constexpr bool kScales = kConfig.output_scales && writes_y();
    return kScales && output < kOutFeatures ? load_global(args.output_scales + output) : 1.0f;
  }
  VQ_DEVICE static void write(const LinearArgs& args, int row, i64 output, float sum, float scale) {
    if constexpr (!writes_y()) {
      write(args, row, output, sum);
    } else {
      finish_scaled(args, row, output, sum, scale);
    }
  }

  // Destinations of an output's sums, for rows from `row` on.
  struct Results {
    float* partials;  // only one of the two is used
    u16* y;
    float scale;
    int rows;  // that are wanted
  };
  VQ_DEVICE static Results results(const LinearArgs& args, int row, i64 output) {
    Results to{};
    if constexpr (keeps_sums(kConfig)) {
      to.partials = BlockSums<LinearWork>::place(row - block_y() * kConfig.rows_per_block,
                                                 static_cast<int>(output - first_output()));
    } else {
      to.rows = output < kOutFeatures ? rows(args) - row : 0;
      if constexpr (stores_partials(kConfig)) {
        to.partials = partial(args, row, output);
      } else {
        to.y = args.y + row * kOutFeatures + output;
        to.scale = output_scale(args, output);
      }
    }
    return to;
  }
  // The sum of row number `row` from the first.
  VQ_DEVICE static void write(const Results& to, int row, float sum) {
    if constexpr (keeps_sums(kConfig)) {
      store_shared(to.partials + row * sums_pitch(kConfig), sum);
    } else if (row < to.rows) {
      if constexpr (stores_partials(kConfig)) {
        store_global(to.partials + row * kOutFeatures, sum);
      } else {
        if constexpr (kConfig.output_scales) sum *= to.scale;
        store_global(to.y + row * kOutFeatures, from_float<kConfig.element>(sum));
      }
    }
  }

  // One element of y, from sums over the splits in their order; `load` reads a partial.
  template <class Load>
  VQ_DEVICE static void merge(const LinearArgs& args, int row, i64 column, Load load) {
    const auto total = [&](i64 output) {
      const float* const partials = args.partials + row * kOutFeatures + output;
      float sum = 0.0f;
      in_order<splits(kConfig), 16>(
          [&](int split) { return load(partials + split * (kTotalRows * kOutFeatures)); },
          [&](float partial) { sum += partial; });
      return sum;
    };
    if constexpr (kConfig.epilogue.none()) {
      finish(args, row, column, total(column));
    } else {
      end(args, row, column, total);
    }
  }

  // All threads, before the first write of sums and behind the last.
  VQ_DEVICE static void begin_sums() { BlockSums<LinearWork>::begin(); }
  VQ_DEVICE static void end_sums(const LinearArgs& args) {
    if constexpr (keeps_sums(kConfig)) {
      BlockSums<LinearWork>::merge(args);
    } else {
      merge_if_last(args);
    }
  }

  // Merges splits in the last block that shares outputs and rows, if the plan says so.
  VQ_DEVICE static void merge_if_last(const LinearArgs& args) {
    if constexpr (kConfig.combine == Combine::last_block) {
      constexpr i64 kAcross = ceil_div(kOutFeatures, i64{kBlockOutputs});
      constexpr int kBlocks = sharing_blocks(kConfig);
      if (!is_last_of(kBlocks, args.counters + block_y() * kAcross + counting_block())) return;
      const int first_row = block_y() * kConfig.rows_per_block;
      const int left = rows(args) - first_row;
      const int held = left < block_rows(kConfig) ? left : block_rows(kConfig);
      for (int i = thread_index(); i < held * kBlockColumns; i += kConfig.threads) {
        const i64 column = first_column() + i % kBlockColumns;
        if (column < kColumns) {
          merge(args, first_row + i / kBlockColumns, column, LoadOfThisLaunch());
        }
      }
    }
  }

  // True if a sum is to be written. Blocks that keep sums write all, as each has its own place.
  VQ_DEVICE static bool is_wanted(const LinearArgs& args, int row, i64 output) {
    if constexpr (keeps_sums(kConfig)) return true;
    return output < kOutFeatures && row < rows(args);
  }

  // Columns of y that a block, or those that share them, have: their number, and the first.
  static constexpr int kBlockColumns = kConfig.epilogue.gate_rows > 0 && holds_pairs(kConfig)
                                           ? kBlockOutputs / 2
                                           : kBlockOutputs;
  VQ_DEVICE static i64 first_column() {
    constexpr i64 kRun = kConfig.epilogue.gate_rows;
    if constexpr (kRun == 0) {
      return first_output();
    } else if constexpr (holds_pairs(kConfig)) {
      return first_output() / 2;
    } else {
      return first_output() / (2 * kRun) * kRun + first_output() % kRun;
    }
  }

  // One element of y by the epilogue; total(output) gives the whole sum of a row of W. y may be the
  // residual.
  template <class Total>
  VQ_DEVICE static void end(const LinearArgs& args, int row, i64 column, Total total) {
    constexpr LinearEpilogue kEnd = kConfig.epilogue;
    const i64 output = first_row_of(kConfig, column);
    float value = whole(args, output, total(output));
    if constexpr (kEnd.gate_rows > 0) {
      const i64 up = output + kEnd.gate_rows;
      value = silu(value) * whole(args, up, total(up));
    }
    if constexpr (kEnd.multiplied) value *= args.multiplier;
    const i64 place = row * kColumns + column;
    if constexpr (kEnd.residual) {
      value += to_float<kConfig.element>(load_global_coherent(args.residual + place));
    }
    store_global(args.y + place, from_float<kConfig.element>(value));
  }

  // The whole sum of one output and row.
  VQ_DEVICE static void finish(const LinearArgs& args, int row, i64 output, float sum) {
    float scale = 1.0f;
    if constexpr (kConfig.output_scales) scale = load_global(args.output_scales + output);
    finish_scaled(args, row, output, sum, scale);
  }
  // finish() with the output's scale, used if the problem has output scales.
  VQ_DEVICE static void finish_scaled(const LinearArgs& args, int row, i64 output, float sum,
                                      float scale) {
    store_global(args.y + row * kOutFeatures + output,
                 from_float<kConfig.element>(scaled(sum, scale)));
  }
  VQ_DEVICE static float scaled(float sum, float scale) {
    return kConfig.output_scales ? sum * scale : sum;
  }

  // Four outputs of a row, of which there are a multiple of four: in one access where y is aligned
  // to it, which callers need not see to.
  VQ_DEVICE static void store_quad(u16* to, const U32x2& quad) {
    if (reinterpret_cast<u64>(to) % sizeof(U32x2) == 0) {
      store_global(reinterpret_cast<U32x2*>(to), quad);
    } else {
      const u32 words[2] = {quad.x, quad.y};
      VQ_UNROLL
      for (int i = 0; i < 4; ++i)
        store_global(to + i, static_cast<u16>(words[i / 2] >> i % 2 * 16));
    }
  }

 private:
  // True if the sums of a block are whole, and become y as they are written.
  VQ_DEVICE static constexpr bool writes_y() {
    return !keeps_sums(kConfig) && !stores_partials(kConfig);
  }

  // An output's whole sum times its scale.
  VQ_DEVICE static float whole(const LinearArgs& args, i64 output, float sum) {
    return kConfig.output_scales ? sum * load_global(args.output_scales + output) : sum;
  }
  VQ_DEVICE static float silu(float x) {
    constexpr float kLog2E = 1.44269504f;
    return x * reciprocal_approx(1.0f + exp2_approx(-kLog2E * x));
  }

  // The block whose counter a block adds to: of up rows, that of their gate rows.
  VQ_DEVICE static int counting_block() {
    if constexpr (holds_pairs(kConfig)) {
      return block_x();
    } else {
      constexpr auto kRunBlocks = static_cast<int>(kConfig.epilogue.gate_rows / kBlockOutputs);
      return block_x() - block_x() / kRunBlocks % 2 * kRunBlocks;
    }
  }

  VQ_DEVICE static constexpr i64 share() {
    return ceil_div(chunks(kConfig), i64{splits(kConfig)}) * kChunk;
  }
  VQ_DEVICE static i64 unit_of(i64 output, i64 column) {
    return output / kUnitRows * kUnitsPerRow + column / kConfig.unit_columns;
  }
};

// Block of a single matrix: a Block's sums, and nothing if it has no rows.
template <class Plan, class Block>
VQ_DEVICE void matrix_block(const LinearArgs& args) {
  using Work = LinearWork<Plan>;
  if (!Work::has_rows(args)) return after_last_launch();
  Block(args).run();
  Work::end_sums(args);
}

// Entry point of every linear kernel. An MoE kernel cannot prefetch codes before
// after_last_launch(): the expert offsets come from the previous kernel.
template <class Plan, class Block>
VQ_DEVICE void linear_block(const LinearArgs& args) {
  if constexpr (Plan::config().experts == 0) {  // not by way of the other: registers differ
    matrix_block<Plan, Block>(args);
  } else {
    for_expert<Plan>(args, LinearWork<Plan>::slot(),
                     [](const LinearArgs& own) { matrix_block<Plan, Block>(own); });
  }
}

// The sums of the splits become one by a kernel of its own. A thread an element of y.
template <class Plan>
VQ_DEVICE void linear_combine(const LinearArgs& args) {
  using Work = LinearWork<Plan>;
  const i64 element = i64{block_x()} * kCombineThreads + thread_index();
  const int rows = Work::kConfig.experts == 0 ? Work::rows(args) : args.rows;
  if (element >= rows * Work::kColumns) return;
  const auto row = static_cast<int>(element / Work::kColumns);
  const i64 column = element % Work::kColumns;
  if constexpr (Work::kConfig.experts == 0) {
    Work::merge(args, row, column, LoadGlobal());
  } else {
    const Experts<Plan> experts(args);
    const ExpertRows own = experts.of_row(row);
    if (row < own.first || row >= own.first + own.count) return;
    Work::merge(experts.alone(own, 0), row - own.first, column, LoadGlobal());
  }
}

}  // namespace vq
