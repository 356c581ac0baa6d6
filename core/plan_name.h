// A plan's name: stable, readable, and the plan again. What journals, tuned tables and reports call
// a candidate, since an index into a space changes with the space.
//
//   attention_decode/dataflow=fragments,splits=16,key_codebook.copies=4
//
// Fields that have their default are left out, the others stand in the order of fields(); a nested
// aggregate's are dotted.
#pragma once

#include <string>

#include "core/json.h"
#include "core/plan.h"
#include "core/problem.h"

namespace vqgen {

std::string plan_name(const Plan& plan);

// The plan of a name. Error(bad_input) at the cursor, for what is no such name: an unknown kind or
// field, a value out of range, a field twice, one spelt out of order or with its default.
Plan read_plan_name(const JsonCursor& cursor);

// A plan of the problem's op, all of its fields as they are by default.
Plan default_plan(const Problem& problem);
// Whether the plan is of the problem's op.
bool is_plan_of(const Plan& plan, const Problem& problem);

// A plan of the problem's op from an object of its fields; absent ones have their defaults.
// Error(bad_input) as read_fields().
Plan read_plan(const JsonCursor& cursor, const Problem& problem);

}  // namespace vqgen
