// The part of `vqgen quantize` that quantizes a model's folder.
#pragma once

#include "cli/command.h"
#include "quantizer/train/quantize_model.h"

namespace vqgen::cli {

// Says on stderr what will be written, then each layer as it is done; on stdout what was written.
void run_quantize_model(QuantizeModelRequest request, Output& output);

}  // namespace vqgen::cli
