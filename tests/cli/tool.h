// The built vqgen as a process: arguments and environment in, exit code and both streams out.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/json/json.h"

namespace vqgen {

struct Outcome {
  int exit_code = 0;  // 128 + signal where a signal ended it
  std::string out;
  std::string err;
};

using Arguments = std::vector<std::string>;
using Variables = std::map<std::string, std::string>;

// Runs `vqgen ARGUMENTS` with `variables` over this process's environment. Compiled kernels are
// kept in one folder of the build tree, and no tuned tables but those that ship are asked, unless a
// variable says otherwise.
Outcome vqgen(const Arguments& arguments, const Variables& variables = {});

// The same of any program of PATH.
Outcome run_program(const std::string& program, const Arguments& arguments,
                    const Variables& variables = {});

// vqgen() as a user whom permissions bind: this one, or nobody where this is root. nullopt where
// nobody cannot run the tool.
std::optional<Outcome> vqgen_unprivileged(const Arguments& arguments, const Variables& variables);

// stdout is one JSON document and nothing else; a null value, and a failed test, otherwise.
Json document_of(const Outcome& outcome);

// The good end: exit code 0. Prints stderr where it is another.
void expect_success(const Outcome& outcome);

// The bad end, without and with --json: the exit code, exactly one line on stderr with all the
// words, and nothing on stdout, but with --json exactly one document that repeats them.
void expect_failure(const Arguments& arguments, int exit_code,
                    const std::vector<std::string>& words, const Variables& variables = {});

std::vector<std::string> lines_of(const std::string& text);

// Whether doctor finds it: "GPU", "NVRTC", "host compiler".
bool has(const std::string& what);

// An empty folder that goes away with the object.
class Folder {
 public:
  Folder();
  ~Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string path(const std::string& name) const { return (path_ / name).string(); }
  // Writes the file and gives its path.
  std::string file(const std::string& name, std::string_view text) const;
  // All files below the folder, relative, sorted.
  std::vector<std::string> names() const;

 private:
  std::filesystem::path path_;
};

inline std::string example(const std::string& name) {
  return VQGEN_SOURCE_DIR "/examples/configs/" + name + ".json";
}
inline std::string sample(const std::string& name) {
  return VQGEN_SOURCE_DIR "/tests/data/" + name + ".safetensors";
}

}  // namespace vqgen
