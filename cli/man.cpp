// vqgen man: the manual page, in the macros of man(7), made of the declared options.
#include <fmt/ranges.h>

#include "cli/command.h"
#include "cli/command_tree.h"

namespace vqgen::cli {
namespace {

// Text in which no character is a request, and hyphens are those that people type and search.
std::string plain(const std::string& text) {
  std::string result;
  for (const char c : replaced(text, {{'\\', "\\e"}, {'-', "\\-"}})) {
    const bool begins = result.empty() || result.back() == '\n';
    if (begins && (c == '.' || c == '\'')) result += "\\&";
    result += c;
  }
  return result;
}

void print_option(const CLI::Option& option) {
  const std::vector<std::string> names = names_of(option);
  std::string head =
      names.empty() ? option.get_name(true) : fmt::format("{}", fmt::join(names, ", "));
  if (const std::string value = placeholder_of(option); !value.empty() && !names.empty()) {
    head += " " + value;
  }
  fmt::print(".TP\n.B {}\n{}", plain(head), plain(option.get_description()));
  if (option.get_required()) fmt::print(" (required)");
  if (!option.get_default_str().empty()) fmt::print(" [{}]", plain(option.get_default_str()));
  fmt::print("\n");
}

void print_command(const CLI::App& command) {
  std::string head = full_name(command);
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_positional()) head += " " + option->get_name(true);
  }
  fmt::print(".SS {}\n{}\n", plain(head), plain(command.get_description()));
  for (const bool positional : {true, false}) {
    for (const CLI::Option* option : command.get_options()) {
      const bool help = option == command.get_help_ptr();  // which all have
      if (option->get_positional() == positional && !help) print_option(*option);
    }
  }
  fmt::print(".PP\n.EX\n");
  for (const std::string& line : examples_of(command)) fmt::print("{}\n", plain(line));
  fmt::print(".EE\n");
}

// The variables of docs/reference/environment.md, in its order; a test compares them.
constexpr std::pair<const char*, const char*> kVariables[] = {
    {"VQGEN_CACHE_DIR", "Folder of compiled kernels."},
    {"VQGEN_CACHE_PATH", "Folders and packs of kernels that are only read, with colons between."},
    {"VQGEN_CACHE_MAX_BYTES", "Bound of the folder of compiled kernels."},
    {"VQGEN_TUNED_PATH", "Tuned tables that plans are looked up in, with colons between."},
    {"VQGEN_NVRTC", "libnvrtc or its folder."},
    {"VQGEN_NVRTC_HELPER", "The program vqgen\\-nvrtc, in which NVRTC runs."},
    {"VQGEN_DEPENDENT_LAUNCHES",
     "0: no kernel begins before what is before it on the stream ends."},
    {"VQGEN_CXX", "Compiler of the host backend."}};

void print_page(const CLI::App& app) {
  const std::string description = app.get_description();
  const std::size_t end = description.find('\n');
  fmt::print(".TH VQGEN 1 \"\" \"vqgen {}\" \"User Commands\"\n", VQGEN_VERSION);
  fmt::print(".SH NAME\nvqgen \\- generate fused vector\\-quantization kernels\n");
  fmt::print(".SH SYNOPSIS\n.B vqgen\n.I COMMAND\n[\\fIOPTIONS\\fR]\n");
  fmt::print(".SH DESCRIPTION\n{}\n", plain(description.substr(0, end)));
  for (const CLI::Option* option : app.get_options()) print_option(*option);
  fmt::print(".SH COMMANDS\n");
  for (const CLI::App* command : all_commands(app)) {
    if (shown_subcommands(*command).empty()) print_command(*command);
  }
  fmt::print(".SH EXIT STATUS\n{}\n", plain(description.substr(end + 1)));
  fmt::print(".SH ENVIRONMENT\n");
  for (const auto& [name, meaning] : kVariables) fmt::print(".TP\n.B {}\n{}\n", name, meaning);
  fmt::print(".SH SEE ALSO\n.BR nvcc (1)\n");
}

}  // namespace

void add_man(CLI::App& app, Output&) {
  auto* command = app.add_subcommand("man", "Print the manual page");
  command->group("");
  command->callback([&app] { print_page(app); });
}

}  // namespace vqgen::cli
