// How functions are marked on the host. Plain C++ needs no mark for shared functions; vqgen's host
// layers read the args and layout headers through this file too.
#pragma once
#define VQ_HD
#ifdef __OPTIMIZE__
#define VQ_DEVICE inline __attribute__((always_inline))
#else  // without optimisation, inlining makes nothing faster and compiling a quarter slower
#define VQ_DEVICE inline
#endif
#define VQ_UNROLL  // a host compiler need not: it changes no result and costs compile time

// The caller's place, for reports.
#define VQ_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()
