// What the blocks of a plan do with the codebooks of each operand: how many entries a call looks
// up, how often blocks load what they keep near, and what one block takes of a multiprocessor. The
// figures that the boundaries of the codebook cache are weighed by.
#pragma once

#include <cstdint>
#include <vector>

#include "core/access/access_counts.h"
#include "core/plan/plan.h"

namespace vqgen {

struct OperandUse {
  Operand operand = Operand::weights;
  vq::FormatConfig format = {};  // with the plan's placement
  std::int64_t units = 1;        // whose codebooks a block keeps near at once
  int lane_units = 1;            // of these, those that the lanes of a warp read at the same time
  int in_a_row = 1;    // lookups of a warp with the same lane_units, soon after each other
  int slices = 1;      // of an entry; a block holds and looks up one of them
  double lookups = 0;  // of entries, all blocks of a call together
  double fills = 0;    // times that blocks load the codebooks of `units` units, together

  std::int64_t tensor_units = 1;  // all of the tensor
  std::int64_t parts_bytes = 0;  // of keys in parts: the codebooks of all, `format` being the first
  double code_bytes = 0;         // as stored
  double code_reads = 1;         // times that blocks read each of them

  int entry_bytes() const { return vq::held_bytes(format) / slices; }
  // What blocks fetch of one entry of each unit and stage, and its shared memory, held once.
  std::int64_t stored_row_bytes() const {
    return units * format.num_codebooks * format.vector_size * 2;
  }
  std::int64_t row_bytes() const { return units * format.num_codebooks * entry_bytes(); }
  // Registers a thread of one entry of each unit and stage.
  std::int64_t row_registers() const { return units * format.num_codebooks * entry_bytes() / 4; }
  // Entries that a block keeps in shared memory, copies counted.
  double places() const {
    const vq::EntryRange replicated = vq::replicated_range(format);
    const vq::EntryRange once = vq::shared_range(format);
    const double rows =
        (replicated.end - replicated.begin) * format.placement.copies + (once.end - once.begin);
    return static_cast<double>(units) * format.num_codebooks * rows;
  }
  std::int64_t codebook_bytes() const {
    return parts_bytes > 0 ? parts_bytes : tensor_units * vq::unit_codebook_elements(format) * 2;
  }
};

struct PlanUse {
  int threads = 0;
  std::int64_t blocks = 0;        // of the grid; of the smaller where two kernels look entries up
  std::int64_t shared_bytes = 0;  // a block, with the codebooks that it keeps near
  std::vector<OperandUse> operands = {};
};

// Of a plan for this op, with fields in their ranges.
PlanUse plan_use(const Plan& plan, const Problem& problem);

// Bytes of the codes of so many rows.
double stored_code_bytes(std::int64_t rows, std::int64_t columns, const VqFormat& format);

}  // namespace vqgen
