#include "heuristics/cost.h"

#include <cmath>
#include <limits>

#include "core/files/embedded.h"

namespace vqgen {
namespace {

constexpr std::size_t kInTurn = static_cast<std::size_t>(CostPart::memory);  // parts before it

CostCoefficients read_coefficients(const JsonCursor& cursor) {
  std::vector<std::string> known{"overlap"};
  for (const char* part : enum_names<CostPart>) known.emplace_back(part);
  cursor.expect_object(known);
  constexpr double kMost = 1e6;
  CostCoefficients coefficients;
  coefficients.overlap = cursor.member("overlap").number(1, 100);
  for (std::size_t i = 0; i < kCostParts; ++i) {
    coefficients.of.of[i] = cursor.member(enum_names<CostPart>[i]).number(0, kMost);
  }
  return coefficients;
}

DenseGemmCost read_dense_gemm(const JsonCursor& cursor) {
  cursor.expect_object({"operations", "written_bytes", "part_us"});
  constexpr double kLeast = 1e-3, kMost = 1e6;
  return {.operations = cursor.member("operations").number(kLeast, kMost),
          .written_bytes = cursor.member("written_bytes").number(kLeast, kMost),
          .part_us = cursor.member("part_us").number(0, kMost)};
}

Cost weighed(const CostParts& ideal, const CostCoefficients& coefficients) {
  Cost cost{0, ideal};
  const bool sum = coefficients.overlap == 1;  // a shortcut: pow() is slow
  double overlapping = 0;
  for (std::size_t i = 0; i < kCostParts; ++i) {
    cost.parts.of[i] *= coefficients.of.of[i];
    const double part = cost.parts.of[i];
    if (i < kInTurn) {
      cost.us += part;
    } else {
      overlapping += sum ? part : std::pow(part, coefficients.overlap);
    }
  }
  cost.us += sum ? overlapping : std::pow(overlapping, 1 / coefficients.overlap);
  return cost;
}

// True if entries move to the MMA operands; no coefficients are fitted to such plans.
bool moves_entries(const Plan& plan) {
  const auto* fragments = std::get_if<LinearMma>(&plan);
  return fragments != nullptr && fragments->fusion != LinearFusion::permute;
}

}  // namespace

CostProfile read_cost_profile(const Json& json, const std::string& source) {
  const JsonCursor root(json, source);
  root.expect_object({"gpu", "source", "dataflows", "dense_gemm"});
  root.member("source").string();  // for people
  CostProfile profile{root.member("gpu").string(), {}};
  const JsonCursor dataflows = root.member("dataflows");
  if (!dataflows.value().is_object()) dataflows.fail("must be an object of coefficients");
  for (const auto& [name, unused] : dataflows.value().items()) {
    profile.dataflows[name] = read_coefficients(dataflows.at(name));
  }
  if (root.has("dense_gemm")) profile.dense_gemm = read_dense_gemm(root.at("dense_gemm"));
  return profile;
}

const CostProfile& cost_profile() {
  static const CostProfile profile = [] {
    for (const EmbeddedFile& file : embedded_profiles()) {
      if (!file.path.starts_with("cost/")) continue;
      const std::string path(file.path);
      return read_cost_profile(parse_json(file.text, path), path);
    }
    throw Error(ErrorKind::bad_input, "no cost/*.json is among the embedded profiles");
  }();
  return profile;
}

std::string_view cost_name(const Plan& plan) {
  const auto* rows = std::get_if<LinearWgmmaLargeM>(&plan);
  return rows != nullptr && rows->byte_sums == 1 ? "linear_wgmma_large_m_bytes" : kernel_name(plan);
}

bool knows_dataflow(const Plan& plan, const CostProfile& coefficients) {
  return coefficients.dataflows.contains(cost_name(plan));
}

bool is_modelled(const Plan& plan, const CostProfile& coefficients) {
  return !moves_entries(plan) && knows_dataflow(plan, coefficients);
}

CostModel::CostModel(const Problem& problem, const GpuSpec& gpu,
                     std::span<const AccessCounts> profiles, const CostProfile& coefficients)
    : problem_(problem), gpu_(gpu), coefficients_(coefficients), conflicts_(profiles) {}

const CostCoefficients* CostModel::coefficients_of(const Plan& plan) const {
  const auto found = coefficients_.dataflows.find(cost_name(plan));
  return moves_entries(plan) || found == coefficients_.dataflows.end() ? nullptr : &found->second;
}

CostParts CostModel::ideal(const Plan& plan) {
  return ideal_us(block_work(plan, problem_, conflicts_), gpu_);
}

std::optional<Cost> CostModel::operator()(const Plan& plan) {
  const CostCoefficients* coefficients = coefficients_of(plan);
  if (coefficients == nullptr) return std::nullopt;
  return weighed(ideal(plan), *coefficients);
}

double CostModel::least_us(const Plan& plan) {
  const CostCoefficients* coefficients = coefficients_of(plan);
  if (coefficients == nullptr) return std::numeric_limits<double>::infinity();
  Plan bare = plan;
  // Fills nothing, takes no shared memory, has no conflicts.
  *placement_of(bare, Operand::weights) = all_global();
  BlockWork work = block_work(bare, problem_, conflicts_);
  work.lines = work.first_lines = work.gathered_bytes = work.global_lookups = 0;
  work.times = 1;
  // Parts are added up in another order than by operator(), so that they round otherwise.
  constexpr double kRounding = 1 - 1e-9;
  return kRounding * weighed(ideal_us(work, gpu_), *coefficients).us;
}

}  // namespace vqgen
