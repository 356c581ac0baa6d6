// Shows that a kernel's barriers are needed: the race checker runs on texts that lack one.
#pragma once

#include <string>
#include <utility>

#include "core/error.h"
#include "generator/generate.h"
#include "runtime/backend/backend.h"

namespace vqgen::test {

// Expects `barriers` barriers and waits for copies, and a race report without each of them (except
// `unseen`, which another wait covers on the host), but none with all. `change` replaces a place of
// every text, so that a run takes a path that its data would not.
void expect_every_barrier_needed(const Problem& problem, const Plan& plan, std::size_t barriers,
                                 const std::string& unseen = "",
                                 const std::pair<std::string, std::string>& change = {});

// The report of a kernel with one replaced place; "" if the text has no such place.
std::string report_of(const KernelSource& right, const Problem& problem, const Plan& plan,
                      const std::string& place, const std::string& instead,
                      ErrorKind kind = ErrorKind::device);

}  // namespace vqgen::test
