// Packs: the same bytes whatever the order, and nothing wrong out of a damaged pack.
#include "runtime/cache/pack.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "core/files/bytes.h"
#include "core/files/digest.h"
#include "core/files/files.h"
#include "runtime/cache/artifact_file.h"
#include "tests/cache/fixtures.h"
#include "tests/message_of.h"

namespace vqgen {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kHead = 20;
constexpr std::size_t kRecord = 80;

class Pack : public test::WithKernel {
 protected:
  void SetUp() override {
    WithKernel::SetUp();
    for (int i = 0; i < 3; ++i) {
      source_.text += 'x';
      keys_.push_back(artifact_key(source_, backend_.compiler(source_)));
      artifacts_.push_back(backend_.compile(source_));
      entries_[keys_.back().hex()] = encode_artifact(keys_.back(), artifacts_.back());
    }
    whole_ = encode_pack(entries_);
  }

  // The number of kernels that a cache finds in a pack of these bytes; all of them must be right.
  int found_in(std::span<const std::byte> bytes) {
    // No fsync, unlike publish_file: these tests write thousands.
    std::ofstream(folder_ / "p.vqpack", std::ios::binary) << as_text(bytes);
    ArtifactCache cache({.read_only = {folder_ / "p.vqpack"}});
    int found = 0;
    for (std::size_t i = 0; i < keys_.size(); ++i) {
      const auto artifact = cache.look_up(keys_[i]).artifact;
      if (!artifact) continue;
      ++found;
      EXPECT_TRUE(test::same(*artifact, artifacts_[i]));
    }
    return found;
  }

  // Changes the index and signs it again, so that only its content is wrong.
  template <class Change>
  std::vector<std::byte> forged(Change&& change) const {
    std::vector<std::byte> bytes = whole_;
    change(bytes);
    const std::size_t index = kHead + kRecord * keys_.size();
    const std::string trailer = sha256_hex(std::span(bytes).first(index));
    std::memcpy(bytes.data() + index, trailer.data(), trailer.size());
    return bytes;
  }
  static void put(std::vector<std::byte>& bytes, std::size_t at, std::uint64_t value) {
    std::string text;
    append_integer(text, value);
    std::memcpy(bytes.data() + at, text.data(), text.size());
  }

