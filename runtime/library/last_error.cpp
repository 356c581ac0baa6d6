#include "runtime/library/last_error.h"

#include <cstdio>
#include <exception>
#include <new>

namespace vqgen::library {
namespace {

static_assert(VQGEN_BAD_INPUT == static_cast<int>(ErrorKind::bad_input) &&
              VQGEN_INFEASIBLE == static_cast<int>(ErrorKind::infeasible) &&
              VQGEN_DEVICE == static_cast<int>(ErrorKind::device));

thread_local char last_message[1024] = "";

}  // namespace

vqgen_status fail(vqgen_status status, const char* message) noexcept {
  std::snprintf(last_message, sizeof(last_message), "%s", message);
  for (char& c : last_message) {
    if (c == '\0') break;
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') c = ' ';
  }
  return status;
}

vqgen_status fail_argument(vqgen_status status, const char* name, const char* what) noexcept {
  std::snprintf(last_message, sizeof(last_message), "the argument '%s' %s", name, what);
  return status;
}

vqgen_status fail_range(const char* name, std::int64_t count, std::int64_t least,
                        std::int64_t most) noexcept {
  std::snprintf(last_message, sizeof(last_message),
                "%s is %lld, and the op was prepared for %lld to %lld; prepare it with as many as "
                "will come",
                name, static_cast<long long>(count), static_cast<long long>(least),
                static_cast<long long>(most));
  return VQGEN_RANGE;
}

vqgen_status fail_caught() noexcept {
  try {
    throw;
  } catch (const Error& error) {
    const bool own = error.kind() != ErrorKind::verification_failed;
    return fail(own ? static_cast<vqgen_status>(error.kind()) : VQGEN_INTERNAL, error.what());
  } catch (const std::bad_alloc&) {
    return fail(VQGEN_INTERNAL, "out of host memory; free some");
  } catch (const std::exception& error) {
    return fail(VQGEN_INTERNAL, error.what());
  } catch (...) {
    return fail(VQGEN_INTERNAL, "a fault without a description; report it");
  }
}

}  // namespace vqgen::library

extern "C" const char* vqgen_last_error() { return vqgen::library::last_message; }
