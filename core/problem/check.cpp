#include "core/problem/check.h"

#include <fmt/ranges.h>
#include <vq/kernels/merge_simt/plan.h>

#include <algorithm>
#include <array>
#include <span>

#include "core/problem/head_dims.h"

namespace vqgen {
namespace {

void judge_format(Judge& judge, const VqFormat& format, const char* operand) {
  for (const VqFormat& part : format.parts) {
    judge_format(judge, part, operand);
    judge.require(part.channels.size() % 8 == 0,
                  "{}: a part of {} channels is not built yet; use multiples of 8", operand,
                  part.channels.size());
  }
  const int v = format.vector_size;
  judge.require(std::ranges::find(kVectorSizes, v) != kVectorSizes.end(),
                "{}: vector_size {} is not built yet; use {}", operand, v,
                fmt::join(kVectorSizes, ", "));
  judge.require(format.entry_type == EntryType::element || v <= 16,
                "{}: int8 entries of vector_size {} are not built yet; use 2 to 16", operand, v);
  judge.require(!format.is_scalar() || (!format.smooth && !format.hadamard),
                "{}: smooth and hadamard of scalar codes are not built yet; set both to false",
                operand);
  judge.require(!format.is_scalar() || !has_basis(format),
                "{}: center and klt of scalar codes are not built yet; set both to false", operand);
  judge.require(format.num_codebooks <= kMostStages,
                "{}: {} residual stages are not built yet; use 1 to {}", operand,
                format.num_codebooks, kMostStages);
}

// Weights of any op on them.
void judge_weights(Judge& judge, const VqFormat& format) {
  judge.require(!format.is_wide(), "weights: vector_size {} is not built yet; use 2, 4 or 8",
                format.vector_size);
  judge.require(format.entry_type == EntryType::element || format.vector_size >= 4,
                "weights: int8 entries of 2 elements are not built yet; use 4 or 8");
  judge.require(format.num_codebooks <= 4,
                "weights: {} residual stages are not built yet; use 1 to 4", format.num_codebooks);
  judge_format(judge, format, "weights");
}

constexpr std::array kHeadDims{64, 80, 96, 112, 128, 160, 192, 256};

std::string head_dim_fault(int head_dim) {
  if (std::ranges::find(kHeadDims, head_dim) != kHeadDims.end()) return "";
  return fmt::format("{} is not built yet; use {} or {}", head_dim,
                     fmt::join(std::span(kHeadDims).first(kHeadDims.size() - 1), ", "),
                     kHeadDims.back());
}

template <class Shape>
std::optional<FormatFault> head_dim_fault(const Shape& shape) {
  const std::string keys = head_dim_fault(shape.head_dim);
  if (!keys.empty()) return FormatFault{"head_dim", keys};
  const std::string values = head_dim_fault(shape.value_dim());
  if (!values.empty()) return FormatFault{"value_head_dim", values};
  return std::nullopt;
}

// Rules of ops on a cache.
template <class Op>
void judge_cache(Judge& judge, const Op& op) {
  judge_format(judge, op.keys, "keys");
  judge_format(judge, op.values, "values");
  if (const auto fault = head_dim_fault(op.shape)) {
    judge.require(false, "{} {}", fault->field, fault->message);
  }
}

}  // namespace

std::string klt_remedy(const VqFormat& format, const std::string& path, int head_dim) {
  const bool keys = path.starts_with("/keys");
  // Presets of more bits have no parts, and serve any head_dim.
  if (!format.klt || !head_dim_fault(head_dim).empty() ||
      format.bits_per_element() != (keys ? 1.25 : 0.75)) {
    return "";
  }
  return fmt::format(", or take vqgen.hf.klt_format(\"{}\", 1, {}) of Python",
                     keys ? "keys" : "values", head_dim);
}

std::optional<FormatFault> head_dim_fault(const Problem& problem) {
  return std::visit(
      [](const auto& op) -> std::optional<FormatFault> {
        if constexpr (requires { op.keys; }) return head_dim_fault(op.shape);
        return std::nullopt;
      },
      problem);
}

void judge_problem(Judge& judge, const AttentionDecode& op) { judge_cache(judge, op); }

void judge_problem(Judge& judge, const KvAppend& op) { judge_cache(judge, op); }

void judge_problem(Judge& judge, const KvDequantize& op) { judge_cache(judge, op); }

void judge_problem(Judge& judge, const AttentionMerge& op) {
  judge.require(op.shape.head_dim % vq::kMergedChannels == 0,
                "head_dim {} is not a multiple of {}, the channels of one load; pad the heads",
                op.shape.head_dim, vq::kMergedChannels);
}

void judge_problem(Judge& judge, const Linear& op) { judge_weights(judge, op.weights); }

void judge_problem(Judge& judge, const WeightDequantize& op) { judge_weights(judge, op.weights); }

Verdict check(const Problem& problem) {
  Judge judge;
  std::visit([&](const auto& op) { judge_problem(judge, op); }, problem);
  return judge.verdict();
}

}  // namespace vqgen
