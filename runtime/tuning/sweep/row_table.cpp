#include "runtime/tuning/sweep/sweep.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "core/files/files.h"
#include "runtime/process/child.h"

namespace vqgen {
namespace {

// A lock of the folder of a table and not of a file in it: a file that goes with its lock lets in
// one that made it anew beside one that waited for the old one, and a file that stays litters the
// folder.
OwnedFile locked_folder(const std::filesystem::path& table) {
  const std::filesystem::path folder = table.has_parent_path() ? table.parent_path() : ".";
  OwnedFile file(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  constexpr std::chrono::seconds kLongest{10};
  const auto until = std::chrono::steady_clock::now() + kLongest;
  while (file.get() >= 0 && ::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) break;
    if (std::chrono::steady_clock::now() >= until) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return file;
}

}  // namespace

TunedTable put_row(const std::filesystem::path& path, const TunedRow& row) {
  const OwnedFile lock = locked_folder(path);
  TunedTable table;
  if (std::filesystem::exists(path)) table = read_table(path);
  const std::string key = tuned_key(row);
  std::erase_if(table.rows, [&](const TunedRow& each) { return tuned_key(each) == key; });
  table.rows.push_back(row);
  write_table(path, table);
  return table;
}

TunedTable writable_table(const std::filesystem::path& path) {
  const OwnedFile lock = locked_folder(path);
  if (std::filesystem::exists(path)) {
    TunedTable table = read_table(path);
    write_table(path, table);
    return table;
  }
  const std::filesystem::path beside = path.string() + fmt::format(".{}.try", ::getpid());
  try {
    write_table(beside, {});
  } catch (const FileError& error) {
    throw FileError(error.code(),
                    fmt::format("{}: cannot write: {}; choose a place that can be written",
                                path.string(), std::strerror(error.code())));
  }
  std::filesystem::remove(beside);
  return {};
}

TunedTable made_table(const std::filesystem::path& path) {
  const OwnedFile lock = locked_folder(path);
  if (!std::filesystem::exists(path)) write_table(path, {});
  return read_table(path);
}

const TunedRow* find_row(const TunedTable& table, const std::string& key) {
  const auto found = std::find_if(table.rows.begin(), table.rows.end(),
                                  [&](const TunedRow& row) { return tuned_key(row) == key; });
  return found == table.rows.end() ? nullptr : &*found;
}

void require_class(const GpuSpec& gpu, const std::optional<GpuSpec>& device) {
  if (!device || device->name == gpu.name) return;
  throw Error(ErrorKind::bad_input,
              fmt::format("the GPU to plan for is {}, the device is {}: its times are no row of "
                          "the other; leave out --gpu and the config's gpu, or tune on a {}",
                          gpu.name, device->name, gpu.name));
}

}  // namespace vqgen
