// GEMV and GEMM with codebooks larger than shared memory: each block holds a slice of every entry
// of one stage, the same few elements. Blocks that share outputs read the same codes, mostly from
// L2, and their sums are added as split-K partials (VQ-LLM VI-A: the codebook-switch axis, made
// parallel). A gather from global memory would fetch 32 bytes per lookup; a slice costs its
// shared-memory wavefronts alone.
//
// A warp takes kGroup outputs at a time; lanes lie along their codes, kRun sub-vectors each per
// step, and read that x from shared memory once for all the outputs.
#pragma once

#include <vq/kernels/linear_sliced_codebook/plan.h>
#include <vq/codes.cuh>
#include <vq/kernels/linear_sliced_codebook/slice_products.cuh>
#include <vq/transposing_sum.cuh>

namespace vq {

template <class Plan>
class LinearSlicedCodebookBlock {
 public:
  using Work = LinearWork<Plan>;
  static constexpr auto kConfig = Plan::config();
  static constexpr FormatConfig kFormat = kConfig.weights;
  static constexpr int kRows = block_rows(kConfig);
  static constexpr int kOutputs = kConfig.outputs_per_warp;
  static constexpr int kGroup = slice_group(kConfig);
  static constexpr int kVectorSize = kFormat.vector_size;
  static constexpr int kResiduals = kFormat.num_codebooks;
  static constexpr int kEntries = entries(kFormat);
  static constexpr int kElements = slice_elements(kConfig);
  static constexpr int kSlices = kVectorSize / kElements;
  static constexpr int kParts = kResiduals * kSlices;
  static constexpr int kCodeWords = kConfig.code_words;
  static constexpr int kRun = slice_run(kConfig);
  static constexpr int kSteps = slice_steps(kConfig);
  static constexpr int kXWords = slice_x_words(kConfig);
  static constexpr int kLaneWords = kRun * kXWords;  // words of x per lane and step
  static constexpr int kXWidth = kLaneWords < 4 ? kLaneWords : 4;
  static constexpr int kWarps = kConfig.threads / 32;
  static constexpr CodeLayout kLayout = kFormat.layout;
  using Products = SliceProducts<kConfig.element, kFormat.int8_entries, kElements>;
  using Slice = typename Products::Slice;
  using Sum = typename Products::Sum;
  using Decode = Decoding<kFormat.decoder, kConfig.element, kFormat.int8_entries>;
  using Stored = EntryWords<kVectorSize>;
  static_assert(kFormat.decoder == Decoder::table && chunk_in_one_unit(kConfig), "");

  VQ_DEVICE explicit LinearSlicedCodebookBlock(const LinearArgs& args)
      : args_(args),
        first_column_(i64{Work::split() / kParts} * Work::kChunk),
        stage_(Work::split() % kParts / kSlices),
        slice_(Work::split() % kSlices),
        first_output_(Work::first_output() + i64{warp()} * kOutputs),
        first_row_(block_y() * kRows) {}

  VQ_DEVICE void run() {
    const i64 left = Work::kOutFeatures - first_output_;
    const int outputs = left < kOutputs ? static_cast<int>(left) : kOutputs;
    u32 next[kGroup][kCodeWords];
    load_codes(next, 0, 0);
    fill();
    after_last_launch();
    stage_x();
    sync_block();
    for (int group = 0; group < outputs; group += kGroup) {
      Sum sums[kGroup][kRows] = {};
      for (int step = 0; step < kSteps; ++step) {
        u32 now[kGroup][kCodeWords];
        VQ_UNROLL
        for (int i = 0; i < kGroup * kCodeWords; ++i)
          now[i / kCodeWords][i % kCodeWords] = next[i / kCodeWords][i % kCodeWords];
        const bool last = step + 1 == kSteps;
        load_codes(next, last ? group + kGroup : group, last ? 0 : step + 1);
        multiply(sums, now, step);
      }
      write(sums, group, outputs);
    }
  }

