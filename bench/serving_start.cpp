// What a server waits for at its start: the runtime with its context, the first op, and then the
// rest of its ops, several at once. Run it twice with the same VQGEN_CACHE_DIR: the first run
// compiles, the second loads. With VQGEN_CACHE_PATH it loads from a pack.
//
//   serving_start [--threads N] CONFIG...
#include <vqgen/vqgen.hpp>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

namespace {

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

std::string text_of(const char* path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error(std::string(path) + ": cannot be read");
  return {std::istreambuf_iterator<char>(file), {}};
}

void run(int threads, const std::vector<std::string>& configs) {
  Stopwatch watch;
  const vqgen::Runtime runtime;
  std::printf("%8.2f ms  runtime and context\n", watch.lap());
  runtime.prepare(configs.front());
  std::printf("%8.2f ms  first op\n", watch.lap());
  runtime.prefetch(configs, threads);
  std::printf("%8.2f ms  %zu further ops, %d threads\n", watch.lap(), configs.size() - 1, threads);
}

}  // namespace

int main(int argc, char** argv) {
  int threads = static_cast<int>(std::thread::hardware_concurrency());
  int first = 1;
  if (argc > 2 && std::string(argv[1]) == "--threads") {
    threads = std::atoi(argv[2]);
    first = 3;
  }
  if (first >= argc || threads < 1) {
    std::fprintf(stderr, "usage: serving_start [--threads N] CONFIG...\n");
    return 1;
  }
  try {
    std::vector<std::string> configs;
    for (int i = first; i < argc; ++i) configs.push_back(text_of(argv[i]));
    run(threads, configs);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "serving_start: %s\n", error.what());
    return 1;
  }
  return 0;
}
