// What an op takes: each argument with the type and shape that the op's description gives it, and
// arrays judged by that.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "python/src/tensor.h"

namespace vqgen::python {

// An argument that an op may take, as vqgen_arguments() has it, in the order of calls.
struct Slot {
  std::string name;
  bool written = false;
  bool optional = false;
  int free_dimension = -1;     // whose size is the caller's to choose,
  int least = 1;               // from this on,
  std::string free_with;       // where the op takes this argument
  int strided_dimensions = 0;  // leading ones that may lie apart; those behind are contiguous
  bool cache_codes = false;    // contiguous or in pages
  std::int64_t offset = -1;    // in the struct of arguments; -1: in an array of pointers
};
// One vector an op, for good. The GIL is held.
const std::vector<Slot>& slots_of(const std::string& op);

// What a slot takes in one op; nothing where the op has no such argument.
struct Expected {
  std::vector<DLDataType> types;    // any of them
  std::vector<std::int64_t> shape;  // of the largest call; 0 where the caller chooses
  int free_dimension = -1;          // see Slot
  int strided_dimensions = 0;
  int least = 1;
  bool is_free(int dimension) const {
    return dimension == free_dimension || shape[static_cast<std::size_t>(dimension)] == 0;
  }
};

// Of a prepared op's description. The device is where its arrays have to be.
struct Signature {
  std::string op;  // "attention_decode"
  DLDevice device;
  const std::vector<Slot>* slots;
  std::vector<std::optional<Expected>> expected;  // a slot each
  std::int64_t tokens = 0;                        // of a cache
  std::int64_t page_tokens = 0;                   // of a cache in pages
  std::int64_t raw_page_tokens = 0;               // of one whose raw rows are in pages
  bool values_differ = false;                     // heads of values have a size of their own
  bool writes_scales = false;                     // int8_quantize, where it computes them
  // Slots of a cache; -1 without one.
  int keys = -1, values = -1, block_table = -1, raw_keys = -1, raw_values = -1;
  int raw_block_table = -1;
  int slot(const char* name) const;  // -1 where there is none
  bool writes(std::size_t slot) const {
    return (*slots)[slot].written || (writes_scales && (*slots)[slot].name == "scales");
  }
};
Signature read_signature(const char* description, DLDevice device);

// The arrays of one call, a slot each.
class Arguments {
 public:
  // `given` is as long as the slots; None leaves one out. `stream` as for Tensor. StatusError
  // names the argument, what it is and what it has to be; of what is written no element shares
  // memory with another.
  Arguments(const Signature& signature, std::span<PyObject* const> given, void* stream);

  template <class T = void>
  T* data(int slot) const {
    return given_[index(slot)] ? static_cast<T*>(given_[index(slot)]->data()) : nullptr;
  }
  std::int64_t size(int slot, int dimension) const {
    return given_[index(slot)]->view().shape[dimension];
  }
  // Elements between the indices of a dimension; 0 where it has one index or none.
  std::int64_t stride(int slot, int dimension) const;
  // Of codes in pages: their strides in bytes.
  vqgen_page_strides page_strides(int slot) const;
  // Tokens that the codes in `slot` have room for: a sequence, or a page.
  std::int64_t capacity(int slot) const;

  const std::vector<std::optional<Tensor>>& tensors() const { return given_; }

 private:
  bool may_share(const Signature& signature, std::size_t written, std::size_t other) const;
  void judge_overlaps(const Signature& signature) const;
  void judge_sizes(const Signature& signature) const;

  std::span<const Slot> slots_;
  static std::size_t index(int slot) { return static_cast<std::size_t>(slot); }
  std::vector<std::optional<Tensor>> given_;
};

}  // namespace vqgen::python
