#include <algorithm>

#include "runtime/environment.h"

namespace vqgen {
namespace {

bool is_absolute(const std::optional<std::string>& value) {
  return value && std::filesystem::path(*value).is_absolute();
}

std::vector<std::filesystem::path> tables_in(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  std::error_code code;
  for (std::filesystem::directory_iterator each(folder, code), end; !code && each != end;
       each.increment(code)) {
    if (each->path().extension() == ".jsonl") files.push_back(each->path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

std::optional<std::filesystem::path> default_tuned_dir(const TunedEnvironment& environment) {
  if (is_absolute(environment.xdg_data_home)) {
    return std::filesystem::path(*environment.xdg_data_home) / "vqgen" / "tuned";
  }
  if (is_absolute(environment.home)) {
    return std::filesystem::path(*environment.home) / ".local" / "share" / "vqgen" / "tuned";
  }
  return std::nullopt;
}

std::vector<std::filesystem::path> table_files(const TunedEnvironment& environment) {
  if (!environment.vqgen_tuned_path || environment.vqgen_tuned_path->empty()) {
    const auto folder = default_tuned_dir(environment);
    return folder ? tables_in(*folder) : std::vector<std::filesystem::path>();
  }
  std::vector<std::filesystem::path> files;
  for (const std::filesystem::path& part : split_path(*environment.vqgen_tuned_path)) {
    std::error_code code;
    if (!std::filesystem::is_directory(part, code)) {
      files.push_back(part);
      continue;
    }
    const std::vector<std::filesystem::path> inside = tables_in(part);
    files.insert(files.end(), inside.begin(), inside.end());
  }
  return files;
}

std::shared_ptr<const TunedTables> find_tables(const TunedEnvironment& environment, Damage damage) {
  auto tables = std::make_shared<TunedTables>(damage);
  for (const std::filesystem::path& file : table_files(environment)) tables->add_file(file);
  tables->add_shipped();
  return tables;
}

}  // namespace vqgen
