#include "runtime/cache/artifact_key.h"

#include "core/digest.h"
#include "core/json.h"
#include "runtime/cache/artifact_file.h"

namespace vqgen {

namespace {

// With a replacement for what is no UTF-8, as a manifest has it: it must read back as it was.
std::string legible(const std::string& text) {
  return parse_json(Json(text).dump(-1, ' ', false, Json::error_handler_t::replace), "key")
      .get<std::string>();
}

}  // namespace

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
                  legible(compiler.name),
                  {},
                  {}};
  for (const std::string& option : compiler.options) key.options.push_back(legible(option));
  for (const KernelEntry& entry : source.entries) key.entries.push_back(entry.name);
  return key;
}

}  // namespace vqgen
