#include "runtime/backend/host/fiber.h"

#include <sys/mman.h>

#include <new>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>

// Sanitizer defaults: fake stacks would outlive abandoned fibers; a failed allocation is an Error,
// not an abort; undefined behaviour traps with its line.
extern "C" __attribute__((visibility("default"))) const char* __asan_default_options();
const char* __asan_default_options() {
  return "detect_stack_use_after_return=0:allocator_may_return_null=1:handle_sigill=1";
}
#endif

namespace vqgen::host {
namespace {

namespace boost_context = boost::context::detail;

constexpr std::size_t kPage = 4096;
constexpr std::size_t kStackBytes = kSanitized ? 512 * 1024 : 128 * 1024;

// Stacks start at different offsets in a page, or the frames of all fibers would share a few L1
// sets.
constexpr std::size_t kColours = 16;
constexpr std::size_t kColourBytes = 256;

// Passed along with a switch.
struct Passage {
  Fiber* from;
  Fiber* to;
};

VQGEN_NO_ASAN void announce([[maybe_unused]] void** fake_stack, [[maybe_unused]] const Fiber& to) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(fake_stack, to.stack_bottom, to.stack_bytes);
#endif
}

// Runs first after a switch: stores the other side's context, and its stack for the sanitizer.
VQGEN_NO_ASAN void arrive(boost_context::transfer_t came, [[maybe_unused]] void* fake_stack) {
  Fiber* const from = static_cast<Passage*>(came.data)->from;
  from->context = came.fctx;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack, &from->stack_bottom, &from->stack_bytes);
#endif
}

VQGEN_NO_ASAN void begin(boost_context::transfer_t came) {
  const Fiber* const self = static_cast<Passage*>(came.data)->to;
  arrive(came, nullptr);
  self->entry(self->argument);
}

}  // namespace

VQGEN_NO_ASAN void switch_fiber(Fiber& from, Fiber& to) {
  Passage passage{&from, &to};
  announce(&from.fake_stack, to);
  arrive(boost_context::jump_fcontext(to.context, &passage), from.fake_stack);
}

VQGEN_NO_ASAN void end_fiber(Fiber& from, Fiber& to) {
  Passage passage{&from, &to};
  announce(nullptr, to);
  boost_context::jump_fcontext(to.context, &passage);
  __builtin_unreachable();
}

void Stacks::Unmap::operator()(std::byte* base) const { munmap(base, kPage + kStackBytes); }

void Stacks::reserve(std::size_t count) {
  while (stacks_.size() < count) {
    void* const base = mmap(nullptr, kPage + kStackBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (base == MAP_FAILED) throw std::bad_alloc();
    stacks_.emplace_back(static_cast<std::byte*>(base));
    if (mprotect(base, kPage, PROT_NONE) != 0) throw std::bad_alloc();
  }
}

void Stacks::prepare(std::size_t index, Fiber& fiber, void (*entry)(void*), void* argument) {
  std::byte* const bottom = stacks_[index].get() + kPage;
  const std::size_t bytes = kStackBytes - index % kColours * kColourBytes;
  fiber = {.context = boost_context::make_fcontext(bottom + bytes, bytes, &begin),
           .stack_bottom = bottom,
           .stack_bytes = bytes,
           .entry = entry,
           .argument = argument};
}

void Stacks::clean() {
#if defined(__SANITIZE_ADDRESS__)
  for (const auto& stack : stacks_) __asan_unpoison_memory_region(stack.get() + kPage, kStackBytes);
#endif
}

}  // namespace vqgen::host
