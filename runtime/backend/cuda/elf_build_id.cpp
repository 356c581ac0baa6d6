#include "runtime/backend/cuda/elf_build_id.h"

#include <elf.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <span>
#include <vector>

namespace vqgen {
namespace {

constexpr std::uint64_t kMaxNoteBytes = 1 << 16;  // real ones have a few hundred bytes

// `bytes` bytes from `offset`; nullopt past the end of the file.
std::optional<std::vector<unsigned char>> read_range(std::ifstream& file, std::uint64_t offset,
                                                     std::uint64_t bytes) {
  if (offset > std::uint64_t{1} << 40 || bytes > kMaxNoteBytes) return std::nullopt;
  std::vector<unsigned char> content(static_cast<std::size_t>(bytes));
  file.clear();
  file.seekg(static_cast<std::streamoff>(offset));
  file.read(reinterpret_cast<char*>(content.data()), static_cast<std::streamsize>(bytes));
  if (static_cast<std::uint64_t>(file.gcount()) != bytes) return std::nullopt;
  return content;
}

template <class T>
std::optional<T> read_struct(std::ifstream& file, std::uint64_t offset) {
  const auto content = read_range(file, offset, sizeof(T));
  if (!content) return std::nullopt;
  T value;
  std::memcpy(&value, content->data(), sizeof(T));
  return value;
}

std::size_t padded(std::size_t bytes) { return (bytes + 3) / 4 * 4; }

// A segment is a list of {header, name padded to 4, description padded to 4}.
std::optional<std::string> find_in_notes(std::span<const unsigned char> notes) {
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
      for (const unsigned char byte : description) hex += fmt::format("{:02x}", byte);
      return hex;
    }
    notes = notes.subspan(std::min(notes.size(), name_bytes + padded(note.n_descsz)));
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> gnu_build_id(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const auto header = read_struct<Elf64_Ehdr>(file, 0);
  if (!header || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 ||
      header->e_ident[EI_CLASS] != ELFCLASS64 || header->e_ident[EI_DATA] != ELFDATA2LSB ||
      header->e_phentsize != sizeof(Elf64_Phdr)) {
    return std::nullopt;
  }
  for (std::uint64_t i = 0; i < header->e_phnum; ++i) {
    const auto segment = read_struct<Elf64_Phdr>(file, header->e_phoff + i * sizeof(Elf64_Phdr));
    if (!segment) return std::nullopt;
    if (segment->p_type != PT_NOTE) continue;
    const auto notes = read_range(file, segment->p_offset, segment->p_filesz);
    if (!notes) continue;
    if (auto id = find_in_notes(*notes)) return id;
  }
  return std::nullopt;
}

bool is_elf(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const auto magic = read_range(file, 0, SELFMAG);
  return magic && std::memcmp(magic->data(), ELFMAG, SELFMAG) == 0;
}

}  // namespace vqgen
