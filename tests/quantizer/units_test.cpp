#include "quantizer/units.h"

#include "core/problem/problem.h"
#include "tests/quantizer/samples.h"

namespace vqgen {
namespace {

using samples::table_format;

// The unit of every element by the extents; every element belongs to exactly one unit.
std::vector<std::int64_t> unit_of_elements(const UnitMap& map) {
  std::vector<std::int64_t> owner(static_cast<std::size_t>(map.heads * map.rows * map.columns), -1);
  for (std::int64_t unit = 0; unit < map.units(); ++unit) {
    std::int64_t visited = 0;
    for_each_sub_vector(map, map.extent(unit), 1, 2, [&](std::int64_t row, std::int64_t column) {
      for (int d = 0; d < 2; ++d) {
        std::int64_t& mine = owner[static_cast<std::size_t>(row * map.columns + column + d)];
        EXPECT_EQ(mine, -1);
        mine = unit;
      }
      visited += 2;
    });
    EXPECT_EQ(visited, map.extent(unit).elements());
  }
  return owner;
}

TEST(Units, FollowTheOrderOfTheCacheLayout) {
  for (const Scope scope : {Scope::tensor, Scope::head, Scope::channel_group}) {
    VqFormat format = table_format(2, 4, scope);
    format.group_channels = scope == Scope::channel_group ? 4 : 0;
    const UnitMap map = unit_map(format, 3, 5, 12, "test");
    EXPECT_EQ(map.units(), kv_units(format, 3, 12));
    const std::vector<std::int64_t> owner = unit_of_elements(map);
    for (std::int64_t head = 0; head < 3; ++head) {
      for (std::int64_t row = 0; row < 5; ++row) {
        for (std::int64_t column = 0; column < 12; ++column) {
          const std::int64_t expected = scope == Scope::tensor ? 0
                                        : scope == Scope::head ? head
                                                               : head * 3 + column / 4;
          EXPECT_EQ(owner[static_cast<std::size_t>((head * 5 + row) * 12 + column)], expected);
        }
      }
    }
  }
}

TEST(Units, FollowTheOrderOfTheWeightLayoutWithPartialTilesAtTheEdges) {
  VqFormat format = table_format(2, 4, Scope::tile);
  format.tile_rows = 4;
  format.tile_columns = 6;
  const UnitMap map = unit_map(format, 1, 10, 16, "test");
  EXPECT_EQ(map.units(), weight_units(format, 10, 16));
  const std::vector<std::int64_t> owner = unit_of_elements(map);
  for (std::int64_t row = 0; row < 10; ++row) {
    for (std::int64_t column = 0; column < 16; ++column) {
      EXPECT_EQ(owner[static_cast<std::size_t>(row * 16 + column)], row / 4 * 3 + column / 6);
    }
  }
  format = table_format(4, 4, Scope::channel_group);
  format.group_channels = 8;
  EXPECT_EQ(unit_map(format, 1, 10, 20, "test").units(), weight_units(format, 10, 20));
}

TEST(Units, RefuseSizesThatVectorsDoNotDivide) {
  EXPECT_NE(message_of([] {
              unit_map(table_format(3, 4), 1, 4, 16, "here");
            }).find("here: vector_size 3 must divide the 16 columns"),
            std::string::npos);
  VqFormat format = table_format(4, 4, Scope::channel_group);
  format.group_channels = 6;
  message_of([&] { unit_map(format, 1, 4, 24, "here"); });
  message_of([] { unit_map(table_format(4, 4, Scope::tile), 1, 4, 24, "here"); });
  message_of([] { unit_map(table_format(4, 4), 1, 0, 24, "here"); });
}

}  // namespace
}  // namespace vqgen
