// Device memory of the host backend, and plain writes that bypass the machine's checks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "runtime/backend/host/process.h"
#include "tests/host/trial.h"
#include "tests/message_of.h"

namespace vqgen::host_test {
namespace {

using testing::HasSubstr;

TEST(Memory, IsAlignedAndPoisoned) {
  const std::unique_ptr<Backend> backend = make_host_backend();
  for (const std::size_t bytes : {0u, 1u, 255u, 1000u}) {
    const DeviceBuffer buffer(*backend, bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % 256, 0u);
    std::vector<std::byte> back(bytes);
    backend->download(back, buffer.data());
    EXPECT_EQ(back, std::vector(bytes, std::byte{0xff}));
  }
}

TEST(Memory, CopiesStayWithinOneAllocation) {
  const std::unique_ptr<Backend> backend = make_host_backend();
  const DeviceBuffer buffer(*backend, 16);
  std::array<std::byte, 17> words{};  // on the stack, far from any allocation
  EXPECT_THAT(device_error([&] { backend->upload(buffer.data(), words); }),
              HasSubstr("upload of 17 bytes across the end of an allocation of 16 bytes"));
  EXPECT_THAT(device_error([&] { backend->download(words, words.data()); }),
              HasSubstr("outside every allocation"));
}

TEST(Memory, ZeroesWhatItIsToldAndNoMore) {
  const std::unique_ptr<Backend> backend = make_host_backend();
  const DeviceBuffer buffer(*backend, 8);
  backend->upload(buffer.data(), std::vector<std::byte>(8, std::byte{7}));
  backend->zero(static_cast<std::byte*>(buffer.data()) + 2, 3, nullptr);
  std::vector<std::byte> bytes(8);
  backend->download(bytes, buffer.data());
  for (std::size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(bytes[i], std::byte(i >= 2 && i < 5 ? 0 : 7)) << i;
  }
  EXPECT_THAT(device_error([&] { backend->zero(buffer.data(), 9, nullptr); }),
              HasSubstr("zeroing of 9 bytes"));
}

TEST(Memory, LentMemoryIsThereUntilItIsGivenBack) {
  const std::unique_ptr<Backend> backend = make_host_backend();
  std::array<std::byte, 64> own{};
  const std::array<std::byte, 24> word{std::byte{7}};
  const auto put = [&](std::size_t at) { backend->upload(own.data() + at, word); };
  backend->lend(own.data(), 40);
  backend->lend(own.data() + 20, 30);  // overlaps with that
  backend->lend(own.data(), 40);
  EXPECT_NO_THROW(put(0));
  EXPECT_NO_THROW(put(26));
  EXPECT_THROW(put(27), Error);
  backend->give_back(own.data() + 20, 30);
  EXPECT_THROW(put(26), Error);
  backend->give_back(own.data(), 40);
  EXPECT_NO_THROW(put(16));  // lent twice
  backend->give_back(own.data(), 40);
  EXPECT_THROW(put(0), Error);
  backend->give_back(own.data(), 40);  // one return too many changes nothing
}

TEST(Memory, TooMuchIsAnError) {
  const std::unique_ptr<Backend> backend = make_host_backend();
  EXPECT_THAT(device_error([&] { backend->allocate(SIZE_MAX / 4); }), HasSubstr("no host memory"));
}

TEST(Memory, ReleasedMemoryIsNoLongerThere) {
  const std::unique_ptr<Backend> backend = make_host_backend();
  void* const pointer = backend->allocate(64);
  backend->release(pointer);
  backend->release(nullptr);
  std::vector<std::byte> word(4);
  EXPECT_THROW(backend->upload(pointer, word), Error);
}

// Plain stores through pointers, which templates must not do, show that the nets below the
// machine's checks hold: guard bytes, or AddressSanitizer's death.
Trial plain_store(const std::string& statement) {
  Trial trial;
  trial.text = "VQ_KERNEL(trial, 64, Args) { if (vq::thread_index() == 0) { " + statement + "; } }";
  trial.shared_bytes = 100;
  return trial;
}

void expect_overrun_found(const Trial& trial, const std::string& guard_report) {
#if defined(__SANITIZE_ADDRESS__)
  (void)guard_report;
  const host::ScratchFolder scratch({});  // the dead process leaves its files here
  EXPECT_DEATH(run(trial, {.scratch = scratch.path()}), "heap-buffer-overflow");
#else
  EXPECT_THAT(fault_of(trial), HasSubstr(guard_report));
#endif
}

TEST(Overrun, PlainWritePastAGlobalBuffer) {
  expect_overrun_found(plain_store("args.out[64] = 0"),
                       "kernel trial: a write without store_global 0 bytes past the end of an "
                       "allocation of 256 bytes");
}

TEST(Overrun, PlainWriteBeforeAGlobalBuffer) {
  expect_overrun_found(plain_store("args.out[-1] = 0"), "4 bytes before an allocation of 256");
}

TEST(Overrun, PlainWritePastTheArena) {
  expect_overrun_found(plain_store("vq::shared_memory()[103] = 0"),
                       "3 bytes past the end of an arena of 100 bytes");
}

}  // namespace
}  // namespace vqgen::host_test
