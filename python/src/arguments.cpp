#include "python/src/arguments.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "python/src/overlap.h"

namespace vqgen::python {
namespace {

constexpr Slot codes(const char* name, bool written) {
  return {.name = name,
          .written = written,
          .free_dimension = 2,
          .strided_dimensions = 2,
          .cache_codes = true};
}
constexpr Slot raw(const char* name, bool written) {
  return {.name = name, .written = written, .strided_dimensions = 2};
}

constexpr Slot kAttention[] = {
    {"query"},
    {.name = "out", .written = true},
    {.name = "lse", .written = true},
    codes("keys.codes", false),
    {"keys.codebooks"},
    {"keys.scales"},
    codes("values.codes", false),
    {"values.codebooks"},
    {"values.scales"},
    {"key_smooth"},
    raw("raw_keys", false),
    raw("raw_values", false),
    {"lengths"},
    {"recent_counts"},
    {"sinks"},
    {"query_start"},
    {.name = "new_keys", .optional = true},
    {.name = "new_values", .optional = true},
    {"block_table"},
};
constexpr std::size_t kQueryStart = 15;  // in kAttention
constexpr Slot kAppend[] = {
    {"new_keys"},
    {"new_values"},
    {"positions"},
    {.name = "counts", .optional = true},
    codes("keys.codes", true),
    {"keys.codebooks"},
    {"keys.scales"},
    codes("values.codes", true),
    {"values.codebooks"},
    {"values.scales"},
    {"key_smooth"},
    raw("raw_keys", true),
    raw("raw_values", true),
    {"block_table"},
};
constexpr Slot kDecode[] = {
    {.name = "out_keys", .written = true, .free_dimension = 2, .least = 0},
    {.name = "out_values", .written = true, .free_dimension = 2, .least = 0},
    codes("keys.codes", false),
    {"keys.codebooks"},
    {"keys.scales"},
    codes("values.codes", false),
    {"values.codebooks"},
    {"values.scales"},
    {"key_smooth"},
    raw("raw_keys", false),
    raw("raw_values", false),
    {"lengths"},
    {"recent_counts"},
    {"sinks"},
    {"block_table"},
};
constexpr Slot rows(const char* name, bool written = false) {
  return {.name = name, .written = written, .free_dimension = 0, .least = 0};
}
constexpr Slot kMerge[] = {
    rows("out", true), rows("lse", true), rows("outs.0"), rows("lses.0"), rows("outs.1"),
    rows("lses.1"),    rows("outs.2"),    rows("lses.2"), rows("outs.3"), rows("lses.3"),
    rows("outs.4"),    rows("lses.4"),    rows("outs.5"), rows("lses.5"), rows("outs.6"),
    rows("lses.6"),    rows("outs.7"),    rows("lses.7"),
};
constexpr Slot kLinear[] = {
    rows("x"),          rows("y", true),   {"weights.codes"}, {"weights.codebooks"},
    {"weights.scales"}, {"output_scales"}, {"expert_rows"},
};

constexpr Slot kScalar[] = {rows("from"), rows("to", true), {"scales"}};

static_assert(std::max({std::size(kAttention), std::size(kAppend), std::size(kDecode),
                        std::size(kMerge), std::size(kLinear), std::size(kScalar)}) == kMostSlots);

// Types that a description's word stands for: unsigned words may come as signed ones, and 16-bit
// numbers as their bits, since not every library has all of them.
std::vector<DLDataType> types_of(const std::string& word) {
  const auto type = [](TypeCode code, std::uint8_t bits) { return DLDataType{code, bits, 1}; };
  if (word == "u32") return {type(kUint, 32), type(kInt, 32)};
  if (word == "i32") return {type(kInt, 32)};
  if (word == "i8") return {type(kInt, 8)};
  if (word == "f32") return {type(kFloat, 32)};
  return {type(word == "f16" ? kFloat : kBfloat, 16), type(kUint, 16)};
}

std::string shape_words(const Expected& expected) {
  std::string text = dtype_words(expected.types.front()) + " [";
  for (std::size_t i = 0; i < expected.shape.size(); ++i) {
    text += i > 0 ? ", " : "";
    text += !expected.is_free(static_cast<int>(i)) ? std::to_string(expected.shape[i])
            : expected.least > 0                   ? "1 or more"
                                                   : "any";
  }
  return text + "]";
}

[[noreturn]] void refuse(const Slot& slot, const std::string& what) {
  throw bad_input(std::string("'") + slot.name + "' " + what);
}

bool has_shape(const Expected& expected, const DLTensor& view) {
  if (view.ndim != static_cast<int>(expected.shape.size())) return false;
  for (int i = 0; i < view.ndim; ++i) {
    const std::int64_t wanted = expected.shape[static_cast<std::size_t>(i)];
    if (expected.is_free(i) ? view.shape[i] < expected.least : view.shape[i] != wanted) {
      return false;
    }
  }
  return true;
}

// Dimensions behind the strided ones follow each other without a gap, and those stride forward.
bool lies_as_wanted(const Expected& expected, const Tensor& tensor) {
  const DLTensor& view = tensor.view();
  if (tensor.empty()) return true;
  std::int64_t inner = 1;
  for (int i = view.ndim - 1; i >= 0; --i) {
    const bool one = view.shape[i] == 1;
    if (i >= expected.strided_dimensions) {
      if (!one && tensor.stride(i) != inner) return false;
      inner *= view.shape[i];
    } else if (!one && tensor.stride(i) < 0) {
      return false;
    }
  }
  return true;
}

void judge(const Slot& slot, const Expected& expected, const DLDevice& device,
           const Tensor& tensor) {
  const DLTensor& view = tensor.view();
  const bool managed = device.type == kCuda && view.device.type == kCudaManaged;
  const bool here =
      view.device.type == device.type && (device.type == kCpu || view.device.id == device.id);
  const bool typed =
      std::find(expected.types.begin(), expected.types.end(), view.dtype) != expected.types.end();
  if (!typed || !has_shape(expected, view) || !(here || managed)) {
    refuse(slot, "is " + tensor.words() + "; it has to be " + shape_words(expected) +
                     (device.type == kCpu ? " on cpu" : " on cuda:" + std::to_string(device.id)));
  }
  if (!lies_as_wanted(expected, tensor)) {
    refuse(slot, expected.strided_dimensions == 0 ? "is not contiguous; pass a contiguous copy"
                 : expected.strided_dimensions > 2
                     ? "has gaps or an order within its last dimensions; only pages, heads and "
                       "tokens may lie apart"
                     : "has gaps or an order within its last dimensions; only sequences and heads "
                       "may lie apart");
  }
  if (slot.written && tensor.read_only()) refuse(slot, "is read-only, and is written");
}

}  // namespace

std::span<const Slot> slots_of(Kind kind) {
  if (kind == Kind::attention) return kAttention;
  if (kind == Kind::append) return kAppend;
  if (kind == Kind::decode) return kDecode;
  if (kind == Kind::merge) return kMerge;
  if (kind == Kind::scalar) return kScalar;
  return kLinear;
}

Signature read_signature(const char* description, DLDevice device) {
  const auto json = nlohmann::json::parse(description);
  Signature signature;
  signature.op = json.at("problem").at("op").get<std::string>();
  signature.kind = signature.op == "attention_decode"   ? Kind::attention
                   : signature.op == "kv_append"        ? Kind::append
                   : signature.op == "kv_dequantize"    ? Kind::decode
                   : signature.op == "attention_merge"  ? Kind::merge
                   : signature.op.starts_with("scalar") ? Kind::scalar
                                                        : Kind::linear;
  signature.device = device;
  const auto& shape = json.at("problem").at("shape");
  signature.tokens = shape.value("tokens", std::int64_t{0});
  signature.writes_scales = shape.value("scales", "given") == "computed";
  signature.page_tokens = shape.value("page_tokens", std::int64_t{0});
  for (const Slot& slot : slots_of(signature.kind)) {
    std::optional<Expected>& expected = signature.expected.emplace_back();
    for (const auto& each : json.at("arguments")) {
      if (each.at("name") != slot.name) continue;
      expected = {types_of(each.at("type")), each.at("shape").get<std::vector<std::int64_t>>(),
                  slot.free_dimension, slot.strided_dimensions, slot.least};
      // Pages have one size, and so have tokens of a place of their own.
      if (slot.cache_codes && signature.page_tokens > 0) {
        expected->free_dimension = -1;
        expected->strided_dimensions = 3;
      }
    }
  }
  // Only the device knows how many rows of several query tokens count.
  if (signature.kind == Kind::attention && signature.expected[kQueryStart]) {
    for (const std::size_t rows :
         {std::size_t{0}, std::size_t{1}, std::size_t{2}, kQueryStart + 1, kQueryStart + 2}) {
      signature.expected[rows]->free_dimension = 0;
      signature.expected[rows]->least = 0;
    }
  }
  return signature;
}

Arguments::Arguments(const Signature& signature, std::span<PyObject* const> given, void* stream) {
  slots_ = slots_of(signature.kind);
  given_.resize(slots_.size());
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    const std::optional<Expected>& expected = signature.expected[i];
    if (given[i] == Py_None) {
      if (expected && !slot.optional) {
        refuse(slot, "is missing; it has to be " + shape_words(*expected));
      }
      continue;
    }
    if (!expected) refuse(slot, "is given, and the config has none; leave it out");
    given_[i].emplace(given[i], slot.name, stream);
    judge(slot, *expected, signature.device, *given_[i]);
  }
  judge_overlaps(signature);
}

