// Bundles of codebooks for servers in C++20: what vqgen.h says of them, with an owning handle.
//
//   vqgen::BundleFile bundle("llama.bundle");                 // throws vqgen::StatusError
//   auto books = bundle.tensor("layer0", "attention_decode", "keys.codebooks");
//   upload(books.data(), books.size());                   // bytes, in host memory
#pragma once

#include <vqgen/vqgen.hpp>

namespace vqgen {
inline namespace api0 {

// A bundle, from a file: cheap to copy, and its tensors live as long as a copy does. Thread-safe.
class BundleFile {
 public:
  // Reads the file whole and judges all that is in it.
  explicit BundleFile(const std::string& path) {
    vqgen_bundle* opened = nullptr;
    require(vqgen_bundle_open(path.c_str(), &opened));
    bundle_.reset(opened, &vqgen_bundle_release);
  }

  // JSON: what configs take of each item (vqgen_bundle_description()).
  const char* description() const { return vqgen_bundle_description(bundle_.get()); }
  // What `op` takes of `item` as `argument`; empty if the item has none (vqgen_bundle_tensor()).
  std::span<const std::byte> tensor(const std::string& item, const std::string& op,
                                    const std::string& argument) const {
    const void* data = nullptr;
    std::size_t bytes = 0;
    require(vqgen_bundle_tensor(bundle_.get(), item.c_str(), op.c_str(), argument.c_str(), &data,
                                &bytes));
    return {static_cast<const std::byte*>(data), bytes};
  }
  vqgen_bundle* get() const { return bundle_.get(); }

 private:
  std::shared_ptr<vqgen_bundle> bundle_;
};

}  // namespace api0
}  // namespace vqgen
