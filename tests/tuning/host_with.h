// The host backend behind a class whose calls a test can change one by one.
#pragma once

#include "runtime/backend/host/host_backend.h"
#include "tests/forwarding_backend.h"

namespace vqgen::test {

class HostWith : public ForwardingBackend {
 public:
  HostWith() : ForwardingBackend(make_host_backend()) {}
};

}  // namespace vqgen::test
