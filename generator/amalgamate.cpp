#include "generator/amalgamate.h"

#include <fmt/format.h>

#include <set>
#include <stdexcept>

#include "generator/embedded_templates.h"

namespace vqgen {
namespace {

class Amalgamator {
 public:
  explicit Amalgamator(Machine machine)
      : machine_folder_(machine == Machine::cuda ? "machine/cuda/" : "machine/host/") {}

  void add(std::string_view path) {
    if (!seen_.insert(std::string(path)).second) return;
    std::string_view text = find(path);
    mark(1, path);
    for (int line = 1; !text.empty(); ++line) {
      const std::size_t end = text.find('\n');
      add_line(text.substr(0, end), line, path);
      text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    }
  }

  std::string take() { return std::move(text_); }

 private:
  std::string_view find(std::string_view path) const {
    const std::string on_machine = machine_folder_ + std::string(path);
    std::string_view found;
    for (const EmbeddedFile& file : embedded_templates()) {
      if (file.path == on_machine) return file.text;
      if (file.path == path) found = file.text;
    }
    if (found.empty()) throw std::logic_error("no template " + std::string(path));
    return found;
  }

  void mark(int line, std::string_view path) {
    text_ += fmt::format("#line {} \"{}\"\n", line, path);
  }

  void add_line(std::string_view line, int number, std::string_view path) {
    constexpr std::string_view kInclude = "#include <vq/";
    if (line == "#pragma once") {
      text_ += '\n';
    } else if (line.starts_with(kInclude)) {
      const std::size_t begin = line.find('<') + 1;
      add(line.substr(begin, line.find('>') - begin));
      mark(number + 1, path);
    } else {
      text_ += line;
      text_ += '\n';
    }
  }

  std::string machine_folder_;
  std::set<std::string> seen_;
  std::string text_;
};

}  // namespace

std::string amalgamate(Machine machine, const std::vector<std::string>& paths) {
  Amalgamator amalgamator(machine);
  for (const std::string& path : paths) amalgamator.add(path);
  return amalgamator.take();
}

}  // namespace vqgen
