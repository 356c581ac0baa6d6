// Plans of a dataflow that a test names, and changes of plans of unknown dataflow.
#pragma once

#include <algorithm>
#include <array>
#include <concepts>

#include "core/ceil_div.h"
#include "heuristics/check.h"
#include "heuristics/choose.h"

namespace vqgen::test {

// A GEMV or a GEMM, by its rows.
inline Problem as_problem(const Linear& op) {
  return op.shape.rows > Gemv::kMostRows ? Problem(Gemm{op}) : Problem(Gemv{op});
}

// The rules' plan of the dataflow of `like`; check() may refuse it.
inline Plan rules_plan(const Plan& like, const Problem& problem, const GpuSpec& gpu) {
  Config config;
  config.problem = problem;
  config.plan["dataflow"] = dataflow_name(like);
  return propose(config, gpu, {.chooser = Chooser::rules});
}
// The rules' plan of a dataflow of GEMM and GEMV, by its number.
inline constexpr int kLinearDataflows = 8;
inline Plan product_plan(int dataflow, const Problem& problem, const GpuSpec& gpu) {
  const std::array<Plan, kLinearDataflows> plans{
      LinearSimt{},           LinearMma{},     LinearLut{},       LinearWgmma{},
      LinearSlicedCodebook{}, LinearInt8Mma{}, LinearInt8Wgmma{}, LinearWgmmaLargeM{}};
  return rules_plan(plans[static_cast<std::size_t>(dataflow)], problem, gpu);
}

// True if the plan's dataflow uses wgmma, which only Hopper has.
inline bool needs_warpgroups(const Plan& plan) {
  return std::holds_alternative<LinearWgmma>(plan) ||
         std::holds_alternative<LinearWgmmaLargeM>(plan) ||
         std::holds_alternative<LinearInt8Wgmma>(plan);
}

template <class P>
P rules_plan(const Problem& problem, const GpuSpec& gpu) {
  return std::get<P>(rules_plan(P{}, problem, gpu));
}

// Calls change(the plan's own struct) if `change` takes that type, and returns whether it does.
template <class Change>
bool change_own(Plan& plan, const Change& change) {
  return std::visit(
      [&]<class P>(P& own) {
        if constexpr (std::invocable<const Change&, P&>) {
          change(own);
          return true;
        }
        return false;
      },
      plan);
}

// The plan with that many splits, with shorter chunks if there are too few, and with `combine`;
// without what check() refuses.
inline Plan with_splits(Plan plan, int splits, Combine combine, const Problem& problem,
                        const GpuSpec& gpu) {
  const auto attempt = [&](const auto& apply) {
    Plan changed = plan;
    if (change_own(changed, apply) && check(changed, problem, gpu).ok) plan = changed;
  };
  for (const int chunk : {1024, 512, 256, 128, 64}) {
    attempt(
        [&](auto& own) requires requires { own.splits = own.chunk_columns = 0; } {
          if (own.splits >= splits) return;
          own.chunk_columns = std::min(own.chunk_columns, chunk);
          own.splits = splits;
        });
  }
  if (combine == Combine::kernel) return plan;
  attempt(
      [&](auto& own) requires requires { own.combine = Combine{}; } { own.combine = combine; });
  return plan;
}

// The rules' plan of `like`'s dataflow with that many splits, and at most 128 threads: each is a
// fiber of the host backend, so more only take time.
inline Plan narrow_plan(const Plan& like, const Problem& problem, const GpuSpec& gpu, int splits) {
  Plan plan = rules_plan(like, problem, gpu);
  change_own(
      plan, [&](auto& own) requires requires { own.splits; } {
        own.splits = splits;
        own.threads = std::min(own.threads, 128);
      });
  return plan;
}

// The columns of one codebook, in whole steps of the plan's loads of codes.
inline int whole_columns(const Linear& op, const LinearSlicedCodebook& plan) {
  const auto config = configured(plan, op);
  const std::int64_t step = vq::slice_step_columns(config);
  return static_cast<int>(
      ceil_div(std::min(op.shape.in_features, std::int64_t{config.unit_columns}), step) * step);
}

// A small GEMM with one codebook set and output scales.
inline Linear small_product(int rows, int index_bits, int num_codebooks = 1) {
  Linear op;
  op.shape = {.rows = rows, .out_features = 37, .in_features = 512};
  op.weights = {.vector_size = 8,
                .index_bits = index_bits,
                .num_codebooks = num_codebooks,
                .scope = Scope::tensor,
                .output_scales = true};
  return op;
}

}  // namespace vqgen::test
