// vqgen cache: what is in the kernel cache, whether it is whole, and how it is bounded and shipped.
#include <chrono>

#include "cli/cache_commands.h"
#include "runtime/cache/folder_layer.h"

namespace vqgen::cli {
namespace {

struct CacheArguments {
  std::string config;
  std::string gpu;
  std::string pack;
  std::string folder;
  std::string max_bytes;
  std::optional<double> max_days;
};

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

}  // namespace

std::unique_ptr<ArtifactCache> open_cache(const Output& output) {
  auto cache = make_cache(read_environment());
  note_warning(*cache, output);
  return cache;
}

std::filesystem::path user_folder() {
  const CacheOptions options = cache_options(read_environment().cache);
  if (options.folder) return *options.folder;
  throw Error(ErrorKind::bad_input,
              "the kernel cache has no folder; set VQGEN_CACHE_DIR, XDG_CACHE_HOME or HOME");
}

std::string short_digest(const std::string& digest) { return digest.substr(0, 12); }

void report_damage(std::int64_t damaged, Output& output) {
  output.document["damaged_count"] = damaged;
  if (damaged == 0) return;
  output.exit_code = static_cast<int>(ErrorKind::verification_failed);
  output.note("vqgen: {} damaged; what is damaged is compiled again when it is wanted", damaged);
}

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

void require_trust(const std::filesystem::path& path, Trust trust) {
  const std::string why = distrust(path, trust);
  if (!why.empty()) throw Error(ErrorKind::bad_input, "code must not be loaded from there: " + why);
}

void add_cache(CLI::App& app, Output& output) {
  auto* cache = app.add_subcommand("cache", "Look at, check, bound and ship compiled kernels");
  cache->require_subcommand(1);
  auto arguments = std::make_shared<CacheArguments>();
  const auto add = [&](const char* name, const char* what) {
    auto* command = cache->add_subcommand(name, what);
    command->add_flag("--json", output.json, "One JSON document on stdout");
    return command;
  };

  add("ls", "List the entries of all layers")->callback([&output] { cache_ls(output); });
  add("verify", "Read everything; exit code 4 where something is damaged")->callback([&output] {
    cache_verify(output);
  });

  auto* explain = add("explain", "Say what a config's kernels are looked up by, and what is near");
  explain->add_option("config", arguments->config, "config.json")->required();
  explain->add_option("--gpu", arguments->gpu, "A profile's name, a JSON file, or auto");
  explain->callback(
      [arguments, &output] { cache_explain(arguments->config, arguments->gpu, output); });

  auto* gc = add("gc", "Remove what was used least recently, damaged files and leftovers");
  gc->add_option("--max-bytes", arguments->max_bytes,
                 "Of all entries; by default VQGEN_CACHE_MAX_BYTES, else 2 GiB");
  gc->add_option("--max-age", arguments->max_days, "In days since an entry was made or last used");
  gc->callback([arguments, &output] { cache_gc(*arguments, output); });
  add("clear", "Remove every file of the cache in the user's folder, and no other")
      ->callback([&output] { report(clear_cache(user_folder()), output); });

  auto* pack = add("pack", "Write the kernels of a folder as one file");
  pack->add_option("out", arguments->pack, "The .vqpack file to write")->required();
  pack->add_option("--from", arguments->folder, "A cache folder; by default the user's");
  pack->callback([arguments, &output] { cache_pack(arguments->pack, arguments->folder, output); });
  auto* unpack = add("unpack", "Put the kernels of a pack into a folder");
  unpack->add_option("pack", arguments->pack, "A .vqpack file")->required();
  unpack->add_option("--to", arguments->folder, "A cache folder; by default the user's");
  unpack->callback(
      [arguments, &output] { cache_unpack(arguments->pack, arguments->folder, output); });
}

}  // namespace vqgen::cli
