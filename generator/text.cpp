#include "generator/text.h"

#include <fmt/format.h>

#include <array>

namespace vqgen {

ConfigPrinter::ConfigPrinter(std::string_view type)
    : text_(fmt::format(
          "struct Plan {{\n  VQ_HD static constexpr {0} config() {{\n    {0} c{{}};\n", type)) {}

void ConfigPrinter::line(std::string_view name, std::string_view value) {
  text_ += fmt::format("    c.{} = {};\n", name, value);
}

ConfigPrinter& ConfigPrinter::add(std::string_view name, std::int64_t value) {
  line(name, std::to_string(value));
  return *this;
}

ConfigPrinter& ConfigPrinter::add(std::string_view name, bool value) {
  line(name, value ? "true" : "false");
  return *this;
}

ConfigPrinter& ConfigPrinter::add(std::string_view name, vq::Element value) {
  line(name, value == vq::Element::kF16 ? "vq::Element::kF16" : "vq::Element::kBF16");
  return *this;
}

ConfigPrinter& ConfigPrinter::add(std::string_view name, vq::AttentionDataflow value) {
  constexpr std::array kNames{"kLanes", "kFragments", "kTables", "kChannels"};
  line(name, fmt::format("vq::AttentionDataflow::{}", kNames[static_cast<std::size_t>(value)]));
  return *this;
}

ConfigPrinter& ConfigPrinter::add(std::string_view name, vq::LinearDataflow value) {
  constexpr std::array kNames{"kLanes", "kFragments", "kTables", "kWarpgroups", "kSlices"};
  line(name, fmt::format("vq::LinearDataflow::{}", kNames[static_cast<std::size_t>(value)]));
  return *this;
}

ConfigPrinter& ConfigPrinter::add(std::string_view name, vq::LinearFusion value) {
  constexpr std::array kNames{"kPermute", "kRegisters", "kShared"};
  line(name, fmt::format("vq::LinearFusion::{}", kNames[static_cast<std::size_t>(value)]));
  return *this;
}

ConfigPrinter& ConfigPrinter::add(std::string_view name, vq::Combine value) {
  line(name, value == vq::Combine::kKernel ? "vq::Combine::kKernel" : "vq::Combine::kLastBlock");
  return *this;
}

ConfigPrinter& ConfigPrinter::add(std::string_view name, const vq::FormatConfig& value) {
  const auto member = [&](const char* field) { return fmt::format("{}.{}", name, field); };
  line(member("decoder"),
       value.decoder == vq::Decoder::kE8p ? "vq::Decoder::kE8p" : "vq::Decoder::kTable");
  add(member("vector_size"), std::int64_t{value.vector_size});
  add(member("index_bits"), std::int64_t{value.index_bits});
  add(member("residuals"), std::int64_t{value.residuals});
  line(member("layout"), fmt::format("{{{}, {}}}", value.layout.rows, value.layout.words));
  add(member("int8_entries"), value.int8_entries);
  add(member("stage_scales"), value.stage_scales);
  add(member("smooth"), value.smooth);
  add(member("hadamard"), value.hadamard);
  add(member("per_head"), value.per_head);
  add(member("unit_elements"), std::int64_t{value.unit_elements});
  const vq::PlacementConfig& placement = value.placement;
  line(member("placement"), fmt::format("{{{}, {}, {}, {}}}", placement.registers,
                                        placement.replicated, placement.copies, placement.shared));
  return *this;
}

std::string ConfigPrinter::finish() && {
  text_ += "    return c;\n  }\n};\n";
  return std::move(text_);
}

std::string kernel_entry(const KernelEntry& entry, std::string_view args, std::string_view function,
                         bool ahead) {
  return fmt::format(
      "\n// Launch: grid ({}, {}, {}), {} threads, {} bytes of dynamic shared memory.\n"
      "VQ_KERNEL{}({}, {}, vq::{}) {{ vq::{}<Plan>(args); }}\n",
      entry.grid.x, entry.grid.y, entry.grid.z, entry.threads, entry.shared_bytes,
      ahead ? "_AHEAD" : "", entry.name, entry.threads, args, function);
}

}  // namespace vqgen
