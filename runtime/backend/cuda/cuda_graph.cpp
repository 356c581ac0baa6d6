#include "runtime/backend/cuda/cuda_graph.h"

#include <chrono>

#include "runtime/backend/timed_runs.h"

namespace vqgen {
namespace {

class Event {
 public:
  explicit Event(const DriverApi& api) : api_(api) {
    api_.check(api_.cuEventCreate(&event_, CU_EVENT_DEFAULT), "cuEventCreate", "a timer");
  }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() { api_.cuEventDestroy(event_); }
  CUevent get() const { return event_; }

 private:
  const DriverApi& api_;
  CUevent event_ = nullptr;
};

}  // namespace

CudaGraph::CudaGraph(const CudaContext& context, const std::function<void()>& queue)
    : context_(context) {
  const DriverApi& api = context_.api();
  const std::string what = "a graph of launches";
  api.check(api.cuStreamBeginCapture(context_.stream(), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
            "cuStreamBeginCapture", what);
  try {
    queue();
  } catch (...) {
    api.cuStreamEndCapture(context_.stream(), &graph_);
    if (graph_ != nullptr) api.cuGraphDestroy(graph_);
    throw;
  }
  api.check(api.cuStreamEndCapture(context_.stream(), &graph_), "cuStreamEndCapture", what);
  const CUresult made = api.cuGraphInstantiate(&executable_, graph_, 0);
  if (made != CUDA_SUCCESS) {
    api.cuGraphDestroy(graph_);
    api.check(made, "cuGraphInstantiate", what);
  }
}

CudaGraph::~CudaGraph() {
  context_.api().cuGraphExecDestroy(executable_);
  context_.api().cuGraphDestroy(graph_);
}

std::vector<double> CudaGraph::time_us(
    int replays, double warm_up_ms, const std::function<void(CUresult, const char*)>& check) const {
  const DriverApi& api = context_.api();
  const Event begin(api);
  const Event end(api);
  using Clock = std::chrono::steady_clock;
  const auto warm = Clock::now() + std::chrono::duration<double, std::milli>(warm_up_ms);
  do {
    check(api.cuGraphLaunch(executable_, context_.stream()), "cuGraphLaunch");
    if (warm_up_ms > 0) check(api.cuStreamSynchronize(context_.stream()), "cuStreamSynchronize");
  } while (Clock::now() < warm);
  return timed_runs(replays, [&] {
    check(api.cuEventRecord(begin.get(), context_.stream()), "cuEventRecord");
    check(api.cuGraphLaunch(executable_, context_.stream()), "cuGraphLaunch");
    check(api.cuEventRecord(end.get(), context_.stream()), "cuEventRecord");
    check(api.cuStreamSynchronize(context_.stream()), "cuStreamSynchronize");
    float milliseconds = 0;
    check(api.event_elapsed_time(&milliseconds, begin.get(), end.get()), "cuEventElapsedTime");
    return 1000.0 * static_cast<double>(milliseconds);
  });
}

}  // namespace vqgen
