#include "python/src/rotation.h"

#include "python/src/guarded.h"

namespace vqgen::python {
namespace {

constexpr const char* kName = "vqgen.rotator";

struct Held {
  std::shared_ptr<RuntimeState> state;  // outlives the rotator
  std::unique_ptr<vqgen_rotator, decltype(&vqgen_rotator_release)> rotator{nullptr,
                                                                           &vqgen_rotator_release};
};

void drop(PyObject* capsule) { delete static_cast<Held*>(PyCapsule_GetPointer(capsule, kName)); }

template <class T>
T* at(std::uint64_t address) {
  return reinterpret_cast<T*>(static_cast<std::uintptr_t>(address));
}

}  // namespace

PyObject* make_rotator(const std::shared_ptr<RuntimeState>& state, int element,
                       std::int64_t features, bool back, void* stream) {
  auto held = std::make_unique<Held>();
  held->state = state;
  without_gil([&] {
    vqgen_rotator* made = nullptr;
    require(vqgen_rotator_create(state->runtime().get(), element, features, back, stream, &made));
    held->rotator.reset(made);
  });
  Object capsule = checked(PyCapsule_New(held.get(), kName, &drop));
  held.release();
  return capsule.release();
}

void rotate(PyObject* rotator, std::uint64_t x, std::uint64_t signs, std::uint64_t y,
            std::int64_t rows, void* stream) {
  auto* const held = static_cast<Held*>(PyCapsule_GetPointer(rotator, kName));
  if (held == nullptr) throw PythonError{};
  held->state->require_same_process();
  const auto run = [&] {
    require(vqgen_rotate(held->rotator.get(), at<const void>(x), at<const float>(signs),
                         at<void>(y), rows, stream));
  };
  if (held->state->on_host()) {
    without_gil(run);
  } else {
    held->state->make_current();
    run();
  }
}

}  // namespace vqgen::python
