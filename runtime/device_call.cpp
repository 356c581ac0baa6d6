#include "runtime/device_call.h"

#include <algorithm>

namespace vqgen {

const std::vector<std::vector<std::byte>>& DeviceCall::args(const Plan& plan,
                                                            CodebookCaching codebooks) {
  const vq::CallShape shape = call_shape(plan, op_);
  const auto bytes = static_cast<std::size_t>(shape.workspace_bytes);
  if (bytes > workspace_.bytes()) workspace_ = GuardedBuffer(backend_, bytes, guard_, slack_);
  if (workspace_.bytes() > 0) workspace_.raise_guards(bytes);
  device_.poison_outputs();
  std::vector<std::byte> unset(bytes, std::byte{0xff});
  counter_bytes_ = bytes - bytes_behind_counters(shape);
  std::fill_n(unset.begin(), counter_bytes_, std::byte{0});
  backend_.upload(workspace_.data(), unset);
  const auto basis = static_cast<std::size_t>(shape.basis_bytes);
  const auto handed = static_cast<std::size_t>(shape.handed_bytes);
  bytes_.clear();
  std::byte* const counters = bytes > 0 ? workspace_.data() : nullptr;
  const WorkspaceParts parts{counters, counters + counter_bytes_, bytes - counter_bytes_, basis,
                             handed};
  for (int call = 0; call < places_; ++call) {
    bytes_.push_back(args_of_(call, codebooks == CodebookCaching::warm ? 0 : call, parts));
  }
  return bytes_;
}

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

}  // namespace vqgen
