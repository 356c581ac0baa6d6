// The table that a tuning writes to. Several may at once, one a GPU into the user's own table, so a
// row is put into the file as it is by then, and never over rows that this process has not seen.
#pragma once

#include <filesystem>
#include <optional>

#include "core/gpu/gpu_spec.h"
#include "heuristics/tuned/table.h"

namespace vqgen {

// Reads the table, which need not exist, puts the row in the place of its key's, publishes the
// table, and gives what it holds then. Under a lock of its folder, which is waited for a little and
// done without where the file system has none. Error(bad_input) as read_table() and publish_text();
// the file is then as it was.
TunedTable put_row(const std::filesystem::path& path, const TunedRow& row);

// What the table holds, and proof that its place takes it: it is written anew, where there is none
// beside it and away again. Errors as put_row().
TunedTable writable_table(const std::filesystem::path& path);

// Reads the table, and makes an empty one where there is none. Errors as put_row().
TunedTable made_table(const std::filesystem::path& path);

// The row of a key in the table; null where there is none.
const TunedRow* find_row(const TunedTable& table, const std::string& key);

// Error(bad_input) where a device is of another class than rows for `gpu` would say.
void require_class(const GpuSpec& gpu, const std::optional<GpuSpec>& device);

}  // namespace vqgen
