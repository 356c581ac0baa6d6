// What shows that a kernel's barriers are needed: the race checker on texts that lack one.
#pragma once

#include <string>
#include <utility>

#include "core/error.h"
#include "generator/generate.h"
#include "runtime/backend/backend.h"

namespace vqgen::test {

// With any barrier or wait for copies of the plan's kernels left out, `barriers` in all, there is a
// report of a race, and none without; but for `unseen`, where another wait covers it on the host.
// `change` is a place of the text and what stands there instead, in all of them: so that a run
// comes to what its data do not ask for.
void expect_every_barrier_needed(const Problem& problem, const Plan& plan, std::size_t barriers,
                                 const std::string& unseen = "",
                                 const std::pair<std::string, std::string>& change = {});

// What a run says of a kernel that differs in one place; "" where the text has no such place.
std::string report_of(const KernelSource& right, const Problem& problem, const Plan& plan,
                      const std::string& place, const std::string& instead,
                      ErrorKind kind = ErrorKind::device);

}  // namespace vqgen::test
