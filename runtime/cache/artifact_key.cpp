#include "runtime/cache/artifact_key.h"

#include <algorithm>
#include <span>

#include "core/files/digest.h"
#include "core/json/json.h"
#include "runtime/cache/artifact_file.h"

namespace vqgen {

namespace {

// With a replacement for what is no UTF-8, as a manifest has it: it must read back as it was.
std::string legible(const std::string& text) {
  return parse_json(Json(text).dump(-1, ' ', false, Json::error_handler_t::replace), "key")
      .get<std::string>();
}

// The text without the lines that are comments, which say for whom and why: no rewording of a
// comment, and no GPU's name, makes another kernel.
std::string code_of(std::string_view text) {
  std::string code;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size() - 1) + 1;
    const std::string_view line = text.substr(0, end);
    const std::size_t first = line.find_first_not_of(' ');
    if (first == line.npos || !line.substr(first).starts_with("//")) code += line;
    text.remove_prefix(end);
  }
  return code;
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
  const std::string code = code_of(source.text);
  ArtifactKey key{
      sha256_hex(std::as_bytes(std::span(code))), source.arch, legible(compiler.name), {}, {}};
  for (const std::string& option : compiler.options) key.options.push_back(legible(option));
  for (const KernelEntry& entry : source.entries) key.entries.push_back(entry.name);
  return key;
}

}  // namespace vqgen
