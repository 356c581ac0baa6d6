// Configs of each op that are small enough to run on the host backend.
#pragma once

#include "tests/core/support.h"

namespace vqgen::library::test {

inline Json small_attention() {
  return edited(attention_json(), {{"/shape/query_heads", "4"},
                                   {"/shape/head_dim", "64"},
                                   {"/shape/tokens", "1500"},
                                   {"/shape/recent_tokens", "8"},
                                   {"/shape/sinks", "3"},
                                   {"/keys", R"({"vector_size": 4, "index_bits": 8,
                                                 "smooth": true, "stage_scales": true})"}});
}

inline Json small_append() {
  return edited(append_json(), {{"/shape/head_dim", "64"},
                                {"/shape/tokens", "30"},
                                {"/shape/recent_tokens", "3"},
                                {"/shape/sinks", "2"},
                                {"/keys", R"({"vector_size": 4, "index_bits": 6, "num_codebooks": 2,
                                              "smooth": true, "hadamard": true,
                                              "stage_scales": true})"}});
}

inline Json small_dequantize() {
  return edited(dequantize_json(),
                {{"/shape/head_dim", "64"},
                 {"/shape/tokens", "1100"},
                 {"/shape/recent_tokens", "9"},
                 {"/shape/sinks", "2"},
                 {"/keys", R"({"vector_size": 4, "index_bits": 6, "num_codebooks": 2,
                                              "smooth": true, "hadamard": true,
                                              "stage_scales": true})"}});
}

inline Json small_merge() { return edited(merge_json(), {{"/shape/head_dim", "80"}}); }

inline Json small_gemv() {
  return edited(gemv_json(), {{"/shape/m", "5"},
                              {"/shape/out_features", "130"},
                              {"/shape/in_features", "512"},
                              {"/weights", R"({"vector_size": 8, "index_bits": 8,
                                                 "output_scales": true})"}});
}

}  // namespace vqgen::library::test
