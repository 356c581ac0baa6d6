// How kernels and functions are marked in CUDA.
#pragma once

// Marks of what host and device may both call.
#define VQ_HD __host__ __device__
#define VQ_DEVICE __device__ __forceinline__
#define VQ_UNROLL _Pragma("unroll")
// Blocks of a launch may be placed while the one before ends (programmatic dependent launch); a
// kernel lets the next one do so at once, for none uses what the others store before it has waited.
// VQ_KERNEL_ENDS_FIRST does not.
#if __CUDA_ARCH__ >= 900
#define VQ_LET_NEXT_LAUNCH_BEGIN asm volatile("griddepcontrol.launch_dependents;" ::: "memory")
#else
#define VQ_LET_NEXT_LAUNCH_BEGIN static_cast<void>(0)
#endif
namespace vq {
VQ_DEVICE void after_last_launch() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
}  // namespace vq
#define VQ_KERNEL_OF(name, bounds, Args, next, wait)                                            \
  VQ_DEVICE void name##_body(const Args& args);                                                 \
  extern "C" __global__ void __launch_bounds__ bounds name(const __grid_constant__ Args args) { \
    next;                                                                                       \
    wait;                                                                                       \
    name##_body(args);                                                                          \
  }                                                                                             \
  VQ_DEVICE void name##_body([[maybe_unused]] const Args& args)
#define VQ_KERNEL(name, threads, Args) \
  VQ_KERNEL_OF(name, (threads), Args, VQ_LET_NEXT_LAUNCH_BEGIN, vq::after_last_launch())
#define VQ_KERNEL_ENDS_FIRST(name, threads, Args) \
  VQ_KERNEL_OF(name, (threads), Args, static_cast<void>(0), vq::after_last_launch())
#define VQ_KERNEL_AHEAD_OF(name, bounds, Args) \
  VQ_KERNEL_OF(name, bounds, Args, VQ_LET_NEXT_LAUNCH_BEGIN, static_cast<void>(0))
#define VQ_KERNEL_AHEAD(name, threads, Args) VQ_KERNEL_AHEAD_OF(name, (threads), Args)
#define VQ_KERNEL_AHEAD_RESIDENT(name, threads, blocks, Args) \
  VQ_KERNEL_AHEAD_OF(name, (threads, blocks), Args)
#define VQ_KERNEL_AHEAD_CLUSTERS(name, threads, blocks, Args) \
  VQ_KERNEL_AHEAD_OF(name, (threads)__cluster_dims__(1, 1, blocks), Args)
