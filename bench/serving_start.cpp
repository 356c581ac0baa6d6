// Start time of a server: the runtime with its context, then its ops, several at once. Run it twice
// with the same VQGEN_CACHE_DIR: the first run compiles, the second loads. VQGEN_CACHE_PATH loads
// from a pack; one CONFIG times the first op of a process. bench/runtime_figures.py runs all of
// these.
//
//   serving_start [--backend cuda|host] [--threads N] [--buckets N] [--json] CONFIG...
#include <vqgen/vqgen.hpp>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/json/json.h"

namespace {

struct Arguments {
  vqgen_options options = vqgen::default_options();
  int threads = static_cast<int>(std::thread::hardware_concurrency());
  bool json = false;
  std::vector<std::string> configs;  // their text
};

class Stopwatch {
 public:
  // Milliseconds since the last call.
  double lap() {
    const auto now = std::chrono::steady_clock::now();
    const std::chrono::duration<double, std::milli> spent = now - last_;
    last_ = now;
    return spent.count();
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error(path + ": cannot be read");
  return {std::istreambuf_iterator<char>(file), {}};
}

// Throws for what is no number and for unknown options.
Arguments read_arguments(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--json") {
      arguments.json = true;
    } else if (word.starts_with("--")) {
      const std::string value = ++i < argc ? argv[i] : "";
      if (word == "--backend" && (value == "host" || value == "cuda")) {
        arguments.options.backend = value == "host" ? VQGEN_HOST : VQGEN_CUDA;
      } else if (word == "--threads") {
        arguments.threads = std::stoi(value);
      } else if (word == "--buckets") {
        arguments.options.max_buckets = std::stoi(value);
      } else {
        throw std::invalid_argument(word);
      }
    } else {
      arguments.configs.push_back(text_of(word));
    }
  }
  if (arguments.configs.empty()) throw std::invalid_argument("no CONFIG");
  return arguments;
}

void run(const Arguments& arguments) {
  Stopwatch watch;
  const vqgen::Runtime runtime(arguments.options);
  const double context_ms = watch.lap();
  runtime.prefetch(arguments.configs, arguments.threads);
  const double ops_ms = watch.lap();
  std::size_t kernels = 0;
  std::size_t compiled = 0;
  std::set<std::string> rungs;  // rungs of the ladder that plans came from, docs/guides/tuning.md
  for (const std::string& each : arguments.configs) {
    const vqgen::Op op = runtime.prepare(each);
    const vqgen::Json description = vqgen::Json::parse(op.description());
    for (const vqgen::Json& bucket : description["buckets"]) {
      ++kernels;
      compiled += bucket["provenance"] == "compiled";
      rungs.insert(bucket["plan_from"]["rung"]);
    }
  }
  if (arguments.json) {
    const vqgen::Json json = {
        {"context_ms", context_ms},    {"ops_ms", ops_ms},     {"ops", arguments.configs.size()},
        {"kernels", kernels},          {"compiled", compiled}, {"rungs", rungs},
        {"threads", arguments.threads}};
    std::printf("%s\n", json.dump().c_str());
    return;
  }
  std::printf("%8.2f ms  runtime and context\n", context_ms);
  std::printf("%8.2f ms  %zu ops of %zu kernels, %zu compiled, %d threads\n", ops_ms,
              arguments.configs.size(), kernels, compiled, arguments.threads);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(read_arguments(argc, argv));
  } catch (const std::invalid_argument& error) {
    std::fprintf(stderr,
                 "serving_start: %s: usage: serving_start [--backend cuda|host] [--threads N] "
                 "[--buckets N] [--json] CONFIG...\n",
                 error.what());
    return 2;
  } catch (const vqgen::StatusError& error) {  // 5 where compiler, driver or device are missing
    std::fprintf(stderr, "serving_start: %s\n", error.what());
    return error.status() == VQGEN_DEVICE ? 5 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "serving_start: %s\n", error.what());
    return 1;
  }
  return 0;
}
