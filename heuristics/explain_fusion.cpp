#include "heuristics/explain_fusion.h"

#include <fmt/format.h>

#include <sstream>

#include "heuristics/fusion/draw.h"
#include "heuristics/fusion/solve.h"

namespace vqgen {
namespace {

// The operand as templates/vq/ops/linear_fragments.cuh feeds it: with 4 rows of x a product, lane
// (g, c) holds octet c of output g, the rows g and g + 8 of the product being its halves; with 8
// two outputs of m16n8k16 over two steps of k.
fusion::Exchange fragment(int vector_size, bool halves) {
  const fusion::Axis k{"k", 32};
  if (halves) {
    fusion::FragmentLayout operand = fusion::dequantized({"m", 8}, k, 8);
    operand.name = "A of mma.m16n8k16 by halves";
    operand.entry_registers = 1;
    return fusion::solve(fusion::dequantized({"m", 8}, k, vector_size), operand);
  }
  return fusion::solve(fusion::dequantized({"m", 16}, k, vector_size),
                       fusion::mma_a(fusion::Mma::m16n8k16, 1, 2), {.free_axes = {"k"}});
}

}  // namespace

std::vector<std::string> fusion_lines(const Plan& plan, const Problem& problem) {
  const auto* linear = std::get_if<LinearPlan>(&plan);
  if (linear == nullptr || linear->dataflow != LinearDataflow::fragments) {
    return {"no exchange: the thread that looks an entry up multiplies it, in fp32"};
  }
  const fusion::Exchange exchange =
      fragment(as_linear(problem)->weights.vector_size, linear->fragment_rows == 4);
  std::vector<std::string> lines{fmt::format(
      "{} shuffles between lookup and tensor core: the order of the columns is free, so x is laid "
      "out to match the entries (m: outputs, k: columns)",
      exchange.shuffles.size())};
  std::istringstream drawing(fusion::draw(exchange, 4));
  for (std::string line; std::getline(drawing, line);) lines.push_back(line);
  return lines;
}

}  // namespace vqgen