  std::vector<ArtifactKey> keys_;
  std::vector<Artifact> artifacts_;
  std::map<std::string, std::vector<std::byte>> entries_;
  std::vector<std::byte> whole_;
};

TEST_F(Pack, GivesBackWhatWentIn) {
  EXPECT_EQ(found_in(whole_), 3);
  const PackLayer pack(folder_ / "p.vqpack");
  const auto listed = pack.entries();
  ASSERT_EQ(listed.size(), 3u);
  for (const StoredEntry& entry : listed) {
    EXPECT_EQ(pack.read(entry.digest)->bytes, entries_.at(entry.digest));
    EXPECT_EQ(entry.bytes, entries_.at(entry.digest).size());
    EXPECT_EQ(pack.read(entry.digest, 10)->bytes.size(), 10u);
  }
  EXPECT_FALSE(pack.read(std::string(64, '0')).has_value());
  EXPECT_EQ(found_in(encode_pack({})), 0);
}

TEST_F(Pack, IsTheSameBytesFromFoldersFilledInAnyOrder) {
  const auto packed = [&](const std::vector<std::size_t>& order, const std::string& name) {
    const FolderLayer folder(folder_ / name);
    for (const std::size_t i : order) folder.store(keys_[i].hex(), entries_.at(keys_[i].hex()));
    std::map<std::string, std::vector<std::byte>> entries;
    for (const StoredEntry& entry : folder.entries()) {
      entries[entry.digest] = folder.read(entry.digest)->bytes;
    }
    return encode_pack(entries);
  };
  EXPECT_EQ(packed({0, 1, 2}, "a"), whole_);
  EXPECT_EQ(packed({2, 0, 1}, "b"), whole_);
}

// Every bit of the head, the index and its trailer, and some of the entries.
TEST_F(Pack, AFlippedBitCostsTheIndexOrOneEntry) {
  const std::size_t front = kHead + kRecord * 3 + 64;
  for (std::size_t bit = 0; bit < whole_.size() * 8; bit += bit < front * 8 ? 7 : 997) {
    auto flipped = whole_;
    flipped[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    EXPECT_EQ(found_in(flipped), bit / 8 < front ? 0 : 2) << bit;
  }
}

TEST_F(Pack, ATruncatedPackKeepsTheEntriesThatAreWhole) {
  const std::size_t front = kHead + kRecord * 3 + 64;
  int last = 0;
  for (std::size_t size = 0; size <= whole_.size(); size += size < front ? 7 : 61) {
    const int found = found_in(std::span(whole_).first(size));
    if (size < front) {
      EXPECT_EQ(found, 0) << size;
    }
    EXPECT_GE(found, last) << size;
    last = found;
  }
  EXPECT_GE(last, 2);
  EXPECT_EQ(found_in(std::span(whole_).first(whole_.size() - 1)), 2);
}

TEST_F(Pack, LiesOfTheIndexAreMissesOrRefused) {
  EXPECT_EQ(forged([](auto&) {}), whole_);
  const std::size_t offset = kHead + 64;
  const std::size_t bytes = offset + 8;
  for (const std::uint64_t value :
       {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{whole_.size()}, std::uint64_t{1} << 31,
        std::uint64_t{1} << 63, ~std::uint64_t{0}}) {
    EXPECT_EQ(found_in(forged([&](auto& pack) { put(pack, offset, value); })), 2) << value;
    EXPECT_EQ(found_in(forged([&](auto& pack) { put(pack, bytes, value); })), 2) << value;
  }
  for (const std::uint64_t count : {std::uint64_t{4}, std::uint64_t{1} << 40, ~std::uint64_t{0}}) {
    auto lie = whole_;
    put(lie, 12, count);
    EXPECT_EQ(found_in(lie), 0) << count;
  }
  // Two records swapped, one record twice, and an invalid digest.
  EXPECT_EQ(found_in(forged([](auto& pack) {
              std::swap_ranges(pack.begin() + kHead, pack.begin() + kHead + kRecord,
                               pack.begin() + kHead + kRecord);
            })),
            0);
  EXPECT_EQ(found_in(forged([](auto& pack) {
              std::copy_n(pack.begin() + kHead, kRecord, pack.begin() + kHead + kRecord);
            })),
            0);
  EXPECT_EQ(found_in(forged([](auto& pack) { pack[kHead] = std::byte{'G'}; })), 0);
}

// The file is long enough for the count to look plausible.
TEST_F(Pack, AHugeIndexIsNotAskedMemoryFor) {
  auto lie = whole_;
  put(lie, 12, std::uint64_t{1} << 34);
  publish_file(folder_ / "sparse", lie);
  std::error_code code;
  std::filesystem::resize_file(folder_ / "sparse", std::uintmax_t{1} << 41, code);
  if (code) GTEST_SKIP() << "no sparse files here: " << code.message();
  EXPECT_THAT(message_of([&] { PackLayer pack(folder_ / "sparse"); }), HasSubstr("17179869184"));
}

TEST_F(Pack, WhatIsNoPackIsNamed) {
  EXPECT_THAT(message_of([&] { PackLayer(folder_ / "missing"); }), HasSubstr("missing"));
  EXPECT_THAT(message_of([&] { PackLayer pack(folder_); }), HasSubstr("no regular file"));
  publish_text(folder_ / "short", "VQGENPAK");
  EXPECT_THAT(message_of([&] { PackLayer(folder_ / "short"); }), HasSubstr("too short"));
  auto newer = whole_;
  newer[8] = std::byte{9};
  publish_file(folder_ / "newer", newer);
  EXPECT_THAT(message_of([&] { PackLayer(folder_ / "newer"); }),
              HasSubstr("newer: is format version 9, and this vqgen knows up to 1; upgrade vqgen"));
  newer[8] = std::byte{0};
  publish_file(folder_ / "older", newer);
  EXPECT_THAT(message_of([&] { PackLayer(folder_ / "older"); }), HasSubstr("format version 0"));
}

}  // namespace
}  // namespace vqgen
