// A pack: many artifacts in one file, to be shipped and only read.
//
//   "VQGENPAK" | schema u32 | count u64 | count times: digest, 64 hex digits | offset u64 | bytes
//   u64 | SHA-256 of all before it, 64 hex digits | the entries, each as its .vqk file
//
// Integers are little-endian; digests ascend, each once; offsets count from the start of the file.
// The index is verified when a pack is opened, an entry by its own trailer when it is taken: so a
// damaged entry costs that entry alone.
#pragma once

#include <filesystem>
#include <map>
#include <memory>

#include "core/files/files.h"
#include "runtime/cache/layer.h"

namespace vqgen {

class PackLayer final : public ArtifactLayer {
 public:
  // Opens the pack and keeps it open. Throws Error(bad_input) if it cannot be read or its index is
  // damaged.
  explicit PackLayer(std::filesystem::path path);

  const std::filesystem::path& path() const override { return path_; }
  std::optional<EntryBytes> read(std::string_view digest,
                                 std::uint64_t max_bytes = kWhole) const override;
  Listing list() const override;

 private:
  struct Record {
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
  };
  std::vector<std::byte> read_front(std::uint64_t bytes) const;

  std::filesystem::path path_;
  std::int64_t made_s_ = 0;
  OpenFile file_;
  std::map<std::string, Record, std::less<>> index_;  // by digest
};

// The bytes of a pack of these files, ordered by digest. Equal entries give equal bytes.
std::vector<std::byte> encode_pack(const std::map<std::string, std::vector<std::byte>>& entries);

}  // namespace vqgen
