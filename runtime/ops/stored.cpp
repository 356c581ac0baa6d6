#include "runtime/ops/stored.h"

namespace vqgen {

void Matcher::same_format(const char* what, const VqFormat& bundle, const VqFormat& config) const {
  if (bundle != config && without_layout(bundle) == without_layout(config)) {
    fail(fmt::format(
        "the codes of {} are stored in groups of {} rows and runs of {} words, the "
        "config has {} and {}; make them agree, as by vqgen repack",
        what, bundle.layout.rows, bundle.layout.words, config.layout.rows, config.layout.words));
  }
  Json has = Json::object();
  Json wants = Json::object();
  for_each_field<VqFormat>([&](const auto& field) {
    if (bundle.*field.member == config.*field.member) return;
    has[field.name] = to_json_value(bundle.*field.member);
    wants[field.name] = to_json_value(config.*field.member);
  });
  same(fmt::format("the format of {}", what), has.dump(), wants.dump());
}

std::vector<std::uint16_t> raw_rows(const AttentionData& data,
                                    const std::vector<std::uint16_t>& originals,
                                    std::int64_t columns) {
  const std::int64_t slots = data.raw_slots().count();
  const std::int64_t heads = data.keys.batch * data.keys.heads;
  std::vector<std::uint16_t> raw(static_cast<std::size_t>(heads * slots * columns));
  for (std::int64_t head = 0; head < heads; ++head) {
    const std::int64_t tokens = data.lengths[static_cast<std::size_t>(head / data.keys.heads)];
    const auto copy = [&](std::int64_t token, std::int64_t slot) {
      std::copy_n(originals.begin() + (head * data.keys.rows + token) * columns, columns,
                  raw.begin() + (head * slots + slot) * columns);
    };
    const std::int64_t sinks = std::min<std::int64_t>(data.max_sinks, tokens);
    for (std::int64_t t = 0; t < sinks; ++t) copy(t, t);
    for (std::int64_t t = std::max<std::int64_t>(0, tokens - data.max_recent_tokens); t < tokens;
         ++t) {
      copy(t, data.raw_slots().recent(t));
    }
  }
  return raw;
}

}  // namespace vqgen
