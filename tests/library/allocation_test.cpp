// Launches allocate nothing and take no lock: every operator new, mutex and shared mutex of this
// program is counted. Launches that do either prove that the counters count.
#include <dlfcn.h>
#include <pthread.h>

#include <cstdlib>
#include <new>

#include "tests/library/fake_backend.h"

namespace {
std::atomic<long> allocations{0};
std::atomic<long> locks{0};

// The function of this name that this program's own one overrides.
template <class Argument>
auto behind(const char* name) {
  return reinterpret_cast<int (*)(Argument*)>(dlsym(RTLD_NEXT, name));
}
}  // namespace

extern "C" int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  static const auto real = behind<pthread_mutex_t>("pthread_mutex_lock");
  ++locks;
  return real(mutex);
}
extern "C" int pthread_rwlock_rdlock(pthread_rwlock_t* lock) noexcept {
  static const auto real = behind<pthread_rwlock_t>("pthread_rwlock_rdlock");
  ++locks;
  return real(lock);
}
extern "C" int pthread_rwlock_wrlock(pthread_rwlock_t* lock) noexcept {
  static const auto real = behind<pthread_rwlock_t>("pthread_rwlock_wrlock");
  ++locks;
  return real(lock);
}

void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
void* operator new[](std::size_t bytes) { return operator new(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

namespace vqgen::library::test {
namespace {

alignas(256) char memory[256];

// What `act` allocates on its second call.
template <class Act>
long allocated_by(const Act& act) {
  act();
  const long before = allocations;
  act();
  return allocations - before;
}

template <class Act>
long locked_by(const Act& act) {
  act();
  const long before = locks;
  act();
  return locks - before;
}

class Allocations : public testing::Test {
 protected:
  Allocations() {
    const std::string attention = attention_json().dump();
    const std::string gemv = gemv_json().dump();
    EXPECT_EQ(vqgen_prepare(&fake_.runtime, attention.c_str(), nullptr, &attention_), VQGEN_OK);
    EXPECT_EQ(vqgen_prepare(&fake_.runtime, gemv.c_str(), nullptr, &gemv_), VQGEN_OK);
    const std::string append = append_json().dump();
    EXPECT_EQ(vqgen_prepare(&fake_.runtime, append.c_str(), nullptr, &append_), VQGEN_OK);
    const std::string decode = dequantize_json().dump();
    EXPECT_EQ(vqgen_prepare(&fake_.runtime, decode.c_str(), nullptr, &decode_), VQGEN_OK);
    const std::string merge = merge_json().dump();
    EXPECT_EQ(vqgen_prepare(&fake_.runtime, merge.c_str(), nullptr, &merge_), VQGEN_OK);
  }
  ~Allocations() override {
    vqgen_op_release(attention_);
    vqgen_op_release(gemv_);
    vqgen_op_release(append_);
    vqgen_op_release(decode_);
    vqgen_op_release(merge_);
  }
  void launch_all(int rows = 2, std::int64_t tokens = 1000) {
    vqgen_attention_args a{};
    a.struct_bytes = sizeof(a);
    a.tokens = tokens;
    a.query = a.out = memory;
    a.lse = reinterpret_cast<float*>(memory);
    // 1000 rows of each head apart; no fake kernel reads them.
    a.keys.batch_stride = a.values.batch_stride = 1 << 20;
    a.keys.head_stride = a.values.head_stride = 1 << 16;
    a.keys.codes = a.keys.codebooks = a.values.codes = a.values.codebooks = memory;
    a.lengths = reinterpret_cast<std::int32_t*>(memory);
    attention_status_ = vqgen_attention_launch(attention_, &a, memory,
                                               vqgen_op_workspace_bytes(attention_), nullptr);
    vqgen_linear_args l{};
    l.struct_bytes = sizeof(l);
    l.m = rows;
    l.x = l.y = memory;
    l.weights.codes = l.weights.codebooks = memory;
    gemv_status_ = vqgen_linear_launch(gemv_, &l, memory, vqgen_op_workspace_bytes(gemv_), nullptr);
    vqgen_append_args n{};
    n.struct_bytes = sizeof(n);
    n.tokens = tokens;
    n.new_keys = n.new_values = memory;
    n.positions = reinterpret_cast<std::int32_t*>(memory);
    n.keys = a.keys;
    n.values = a.values;
    append_status_ = vqgen_append_launch(append_, &n, nullptr, 0, nullptr);
    vqgen_kv_dequantize_args d{};
    d.struct_bytes = sizeof(d);
    d.tokens = tokens;
    d.out_keys = d.out_values = memory;
    d.keys = a.keys;
    d.values = a.values;
    d.lengths = a.lengths;
    decode_status_ = vqgen_kv_dequantize_launch(decode_, &d, nullptr);
    const void* const outs[] = {memory, memory, memory};
    const float* const lses[] = {a.lse, a.lse, a.lse};
    vqgen_merge_args m{};
    m.struct_bytes = sizeof(m);
    m.rows = rows;
    m.parts = 3;
    m.outs = outs;
    m.lses = lses;
    m.out = memory;
    m.lse = a.lse;
    merge_status_ = vqgen_attention_merge_launch(merge_, &m, nullptr);
  }

  void expect_statuses(vqgen_status expected) const {
    EXPECT_EQ(attention_status_, expected) << vqgen_last_error();
    EXPECT_EQ(gemv_status_, expected) << vqgen_last_error();
    EXPECT_EQ(append_status_, expected) << vqgen_last_error();
    EXPECT_EQ(decode_status_, expected) << vqgen_last_error();
    EXPECT_EQ(merge_status_, expected) << vqgen_last_error();
  }

  FakeRuntime fake_{{.max_buckets = 8}};
  vqgen_op* attention_ = nullptr;
  vqgen_op* gemv_ = nullptr;
  vqgen_op* append_ = nullptr;
  vqgen_op* decode_ = nullptr;
  vqgen_op* merge_ = nullptr;
  vqgen_status attention_status_{}, gemv_status_{}, append_status_{}, decode_status_{},
      merge_status_{};
};

TEST_F(Allocations, ALaunchMakesNone) {
  EXPECT_EQ(allocated_by([&] { launch_all(); }), 0);
  expect_statuses(VQGEN_OK);
  EXPECT_GE(fake_.backend->enqueued, 6);
}

TEST_F(Allocations, SizesThatChangeMakeNone) {
  EXPECT_EQ(allocated_by([&] {
              for (int rows = 1; rows <= 2; ++rows) launch_all(rows, rows * 300);
            }),
            0);
  expect_statuses(VQGEN_OK);
}

TEST_F(Allocations, ArgumentsThatAreRefusedMakeNone) {
  EXPECT_EQ(allocated_by([&] { launch_all(101, -1); }), 0);
  expect_statuses(VQGEN_RANGE);
}

TEST_F(Allocations, AnAllocationInALaunchIsSeen) {
  fake_.backend->on_enqueue = [](const FakeKernel& kernel, std::span<const std::byte>) {
    const std::string copy = kernel.name + " launched";
    EXPECT_NE(copy, "");
  };
  EXPECT_GT(allocated_by([&] { launch_all(); }), 0);
}

TEST_F(Allocations, ALaunchTakesNoLockAndOneThatDidIsSeen) {
  EXPECT_EQ(locked_by([&] {
              for (int rows = 1; rows <= 2; ++rows) launch_all(rows, rows * 300);
            }),
            0);
  expect_statuses(VQGEN_OK);
  std::mutex mutex;
  std::shared_mutex shared;
  fake_.backend->on_enqueue = [&](const FakeKernel&, std::span<const std::byte>) {
    const std::lock_guard lock(mutex);
  };
  EXPECT_GT(locked_by([&] { launch_all(); }), 0);
  fake_.backend->on_enqueue = [&](const FakeKernel&, std::span<const std::byte>) {
    const std::shared_lock lock(shared);
  };
  EXPECT_GT(locked_by([&] { launch_all(); }), 0);
}

// A known config's record is found without allocating; the C function allocates its handle.
TEST_F(Allocations, ALookupMakesNoneAndAHandleOne) {
  const std::string text = gemv_json().dump();
  const std::string source = "config";
  EXPECT_EQ(allocated_by([&] { fake_.registry().prepare(text, source); }), 0);
  EXPECT_EQ(locked_by([&] { fake_.registry().prepare(text, source); }), 1);
  EXPECT_EQ(allocated_by([&] {
              vqgen_op* op = nullptr;
              vqgen_prepare(&fake_.runtime, text.c_str(), nullptr, &op);
              vqgen_op_release(op);
            }),
            1);
}

}  // namespace
}  // namespace vqgen::library::test
