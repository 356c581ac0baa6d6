// The facts that ship with vqgen: GPUs, formats and sweeps by name.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/embedded.h"
#include "core/gpu_spec.h"
#include "core/json.h"
#include "core/vq_format.h"

namespace vqgen {

// Names of the shipped profiles, sorted.
std::vector<std::string> gpu_names();
std::vector<std::string> format_names();
std::vector<std::string> sweep_names();

// `name` is a shipped profile ("h200") or a file ("./my-gpu.json": anything with a '/' or ending in
// .json). Error(bad_input) names what is known, or the field of the file that its arch does not
// have (core/gpu_arch.h).
GpuSpec find_gpu(const std::string& name);

// The shipped profile of a device class: the one whose GpuSpec::name it is.
std::optional<GpuSpec> gpu_of_class(const std::string& device_class);

// A shipped preset. Error(bad_input) names what is known; `where` is the place that asked.
VqFormat find_format(const std::string& name, const std::string& where);

// A preset's name or an object of VqFormat's fields.
VqFormat read_format(const JsonCursor& cursor);

// The same for values, which are quantized as they are: a preset's key transforms are dropped, and
// an object that asks for them is an Error(bad_input).
VqFormat read_value_format(const JsonCursor& cursor);

// The text of a shipped sweep; runtime/tuning/sweep.h reads it. Error(bad_input) names what is
// known.
const EmbeddedFile& find_sweep(const std::string& name);

}  // namespace vqgen
