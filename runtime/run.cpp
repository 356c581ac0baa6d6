#include "runtime/run.h"

#include "runtime/execute.h"
#include "runtime/stored_data.h"

namespace vqgen {
namespace {

template <class Op>
ItemReport run_item(const std::string& name, const Prepared& prepared, Backend& backend,
                    LoadedKernel& kernel, const Op& op, const typename OpTraits<Op>::Data& data) {
  using Traits = OpTraits<Op>;
  const auto output = execute(backend, kernel, prepared.source, op, prepared.plan, data);
  ItemReport report = Traits::judge(op, data, Traits::reference(op, data), output);
  if constexpr (requires { Traits::add_losses(report, op, data, output); }) {
    Traits::add_losses(report, op, data, output);
  }
  report.name = name;
  return report;
}

}  // namespace

std::vector<ItemReport> run_verified(const Config& config, const Prepared& prepared,
                                     Backend& backend, const NamedBundle* bundle,
                                     const HardInput& input) {
  return std::visit(
      [&](const auto& op) {
        std::vector<ItemReport> reports;
        const auto kernel = backend.load(prepared.artifact, prepared.source);
        const auto run = [&](const std::string& name, const auto& data) {
          reports.push_back(run_item(name, prepared, backend, *kernel, op, data));
        };
        if (bundle == nullptr) {
          run("generated", hard_data(op, input));
          return reports;
        }
        for (const BundleItem& item : bundle->bundle.items) {
          run(item.name, stored_data(op, item, bundle->where(item), input));
        }
        return reports;
      },
      config.problem);
}

}  // namespace vqgen
