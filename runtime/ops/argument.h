// Declares an argument of an op once: the check of the C struct, the device struct, the op's
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
enum class Content { own, f32, i32, i64, i8 };

// The properties of all arguments, named where they are declared.
template <class Op>
struct About {
  Extents (*shape)(const Op&);  // in the largest call; 0 if the caller chooses
  Content (*content)(const Op&) = [](const Op&) { return Content::own; };
  Aligned aligned = Aligned::word;
  bool (*taken)(const Op&) = nullptr;  // null: by every config
  const char* refused = nullptr;       // message if it is given but not taken; null: none
  bool optional = false;               // null is valid
  bool written = false;
  int free = -1;                    // the dimension whose size is the call's, or -1
  int least = 1;                    // its least size; with 0 the pointer may be null then
  const char* free_with = nullptr;  // only if the op takes this other argument
  int strided = 0;                  // leading dimensions that may have strides
};

template <class Op>
constexpr auto i32 = [](const Op&) { return Content::i32; };
template <class Op>
constexpr auto f32 = [](const Op&) { return Content::f32; };
template <class Op>
constexpr auto i64 = [](const Op&) { return Content::i64; };

struct None {};

// An array. `host` and `device` name its member in the C struct and in the device struct; `data`
// names its member in the op's data if uploading is all that it needs. None means no member.
template <class Op, class Host, class Device, class Data>
struct Array {
  const char* name;
  Host host;
  Device device;
  Data data;
  About<Op> about;
};

// Rows of codes and the codebooks that decode them.
struct StoredTensor {
  Extents rows;               // all dimensions but the words of a row
  std::int64_t columns;       // numbers per row
  std::int64_t units;         // codebook sets
  std::int64_t elements = 0;  // in the codebooks of keys in parts, and their stages
  std::int64_t stages = 0;
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
  bool written = false;  // the op writes its codes
};

// Arrays of which an op has one per part: arrays of pointers, in host memory, in the C struct.
// `given` is the struct's count of parts.
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
