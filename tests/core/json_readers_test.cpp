// Readers of JSON get documents with one spoilt place: they take it, or refuse it by an Error of
// one line; no other exception passes.
#include <fmt/format.h>

#include <fstream>

#include "core/access/access_counts.h"
#include "core/files/embedded.h"
#include "core/files/files.h"
#include "core/json/json_text.h"
#include "core/plan/tuned_row.h"
#include "core/profiles.h"
#include "heuristics/cost.h"
#include "tests/core/access_counts_samples.h"
#include "tests/core/support.h"

namespace vqgen {
namespace {

// All places of the document as pointers; the root's is empty.
void add_places(const Json& json, const std::string& at, std::vector<std::string>& places) {
  places.push_back(at);
  if (json.is_array() && !json.empty()) add_places(json.front(), at + "/0", places);
  if (!json.is_object()) return;
  for (const auto& [key, value] : json.items()) add_places(value, at + "/" + key, places);
}

// Calls read(document) with each place removed, or replaced by values of all types.
template <class Read>
void spoil(const std::string& name, const Json& document, const Read& read) {
  ASSERT_NO_THROW(read(document)) << name;
  std::vector<std::string> places;
  add_places(document, "", places);
  std::size_t refused = 0;
  const auto judge = [&](const Json& spoilt, const std::string& what) {
    try {
      read(spoilt);
    } catch (const Error& error) {
      ++refused;
      const std::string message = error.what();
      EXPECT_EQ(message.find("json.exception"), std::string::npos) << name << what << message;
      EXPECT_EQ(message.find('\n'), std::string::npos) << name << what << message;
    } catch (const std::exception& error) {
      ADD_FAILURE() << name << what << ": " << error.what();
    }
  };
  static const Json kValues = parse_json(
      R"([null, true, -1, 0, 3, 2.5, 1e300, 18446744073709551615, "", "x", "../x.json", [], [1],
          [[]], {}, {"x": 1}])",
      "values");
  for (const std::string& place : places) {
    const Json::json_pointer pointer(place);
    for (const Json& value : kValues) {
      Json spoilt = document;
      spoilt[pointer] = value;
      judge(spoilt, fmt::format(" with {} at '{}': ", value.dump(), place));
    }
    if (place.empty() || place.ends_with("/0")) continue;
    Json spoilt = document;
    spoilt[pointer.parent_pointer()].erase(pointer.back());
    judge(spoilt, fmt::format(" without '{}': ", place));
  }
  EXPECT_GT(refused, 10u) << name;
}

TEST(JsonReaders, Configs) {
  for (const std::filesystem::path& path : example_configs()) {
    spoil(path.filename().string(), parse_json_file(path), [&](const Json& json) {
      const Config config = read_config(json, path.string());
      to_json(config.problem).dump();
    });
  }
}

TEST(JsonReaders, GpusFormatsAndCosts) {
  const TempFolder folder;
  const std::string file = (folder.path() / "gpu.json").string();
  std::size_t kinds = 0;
  for (const char* path : {"gpus/h200.json", "formats/vecinfer-d4b8i8.json",
                           "formats/int4-kivi-keys.json", "cost/h100.json"}) {
    for (const EmbeddedFile& each : embedded_profiles()) {
      if (each.path != path) continue;
      ++kinds;
      spoil(path, parse_json(each.text, path), [&](const Json& json) {
        if (each.path.starts_with("gpus/")) {
          std::ofstream(file) << json.dump();
          find_gpu(file);
        } else if (each.path.starts_with("formats/")) {
          std::ofstream(file) << json.dump();
          find_format(file, "here");
        } else {
          read_cost_profile(json, path);
        }
      });
    }
  }
  EXPECT_EQ(kinds, 4u);
}

TEST(JsonReaders, AccessCounts) {
  const Json json = parse_json(access_counts_text({profile_of({{{4, 3, 2, 1}}}, 1)}), "p.json");
  spoil("access_counts", json, [](const Json& each) { read_access_counts(each, "p.json"); });
}

TEST(JsonReaders, TunedRows) {
  const std::string table = read_text(VQGEN_SOURCE_DIR "/profiles/tuned/h200.jsonl");
  const std::size_t begin = table.find('\n') + 1;
  const std::string line = table.substr(begin, table.find('\n', begin) - begin);
  spoil("row", parse_json(line, "table"),
        [](const Json& each) { read_tuned_row(JsonCursor(each, "table")); });
}

TEST(JsonReaders, APlaceThatIsNotThereIsNamed) {
  const Json json = parse_json(R"({"a": {"b": 1}, "c": [1]})", "x");
  const JsonCursor root(json, "x.json");
  expect_words(message_of([&] { root.at("d"); }), {"x.json: /: the field 'd' is missing"});
  expect_words(message_of([&] { root.at("a").at("b").at("c"); }),
               {"x.json: /a/b: must be an object, not the integer 1"});
  expect_words(message_of([&] { root.at("c").at("d"); }), {"/c: must be an object, not an array"});
  expect_words(message_of([&] { root.at("c").at(std::size_t{1}); }), {"/c: has no element 1"});
  expect_words(message_of([&] { root.at("a").at(std::size_t{0}); }),
               {"/a: must be an array, not an object"});
}

TEST(JsonReaders, TextThatIsNoUtf8IsWritten) {
  EXPECT_EQ(json_text({{"path", "a\xff"}}), "{\"path\":\"a\\ufffd\"}");
}

}  // namespace
}  // namespace vqgen
