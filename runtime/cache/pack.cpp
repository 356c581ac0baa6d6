#include "runtime/cache/pack.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/files/bytes.h"
#include "core/files/digest.h"
#include "core/json/format_version.h"

namespace vqgen {
namespace {

constexpr std::string_view kPackMagic = "VQGENPAK";
constexpr std::uint32_t kPackSchema = 1;
constexpr std::uint64_t kDigestBytes = 64;
constexpr std::uint64_t kHeadBytes = 8 + 4 + 8;
constexpr std::uint64_t kRecordBytes = kDigestBytes + 8 + 8;
constexpr std::uint64_t kMaxEntries = std::uint64_t{1} << 20;  // a sparse file has room for any
constexpr std::uint64_t kMaxEntryBytes = std::uint64_t{1} << 30;

[[noreturn]] void fail(const std::filesystem::path& path, const std::string& what) {
  throw Error(ErrorKind::bad_input, fmt::format("{}: {}; make the pack again with vqgen cache pack",
                                                path.string(), what));
}

OpenFile open_pack(const std::filesystem::path& path, std::int64_t& made_s) {
  struct stat status {};
  int error = ::stat(path.c_str(), &status) == 0 ? 0 : errno;
  if (error == 0 && !S_ISREG(status.st_mode)) fail(path, "is no regular file");
  made_s = status.st_mtime;
  try {
    if (error == 0) return OpenFile(path);
  } catch (const FileError& refused) {
    error = refused.code();
  }
  throw Error(ErrorKind::bad_input,
              fmt::format("{}: cannot read: {}; name a pack or a folder of kernels", path.string(),
                          std::strerror(error)));
}

}  // namespace

PackLayer::PackLayer(std::filesystem::path path)
    : path_(std::move(path)), file_(open_pack(path_, made_s_)) {
  if (file_.size() < kHeadBytes + kDigestBytes) fail(path_, "is too short for a pack");
  const std::vector<std::byte> front = read_front(kHeadBytes);
  ByteReader head{front};
  std::span<const std::byte> piece;
  std::uint32_t schema = 0;
  std::uint64_t count = 0;
  head.take(kPackMagic.size(), piece);
  if (as_text(piece) != kPackMagic) fail(path_, "is no pack of kernels");
  head.take_integer(schema);
  if (schema > kPackSchema) {
    throw Error(ErrorKind::bad_input,
                fmt::format("{}: {}", path_.string(), newer_format(schema, kPackSchema)));
  }
  if (schema == 0) fail(path_, "has format version 0, which no vqgen writes");
  head.take_integer(count);
  if (count > std::min((file_.size() - kHeadBytes - kDigestBytes) / kRecordBytes, kMaxEntries)) {
    fail(path_, fmt::format("its index is damaged: {} entries are more than there can be", count));
  }
  const std::uint64_t index_bytes = kHeadBytes + count * kRecordBytes;
  const std::vector<std::byte> bytes = read_front(index_bytes + kDigestBytes);
  const auto signed_part = std::span(bytes).first(static_cast<std::size_t>(index_bytes));
  if (as_text(std::span(bytes).last(kDigestBytes)) != sha256_hex(signed_part)) {
    fail(path_, "its index is damaged: its SHA-256 is another");
  }
  ByteReader reader{signed_part.subspan(kHeadBytes)};
  for (std::uint64_t i = 0; i < count; ++i) {
    Record record;
    reader.take(kDigestBytes, piece);
    reader.take_integer(record.offset);
    reader.take_integer(record.bytes);
    const std::string digest(as_text(piece));
    const bool ascends = index_.empty() || index_.rbegin()->first < digest;
    if (!is_digest(digest) || !ascends) fail(path_, "its index is out of order");
    index_.emplace_hint(index_.end(), digest, record);
  }
}

std::vector<std::byte> PackLayer::read_front(std::uint64_t bytes) const {
  std::vector<std::byte> front(static_cast<std::size_t>(bytes));
  try {
    file_.read(0, front);
  } catch (const FileError&) {
    fail(path_, "cannot be read");
  }
  return front;
}

std::optional<EntryBytes> PackLayer::read(std::string_view digest, std::uint64_t max_bytes) const {
  const auto found = index_.find(digest);
  if (found == index_.end()) return std::nullopt;
  const Record& record = found->second;
  EntryBytes entry;
  const bool inside = record.offset <= file_.size() && record.bytes <= file_.size() - record.offset;
  if (!inside || record.bytes > kMaxEntryBytes) return entry;
  entry.bytes.resize(static_cast<std::size_t>(std::min(record.bytes, max_bytes)));
  try {
    file_.read(record.offset, entry.bytes);
  } catch (const FileError& error) {
    entry.unreadable = error.code() != EIO;  // as for a file that has become too short
    entry.bytes.clear();
  }
  return entry;
}

Listing PackLayer::list() const {
  Listing found;
  for (const auto& [digest, record] : index_) {
    found.entries.push_back({digest, record.bytes, made_s_});
  }
  return found;
}

std::vector<std::byte> encode_pack(const std::map<std::string, std::vector<std::byte>>& entries) {
  std::string out(kPackMagic);
  append_integer(out, kPackSchema);
  append_integer(out, static_cast<std::uint64_t>(entries.size()));
  std::uint64_t offset = kHeadBytes + entries.size() * kRecordBytes + kDigestBytes;
  for (const auto& [digest, bytes] : entries) {
    out += digest;
    append_integer(out, offset);
    append_integer(out, static_cast<std::uint64_t>(bytes.size()));
    offset += bytes.size();
  }
  out += sha256_hex(std::as_bytes(std::span(out)));
  for (const auto& [digest, bytes] : entries) out += as_text(bytes);
  const auto all = std::as_bytes(std::span(out));
  return {all.begin(), all.end()};
}

}  // namespace vqgen
