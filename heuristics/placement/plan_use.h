// Codebook use of a plan's blocks: entries that a call looks up, how often blocks load their near
// levels, and a block's resources on an SM. The placement of codebooks is decided by these figures.
#pragma once

#include <cstdint>
#include <vector>

#include "core/access/access_counts.h"
#include "core/plan/plan.h"

namespace vqgen {

struct OperandUse {
  Operand operand = Operand::weights;
  vq::FormatConfig format = {};  // with the plan's placement
  std::int64_t units = 1;        // units whose codebooks a block holds at once
  int lane_units = 1;            // units that a warp's lanes read at the same time
  int in_a_row = 1;    // lookups of a warp with the same lane_units, soon after each other
  int slices = 1;      // slices per entry; a block holds and looks up one
  double lookups = 0;  // entries looked up, all blocks of a call together
  double fills = 0;    // times that blocks load the codebooks of `units` units, together

  std::int64_t tensor_units = 1;  // all of the tensor
  std::int64_t parts_bytes = 0;   // keys in parts: codebooks of all; `format` is the first's
  double code_bytes = 0;          // as stored
  double code_reads = 1;          // times that blocks read each of them

  int entry_bytes() const { return vq::held_bytes(format) / slices; }
  // Bytes that blocks fetch per entry of each unit and stage, and their shared memory if held once.
  std::int64_t stored_row_bytes() const {
    return units * format.num_codebooks * format.vector_size * 2;
  }
  std::int64_t row_bytes() const { return units * format.num_codebooks * entry_bytes(); }
  // Registers per thread of one entry of each unit and stage.
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
  std::int64_t blocks = 0;        // of the grid; of the smaller if two kernels look up entries
  std::int64_t shared_bytes = 0;  // per block, with the codebooks that it holds
  std::vector<OperandUse> operands = {};
};

// Use by a plan for this op, with fields in range.
PlanUse plan_use(const Plan& plan, const Problem& problem);

// Bytes of the codes of so many rows.
double stored_code_bytes(std::int64_t rows, std::int64_t columns, const VqFormat& format);

}  // namespace vqgen
