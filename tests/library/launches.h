// Launches over a fake backend: ops prepared, a launch judged by its message and by what it
// enqueues.
#pragma once

#include <cstring>
#include <vector>

#include "tests/library/fake_backend.h"

namespace vqgen::library::test {

class Launches : public testing::Test {
 protected:
  vqgen_op* prepared(const Json& json) {
    vqgen_op* op = nullptr;
    EXPECT_EQ(vqgen_prepare(&fake_.runtime, json.dump().c_str(), nullptr, &op), VQGEN_OK)
        << vqgen_last_error();
    return op;
  }

  // The status of a launch with edited arguments. If it is refused, it enqueues nothing and its
  // message is one line with `words`.
  template <class Args, class Edit, class Launch>
  vqgen_status launched(Args args, const Edit& edit, const Launch& launch, const char* words) {
    edit(args);
    const int before = fake_.backend->enqueued;
    const vqgen_status status = launch(&args);
    EXPECT_EQ(fake_.backend->enqueued > before, status == VQGEN_OK);
    if (status != VQGEN_OK) {
      expect_words(vqgen_last_error(), {words});
      EXPECT_EQ(std::strchr(vqgen_last_error(), '\n'), nullptr);
    }
    return status;
  }

  // From now on collects the arguments of each launch, as the kernel gets them.
  template <class KernelArgs>
  void keep_arguments(std::vector<KernelArgs>& seen) {
    fake_.backend->on_enqueue = [&](const FakeKernel&, std::span<const std::byte> given) {
      ASSERT_EQ(given.size(), sizeof(KernelArgs));
      std::memcpy(&seen.emplace_back(), given.data(), given.size());
    };
  }

  // Expects the pointers of a cache in the kernel's arguments to be the caller's.
  template <class KernelArgs, class Args>
  static void expect_same_cache(const KernelArgs& seen, const Args& given) {
    const auto same = [](const void* a, const void* b) { EXPECT_EQ(a, b); };
    same(seen.keys.codes, given.keys.codes);
    same(seen.keys.codebooks, given.keys.codebooks);
    same(seen.keys.scales, given.keys.scales);
    same(seen.values.codes, given.values.codes);
    same(seen.values.codebooks, given.values.codebooks);
    same(seen.key_smooth, given.key_smooth);
    same(seen.raw_keys, given.raw_keys);
    same(seen.raw_values, given.raw_values);
  }

  FakeRuntime fake_{{.max_buckets = 8}};
};

}  // namespace vqgen::library::test
