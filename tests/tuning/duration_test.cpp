#include "runtime/tuning/search/tune.h"

#include "tests/message_of.h"

namespace vqgen {
namespace {

TEST(Duration, ReadsSecondsMinutesAndHours) {
  EXPECT_EQ(read_seconds("90", "--budget"), 90);
  EXPECT_EQ(read_seconds("90s", "--budget"), 90);
  EXPECT_EQ(read_seconds("1.5m", "--budget"), 90);
  EXPECT_EQ(read_seconds("2h", "--budget"), 7200);
}

TEST(Duration, WhatIsNoneIsRefusedByName) {
  for (const char* text : {"", "s", "0", "0s", "-1", "nan", "inf", "1e3", "1d", "1 s", "1s ",
                           "0x10", "99999999h", "1ms", "+1"}) {
    EXPECT_NE(message_of([&] { read_seconds(text, "--budget"); }).find("--budget"),
              std::string::npos)
        << text;
  }
}

}  // namespace
}  // namespace vqgen
