// Plans as text. A plan's name is stable and readable, and it can be parsed back to the plan;
// journals, tuned tables and reports use it, as an index into a space changes with the space.
//
//   attention_mma/splits=16,key_codebook.copies=4
//
// Fields with their default are omitted, the others are in the order of visit(); a placement's
// fields are dotted. As JSON a plan is an object of all its fields and "dataflow".
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/json/json.h"
#include "core/plan/plan.h"

namespace vqgen {

// A field that differs, dotted within a placement, and its value as a name has it.
struct FieldValue {
  std::string name, value;
};

// The fields of `plan` that have other values than in `usual`, in the order of visit(); of another
// dataflow, those that are not its defaults.
std::vector<FieldValue> differences(const Plan& plan, const Plan& usual);

std::string plan_name(const Plan& plan);

// The plan of a name. Error(bad_input) at the cursor, for what is no such name: an unknown dataflow
// or field, a value out of range, a field twice, one spelt out of order or with its default.
Plan read_plan_name(const JsonCursor& cursor);

Json to_json(const Plan& plan);

// A plan of the problem's op from an object with "dataflow" and fields of that dataflow; absent
// ones have their defaults. Error(bad_input) as read_fields().
Plan read_plan(const JsonCursor& cursor, const Problem& problem);

// The default plan of the dataflow that an object of some of a plan's fields names; nullopt where
// it names none. Error(bad_input) for one that the problem's op has not.
std::optional<Plan> named_dataflow(const JsonCursor& cursor, const Problem& problem);

// True if the plan's dataflow takes all fields of such an object, and is the one that it names.
bool has_fields(const Plan& plan, const JsonCursor& cursor);

// The default plan of each dataflow of the problem's op for which that holds, in their order.
std::vector<Plan> dataflows_with(const JsonCursor& fields, const Problem& problem);

// The plan with such fields laid over it. Error(bad_input) where has_fields() does not hold, and
// for values out of range.
Plan with_fields(Plan plan, const JsonCursor& cursor);

}  // namespace vqgen
