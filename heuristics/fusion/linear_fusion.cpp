#include "heuristics/fusion/linear_fusion.h"

#include <fmt/format.h>

namespace vqgen {
namespace {

constexpr int kColumns = 32;

// A word of two columns of an output, at the next place of the layout.
void add_word(fusion::FragmentLayout& layout, int output, int column) {
  for (int slot = 0; slot < layout.slots; ++slot) {
    layout.elements.push_back(output * kColumns + column + slot);
  }
}

fusion::FragmentLayout empty_layout(std::string name, int fragment_rows) {
  fusion::FragmentLayout layout;
  layout.name = std::move(name);
  layout.axes = {{"m", 2 * fragment_rows}, {"k", kColumns}};
  layout.registers = fragment_rows;
  return layout;
}

}  // namespace

fusion::FragmentLayout looked_up(LinearFusion fusion, int vector_size, int fragment_rows) {
  fusion::FragmentLayout layout =
      empty_layout(fmt::format("entries of {} along k", vector_size), fragment_rows);
  layout.entry_registers = vector_size / 2;
  const int streams = fusion == LinearFusion::registers ? vector_size / 2 : 4;
  for (int lane = 0; lane < 32; ++lane) {
    for (int output = lane / 4; output < 2 * fragment_rows; output += 8) {
      for (int e = 0; e < 8 / vector_size; ++e) {
        const int octet = streams == 4 ? lane % 4 : e * streams + lane % streams;
        const int number = streams == 4 ? e : lane % 4 / streams;
        for (int i = 0; i < vector_size; i += 2) {
          add_word(layout, output, octet * 8 + number * vector_size + i);
        }
      }
    }
  }
  validate(layout);
  return layout;
}

fusion::FragmentLayout multiplied(int fragment_rows) {
  if (fragment_rows == 8) return fusion::mma_a(fusion::Mma::m16n8k16, 1, 2);
  fusion::FragmentLayout layout = empty_layout("A of mma.m16n8k16 by halves", fragment_rows);
  const fusion::FragmentLayout a = fusion::mma_a(fusion::Mma::m16n8k16);
  for (int word = 0; word < a.words(); ++word) {
    const int row = fusion::coordinate(a.axes, a.element(word, 0), 0);
    const int k = fusion::coordinate(a.axes, a.element(word, 0), 1);
    add_word(layout, row % 8, row / 8 * 16 + k);
  }
  validate(layout);
  return layout;
}

fusion::Exchange fragment_exchange(LinearFusion fusion, int vector_size, int fragment_rows) {
  fusion::Options options{.pinned = true};
  if (fusion == LinearFusion::permute) options.free_axes = {"k"};
  fusion::Exchange exchange = fusion::solve(looked_up(fusion, vector_size, fragment_rows),
                                            multiplied(fragment_rows), options);
  exchange.fusion =
      fusion == LinearFusion::shared ? fusion::Fusion::shared : fusion::Fusion::registers;
  return exchange;
}

LinearFusion fusion_by_shuffles(int vector_size, int threshold) {
  const fusion::Exchange exchange =
      fusion::solve(fusion::dequantized({"m", 16}, {"k", 16}, vector_size),
                    fusion::mma_a(fusion::Mma::m16n8k16), {.shuffle_threshold = threshold});
  return exchange.fusion == fusion::Fusion::registers ? LinearFusion::registers
                                                      : LinearFusion::shared;
}

Plan with_paper_fusion(const Plan& plan, const Problem& problem, const GpuSpec& gpu) {
  const auto* fragments = std::get_if<LinearFragments>(&plan);
  if (fragments == nullptr) return plan;
  LinearFragments fused = *fragments;
  for (const LinearFusion fusion :
       {fusion_by_shuffles(as_linear(problem)->weights.vector_size), LinearFusion::shared}) {
    fused.fusion = fusion;
    fused.codebook = all_global();
    const bool fine = check(fused, problem, gpu).ok;
    fused.codebook = fragments->codebook;
    if (fine) return fused;
  }
  return plan;
}

}  // namespace vqgen
