// attention_decode by bins, for wide entries in many residual stages (VQKV). A token names more
// bytes of entries than an unquantized token has, so that no kernel that reads its entries is fast.
// Here none is read per token:
//
//   1. tables    inner products of all queries with all key entries, by tensor cores
//   2. scores    a token's score is a sum of looked-up products; the largest, and sums of powers
//   3. bins      each token's probability is added to the bins of the entries that its value names
//   4. products  bins times value entries, by tensor cores
//   5. raw       sinks and window, where there are any
//   6. combine   what stages, splits of the entries and raw tokens give becomes one
//
// Each is a kernel. Sums whose order depends on time are of integers: results repeat to the bit.
#pragma once

#include <vq/kernels/attention_histogram/plan.h>
#include <vq/kernels/attention_histogram/fill.cuh>
#include <vq/kernels/attention_histogram/products.cuh>
#include <vq/kernels/attention_histogram/raw_partials.cuh>
#include <vq/kernels/attention_histogram/scores.cuh>
#include <vq/kernels/attention_histogram/tables.cuh>
