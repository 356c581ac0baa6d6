#include "runtime/tuning/search/duration.h"

#include <fmt/format.h>

#include <charconv>

#include "core/error.h"

namespace vqgen {

double read_seconds(const std::string& text, const std::string& what) {
  constexpr double kMost = 366.0 * 24 * 3600;
  const auto refuse = [&](const char* why) {
    throw Error(ErrorKind::bad_input,
                fmt::format("{}: '{}' {}; write seconds, or 60s, 1.5m, 2h", what, text, why));
  };
  double value = 0;
  const char* const last = text.data() + text.size();
  const auto [end, fault] = std::from_chars(text.data(), last, value, std::chars_format::fixed);
  if (fault != std::errc()) refuse("is no duration");
  const std::string unit(end, last);
  double factor = 1;
  if (unit == "m") {
    factor = 60;
  } else if (unit == "h") {
    factor = 3600;
  } else if (!unit.empty() && unit != "s") {
    refuse("is no duration");
  }
  const double seconds = value * factor;
  if (!(seconds > 0)) refuse("must be above 0");
  if (seconds > kMost) refuse("is more than a year");
  return seconds;
}

}  // namespace vqgen
