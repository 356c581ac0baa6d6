// Variants of plans of GEMM, by number: 0 is as they are.
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "tests/sweep/plans.h"

namespace vqgen::test {

// What a variant sets in a plan.
template <class P>
struct Setting {
  int P::*field;
  int value;
};
template <class P>
using Variants = std::array<std::vector<Setting<P>>, 8>;

template <class P>
void set(P& plan, const Variants<P>& variants, int variant) {
  for (const auto& [field, value] : variants.at(static_cast<std::size_t>(variant)))
    plan.*field = value;
}

// Varies a plan of mma, besides its splits and placement.
inline void vary(LinearMma& plan, int variant) {
  using P = LinearMma;
  static const Variants<P> variants = {{{},
                                        {{&P::warps_along_columns, 1}},
                                        {{&P::threads, 128}, {&P::warps_along_columns, 4}},
                                        {{&P::outputs_per_warp, 32}},
                                        {{&P::code_words, 1}},
                                        {{&P::rows_per_block, 16}},
                                        {{&P::fragment_rows, 4}, {&P::outputs_per_warp, 8}},
                                        {{&P::fragment_rows, 4},
                                         {&P::outputs_per_warp, 24},
                                         {&P::rows_per_block, 12},
                                         {&P::warps_along_columns, 2}}}};
  set(plan, variants, variant);
}

// Varies a plan of wgmma.
inline void vary(LinearWgmma& plan, int variant) {
  using P = LinearWgmma;
  static const Variants<P> variants = {
      {{},
       {{&P::threads, 128}, {&P::fetch_only_warps, 3}, {&P::prefetch_steps, 1}},
       {{&P::threads, 256},
        {&P::outputs_per_warp, 32},
        {&P::fetch_only_warps, 1},
        {&P::prefetch_steps, 1}},
       {{&P::rows_per_block, 8}, {&P::prefetch_steps, 1}},
       {{&P::code_words, 1}},
       {{&P::rows_per_block, 64}, {&P::code_words, 1}},
       {{&P::threads, 256}, {&P::outputs_per_warp, 48}, {&P::code_words, 1}},
       {{&P::threads, 256}, {&P::code_words, 1}, {&P::prefetch_steps, 1}}}};
  set(plan, variants, variant);
  if (variant == 7) plan.chunk_columns /= 4;  // many chunks
}

// Varies a plan of wgmma_large_m.
inline void vary(LinearWgmmaLargeM& plan, int variant) {
  using P = LinearWgmmaLargeM;
  static const Variants<P> variants = {
      {{},
       {{&P::threads, 128}},
       {{&P::threads, 256}, {&P::outputs_per_warp, 32}},
       {{&P::rows_per_block, 8}},
       {{&P::code_words, 1}},
       {{&P::rows_per_block, 64}, {&P::code_words, 1}},
       {{&P::threads, 256}, {&P::rows_per_block, 256}},  // pieces of few steps
       {{&P::code_words, 1}}}};
  set(plan, variants, variant);
  if (variant == 7) plan.chunk_columns /= 4;  // many chunks
}

// Varies a plan of sliced_codebook: shorter blocks, steps, chunks, and the narrowest slices.
inline void vary(LinearSlicedCodebook& plan, const Linear& op, int variant) {
  plan.threads = variant % 2 == 0 ? 64 : 128;
  plan.outputs_per_warp = variant % 4 == 3 ? 6 : 12;
  if (variant >= 4) plan.code_words = std::max(1, plan.code_words / 2);
  plan.columns_per_block = whole_columns(op, plan);
  if (variant >= 6) plan.columns_per_block = std::max(plan.columns_per_block / 2, 1);
  if (variant % 3 == 1) plan.entry_slices = op.weights.held_bytes() / 2;
}

}  // namespace vqgen::test
