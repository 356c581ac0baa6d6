// One loaded copy of a compiled kernel text. Each worker has its own copy, so that the text's one
// global, the running context, needs no thread-local storage.
#pragma once

#include <vq/host_api.h>

#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "core/plan/kernel_source.h"
#include "runtime/backend/host/process.h"

namespace vqgen::host {

class Library {
 public:
  // Error(device) where `binary` is no library of `source` or was built for another runner, or to
  // check races where the runner does not, or the other way round.
  Library(std::span<const std::byte> binary, const KernelSource& source, bool check_races,
          const std::filesystem::path& scratch);

  const vq::host::Entry& entry(std::size_t index) const { return *entries_.at(index); }

 private:
  struct Close {
    void operator()(void* handle) const;
  };
  std::unique_ptr<ScratchFolder> file_;  // only where a sanitizer's report may want to read it
  std::unique_ptr<void, Close> handle_;
  std::vector<const vq::host::Entry*> entries_;
};

}  // namespace vqgen::host
