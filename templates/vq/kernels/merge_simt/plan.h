// Plan of attention_merge: a lane merges 8 channels of one row and head over all parts, by loads
// and a store of 16 bytes.
#pragma once

#include <vq/layout/launch.h>

namespace vq {

struct MergeSimt {
  int threads = 256;
  int blocks = 1024;

  static constexpr const char* kType = "MergeSimt";
  static constexpr const char* kName = "merge_simt";

  template <class Visit>
  VQ_HD static constexpr void visit(Visit&& visit) {
    using P = MergeSimt;
    visit("threads", &P::threads, Range{32, 1024}, Doc::kThreads);
    visit("blocks", &P::blocks, Range{1, 1 << 20},
          "blocks of the grid at most, which take rows and heads in turn");
  }
};

// What a kernel knows of its problem; the launch sets the rows.
struct MergeProblem {
  Element element;
  int head_dim;
  int heads;
  int parts;

  static constexpr const char* kType = "MergeProblem";
  template <class Visit>
  VQ_HD static constexpr void visit(Visit&& visit) {
    using P = MergeProblem;
    visit("element", &P::element);
    visit("head_dim", &P::head_dim);
    visit("heads", &P::heads);
    visit("parts", &P::parts);
  }
};

// Problem and plan side by side.
template <class Plan>
struct MergeConfig : MergeProblem, Plan {};

template <class Plan>
VQ_HD constexpr MergeConfig<Plan> configure(const MergeProblem& problem, const Plan& plan) {
  return {problem, plan};
}

// Lanes per row and head, at 8 channels each, and how many of these a block merges at a time.
inline constexpr int kMergedChannels = 8;
VQ_HD constexpr int row_lanes(const MergeConfig<MergeSimt>& c) {
  return c.head_dim / kMergedChannels;
}
VQ_HD constexpr int heads_at_once(const MergeConfig<MergeSimt>& c) {
  return c.threads / row_lanes(c);
}

VQ_HD constexpr CallShape call_shape(const MergeConfig<MergeSimt>& c, i64 rows) {
  CallShape shape{};
  const i64 turns = ceil_div(rows * c.heads, i64{heads_at_once(c)});
  shape.add({"attention_merge_simt", "", turns < c.blocks ? turns : c.blocks, 1, 1, c.threads, 0,
             false, false});
  shape.element_bytes = 2 * kMergedChannels;
  return shape;
}

}  // namespace vq
