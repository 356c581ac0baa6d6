// Shards: every item is in exactly one, whatever the count; and which one a launcher means.
#include "runtime/tuning/sweep/sweep.h"

#include <map>
#include <random>
#include <set>

#include "core/plan/tuned_row.h"
#include "tests/message_of.h"

namespace vqgen {
namespace {

// The variables that a launcher sets, by name.
using Variables = std::map<std::string, std::string>;

std::optional<LauncherShard> shard_of(const Variables& set) {
  return find_shard([&](const char* name) {
    const auto found = set.find(name);
    return found == set.end() ? std::nullopt : std::optional(found->second);
  });
}

Work random_work(std::size_t size, std::mt19937& random) {
  Work work;
  for (std::size_t i = 0; i < size; ++i) {
    const int rows = 1 + static_cast<int>(random() % 8);
    const std::int64_t features = 64 * static_cast<std::int64_t>(1 + random() % 4);
    Linear product{DType::f16, {rows, features, 256}, {}};
    work.items.push_back({Gemv{product}, fmt::format("{}", i), 1});
  }
  return work;
}

TEST(Shard, EveryItemIsInExactlyOne) {
  std::mt19937 random(7);
  for (const std::size_t size : {0u, 1u, 2u, 7u, 54u, 163u}) {
    const Work work = random_work(size, random);
    for (const int count : {1, 2, 3, 7, 54, 55, 200}) {
      std::vector<int> taken(size, 0);
      std::size_t least = size, most = 0;
      for (int index = 0; index < count; ++index) {
        const std::vector<std::size_t> mine = items_of(work, {index, count});
        EXPECT_EQ(mine, items_of(work, {index, count}));
        EXPECT_TRUE(std::is_sorted(mine.begin(), mine.end()));
        for (const std::size_t item : mine) ++taken.at(item);
        least = std::min(least, mine.size());
        most = std::max(most, mine.size());
      }
      EXPECT_EQ(taken, std::vector<int>(size, 1)) << size << " over " << count;
      EXPECT_LE(most - least, 1u) << size << " over " << count;
    }
  }
}

// In the list's order, each of three shards of a shipped sweep would have only one number of rows.
TEST(Shard, ArithmeticIsSpread) {
  const Work work = read_work("llama-3-8b");
  for (const int count : {2, 3, 4, 6}) {
    double all = 0, most = 0, largest = 0;
    for (const WorkItem& item : work.items) {
      all += arithmetic_of(item.problem);
      largest = std::max(largest, arithmetic_of(item.problem));
    }
    for (int index = 0; index < count; ++index) {
      double mine = 0;
      for (const std::size_t i : items_of(work, {index, count})) {
        mine += arithmetic_of(work.items[i].problem);
      }
      most = std::max(most, mine);
    }
    EXPECT_LE(most, all / count + largest) << count;
  }
}

// Items are dealt out back and forth: the first shard of one round is the last of the next.
TEST(Shard, TurnsGoBackAndForth) {
  Work work;
  for (const int rows : {2, 4, 1, 3}) {
    work.items.push_back({Gemv{{DType::f16, {rows, 64, 64}, {}}}, "", 1});
  }
  EXPECT_EQ(items_of(work, {0, 2}), (std::vector<std::size_t>{1, 2}));
  EXPECT_EQ(items_of(work, {1, 2}), (std::vector<std::size_t>{0, 3}));
}

TEST(Shard, ArithmeticIsOfOneCall) {
  EXPECT_EQ(arithmetic_of(Gemm{{DType::f16, {3, 5, 8}, {}}}), 3 * 5 * 8);
  EXPECT_EQ(arithmetic_of(AttentionDecode{DType::f16, {2, 4, 2, 64, 1'000'000'000}, {}, {}}),
            2.0 * 2 * 4 * 64 * 1e9);
}

TEST(Shard, IsWrittenFromZero) {
  EXPECT_EQ(read_shard("0/1", "--shard"), (Shard{0, 1}));
  EXPECT_EQ(read_shard("3/16", "--shard"), (Shard{3, 16}));
  EXPECT_EQ(read_shard("65535/65536", "--shard"), (Shard{65535, 65536}));
  for (const char* text :
       {"", "/", "1", "1/", "/4", "a/4", "1/b", "-1/4", "+1/4", "1/-4", " 1/4", "1/4 ", "1/4/4",
        "0x1/4", "1.0/4", "0/65537", "0/99999999999999999999", "99999999999999999999/4"}) {
    const std::string message = message_of([&] { read_shard(text, "--shard"); });
    EXPECT_NE(message.find("--shard"), std::string::npos) << text;
    EXPECT_NE(message.find("write I/N"), std::string::npos) << text;
  }
  EXPECT_NE(message_of([] { read_shard("4/4", "--shard"); }).find("the last of 4 is 3/4"),
            std::string::npos);
  message_of([] { read_shard("0/0", "--shard"); });
}

TEST(Shard, LaunchersSayWhich) {
  const auto shard = [](const Variables& environment) {
    const auto found = shard_of(environment);
    EXPECT_TRUE(found);
    EXPECT_FALSE(found && found->reason.empty());
    return found ? found->shard : Shard{};
  };
  EXPECT_FALSE(shard_of({}));
  const Variables array{{"SLURM_ARRAY_TASK_ID", "3"},
                        {"SLURM_ARRAY_TASK_MIN", "0"},
                        {"SLURM_ARRAY_TASK_MAX", "15"},
                        {"SLURM_ARRAY_TASK_COUNT", "16"}};
  EXPECT_EQ(shard(array), (Shard{3, 16}));
  Variables step{{"SLURM_PROCID", "1"}, {"SLURM_STEP_NUM_TASKS", "4"}};
  EXPECT_EQ(shard(step), (Shard{1, 4}));
  // A batch script starts all of the work itself.
  EXPECT_FALSE(shard_of({{"SLURM_PROCID", "0"}}));
  const Variables mpi{{"OMPI_COMM_WORLD_RANK", "2"}, {"OMPI_COMM_WORLD_SIZE", "3"}};
  EXPECT_EQ(shard(mpi), (Shard{2, 3}));
  EXPECT_EQ(shard({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}}), (Shard{0, 2}));
  // mpirun starts its daemons by srun: the ranks are its own.
  step["OMPI_COMM_WORLD_RANK"] = "5";
  step["OMPI_COMM_WORLD_SIZE"] = "8";
  EXPECT_EQ(shard(step), (Shard{5, 8}));
}

// All ranks of all tasks of an array give all shards, each once.
TEST(Shard, ArraysOfStepsMultiply) {
  std::vector<int> taken(3 * 4, 0);
  for (int task = 0; task < 3; ++task) {
    for (int rank = 0; rank < 4; ++rank) {
      const auto found = shard_of({{"SLURM_ARRAY_TASK_ID", fmt::format("{}", task)},
                                   {"SLURM_ARRAY_TASK_MIN", "0"},
                                   {"SLURM_ARRAY_TASK_MAX", "2"},
                                   {"SLURM_ARRAY_TASK_COUNT", "3"},
                                   {"SLURM_PROCID", fmt::format("{}", rank)},
                                   {"SLURM_STEP_NUM_TASKS", "4"}});
      ASSERT_TRUE(found);
      EXPECT_EQ(found->shard, (Shard{4 * task + rank, 12}));
      ++taken.at(static_cast<std::size_t>(found->shard.index));
    }
  }
  EXPECT_EQ(taken, std::vector<int>(12, 1));
}

TEST(Shard, LaunchersThatSayHalfAreRefused) {
  const Variables good{{"SLURM_ARRAY_TASK_ID", "1"},
                       {"SLURM_ARRAY_TASK_MIN", "0"},
                       {"SLURM_ARRAY_TASK_MAX", "3"},
                       {"SLURM_ARRAY_TASK_COUNT", "4"}};
  EXPECT_TRUE(shard_of(good));
  const std::vector<std::pair<const char*, std::function<void(Variables&)>>> faults{
      {"SLURM_ARRAY_TASK_COUNT", [](auto& e) { e.erase("SLURM_ARRAY_TASK_COUNT"); }},
      {"SLURM_ARRAY_TASK_MIN", [](auto& e) { e.erase("SLURM_ARRAY_TASK_MIN"); }},
      {"SLURM_ARRAY_TASK_ID", [](auto& e) { e["SLURM_ARRAY_TASK_ID"] = "x"; }},
      {"SLURM_ARRAY_TASK_ID", [](auto& e) { e["SLURM_ARRAY_TASK_ID"] = "4"; }},
      // An array of tasks 1, 2, 3 and 7, and a whole array that counts from 1.
      {"--array=0-7", [](auto& e) { e["SLURM_ARRAY_TASK_MAX"] = "7"; }},
      {"from 1 to 4",
       [](auto& e) { e["SLURM_ARRAY_TASK_MIN"] = "1", e["SLURM_ARRAY_TASK_MAX"] = "4"; }},
      {"SLURM_PROCID", [](auto& e) { e["SLURM_STEP_NUM_TASKS"] = "4"; }},
      {"PMI_SIZE", [](auto& e) { e["PMI_RANK"] = "4"; }},
      {"PMI_RANK", [](auto& e) { e["PMI_RANK"] = "-1", e["PMI_SIZE"] = "4"; }},
      {"OMPI_COMM_WORLD_SIZE",
       [](auto& e) { e["OMPI_COMM_WORLD_RANK"] = "0", e["OMPI_COMM_WORLD_SIZE"] = ""; }},
      {"more than 65536",
       [](auto& e) { e["OMPI_COMM_WORLD_RANK"] = "0", e["OMPI_COMM_WORLD_SIZE"] = "65536"; }},
  };
  for (const auto& [words, change] : faults) {
    Variables environment = good;
    change(environment);
    const std::string message = message_of([&] { shard_of(environment); });
    EXPECT_NE(message.find(words), std::string::npos) << message;
    EXPECT_NE(message.find("--shard I/N"), std::string::npos) << message;
  }
}

// Names are safe, distinguish rows, and do not change with the shards.
TEST(Shard, JournalsAreNamedByRow) {
  std::set<std::string> names;
  for (const char* sweep : {"llama-3-8b", "llama-3-70b"}) {
    const Work work = read_work(sweep);
    for (const WorkItem& item : work.items) {
      for (const char* gpu : {"NVIDIA H200", "NVIDIA H100"}) {
        const std::string key = tuned_key(item.problem, gpu, "uniform");
        const std::string name = item_journal("d", item.label, key).string();
        EXPECT_TRUE(names.insert(name).second) << name;
        EXPECT_EQ(name, item_journal("d", item.label, key).string());
      }
    }
  }
  const std::string name = item_journal("d", "../a b/c\n\xff\"$x`", "key").string();
  EXPECT_TRUE(name.starts_with("d/..-a-b-c----x--")) << name;
  EXPECT_TRUE(name.ends_with(".journal"));
  EXPECT_LT(item_journal("", std::string(1000, 'x'), "key").string().size(), 120u);
  EXPECT_NE(item_journal("d", "x", "key"), item_journal("d", "x", "other"));
}

}  // namespace
}  // namespace vqgen
