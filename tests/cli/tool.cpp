#include "tests/cli/tool.h"

#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <sstream>
#include <stdexcept>

#include "core/files/files.h"

namespace vqgen {
namespace {

std::vector<std::string> environment_with(const Variables& variables) {
  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text(*entry);
    if (!variables.contains(text.substr(0, text.find('=')))) result.push_back(text);
  }
  for (const auto& [name, value] : variables) result.push_back(name + "=" + value);
  return result;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

// Only the build tree's kernels and tables.
Variables with_own_places(const Variables& variables) {
  Variables all = variables;
  all.insert({{"VQGEN_CACHE_DIR", VQGEN_KERNELS}, {"XDG_DATA_HOME", VQGEN_KERNELS}});
  return all;
}

std::size_t line_count(const std::string& text) {
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

}  // namespace

Outcome run_program(const std::string& program, const Arguments& arguments,
                    const Variables& variables) {
  const Folder folder;
  std::vector<std::string> command{program};
  command.insert(command.end(), arguments.begin(), arguments.end());
  std::vector<std::string> environment = environment_with(variables);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  for (const auto& [stream, name] : {std::pair(STDOUT_FILENO, "out"), {STDERR_FILENO, "err"}}) {
    posix_spawn_file_actions_addopen(&actions, stream, folder.path(name).c_str(),
                                     O_WRONLY | O_CREAT, 0600);
  }
  pid_t child = 0;
  const int failed = posix_spawnp(&child, program.c_str(), &actions, nullptr,
                                  pointers(command).data(), pointers(environment).data());
  posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) throw std::runtime_error("cannot start " + program);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
          read_text(folder.path("out")), read_text(folder.path("err"))};
}

Outcome vqgen(const Arguments& arguments, const Variables& variables) {
  return run_program(VQGEN_TOOL, arguments, with_own_places(variables));
}

std::optional<Outcome> vqgen_unprivileged(const Arguments& arguments, const Variables& variables) {
  if (::geteuid() != 0) return vqgen(arguments, variables);
  const auto as_nobody = [&](const Arguments& of_tool) {
    Arguments all{"--reuid=65534", "--regid=65534", "--clear-groups", "--", VQGEN_TOOL};
    all.insert(all.end(), of_tool.begin(), of_tool.end());
    return run_program("setpriv", all, with_own_places(variables));
  };
  if (as_nobody({"--version"}).exit_code != 0) return std::nullopt;
  return as_nobody(arguments);
}

Json document_of(const Outcome& outcome) {
  try {
    return parse_json(outcome.out, "stdout");
  } catch (const Error& error) {
    ADD_FAILURE() << error.what() << "\nstdout:\n" << outcome.out << "stderr:\n" << outcome.err;
    return nullptr;
  }
}

void expect_success(const Outcome& outcome) {
  EXPECT_EQ(outcome.exit_code, 0) << "stdout:\n" << outcome.out << "stderr:\n" << outcome.err;
}

void expect_failure(const Arguments& arguments, int exit_code,
                    const std::vector<std::string>& words, const Variables& variables) {
  for (const bool json : {false, true}) {
    Arguments all = arguments;
    if (json) all.emplace_back("--json");
    SCOPED_TRACE(testing::PrintToString(all));
    const Outcome outcome = vqgen(all, variables);
    EXPECT_EQ(outcome.exit_code, exit_code) << outcome.err;
    EXPECT_EQ(line_count(outcome.err), 1u) << outcome.err;
    EXPECT_TRUE(outcome.err.starts_with("vqgen: ") && outcome.err.ends_with('\n')) << outcome.err;
    for (const std::string& word : words) {
      EXPECT_NE(outcome.err.find(word), std::string::npos) << "'" << word << "': " << outcome.err;
    }
    if (!json) {
      EXPECT_EQ(outcome.out, "") << "what failed has no result";
      continue;
    }
    const Json document = document_of(outcome);
    ASSERT_TRUE(document.is_object());
    EXPECT_EQ(document.value("exit_code", -1), exit_code);
    EXPECT_EQ("vqgen: " + document.value("error", "") + "\n", outcome.err);
  }
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

bool has(const std::string& what) {
  const Json document = document_of(vqgen({"doctor", "--json"}));
  for (const Json& finding : document["findings"]) {
    if (finding["what"] == what) return finding["ok"];
  }
  throw std::logic_error("doctor says nothing of " + what);
}

Folder::Folder() {
  std::string name = (std::filesystem::temp_directory_path() / "vqgen-cli-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
  path_ = name;
}

Folder::~Folder() { std::filesystem::remove_all(path_); }

std::string Folder::file(const std::string& name, std::string_view text) const {
  publish_text(path_ / name, text);
  return path(name);
}

std::vector<std::string> Folder::names() const {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path_)) {
    if (entry.is_directory()) continue;
    names.push_back(entry.path().lexically_relative(path_).string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace vqgen
