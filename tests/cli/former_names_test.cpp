// Former names are refused by a line that gives the present name.
#include "tests/cli/tiny_bundle.h"

namespace vqgen {
namespace {

TEST(FormerNames, OptionsAreRefusedByTheirPresentNames) {
  const Folder folder;
  const std::string config = folder.file("config.json", tiny_gemv().dump());
  const struct {
    Arguments arguments;
    std::string former, value, present;
  } cases[] = {
      {{"explain", config}, "--chooser", "rules", "--planner"},
      {{"explain", config}, "--hotness", "h.json", "--access-counts"},
      {{"compile", config}, "--strategy", "paper", "--placement"},
      {{"tune", config}, "--strategy", "local", "--search"},
      {{"tune", config}, "--most", "3", "--max-candidates"},
      {{"measure", config}, "--codes", "zipf", "--code-distribution"},
      {{"measure", config}, "--turns", "", "--interactive"},
      {{"run", config}, "--touched-experts", "2", "--active-experts"},
      {{"reorder"}, "--profile", "p.json", "--access-counts"},
      {{"dev", "space", config}, "--likely", "3", "--top"},
  };
  for (const auto& each : cases) {
    Arguments arguments = each.arguments;
    arguments.push_back(each.former);
    if (!each.value.empty()) arguments.push_back(each.value);
    expect_failure(arguments, 2, {each.former, "it is named '" + each.present + "'"});
  }
}

TEST(FormerNames, OptionsThatAnotherSubcommandHasNowNameIt) {
  const Folder folder;
  const std::string config = folder.file("config.json", tiny_gemv().dump());
  expect_failure({"measure", config, "--space", "3"}, 2,
                 {"'--space'", "it is '--sample' of vqgen dev space"});
  expect_failure({"measure", config, "--placement", "global"}, 2,
                 {"'--placement'", "it is '--codebooks-in' of vqgen dev space"});
  expect_failure({"measure", config, "--likely", "3"}, 2,
                 {"'--likely'", "it is '--top' of vqgen dev space"});
}

TEST(FormerNames, SubcommandsAreRefusedByTheirPresentNames) {
  expect_failure({"profile"}, 2, {"'profile'", "it is named 'count-accesses'"});
  expect_failure({"ablate"}, 2, {"'ablate'", "it is vqgen dev ablate"});
  expect_failure({"regret"}, 2, {"'regret'", "it is vqgen dev regret"});
}

TEST(FormerNames, FieldsOfConfigsAreRefusedByTheirPresentNames) {
  const Folder folder;
  const auto refused = [&](const Json& base, const std::string& path, const std::string& former,
                           const Json& value, const std::string& present) {
    Json config = base;
    config[Json::json_pointer(path)][former] = value;
    expect_failure({"explain", folder.file("c.json", config.dump())}, 2,
                   {"'" + former + "'", "it is named '" + present + "'"});
  };
  const Json attention = {
      {"op", "attention_decode"},
      {"shape",
       {{"batch", 1}, {"query_heads", 8}, {"kv_heads", 2}, {"head_dim", 128}, {"tokens", 1024}}},
      {"keys", {{"preset", "vecinfer-d4b8"}}},
      {"values", {{"preset", "vecinfer-d4b8"}}},
      {"plan", Json::object()}};
  refused(attention, "/shape", "window", 128, "recent_tokens");
  refused(attention, "/shape", "window_batch", 32, "flush_block");
  refused(attention, "/shape", "independent", true, "batch_invariant");
  refused(attention, "/keys", "residuals", 1, "num_codebooks");
  refused(attention, "", "hotness", "h.json", "access_counts");
  Json gemv = tiny_gemv();
  gemv["shape"].erase("m");
  refused(gemv, "/shape", "rows", 1, "m");
  for (const auto& [former, present] :
       {std::pair("fragments", "mma"), std::pair("lanes", "simt"), std::pair("tables", "lut"),
        std::pair("bytes", "int8_mma"), std::pair("bins", "histogram")}) {
    Json config = attention;
    config["plan"]["dataflow"] = former;
    expect_failure({"explain", folder.file("c.json", config.dump())}, 2,
                   {former, std::string("it is named '") + present + "'"});
  }
}

}  // namespace
}  // namespace vqgen
