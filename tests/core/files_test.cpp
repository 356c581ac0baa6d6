// Whole files in and out: what was published is read, and a failure leaves nothing behind.
#include "core/files/files.h"

#include <csignal>

#include <sys/resource.h>
#include <unistd.h>

#include "tests/core/support.h"

namespace vqgen {
namespace {

using Names = std::vector<std::string>;

TEST(Files, PublishedTextIsRead) {
  const TempFolder folder;
  const auto path = folder.path() / "a.txt";
  const std::string text("line\nzero \0 and \xff", 17);
  for (const std::string& content : {std::string("before"), text, std::string()}) {
    publish_text(path, content);  // over the existing file
    EXPECT_EQ(read_text(path), content);
    const std::vector<std::byte> bytes = read_file(path);
    EXPECT_TRUE(std::ranges::equal(bytes, std::as_bytes(std::span(content))));
  }
  EXPECT_EQ(folder.names(), Names{"a.txt"});
}

TEST(Files, PartsAreReadWhereTheyAre) {
  const TempFolder folder;
  const auto path = folder.path() / "digits";
  publish_text(path, "0123456789");
  const OpenFile file(path);
  EXPECT_EQ(file.size(), 10u);
  std::string part(4, ' ');
  const auto read = [&](std::uint64_t offset) {
    file.read(offset, std::as_writable_bytes(std::span(part)));
  };
  read(3);
  EXPECT_EQ(part, "3456");
  read(6);
  EXPECT_EQ(part, "6789");
  expect_words(message_of([&] { read(7); }),
               {path.string() + ": cannot read", "; name a file that can be read"});
  part.clear();
  read(10);
}

TEST(Files, UnreadablePlacesAreNamed) {
  const TempFolder folder;
  publish_text(folder.path() / "file", "text");
  const auto refuse = [&](const std::filesystem::path& path, const std::string& reason,
                          const std::string& remedy) {
    for (const bool text : {false, true}) {
      const std::string message = message_of([&] {
        if (text) read_text(path);
        if (!text) read_file(path);
      });
      expect_words(message, {path.string() + ": cannot read: " + reason, "; " + remedy});
    }
  };
  refuse(folder.path() / "missing", "No such file", "correct its path");
  refuse(folder.path() / "missing" / "file", "No such file", "correct its path");
  refuse(folder.path() / "file" / "below", "No such file", "correct its path");
  refuse(folder.path(), "Is a directory", "name a file in it");
  refuse("/dev/null", "", "name a file that can be read");
}

TEST(Files, TooLargeIsRefusedAndJustLargeEnoughIsNot) {
  const TempFolder folder;
  const auto path = folder.path() / "five";
  publish_text(path, "12345");
  EXPECT_EQ(read_text(path, 5), "12345");
  EXPECT_EQ(read_file(path, 5).size(), 5u);
  const std::vector<std::string> words{path.string(), "5 bytes are more than the 4 allowed"};
  expect_words(message_of([&] { read_text(path, 4); }), words);
  expect_words(message_of([&] { read_file(path, 4); }), words);
}

void refuse_to_publish(const std::filesystem::path& path, const std::string& reason) {
  expect_words(message_of([&] { publish_text(path, "text"); }),
               {path.string() + ": cannot write: " + reason, "; choose a place"});
}

TEST(Files, UnwritablePlacesAreNamedAndLeftAsTheyWere) {
  const TempFolder folder;
  publish_text(folder.path() / "file", "old");
  std::filesystem::create_directory(folder.path() / "folder");
  refuse_to_publish(folder.path() / "missing" / "a", "No such file");
  refuse_to_publish(folder.path() / "file" / "below", "Not a directory");
  refuse_to_publish("/proc/vqgen-test", "");  // where not even root may write
  EXPECT_EQ(folder.names(), (Names{"file", "folder"}));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path() / "folder"));
  EXPECT_EQ(read_text(folder.path() / "file"), "old");
}

TEST(Files, OfSeveralThatBelongTogetherAllAreWrittenOrNone) {
  const TempFolder folder;
  publish_text(folder.path() / "a", "old");
  std::filesystem::create_directory(folder.path() / "folder");
  const std::string text = "new";
  const auto publish = [&](const std::vector<std::string>& names) {
    std::vector<FileContent> files;
    for (const std::string& name : names) {
      files.push_back({folder.path() / name, std::as_bytes(std::span(text))});
    }
    publish_files(files);
  };
  expect_words(message_of([&] {
                 publish({"a", "b", "folder"});
               }),
               {(folder.path() / "folder").string() + ": cannot write"});
  expect_words(message_of([&] {
                 publish({"a", "b", "missing/c"});
               }),
               {(folder.path() / "missing/c").string() + ": cannot write: No such file"});
  EXPECT_EQ(folder.names(), (Names{"a", "folder"}));
  EXPECT_EQ(read_text(folder.path() / "a"), "old");
  publish({"b", "a"});
  EXPECT_EQ(folder.names(), (Names{"a", "b", "folder"}));
  EXPECT_EQ(read_text(folder.path() / "a") + read_text(folder.path() / "b"), "newnew");
}

TEST(Files, OnlyRegularFilesAreReplaced) {
  const TempFolder folder;
  std::filesystem::create_directory(folder.path() / "folder");
  publish_text(folder.path() / "file", "old");
  std::filesystem::create_symlink("file", folder.path() / "link");
  for (const char* name : {"folder", "link"}) {
    expect_words(message_of([&] { publish_text(folder.path() / name, "text"); }),
                 {name, ": cannot write: it is no regular file; name another"});
  }
  expect_words(message_of([] { publish_text("/dev/null", "text"); }), {"no regular file"});
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
  EXPECT_EQ(folder.names(), (Names{"file", "folder", "link"}));
  EXPECT_EQ(read_text(folder.path() / "file"), "old");
}

TEST(Files, AFolderWithoutPermission) {
  const TempFolder folder;
  std::filesystem::permissions(folder.path(), std::filesystem::perms(0555));
  constexpr uid_t kNobody = 65534;  // root may write everywhere
  const uid_t self = ::geteuid();
  if (self == 0 && ::seteuid(kNobody) != 0) GTEST_SKIP() << "root cannot be laid down here";
  refuse_to_publish(folder.path() / "a", "Permission denied");
  ASSERT_EQ(::seteuid(self), 0);
  EXPECT_EQ(folder.names(), Names{});
  std::filesystem::permissions(folder.path(), std::filesystem::perms(0755));
}

// A full disk as far as this process can tell: writes beyond 4 KiB fail.
TEST(Files, AWriteThatFailsHalfWayLeavesTheOldFileAlone) {
  const TempFolder folder;
  publish_text(folder.path() / "a", "old");
  rlimit old_limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old_limit), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{4096, old_limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  std::string message;
  try {
    publish_text(folder.path() / "a", std::string(100'000, 'x'));
  } catch (const Error& error) {
    message = error.what();
  }
  ::setrlimit(RLIMIT_FSIZE, &old_limit);
  std::signal(SIGXFSZ, old_handler);
  expect_words(message, {"a: cannot write: File too large; choose a place"});
  EXPECT_EQ(folder.names(), Names{"a"});
  EXPECT_EQ(read_text(folder.path() / "a"), "old");
}

}  // namespace
}  // namespace vqgen
