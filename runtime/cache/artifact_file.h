// One artifact as one file:
//
//   "VQGENART" | schema u32 | manifest bytes u64 | manifest, JSON | binary bytes u64 | binary |
//   SHA-256 of all before it, 64 hex digits                          (integers little-endian)
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/backend/backend.h"
#include "runtime/cache/artifact_key.h"

namespace vqgen {

// Part of the key: a change of this format, or of what the key means, never meets old files.
inline constexpr std::uint32_t kArtifactSchema = 1;

std::vector<std::byte> encode_artifact(const ArtifactKey& key, const Artifact& artifact);

struct StoredArtifact {
  ArtifactKey key;
  Artifact artifact;
};

// nullopt unless the bytes are whole and undamaged. They say themselves of what key they are.
std::optional<StoredArtifact> decode_artifact(std::span<const std::byte> bytes);

// nullopt unless the bytes are whole, undamaged, and say themselves that they are of `key`.
std::optional<Artifact> decode_artifact(std::span<const std::byte> bytes, const ArtifactKey& key);

// Whether the bytes are whole, undamaged, and of the key with that digest.
bool is_artifact_of(std::span<const std::byte> bytes, std::string_view digest);

// The key in the first bytes of a file, which is not verified: for lists. A manifest is far shorter
// than kPeekBytes.
inline constexpr std::uint64_t kPeekBytes = 1 << 14;
std::optional<ArtifactKey> peek_key(std::span<const std::byte> front);

}  // namespace vqgen
