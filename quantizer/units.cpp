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
  if (const auto fault = groups_fault(format, columns)) {
    fail(fmt::format("{}: {}", fault->field, fault->message));
  }
  return map;
}

void fill_dead(std::span<float> sizes, std::size_t together) {
  for (std::size_t first = 0; first < sizes.size(); first += together) {
    const auto own = sizes.subspan(first, together);
    float least = 0;
    for (const float size : own) {
      if (size > 0 && (least == 0 || size < least)) least = size;
    }
    std::replace(own.begin(), own.end(), 0.0f, least);
  }
}

FloatTensor centered(FloatTensor tensor) {
  const auto columns = static_cast<std::size_t>(tensor.columns);
  std::vector<double> means(static_cast<std::size_t>(tensor.heads) * columns, 0.0);
  const auto of_row = [&](std::int64_t index) {
    return std::span(means).subspan(static_cast<std::size_t>(tensor.head_of(index)) * columns,
                                    columns);
  };
  for (std::int64_t index = 0; index < tensor.row_count(); ++index) {
    const auto row = tensor.row(index);
    for (std::size_t i = 0; i < columns; ++i) of_row(index)[i] += row[i];
  }
  for (double& mean : means) mean /= static_cast<double>(tensor.batch * tensor.rows);
  for (std::int64_t index = 0; index < tensor.row_count(); ++index) {
    const auto row = tensor.row(index);
    for (std::size_t i = 0; i < columns; ++i) {
      row[i] = static_cast<float>(row[i] - of_row(index)[i]);
    }
  }
  return tensor;
}

double common_share(const FloatTensor& tensor) {
  const auto squares = [](const FloatTensor& values) {
    double sum = 0;
    for (const float value : values.data) sum += double{value} * value;
    return sum;
  };
  const double all = squares(tensor);
  return all > 0 ? std::clamp(1 - squares(centered(tensor)) / all, 0.0, 1.0) : 0;
}

}  // namespace vqgen
