#include "runtime/backend/cuda/ptxas_log.h"

#include <charconv>

namespace vqgen {
namespace {

constexpr std::string_view kEntryMark = "Compiling entry function '";

// From the line that opens entry `name` to the one that opens the next; empty where it is not told.
std::string_view section_of(std::string_view log, const std::string& name) {
  const std::size_t begin = log.find(std::string(kEntryMark) + name + "'");
  if (begin == log.npos) return {};
  const std::size_t end = log.find(kEntryMark, begin + kEntryMark.size());
  return log.substr(begin, end == log.npos ? end : end - begin);
}

// Sums up the integers that stand right before `unit`; nullopt where there is none.
std::optional<int> sum_before(std::string_view text, std::string_view unit) {
  std::optional<int> sum;
  for (std::size_t at = text.find(unit); at != text.npos; at = text.find(unit, at + unit.size())) {
    std::size_t begin = at;
    while (begin > 0 && text[begin - 1] >= '0' && text[begin - 1] <= '9') --begin;
    int value = 0;
    const auto parsed = std::from_chars(text.data() + begin, text.data() + at, value);
    if (parsed.ec == std::errc{}) sum = sum.value_or(0) + value;
  }
  return sum;
}

}  // namespace

std::optional<KernelResources> read_ptxas_log(std::string_view log, const std::string& name) {
  const std::string_view section = section_of(log, name);
  const std::optional<int> registers = sum_before(section, " registers");
  if (!registers) return std::nullopt;
  KernelResources resources;
  resources.name = name;
  resources.registers = *registers;
  resources.static_shared_bytes = sum_before(section, " bytes smem").value_or(0);
  resources.spill_bytes = sum_before(section, " bytes spill stores").value_or(0) +
                          sum_before(section, " bytes spill loads").value_or(0);
  return resources;
}

}  // namespace vqgen
