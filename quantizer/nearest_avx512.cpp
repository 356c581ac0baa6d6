// Compiled with -mavx512f (CMakeLists.txt).
#include "quantizer/nearest_search.h"

namespace vqgen {

void find_nearest_16(const NearestJob& job) { find_by_dimension<16, 4>(job); }

}  // namespace vqgen
