// NVRTC in a process of its own (nvrtc_helper.cpp), seen from here: one compilation each. What it
// does to handlers, and whatever becomes of it, is no matter of this process.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "runtime/backend/cuda/nvrtc_talk.h"
#include "runtime/process/child_talk.h"

namespace vqgen {

struct NvrtcOptions {
  std::string path;    // libnvrtc or its folder; empty looks in the usual places
  std::string helper;  // vqgen-nvrtc; empty: where it goes with vqgen (helper_path.h)
  std::chrono::milliseconds longest{600'000};  // a start and a compilation; then it is ended
};

// What is said of a library that was opened.
struct OpenedNvrtc {
  std::string path;
  int major = 0;
  int minor = 0;
  std::string build;       // as NvrtcFile has it
  std::vector<int> archs;  // 75, 80, ...: what it can compile for
};

class NvrtcProcess {
 public:
  // Starts it and has it open the library. Error(device) where the helper or the library is
  // missing, or is none.
  explicit NvrtcProcess(const NvrtcOptions& options);

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

}  // namespace vqgen
