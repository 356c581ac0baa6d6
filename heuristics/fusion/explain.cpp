// Explains how entries move from the lanes that look them up to those that multiply them.
#include <fmt/format.h>

#include "heuristics/explain.h"
#include "heuristics/fusion/exchange.h"

namespace vqgen {
namespace {

std::string headline(const LinearMma& plan, const fusion::Exchange& exchange) {
  constexpr const char* kAxes = "(m: outputs, k: columns)";
  const std::size_t shuffles = exchange.shuffles.size();
  const int products = plan.fragment_rows / 4;
  if (plan.fusion == LinearFusion::registers) {
    return fmt::format(
        "{} shuffles between lookup and tensor core, {} per mma: x keeps the order of its columns "
        "{}",
        shuffles, shuffles / static_cast<std::size_t>(products), kAxes);
  }
  if (plan.fusion == LinearFusion::shared) {
    return fmt::format(
        "entries go through {} bytes of shared memory per warp to the tensor core: x keeps the "
        "order of its columns {}",
        vq::kExchangeTiles * vq::kExchangeOctets * 16, kAxes);
  }
  return fmt::format(
      "{} shuffles between lookup and tensor core: the order of the columns is free, so x is laid "
      "out to match the entries {}",
      shuffles, kAxes);
}

}  // namespace

std::vector<std::string> fusion_lines(const Plan& plan, const Problem& problem) {
  if (std::holds_alternative<AttentionMma>(plan)) {
    return {
        "no exchange: entries are operands of mma.m16n8k16 in the lane that looks them up; the "
        "query's channels, the heads and the channels of the output are laid out to match"};
  }
  if (std::holds_alternative<AttentionInt8Mma>(plan)) {
    return {
        "no exchange: entries are operands of mma.m16n8k32 in the lane that looks them up, those "
        "of values once four tokens of a channel are a word; the query's channels, the heads and "
        "the channels of the output are laid out to match"};
  }
  if (std::holds_alternative<AppendSimt>(plan)) {
    return {"no exchange: the lane that loads an entry compares sub-vectors with it, in fp32"};
  }
  if (std::holds_alternative<AppendMma>(plan)) {
    return {
        "no exchange: entries are operands of mma.m16n8k16 as they are stored, and their "
        "distances to the sub-vectors of a warp are estimated at once; what may be nearest is "
        "compared in fp32"};
  }
  if (std::holds_alternative<AppendGemm>(plan)) {
    return {
        "no exchange: entries pass through shared memory as they are stored, operands of the "
        "tensor cores for all sub-vectors of a block; what may be nearest is compared in fp32"};
  }
  if (std::holds_alternative<DequantizeSimt>(plan) || std::holds_alternative<WeightsSimt>(plan)) {
    return {"no exchange: the lane that looks entries up adds them, in fp32, and stores the sums"};
  }
  if (std::holds_alternative<MergeSimt>(plan) || std::holds_alternative<ScalarForms>(plan)) {
    return {"nothing is looked up: the lane that loads numbers weighs or rounds them, in fp32"};
  }
  if (std::holds_alternative<LinearInt8Mma>(plan) ||
      std::holds_alternative<LinearInt8Wgmma>(plan)) {
    return {
        "no exchange: sums of entries are int8 mma operands in the lane that looks them up; the "
        "order of the columns is free, so x is laid out to match the entries"};
  }
  if (std::holds_alternative<LinearWgmma>(plan) ||
      std::holds_alternative<LinearWgmmaLargeM>(plan)) {
    return {
        "no exchange: entries are operands of wgmma in the lane that looks them up; the order of "
        "the columns is free, so x is laid out to match the entries"};
  }
  if (std::holds_alternative<LinearSlicedCodebook>(plan) &&
      as_linear(problem)->weights.entry_type == EntryType::int8) {
    return {
        "no exchange: the thread that looks a slice up multiplies it, two integers an instruction"};
  }
  const auto* fragments = std::get_if<LinearMma>(&plan);
  if (fragments == nullptr) {
    return {"no exchange: the thread that looks an entry up multiplies it, in fp32"};
  }
  const fusion::Exchange exchange = fusion::exchange_of(
      fragments->fusion, as_linear(problem)->weights.vector_size, fragments->fragment_rows);
  std::vector<std::string> lines = fusion::draw(exchange);
  lines.insert(lines.begin(), headline(*fragments, exchange));
  return lines;
}

}  // namespace vqgen
