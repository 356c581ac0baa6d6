// vqgen tune-worker: the process in which vqgen tune runs candidates, so that one that hangs or
// faults ends this and not the tuning. Not for people, and not in --help.
#include "cli/timing_options.h"
#include "runtime/tuning/worker/measurer_workbench.h"
#include "runtime/tuning/worker/worker_serve.h"

namespace vqgen::cli {
namespace {

// A workbench, and the backend that it uses.
class OwnWorkbench final : public Workbench {
 public:
  explicit OwnWorkbench(const WorkerSetup& setup)
      : backend_(make_backend({.backend = setup.backend})), bench_(*backend_, setup) {}

  void compile(std::span<const Plan> plans, bool serial, const CompileWatch& watch) override {
    bench_.compile(plans, serial, watch);
  }
  Measurement screen(std::size_t candidate) override { return bench_.screen(candidate); }
  Measurement seat(std::size_t candidate) override { return bench_.seat(candidate); }
  void move_data() override { bench_.move_data(); }
  double round_us(std::size_t candidate) override { return bench_.round_us(candidate); }

 private:
  std::unique_ptr<Backend> backend_;
  MeasurerWorkbench bench_;
};

}  // namespace

void add_tune_worker(CLI::App& app, Output& output) {
  auto* command = app.add_subcommand("tune-worker", "Serves vqgen tune");
  command->group("");
  command->callback([&output] {
    output.exit_code = serve_worker(
        [](const WorkerSetup& setup) { return std::make_unique<OwnWorkbench>(setup); });
  });
}

}  // namespace vqgen::cli
