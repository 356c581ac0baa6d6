// The name of a compiled kernel: everything that decides its bytes, and nothing else.
#pragma once

#include <string>
#include <vector>

#include "core/json/fields.h"
#include "core/plan/kernel_source.h"
#include "runtime/backend/backend.h"

namespace vqgen {

// The key's fields in clear, as the manifest of a stored artifact repeats them. Driver version,
// paths, time and device number are not among them: they change nothing in the artifact.
struct ArtifactKey {
  std::string text_sha256;
  std::string arch;
  std::string compiler;
  std::vector<std::string> options;
  std::vector<std::string> entries;

  static constexpr auto fields() {
    using K = ArtifactKey;
    return std::make_tuple(field("text_sha256", &K::text_sha256, required(),
                                 "of the text the compiler saw, less lines of comments"),
                           field("arch", &K::arch, required(), "compile target"),
                           field("compiler", &K::compiler, required(), "name, version and build"),
                           field("options", &K::options, required(), "as passed, in order"),
                           field("entries", &K::entries, required(), "kernel names, in order"));
  }
  bool operator==(const ArtifactKey&) const = default;

  // SHA-256, hex, over the schema and the fields, each with its length.
  std::string hex() const;
};

ArtifactKey artifact_key(const KernelSource& source, const CompilerIdentity& compiler);

}  // namespace vqgen
