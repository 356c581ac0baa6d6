// One call of an op on a device: its data uploaded once, for launches under any plan.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "core/plan/plan.h"
#include "runtime/ops/op.h"
#include "runtime/workspace.h"

namespace vqgen {

// Owns the device memory. `data` fits the problem and outlives this. Not thread-safe.
class DeviceCall {
 public:
  // Holds each of the layer's tensors in as many places as `rotation` says. `guard` is
  // DeviceData's, for the first places and the workspace. args() restores states to what they were.
  template <class Op>
  DeviceCall(Backend& backend, const Op& op, const typename OpTraits<Op>::Data& data,
             Misalignment misalignment = {}, Rotation rotation = {}, std::size_t guard = 0)
      : DeviceCall(backend, problem_of(op), misalignment, rotation.places(), guard) {
    auto args_of = OpTraits<Op>::upload(op, data, {device_, pools_, misalignment, rotation});
    args_of_ = [args_of, op](int call, int codebooks, const WorkspaceParts& parts) {
      auto args = args_of(call, codebooks);
      point_into_workspace(args, op, parts);
      const auto view = std::as_bytes(std::span(&args, 1));
      return std::vector<std::byte>(view.begin(), view.end());
    };
  }

  // The argument structs for kernels of this plan, one per call of the rotation until places
  // repeat; they live until the next call of args(). Outputs and the workspace are poisoned, except
  // for the workspace's counters, which are zeros.
  const std::vector<std::vector<std::byte>>& args(
      const Plan& plan, CodebookCaching codebooks = CodebookCaching::rotated);

  // Throws Error(verification_failed) if the kernel wrote to its inputs or left nonzero counters in
  // the workspace.
  void require_kept() const;

  // Says what a launch with the first of args() wrote beside its outputs and its plan's workspace,
  // or left in the counters; nullopt if nothing. Repairs the damage.
  std::optional<std::string> take_damage();

  // What the last launch left.
  template <class Op>
  typename OpTraits<Op>::Output output(const Op&, const typename OpTraits<Op>::Data& data) const {
    return OpTraits<Op>::output(device_, pools_, data);
  }
  std::vector<std::uint16_t> linear_output() const { return device_.fetch<std::uint16_t>(0); }

 private:
  DeviceCall(Backend& backend, Problem op, const Misalignment& misalignment, int places,
             std::size_t guard)
      : backend_(backend),
        op_(std::move(op)),
        device_(backend, guard),
        guard_(guard),
        slack_(misalignment.entries),
        places_(places) {}
  template <class Op>
  static Problem problem_of(const Op& op) {
    if constexpr (requires { OpTraits<Op>::problem(op); }) {
      return OpTraits<Op>::problem(op);
    } else {
      return op;
    }
  }
  bool counters_are_zero() const;

  Backend& backend_;
  Problem op_;
  Pools pools_;
  DeviceData device_;
  std::size_t guard_;
  std::size_t slack_;  // before the workspace
  GuardedBuffer workspace_;
  std::size_t counter_bytes_ = 0;  // of the workspace, at its front; 0 if the plan takes none
  // The argument struct of call number `call` with codebooks number `codebooks`.
  std::function<std::vector<std::byte>(int call, int codebooks, const WorkspaceParts&)> args_of_;
  int places_;
  std::vector<std::vector<std::byte>> bytes_;
};

}  // namespace vqgen
