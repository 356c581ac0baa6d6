// vqgen cache pack and unpack: a folder of kernels to one file and back. Only what is whole passes.
#include "cli/cache_commands.h"
#include "core/files/files.h"
#include "runtime/cache/artifact_file.h"
#include "runtime/cache/pack.h"

namespace vqgen::cli {

void cache_pack(const std::string& out, const std::string& from, Output& output) {
  require_place("cache pack", "OUT", out);
  const FolderLayer folder(from.empty() ? user_folder() : std::filesystem::path(from));
  output.step("packing {}", folder.path().string());
  require_trust(folder.path(), from.empty() ? Trust::own : Trust::named);
  const Listing listing = folder.list();
  std::map<std::string, std::vector<std::byte>> entries;
  std::int64_t damaged = 0;
  for (const StoredEntry& entry : listing.entries) {
    auto found = folder.read(entry.digest);
    if (!found) continue;  // removed since
    if (is_artifact_of(found->bytes, entry.digest)) {
      entries.emplace(entry.digest, std::move(found->bytes));
    } else {
      ++damaged;
    }
  }
  if (entries.empty() && !listing.faults.empty()) {
    const CacheFault& fault = listing.faults.front();
    throw Error(ErrorKind::bad_input,
                fmt::format("cache pack: {} {}", fault.path.string(), fault.why));
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
  report_faults(listing.faults, output);
  report_damage(damaged, output);
  if (!listing.faults.empty()) {
    output.exit_code = static_cast<int>(ErrorKind::verification_failed);
  }
}

void cache_unpack(const std::string& pack, const std::string& to, Output& output) {
  const FolderLayer folder(to.empty() ? user_folder() : std::filesystem::path(to));
  require_trust(folder.path(), Trust::own);
  require_trust(pack, Trust::named);
  const PackLayer packed(pack);
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
