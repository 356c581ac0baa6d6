// vqgen completion: the script by which a shell completes vqgen's command lines, made of the
// declared options. Names of GPUs, formats and sweeps are asked of `vqgen list` when they are due.
#include "cli/command.h"
#include "cli/completion_scripts.h"

namespace vqgen::cli {

std::string quoted(const std::string& text, const std::map<char, std::string>& others) {
  std::string result;
  for (const char c : text) {
    const auto other = others.find(c);
    result += other == others.end() ? std::string(1, c) : other->second;
  }
  return "'" + result + "'";
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

std::vector<std::string> quoted_paths(const CLI::App& app) {
  std::vector<std::string> paths;
  for (const CLI::App* command : all_commands(app)) {
    if (command != &app) paths.push_back("'" + path_of(*command) + "'");
  }
  return paths;
}

const CLI::Option* argument_of(const CLI::App& command) {
  const CLI::Option* last = nullptr;
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_positional()) last = option;
  }
  return last;
}

std::vector<const CLI::Option*> options_of(const CLI::App& command) {
  return command.get_options([](const CLI::Option* each) { return !each->get_positional(); });
}

const char* word_of(Values values) {
  switch (values) {
    case Values::gpus:
      return "gpus";
    case Values::formats:
      return "formats";
    case Values::sweeps:
      return "sweeps";
    case Values::json_files:
      return "json";
    case Values::files:
      return "files";
    default:
      return "none";
  }
}

void add_completion(CLI::App& app, Output&) {
  auto* command = app.add_subcommand("completion", "Print the completion script of a shell");
  command->group("");
  auto shell = std::make_shared<std::string>();
  command->add_option("shell", *shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  command->callback([&app, shell] {
    const std::string script = *shell == "bash"  ? bash_completion(app)
                               : *shell == "zsh" ? zsh_completion(app)
                                                 : fish_completion(app);
    std::fputs(script.c_str(), stdout);
  });
}

}  // namespace vqgen::cli
