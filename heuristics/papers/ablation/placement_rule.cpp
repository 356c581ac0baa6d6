#include "heuristics/papers/ablation/placement_rule.h"

#include <fmt/format.h>

#include <algorithm>

#include "heuristics/placement/conflicts.h"
#include "heuristics/placement/place.h"

namespace vqgen {
namespace {

struct Book {
  Operand operand;
  int entries;
  int lanes;  // lanes per phase of lookups
};

std::vector<Book> books(const Problem& problem) {
  std::vector<Book> all;
  const auto add = [&](Operand operand, const VqFormat& format) {
    all.push_back({operand, format.entries(), phase_lanes(format.held_bytes())});
  };
  std::visit([&](const auto& op) { for_each_operand(op, add); }, problem);
  return all;
}

Placement whole(const Book& book, Near near) {
  switch (near) {
    case Near::all:
      return all_shared(book.entries);
    case Near::half:
      return all_shared(book.entries / 2);
    case Near::keys:
      return book.operand == Operand::keys ? all_shared(book.entries) : all_global();
    case Near::values:
      return book.operand == Operand::values ? all_shared(book.entries) : all_global();
    case Near::lane_copies:
      return all_replicated(book.entries, book.lanes);
    case Near::half_copies:
      return all_replicated(book.entries, book.lanes / 2);
    case Near::value_copies:
      return book.operand == Operand::values ? whole(book, Near::lane_copies) : all_global();
    default:
      return all_global();
  }
}

// The placement of the book's entries; all in global memory if the dataflow places none.
Placement placement_in(const Plan& plan, const Book& book) {
  const Placement* placement = placement_of(plan, book.operand);
  return placement == nullptr ? all_global() : *placement;
}

// Returns false if the dataflow cannot place the operand's entries as wanted.
bool put(Plan& plan, const Book& book, const Placement& wanted) {
  Placement* const placement = placement_of(plan, book.operand);
  if (placement != nullptr) *placement = wanted;
  return placement_in(plan, book) == wanted;
}

Plan share_first(Plan plan, const std::vector<Book>& codebooks, int entries) {
  for (const Book& book : codebooks) put(plan, book, all_shared(std::min(entries, book.entries)));
  return plan;
}

// The largest boundary that check() accepts, by halving: a block's bytes grow with it.
Plan share_most(const Plan& plan, const std::vector<Book>& codebooks, const Problem& problem,
                const GpuSpec& gpu) {
  int most = 0;
  for (const Book& book : codebooks) most = std::max(most, book.entries);
  int fits = 1;                                    // or nothing does, as check() then says
  for (int step = 1 << 16; step > 0; step /= 2) {  // no codebook is larger
    if (fits + step > most) continue;
    if (check(share_first(plan, codebooks, fits + step), problem, gpu).ok) fits += step;
  }
  return share_first(plan, codebooks, fits);
}

bool all_of(const Plan& plan, const std::vector<Book>& codebooks, Near near) {
  return std::all_of(codebooks.begin(), codebooks.end(), [&](const Book& book) {
    return placement_in(plan, book) == whole(book, near);
  });
}

bool any_copies(const Plan& plan, const std::vector<Book>& codebooks) {
  return std::any_of(codebooks.begin(), codebooks.end(),
                     [&](const Book& book) { return placement_in(plan, book).replicated > 0; });
}

}  // namespace

bool may_follow(const Plan& plan, const PlacementRule& rule, const Problem& problem) {
  const std::vector<Book> codebooks = books(problem);
  const Near near = rule.near;
  const bool copies = near == Near::lane_copies || near == Near::half_copies ||
                      near == Near::value_copies || near == Near::weighed;
  return any_copies(plan, codebooks) == copies &&
         std::all_of(codebooks.begin(), codebooks.end(), [&](const Book& book) {
           return placement_in(plan, book).registers == rule.registers;
         });
}

bool takes_long(const PlacementRule& rule) {
  return rule.near == Near::weighed || rule.near == Near::slack;
}

Plan without_cache(Plan plan, const Problem& problem) {
  for (const Book& book : books(problem)) put(plan, book, all_global());
  return plan;
}

Laid lay(const Plan& shape, const PlacementRule& rule, const Problem& problem, const GpuSpec& gpu,
         std::span<const AccessCounts> profiles) {
  const std::vector<Book> codebooks = books(problem);
  Laid laid{without_cache(shape, problem), {}};
  bool fine = true;
  switch (rule.near) {
    case Near::most:
      laid.plan = share_most(laid.plan, codebooks, problem, gpu);
      fine = std::all_of(codebooks.begin(), codebooks.end(), [&](const Book& book) {
        return placement_of(laid.plan, book.operand) != nullptr;
      });
      break;
    case Near::slack:
      laid.plan = place(laid.plan, problem, gpu, profiles, {.strategy = Strategy::paper}).plan;
      if (all_of(laid.plan, codebooks, Near::none)) {
        laid.verdict = {false, "the slack of shared memory holds too few entries to be worth it"};
      } else if (all_of(laid.plan, codebooks, Near::all)) {
        laid.verdict = {false, "the slack of shared memory holds whole codebooks"};
      }
      break;
    case Near::weighed:
      laid.plan = place(laid.plan, problem, gpu, profiles).plan;
      if (!any_copies(laid.plan, codebooks)) {
        laid.verdict = {false, "the model of bank conflicts sees no gain in copies"};
      }
      break;
    case Near::keys:
    case Near::values:
    case Near::value_copies:
      if (codebooks.size() == 1) laid.verdict = {false, "there is one operand"};
      [[fallthrough]];
    default:
      for (const Book& book : codebooks)
        fine = put(laid.plan, book, whole(book, rule.near)) && fine;
  }
  for (const Book& book : codebooks) {
    Placement placement = placement_in(laid.plan, book);
    placement.registers = rule.registers;
    fine = put(laid.plan, book, placement) && fine;
  }
  if (!fine && laid.verdict.ok) {
    laid.verdict = {false,
                    fmt::format("dataflow {} places the entries itself", dataflow_name(laid.plan))};
  }
  if (laid.verdict.ok) laid.verdict = check(laid.plan, problem, gpu);
  return laid;
}

}  // namespace vqgen
