// The name of a compiled kernel, and one artifact as one file:
//
//   "VQGENART" | schema u32 | manifest bytes u64 | manifest, JSON | binary bytes u64 | binary |
//   SHA-256 of all before it, 64 hex digits                          (integers little-endian)
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/json/fields.h"
#include "core/plan/kernel_source.h"
#include "runtime/backend/backend.h"

namespace vqgen {

// Part of the key: after a change of this format, or of the key's meaning, no old file is found.
inline constexpr std::uint32_t kArtifactSchema = 1;

// Everything that decides the bytes of a compiled kernel, and nothing else. Driver version, paths,
// time and device number change nothing in the artifact, so they are left out.
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

std::vector<std::byte> encode_artifact(const ArtifactKey& key, const Artifact& artifact);

struct StoredArtifact {
  ArtifactKey key;
  Artifact artifact;
};

// Returns nullopt unless the bytes are whole and undamaged. The bytes themselves name their key.
std::optional<StoredArtifact> dequantize_artifact(std::span<const std::byte> bytes);

// Returns nullopt unless the bytes are whole, undamaged, and name `key` as theirs.
std::optional<Artifact> dequantize_artifact(std::span<const std::byte> bytes,
                                            const ArtifactKey& key);

// True if the bytes are whole and undamaged, and name a key with that digest.
bool is_artifact_of(std::span<const std::byte> bytes, std::string_view digest);

// The format version in the first bytes of a file that a newer vqgen wrote; 0 for any other.
std::uint32_t newer_artifact_schema(std::span<const std::byte> front);

// The key in the first bytes of a file, not verified: for lists. A manifest is far shorter than
// kPeekBytes.
inline constexpr std::uint64_t kPeekBytes = 1 << 14;
std::optional<ArtifactKey> peek_key(std::span<const std::byte> front);

}  // namespace vqgen
