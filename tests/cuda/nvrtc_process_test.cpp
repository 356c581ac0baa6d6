// The process in which NVRTC runs. If it misbehaves, a compilation fails with one line, in bounded
// time, and the next one succeeds.
#include "runtime/backend/cuda/nvrtc_compile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/files/files.h"
#include "runtime/backend/cuda/cuda_backend.h"
#include "runtime/backend/cuda/nvrtc_file.h"
#include "tests/in_folder.h"
#include "tests/message_of.h"

namespace vqgen {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const NvrtcMessage kOpened{"opened", "/libnvrtc.so", "13", "0", "80 90"};

KernelSource small_kernel() {
  KernelSource source;
  source.op = "small";
  source.arch = "sm_80";
  source.text = "extern \"C\" __global__ void small() {}\n";
  source.entries = {{"small", Dim3{}, 32, 0}};
  return source;
}

class FakeHelper : public test::InFolder {
 protected:
  // A helper that does what the script says; `message` N prints file N.
  void make(const std::string& script, const std::vector<std::string>& messages = {}) {
    helper_ = (folder_ / "helper").string();
    for (std::size_t i = 0; i < messages.size(); ++i) {
      publish_text(folder_ / std::to_string(i), messages[i]);
    }
    publish_text(helper_, "#!/bin/sh\ncd " + folder_.string() + "\n" + script + "\n");
    std::filesystem::permissions(helper_, std::filesystem::perms::owner_all);
  }
  // The error of compile().
  std::string fault(std::chrono::milliseconds longest = std::chrono::minutes(10)) {
    const auto backend = make_cuda_backend({.nvrtc_helper = helper_, .compile_longest = longest});
    return device_error([&] { backend->compile(small_kernel()); });
  }
  std::string helper_;
};

TEST_F(FakeHelper, ThatDiesIsNamedWithItsSignalAndLastWords) {
  make("echo LLVM ERROR: out of memory >&2; kill -SEGV $$");
  EXPECT_THAT(fault(), AllOf(HasSubstr("vqgen-nvrtc, ended by signal 11 (Segmentation fault)"),
                             HasSubstr("LLVM ERROR: out of memory")));
  make("cat 0; kill -ABRT $$", {encode(kOpened)});
  EXPECT_THAT(fault(), AllOf(HasSubstr("small for sm_80"), HasSubstr("ended by signal 6"),
                             HasSubstr("kept in ")));
  make("exit 3");
  EXPECT_THAT(fault(), HasSubstr("ended with status 3"));
}

TEST_F(FakeHelper, ThatHangsIsEnded) {
  for (const char* script : {"sleep 1000", "cat 0; sleep 1000"}) {
    make(script, {encode(kOpened)});
    EXPECT_THAT(fault(std::chrono::milliseconds(300)), HasSubstr("more than 0.3 s and was ended"));
  }
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "a child is left";
}

TEST_F(FakeHelper, ThatLiesIsNotBelieved) {
  const std::string good = encode(kOpened);
  std::string huge = good, longer = good, inner = good, cut = good.substr(0, good.size() - 3);
  huge[8 + 7] = '\x7f';  // of the message's length
  longer[8] = static_cast<char>(longer[8] + 1);
  inner[8 + 8 + 7] = '\x7f';  // of its first text's
  for (const std::string& opened :
       {std::string("VQNVRTC0") + good.substr(8), std::string("hello there\n"), huge, inner,
        encode({}), encode({"opened"}), encode({"opened", "/x", "13", "zero", ""}),
        encode({"opened", "/x", "-1", "0", ""}), encode({"opened", "/x", "13", "0", "80,90"}),
        encode({"failed"}), encode({"rejected", "", ""})}) {
    make("cat 0; sleep 1000", {opened});
    EXPECT_THAT(fault(), HasSubstr("answered nonsense")) << opened;
  }
  for (const std::string& opened : {longer, cut, std::string("VQ")}) {
    make("cat 0", {opened});
    EXPECT_THAT(fault(), HasSubstr("ended with status 0"));
  }
  for (const NvrtcMessage& compiled :
       {NvrtcMessage{"compiled", "log", ""}, {"compiled", "log", "no cubin"}, {"compiled"}}) {
    make("cat 0 1; sleep 1000", {good, encode(compiled)});
    EXPECT_THAT(fault(), AllOf(HasSubstr("small for sm_80"), HasSubstr("answered nonsense")));
  }
  // A cubin that no log describes.
  make("cat 0 1; sleep 1000", {good, encode({"compiled", "",
                                             "\x7f"
                                             "ELF"})});
  EXPECT_THAT(fault(), HasSubstr("the log tells nothing of 'small'"));
}

TEST_F(FakeHelper, MissingIsNamedWithARemedy) {
  helper_ = (folder_ / "none").string();
  EXPECT_THAT(fault(), AllOf(HasSubstr(helper_), HasSubstr("VQGEN_NVRTC_HELPER")));
  publish_text(helper_, "not executable");
  EXPECT_THAT(fault(), HasSubstr(helper_));
}

TEST(NvrtcTalk, ArrivesHoweverItIsCut) {
  const NvrtcMessage message{"", "text", std::string(1000, '\0')};
  const std::string bytes = encode(message) + encode(kOpened);
  for (const std::size_t step : {1u, 7u, 16u, 5000u}) {
    NvrtcReader reader;
    std::vector<NvrtcMessage> got;
    for (std::size_t at = 0; at < bytes.size(); at += step) {
      reader.add(std::string_view(bytes).substr(at, step));
      while (auto next = reader.take()) got.push_back(*std::move(next));
    }
    EXPECT_FALSE(reader.damaged());
    EXPECT_EQ(got, (std::vector<NvrtcMessage>{message, kOpened}));
  }
}

// The real helper.
TEST(NvrtcHelper, SaysWhatItIsForAndEndsWithoutAParent) {
  const std::string helper = find_nvrtc_helper("");
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  for (const auto& [argument, words] :
       {std::pair{std::vector<std::string>{}, "status 2: vqgen-nvrtc: started by"},
        {std::vector<std::string>{"1"}, "status 5"}}) {
    std::vector<std::string> command{helper};
    command.insert(command.end(), argument.begin(), argument.end());
    ChildTalk talk({.command = command});
    std::string bytes;
    EXPECT_EQ(talk.receive(bytes, end), ChildTalk::Got::end);
    EXPECT_THAT(talk.last_words(), HasSubstr(words));
  }
}

// Its parent is killed, and the socket stays open in another process.
TEST(NvrtcHelper, EndsWithItsParent) {
  const std::string helper = find_nvrtc_helper("");
  int talk[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, talk), 0);
  const pid_t parent = ::fork();
  if (parent == 0) {
    const std::string number = std::to_string(::getpid());
    if (::fork() == 0) {
      ::dup2(talk[1], STDIN_FILENO);
      ::execl(helper.c_str(), helper.c_str(), number.c_str(), nullptr);
      ::_exit(98);
    }
    ::pause();
  }
  ::close(talk[1]);
  // It answers, so it notices its parent's death from here on.
  const std::string nothing = encode({"/nowhere/libnvrtc.so"});
  ASSERT_EQ(::write(talk[0], nothing.data(), 4), 4);
  pollfd file{talk[0], POLLIN, 0};
  EXPECT_EQ(::poll(&file, 1, 300), 0) << "it waits for the rest";
  ::kill(parent, SIGKILL);
  ASSERT_EQ(::waitpid(parent, nullptr, 0), parent);
  EXPECT_EQ(::poll(&file, 1, 60'000), 1);
  char byte = 0;
  EXPECT_LE(::read(talk[0], &byte, 1), 0);
  ::close(talk[0]);
}

}  // namespace
}  // namespace vqgen
