// All ops: OpTraits for each alternative of Problem, for Linear and for ScalarMatrix.
#pragma once

#include "runtime/ops/attention_decode/op.h"
#include "runtime/ops/attention_merge/op.h"
#include "runtime/ops/kv_append/op.h"
#include "runtime/ops/kv_dequantize/op.h"
#include "runtime/ops/linear/op.h"
#include "runtime/ops/scalar/op.h"
#include "runtime/ops/weight_dequantize/op.h"
