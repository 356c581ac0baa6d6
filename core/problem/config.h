// config.json: what a user writes. The problem, and optionally the GPU and parts of the plan.
#pragma once

#include <array>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "core/gpu/gpu_spec.h"
#include "core/json/json.h"
#include "core/plan/plan_name.h"
#include "core/problem/problem.h"

namespace vqgen {

// A field of a config, and what it is: for messages and the schema.
struct ConfigField {
  std::string_view name;
  const char* doc;
};
inline constexpr std::array kConfigFields{
    ConfigField{"op", "what the kernels compute"},
    ConfigField{"dtype", "element type of everything that is not quantized"},
    ConfigField{"shape", "the sizes of the problem"},
    ConfigField{"keys", "the format of the keys: a preset, a file or an object"},
    ConfigField{"values", "the format of the values: a preset, a file or an object"},
    ConfigField{"weights", "the format of the weights: a preset, a file or an object"},
    ConfigField{"gpu", "the GPU to plan for: a name of `vqgen list gpus`, or a JSON file"},
    ConfigField{"access_counts",
                "a file of `vqgen count-accesses`, from the config's folder, by which entries are "
                "placed"},
    ConfigField{"plan", "fields of the plan that you fix; vqgen chooses the others"},
    ConfigField{"version", "the version of this format; 1 if it is left out"}};
inline constexpr int kConfigVersion = 1;
const char* config_field_doc(std::string_view name);

struct Config {
  Problem problem;
  std::optional<std::string> gpu;  // profile name or file, as written
  Json plan = Json::object();      // fields of the op's plan that the user fixes
  // A profile file of vqgen count-accesses, as a path from here: a relative one is written from the
  // config's own folder.
  std::optional<std::string> access_counts;
  std::string access_counts_place =
      "access_counts";  // what names it, for messages: "c.json: /access_counts"
  std::string source;   // file name, for messages

  // `plan` and its position.
  JsonCursor plan_cursor() const;
};

// Reads and validates. Error(bad_input) names file, JSON path and remedy.
Config read_config(const std::filesystem::path& path);
Config read_config(const Json& json, const std::string& source);

// The plan with the fields that the config fixes laid over it. Error(bad_input) on a field that the
// plan's dataflow lacks or a value out of range.
Plan with_overrides(Plan plan, const Config& config);

// True if the plan has all fields that the config fixes, with the same values. Throws
// Error(bad_input) for a field that no dataflow of the op has.
bool has_fixed_fields(const Plan& plan, const Config& config);

// The config that gives this problem back, canonical: sorted keys, defaults spelt out.
Json to_json(const Problem& problem);

// The GPU that the config names, which it must. Error(bad_input) as find_gpu(), from its place.
GpuSpec named_gpu(const Config& config);

}  // namespace vqgen