// Merged results may take the place of a part's, as a whole.
bool Arguments::may_share(Kind kind, std::size_t written, std::size_t other) const {
  return kind == Kind::merge && written < 2 && other >= 2 && written == other % 2 &&
         given_[written]->data() == given_[other]->data();
}

void Arguments::judge_overlaps(const Signature& signature) const {
  std::vector<std::optional<Region>> regions(given_.size());
  for (std::size_t i = 0; i < given_.size(); ++i) {
    if (given_[i]) regions[i].emplace(*given_[i]);
  }
  for (std::size_t i = 0; i < given_.size(); ++i) {
    if (!regions[i] || !signature.writes(i)) continue;
    if (regions[i]->repeats()) {
      refuse(slots_[i],
             "is written, and has elements at one place; lay sequences, heads and pages apart");
    }
    for (std::size_t other = 0; other < given_.size(); ++other) {
      if (other == i || !regions[other] || !regions[i]->meets(*regions[other]) ||
          may_share(signature.kind, i, other)) {
        continue;
      }
      refuse(slots_[i], std::string("is written, and shares memory with '") + slots_[other].name +
                            "'; pass memory of its own");
    }
  }
}

void Arguments::require_rows(int slot, int as) const {
  const auto& tensor = given_[index(slot)];
  const std::int64_t rows = size(as, 0);
  if (!tensor || tensor->view().shape[0] == rows) return;
  throw bad_input("'" + std::string(slots_[index(slot)].name) + "' has " +
                  std::to_string(tensor->view().shape[0]) + " rows, and '" +
                  slots_[index(as)].name + "' " + std::to_string(rows) + "; make them equal");
}

