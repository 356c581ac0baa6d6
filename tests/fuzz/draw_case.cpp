// Plans and GPUs for the problems that draw.cpp draws.
#include <fmt/format.h>

#include <vector>

#include "core/gpu/gpu_spec.h"
#include "core/plan/plan.h"
#include "core/profiles.h"
#include "tests/fuzz/draw.h"

namespace vqgen::test {

Json draw_plan(Draw& draw, const Json& config) {
  const std::size_t one_in = 2 + draw.below(10);
  std::vector<Plan> dataflows;
  for_each_dataflow([&]<class P>(const P& each) {
    const bool product = config["op"] == Gemv::kOp || config["op"] == Gemm::kOp;
    if constexpr (std::is_same_v<OpOf<P>, Linear>) {
      if (product) dataflows.emplace_back(each);
    } else if constexpr (std::is_same_v<OpOf<P>, ScalarMatrix>) {
      const Json& op = config["op"];
      if (op == Int8Quantize::kOp || op == Int8Dequantize::kOp) dataflows.emplace_back(each);
    } else if (config["op"] == OpOf<P>::kOp) {
      dataflows.emplace_back(each);
    }
  });
  const Plan of = draw.of(dataflows);
  Json fields = std::visit([&]<class P>(const P&) { return draw_fields<P>(draw, one_in); }, of);
  if (draw.one_in(2)) fields["dataflow"] = dataflow_name(draw.wrong() ? draw.of(dataflows) : of);
  return fields;
}

Json draw_gpu(Draw& draw, bool mutated) {
  Json gpu = to_json(find_gpu(draw.of(gpu_names())));
  gpu.erase("sources");
  if (mutated) gpu.update(draw_fields<GpuSpec>(draw, 2 + draw.below(6)));
  return gpu;
}

FuzzCase draw_case(std::uint64_t seed) {
  Draw draw(seed);
  FuzzCase drawn{draw_problem(draw), {}};
  if (draw.one_in(3)) drawn.config["plan"] = draw_plan(draw, drawn.config);
  drawn.gpu = draw_gpu(draw, draw.one_in(3));
  return drawn;
}

std::string text_of(const FuzzCase& drawn) {
  return fmt::format("config.json\n{}\ngpu.json\n{}\n", drawn.config.dump(), drawn.gpu.dump());
}

}  // namespace vqgen::test
