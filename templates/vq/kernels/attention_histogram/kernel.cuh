// Histogram attention_decode, for wide entries in many residual stages (VQKV), where a token names
// more bytes of entries than an unquantized token has. No entry is read per token:
//
//   1. tables    inner products of all queries with all key entries, by tensor cores
//   2. scores    a token's score is a sum of looked-up products; the largest, and sums of powers
//   3. bins      each token's probability is added to the bins of its value's entries
//   4. products  GEMM of bins and value entries, by tensor cores
//   5. raw       sinks and window, where there are any
//   6. combine   merges the results of stages, entry splits and raw tokens
//
// Each step is a kernel. Sums in unspecified order are of integers: results repeat to the bit.
#pragma once

#include <vq/kernels/attention_histogram/plan.h>
#include <vq/kernels/attention_histogram/fill.cuh>
#include <vq/kernels/attention_histogram/products.cuh>
#include <vq/kernels/attention_histogram/raw_partials.cuh>
#include <vq/kernels/attention_histogram/scores.cuh>
#include <vq/kernels/attention_histogram/tables.cuh>
