#include "heuristics/kernels/judge.h"

#include <bit>
#include <utility>

namespace vqgen {
namespace {

void judge_format(Judge& judge, const VqFormat& format, const char* operand) {
  const int v = format.vector_size;
  judge.require(v == 2 || v == 4 || v == 8, "{}: vector_size {} is not built yet; use 2, 4 or 8",
                operand, v);
  judge.require(format.entry_type == EntryType::element || v == 4 || v == 8,
                "{}: int8 entries of vector_size {} are not built yet; use 4 or 8", operand, v);
  judge.require(format.residuals <= 4, "{}: {} residual stages are not built yet; use 1 to 4",
                operand, format.residuals);
}

}  // namespace

void judge_problem(Judge& judge, const AttentionDecode& op) {
  judge_format(judge, op.keys, "keys");
  judge_format(judge, op.values, "values");
  const int d = op.shape.head_dim;
  judge.require(d == 64 || d == 96 || d == 128 || d == 256,
                "head_dim {} is not built yet; use 64, 96, 128 or 256", d);
}

void judge_problem(Judge& judge, const KvAppend& op) {
  judge_format(judge, op.keys, "keys");
  judge_format(judge, op.values, "values");
  const int d = op.shape.head_dim;
  judge.require(d == 64 || d == 80 || d == 96 || d == 128 || d == 256,
                "head_dim {} is not built yet; use 64, 80, 96, 128 or 256", d);
}

void judge_problem(Judge& judge, const Linear& op) { judge_format(judge, op.weights, "weights"); }

void judge_placement(Judge& judge, const vq::FormatConfig& format, std::int64_t units,
                     const char* operand) {
  const Placement& placement = format.placement;
  const int entries = vq::entries(format);
  for (const auto& [name, boundary] :
       {std::pair{"registers", placement.registers}, std::pair{"replicated", placement.replicated},
        std::pair{"shared", placement.shared}}) {
    judge.require(boundary <= entries, "{}: boundary {} {} is beyond the {} entries of a codebook",
                  operand, name, boundary, entries);
  }
  judge.require(std::has_single_bit(static_cast<unsigned>(placement.copies)),
                "{}: copies {} is not a power of two", operand, placement.copies);
  constexpr std::int64_t kMostRegisters = 64;
  const std::int64_t held =
      units * format.residuals * placement.registers * vq::held_bytes(format) / 4;
  judge.require(held <= kMostRegisters,
                "{}: {} entries of {} codebooks take {} registers a thread, more than {}; lower "
                "the boundary registers",
                operand, placement.registers, units * format.residuals, held, kMostRegisters);
}

void judge_block(Judge& judge, int threads, std::int64_t shared_bytes, const GpuSpec& gpu) {
  judge.require(threads % 32 == 0 && threads <= 1024,
                "threads {} is not a multiple of 32 up to 1024", threads);
  judge.require(shared_bytes <= gpu.shared_bytes_per_block,
                "needs {} bytes of shared memory a block, {} has {}; put a codebook in global "
                "memory or shrink the tile",
                shared_bytes, gpu.name, gpu.shared_bytes_per_block);
}

void judge_combine(Judge& judge, Combine combine, int splits, std::int64_t counters) {
  if (combine == Combine::kernel) return;
  judge.require(splits > 1, "combine last_block has nothing to merge with splits 1; use kernel");
  judge.require(counters <= vq::kMostCounters,
                "combine last_block takes {} counters, a workspace has {}; use kernel", counters,
                vq::kMostCounters);
}

}  // namespace vqgen
