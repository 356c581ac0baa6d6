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

// Locks the table's folder, not a file in it. A lock file that is removed with its lock lets in two
// processes, one that waited for the old file and one that made a new one; a file that stays
// litters the folder.
OwnedFile locked_folder(const std::filesystem::path& table, std::chrono::milliseconds longest) {
  const std::filesystem::path folder = table.has_parent_path() ? table.parent_path() : ".";
  OwnedFile file(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (file.get() < 0) {
    const int error = errno;
    throw FileError(error, fmt::format("{}: cannot write: {}: {}; choose a folder that can be read "
                                       "and written",
                                       table.string(), folder.string(), std::strerror(error)));
  }
  const auto until = std::chrono::steady_clock::now() + longest;
  while (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    const int error = errno;
    if (error != EWOULDBLOCK && error != EINTR) {
      throw FileError(error, fmt::format("{}: cannot lock {}: {}; choose a folder of a file system "
                                         "with locks (flock), such as a local one",
                                         table.string(), folder.string(), std::strerror(error)));
    }
    if (std::chrono::steady_clock::now() >= until) {
      throw Error(ErrorKind::bad_input,
                  fmt::format("{}: another process has held the lock of {} for {} s; end it if it "
                              "hangs, and do this again",
                              table.string(), folder.string(),
                              std::chrono::ceil<std::chrono::seconds>(longest).count()));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return file;
}

// Throws Error(bad_input) unless readers take the row back: a written table must be readable.
void require_readable(const TunedRow& row, const std::string& where) {
  read_table(table_text({{row}}), where);
}

}  // namespace

TunedTable change_table(const std::filesystem::path& path,
                        const std::function<TunedTable(TunedTable)>& change,
                        std::chrono::milliseconds longest) {
  const OwnedFile lock = locked_folder(path, longest);
  TunedTable table;
  if (std::filesystem::exists(path)) table = read_table(path);
  table = change(std::move(table));
  write_table(path, table);
  return table;
}

TunedTable put_row(const std::filesystem::path& path, const TunedRow& row,
                   std::chrono::milliseconds longest) {
  require_readable(row, path.string() + ": the new row");
  return change_table(
      path,
      [&](TunedTable table) {
        const std::string key = tuned_key(row);
        std::erase_if(table.rows, [&](const TunedRow& each) { return tuned_key(each) == key; });
        table.rows.push_back(row);
        return table;
      },
      longest);
}

TunedTable writable_table(const std::filesystem::path& path) {
  const OwnedFile lock = locked_folder(path, kTableLockWait);
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
  const OwnedFile lock = locked_folder(path, kTableLockWait);
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
