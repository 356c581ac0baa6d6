// How device code is marked on CUDA.
#pragma once

#include <vq/annotations.h>

#define VQ_DEVICE __device__ __forceinline__
#define VQ_UNROLL _Pragma("unroll")
#define VQ_KERNEL(name, threads, Args) \
  extern "C" __global__ void __launch_bounds__(threads) name(const __grid_constant__ Args args)
