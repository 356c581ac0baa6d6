// The JSON reader: what it refuses, and that each refusal names file, place and remedy.
#include "core/json/json.h"

#include "tests/core/support.h"

namespace vqgen {
namespace {

enum class Colour { red, green };

struct Inner {
  int size = 7;
  static constexpr auto fields() {
    return std::make_tuple(field("size", &Inner::size, required(1, 9), "how large"));
  }
  bool operator==(const Inner&) const = default;
};

}  // namespace

template <>
inline constexpr auto enum_names<Colour> = std::array{"red", "green"};

namespace {

struct Sample {
  int count = 0;
  std::int64_t big = 0;
  double ratio = 0.5;
  bool flag = false;
  Colour colour = Colour::red;
  std::string name;
  Inner inner;
  std::vector<Inner> parts;
  std::vector<std::int64_t> counts;
  std::map<std::string, std::string> notes;

  static constexpr auto fields() {
    using S = Sample;
    return std::make_tuple(field("count", &S::count, required(-2, 100), "how many"),
                           field("big", &S::big, optional_in(0, 9e15), "a large number"),
                           field("ratio", &S::ratio, optional_in(0, 2.5), "a fraction"),
                           field("flag", &S::flag, Rule{}, "yes or no"),
                           field("colour", &S::colour, Rule{}, "which colour"),
                           field("name", &S::name, Rule{}, "its name"),
                           field("inner", &S::inner, Rule{}, "a part"),
                           field("parts", &S::parts, Rule{}, "many parts"),
                           field("counts", &S::counts, optional_in(0, 10), "many counts"),
                           field("notes", &S::notes, Rule{}, "texts by name"));
  }
  bool operator==(const Sample&) const = default;
};

Sample read(const std::string& text) {
  const Json json = parse_json(text, "sample.json");
  Sample sample;
  read_fields(JsonCursor(json, "sample.json"), sample);
  return sample;
}

TEST(Json, ReadsWhatItWrites) {
  Sample sample;
  sample.count = -2;
  sample.big = 9'000'000'000'000'000;
  sample.ratio = 0.1;
  sample.flag = true;
  sample.colour = Colour::green;
  sample.name = "a \"quoted\" \n name";
  sample.inner.size = 9;
  sample.parts = {Inner{1}, Inner{2}};
  sample.counts = {0, 10};
  sample.notes = {{"a", "b"}, {"", ""}};
  EXPECT_EQ(read(to_json(sample).dump()), sample);
}

TEST(Json, LeavesAbsentFieldsAlone) {
  Sample sample;
  sample.count = 3;
  EXPECT_EQ(read(R"({"count": 3})"), sample);
  sample.name = "kept";
  const Json json = parse_json(R"({"flag": true})", "sample.json");
  read_fields(JsonCursor(json, "sample.json"), sample, /*partial=*/true);
  EXPECT_EQ(sample.name, "kept");
  EXPECT_TRUE(sample.flag);
}

TEST(Json, BoundsAreInclusive) {
  EXPECT_EQ(read(R"({"count": -2})").count, -2);
  EXPECT_EQ(read(R"({"count": 100})").count, 100);
  EXPECT_EQ(read(R"({"count": 0, "ratio": 2.5})").ratio, 2.5);
  EXPECT_EQ(read(R"({"count": 0, "ratio": 2})").ratio, 2.0);
}

struct Refusal {
  const char* name;
  const char* text;
  std::vector<std::string> words;
};

class JsonRefusal : public testing::TestWithParam<Refusal> {};

TEST_P(JsonRefusal, NamesFilePlaceAndRemedy) {
  const std::string message = message_of([] { read(GetParam().text); });
  expect_words(message, {"sample.json: "});
  expect_words(message, GetParam().words);
}

const char* const kWhole = "must be a whole number from -2 to 100, not ";

INSTANTIATE_TEST_SUITE_P(
    Values, JsonRefusal,
    testing::Values(
        Refusal{"below", R"({"count": -3})", {"/count: ", kWhole, "the integer -3"}},
        Refusal{"above", R"({"count": 101})", {"/count: ", kWhole, "the integer 101"}},
        Refusal{"fraction", R"({"count": 3.7})", {"/count: ", kWhole, "the number 3.7"}},
        Refusal{"whole_fraction", R"({"count": 3.0})", {"/count: ", kWhole, "the number 3.0"}},
        Refusal{"truth", R"({"count": true})", {"/count: ", kWhole, "not true"}},
        Refusal{"null", R"({"count": null})", {"/count: ", kWhole, "not null"}},
        Refusal{"text", R"({"count": "3"})", {"/count: ", kWhole, "a string"}},
        Refusal{"array", R"({"count": [3]})", {"/count: ", kWhole, "an array"}},
        Refusal{"float_range", R"({"count": 1e30})", {"/count: ", kWhole, "the number 1e+30"}},
        Refusal{"unsigned_range",
                R"({"count": 18446744073709551615})",
                {"/count: ", kWhole, "the integer 18446744073709551615"}},
        Refusal{"wraps_to_small",
                R"({"count": 4294967297})",
                {"/count: ", kWhole, "the integer 4294967297"}},
        Refusal{"double_range", R"({"count": 0, "ratio": 2.6})", {"/ratio: ", "from 0 to 2.5"}},
        Refusal{"double_text", R"({"count": 0, "ratio": "1"})", {"/ratio: ", "must be a number"}},
        Refusal{"bool_number", R"({"count": 0, "flag": 1})", {"/flag: ", "true or false", "1"}},
        Refusal{"enum", R"({"count": 0, "colour": "blue"})", {"/colour: ", "none of red, green"}},
        Refusal{"enum_number", R"({"count": 0, "colour": 1})", {"/colour: ", "must be a string"}},
        Refusal{"string", R"({"count": 0, "name": 1})", {"/name: ", "must be a string"}},
        Refusal{"object", R"({"count": 0, "inner": 1})", {"/inner: ", "must be an object"}},
        Refusal{"nested", R"({"count": 0, "inner": {"size": 0}})", {"/inner/size: ", "1 to 9"}},
        Refusal{"vector", R"({"count": 0, "parts": {}})", {"/parts: ", "must be an array"}},
        Refusal{"element",
                R"({"count": 0, "parts": [{"size": 1}, {"size": 10}]})",
                {"/parts/1/size: ", "1 to 9"}},
        Refusal{"number_element", R"({"count": 0, "counts": [1, 11]})", {"/counts/1: ", "0 to 10"}},
        Refusal{"map", R"({"count": 0, "notes": []})", {"/notes: ", "an object of strings"}},
        Refusal{"map_value", R"({"count": 0, "notes": {"a": 1}})", {"/notes/a: ", "a string"}},
        Refusal{"no_object", R"([1])", {" /: ", "must be an object, not an array"}}),
    [](const auto& test) { return test.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Fields, JsonRefusal,
    testing::Values(
        Refusal{"missing", R"({"flag": true})", {" /: ", "'count' is missing: how many"}},
        Refusal{
            "missing_inside", R"({"count": 0, "inner": {}})", {"/inner: ", "'size' is missing"}},
        Refusal{"unknown",
                R"({"count": 0, "cuont": 0})",
                {" /: ",
                 "unknown field 'cuont'; did you mean 'count'? Else the fields here are count, "
                 "big, ratio"}},
        Refusal{"unknown_inside",
                R"({"count": 0, "inner": {"size": 1, "more": 2}})",
                {"/inner: ", "unknown field 'more'; the fields here are size"}}),
    [](const auto& test) { return test.param.name; });

std::string nested(std::size_t levels) {
  return std::string(levels, '[') + std::string(levels, ']');
}

INSTANTIATE_TEST_SUITE_P(
    Text, JsonRefusal,
    testing::Values(
        Refusal{
            "twice", R"({"count": 1, "count": 1})", {": /: ", "'count' is there twice", "remove"}},
        Refusal{"twice_inside",
                R"({"count": 1, "parts": [{}, {"size": 1}, {"size": 1, "size": 2}]})",
                {"/parts/2: ", "'size' is there twice in one object; remove one"}},
        Refusal{"empty", "", {"malformed JSON near byte 1", "correct it"}},
        Refusal{"cut", R"({"count": 1)", {"malformed JSON near byte 12", "expected", "correct it"}},
        Refusal{"two", R"({"count": 1} {})", {"malformed JSON near byte 14", "end of input"}},
        Refusal{"comment", "{\"count\": 1} // one", {"malformed JSON near byte 14"}},
        Refusal{"trailing_comma", R"({"count": 1,})", {"malformed JSON near byte 13"}},
        Refusal{"number_overflow", R"({"count": 1e999})", {"malformed JSON", "1e999"}},
        Refusal{"bad_utf8", "{\"name\": \"\xff\"}", {"malformed JSON", "UTF-8"}},
        Refusal{"line_break_in_string", "{\"name\": \"a\nb\"}", {"malformed JSON"}}),
    [](const auto& test) { return test.param.name; });

TEST(Json, NestsTo64LevelsAndNoDeeper) {
  EXPECT_NO_THROW(parse_json(nested(64), "deep.json"));
  expect_words(message_of([] { parse_json(nested(65), "deep.json"); }),
               {"deep.json: /0/0", "nested deeper than 64 levels; flatten it"});
  expect_words(message_of([] { parse_json(std::string(1'000'000, '['), "deep.json"); }),
               {"nested deeper than 64 levels"});
}

TEST(Json, AHugeBrokenTextGivesAShortMessage) {
  const std::string text = "{\"name\": \"" + std::string(1'000'000, 'a');
  EXPECT_LT(message_of([&] { parse_json(text, "huge.json"); }).size(), 400u);
}

TEST(Json, EqualKeysInDifferentObjectsAreFine) {
  EXPECT_NO_THROW(parse_json(R"({"a": {"a": [{"a": 1}, {"a": 2}]}})", "nested.json"));
}

}  // namespace
}  // namespace vqgen
