// The facts that ship with vqgen: GPUs, formats and sweeps by name.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "core/files/embedded.h"
#include "core/format/vq_format.h"
#include "core/gpu/gpu_spec.h"
#include "core/json/json.h"

namespace vqgen {

// Names of the shipped profiles, sorted.
std::vector<std::string> gpu_names();
std::vector<std::string> format_names();
std::vector<std::string> sweep_names();

// Names are taken in whatever case. Error(bad_input) for an unknown one names the nearest, and some
// that are known.

// True if `name` is a file and no shipped profile: anything with a '/' or ending in .json.
bool names_a_file(const std::string& name);

// Finds a GPU by a profile's name ("h200"), the driver's ("NVIDIA H200") or a file
// ("./my-gpu.json"). Throws Error(bad_input) that names a file's field that its arch does not have
// (core/gpu/gpu_arch.h).
GpuSpec find_gpu(const std::string& name);

// The shipped profile that profiles/defaults.json names, if nobody names a GPU and there is none.
GpuSpec default_gpu();

// The shipped profile of a device class: the one whose GpuSpec::name it is.
std::optional<GpuSpec> gpu_of_class(const std::string& device_class);

// The use that a format is meant for: keys and values alike, one of them, or weights.
enum class FormatUse { cache, keys, values, weights };
template <>
inline constexpr auto enum_names<FormatUse> = std::array{"cache", "keys", "values", "weights"};

// A format as a file has it: a shipped preset, or a user's own.
struct FormatProfile {
  VqFormat format;
  std::string source;                 // where it comes from, such as a paper; may be empty
  std::optional<FormatUse> use = {};  // all that ship say it
  bool recommended = false;           // what to try first
  // True if the format is meant for `wanted`; one that does not say is for all.
  bool serves(FormatUse wanted) const {
    return !use || *use == wanted || (*use == FormatUse::cache && wanted != FormatUse::weights);
  }
};

// Presets meant for `wanted`, or all: recommended ones first, then caches' before weights', each
// sorted.
std::vector<std::string> formats_for(std::optional<FormatUse> wanted);

// Finds a shipped preset ("cq-2c8b") or reads a file, relative to the working folder: a format's
// fields, or those that differ from its "preset", and its "source", "use" and "recommended".
// `where` is the place that asked; an unknown name lists the presets for `wanted`.
FormatProfile find_format_profile(const std::string& name, const std::string& where,
                                  std::optional<FormatUse> wanted = {});
VqFormat find_format(const std::string& name, const std::string& where,
                     std::optional<FormatUse> wanted = {});
// find_format_profile(), or an object of format fields as JSON text.
VqFormat parse_format(const std::string& text, const std::string& where,
                      std::optional<FormatUse> wanted = {});

// A preset's name, a file's path, or an object of VqFormat's fields; with the member "preset", a
// name or path, of those fields that differ from it. Paths count from the folder of the cursor's
// source.
VqFormat read_format(const JsonCursor& cursor, std::optional<FormatUse> wanted = {});

// read_format() for values, which are quantized untransformed: key transforms of presets and files
// are dropped, and an object with transforms of its own is an Error(bad_input).
VqFormat read_value_format(const JsonCursor& cursor);

// The text of a shipped sweep; runtime/tuning/sweep/sweep.h reads it.
const EmbeddedFile& find_sweep(const std::string& name);

}  // namespace vqgen
