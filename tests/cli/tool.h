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
  int exit_code = 0;  // 128 + signal if a signal ended it
  std::string out;
  std::string err;
};

using Arguments = std::vector<std::string>;
using Variables = std::map<std::string, std::string>;

// Runs `vqgen ARGUMENTS` with `variables` over this process's environment. Compiled kernels are
// kept in one folder of the build tree, and only shipped tuned tables are consulted, unless a
// variable says otherwise.
Outcome vqgen(const Arguments& arguments, const Variables& variables = {});

// Runs any program of PATH like vqgen().
Outcome run_program(const std::string& program, const Arguments& arguments,
                    const Variables& variables = {});

// vqgen() as a user without root's permissions: this user, or nobody if this is root. Returns
// nullopt if nobody cannot run the tool.
std::optional<Outcome> vqgen_unprivileged(const Arguments& arguments, const Variables& variables);

// Expects stdout to be exactly one JSON document; else returns null and fails the test.
Json document_of(const Outcome& outcome);

// Expects exit code 0; prints stderr otherwise.
void expect_success(const Outcome& outcome);

// Expects a failure without and with --json: the exit code, exactly one line on stderr with all the
// words, and an empty stdout, which with --json is exactly one document that repeats them.
void expect_failure(const Arguments& arguments, int exit_code,
                    const std::vector<std::string>& words, const Variables& variables = {});

std::vector<std::string> lines_of(const std::string& text);

// True if doctor finds it: "GPU", "NVRTC", "host compiler".
bool has(const std::string& what);

// An empty folder that the object removes.
class Folder {
 public:
  Folder();
  ~Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string path(const std::string& name) const { return (path_ / name).string(); }
  // Writes the file and returns its path.
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
