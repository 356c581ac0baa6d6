// The conversions of the host machine layer against core/element, which others are checked by.
#include <gtest/gtest.h>

#include <bit>
#include <random>

#include "core/element.h"
#include "tests/host/trial.h"

namespace vqgen::host_test {
namespace {

constexpr std::size_t kPerThread = 64;

// Each thread converts kPerThread words with `expression`, which names the word `x`.
std::vector<std::uint32_t> convert(const std::string& expression, std::vector<std::uint32_t> in) {
  Trial trial;
  trial.text =
      "VQ_KERNEL(trial, 256, Args) {\n"
      "  const int first = (vq::block_x() * 256 + vq::thread_index()) * 64;\n"
      "  for (int i = 0; i < 64; ++i) {\n"
      "    const vq::u32 x = vq::load_global(args.in + first + i);\n"
      "    vq::store_global(args.out + first + i, " +
      expression +
      ");\n"
      "  }\n"
      "}\n";
  trial.threads = 256;
  trial.grid.x = static_cast<unsigned>(in.size() / 256 / kPerThread);
  trial.out_words = in.size();
  trial.in = std::move(in);
  return run(trial);
}

class Conversion : public testing::TestWithParam<DType> {
 protected:
  std::string element() const {
    return GetParam() == DType::f16 ? "vq::Element::kF16" : "vq::Element::kBF16";
  }
};

TEST_P(Conversion, EveryElementToFloat) {
  std::vector<std::uint32_t> in(65536);
  for (std::uint32_t i = 0; i < in.size(); ++i) in[i] = i;
  const std::vector<std::uint32_t> out =
      convert("vq::host::bits<vq::u32>(vq::to_float<" + element() + ">(x))", in);
  for (std::uint32_t i = 0; i < in.size(); ++i) {
    const float expected = element_to_float(GetParam(), static_cast<std::uint16_t>(i));
    if (expected != expected) {
      ASSERT_TRUE(std::isnan(std::bit_cast<float>(out[i]))) << i;
    } else {
      ASSERT_EQ(out[i], std::bit_cast<std::uint32_t>(expected)) << i;
    }
  }
}

TEST_P(Conversion, ManyFloatsToElement) {
  // Every element with its neighbours, every midpoint of two elements with its neighbours, and
  // random bits.
  std::vector<std::uint32_t> in;
  for (std::uint32_t i = 0; i < 65536; ++i) {
    const auto bits =
        std::bit_cast<std::uint32_t>(element_to_float(GetParam(), static_cast<std::uint16_t>(i)));
    const std::uint32_t half = GetParam() == DType::f16 ? 0x1000u : 0x8000u;
    for (const std::uint32_t centre : {bits, bits + half}) {
      for (const std::uint32_t near : {centre - 1, centre, centre + 1}) in.push_back(near);
    }
  }
  for (std::uint32_t i = 0; i < 0x1800; ++i) {  // f16 subnormals have midpoints of their own
    in.push_back(std::bit_cast<std::uint32_t>(static_cast<float>(i) * 0x1p-26f));
  }
  std::mt19937 random(1);
  while (in.size() % (256 * kPerThread) != 0 || in.size() < 800000) {
    in.push_back(static_cast<std::uint32_t>(random()));
  }
  const std::vector<std::uint32_t> out =
      convert("vq::u32{vq::from_float<" + element() + ">(vq::host::bits<float>(x))}", in);
  for (std::size_t i = 0; i < in.size(); ++i) {
    ASSERT_EQ(out[i], element_from_float(GetParam(), std::bit_cast<float>(in[i])))
        << std::hex << in[i];
  }
}

INSTANTIATE_TEST_SUITE_P(Elements, Conversion, testing::Values(DType::f16, DType::bf16),
                         [](const auto& each) {
                           return std::string(each.param == DType::f16 ? "F16" : "BF16");
                         });

}  // namespace
}  // namespace vqgen::host_test
