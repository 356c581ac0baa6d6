// KernelSource to cubin, and what is said of it.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/backend/backend.h"
#include "runtime/backend/cuda/cuda_backend.h"
#include "runtime/backend/cuda/nvrtc_file.h"
#include "runtime/backend/cuda/nvrtc_talk.h"
#include "runtime/process/child.h"

namespace vqgen {

// A library that was opened.
struct OpenedNvrtc : NvrtcFile {
  std::vector<int> archs;  // 75, 80, ...: what it can compile for
};

// NVRTC in a process of its own (nvrtc_helper.cpp), seen from here: one compilation each. What it
// does to handlers, and whatever becomes of it, is no matter of this process.
class NvrtcProcess {
 public:
  // Starts it and has it open the library. Error(device) where the helper or the library is
  // missing, or is none.
  explicit NvrtcProcess(const CudaOptions& options);

  const OpenedNvrtc& nvrtc() const { return nvrtc_; }

  struct Result {
    std::string log;
    std::string cubin;  // empty where the text was rejected
    std::string why;    // it was
  };
  // Called once. Error(device) where it ends, hangs or answers nonsense; the message begins with
  // how it ended.
  Result compile(const std::string& name, const std::string& text,
                 const std::vector<std::string>& options);

 private:
  NvrtcMessage ask(const NvrtcMessage& message);

  std::chrono::milliseconds longest_;
  ChildTalk::Time deadline_;
  ChildTalk talk_;
  NvrtcReader reader_;
  OpenedNvrtc nvrtc_;
};

// The options as NVRTC of that version gets them.
std::vector<std::string> nvrtc_options(int major, int minor, const KernelSource& source);

// Compiles every entry of the text. Error(device) where NVRTC does not know the architecture or
// rejects the text, or its process ends or hangs; text and log are then kept in files that the
// message names. The process compiles nothing else after this.
Artifact nvrtc_compile(NvrtcProcess& process, const KernelSource& source);

// Reads ptxas -v's figures for entry `name`; spills of functions that it calls are included.
// nullopt if the log does not have its registers. The cubin's headers do not have them (CUDA 13
// leaves the field 0 for sm_90a).
std::optional<KernelResources> read_ptxas_log(std::string_view log, const std::string& name);

}  // namespace vqgen
