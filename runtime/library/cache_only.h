// A compiler that refuses, for prepare() to find out whether the cache holds all that an op takes.
#pragma once

#include <atomic>

#include "runtime/backend/backend.h"

namespace vqgen::library {

// Of the backend's identity, so that keys agree; must not outlive it. Its compile() throws and is
// remembered.
class CacheOnly final : public NoDevice {
 public:
  explicit CacheOnly(const Backend& backend) : backend_(backend) {}
  bool missed() const { return missed_; }

  std::string_view name() const override { return backend_.name(); }
  Machine machine() const override { return backend_.machine(); }
  std::optional<GpuSpec> device() const override { return backend_.device(); }
  CompilerIdentity compiler(const KernelSource& source) const override {
    return backend_.compiler(source);
  }
  bool may_compile() const override { return false; }
  Artifact compile(const KernelSource& source) const override {
    missed_ = true;
    throw Error(ErrorKind::device, source.op + ": not in the cache, and may not be compiled here");
  }

 private:
  const Backend& backend_;
  mutable std::atomic<bool> missed_{false};
};

}  // namespace vqgen::library
