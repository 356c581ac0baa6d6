// An op through the tool: run, measured, explained and exported as all ops are.
#pragma once

#include "core/files/files.h"
#include "tests/cli/tool.h"

namespace vqgen {

// Tests of one op by a small config.
class OpTool : public testing::Test {
 protected:
  explicit OpTool(Json config) : config_(std::move(config)) {}

  // The path of the config with replaced fields. in_shape() replaces fields of its shape.
  std::string config(const Json& more = Json::object()) const {
    Json json = config_;
    json.update(more);
    return folder.file("config.json", json.dump());
  }
  Json in_shape(const Json& more) const {
    Json shape = config_.at("shape");
    shape.update(more);
    return {{"shape", shape}};
  }

  // Runs it on drawn data, plainly and under the race checker, and expects right results. Returns
  // the last run's document.
  Json verified(const Json& more = Json::object()) const {
    Json document;
    for (const char* check : {"", "races"}) {
      Arguments arguments{"run", config(more), "--backend", "host", "--json"};
      if (*check != '\0') arguments.insert(arguments.end(), {"--check", check});
      const Outcome ran = vqgen(arguments);
      expect_success(ran);
      document = document_of(ran);
      EXPECT_EQ(document["ok"], true) << document;
      EXPECT_LE(document["rel_err"].get<double>(), document["tolerance"].get<double>());
    }
    return document;
  }
  // Measures it with a fixed field of its plan; returns what is reported about the config.
  Json measured() const {
    const Outcome outcome =
        vqgen({"measure", config({{"plan", {{"threads", 64}}}}), "--backend", "host", "--json"});
    expect_success(outcome);
    const Json each = document_of(outcome)["configs"][0];
    EXPECT_EQ(each["measurements"][0]["outcome"], "timed") << each;
    EXPECT_EQ(each["measurements"][0]["plan"]["threads"], 64);
    return each;
  }
  // Expects words in the text of explain.
  void expect_explained(const std::vector<std::string>& words,
                        const Json& more = Json::object()) const {
    const Outcome explained = vqgen({"explain", config(more), "--gpu", "h200"});
    expect_success(explained);
    for (const std::string& each : words) {
      EXPECT_NE(explained.out.find(each), std::string::npos) << each << explained.out;
    }
  }
  // The beginning of the kernel's name.
  void expect_exported(const std::string& name) const {
    const std::string text = folder.path("kernel.cu");
    expect_success(vqgen({"export", config(), "--gpu", "h200", "--out", text}));
    EXPECT_NE(read_text(text).find("(" + name), std::string::npos);
  }

  Folder folder;

 private:
  Json config_;
};

}  // namespace vqgen
