// Versions of the formats of vqgen's files: a file of a newer format is refused, and one without a
// version is of the first.
#pragma once

#include <cstdint>
#include <string>

#include "core/json/json.h"

namespace vqgen {

// What to say of a file of format `version`, which is above `known`.
std::string newer_format(std::int64_t version, std::int64_t known);

// The version in member `key` of `file`, 1 if it is missing. Throws Error(bad_input) for one above
// `known` and for what is no whole number from 1.
std::int64_t format_version(const JsonCursor& file, const std::string& key, std::int64_t known);

}  // namespace vqgen
