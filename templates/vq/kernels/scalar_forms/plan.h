// Plan of a matrix to and from int8 by channel, in the four forms of the study of GPU-accelerated
// INT8 quantization of KV caches (Taneja and Shingvi, 2025, section 5.3), which differ in what a
// thread takes:
//
//   naive        one element, its scale from global memory
//   tiled        one element, the scales of the block's channels from shared memory
//   coarsened    several tokens of one channel, its scale in a register
//   vectorized   several channels by one access, of one or several tokens
//
// A block is `lanes` threads along the channels by threads / lanes along the tokens. Blocks are
// numbered along the channels first.
#pragma once

#include <vq/layout/launch.h>

namespace vq {

enum class ScalarForm : int { naive, tiled, coarsened, vectorized };
template <>
struct EnumNames<ScalarForm> {
  static constexpr const char* kType = "vq::ScalarForm";
  static constexpr const char* kNames[] = {"naive", "tiled", "coarsened", "vectorized"};
};

struct ScalarForms {
  ScalarForm form = ScalarForm::vectorized;
  int threads = 256;
  int lanes = 32;
  int vector = 4;
  int tokens = 4;
  int splits = 1;

  static constexpr const char* kType = "ScalarForms";
  static constexpr const char* kName = "scalar_forms";

  template <class Visit>
  VQ_HD static constexpr void visit(Visit&& visit) {
    using P = ScalarForms;
    visit("form", &P::form, Range{}, "naive, tiled, coarsened or vectorized");
    visit("threads", &P::threads, Range{32, 1024}, Doc::kThreads);
    visit("lanes", &P::lanes, Range{1, 1024},
          "threads along the channels, which divide threads; the others are along the tokens");
    visit("vector", &P::vector, Range{1, 16},
          "channels that a thread takes at a time, a power of two; above 1 with vectorized alone");
    visit("tokens", &P::tokens, Range{1, 16},
          "tokens that a thread takes; 1 with naive and tiled, above 1 with coarsened");
    visit("splits", &P::splits, Range{1, 65535},
          "blocks that share the largest magnitude of a channel; 1 where scales are given");
  }
};

// What a kernel knows of its problem; the launch sets the tokens.
struct ScalarProblem {
  Real element;
  int channels;
  bool decodes;          // codes become elements, else elements become codes
  bool computes_scales;  // from the elements, else they are given

  static constexpr const char* kType = "ScalarProblem";
  template <class Visit>
  VQ_HD static constexpr void visit(Visit&& visit) {
    using P = ScalarProblem;
    visit("element", &P::element);
    visit("channels", &P::channels);
    visit("decodes", &P::decodes);
    visit("computes_scales", &P::computes_scales);
  }
};

// Problem and plan side by side.
template <class Plan>
struct ScalarMatrixConfig : ScalarProblem, Plan {};

template <class Plan>
VQ_HD constexpr ScalarMatrixConfig<Plan> configure(const ScalarProblem& problem, const Plan& plan) {
  return {problem, plan};
}

using ScalarFormsConfig = ScalarMatrixConfig<ScalarForms>;

VQ_HD constexpr int element_size(const ScalarFormsConfig& c) {
  return c.element == Real::f32 ? 4 : 2;
}
VQ_HD constexpr int rows_at_once(const ScalarFormsConfig& c) { return c.threads / c.lanes; }
VQ_HD constexpr i64 tile_tokens(const ScalarFormsConfig& c) {
  return i64{rows_at_once(c)} * c.tokens;
}
VQ_HD constexpr int tile_channels(const ScalarFormsConfig& c) { return c.lanes * c.vector; }
VQ_HD constexpr i64 channel_tiles(const ScalarFormsConfig& c) {
  return ceil_div(i64{c.channels}, i64{tile_channels(c)});
}
// Channels that an access may span: the largest power of two that divides both the row, so that
// each row begins at an access, and the vector. An access lies within a row or past its end.
VQ_HD constexpr int span(const ScalarFormsConfig& c) {
  int span = c.vector;
  while (c.channels % span != 0) span /= 2;
  return span;
}
// Channels of an access to items of `size` bytes, 16 bytes at most.
VQ_HD constexpr int access_channels(const ScalarFormsConfig& c, int size) {
  return span(c) * size > 16 ? 16 / size : span(c);
}

// A block of the kernel that makes scales of the splits' largest magnitudes.
inline constexpr int kScaleThreads = 128;

VQ_HD constexpr CallShape call_shape(const ScalarFormsConfig& c, i64 tokens) {
  CallShape shape{};
  if (c.computes_scales) {
    shape.splits = c.splits;
    shape.add({"scalar_maxima", "maxima", channel_tiles(c), c.splits, 1, c.threads,
               i64{c.threads} * c.vector * 4, false, false});
    if (c.splits > 1) {
      shape.workspace_bytes = kCounterBytes + i64{c.splits} * c.channels * 4;
      shape.add({"scalar_scales", "scales", ceil_div(i64{c.channels}, i64{kScaleThreads}), 1, 1,
                 kScaleThreads, 0, false, false});
    }
  }
  shape.add({"scalar_matrix_forms", "", channel_tiles(c) * ceil_div(tokens, tile_tokens(c)), 1, 1,
             c.threads, c.form == ScalarForm::tiled ? i64{tile_channels(c)} * 4 : 0, false, false});
  shape.code_bytes = access_channels(c, 1);
  shape.element_bytes = element_size(c) * access_channels(c, element_size(c));
  return shape;
}

}  // namespace vq
