// The host backend behind a class; a test can override calls one by one.
#pragma once

#include "runtime/backend/host/host_backend.h"
#include "tests/forwarding_backend.h"

namespace vqgen::test {

class HostWith : public ForwardingBackend {
 public:
  HostWith() : ForwardingBackend(make_host_backend()) {}
};

}  // namespace vqgen::test
