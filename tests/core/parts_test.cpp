// Keys in parts: how they are read and written, what is refused, and which dataflows run them.
#include <algorithm>
#include <numeric>

#include "core/plan/plan.h"
#include "heuristics/choose.h"
#include "heuristics/kernels/slice.h"
#include "tests/core/check_support.h"

namespace vqgen {
namespace {

std::string numbers(int first, int end) {
  std::string text;
  for (int i = first; i < end; ++i) text += (text.empty() ? "" : ", ") + std::to_string(i);
  return text;
}

std::string part(int first, int end, const std::string& fields) {
  return "{\"channels\": [" + numbers(first, end) + "], " + fields + "}";
}

const std::string kLow = part(0, 80, R"("vector_size": 80, "index_bits": 12, "num_codebooks": 20)");
const std::string kHigh =
    part(80, 128, R"("vector_size": 48, "index_bits": 10, "num_codebooks": 16, "scope": "head")");

std::string list(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& each : parts) text += (text.empty() ? "" : ", ") + each;
  return "{\"parts\": [" + text + "]}";
}

template <class Op>
Op with_keys(const std::string& keys) {
  Json json = std::is_same_v<Op, KvDequantize> ? dequantize_json()
              : std::is_same_v<Op, KvAppend>   ? append_json()
                                               : attention_json();
  json["keys"] = parse_json(keys, "keys");
  json["shape"]["head_dim"] = 128;
  return std::get<Op>(read_config(json, "c.json").problem);
}
AttentionDecode sound_parts() { return with_keys<AttentionDecode>(list({kLow, kHigh})); }

std::string refused(const std::string& keys) {
  return message_of([&] { with_keys<AttentionDecode>(keys); });
}

TEST(Parts, AConfigReadsWhatItWrites) {
  const AttentionDecode op = sound_parts();
  ASSERT_EQ(op.keys.parts.size(), 2u);
  EXPECT_EQ(op.keys.parts[1].channels.front(), 80);
  EXPECT_EQ(op.keys.parts[1].scope, Scope::head);
  EXPECT_EQ(op.keys.vector_size, 80);  // as the first part
  EXPECT_TRUE(op.keys.channels.empty());
  const Json canonical = to_json(Problem(op));
  EXPECT_EQ(canonical.at("keys").size(), 1u);
  EXPECT_EQ(canonical.at("keys").at("parts").at(0).at("channels").size(), 80u);
  EXPECT_EQ(read_config(canonical, "again.json").problem, Problem(op));
  AttentionDecode other = op;
  std::swap(other.keys.parts[0].channels[0], other.keys.parts[0].channels[1]);
  EXPECT_NE(Problem(other), Problem(op));
  EXPECT_FALSE(to_json(find_format("cq-4c8b", "test")).contains("parts"));
}

TEST(Parts, PresetsAndFilesMayBeInParts) {
  const VqFormat preset = find_format("vqkv-llama-3.1-8b-keys", "test");
  ASSERT_EQ(preset.parts.size(), 2u);
  EXPECT_EQ(preset.parts[0].channels.size(), 80u);
  EXPECT_EQ(preset.parts[1].index_bits, 14);
  EXPECT_EQ(with_keys<AttentionDecode>(R"("vqkv-llama-3.1-8b-keys")").keys, preset);
  EXPECT_EQ(with_keys<AttentionDecode>(R"({"preset": "vqkv-llama-3.1-8b-keys"})").keys, preset);
  expect_words(refused(R"({"preset": "vqkv-llama-3.1-8b-keys", "num_codebooks": 3})"),
               {"/keys", "extends a preset in parts", "write the parts out"});
  // A part may extend a preset.
  const std::string of_preset = part(80, 128, R"("preset": "cq-8c8b", "num_codebooks": 2)");
  const VqFormat keys = with_keys<AttentionDecode>(list({kLow, of_preset})).keys;
  EXPECT_EQ(keys.parts[1].vector_size, 8);
  EXPECT_EQ(keys.parts[1].num_codebooks, 2);
}

TEST(Parts, EachChannelIsInOne) {
  const std::string fields = R"("vector_size": 16, "index_bits": 8)";
  expect_words(refused(list({part(0, 80, fields), part(64, 128, fields)})),
               {"/keys/parts/1/channels", "64 is there twice"});
  expect_words(refused(list({part(0, 64, fields), part(80, 128, fields)})),
               {"/keys/parts", "channel 64 is in no part"});
  expect_words(refused(list({part(0, 64, fields), part(64, 144, fields)})),
               {"/keys/parts/1/channels", "128 is beyond the 128"});
  expect_words(refused(list({kLow, R"({"channels": [-1], "vector_size": 2, "index_bits": 8})"})),
               {"/keys/parts/1/channels/0"});
  expect_words(refused(list({kLow, "{" + fields + "}"})), {"/keys/parts/1/channels", "is missing"});
  expect_words(refused(list({part(0, 72, fields), part(72, 128, R"("preset": "cq-8c8b")")})),
               {"/keys/parts/0/vector_size", "16 does not divide the part's channels 72"});
}

TEST(Parts, WhatNoPartIsIsRefused) {
  const auto with = [](const std::string& fields) {
    return refused(list({kLow, part(80, 128, fields)}));
  };
  expect_words(with(R"("preset": "vecinfer-d4b8")"), {"/keys/parts/1", "smooth and hadamard"});
  expect_words(with(R"("preset": "int8-token")"), {"/keys/parts/1", "no scalar codes"});
  expect_words(with(R"("preset": "cq-8c8b", "entry_type": "int8", "stage_scales": true)"),
               {"/keys/parts/1", "one entry_type"});
  expect_words(with(R"("preset": "cq-8c8b", "stage_scales": true)"), {"stage_scales or none"});
  expect_words(with(R"("preset": "cq-8c8b", "entry_type": "int8", "stage_scales": true,
                       "common_scale": true)"),
               {"/keys/parts/1", "common to stages"});
  expect_words(with(R"("preset": "cq-8c8b", "layout": {"rows": 4, "words": 1})"),
               {"/keys/parts/1/layout", "one layout"});
  const std::string grouped = R"("vector_size": 16, "index_bits": 8, "layout": )";
  const auto both = [&](const std::string& layout) {
    return list({part(0, 64, grouped + layout), part(64, 128, grouped + layout)});
  };
  expect_words(refused(both(R"({"rows": 2, "words": 2})")), {"/layout", "runs of 1 word"});
  EXPECT_EQ(with_keys<KvDequantize>(both(R"({"rows": 32})")).keys.layout, (CodeLayout{32, 1}));
  expect_words(with(R"("preset": "cq-8c8b", "group_channels": 40)"),
               {"/keys/parts/1/group_channels", "40 does not divide the part's channels 48"});
  expect_words(with("\"parts\": [" + kLow + "]"), {"/keys/parts/1", "'channels'"});
  expect_words(refused(list({part(0, 128, R"("preset": "cq-8c8b")")})),
               {"/keys/parts", "1 parts, where a row has 2 to 4"});
  expect_words(refused(R"({"parts": []})"), {"/keys/parts", "array"});
  expect_words(refused(R"({"parts": 3})"), {"/keys/parts", "array"});
  expect_words(refused(R"({"vector_size": 4, "index_bits": 8, "channels": [0]})"),
               {"/keys/channels", "goes with a part"});
  std::string beside = list({kLow, kHigh});
  beside.insert(1, R"("vector_size": 8, )");
  expect_words(refused(beside), {"/keys", "vector_size"});
}

TEST(Parts, AreOfKeysAndValuesAlone) {
  const Json parts = parse_json(list({kLow, kHigh}), "parts");
  Json attention = attention_json();
  attention["shape"]["head_dim"] = 128;
  attention["values"] = parts;
  EXPECT_TRUE(
      std::get<AttentionDecode>(read_config(attention, "c.json").problem).values.in_parts());
  Json gemv = gemv_json();
  gemv["weights"] = parts;
  expect_words(message_of([&] { read_config(gemv, "c.json"); }),
               {"/weights/parts", "parts are of keys and values alone"});
}

// Formats of a KLT for other heads are made by a function.
TEST(Parts, OfAnotherHeadAreMadeByAFunctionWhereThatHasSuch) {
  const auto said = [](const Json& keys, int head_dim) {
    Json attention = attention_json();
    attention["shape"]["head_dim"] = head_dim;
    attention["keys"] = keys;
    return message_of([&] { read_config(attention, "c.json"); });
  };
  expect_words(
      said("klt-1bit-keys", 64),
      {"/keys/parts/1/channels", "64 is beyond the 64 channels of a head; give parts of 64",
       "or take vqgen.hf.klt_format(\"keys\", 1, 64) of Python"});
  expect_words(said("klt-1bit-keys", 256),
               {"channel 128 is in no part", "klt_format(\"keys\", 1, 256)"});
  const std::string plain = said(parse_json(list({kLow, kHigh}), "parts"), 64);
  expect_words(plain, {"beyond the 64 channels of a head; give parts of 64"});
  EXPECT_EQ(plain.find("klt_format"), std::string::npos);
}

// Beside parts stand center and klt, which are of all of them, and what is written is read again.
TEST(Parts, HaveOneBasis) {
  Json attention = attention_json();
  attention["shape"]["head_dim"] = 128;
  attention["keys"] = parse_json(list({kLow, kHigh}), "parts");
  attention["keys"]["center"] = attention["keys"]["klt"] = true;
  const Problem problem = read_config(attention, "c.json").problem;
  const VqFormat& keys = std::get<AttentionDecode>(problem).keys;
  EXPECT_TRUE(keys.in_parts() && keys.center && keys.klt && !keys.parts[0].center);
  EXPECT_EQ(read_config(to_json(problem), "again").problem, problem);
  EXPECT_TRUE(short_name(keys).starts_with("cklt_d80b12"));
  const auto refused = [&](Json changed) {
    return message_of([&] { read_config(changed, "c.json"); });
  };
  Json in_part = attention;
  in_part["keys"]["parts"][0]["center"] = true;
  expect_words(refused(in_part), {"/keys/parts/0", "center and klt are of all parts together"});
  Json with_hadamard = attention_json();
  with_hadamard["keys"] = {{"preset", "vecinfer-d4b8"}, {"klt", true}};
  expect_words(refused(with_hadamard), {"/keys/klt", "set both to false"});
  Json weights = gemv_json();
  weights["weights"] = {{"preset", "aqlm-2x8"}, {"center", true}};
  expect_words(refused(weights), {"/weights", "center"});
}

TEST(Parts, SizesAreThoseOfAllParts) {
  const VqFormat keys = sound_parts().keys;
  EXPECT_EQ(short_name(keys), "d80b12x20_and_d48b10x16");
  EXPECT_EQ(keys.row_words(128), (20 * 12 + 31) / 32 + (16 * 10 + 31) / 32);
  EXPECT_DOUBLE_EQ(keys.bits_per_element(), (20.0 * 12 + 16 * 10) / 128);
  EXPECT_EQ(kv_units(keys, 8, 128), 1 + 8);
  EXPECT_EQ(kv_codebook_elements(keys, 8, 128), 20 * 4096 * 80 + 8 * 16 * 1024 * 48);
}

TEST(Parts, LanesAndBinsRunThem) {
  for (const char* gpu : {"a100", "h100", "h200"}) {
    const GpuSpec spec = find_gpu(gpu);
    const AttentionDecode op = sound_parts();
    expect_ok(check(op));
    expect_ok(check(choose(op, spec), op, spec));
    EXPECT_EQ(dataflow_name(choose(op, spec)), "simt");  // whose values are narrow
    for (const Plan& plan :
         {Plan(AttentionMma{}), Plan(AttentionLut{}), Plan(AttentionChannels{})}) {
      expect_refused(check(plan, op, spec), {"keys", "2 parts", "use dataflow simt"});
    }
    expect_refused(check(AttentionHistogram{}, op, spec), {"values: entries of 4 elements"});
    AttentionDecode wide = op;
    wide.values = find_format("vqkv-llama-3.1-8b-values", "test");
    expect_ok(check(choose_plan(AttentionHistogram{}, wide, spec), wide, spec));
    const auto append = with_keys<KvAppend>(list({kLow, kHigh}));
    expect_ok(check(choose(append, spec), append, spec));
    expect_refused(check(AppendMma{}, append, spec),
                   {"keys", "more than the 8", "use dataflow simt"});
    const auto wide_append = [&] {
      KvAppend each = append;
      each.values = wide.values;
      each.shape.new_tokens = 256;
      return each;
    }();
    expect_ok(check(choose_plan(AppendGemm{}, wide_append, spec), wide_append, spec));
    const auto decode = with_keys<KvDequantize>(list({kLow, kHigh}));
    expect_ok(check(choose(decode, spec), decode, spec));
  }
}

TEST(Parts, TheirCodebooksStandInGlobalMemory) {
  const GpuSpec gpu = find_gpu("h200");
  const std::string narrow = R"("vector_size": 8, "index_bits": 6)";
  const auto keys = list({part(0, 64, narrow), part(64, 128, narrow)});
  const auto op = with_keys<AttentionDecode>(keys);
  AttentionSimt plan = std::get<AttentionSimt>(choose(op, gpu));
  EXPECT_EQ(plan.key_codebook, all_global());
  plan.key_codebook = all_shared(64);
  expect_refused(check(plan, op, gpu), {"keys", "global memory alone"});
  const auto decode = with_keys<KvDequantize>(keys);
  DequantizeSimt decoding = std::get<DequantizeSimt>(choose(decode, gpu));
  EXPECT_EQ(decoding.key_codebook, all_global());
  decoding.key_codebook = all_shared(64);
  expect_refused(check(decoding, decode, gpu), {"keys", "global memory alone"});
}

TEST(Parts, AreWholeOctets) {
  const std::string narrow = R"("vector_size": 4, "index_bits": 6)";
  const auto op = with_keys<AttentionDecode>(list({part(0, 60, narrow), part(60, 128, narrow)}));
  expect_refused(check(op), {"keys", "60 channels", "multiples of 8"});
}

TEST(Parts, TakeNoAccessCounts) {
  expect_words(message_of([] { match_access_counts({}, sound_parts(), "c.json"); }),
               {"keys in parts", "remove access_counts"});
}

}  // namespace
}  // namespace vqgen
