// An argument of an op, declared once: the check of the C struct, the device struct, the op's
// description, bindings and uploads of test data follow from it.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "core/format/vq_format.h"
#include "core/json/json.h"
#include "runtime/alignment.h"

namespace vqgen {

using Extents = std::vector<std::int64_t>;

// own: the op's dtype.
enum class Content { own, f32, i32, i8 };

// What all arguments have, by name where they are declared.
template <class Op>
struct About {
  Extents (*shape)(const Op&);  // of the largest call; 0 where the caller chooses
  Content (*content)(const Op&) = [](const Op&) { return Content::own; };
  Aligned aligned = Aligned::word;
  bool (*taken)(const Op&) = nullptr;  // null: by every config
  const char* refused = nullptr;  // what is said where it is given and not taken; null: nothing
  bool optional = false;          // null means something
  bool written = false;
  int free = -1;                    // the dimension whose size is the call's,
  int least = 1;                    // from this on; with 0 it may be null there
  const char* free_with = nullptr;  // only where the op takes this other argument
  int strided = 0;                  // leading dimensions that may lie apart
};

template <class Op>
constexpr auto i32 = [](const Op&) { return Content::i32; };
template <class Op>
constexpr auto f32 = [](const Op&) { return Content::f32; };

struct None {};

// An array. `host`, `device` and `data` name its member in the C struct, in the device struct, and
// in the op's data where an upload is all that it needs; None where there is none.
template <class Op, class Host, class Device, class Data>
struct Array {
  const char* name;
  Host host;
  Device device;
  Data data;
  About<Op> about;
};

// Rows of codes and what they are decoded by.
struct StoredTensor {
  Extents rows;               // all but the words of a row
  std::int64_t columns;       // numbers of a row
  std::int64_t units;         // of codebooks
  std::int64_t elements = 0;  // of the codebooks of keys in parts
};

// A quantized tensor: `format` is its member in the op, `pages` that in vqgen_pages, or None.
template <class Op, class Host, class Device, class Format, class Pages>
struct Tensor {
  const char* name;
  Host host;
  Device device;
  Format format;
  Pages pages;
  StoredTensor (*stored)(const Op&);
  bool written = false;  // its codes
};

// As many of each array as an op has parts, whose members are arrays of pointers, in the C struct
// in host memory. `given` is its count there.
template <class Op, class Given, class... Arrays>
struct Parts {
  Given given;
  int (*count)(const Op&);
  std::tuple<Arrays...> arrays;
};

template <class Op>
bool is_taken(const About<Op>& about, const Op& op) {
  return about.taken == nullptr || about.taken(op);
}

// visit(argument) for each of Traits::arguments(), in order.
template <class Traits, class Visit>
void for_each_argument(Visit&& visit) {
  std::apply([&](const auto&... each) { (visit(each), ...); }, Traits::arguments());
}

}  // namespace vqgen
