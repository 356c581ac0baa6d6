#include "runtime/backend/cuda/nvrtc_file.h"

#include <dlfcn.h>
#include <elf.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <fstream>
#include <set>
#include <span>

#include "core/files/files.h"
#include "runtime/backend/backend.h"

namespace vqgen {
namespace {

constexpr const char* kNames[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"};
constexpr std::string_view kLibrary = "libnvrtc.so";
constexpr std::string_view kBuiltins = "libnvrtc-builtins.so.";

// Places of vqgen-nvrtc, relative to the folder of the code or absolute, in order of trial.
constexpr const char* kHelperPlaces[] = {VQGEN_NVRTC_HELPER_PLACES};

constexpr std::uint64_t kMaxNoteBytes = 1 << 16;  // real ones have a few hundred bytes

// ".13.0.88" is 13, 0, 88; what is no number ends them.
std::vector<int> numbers_in(std::string_view text) {
  std::vector<int> numbers;
  for (;;) {
    if (text.starts_with('.')) text.remove_prefix(1);
    int number = 0;
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (code != std::errc{} || number < 0) return numbers;
    numbers.push_back(number);
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  }
}

// Major and minor of the version that goes with the library, whose major may be known, by the names
// in its folder; nothing where two do.
std::vector<int> version_of_builtins(const std::filesystem::path& folder,
                                     const std::vector<int>& known) {
  std::set<std::vector<int>> found;
  std::error_code code;
  std::filesystem::directory_iterator entries(folder, code);
  for (; !code && entries != std::filesystem::directory_iterator(); entries.increment(code)) {
    const std::string name = entries->path().filename().string();
    if (!name.starts_with(kBuiltins)) continue;
    std::vector<int> version = numbers_in(std::string_view(name).substr(kBuiltins.size()));
    if (version.size() < 2 || (!known.empty() && version[0] != known[0])) continue;
    version.resize(2);
    found.insert(version);
  }
  return found.size() == 1 ? *found.begin() : std::vector<int>{};
}

bool is_elf(const std::filesystem::path& path) {
  char magic[SELFMAG] = {};
  std::ifstream(path, std::ios::binary).read(magic, SELFMAG);
  return std::memcmp(magic, ELFMAG, SELFMAG) == 0;
}

std::optional<NvrtcFile> describe(const std::filesystem::path& path) {
  if (!is_elf(path)) return std::nullopt;
  std::error_code code;
  const auto real = std::filesystem::canonical(path, code);
  const std::string name = real.filename().string();
  if (code || !name.starts_with(kLibrary)) return std::nullopt;
  std::vector<int> version = numbers_in(std::string_view(name).substr(kLibrary.size()));
  if (version.size() == 2 && version[0] == 11) version.pop_back();  // 11.2 to 11.8 are all "11.2"
  if (version.size() < 2) version = version_of_builtins(real.parent_path(), version);
  if (version.size() < 2) return std::nullopt;
  return NvrtcFile{path, version[0], version[1], nvrtc_build(path)};
}

bool has_library(const std::filesystem::path& folder) {
  std::error_code ignored;
  return std::any_of(std::begin(kNames), std::end(kNames), [&](const char* name) {
    return !folder.empty() && std::filesystem::exists(folder / name, ignored);
  });
}

template <class T>
T read_struct(const OpenFile& file, std::uint64_t offset) {
  T value;
  file.read(offset, std::as_writable_bytes(std::span(&value, 1)));
  return value;
}

std::size_t padded(std::size_t bytes) { return (bytes + 3) / 4 * 4; }

// A segment is a list of {header, name padded to 4, description padded to 4}.
std::optional<std::string> find_in_notes(std::span<const std::byte> notes) {
  while (notes.size() >= sizeof(Elf64_Nhdr)) {
    Elf64_Nhdr note;
    std::memcpy(&note, notes.data(), sizeof note);
    notes = notes.subspan(sizeof note);
    const std::size_t name_bytes = padded(note.n_namesz);
    if (name_bytes > notes.size() || note.n_descsz > notes.size() - name_bytes) return std::nullopt;
    const auto description = notes.subspan(name_bytes, note.n_descsz);
    if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && !description.empty() &&
        std::memcmp(notes.data(), "GNU", 4) == 0) {
      std::string hex;
      for (const std::byte byte : description) hex += fmt::format("{:02x}", byte);
      return hex;
    }
    notes = notes.subspan(std::min(notes.size(), name_bytes + padded(note.n_descsz)));
  }
  return std::nullopt;
}

std::optional<std::string> find_build_id(const OpenFile& file) {
  const auto header = read_struct<Elf64_Ehdr>(file, 0);
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64 ||
      header.e_ident[EI_DATA] != ELFDATA2LSB || header.e_phentsize != sizeof(Elf64_Phdr)) {
    return std::nullopt;
  }
  for (std::uint64_t i = 0; i < header.e_phnum; ++i) {
    const auto segment = read_struct<Elf64_Phdr>(file, header.e_phoff + i * sizeof(Elf64_Phdr));
    if (segment.p_type != PT_NOTE || segment.p_filesz > kMaxNoteBytes) continue;
    std::vector<std::byte> notes(segment.p_filesz);
    file.read(segment.p_offset, notes);
    if (auto id = find_in_notes(notes)) return id;
  }
  return std::nullopt;
}

// The folder of the program or shared library that this code is linked into.
std::filesystem::path own_folder() {
  Dl_info info{};
  void* extra = nullptr;
  std::error_code ignored;
  const auto* const here = reinterpret_cast<const void*>(&own_folder);
  const bool told = ::dladdr1(here, &info, &extra, RTLD_DL_LINKMAP) != 0;
  const char* const library = told ? static_cast<const link_map*>(extra)->l_name : "";
  // The loader has no name for the program itself, and argv[0] may be any.
  const bool program = *library == '\0';
  const std::filesystem::path file = program
                                         ? std::filesystem::read_symlink("/proc/self/exe", ignored)
                                         : std::filesystem::canonical(library, ignored);
  return file.parent_path();
}

}  // namespace

