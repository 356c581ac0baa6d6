#include "python/src/arguments.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "python/src/overlap.h"

namespace vqgen::python {
namespace {

// Types that a description's word stands for: unsigned words may come as signed ones, and 16-bit
// numbers as their bits, since not every library has all of them.
std::vector<DLDataType> types_of(const std::string& word) {
  const auto type = [](TypeCode code, std::uint8_t bits) { return DLDataType{code, bits, 1}; };
  if (word == "u32") return {type(kUint, 32), type(kInt, 32)};
  if (word == "i32") return {type(kInt, 32)};
  if (word == "i64") return {type(kInt, 64)};
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
  throw bad_input("'" + slot.name + "' " + what);
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

const std::vector<Slot>& slots_of(const std::string& op) {
  static std::map<std::string, std::vector<Slot>> all;
  const auto [found, first] = all.try_emplace(op);
  if (!first) return found->second;
  for (const auto& each : nlohmann::json::parse(vqgen_arguments(op.c_str()))) {
    found->second.push_back({.name = each.at("name"),
                             .written = each.at("written"),
                             .optional = each.at("optional"),
                             .free_dimension = each.at("free"),
                             .least = each.at("least"),
                             .free_with = each.at("free_with"),
                             .strided_dimensions = each.at("strided"),
                             .cache_codes = each.value("cache", false),
                             .offset = each.value("offset", std::int64_t{-1})});
  }
  return found->second;
}

int Signature::slot(const char* name) const {
  const auto found = std::find_if(slots->begin(), slots->end(),
                                  [&](const Slot& each) { return each.name == name; });
  return found == slots->end() ? -1 : static_cast<int>(found - slots->begin());
}

Signature read_signature(const char* description, DLDevice device) {
  const auto json = nlohmann::json::parse(description);
  Signature signature;
  signature.op = json.at("problem").at("op").get<std::string>();
  signature.slots = &slots_of(signature.op);
  signature.device = device;
  const auto& shape = json.at("problem").at("shape");
  signature.tokens = shape.value("tokens", std::int64_t{0});
  signature.writes_scales = shape.value("scales", "given") == "computed";
  signature.page_tokens = shape.value("page_tokens", std::int64_t{0});
  signature.keys = signature.slot("keys.codes");
  signature.values = signature.slot("values.codes");
  signature.raw_page_tokens = shape.value("raw_page_tokens", std::int64_t{0});
  signature.values_differ = shape.contains("value_head_dim");
  signature.block_table = signature.slot("block_table");
  signature.raw_block_table = signature.slot("raw_block_table");
  signature.raw_keys = signature.slot("raw_keys");
  signature.raw_values = signature.slot("raw_values");
  for (const Slot& slot : *signature.slots) {
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
      const int index = static_cast<int>(signature.expected.size()) - 1;
      const bool raw = index == signature.raw_keys || index == signature.raw_values;
      if (raw && signature.raw_page_tokens > 0) expected->strided_dimensions = 3;
    }
  }
  for (std::size_t i = 0; i < signature.expected.size(); ++i) {
    const std::string& with = (*signature.slots)[i].free_with;
    if (with.empty() || !signature.expected[i]) continue;
    if (!signature.expected[static_cast<std::size_t>(signature.slot(with.c_str()))]) {
      signature.expected[i]->free_dimension = -1;
    }
  }
  return signature;
}

Arguments::Arguments(const Signature& signature, std::span<PyObject* const> given, void* stream) {
  slots_ = *signature.slots;
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
    given_[i].emplace(given[i], slot.name.c_str(), stream);
    judge(slot, *expected, signature.device, *given_[i]);
  }
  judge_overlaps(signature);
  judge_sizes(signature);
}

// Merged results may take the place of a part's, as a whole, and y that of its residual. Pages of
// one pool may hold codes or raw rows, as the tables say.
bool Arguments::may_share(const Signature& signature, std::size_t written,
                          std::size_t other) const {
  if (signature.page_tokens > 0 && signature.raw_page_tokens > 0) {
    const auto is_raw = [&](std::size_t slot) {
      return static_cast<int>(slot) == signature.raw_keys ||
             static_cast<int>(slot) == signature.raw_values;
    };
    if ((is_raw(written) && slots_[other].cache_codes) ||
        (slots_[written].cache_codes && is_raw(other))) {
      return true;
    }
  }
  const bool may = slots_[other].name.starts_with(slots_[written].name + "s.") ||
                   slots_[other].name == "residual";
  return may && given_[written]->data() == given_[other]->data();
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
          may_share(signature, i, other)) {
        continue;
      }
      refuse(slots_[i], "is written, and shares memory with '" + slots_[other].name +
                            "'; pass memory of its own");
    }
  }
}

// What is sized by the call has one size.
void Arguments::judge_sizes(const Signature& signature) const {
  const std::string* first = nullptr;
  std::int64_t wanted = 0;
  for (std::size_t i = 0; i < given_.size(); ++i) {
    if (!given_[i] || slots_[i].cache_codes || signature.expected[i]->free_dimension < 0) continue;
    const int dimension = signature.expected[i]->free_dimension;
    const std::int64_t has = given_[i]->view().shape[dimension];
    if (first == nullptr) std::tie(first, wanted) = std::tuple(&slots_[i].name, has);
    if (has == wanted) continue;
    refuse(slots_[i], "has " + std::to_string(has) + (dimension == 0 ? " rows" : " tokens") +
                          ", and '" + *first + "' " + std::to_string(wanted) + "; make them equal");
  }
}

std::int64_t Arguments::stride(int slot, int dimension) const {
  const auto& tensor = given_[index(slot)];
  if (!tensor || tensor->view().shape[dimension] <= 1) return 0;
  return tensor->stride(dimension);
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
