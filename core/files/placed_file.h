// A file that is written at any place of it, over several runs of a program: what a long job has
// finished stays when the job is killed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace vqgen {

// All errors are FileError(bad_input) that names the path. Not copied.
class PlacedFile {
 public:
  // Opens the file, or makes an empty one. What is in it stays.
  explicit PlacedFile(const std::filesystem::path& path);
  PlacedFile(const PlacedFile&) = delete;
  PlacedFile& operator=(const PlacedFile&) = delete;
  ~PlacedFile();

  std::uint64_t size() const;
  // Cuts the file, or lengthens it by zeros that take no space.
  void resize(std::uint64_t bytes);
  void write(std::uint64_t offset, std::span<const std::byte> bytes);
  // Returns once all that was written is on the disk.
  void sync();
  // Locks the file until this object ends; false if another process has locked it.
  bool lock();

 private:
  [[noreturn]] void fail(int error) const;

  std::filesystem::path path_;
  int descriptor_ = -1;
};

// Returns once the names in the folder are on the disk. FileError as above.
void sync_folder(const std::filesystem::path& folder);

}  // namespace vqgen
