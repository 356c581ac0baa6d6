// A shared library as an installed libvqgen is one: it asks where its helper stands.
#include "core/error.h"
#include "runtime/backend/cuda/nvrtc_file.h"

// The path, or what find_nvrtc_helper() says.
extern "C" const char* vqgen_probe_helper() {
  static std::string answer;
  try {
    answer = vqgen::find_nvrtc_helper("");
  } catch (const vqgen::Error& error) {
    answer = error.what();
  }
  return answer.c_str();
}
