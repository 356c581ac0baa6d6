// vqgen doctor: what works on this machine, and what to do where something does not.
#include <algorithm>
#include <filesystem>

#include "cli/command.h"
#include "core/files/files.h"
#include "core/profiles.h"
#include "generator/generate.h"
#include "runtime/cache/places.h"

namespace vqgen::cli {
namespace {

struct Finding {
  std::string what;
  bool ok = false;
  std::string detail;
  int exit_code = 0;  // of commands that need it, if it is missing
};

Finding device_finding(const Backend& cuda) {
  const std::optional<GpuSpec> device = cuda.device();
  if (!device) {
    return {"GPU", false, "none found; kernels compile all the same and run on the host backend"};
  }
  return {"GPU", true,
          fmt::format("{} ({}), {} SMs, {} bytes of shared memory per block", device->name,
                      device->arch, device->sms, device->shared_bytes_per_block)};
}

// The name alone may come from the disk, so NVRTC has to compile something too.
Finding compiler_finding(const char* what, const Backend& backend) {
  KernelSource probe;
  probe.op = "probe";
  probe.machine = backend.machine();
  probe.arch = backend.machine() == Machine::cuda ? "sm_80" : "host";
  probe.text = "extern \"C\" __global__ void vqgen_probe() {}\n";
  probe.entries = {{.name = "vqgen_probe", .grid = {}, .threads = 32}};
  try {
    if (backend.machine() == Machine::cuda) backend.compile(probe);
    return {what, true, backend.compiler(probe).name};
  } catch (const Error& error) {
    // Without a GPU compiler there is no cubin; a missing host compiler does not affect GPUs.
    const bool needed = backend.machine() == Machine::cuda;
    return {what, false, error.what(), needed ? error.exit_code() : 0};
  }
}

Finding cache_finding(const CacheOptions& options) {
  if (!options.folder) {
    return {"kernel cache", false, "no place; set VQGEN_CACHE_DIR, XDG_CACHE_HOME or HOME"};
  }
  if (const std::string why = distrust(*options.folder, Trust::own); !why.empty()) {
    return {"kernel cache", false, why};
  }
  try {
    make_closed_folders(*options.folder);
    const std::filesystem::path probe = *options.folder / "doctor-probe";
    publish_text(probe, "probe");
    std::filesystem::remove(probe);
    return {"kernel cache", true, options.folder->string()};
  } catch (const std::exception& error) {
    return {"kernel cache", false, std::string("cannot be written: ") + error.what()};
  }
}

// Finding about a folder or pack of VQGEN_CACHE_PATH.
Finding layer_finding(const std::filesystem::path& path) {
  const ArtifactCache cache(CacheOptions{.read_only = {path}});
  if (!cache.warning().empty()) return {"cache layer", false, cache.warning()};
  return {"cache layer", true, path.string()};
}

// Findings about each table that plans are looked up in, in order of precedence; each is read
// whole.
std::vector<Finding> table_findings(const Environment& environment) {
  std::vector<Finding> findings;
  const auto add = [&](const std::string& name, const auto& read) {
    try {
      findings.push_back(
          {"tuned table", true, fmt::format("{}: {} rows", name, read().rows.size())});
    } catch (const Error& error) {
      findings.push_back({"tuned table", false, error.what(), error.exit_code()});
    }
  };
  for (const std::filesystem::path& path : table_files(environment.tuned)) {
    add(path.string(), [&] { return read_table(path); });
  }
  for (const ShippedTable& each : shipped_tables()) {
    add(each.name, [&] { return read_table(each.text, each.name); });
  }
  if (findings.empty()) findings.push_back({"tuned table", true, "none; plans are chosen"});
  return findings;
}

void doctor(Output& output) {
  output.step("looking at this machine");
  const Environment environment = read_environment();
  const std::unique_ptr<Backend> cuda = make_cuda(environment);
  const std::unique_ptr<Backend> host = make_host(environment);
  const CacheOptions cache = cache_options(environment.cache);
  std::vector<Finding> findings{device_finding(*cuda), compiler_finding("NVRTC", *cuda),
                                compiler_finding("host compiler", *host), cache_finding(cache)};
  for (const auto& path : cache.read_only) findings.push_back(layer_finding(path));
  for (Finding& each : table_findings(environment)) findings.push_back(std::move(each));
  output.document["version"] = VQGEN_VERSION;
  output.document["gpus"] = gpu_names();
  output.document["formats"] = format_names();
  for (const Finding& finding : findings) {
    output.line("{:<14} {:<8} {}", finding.what, finding.ok ? "ok" : "missing",
                one_line(finding.detail));
    output.document["findings"].push_back(
        {{"what", finding.what}, {"ok", finding.ok}, {"detail", finding.detail}});
    output.exit_code = std::max(output.exit_code, finding.exit_code);
  }
  if (output.exit_code != 0) {
    output.note("vqgen: commands will fail on this machine; see what doctor calls missing");
  }
}

}  // namespace

void add_doctor(CLI::App& app, Output& output) {
  auto* command = app.add_subcommand(
      "doctor",
      "Say what works on this machine; exit code 5 without NVRTC, 2 with a damaged tuned table");
  add_examples(*command, "vqgen doctor", "vqgen doctor --json");
  command->callback([&output] { doctor(output); });
}

}  // namespace vqgen::cli
