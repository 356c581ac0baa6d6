// What a call left: results, and whether it kept to its arrays.
#include <algorithm>

#include "runtime/device_call.h"

namespace vqgen {

bool DeviceCall::counters_are_zero() const {
  std::vector<std::byte> counters(counter_bytes_);
  backend_.download(counters, workspace_.data());
  return std::all_of(counters.begin(), counters.end(),
                     [](std::byte each) { return each == std::byte{0}; });
}

void DeviceCall::require_kept() const {
  device_.require_inputs_unchanged();
  if (counters_are_zero()) return;
  throw Error(ErrorKind::verification_failed,
              "the kernel left counters of its workspace that are not 0");
}

std::optional<std::string> DeviceCall::take_damage() {
  std::optional<std::string> damage = device_.take_damage();
  if (!workspace_.whole()) {
    workspace_.raise_guards();
    if (!damage) damage = "the workspace, outside of it";
  }
  if (!counters_are_zero()) {
    backend_.upload(workspace_.data(), std::vector<std::byte>(counter_bytes_));
    if (!damage) damage = "the counters of the workspace, which are not 0";
  }
  return damage;
}

AttentionOutput DeviceCall::attention_output() const {
  return {device_.fetch<std::uint16_t>(0), device_.fetch<float>(1)};
}

DequantizeOutput DeviceCall::dequantize_output() const {
  return {device_.fetch<std::uint16_t>(0), device_.fetch<std::uint16_t>(1)};
}

std::vector<std::uint16_t> DeviceCall::linear_output() const {
  return device_.fetch<std::uint16_t>(0);
}

}  // namespace vqgen
