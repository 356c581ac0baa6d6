// The CUDA driver, opened at run time, so that every binary starts on a machine without one. Only
// entry points that drivers since CUDA 12.4 have.
#pragma once

#include <cuda.h>

#include <string>

// cuda.h renames some of these by macro (cuMemAlloc is cuMemAlloc_v2): an argument that is passed
// on is expanded first, so that members, calls and looked-up names all mean the declared ABI.
#define VQGEN_DRIVER_FUNCTIONS(X)                \
  X(cuInit)                                      \
  X(cuDriverGetVersion)                          \
  X(cuGetErrorName)                              \
  X(cuGetErrorString)                            \
  X(cuDeviceGetCount)                            \
  X(cuDeviceGet)                                 \
  X(cuDeviceGetName)                             \
  X(cuDeviceGetAttribute)                        \
  X(cuDeviceTotalMem)                            \
  X(cuDevicePrimaryCtxRetain)                    \
  X(cuDevicePrimaryCtxRelease)                   \
  X(cuCtxPushCurrent)                            \
  X(cuCtxPopCurrent)                             \
  X(cuCtxGetCurrent)                             \
  X(cuCtxSetCurrent)                             \
  X(cuCtxGetDevice)                              \
  X(cuStreamCreate)                              \
  X(cuStreamDestroy)                             \
  X(cuStreamSynchronize)                         \
  X(cuMemAlloc)                                  \
  X(cuMemFree)                                   \
  X(cuMemcpyHtoDAsync)                           \
  X(cuMemcpyDtoHAsync)                           \
  X(cuMemsetD8Async)                             \
  X(cuModuleLoadData)                            \
  X(cuModuleUnload)                              \
  X(cuModuleGetFunction)                         \
  X(cuFuncGetAttribute)                          \
  X(cuFuncSetAttribute)                          \
  X(cuFuncGetParamInfo)                          \
  X(cuOccupancyMaxActiveBlocksPerMultiprocessor) \
  X(cuLaunchKernelEx)                            \
  X(cuStreamIsCapturing)                         \
  X(cuStreamBeginCapture)                        \
  X(cuThreadExchangeStreamCaptureMode)           \
  X(cuStreamEndCapture)                          \
  X(cuGraphInstantiate)                          \
  X(cuGraphLaunch)                               \
  X(cuGraphExecDestroy)                          \
  X(cuGraphDestroy)                              \
  X(cuEventCreate)                               \
  X(cuEventDestroy)                              \
  X(cuEventRecord)

namespace vqgen {

struct DriverApi {
#define VQGEN_MEMBER(function) decltype(&::function) function = nullptr;
  VQGEN_DRIVER_FUNCTIONS(VQGEN_MEMBER)
#undef VQGEN_MEMBER
  // By its first name: drivers of CUDA 12 lack the _v2 that cuda.h of 13 makes of it.
  CUresult (*event_elapsed_time)(float* milliseconds, CUevent begin, CUevent end) = nullptr;

  // Error(device) unless `result` is success: "CALL on WHAT: CODE (text)".
  void check(CUresult result, const char* call, const std::string& what) const;
};

// Opens libcuda and initialises it; it stays open for the life of the process. Error(device) where
// there is no driver or it is too old. Thread-safe.
DriverApi open_driver();

}  // namespace vqgen
