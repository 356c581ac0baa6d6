#include "runtime/cache/artifact_key.h"

#include "core/digest.h"
#include "runtime/cache/artifact_file.h"

namespace vqgen {

std::string ArtifactKey::hex() const {
  Digest digest;
  digest.add("vqgen artifact").add(std::to_string(kArtifactSchema));
  digest.add(text_sha256).add(arch).add(compiler);
  // A count before each list keeps their elements apart.
  for (const auto* list : {&options, &entries}) {
    digest.add(std::to_string(list->size()));
    for (const std::string& element : *list) digest.add(element);
  }
  return digest.hex();
}

ArtifactKey artifact_key(const KernelSource& source, const CompilerIdentity& compiler) {
  ArtifactKey key{sha256_hex(std::as_bytes(std::span(source.text))),
                  source.arch,
                  compiler.name,
                  compiler.options,
                  {}};
  for (const KernelEntry& entry : source.entries) key.entries.push_back(entry.name);
  return key;
}

}  // namespace vqgen
