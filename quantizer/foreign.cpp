#include "quantizer/foreign.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "core/error.h"
#include "core/files/files.h"
#include "core/json/json.h"

namespace vqgen {
namespace {

using namespace std::string_view_literals;

constexpr std::uint64_t kMostIndexBytes = 100'000'000;

struct Foreign {
  std::string_view begin;
  const char* what;
  const char* remedy;
};

constexpr const char* kConvert = "convert it with safetensors.torch.save_file()";

constexpr std::array kForeign{
    Foreign{"version https://git-lfs", "a pointer of Git LFS instead of the file",
            "fetch the file itself with 'git lfs pull'"},
    Foreign{"/annex/objects/", "a pointer of git-annex instead of the file",
            "fetch the file itself with 'git annex get'"},
    Foreign{"PK\3\4", "a zip archive, as torch.save() writes PyTorch's .bin and .pt", kConvert},
    Foreign{"\x80\2"sv, "a pickle, as older PyTorch writes .bin and .pt", kConvert},
    Foreign{"\x80\3"sv, "a pickle", kConvert},
    Foreign{"\x80\4"sv, "a pickle", kConvert},
    Foreign{"\x80\5"sv, "a pickle", kConvert},
    Foreign{"GGUF", "a GGUF file", "turn it into a model's folder with vqgen import"},
    Foreign{"\x93NUMPY", "an array of NumPy", "convert it with safetensors.numpy.save_file()"},
    Foreign{"\x89HDF", "an HDF5 file", "convert it with safetensors.numpy.save_file()"},
    Foreign{"\x1f\x8b", "compressed by gzip", "unpack it"},
    Foreign{"<!", "a page of HTML, as servers answer instead of a file", "fetch it again"},
    Foreign{"<html", "a page of HTML, as servers answer instead of a file", "fetch it again"}};

std::vector<std::string> names_ending(const std::filesystem::path& folder, std::string_view end) {
  std::vector<std::string> names;
  std::error_code code;
  for (auto each = std::filesystem::directory_iterator(folder, code);
       !code && each != std::filesystem::directory_iterator(); each.increment(code)) {
    const std::string name = each->path().filename().string();
    if (name.ends_with(end)) names.push_back(name);
  }
  if (code) {
    throw Error(ErrorKind::bad_input,
                fmt::format("{}: cannot list the folder: {}; name a file in it", folder.string(),
                            code.message()));
  }
  std::sort(names.begin(), names.end());
  return names;
}

// A name with control characters would break messages over lines.
bool has_control(std::string_view name) {
  return std::any_of(name.begin(), name.end(), [](unsigned char c) { return c < ' '; });
}

[[noreturn]] void refuse_folder(const std::filesystem::path& folder, const std::string& what) {
  throw Error(ErrorKind::bad_input, fmt::format("{}: the folder holds {}", folder.string(), what));
}

}  // namespace

std::filesystem::path tensors_at(const std::filesystem::path& path) {
  std::error_code code;
  if (!std::filesystem::is_directory(path, code)) return path;
  for (const char* end : {".safetensors.index.json", ".safetensors"}) {
    const std::vector<std::string> names = names_ending(path, end);
    if (names.size() == 1) return path / names[0];
    if (names.size() > 1) {
      refuse_folder(path, fmt::format("{} files ending in {}, such as {} and {}; name one of them",
                                      names.size(), end, names[0], names[1]));
    }
  }
  const std::vector<std::string> pickles = names_ending(path, ".bin");
  refuse_folder(path, pickles.empty()
                          ? "no safetensors file and no index of shards; name a file"
                          : fmt::format("{}, but no safetensors file; {}", pickles[0], kConvert));
}

// The length of a header, which a file of tensors begins with, has a zero in its eighth byte.
bool is_shard_index(const std::filesystem::path& path) {
  const OpenFile file(path);
  std::string begin(static_cast<std::size_t>(std::min<std::uint64_t>(file.size(), 8)), '\0');
  file.read(0, std::as_writable_bytes(std::span(begin)));
  return begin.starts_with('{') && begin.back() != '\0';
}

std::map<std::string, std::string> read_shard_index(const std::filesystem::path& path) {
  const std::string source = path.string();
  const Json json = parse_json(read_text(path, kMostIndexBytes), source);
  const JsonCursor root(json, source);
  if (!root.has("weight_map")) {
    root.fail("is JSON without the 'weight_map' of an index of shards; give a safetensors file");
  }
  std::map<std::string, std::string> shard_of;
  read_value(root.at("weight_map"), Rule{}, shard_of);
  const JsonCursor map = root.at("weight_map");
  for (const auto& [name, shard] : shard_of) {
    if (has_control(name + shard)) map.fail("a name holds a control character; fetch it again");
    if (shard.empty() || shard == "." || shard == ".." ||
        shard.find_first_of("/\\") != std::string::npos) {
      map.at(name).fail(
          fmt::format("'{}' is no name of a file beside the index; put the shard there", shard));
    }
  }
  return shard_of;
}

void refuse_foreign(std::string_view begin, const std::string& source) {
  constexpr std::size_t kHeader = 8;  // where a safetensors header begins with a brace
  if (begin.size() > kHeader && begin[kHeader] == '{') return;
  for (const Foreign& foreign : kForeign) {
    if (!begin.starts_with(foreign.begin)) continue;
    throw Error(ErrorKind::bad_input,
                fmt::format("{}: is {}; {}", source, foreign.what, foreign.remedy));
  }
  if (begin.size() >= kHeader && begin.starts_with('{') && begin[kHeader - 1] != '\0') {
    throw Error(ErrorKind::bad_input,
                fmt::format("{}: is JSON, no safetensors file; name the shard itself", source));
  }
}

}  // namespace vqgen