std::int64_t Arguments::stride(int slot, int dimension) const {
  const auto& tensor = given_[index(slot)];
  if (!tensor || tensor->view().shape[dimension] <= 1) return 0;
  return tensor->stride(dimension);
}

vqgen_quantized Arguments::quantized(int slot, bool rows) const {
  return {.codes = data(slot),
          .codebooks = data(slot + 1),
          .scales = data<float>(slot + 2),
          .batch_stride = rows ? stride(slot, 0) : 0,
          .head_stride = rows ? stride(slot, 1) : 0};
}

// [page][head][token][word], or [page][head][group][run][token][word] of a layout: tokens of a
// group share its stride, in whole words.
vqgen_page_strides Arguments::page_strides(int slot) const {
  const DLTensor& view = given_[index(slot)]->view();
  const std::int64_t group = view.ndim == 6 ? view.shape[4] : 1;
  const std::int64_t apart = stride(slot, 2);
  if (apart % group != 0) {
    refuse(slots_[index(slot)],
           "has " + std::to_string(apart) + " words from a group of rows to the next, which its " +
               std::to_string(group) + " rows do not divide; pad groups to a multiple");
  }
  return {4 * stride(slot, 0), 4 * stride(slot, 1), 4 * (apart / group)};
}

// [sequence][head][token][word], or [sequence][head][group][run][token][word] of a layout.
std::int64_t Arguments::capacity(int slot) const {
  const DLTensor& view = given_[index(slot)]->view();
  return view.ndim == 6 ? view.shape[2] * view.shape[4] : view.shape[2];
}

}  // namespace vqgen::python
