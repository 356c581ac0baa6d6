// Rows put into one table by several processes at once, and rows that would name another device.
#include "runtime/tuning/sweep/sweep.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <functional>
#include <thread>

#include "core/files/files.h"
#include "core/plan/plan_name.h"
#include "runtime/tuning/journal/journal.h"
#include "tests/in_folder.h"
#include "tests/message_of.h"
#include "tests/tuning/landscape.h"

namespace {

// What flock() fails with in this program; 0: it locks.
std::atomic<int> flock_error = 0;

}  // namespace

// In the C library's place.
extern "C" int flock(int file, int operation) noexcept {
  if (flock_error == 0) return static_cast<int>(::syscall(SYS_flock, file, operation));
  errno = flock_error;
  return -1;
}

namespace vqgen {
namespace {

// No locks while it lives.
class NoLocks {
 public:
  explicit NoLocks(int error) { flock_error = error; }
  ~NoLocks() { flock_error = 0; }
  NoLocks(const NoLocks&) = delete;
  NoLocks& operator=(const NoLocks&) = delete;
};

class RowTable : public test::InFolder {
 protected:
  static TunedRow row_of(const std::string& codes, double us) {
    return {.problem = test::gemv_problem(),
            .gpu = "NVIDIA H200",
            .policy = {.codes = codes, .rounds = 21},
            .plan = LinearSimt{},
            .time_us = us,
            .low_us = us,
            .high_us = us,
            .default_plan = LinearSimt{},
            .default_us = us,
            .runner_up = LinearSimt{},
            .runner_up_us = us,
            .noise = 0.01,
            .candidates = 1};
  }
  std::filesystem::path path() const { return folder_ / "table.jsonl"; }
  std::size_t files() const {
    return static_cast<std::size_t>(
        std::distance(std::filesystem::directory_iterator(folder_), {}));
  }
};

TEST_F(RowTable, MakesTheTableAndReplacesTheRowOfItsKey) {
  EXPECT_TRUE(writable_table(path()).rows.empty());
  EXPECT_EQ(files(), 0u);
  put_row(path(), row_of("uniform", 3));
  put_row(path(), row_of("zipf:1", 4));
  const TunedTable table = put_row(path(), row_of("uniform", 5));  // slower, and newer
  EXPECT_EQ(table_text(table), read_text(path()));
  ASSERT_EQ(table.rows.size(), 2u);
  EXPECT_EQ(find_row(table, tuned_key(row_of("uniform", 0)))->time_us, 5);
  EXPECT_EQ(find_row(table, tuned_key(row_of("zipf:2", 0))), nullptr);
  EXPECT_EQ(table_text(writable_table(path())), table_text(table));
  EXPECT_EQ(table_text(made_table(path())), table_text(table));
  EXPECT_TRUE(made_table(folder_ / "new.jsonl").rows.empty());
  EXPECT_EQ(read_text(folder_ / "new.jsonl"), table_text({}));
  EXPECT_EQ(files(), 2u);
}

TEST_F(RowTable, LosesNoRowOfManyAtOnce) {
  constexpr int kThreads = 4, kRows = 8;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < kRows; ++i) {
        put_row(path(), row_of("zipf:" + std::to_string(1 + thread * kRows + i), 1));
      }
    });
  }
  for (std::thread& each : threads) each.join();
  EXPECT_EQ(read_table(path()).rows.size(), static_cast<std::size_t>(kThreads * kRows));
  EXPECT_EQ(files(), 1u);
}

// Merges as vqgen db merge does, while other threads put rows.
TEST_F(RowTable, LosesNoRowToAMerge) {
  constexpr int kThreads = 3, kRows = 8;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < kRows; ++i) {
        put_row(path(), row_of("zipf:" + std::to_string(1 + thread * kRows + i), 1));
      }
    });
  }
  for (int i = 0; i < 20; ++i) {
    change_table(path(), [&](const TunedTable& before) {
      const std::array tables{before, TunedTable{{row_of("uniform", 3)}}};
      return merge(tables);
    });
  }
  for (std::thread& each : threads) each.join();
  EXPECT_EQ(read_table(path()).rows.size(), static_cast<std::size_t>(kThreads * kRows + 1));
}

TEST_F(RowTable, IsNotChangedWithoutTheLock) {
  put_row(path(), row_of("uniform", 3));
  const std::string before = read_text(path());
  const int other = ::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  ASSERT_EQ(::flock(other, LOCK_EX), 0);
  const std::string message =
      message_of([&] { put_row(path(), row_of("zipf:1", 4), std::chrono::milliseconds(30)); });
  EXPECT_NE(message.find(path().string() + ": another process has held the lock"),
            std::string::npos)
      << message;
  EXPECT_EQ(read_text(path()), before);
  ::close(other);
  EXPECT_EQ(put_row(path(), row_of("zipf:1", 4)).rows.size(), 2u);
}

// As on file systems of networks that were mounted without locks.
TEST_F(RowTable, IsNotChangedWhereNoLocksAre) {
  put_row(path(), row_of("uniform", 3));
  const std::string before = read_text(path());
  for (const int error : {ENOLCK, ENOSYS, EOPNOTSUPP, EINVAL}) {
    const NoLocks none(error);
    for (const auto& change : std::vector<std::function<void()>>{
             [&] { put_row(path(), row_of("zipf:1", 4)); }, [&] { writable_table(path()); },
             [&] { made_table(folder_ / "new.jsonl"); }}) {
      const std::string message = message_of(change);
      EXPECT_NE(message.find(": cannot lock " + folder_.string()), std::string::npos) << message;
      EXPECT_NE(message.find("a file system with locks"), std::string::npos) << message;
    }
    NoisyReplay inner({}, {});
    const std::string journal =
        message_of([&] { JournaledEvaluator made(inner, folder_ / "a.journal", Json::object()); });
    EXPECT_NE(journal.find("cannot lock the journal"), std::string::npos) << journal;
  }
  EXPECT_EQ(read_text(path()), before);
  EXPECT_EQ(files(), 1u);
}

TEST_F(RowTable, WhatNoReaderTakesIsNotWritten) {
  TunedRow row = row_of("uniform", 3);
  for (const double rel_err : {2147483648.0, 1.5, -1.0, std::nan("")}) {
    row.rel_err = rel_err;
    EXPECT_NE(message_of([&] { put_row(path(), row); }).find("/rel_err"), std::string::npos);
    EXPECT_EQ(files(), 0u);
  }
}

TEST_F(RowTable, ATableThatCannotBeReadIsKept) {
  publish_text(path(), "notes\n");
  EXPECT_NE(message_of([&] { put_row(path(), row_of("uniform", 3)); }), "");
  EXPECT_NE(message_of([&] { writable_table(path()); }), "");
  EXPECT_EQ(read_text(path()), "notes\n");
  EXPECT_EQ(files(), 1u);
}

TEST_F(RowTable, RowsAreOfTheDeviceThatWasMeasured) {
  const GpuSpec h200 = find_gpu("h200");
  require_class(h200, h200);
  require_class(h200, std::nullopt);
  const std::string message = message_of([&] { require_class(h200, find_gpu("a100")); });
  EXPECT_NE(message.find("NVIDIA H200"), std::string::npos) << message;
  EXPECT_NE(message.find("NVIDIA A100"), std::string::npos) << message;
}

}  // namespace
}  // namespace vqgen
