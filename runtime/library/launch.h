// A launch: the bucket by a scan, arguments judged without touching what they point to, and the
// kernels in order on the caller's stream. No allocation, no lock, no string.
#pragma once

#include <vqgen/vqgen.h>

#include "runtime/library/record.h"

namespace vqgen::library {

struct Workspace {
  void* pointer = nullptr;
  std::size_t bytes = 0;
};

// A status with its line kept (last_error.h). Throws what LoadedKernel::enqueue() throws.
vqgen_status launch(const Record& record, const vqgen_attention_args& args, Workspace workspace,
                    void* stream);
vqgen_status launch(const Record& record, const vqgen_append_args& args, Workspace workspace,
                    void* stream);
vqgen_status launch(const Record& record, const vqgen_linear_args& args, Workspace workspace,
                    void* stream);

}  // namespace vqgen::library
