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

#include <vq/kernels/attention_bins/plan.h>
#include <vq/ops/bin_fill.cuh>
#include <vq/ops/bin_products.cuh>
#include <vq/ops/bin_scores.cuh>
#include <vq/ops/bin_tables.cuh>
#include <vq/ops/raw_partials.cuh>
