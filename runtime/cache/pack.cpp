#include "runtime/cache/pack.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/error.h"
#include "core/files/digest.h"
#include "runtime/cache/bytes.h"

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

// All of `bytes`, or false.
bool read_at(int file, std::uint64_t offset, std::span<std::byte> bytes) {
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t got =
        ::pread(file, bytes.data() + done, bytes.size() - done, static_cast<off_t>(offset + done));
    if (got == 0 || (got < 0 && errno != EINTR)) return false;
    if (got > 0) done += static_cast<std::size_t>(got);
  }
  return true;
}

}  // namespace

PackLayer::PackLayer(std::filesystem::path path) : path_(std::move(path)) {
  file_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file_ < 0) {
    throw Error(ErrorKind::bad_input,
                fmt::format("{}: cannot read: {}; name a pack or a folder of kernels",
                            path_.string(), std::strerror(errno)));
  }
  try {
    read_index();
  } catch (...) {
    ::close(file_);
    throw;
  }
}

PackLayer::~PackLayer() { ::close(file_); }

void PackLayer::read_index() {
  struct stat status {};
  if (::fstat(file_, &status) != 0 || !S_ISREG(status.st_mode)) fail(path_, "is no regular file");
  file_bytes_ = static_cast<std::uint64_t>(status.st_size);
  made_s_ = status.st_mtime;
  if (file_bytes_ < kHeadBytes + kDigestBytes) fail(path_, "is too short for a pack");
  std::vector<std::byte> bytes(kHeadBytes);
  if (!read_at(file_, 0, bytes)) fail(path_, "cannot be read");
  ByteReader head{bytes};
  std::span<const std::byte> piece;
  std::uint32_t schema = 0;
  std::uint64_t count = 0;
  head.take(kPackMagic.size(), piece);
  if (as_text(piece) != kPackMagic) fail(path_, "is no pack of kernels");
  head.take_integer(schema);
  if (schema != kPackSchema) fail(path_, fmt::format("has layout {}, not {}", schema, kPackSchema));
  head.take_integer(count);
  if (count > std::min((file_bytes_ - kHeadBytes - kDigestBytes) / kRecordBytes, kMaxEntries)) {
    fail(path_, fmt::format("its index is damaged: {} entries are more than there can be", count));
  }
  const std::uint64_t index_bytes = kHeadBytes + count * kRecordBytes;
  bytes.resize(static_cast<std::size_t>(index_bytes + kDigestBytes));
  if (!read_at(file_, 0, bytes)) fail(path_, "cannot be read");
  const auto signed_part = std::span(bytes).first(static_cast<std::size_t>(index_bytes));
  if (as_text(std::span(bytes).last(kDigestBytes)) != sha256_hex(signed_part)) {
    fail(path_, "its index is damaged: its SHA-256 is another");
  }
  ByteReader reader{signed_part.subspan(kHeadBytes)};
  for (std::uint64_t i = 0; i < count; ++i) {
    Record record;
    reader.take(kDigestBytes, piece);
    record.digest = as_text(piece);
    reader.take_integer(record.offset);
    reader.take_integer(record.bytes);
    const bool ascends = index_.empty() || index_.back().digest < record.digest;
    if (!is_digest(record.digest) || !ascends) fail(path_, "its index is out of order");
    index_.push_back(std::move(record));
  }
}

std::optional<EntryBytes> PackLayer::read(std::string_view digest, std::uint64_t max_bytes) const {
  const auto record = std::lower_bound(
      index_.begin(), index_.end(), digest,
      [](const Record& each, std::string_view wanted) { return each.digest < wanted; });
  if (record == index_.end() || record->digest != digest) return std::nullopt;
  EntryBytes entry;
  const bool inside =
      record->offset <= file_bytes_ && record->bytes <= file_bytes_ - record->offset;
  if (!inside || record->bytes > kMaxEntryBytes) return entry;
  entry.bytes.resize(static_cast<std::size_t>(std::min(record->bytes, max_bytes)));
  errno = 0;  // stays so where the file is too short
  if (!read_at(file_, record->offset, entry.bytes)) {
    entry.unreadable = errno != 0;
    entry.bytes.clear();
  }
  return entry;
}

Listing PackLayer::list() const {
  Listing found;
  for (const Record& record : index_) {
    found.entries.push_back({record.digest, record.bytes, made_s_});
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
