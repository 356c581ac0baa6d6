#include "runtime/cache/artifact_file.h"

#include <array>
#include <cstring>
#include <string_view>

#include "core/digest.h"
#include "core/json.h"

namespace vqgen {
namespace {

constexpr std::string_view kMagic = "VQGENART";
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

template <class T>
void append_integer(std::string& out, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) out += static_cast<char>((value >> (8 * i)) & 0xff);
}

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
std::span<const std::byte> as_bytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}

// Takes pieces off the front of a file; false where too little is left.
struct Reader {
  std::span<const std::byte> left;

  bool take(std::uint64_t count, std::span<const std::byte>& piece) {
    if (count > left.size()) return false;
    piece = left.first(static_cast<std::size_t>(count));
    left = left.subspan(static_cast<std::size_t>(count));
    return true;
  }
  template <class T>
  bool take_integer(T& value) {
    std::span<const std::byte> piece;
    if (!take(sizeof(T), piece)) return false;
    value = 0;
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      value |= static_cast<T>(std::to_integer<T>(piece[i]) << (8 * i));
    }
    return true;
  }
  bool take_sized(std::span<const std::byte>& piece) {
    std::uint64_t count = 0;
    return take_integer(count) && take(count, piece);
  }
};

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

bool names_match(const Manifest& manifest) {
  if (manifest.kernels.size() != manifest.key.entries.size()) return false;
  for (std::size_t i = 0; i < manifest.kernels.size(); ++i) {
    if (manifest.kernels[i].name != manifest.key.entries[i]) return false;
  }
  return true;
}

}  // namespace

std::vector<std::byte> encode_artifact(const ArtifactKey& key, const Artifact& artifact) {
  const std::string manifest = to_json(Manifest{key, artifact.kernels, artifact.compile_ms}).dump();
  std::string out(kMagic);
  append_integer(out, kArtifactSchema);
  append_integer(out, static_cast<std::uint64_t>(manifest.size()));
  out += manifest;
  append_integer(out, static_cast<std::uint64_t>(artifact.binary.size()));
  out += as_text(artifact.binary);
  out += sha256_hex(as_bytes(out));
  const auto bytes = as_bytes(out);
  return {bytes.begin(), bytes.end()};
}

std::optional<Artifact> decode_artifact(std::span<const std::byte> bytes, const ArtifactKey& key) {
  if (bytes.size() < kTrailerBytes) return std::nullopt;
  const auto body = bytes.first(bytes.size() - kTrailerBytes);
  if (as_text(bytes.last(kTrailerBytes)) != sha256_hex(body)) return std::nullopt;
  Reader reader{body};
  std::span<const std::byte> magic, manifest_text, binary;
  std::uint32_t schema = 0;
  const bool whole = reader.take(kMagic.size(), magic) && as_text(magic) == kMagic &&
                     reader.take_integer(schema) && schema == kArtifactSchema &&
                     reader.take_sized(manifest_text) && reader.take_sized(binary) &&
                     reader.left.empty();
  if (!whole) return std::nullopt;
  const auto manifest = read_manifest(as_text(manifest_text));
  if (!manifest || manifest->key != key || !names_match(*manifest)) return std::nullopt;
  return Artifact{{binary.begin(), binary.end()}, manifest->kernels, manifest->compile_ms};
}

}  // namespace vqgen
