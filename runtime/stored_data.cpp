#include "runtime/stored_data.h"

#include "runtime/ops/stored.h"

namespace vqgen {

void require_same_sizes(const Config& config, const BundleItem& item, const std::string& where) {
  std::visit(
      [&]<class Op>(const Op& op) {
        if constexpr (requires { OpTraits<Op>::match(op, item, where); }) {
          OpTraits<Op>::match(op, item, where);
        } else {
          Matcher(where).fail(fmt::format("the config's op is {}, which reads no bundle", Op::kOp));
        }
      },
      config.problem);
}

void require_fit(const Config& config, const NamedBundle& bundle) {
  if (bundle.bundle.items.empty()) {
    throw Error(ErrorKind::bad_input, bundle.path + ": holds no items; quantize again");
  }
  for (const BundleItem& item : bundle.bundle.items) {
    std::visit([&](const auto& op) { stored_data(op, item, bundle.where(item), {}); },
               config.problem);
  }
}

}  // namespace vqgen
