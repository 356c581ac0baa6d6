// The facts that ship with vqgen: GPUs and formats by name.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/gpu_spec.h"
#include "core/json.h"
#include "core/vq_format.h"

namespace vqgen {

// Names of the shipped profiles, sorted.
std::vector<std::string> gpu_names();
std::vector<std::string> format_names();

// `name` is a shipped profile ("h200") or a file ("./my-gpu.json": anything with a '/' or ending in
// .json). Error(bad_input) names what is known.
GpuSpec find_gpu(const std::string& name);

// The shipped profile of a device class: the one whose GpuSpec::name it is.
std::optional<GpuSpec> gpu_of_class(const std::string& device_class);

// A shipped preset. Error(bad_input) names what is known; `where` is the place that asked.
VqFormat find_format(const std::string& name, const std::string& where);

// A preset's name or an object of VqFormat's fields.
VqFormat read_format(const JsonCursor& cursor);

}  // namespace vqgen
