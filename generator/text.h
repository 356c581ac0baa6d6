// Pieces of kernel text that all ops print alike.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <vq/layout/attention_decode.h>
#include <vq/layout/linear.h>

#include "core/kernel_source.h"
#include "core/problem.h"

namespace vqgen {

// The body of `static constexpr C config()`: an assignment a line, in the order they are added.
class ConfigPrinter {
 public:
  explicit ConfigPrinter(std::string_view type);
  ConfigPrinter& add(std::string_view name, std::int64_t value);
  ConfigPrinter& add(std::string_view name, bool value);
  ConfigPrinter& add(std::string_view name, vq::Element value);
  ConfigPrinter& add(std::string_view name, vq::AttentionDataflow value);
  ConfigPrinter& add(std::string_view name, vq::LinearDataflow value);
  ConfigPrinter& add(std::string_view name, vq::LinearFusion value);
  ConfigPrinter& add(std::string_view name, vq::Combine value);
  ConfigPrinter& add(std::string_view name, const vq::FormatConfig& value);
  // `struct Plan { ... };`
  std::string finish() &&;

 private:
  void line(std::string_view name, std::string_view value);
  std::string text_;
};

// `VQ_KERNEL(name, threads, vq::Args) { vq::function<Plan>(args); }`; `ahead`: VQ_KERNEL_AHEAD, of
// a function that waits for the last launch itself.
std::string kernel_entry(const KernelEntry& entry, std::string_view args, std::string_view function,
                         bool ahead = false);

}  // namespace vqgen
