// Why a kernel is not in the cache: the stored one that is most like it, and what differs.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/cache/artifact_key.h"
#include "runtime/cache/layer.h"

namespace vqgen {

struct Nearest {
  std::string layer;
  std::string digest;
  ArtifactKey key;  // as the entry says, which is not verified
};

// "arch", "options", ...: the fields of the key in which the two differ, in the key's order.
std::vector<std::string> differing_fields(const ArtifactKey& stored, const ArtifactKey& wanted);

// Of the entries with the same text or the same kernel names the one with the most equal fields; of
// equals the first layer's, and there the first by digest. Reads the front of at most kMaxPeeks
// entries a layer.
inline constexpr std::size_t kMaxPeeks = 4096;
std::optional<Nearest> nearest_entry(std::span<const std::unique_ptr<ArtifactLayer>> layers,
                                     const ArtifactKey& wanted);

// "no entry", or of the nearest "compiler differs: 'nvrtc 12.4 ...' is stored, 'nvrtc 13.0 ...' is
// wanted", one field in full and the names of the others; the text's digest is the last to be told.
std::string miss_reason(const std::optional<Nearest>& nearest, const ArtifactKey& wanted);

}  // namespace vqgen