 private:
  // The codes of a group of outputs and a step; of outputs and columns past the last the last ones
  // again, which count for nothing.
  VQ_DEVICE void load_codes(u32 (&to)[kGroup][kCodeWords], int group, int step) const {
    constexpr i64 kLast =
        row_words(Work::kInFeatures, kVectorSize, kResiduals, kFormat.index_bits) - kCodeWords;
    const i64 own =
        first_column_ / kVectorSize / kRun * kCodeWords + (i64{step} * 32 + lane()) * kCodeWords;
    const i64 word = own < kLast ? own : kLast;
    VQ_UNROLL
    for (int o = 0; o < kGroup; ++o) {
      const i64 output = first_output_ + group + o;
      const u32* const row =
          args_.weights.codes +
          row_place(kLayout, Work::kRowWords,
                    output < Work::kOutFeatures ? output : Work::kOutFeatures - 1);
      if constexpr (kLayout.rows == 1) {
        load_words<kCodeWords>(to[o], row + word, BeginConstant());
      } else {
        VQ_UNROLL
        for (int i = 0; i < kCodeWords; ++i)
          to[o][i] = begin_constant(row + word_place(kLayout, word + i));
      }
    }
  }

  // Fetches the block's slice of all entries, some at once.
  VQ_DEVICE void fill() const {
    constexpr int kInFlight = 8;
    const auto* const stored = reinterpret_cast<const Stored*>(args_.weights.codebooks) +
                               (Work::bound_unit(first_column_) * kResiduals + stage_) * kEntries;
    for (int first = thread_index(); first < kEntries; first += kInFlight * kConfig.threads) {
      Stored entries[kInFlight];
      VQ_UNROLL
      for (int i = 0; i < kInFlight; ++i) {
        const int entry = first + i * kConfig.threads;
        if (entry < kEntries) entries[i] = begin_constant(stored + entry);
      }
      VQ_UNROLL
      for (int i = 0; i < kInFlight; ++i) {
        const int entry = first + i * kConfig.threads;
        if (entry < kEntries) store_shared(slices() + entry, slice_of(Decode::held(entries[i])));
      }
    }
  }
  template <class Held>
  VQ_DEVICE Slice slice_of(const Held& held) const {
    if constexpr (sizeof(Slice) == sizeof(Held)) {
      return held;
    } else if constexpr (sizeof(Slice) == 2) {
      return static_cast<u16>(word_of(held, slice_ / 2) >> 16 * (slice_ % 2) & 0xffffu);
    } else if constexpr (sizeof(Slice) == 4) {
      return word_of(held, slice_);
    } else {
      return {word_of(held, 2 * slice_), word_of(held, 2 * slice_ + 1)};
    }
  }

  // x of the block's chunk, its slice of each sub-vector; what each row's sums are to be scaled by.
  VQ_DEVICE void stage_x() {
    float stage_scale = 1.0f;
    if constexpr (kFormat.stage_scales) {
      stage_scale = load_constant(args_.weights.scales +
                                  Work::bound_unit(first_column_) * kResiduals + stage_);
    }
    VQ_UNROLL
    for (int r = 0; r < kRows; ++r) factor_[r] = stage_scale;
    float to_peak[kRows] = {};
    if constexpr (kFormat.int8_entries) find_peaks(to_peak);
    VQ_UNROLL
    for (int r = 0; r < kRows; ++r) {
      for (int s = thread_index(); s < kSteps * 32 * kRun; s += kConfig.threads) {
        float values[kElements];
        load_x(values, r, s);
        u32 words[kXWords];
        Products::stage(words, values, to_peak[r]);
        VQ_UNROLL
        for (int i = 0; i < kXWords; ++i) {
          const int word = s % kRun * kXWords + i;  // word within its lane's
          store_shared(x_of(r, s / (32 * kRun), s / kRun % 32, word / kXWidth) + word % kXWidth,
                       words[i]);
        }
      }
    }
  }
  // Factors to and from the largest magnitude of each row. Peaks are compared as bits, which order
  // as the numbers do, with NaN above all.
  VQ_DEVICE void find_peaks(float (&to_peak)[kRows]) {
    VQ_UNROLL
    for (int r = 0; r < kRows; ++r) {
      u32 peak = 0;
      for (int s = thread_index(); s < kSteps * 32 * kRun; s += kConfig.threads) {
        float values[kElements];
        load_x(values, r, s);
        VQ_UNROLL
        for (int i = 0; i < kElements; ++i)
          peak = larger(peak, float_bits(values[i]) & 0x7fffffffu);
      }
      VQ_UNROLL
      for (int mask = 16; mask > 0; mask /= 2) peak = larger(peak, shuffle_xor(peak, mask));
      if (lane() == 0) store_shared(peaks() + r * kWarps + warp(), peak);
    }
    sync_block();
    VQ_UNROLL
    for (int r = 0; r < kRows; ++r) {
      u32 peak = 0;
      for (int w = 0; w < kWarps; ++w) peak = larger(peak, load_shared(peaks() + r * kWarps + w));
      constexpr u32 kInfinity = 0x7f800000u;
      constexpr u32 kNoNumber = 0x7fc00000u;
      const float most = float_from_bits(peak < kInfinity ? peak : kNoNumber);
      constexpr float kLeast = 1e-30f;  // below which its reciprocal is none: as zeros
      to_peak[r] = most > kLeast ? kSlicePeak / most : 0.0f;
      factor_[r] *= most * (1.0f / kSlicePeak);
    }
  }
  VQ_DEVICE static u32 larger(u32 a, u32 b) { return a > b ? a : b; }

