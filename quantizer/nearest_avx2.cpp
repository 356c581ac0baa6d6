// Compiled with -mavx2 (CMakeLists.txt).
#include "quantizer/nearest_search.h"

namespace vqgen {

void find_nearest_8(const NearestJob& job) { find_by_dimension<8, 2>(job); }

}  // namespace vqgen
