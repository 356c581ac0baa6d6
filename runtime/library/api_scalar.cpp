// The C function that measures the loss of scalar codes: host memory alone, without a runtime.
#include <vqgen/launch.h>

#include "runtime/library/last_error.h"
#include "runtime/ops/scalar/reference.h"

using namespace vqgen::library;

namespace {

// True if memory can hold a matrix of floats; `rows` and `columns` are 0 or more.
bool fits(std::int64_t rows, std::int64_t columns) {
  constexpr std::int64_t kMost = std::int64_t{1} << 46;  // bytes of an address space / 4
  return rows <= kMost && columns <= kMost && (columns == 0 || rows <= kMost / columns);
}

}  // namespace

vqgen_status vqgen_measure_scalar_errors(const float* original, const float* restored,
                                         int64_t tokens, int64_t channels, const float* queries,
                                         int64_t query_count, vqgen_scalar_errors* errors) {
  if (tokens < 0 || channels < 0 || query_count < 0) {
    return fail(
        VQGEN_BAD_INPUT,
        "measure_scalar_errors: tokens, channels or query_count is negative; give 0 or more");
  }
  if (!fits(tokens, channels) || !fits(query_count, channels)) {
    return fail(VQGEN_BAD_INPUT,
                "measure_scalar_errors: tokens, query_count and channels make more numbers than "
                "memory has; give the sizes of the arrays");
  }
  const bool elements = tokens > 0 && channels > 0;
  if (errors == nullptr || (elements && (original == nullptr || restored == nullptr)) ||
      (query_count > 0 && channels > 0 && queries == nullptr)) {
    return fail(VQGEN_BAD_INPUT,
                "measure_scalar_errors: original, restored, queries or errors is null; give host "
                "memory");
  }
  if (!elements) {
    *errors = {};
    return VQGEN_OK;
  }
  return guarded({}, [&] {
    const vqgen::ScalarErrors measured =
        vqgen::scalar_errors(original, restored, tokens, channels, queries, query_count);
    *errors = {measured.l2, measured.largest, measured.mean_score};
    return VQGEN_OK;
  });
}
