// The cache that a runtime makes from its options and the environment.
#include <cstdlib>

#include "core/files/files.h"
#include "tests/heuristics/tuned_rows.h"
#include "tests/library/fake_backend.h"

namespace vqgen::library::test {
namespace {

// Sets a variable for the object's lifetime.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    ::setenv(name, value.c_str(), 1);
  }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;
  ~Variable() { before_ ? ::setenv(name_, before_->c_str(), 1) : ::unsetenv(name_); }

 private:
  const char* name_;
  std::optional<std::string> before_;
};

vqgen_status create(const std::string& cache_dir, vqgen_miss_policy miss, vqgen_runtime** made) {
  vqgen_options options;
  vqgen_options_init(&options);
  options.backend = VQGEN_HOST;
  options.miss = miss;
  options.max_buckets = 1;
  options.cache_dir = cache_dir.c_str();
  return vqgen_runtime_create(&options, made);
}

struct FromHere {
  vqgen_status status = VQGEN_OK;
  vqgen_provenance provenance = VQGEN_FROM_MEMORY;
  Json description;
};

// One op in its own runtime.
FromHere prepare_with(const std::string& cache_dir, vqgen_miss_policy miss) {
  vqgen_runtime* runtime = nullptr;
  EXPECT_EQ(create(cache_dir, miss, &runtime), VQGEN_OK) << vqgen_last_error();
  vqgen_op* op = nullptr;
  FromHere result;
  result.status = vqgen_prepare(runtime, gemv_json().dump().c_str(), nullptr, &op);
  if (op != nullptr) {
    result.provenance = vqgen_op_provenance(op);
    result.description = parse_json(vqgen_op_description(op), "description");
  }
  vqgen_op_release(op);
  vqgen_runtime_destroy(runtime);
  return result;
}

TEST(Launch, TheEnvironmentsReadOnlyLayersAreAskedWhateverTheFolder) {
  const TempFolder folder;
  const std::string shipped = (folder.path() / "shipped").string();
  const std::string own = (folder.path() / "own").string();
  ASSERT_EQ(prepare_with(shipped, VQGEN_COMPILE).provenance, VQGEN_COMPILED);
  EXPECT_EQ(prepare_with(own, VQGEN_FAIL).status, VQGEN_MISS);
  const std::string broken = (folder.path() / "broken.pack").string();
  publish_text(broken, "no pack");
  const Variable path("VQGEN_CACHE_PATH", broken + ":" + shipped);
  for (const std::string& cache_dir : {own, std::string()}) {
    const FromHere found = prepare_with(cache_dir, VQGEN_FAIL);
    ASSERT_EQ(found.status, VQGEN_OK) << vqgen_last_error();
    EXPECT_EQ(found.provenance, VQGEN_FROM_DISK);
    ASSERT_TRUE(found.description.contains("cache_warning"));
    expect_words(found.description["cache_warning"].get<std::string>(), {"broken.pack"});
  }
}

TEST(Launch, TheEnvironmentsTunedTablesAreAskedAndADamagedOneIsAWarning) {
  const TempFolder folder;
  const Problem problem = read_config(gemv_json(), "c").problem;
  Plan tuned;
  for (const Plan& plan : vqgen::test::some_plans(problem, 0)) tuned = plan;
  publish_text(folder.path() / "b.jsonl", table_text({{vqgen::test::tuned_row(problem, tuned)}}));
  const Variable path("VQGEN_TUNED_PATH", folder.path().string());
  const std::string cache = (folder.path() / "cache").string();
  FromHere found = prepare_with(cache, VQGEN_COMPILE);
  ASSERT_EQ(found.status, VQGEN_OK) << vqgen_last_error();
  EXPECT_EQ(found.description["buckets"].at(0)["plan_from"]["rung"], "exact");
  EXPECT_EQ(found.description["buckets"].at(0)["plan"], to_json(tuned));
  EXPECT_FALSE(found.description.contains("tuned_warning"));
  publish_text(folder.path() / "a.jsonl", "no table");
  found = prepare_with(cache, VQGEN_COMPILE);
  ASSERT_EQ(found.status, VQGEN_OK) << vqgen_last_error();
  EXPECT_EQ(found.provenance, VQGEN_FROM_DISK);
  EXPECT_EQ(found.description["buckets"].at(0)["plan_from"]["rung"], "exact");
  expect_words(found.description["tuned_warning"].get<std::string>(), {"a.jsonl"});
}

TEST(Launch, ABoundThatIsNoneIsRefused) {
  const TempFolder folder;
  const Variable bound("VQGEN_CACHE_MAX_BYTES", "2G");
  vqgen_runtime* runtime = nullptr;
  EXPECT_EQ(create(folder.path().string(), VQGEN_COMPILE, &runtime), VQGEN_BAD_INPUT);
  expect_words(vqgen_last_error(), {"VQGEN_CACHE_MAX_BYTES", "2G"});
}

TEST(Launch, AnEmptyVariableCountsAsUnset) {
  const TempFolder folder;
  for (const char* name : {"VQGEN_CACHE_MAX_BYTES", "VQGEN_DEPENDENT_LAUNCHES", "TMPDIR"}) {
    const Variable empty(name, "");
    vqgen_runtime* runtime = nullptr;
    EXPECT_EQ(create(folder.path().string(), VQGEN_COMPILE, &runtime), VQGEN_OK)
        << name << ": " << vqgen_last_error();
    vqgen_runtime_destroy(runtime);
    vqgen_options cuda;
    vqgen_options_init(&cuda);
    runtime = nullptr;
    EXPECT_NE(vqgen_runtime_create(&cuda, &runtime), VQGEN_BAD_INPUT)
        << name << ": " << vqgen_last_error();
    vqgen_runtime_destroy(runtime);
  }
}

TEST(Launch, DependentLaunchesAreYesOrNo) {
  const Variable wrong("VQGEN_DEPENDENT_LAUNCHES", "yes");
  vqgen_options options;
  vqgen_options_init(&options);
  vqgen_runtime* runtime = nullptr;
  EXPECT_EQ(vqgen_runtime_create(&options, &runtime), VQGEN_BAD_INPUT);
  expect_words(vqgen_last_error(), {"VQGEN_DEPENDENT_LAUNCHES", "'yes'", "0 or 1"});
  options.dependent_launches = 0;  // which does not ask the environment
  const vqgen_status status = vqgen_runtime_create(&options, &runtime);
  EXPECT_TRUE(status == VQGEN_OK || status == VQGEN_DEVICE) << vqgen_last_error();
  vqgen_runtime_destroy(runtime);
}

}  // namespace
}  // namespace vqgen::library::test
