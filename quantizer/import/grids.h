// The codebooks of GGUF's i-quants, [entries][4 or 8] small integers: facts of the format.
#pragma once

#include <cstdint>
#include <vector>

namespace vqgen {

const std::vector<std::int8_t>& iq2_xxs_grid();  // 256 entries of 8
const std::vector<std::int8_t>& iq2_xs_grid();   // 512 of 8
const std::vector<std::int8_t>& iq2_s_grid();    // 1024 of 8
const std::vector<std::int8_t>& iq3_xxs_grid();  // 256 of 4
const std::vector<std::int8_t>& iq3_s_grid();    // 512 of 4
const std::vector<std::int8_t>& iq1_grid();      // 2048 of 8

}  // namespace vqgen
