#include "runtime/backend/host/library.h"

#include <dlfcn.h>

#include <string>

#include "core/error.h"
#include "core/files/files.h"
#include "runtime/backend/host/sanitized.h"

namespace vqgen::host {

void Library::Close::operator()(void* handle) const { dlclose(handle); }

Library::Library(std::span<const std::byte> binary, const KernelSource& source, bool check_races,
                 const std::filesystem::path& scratch)
    : file_(std::make_unique<ScratchFolder>(scratch)) {
  const std::filesystem::path path = file_->path() / "kernel.so";
  publish_file(path, binary);
  handle_.reset(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL));
  const auto fail = [&](const std::string& what) {
    throw Error(ErrorKind::device, "cannot load host kernel " + source.entries.at(0).name + ": " +
                                       what + "; compile it anew");
  };
  if (handle_ == nullptr) fail(dlerror());
  for (const KernelEntry& wanted : source.entries) {
    const void* symbol = dlsym(handle_.get(), ("vq_entry_" + wanted.name).c_str());
    if (symbol == nullptr) fail("it has no VQ_KERNEL " + wanted.name);
    const auto* entry = static_cast<const vq::host::Entry*>(symbol);
    if (entry->api_version != vq::host::kApiVersion) {
      fail("it speaks host api " + std::to_string(entry->api_version) + ", not " +
           std::to_string(vq::host::kApiVersion));
    }
    if (entry->tracks != check_races) {
      fail(std::string("it was compiled ") + (entry->tracks ? "to check" : "without checks of") +
           " races");
    }
    if (entry->threads != static_cast<int>(wanted.threads)) {
      fail(wanted.name + " is made for " + std::to_string(entry->threads) +
           " threads, its launch "
           "shape has " +
           std::to_string(wanted.threads));
    }
    if (entry->args_bytes != static_cast<std::uint64_t>(source.args_bytes)) {
      fail(wanted.name + " takes " + std::to_string(entry->args_bytes) +
           " bytes of arguments, its "
           "source says " +
           std::to_string(source.args_bytes));
    }
    entries_.push_back(entry);
  }
  if (!kSanitized) file_.reset();
}

}  // namespace vqgen::host
