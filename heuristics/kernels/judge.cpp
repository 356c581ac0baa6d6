#include "heuristics/kernels/judge.h"

#include <bit>
#include <utility>

namespace vqgen {

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
