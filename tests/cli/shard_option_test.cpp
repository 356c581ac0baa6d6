// --shard: by hand, from the environment, and never from the environment unasked.
#include "runtime/environment.h"

#include <stdlib.h>

#include "runtime/tuning/sweep/sweep.h"
#include "tests/message_of.h"

namespace vqgen::cli {
namespace {

LauncherShard chosen(const std::string& flag) { return choose_shard(flag, environment_variable); }

// find_shard() needs each of these variables, so a misspelt name fails.
class ShardOption : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : kNames) ::unsetenv(name);
  }
  void TearDown() override { SetUp(); }

  static constexpr std::array kNames{"SLURM_ARRAY_TASK_ID",
                                     "SLURM_ARRAY_TASK_MIN",
                                     "SLURM_ARRAY_TASK_MAX",
                                     "SLURM_ARRAY_TASK_COUNT",
                                     "SLURM_PROCID",
                                     "SLURM_STEP_NUM_TASKS",
                                     "OMPI_COMM_WORLD_RANK",
                                     "OMPI_COMM_WORLD_SIZE",
                                     "PMI_RANK",
                                     "PMI_SIZE"};
};

void set(const std::vector<std::pair<const char*, const char*>>& variables) {
  for (const auto& [name, value] : variables) ::setenv(name, value, 1);
}

TEST_F(ShardOption, IsTakenByHandOrFromALauncher) {
  const std::string none = message_of([] { chosen("auto"); });
  EXPECT_NE(none.find("give --shard I/N"), std::string::npos);
  set({{"PMI_RANK", "1"}, {"PMI_SIZE", "3"}});
  EXPECT_EQ(chosen("").shard, (Shard{0, 1}));
  EXPECT_EQ(chosen("2/5").shard, (Shard{2, 5}));
  EXPECT_EQ(chosen("auto").shard, (Shard{1, 3}));
  set({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "7"}});
  EXPECT_EQ(chosen("auto").shard, (Shard{0, 7}));
  EXPECT_NE(message_of([] { chosen("all"); }).find("--shard: 'all'"), std::string::npos);
}

TEST_F(ShardOption, ReadsSlurm) {
  set({{"SLURM_PROCID", "0"}});
  message_of([] { chosen("auto"); });
  set({{"SLURM_PROCID", "3"}, {"SLURM_STEP_NUM_TASKS", "4"}});
  EXPECT_EQ(chosen("auto").shard, (Shard{3, 4}));
  set({{"SLURM_ARRAY_TASK_ID", "1"},
       {"SLURM_ARRAY_TASK_MIN", "0"},
       {"SLURM_ARRAY_TASK_MAX", "1"},
       {"SLURM_ARRAY_TASK_COUNT", "2"}});
  EXPECT_EQ(chosen("auto").shard, (Shard{7, 8}));
}

}  // namespace
}  // namespace vqgen::cli
