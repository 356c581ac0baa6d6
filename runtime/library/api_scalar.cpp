// The C function of what scalar codes lose: host memory alone, without a runtime.
#include <vqgen/launch.h>

#include "runtime/library/last_error.h"
#include "runtime/verify/reference_scalar.h"

using namespace vqgen::library;

vqgen_status vqgen_measure_scalar_errors(const float* original, const float* restored,
                                         int64_t tokens, int64_t channels, const float* queries,
                                         int64_t query_count, vqgen_scalar_errors* errors) {
  if (tokens < 0 || channels < 0 || query_count < 0) {
    return fail(
        VQGEN_BAD_INPUT,
        "measure_scalar_errors: tokens, channels or query_count is negative; give 0 or more");
  }
  const bool elements = tokens > 0 && channels > 0;
  if (errors == nullptr || (elements && (original == nullptr || restored == nullptr)) ||
      (query_count > 0 && channels > 0 && queries == nullptr)) {
    return fail(VQGEN_BAD_INPUT,
                "measure_scalar_errors: original, restored, queries or errors is null; give host "
                "memory");
  }
  return guarded({}, [&] {
    const vqgen::ScalarErrors measured =
        vqgen::scalar_errors(original, restored, tokens, channels, queries, query_count);
    *errors = {measured.l2, measured.largest, measured.mean_score};
    return VQGEN_OK;
  });
}
