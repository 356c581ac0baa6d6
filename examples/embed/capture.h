/* A launch captured into a CUDA graph, and the graph replayed. The driver is opened by hand, so
 * that the examples build where there is no CUDA; a program that has cuda.h calls it by name. C and
 * C++. Functions return 0 where the driver did what they ask, as the driver's own do. */
#ifndef CAPTURE_H
#define CAPTURE_H

#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

typedef struct Capture {
  void* driver;
  void* stream;     /* CUstream */
  void* graph;      /* CUgraph */
  void* executable; /* CUgraphExec */
} Capture;

/* An entry of the driver as `function`, a pointer to a function pointer. ISO C has no cast for it.
 */
static inline int driver_entry(void* driver, const char* name, void* function) {
  void* const address = driver == NULL ? NULL : dlsym(driver, name);
  memcpy(function, &address, sizeof(address));
  return address == NULL;
}

/* A stream of its own, and all that is launched on it from here on is captured, not run. The
 * context of the runtime is current. */
static inline int capture_begin(Capture* capture) {
  int (*create)(void**, unsigned);
  int (*begin)(void*, int);
  const unsigned non_blocking = 1;
  const int global_mode = 0; /* the strictest: nothing that is unsafe, on any thread */
  memset(capture, 0, sizeof(*capture));
  capture->driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (driver_entry(capture->driver, "cuStreamCreate", &create) ||
      driver_entry(capture->driver, "cuStreamBeginCapture_v2", &begin)) {
    return -1;
  }
  const int created = create(&capture->stream, non_blocking);
  return created != 0 ? created : begin(capture->stream, global_mode);
}

/* The graph of what was captured, ready for capture_replay(). */
static inline int capture_end(Capture* capture) {
  int (*end)(void*, void**);
  int (*instantiate)(void**, void*, unsigned long long);
  if (driver_entry(capture->driver, "cuStreamEndCapture", &end) ||
      driver_entry(capture->driver, "cuGraphInstantiateWithFlags", &instantiate)) {
    return -1;
  }
  const int ended = end(capture->stream, &capture->graph);
  return ended != 0 ? ended : instantiate(&capture->executable, capture->graph, 0);
}

/* Queues the graph on the capture's stream. */
static inline int capture_replay(const Capture* capture) {
  int (*launch)(void*, void*);
  if (driver_entry(capture->driver, "cuGraphLaunch", &launch)) return -1;
  return launch(capture->executable, capture->stream);
}

/* What was replayed is done before. */
static inline void capture_destroy(Capture* capture) {
  int (*destroy)(void*);
  if (!driver_entry(capture->driver, "cuGraphExecDestroy", &destroy)) destroy(capture->executable);
  if (!driver_entry(capture->driver, "cuGraphDestroy", &destroy)) destroy(capture->graph);
  if (!driver_entry(capture->driver, "cuStreamDestroy_v2", &destroy)) destroy(capture->stream);
  dlclose(capture->driver);
}

#endif
