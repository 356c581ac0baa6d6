// Fibers on Boost.Context with the switches announced to AddressSanitizer (Debian's build of the
// library does not). A fiber that is given up is simply never resumed: what runs on one must own no
// heap memory when it switches away.
#pragma once

#include <boost/context/detail/fcontext.hpp>
#include <cstddef>
#include <memory>
#include <vector>

namespace vqgen::host {

// True if this process is sanitized; its kernels must match: a sanitized library loads only into a
// sanitized program.
#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// Marks functions whose frames stay behind on a fiber's stack, where red zones would survive them.
#define VQGEN_NO_ASAN __attribute__((no_sanitize("address", "undefined")))

// Saved state of a fiber, or of the thread that runs fibers.
struct Fiber {
  boost::context::detail::fcontext_t context = nullptr;
  void* fake_stack = nullptr;  // AddressSanitizer's
  const void* stack_bottom = nullptr;
  std::size_t stack_bytes = 0;
  void (*entry)(void*) = nullptr;
  void* argument = nullptr;
};

// Leaves `from`, which switch_fiber resumes later, for `to`.
void switch_fiber(Fiber& from, Fiber& to);
// switch_fiber() from a fiber that ends here.
[[noreturn]] void end_fiber(Fiber& from, Fiber& to);

// Stacks with a guard page, mapped when first asked for and reused.
class Stacks {
 public:
  void reserve(std::size_t count);  // std::bad_alloc

  // Readies `fiber` to run entry(argument) on stack number `index` < count when first switched to;
  // entry must end in end_fiber and be VQGEN_NO_ASAN.
  void prepare(std::size_t index, Fiber& fiber, void (*entry)(void*), void* argument);

  // Call it after fibers were abandoned.
  void clean();

 private:
  struct Unmap {
    void operator()(std::byte* base) const;
  };
  std::vector<std::unique_ptr<std::byte, Unmap>> stacks_;
};

}  // namespace vqgen::host
