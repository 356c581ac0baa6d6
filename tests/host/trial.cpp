#include "tests/host/trial.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <sstream>

#include "core/files/files.h"
#include "tests/kernel_cache.h"
#include "tests/message_of.h"

namespace vqgen::host_test {
namespace {

// Appends the header, with the headers that it includes in place of its include lines, each once.
void inline_header(const std::string& name, std::set<std::string>& seen, std::string& out) {
  if (!seen.insert(name).second) return;
  const std::filesystem::path templates = std::filesystem::path(VQGEN_SOURCE_DIR) / "templates";
  std::filesystem::path path = templates / "machine/host" / name;
  if (!std::filesystem::exists(path)) path = templates / name;
  std::istringstream lines(read_text(path));
  int number = 0;
  out += "#line 1 \"" + name + "\"\n";
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line == "#pragma once") line.clear();
    if (line.starts_with("#include <")) {
      inline_header(line.substr(10, line.find('>') - 10), seen, out);
      line = "#line " + std::to_string(number + 1) + " \"" + name + "\"";
    }
    out += line + "\n";
  }
}

template <class T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

const Artifact& compiled(const Backend& backend, const KernelSource& source, bool check_races) {
  static std::map<std::pair<std::string, bool>, Artifact> artifacts;
  const std::pair key(source.text, check_races);
  auto found = artifacts.find(key);
  if (found == artifacts.end()) found = artifacts.emplace(key, backend.compile(source)).first;
  return found->second;
}

struct Args {
  void* in;
  void* out;
};

}  // namespace

KernelSource source_of(const Trial& trial) {
  KernelSource source;
  source.op = "trial";
  source.machine = Machine::host;
  source.arch = "host";
  std::set<std::string> seen;
  inline_header("vq/machine.cuh", seen, source.text);
  source.text += "struct Args { const vq::u32* in; vq::u32* out; };\n#line 1 \"trial.cu\"\n";
  source.text += trial.text;
  source.entries = {{"trial", trial.grid, trial.threads, trial.shared_bytes}};
  source.args_bytes = sizeof(Args);
  return source;
}

std::vector<std::uint32_t> run(const Trial& trial, const HostOptions& options) {
  const std::unique_ptr<Backend> backend = vqgen::test::keeping_kernels(make_host_backend(options));
  const KernelSource source = source_of(trial);
  const std::unique_ptr<LoadedKernel> kernel =
      backend->load(compiled(*backend, source, options.check_races), source);
  const DeviceBuffer in(*backend, trial.in.size() * 4);
  const DeviceBuffer out(*backend, trial.out_words * 4);
  backend->upload(in.data(), bytes_of(trial.in));
  const std::vector<Args> args = {{in.data(), out.data()}};
  backend->launch(*kernel, source, 0, bytes_of(args));
  backend->synchronize();
  std::vector<std::uint32_t> result(trial.out_words);
  backend->download(std::as_writable_bytes(std::span(result)), out.data());
  return result;
}

std::string fault_of(const Trial& trial, const HostOptions& options) {
  return device_error([&] { run(trial, options); });
}

std::vector<HostOptions> all_orders(bool check_races) {
  std::vector<HostOptions> out(6);
  for (HostOptions& options : out) options.check_races = check_races;
  out[1].order = LaneOrder::reverse;
  for (std::size_t i = 2; i < out.size(); ++i) {
    out[i].order = LaneOrder::random;
    out[i].seed = i;
  }
  out[5].threads = 2;
  return out;
}

}  // namespace vqgen::host_test
