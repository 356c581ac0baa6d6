// vqgen cache: what is in the kernel cache, whether it is whole, and how it is bounded and shipped.
#include <chrono>
#include <ctime>

#include "cli/command.h"
#include "core/files/files.h"
#include "core/json/format_version.h"
#include "runtime/cache/artifact_file.h"
#include "runtime/cache/folder_layer.h"
#include "runtime/cache/pack.h"
#include "runtime/cache/places.h"

namespace vqgen::cli {
namespace {

struct CacheArguments {
  std::string pack, folder, max_bytes;
  std::optional<double> max_days;
};

// The cache as the environment places it, its warnings noted.
std::unique_ptr<ArtifactCache> open_cache(const Output& output) {
  auto cache = make_cache(read_environment());
  note_warning(*cache, output);
  return cache;
}

// The user's folder. Error(bad_input) where the environment names none.
std::filesystem::path user_folder() {
  const CacheOptions options = cache_options(read_environment().cache);
  if (options.folder) return *options.folder;
  throw Error(ErrorKind::bad_input,
              "the kernel cache has no folder; set VQGEN_CACHE_DIR, XDG_CACHE_HOME or HOME");
}

// "0123456789ab", which is enough to tell one entry from another.
std::string short_digest(const std::string& digest) { return digest.substr(0, 12); }

// What an entry is that is no artifact of this vqgen's format.
const char* state_of(const EntryBytes& entry) {
  if (entry.unreadable) return "unreadable";
  return newer_artifact_schema(entry.bytes) == 0 ? "damaged" : "newer";
}

// Notes the damage, if there is any, and sets the exit code for it.
void report_damage(std::int64_t damaged, Output& output) {
  output.document["damaged_count"] = damaged;
  if (damaged == 0) return;
  output.exit_code = static_cast<int>(ErrorKind::verification_failed);
  output.note("vqgen: {} damaged; what is damaged is compiled again when it is wanted", damaged);
}

// Puts the faults in the document, names the first on stderr, and sets the exit code for them.
void report_faults(const std::vector<CacheFault>& faults, Output& output) {
  output.document["faults"] = Json::array();
  for (const CacheFault& fault : faults) {
    output.line("{} {}", one_line(fault.path.string()), fault.why);
    output.document["faults"].push_back({{"path", fault.path.string()}, {"why", fault.why}});
  }
  if (faults.empty()) return;
  output.exit_code = static_cast<int>(ErrorKind::bad_input);
  output.note("vqgen: {} {}{}", faults.front().path.string(), faults.front().why,
              faults.size() == 1 ? "" : fmt::format("; and {} more", faults.size() - 1));
}

// Error(bad_input) where kernels of a folder or pack must not be run.
void require_trust(const std::filesystem::path& path, Trust trust) {
  const std::string why = distrust(path, trust);
  if (!why.empty()) throw Error(ErrorKind::bad_input, "code must not be loaded from there: " + why);
}

void report(const Collected& collected, Output& output) {
  output.line("removed {} entries and {} leftovers, {} bytes", collected.entries,
              collected.leftovers, collected.bytes);
  output.line("kept {} entries, {} bytes", collected.kept_entries, collected.kept_bytes);
  output.document = {{"removed_entries", collected.entries},
                     {"removed_leftovers", collected.leftovers},
                     {"removed_bytes", collected.bytes},
                     {"kept_entries", collected.kept_entries},
                     {"kept_bytes", collected.kept_bytes}};
  report_faults(collected.faults, output);
}

void cache_clear(const CacheArguments&, Output& output) {
  report(clear_cache(user_folder()), output);
}

void cache_gc(const CacheArguments& arguments, Output& output) {
  CollectLimits limits;
  limits.max_bytes = arguments.max_bytes.empty()
                         ? cache_options(read_environment().cache).max_bytes
                         : parse_bytes("cache gc: --max-bytes", arguments.max_bytes);
  if (arguments.max_days) {
    if (!(*arguments.max_days >= 0 && *arguments.max_days <= 1e6)) {  // nor NaN
      throw Error(ErrorKind::bad_input,
                  fmt::format("cache gc: --max-age {}: give a number of days from 0 to 1000000",
                              *arguments.max_days));
    }
    limits.max_age = std::chrono::seconds(static_cast<std::int64_t>(*arguments.max_days * 86400));
  }
  report(collect(user_folder(), limits), output);
}

// "3 d", "5 h", "12 min", "8 s".
std::string age_text(std::int64_t seconds) {
  if (seconds >= 2 * 86400) return fmt::format("{} d", seconds / 86400);
  if (seconds >= 2 * 3600) return fmt::format("{} h", seconds / 3600);
  if (seconds >= 2 * 60) return fmt::format("{} min", seconds / 60);
  return fmt::format("{} s", seconds);
}

CacheFault unreadable(const ArtifactLayer& layer, const StoredEntry& entry) {
  return {layer.path(), fmt::format("holds {}, which cannot be read, or which others can change",
                                    short_digest(entry.digest))};
}

void cache_ls(const CacheArguments&, Output& output) {
  const auto cache = open_cache(output);
  const std::int64_t now = std::time(nullptr);
  std::vector<CacheFault> faults;
  output.document = {{"layers", Json::array()}, {"entries", Json::array()}};
  for (const auto& layer : cache->layers()) {
    const std::string path = layer->path().string();
    std::int64_t count = 0;
    std::uint64_t total = 0;
    const Listing listing = layer->list();
    faults.insert(faults.end(), listing.faults.begin(), listing.faults.end());
    for (const StoredEntry& entry : listing.entries) {
      const auto front = layer->read(entry.digest, kPeekBytes);
      const auto key = front ? peek_key(front->bytes) : std::nullopt;
      const std::string kernel = key && !key->entries.empty() ? key->entries.front() : "";
      const char* const state = front ? state_of(*front) : "damaged";
      if (front && front->unreadable) faults.push_back(unreadable(*layer, entry));
      const std::int64_t age = std::max<std::int64_t>(0, now - entry.used_s);
      ++count;
      total += entry.bytes;
      output.line("{}  {:<8} {:>10} bytes {:>8}  {}  {}", short_digest(entry.digest),
                  key ? one_line(key->arch) : "-", entry.bytes, age_text(age),
                  key ? one_line(kernel) : state, one_line(path));
      output.document["entries"].push_back({{"digest", entry.digest},
                                            {"kernel", key ? Json(kernel) : Json(nullptr)},
                                            {"arch", key ? Json(key->arch) : Json(nullptr)},
                                            {"bytes", entry.bytes},
                                            {"age_s", age},
                                            {"layer", path}});
    }
    output.line("{}: {} entries, {} bytes", one_line(path), count, total);
    output.document["layers"].push_back({{"path", path}, {"entries", count}, {"bytes", total}});
  }
  report_faults(faults, output);
}

// Changes nothing: a damaged file is set aside by the compilation that meets it.
void cache_verify(const CacheArguments&, Output& output) {
  CacheOptions options = cache_options(read_environment().cache);
  options.warning.clear();
  const ArtifactCache cache(std::move(options));
  note_warning(cache, output);
  std::int64_t checked = 0;
  std::int64_t damaged = cache.warning().empty() ? 0 : 1;  // a layer that cannot be opened
  output.document = {
      {"damaged", Json::array()}, {"unreadable", Json::array()}, {"newer", Json::array()}};
  std::vector<CacheFault> faults;
  for (const auto& layer : cache.layers()) {
    output.step("verifying {}", layer->path().string());
    const Listing listing = layer->list();
    faults.insert(faults.end(), listing.faults.begin(), listing.faults.end());
    for (const StoredEntry& entry : listing.entries) {
      const auto found = layer->read(entry.digest);
      if (!found) continue;  // removed since
      ++checked;
      if (is_artifact_of(found->bytes, entry.digest)) continue;
      const char* const state = state_of(*found);
      const std::uint32_t newer = newer_artifact_schema(found->bytes);
      if (newer == 0) ++damaged;
      output.line("{}: {} in {}{}", state, entry.digest, one_line(layer->path().string()),
                  newer == 0 ? "" : " " + newer_format(newer, kArtifactSchema));
      output.document[state].push_back(
          {{"digest", entry.digest}, {"layer", layer->path().string()}});
    }
  }
  output.line("{} entries checked", checked);
  output.document["checked"] = checked;
  report_faults(faults, output);
  report_damage(damaged, output);
  if (!faults.empty()) output.exit_code = static_cast<int>(ErrorKind::verification_failed);
}

// A folder of kernels to one file, and back below. Only what is whole passes.
void cache_pack(const CacheArguments& arguments, Output& output) {
  const auto& [out, from, max_bytes, max_days] = arguments;
  require_place("cache pack", "OUT", out);
  const FolderLayer folder(from.empty() ? user_folder() : std::filesystem::path(from));
  output.step("packing {}", folder.path().string());
  require_trust(folder.path(), from.empty() ? Trust::own : Trust::named);
  const Listing listing = folder.list();
  std::map<std::string, std::vector<std::byte>> entries;
  std::int64_t damaged = 0;
  std::uint32_t newer = 0;
  for (const StoredEntry& entry : listing.entries) {
    auto found = folder.read(entry.digest);
    if (!found) continue;  // removed since
    if (is_artifact_of(found->bytes, entry.digest)) {
      entries.emplace(entry.digest, std::move(found->bytes));
    } else if (const std::uint32_t schema = newer_artifact_schema(found->bytes); schema != 0) {
      newer = std::max(newer, schema);
    } else {
      ++damaged;
    }
  }
  if (entries.empty() && !listing.faults.empty()) {
    const CacheFault& fault = listing.faults.front();
    throw Error(ErrorKind::bad_input,
                fmt::format("cache pack: {} {}", fault.path.string(), fault.why));
  }
  if (entries.empty() && newer != 0) {
    throw Error(ErrorKind::bad_input, fmt::format("cache pack: {} {}", folder.path().string(),
                                                  newer_format(newer, kArtifactSchema)));
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
  if (newer != 0) {
    output.note("vqgen: some kernels were left out: the newest {}",
                newer_format(newer, kArtifactSchema));
  }
  report_faults(listing.faults, output);
  report_damage(damaged, output);
  if (!listing.faults.empty()) {
    output.exit_code = static_cast<int>(ErrorKind::verification_failed);
  }
}

void cache_unpack(const CacheArguments& arguments, Output& output) {
  const auto& [pack, to, max_bytes, max_days] = arguments;
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

}  // namespace

void add_cache(CLI::App& app, Output& output) {
  auto* cache = app.add_subcommand("cache", "Look at, check, bound and ship compiled kernels");
  cache->require_subcommand(1);
  add_examples(*cache, "vqgen cache ls", "vqgen cache pack out/kernels.vqpack");
  using Arguments = CacheArguments;
  const auto ls =
      add_command<Arguments>(*cache, output, "ls", "List the entries of all layers", cache_ls);
  add_examples(*ls.first, "vqgen cache ls", "vqgen cache ls --json");
  const auto verify =
      add_command<Arguments>(*cache, output, "verify",
                             "Read everything; exit code 4 if something is damaged", cache_verify);
  add_examples(*verify.first, "vqgen cache verify", "vqgen cache verify --json");
  add_cache_explain(*cache, output);
  const auto [gc, limits] = add_command<Arguments>(
      *cache, output, "gc", "Remove what was used least recently, damaged files and leftovers",
      cache_gc);
  gc->add_option("--max-bytes", limits->max_bytes,
                 "Bytes of all entries, at most [VQGEN_CACHE_MAX_BYTES, else 2 GiB]");
  gc->add_option("--max-age", limits->max_days,
                 "Days since an entry was made or last used, at most");
  add_examples(*gc, "vqgen cache gc", "vqgen cache gc --max-bytes 1000000000 --max-age 30");
  const auto [pack, from] = add_command<Arguments>(
      *cache, output, "pack", "Write the kernels of a folder as one file", cache_pack);
  pack->add_option("out", from->pack, "The .vqpack file to write")->required();
  pack->add_option("--from", from->folder, "The cache folder [the user's]");
  add_examples(*pack, "vqgen cache pack out/kernels.vqpack",
               "vqgen cache pack out/kernels.vqpack --json");
  const auto [unpack, to] = add_command<Arguments>(
      *cache, output, "unpack", "Put the kernels of a pack into a folder", cache_unpack);
  unpack->add_option("pack", to->pack, "A .vqpack file")->required();
  unpack->add_option("--to", to->folder, "The cache folder [the user's]");
  add_examples(*unpack, "vqgen cache unpack out/kernels.vqpack",
               "vqgen cache unpack out/kernels.vqpack --to out/kernels");
  const auto clear = add_command<Arguments>(
      *cache, output, "clear", "Remove every file of the cache in the user's folder, and no other",
      cache_clear);
  add_examples(*clear.first, "vqgen cache clear", "vqgen cache clear --json");
}

}  // namespace vqgen::cli
