// Rows of products in the searches of kv_append on tensor cores (append_estimates,
// append_gemm): of each unit the sub-vectors that a share has, token by token.
#pragma once

#include <vq/ops/append_share.cuh>

namespace vq {

template <class Share>
class AppendUnitRows {
 public:
  static constexpr int kOfUnit = Share::kFormat.unit_elements / Share::kVectorSize;
  static constexpr int kUnitVectors = unit_sub_vectors(Share::kConfig, Share::kFormat);

  // Rows from `first` on of a unit.
  struct Run {
    int unit;
    i64 book;
    int first;
    int vector, vectors;  // the first of the unit that the share has, and their number
  };
  struct Row {
    int token, vector;
    bool real;
  };

  VQ_DEVICE AppendUnitRows(const Share& share, int stage) : share_(share), stage_(stage) {
    first_unit_ = share.begin / kOfUnit;
    units_ = (share.begin + share.vectors - 1) / kOfUnit + 1 - first_unit_;
  }

  // Codebook sets that the share has sub-vectors of, counted from the first.
  VQ_DEVICE int units() const { return units_; }
  VQ_DEVICE i64 book(int unit) const {
    return share_.book_of((first_unit_ + unit) * kOfUnit, stage_);
  }
  VQ_DEVICE Run run_of(int unit, int first) const {
    const int begin = (first_unit_ + unit) * kOfUnit;
    const int first_row = begin < share_.begin ? share_.begin : begin;
    const int end = share_.begin + share_.vectors;
    const int end_row = begin + kOfUnit < end ? begin + kOfUnit : end;
    return {unit, book(unit), first, first_row, end_row - first_row};
  }
  // Rows past the end repeat the first.
  VQ_DEVICE static Row row_of(const Share& share, const Run& run, int number) {
    const int i = run.first + number;
    const Row row{i / kUnitVectors, i % kUnitVectors, true};
    if (row.token < share.work.count && row.vector < run.vectors && share.has(row.token)) {
      return {row.token, run.vector + row.vector, true};
    }
    return {0, run.vector, false};
  }

 private:
  const Share& share_;
  int stage_;
  int first_unit_, units_;
};

// 1 / scale; infinite where scale or its inverse is larger than `most`, so that margins would not
// hold.
VQ_DEVICE float inverse_within(float scale, float most) {
  const float size = scale < 0.0f ? -scale : scale;
  return size >= 1.0f / most && size <= most ? 1.0f / scale : infinity();
}

}  // namespace vq
