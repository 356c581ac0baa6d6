#include "runtime/cache/artifact_file.h"

#include <algorithm>

#include "core/files/bytes.h"
#include "core/files/digest.h"
#include "core/json/json.h"
#include "core/json/json_text.h"

namespace vqgen {
namespace {

constexpr std::string_view kArtifactMagic = "VQGENART";
constexpr std::size_t kTrailerBytes = 64;

struct Manifest {
  ArtifactKey key;
  std::vector<KernelResources> kernels;
  double compile_ms = 0;

  static constexpr auto fields() {
    using M = Manifest;
    return std::make_tuple(
        field("key", &M::key, required(), "what the artifact was made of"),
        field("kernels", &M::kernels, required(), "what the compiler said of each entry"),
        field("compile_ms", &M::compile_ms, required(0, 1e12), "what the compilation took"));
  }
};

std::span<const std::byte> as_bytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}

// The text as it reads back from a manifest.
std::string legible(const std::string& text) {
  return parse_json(json_text(text), "key").get<std::string>();
}

// The text without comment lines, which say for whom and why: rewording a comment or renaming a GPU
// must not change the key.
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

std::optional<Manifest> read_manifest(std::string_view text) {
  try {
    const Json json = parse_json(text, "artifact manifest");
    Manifest manifest;
    read_fields(JsonCursor(json, "artifact manifest"), manifest);
    return manifest;
  } catch (const Error&) {
    return std::nullopt;
  }
}

// The manifest's text, if the front of the file has the right magic and schema.
std::optional<std::string_view> take_manifest(ByteReader& reader) {
  std::span<const std::byte> magic, text;
  std::uint32_t schema = 0;
  const bool ours = reader.take(kArtifactMagic.size(), magic) && as_text(magic) == kArtifactMagic &&
                    reader.take_integer(schema) && schema == kArtifactSchema &&
                    reader.take_sized(text);
  if (!ours) return std::nullopt;
  return as_text(text);
}

bool names_match(const Manifest& manifest) {
  if (manifest.kernels.size() != manifest.key.entries.size()) return false;
  for (std::size_t i = 0; i < manifest.kernels.size(); ++i) {
    if (manifest.kernels[i].name != manifest.key.entries[i]) return false;
  }
  return true;
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
  ArtifactKey key{sha256_hex(as_bytes(code)), source.arch, legible(compiler.name), {}, {}};
  for (const std::string& option : compiler.options) key.options.push_back(legible(option));
  for (const KernelEntry& entry : source.entries) key.entries.push_back(entry.name);
  return key;
}

std::vector<std::byte> encode_artifact(const ArtifactKey& key, const Artifact& artifact) {
  const std::string manifest =
      json_text(to_json(Manifest{key, artifact.kernels, artifact.compile_ms}));
  std::string out(kArtifactMagic);
  append_integer(out, kArtifactSchema);
  append_integer(out, static_cast<std::uint64_t>(manifest.size()));
  out += manifest;
  append_integer(out, static_cast<std::uint64_t>(artifact.binary.size()));
  out += as_text(artifact.binary);
  out += sha256_hex(as_bytes(out));
  const auto bytes = as_bytes(out);
  return {bytes.begin(), bytes.end()};
}

std::optional<StoredArtifact> dequantize_artifact(std::span<const std::byte> bytes) {
  if (bytes.size() < kTrailerBytes) return std::nullopt;
  const auto body = bytes.first(bytes.size() - kTrailerBytes);
  if (as_text(bytes.last(kTrailerBytes)) != sha256_hex(body)) return std::nullopt;
  ByteReader reader{body};
  std::span<const std::byte> binary;
  const auto manifest_text = take_manifest(reader);
  if (!manifest_text || !reader.take_sized(binary) || !reader.left.empty()) return std::nullopt;
  auto manifest = read_manifest(*manifest_text);
  if (!manifest || !names_match(*manifest)) return std::nullopt;
  return StoredArtifact{
      std::move(manifest->key),
      {{binary.begin(), binary.end()}, std::move(manifest->kernels), manifest->compile_ms}};
}

std::optional<Artifact> dequantize_artifact(std::span<const std::byte> bytes,
                                            const ArtifactKey& key) {
  auto stored = dequantize_artifact(bytes);
  if (!stored || stored->key != key) return std::nullopt;
  return std::move(stored->artifact);
}

bool is_artifact_of(std::span<const std::byte> bytes, std::string_view digest) {
  const auto stored = dequantize_artifact(bytes);
  return stored && stored->key.hex() == digest;
}

std::uint32_t newer_artifact_schema(std::span<const std::byte> front) {
  ByteReader reader{front};
  std::span<const std::byte> magic;
  std::uint32_t schema = 0;
  const bool newer = reader.take(kArtifactMagic.size(), magic) &&
                     as_text(magic) == kArtifactMagic && reader.take_integer(schema) &&
                     schema > kArtifactSchema;
  return newer ? schema : 0;
}

std::optional<ArtifactKey> peek_key(std::span<const std::byte> front) {
  ByteReader reader{front};
  const auto manifest_text = take_manifest(reader);
  auto manifest = manifest_text ? read_manifest(*manifest_text) : std::nullopt;
  if (!manifest) return std::nullopt;
  return std::move(manifest->key);
}

}  // namespace vqgen
