// A shared library like an installed libvqgen: it asks where its helper is.
#include "core/error.h"
#include "runtime/backend/cuda/nvrtc_file.h"

// The path, or the error of find_nvrtc_helper().
extern "C" const char* vqgen_probe_helper() {
  static std::string answer;
  try {
    answer = vqgen::find_nvrtc_helper("");
  } catch (const vqgen::Error& error) {
    answer = error.what();
  }
  return answer.c_str();
}