std::vector<std::filesystem::path> nvrtc_candidates(const std::filesystem::path& path,
                                                    const std::filesystem::path& beside) {
  std::vector<std::filesystem::path> all;
  const auto add_folder = [&](const std::filesystem::path& folder) {
    for (const char* name : kNames) all.push_back(folder / name);
  };
  std::error_code ignored;
  if (!path.empty() && std::filesystem::is_directory(path, ignored)) {
    add_folder(path);
  } else if (!path.empty()) {
    all.push_back(path);
  } else {
    // The first may be one of another machine, or gone; the other has one where it was installed.
    for (const std::filesystem::path& folder : {std::filesystem::path(VQGEN_NVRTC_HINT), beside}) {
      if (has_library(folder)) add_folder(folder);
    }
    add_folder("");
    add_folder("/usr/local/cuda/lib64");
  }
  return all;
}

// Wheels of some 12.x have no build id; the file's size stands in.
std::string nvrtc_build(const std::filesystem::path& path) {
  if (const auto id = gnu_build_id(path)) return "build-id " + *id;
  std::error_code code;
  const auto bytes = std::filesystem::file_size(path, code);
  return code ? "build unknown" : fmt::format("size {}", bytes);
}

std::optional<NvrtcFile> find_nvrtc(const std::filesystem::path& path,
                                    const std::filesystem::path& beside) {
  for (const std::filesystem::path& candidate : nvrtc_candidates(path, beside)) {
    if (!candidate.has_parent_path()) return std::nullopt;
    std::error_code ignored;
    if (std::filesystem::exists(candidate, ignored)) return describe(candidate);
  }
  return std::nullopt;
}

std::optional<std::string> gnu_build_id(const std::filesystem::path& path) {
  try {
    return find_build_id(OpenFile(path));
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::string find_nvrtc_helper(const std::string& given) {
  std::vector<std::string> tried;
  if (!given.empty()) {
    tried = {given};
  } else {
    const std::filesystem::path folder = own_folder();
    for (const char* place : kHelperPlaces) {
      tried.push_back((folder / place / "vqgen-nvrtc").lexically_normal().string());
    }
  }
  for (const std::string& path : tried) {
    std::error_code ignored;
    const bool file = std::filesystem::is_regular_file(path, ignored);
    if (file && ::access(path.c_str(), X_OK) == 0) return std::filesystem::absolute(path).string();
  }
  throw device_error(
      "vqgen-nvrtc, the program in which NVRTC runs, was not found; tried {}; install vqgen whole, "
      "or set VQGEN_NVRTC_HELPER to it",
      fmt::join(tried, ", "));
}

std::filesystem::path nvrtc_helper_folder(const std::string& given) {
  try {
    return std::filesystem::path(find_nvrtc_helper(given)).parent_path();
  } catch (const Error&) {
    return {};  // who needs it says so
  }
}

}  // namespace vqgen
