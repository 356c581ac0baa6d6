// Counting accesses, against a naive loop over naively unpacked codes, in awkward formats and
// sizes.
#include "quantizer/access_counts.h"

#include <random>
#include <set>

#include "core/access/access_counts_summary.h"
#include "core/profiles.h"
#include "tests/quantizer/random_tensor.h"

namespace vqgen {
namespace {

// The tensor's counts of one part, [unit][stage][entry], by the definitions: the code at its bit
// (layout/codes.h), the unit by its formula (layout/format.h).
std::vector<std::int64_t> naive_counts(const QuantizedTensor& tensor, std::int64_t part,
                                       std::int64_t parts) {
  const VqFormat& format = tensor.format;
  std::vector<std::int64_t> counts(
      static_cast<std::size_t>(tensor.units * format.num_codebooks * format.entries()), 0);
  for (std::int64_t index = 0; index < tensor.batch * tensor.heads * tensor.rows; ++index) {
    const std::int64_t row = index % tensor.rows;
    const std::int64_t head = index / tensor.rows % tensor.heads;
    for (std::int64_t vector = 0; vector < tensor.columns / format.vector_size; ++vector) {
      const samples::NaiveUnit unit = samples::naive_unit(tensor, head, row, vector);
      if ((row - unit.first_row) * parts / unit.rows != part) continue;
      for (std::int64_t stage = 0; stage < format.num_codebooks; ++stage) {
        const std::int64_t code =
            samples::naive_code(tensor, index, vector * format.num_codebooks + stage);
        const std::int64_t codebook = unit.number * format.num_codebooks + stage;
        const std::int64_t entry = code % format.entries();  // of a lattice code, the low 8 bits
        ++counts[static_cast<std::size_t>(codebook * format.entries() + entry)];
      }
    }
  }
  return counts;
}

std::int64_t sum(std::span<const std::int64_t> counts) {
  std::int64_t total = 0;
  for (const std::int64_t count : counts) total += count;
  return total;
}

void expect_counted(const QuantizedTensor& tensor, int parts) {
  const AccessCounts profile = count_accesses(tensor, "x", Operand::weights, parts);
  validate(profile, "counted");
  EXPECT_EQ(profile.format, tensor.format);
  EXPECT_EQ(profile.counts, naive_counts(tensor, 0, 1));
  const auto entries = static_cast<std::size_t>(profile.entries);
  const auto hot = static_cast<std::size_t>(profile.parts.hot);
  const auto number = static_cast<std::size_t>(parts);
  for (std::size_t part = 0; part < number; ++part) {
    const std::vector<std::int64_t> naive =
        naive_counts(tensor, static_cast<std::int64_t>(part), parts);
    for (std::size_t codebook = 0; codebook < profile.codebooks(); ++codebook) {
      const auto own = std::span(naive).subspan(codebook * entries, entries);
      const std::vector<std::uint32_t> whole_order = hot_first(profile.codebook(codebook));
      const std::vector<std::uint32_t> own_order = hot_first(own);
      const std::size_t row = codebook * number + part;
      EXPECT_EQ(profile.parts.accesses[row], sum(own));
      for (std::size_t rank = 0; rank < hot; ++rank) {
        EXPECT_EQ(profile.parts.counts[row * hot + rank], own[whole_order[rank]]);
      }
      std::size_t k = row * static_cast<std::size_t>(std::bit_width(hot));
      for (std::size_t size = 1; size <= hot; size *= 2, ++k) {
        const std::set<std::uint32_t> first(
            whole_order.begin(), whole_order.begin() + static_cast<std::ptrdiff_t>(size));
        std::size_t common = 0;
        for (std::size_t rank = 0; rank < size; ++rank) common += first.count(own_order[rank]);
        EXPECT_EQ(profile.parts.common[k], static_cast<int>(common));
      }
    }
  }
}

TEST(CountAccesses, AgreesWithANaiveLoop) {
  for (const samples::Shape& shape : samples::awkward_shapes()) {
    for (const int parts : {1, 3, 8}) {
      SCOPED_TRACE(fmt::format("{} bits, {} stages, scope {}, {} parts", shape.format.index_bits,
                               shape.format.num_codebooks, enum_name(shape.format.scope), parts));
      expect_counted(samples::random_tensor(shape, 5), parts);
    }
  }
}

TEST(CountAccesses, OfALatticeAreThoseOfItsEntries) {
  const samples::Shape shape{samples::lattice_format(Scope::head, 2, false), 1, 2, 9, 24};
  std::mt19937 random(9);
  const QuantizedTensor tensor = samples::tensor_with(shape, [&](std::int64_t, std::int64_t) {
    return static_cast<std::uint32_t>(random()) % 65536;
  });
  expect_counted(tensor, 3);
  const AccessCounts profile = count_accesses(tensor, "x", Operand::keys, 3);
  EXPECT_EQ(profile.entries, 256);
  EXPECT_EQ(read_access_counts(parse_json(access_counts_text({profile}), "p"), "p").front(),
            profile);
}

// Each shipped format is counted, to a profile that is read back, or refused by name.
TEST(CountAccesses, OfEachPresetCanBeReadOrIsRefused) {
  int counted = 0, refused = 0;
  for (const std::string& name : format_names()) {
    SCOPED_TRACE(name);
    const VqFormat format = find_format(name, "test");
    if (format.in_parts() || format.entries() > 4096) continue;  // refused elsewhere; large
    const int heads = format.scope == Scope::tile ? 1 : 2;       // tiles are for weights
    const samples::Shape shape{format, 1, heads, 64, 256};
    const QuantizedTensor tensor = samples::random_tensor(shape, 5);
    if (format.is_scalar()) {
      ++refused;
      const std::string message = message_of(
          [&] { count_accesses(tensor, "layer0", Operand::keys); }, ErrorKind::infeasible);
      EXPECT_NE(message.find("layer0.keys: "), std::string::npos) << message;
      EXPECT_NE(message.find(short_name(format)), std::string::npos) << message;
      continue;
    }
    ++counted;
    const AccessCounts profile = count_accesses(tensor, "layer0", Operand::keys);
    EXPECT_EQ(read_access_counts(parse_json(access_counts_text({profile}), "p"), "p").front(),
              profile);
    EXPECT_FALSE(steadiness(profile).share.empty());
  }
  EXPECT_GE(counted, 20);
  EXPECT_GE(refused, 5);
}

TEST(CountAccesses, IgnoresThePaddingOfRows) {
  for (const samples::Shape& shape : samples::awkward_shapes()) {
    QuantizedTensor tensor = samples::random_tensor(shape, 6);
    const AccessCounts clean = count_accesses(tensor, "x", Operand::keys);
    samples::fill_padding(tensor);
    EXPECT_EQ(count_accesses(tensor, "x", Operand::keys), clean);
  }
}

TEST(CountAccesses, MorePartsThanRowsLeaveSomeEmpty) {
  const samples::Shape shape{samples::table_format(4, 3), 1, 2, 3, 16};
  expect_counted(samples::random_tensor(shape, 7), 7);
}

// Entries that are hot in only one half of the tokens are detected as such.
TEST(CountAccesses, TellsSteadyFromUnsteady) {
  const samples::Shape shape{samples::table_format(2, 4), 1, 1, 64, 32};
  const auto tensor_of = [&](bool steady) {
    return samples::tensor_with(shape, [&](std::int64_t row, std::int64_t code) {
      const std::uint32_t first = steady || row < 32 ? 0 : 8;
      return first + static_cast<std::uint32_t>(code % 8);
    });
  };
  const AccessCountsSteadiness steady =
      steadiness(count_accesses(tensor_of(true), "x", Operand::keys, 2));
  EXPECT_EQ(steady.share[3], (std::vector<double>{1, 1}));
  EXPECT_EQ(steady.overlap[3], 1);
  const AccessCountsSteadiness unsteady =
      steadiness(count_accesses(tensor_of(false), "x", Operand::keys, 2));
  EXPECT_EQ(unsteady.share[3], (std::vector<double>{1, 0}));
  EXPECT_EQ(unsteady.overlap[3], 0.5);  // the first half's are also the whole's, by number
}

TEST(ProfileBundle, NamesEveryTensor) {
  const Bundle bundle = samples::full_bundle();
  const std::vector<AccessCounts> profiles = profile_bundle(bundle, 3);
  ASSERT_EQ(profiles.size(), 3u);
  EXPECT_EQ(profiles[0].name(), "layer0.keys");
  EXPECT_EQ(profiles[1].name(), "layer0.values");
  EXPECT_EQ(profiles[2].name(), "blocks.0.q.weights");
  const auto& cache = std::get<AttentionData>(bundle.items[0].data);
  EXPECT_EQ(profiles[0], count_accesses(cache.keys, "layer0", Operand::keys, 3));
  EXPECT_EQ(profiles[1], count_accesses(cache.values, "layer0", Operand::values, 3));
  EXPECT_EQ(sum(profiles[0].counts), 2 * 6 * 16 / 4 * 2);
  EXPECT_EQ(sum(profiles[2].counts), 10 * 16 / 4);
  EXPECT_EQ(read_access_counts(parse_json(access_counts_text(profiles), "p"), "p"), profiles);
}

}  // namespace
}  // namespace vqgen