  // The slice of sub-vector s of the chunk of a row; zeros past the matrix.
  VQ_DEVICE void load_x(float (&values)[kElements], int r, int s) const {
    const i64 column = first_column_ + i64{s} * kVectorSize + slice_ * kElements;
    const bool inside = column < Work::kInFeatures && first_row_ + r < Work::rows(args_);
    const u16* const from = args_.x + (inside ? first_row_ + r : 0) * Work::kInFeatures + column;
    VQ_UNROLL
    for (int i = 0; i < kElements; ++i)
      values[i] = inside ? to_float<kConfig.element>(load_global(from + i)) : 0.0f;
  }

  VQ_DEVICE void multiply(Sum (&sums)[kGroup][kRows], const u32 (&codes)[kGroup][kCodeWords],
                          int step) const {
    constexpr int kBits = kFormat.index_bits;
    constexpr u32 kMask = (1u << kBits) - 1u;
    const u32 base = shared_place(reinterpret_cast<const u8*>(slices()));
    u32 x[kRows][kLaneWords];
    VQ_UNROLL
    for (int r = 0; r < kRows; ++r) {
      VQ_UNROLL
      for (int i = 0; i < kLaneWords; i += kXWidth)
        load_words<kXWidth>(x[r] + i, x_of(r, step, lane(), i / kXWidth), LoadShared());
    }
    VQ_UNROLL
    for (int s = 0; s < kRun; ++s) {
      constexpr int kSubBits = kResiduals * kBits;
      VQ_UNROLL
      for (int o = 0; o < kGroup; ++o) {
        const u32 code =
            codes[o][s * kSubBits / 32] >> (s * kSubBits % 32 + stage_ * kBits) & kMask;
        const Slice slice = load_shared_at<Slice>(base + code * static_cast<u32>(sizeof(Slice)));
        VQ_UNROLL
        for (int r = 0; r < kRows; ++r) Products::add(sums[o][r], slice, x[r] + s * kXWords);
      }
    }
  }

  VQ_DEVICE void write(const Sum (&sums)[kGroup][kRows], int group, int outputs) const {
    VQ_UNROLL
    for (int r = 0; r < kRows; ++r) {
      if (r > 0 && first_row_ + r >= Work::rows(args_)) break;
      float own[kGroup];
      VQ_UNROLL
      for (int o = 0; o < kGroup; ++o) own[o] = static_cast<float>(sums[o][r]);
      const float sum = transposing_sum<kGroup>(own) * factor_[r];
      if (lane() < kGroup && group + lane() < outputs && first_row_ + r < Work::rows(args_))
        Work::write(args_, first_row_ + r, first_output_ + group + lane(), sum);
    }
  }

  // See codebook.cuh for why by function.
  VQ_DEVICE static Slice* slices() { return shared_part<Slice>(Work::at().beside); }
  VQ_DEVICE static u32* peaks() {
    return shared_part<u32>(Work::at().beside + slices_bytes(kConfig));
  }
  // Address of access `i` of a lane's x in a step; lanes are adjacent.
  VQ_DEVICE static u32* x_of(int row, int step, int lane, int i) {
    return shared_part<u32>(Work::at().x) + (row * kSteps + step) * (32 * kLaneWords) +
           (i * 32 + lane) * kXWidth;
  }

  const LinearArgs& args_;
  i64 first_column_;
  int stage_;
  int slice_;
  i64 first_output_;
  int first_row_;
  float factor_[kRows];  // scale of a row's sums
};

template <class Plan>
VQ_DEVICE void linear_sliced_codebook(const LinearArgs& args) {
  linear_block<Plan, LinearSlicedCodebookBlock<Plan>>(args);
}

}  // namespace vq
