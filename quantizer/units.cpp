#include "quantizer/units.h"

#include <fmt/format.h>

#include "core/ceil_div.h"
#include "core/error.h"

namespace vqgen {

std::int64_t UnitMap::units() const {
  return ceil_div(heads, unit_heads) * ceil_div(rows, unit_rows) * ceil_div(columns, unit_columns);
}

UnitExtent UnitMap::extent(std::int64_t unit) const {
  const std::int64_t column_units = ceil_div(columns, unit_columns);
  const std::int64_t row_units = ceil_div(rows, unit_rows);
  const std::int64_t column = unit % column_units * unit_columns;
  const std::int64_t row = unit / column_units % row_units * unit_rows;
  const std::int64_t head = unit / column_units / row_units * unit_heads;
  return {head,   std::min(head + unit_heads, heads),      row, std::min(row + unit_rows, rows),
          column, std::min(column + unit_columns, columns)};
}

UnitMap unit_map(const VqFormat& format, std::int64_t heads, std::int64_t rows,
                 std::int64_t columns, const std::string& where) {
  const auto fail = [&](const std::string& problem) {
    throw Error(ErrorKind::bad_input, fmt::format("{}: {}", where, problem));
  };
  if (heads < 1 || rows < 1 || columns < 1) fail("an empty tensor cannot be quantized");
  UnitMap map{heads, rows, columns, heads, rows, columns};
  if (format.scope == Scope::head || format.scope == Scope::channel_group) map.unit_heads = 1;
  if (format.scope == Scope::channel_group) map.unit_columns = format.channels_per_group();
  if (format.scope == Scope::tile) {
    if (format.tile_rows < 1 || format.tile_columns < 1 || heads != 1) {
      fail("scope tile is for weights and needs tile_rows and tile_columns above 0");
    }
    map.unit_rows = format.tile_rows;
    map.unit_columns = format.tile_columns;
  }
  if (columns % format.vector_size != 0 || map.unit_columns % format.vector_size != 0) {
    fail(
        fmt::format("vector_size {} must divide the {} columns of a row and the {} that one "
                    "codebook serves; choose one that does",
                    format.vector_size, columns, map.unit_columns));
  }
  return map;
}

}  // namespace vqgen
