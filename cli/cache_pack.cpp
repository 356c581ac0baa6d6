// vqgen cache pack and unpack: a folder of kernels to one file and back. Only what is whole passes.
#include "cli/cache_commands.h"
#include "core/files.h"
#include "runtime/cache/artifact_file.h"
#include "runtime/cache/pack.h"

namespace vqgen::cli {

void cache_pack(const std::string& out, const std::string& from, Output& output) {
  require_place("cache pack", "OUT", out);
  const FolderLayer folder(from.empty() ? user_folder() : std::filesystem::path(from));
  output.step("packing {}", folder.path().string());
  std::map<std::string, std::vector<std::byte>> entries;
  std::int64_t damaged = 0;
  for (const StoredEntry& entry : folder.entries()) {
    auto found = folder.read(entry.digest);
    if (!found) continue;  // removed since
    if (is_artifact_of(found->bytes, entry.digest)) {
      entries.emplace(entry.digest, std::move(found->bytes));
    } else {
      ++damaged;
    }
  }
  if (entries.empty()) {
    throw Error(ErrorKind::bad_input,
                fmt::format("cache pack: {} holds no kernels; compile some first, or name another "
                            "folder with --from",
                            folder.path().string()));
  }
  const std::vector<std::byte> bytes = encode_pack(entries);
  publish_file(out, bytes);
  output.line("wrote {}: {} entries, {} bytes", out, entries.size(), bytes.size());
  output.document = {{"out", out}, {"entries", entries.size()}, {"bytes", bytes.size()}};
  report_damage(damaged, output);
}

void cache_unpack(const std::string& pack, const std::string& to, Output& output) {
  const PackLayer packed(pack);
  const FolderLayer folder(to.empty() ? user_folder() : std::filesystem::path(to));
  output.step("unpacking {}", pack);
  std::int64_t written = 0;
  std::int64_t there = 0;
  std::int64_t damaged = 0;
  for (const StoredEntry& entry : packed.entries()) {
    const auto found = packed.read(entry.digest);
    const auto present = folder.read(entry.digest);
    if (!found || !is_artifact_of(found->bytes, entry.digest)) {
      ++damaged;
    } else if (present && is_artifact_of(present->bytes, entry.digest)) {
      ++there;
    } else {
      folder.store(entry.digest, found->bytes);
      ++written;
    }
  }
  output.line("{}: {} entries written, {} were there", folder.path().string(), written, there);
  output.document = {{"to", folder.path().string()}, {"written", written}, {"were_there", there}};
  report_damage(damaged, output);
}

}  // namespace vqgen::cli
