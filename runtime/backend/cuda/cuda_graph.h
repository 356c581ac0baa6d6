// A graph of launches, for timing: a replay costs the host one call, whatever the graph holds.
#pragma once

#include <functional>
#include <vector>

#include "runtime/backend/cuda/cuda_device.h"

namespace vqgen {

class CudaGraph {
 public:
  // Captures what `queue` launches on the context's stream. The context is current and outlives
  // this. Error(device); what `queue` throws passes through, with the capture ended.
  CudaGraph(const CudaContext& context, const std::function<void()>& queue);
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;
  ~CudaGraph();

  // One replay that is not counted, and more until `warm_up_ms` have passed; then timed_runs() with
  // an event before and after each, in microseconds. `check` is called with the result and the name
  // of each driver call, and throws.
  std::vector<double> time_us(int replays, double warm_up_ms,
                              const std::function<void(CUresult, const char*)>& check) const;

 private:
  const CudaContext& context_;
  CUgraph graph_ = nullptr;
  CUgraphExec executable_ = nullptr;
};

}  // namespace vqgen
