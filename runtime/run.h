// A verified run: a kernel on data, judged by the double-precision reference.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/json/json.h"
#include "runtime/prepare.h"
#include "runtime/stored_data.h"
#include "runtime/verify/hard_input.h"

namespace vqgen {

// The judgement of one item: a bundle's, or generated data.
struct ItemReport {
  std::string name;
  bool ok = false;
  double rel_err = 0;      // ||kernel - reference|| / ||reference||, from the same codes; of what
                           // makes codes, AppendVerdict::excess
  double max_abs_err = 0;  // of one element
  double tolerance = 0;    // rel_err allowed
  std::string why;         // what is wrong, empty where ok
  std::optional<double> lse_max_abs_err;      // attention: of the log-sum-exp
  std::optional<ScalarErrors> scalar_errors;  // int8_quantize and scalar_dequantize
  std::int64_t clamped = 0;                   // elements likewise, by scales that are too small
  std::optional<double> rel_err_unquantized;  // against the tensors before quantization
};

// Runs the prepared kernel of `config` on `backend`. With a bundle every item is run, each as
// stored_data() has it; with null, hard input drawn from `seed`. A wrong result is no error but a
// report that is not ok.
std::vector<ItemReport> run_verified(const Config& config, const Prepared& prepared,
                                     Backend& backend, const NamedBundle* bundle,
                                     const HardInput& input);

}  // namespace vqgen
