// The C functions of layouts: host memory alone, without a runtime.
#include "quantizer/pack.h"
#include "runtime/library/last_error.h"

using namespace vqgen::library;

namespace {

vqgen::CodeLayout of(vqgen_layout layout) { return {layout.rows, layout.words}; }

// A negative number of words fits no codes; a span could not represent it.
std::size_t count(std::int64_t words) { return static_cast<std::size_t>(words < 0 ? 0 : words); }

}  // namespace

int64_t vqgen_layout_words(vqgen_layout layout, int64_t heads, int64_t rows, int64_t row_words) {
  try {
    return vqgen::layout_words(of(layout), {heads, rows, row_words});
  } catch (...) {
    fail_caught();
    return 0;
  }
}

vqgen_status vqgen_repack(const uint32_t* from, vqgen_layout from_layout, int64_t from_words,
                          uint32_t* to, vqgen_layout to_layout, int64_t to_words, int64_t heads,
                          int64_t rows, int64_t row_words) {
  if (from == nullptr || to == nullptr) {
    return fail(VQGEN_BAD_INPUT, "repack: codes are null; give host memory");
  }
  return guarded({}, [&] {
    vqgen::repack({from, count(from_words)}, of(from_layout), {to, count(to_words)}, of(to_layout),
                  {heads, rows, row_words});
    return VQGEN_OK;
  });
}
