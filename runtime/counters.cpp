#include "runtime/counters.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <vector>

#include "core/files/files.h"
#include "runtime/backend/host/process.h"

namespace vqgen {
namespace {

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    if (line.ends_with('\r')) line.remove_suffix(1);
    lines.push_back(line);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

// The fields of a line of CSV, where "" within quotes is a quote.
std::vector<std::string> csv_fields(std::string_view line) {
  std::vector<std::string> fields(1);
  bool quoted = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '"') {
      if (quoted && i + 1 < line.size() && line[i + 1] == '"') {
        fields.back() += line[++i];
      } else {
        quoted = !quoted;
      }
    } else if (line[i] == ',' && !quoted) {
      fields.emplace_back();
    } else {
      fields.back() += line[i];
    }
  }
  return fields;
}

// Reads "1,234.5"; nullopt for text that is not a finite number of at least 0.
std::optional<double> number(std::string text) {
  std::erase(text, ',');
  double value = 0;
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  if (result.ec != std::errc{} || result.ptr != end || !std::isfinite(value) || value < 0) {
    return std::nullopt;
  }
  return value;
}

// ncu's own words for what went wrong.
std::string error_of(const std::vector<std::string_view>& lines, const std::string& otherwise) {
  for (const std::string_view line : lines) {
    constexpr std::string_view kMark = "==ERROR== ";
    if (line.starts_with(kMark)) return fmt::format("ncu: {}", line.substr(kMark.size()));
  }
  return otherwise;
}

Counters none(std::string why) { return {{}, std::move(why)}; }

}  // namespace

Counters parse_ncu(std::string_view text) {
  const std::vector<std::string_view> lines = lines_of(text);
  std::size_t id = 0, metric = 0, value = 0, columns = 0;
  std::string first;  // the id of the first kernel
  Counters counters;
  for (const std::string_view line : lines) {
    if (!line.starts_with('"')) continue;  // "==PROF== Connected to process ..."
    const std::vector<std::string> fields = csv_fields(line);
    if (columns == 0) {
      const auto column = [&](const char* name) {
        return static_cast<std::size_t>(std::find(fields.begin(), fields.end(), name) -
                                        fields.begin());
      };
      id = column("ID");
      metric = column("Metric Name");
      value = column("Metric Value");
      columns = fields.size();
      if (std::max({id, metric, value}) == columns) {
        return none("ncu's table has no columns ID, Metric Name and Metric Value");
      }
      continue;
    }
    if (fields.size() != columns) return none("ncu's table breaks off");
    if (first.empty()) first = fields[id];
    for (const CounterMetric& each : kCounterMetrics) {
      if (fields[metric] != each.metric) continue;
      const std::optional<double> count = number(fields[value]);
      if (!count) return none(fmt::format("ncu gives {} as '{}'", each.metric, fields[value]));
      if (each.sums || fields[id] == first) counters.values[each.name] += *count;
    }
  }
  if (columns == 0) return none(error_of(lines, "ncu wrote no table"));
  for (const CounterMetric& each : kCounterMetrics) {
    if (!counters.values.contains(each.name)) {
      return none(fmt::format("ncu's table has no {}", each.metric));
    }
  }
  return counters;
}

Counters count(const Problem& problem, const Plan& plan, const CounterOptions& options) {
  const host::ScratchFolder folder{{}};
  Json config = to_json(problem);
  config["plan"] = to_json(plan);
  publish_text(folder.path() / "config.json", config.dump());
  std::string metrics;
  for (const CounterMetric& each : kCounterMetrics) {
    metrics += fmt::format("{}{}", metrics.empty() ? "" : ",", each.metric);
  }
  std::vector<std::string> command{
      options.ncu,   "--csv",     "--print-units", "base",   "--clock-control",           "none",
      "--log-file",  "ncu.csv",   "--metrics",     metrics,  options.tool.string(),       "run",
      "config.json", "--backend", "cuda",          "--seed", std::to_string(options.seed)};
  if (!options.gpu.empty()) {
    command.push_back("--gpu");
    command.push_back(std::filesystem::exists(options.gpu)
                          ? std::filesystem::absolute(options.gpu).string()
                          : options.gpu);
  }
  const std::optional<int> status = host::run_process(command, folder.path(), "log");
  if (!status) return none(options.ncu + " is not in PATH; install NVIDIA Nsight Compute");
  const std::filesystem::path table = folder.path() / "ncu.csv";
  const std::string text = std::filesystem::exists(table) ? read_text(table) : "";
  if (*status == 0) return parse_ncu(text);
  std::vector<std::string_view> said = lines_of(text);
  const std::string log = read_text(folder.path() / "log");
  for (const std::string_view line : lines_of(log)) said.push_back(line);
  return none(error_of(said, fmt::format("{} ended with status {}{}", options.ncu, *status,
                                         said.empty() ? "" : fmt::format(": {}", said.back()))));
}

}  // namespace vqgen
