// The C functions of an op: what it says of itself, and its launches.
#include "runtime/library/handles.h"
#include "runtime/library/last_error.h"
#include "runtime/library/launch.h"

using namespace vqgen::library;

namespace {

template <class Args>
vqgen_status guarded_launch(const vqgen_op* op, const Args* args, Workspace workspace,
                            void* stream) noexcept {
  if (op == nullptr || args == nullptr) {
    return fail(VQGEN_BAD_INPUT, "a null pointer where none may be");
  }
  if (args->struct_bytes != sizeof(Args)) {
    return fail(VQGEN_BAD_INPUT,
                "struct_bytes of the arguments is not the size of the library's "
                "struct; set it, and compile against this version's header");
  }
  try {
    return launch(op->record->current(), *args, workspace, stream);
  } catch (...) {
    return fail_caught();
  }
}

// The bucket that `count` takes; null where none does.
const Bucket* bucket_of(const vqgen_op* op, int64_t count) {
  if (op == nullptr || count < 0) return nullptr;
  const auto& buckets = op->record->current().buckets;
  const std::size_t index = bucket_index(buckets, count);
  return index < buckets.size() ? &buckets[index] : nullptr;
}

}  // namespace

void vqgen_op_release(vqgen_op* op) { delete op; }

vqgen_provenance vqgen_op_provenance(const vqgen_op* op) {
  return op == nullptr ? VQGEN_FROM_MEMORY : static_cast<vqgen_provenance>(op->provenance);
}

size_t vqgen_op_workspace_bytes(const vqgen_op* op) {
  return op == nullptr ? 0 : op->record->workspace_bytes;
}

size_t vqgen_op_workspace_bytes_for(const vqgen_op* op, int64_t count) {
  const Bucket* bucket = bucket_of(op, count);
  if (bucket == nullptr) return 0;
  // What takes over from a baseline may need more at any moment.
  return op->record->baseline ? op->record->workspace_bytes : bucket->workspace_bytes;
}

int64_t vqgen_op_bucket(const vqgen_op* op, int64_t count) {
  const Bucket* bucket = bucket_of(op, count);
  return bucket == nullptr ? 0 : bucket->most;
}

const char* vqgen_op_description(const vqgen_op* op) {
  return op == nullptr ? "" : op->record->told();
}

vqgen_status vqgen_attention_launch(const vqgen_op* op, const vqgen_attention_args* args,
                                    void* workspace, size_t workspace_bytes, void* stream) {
  return guarded_launch(op, args, {workspace, workspace_bytes}, stream);
}

vqgen_status vqgen_append_launch(const vqgen_op* op, const vqgen_append_args* args, void* stream) {
  return guarded_launch(op, args, {}, stream);
}

vqgen_status vqgen_linear_launch(const vqgen_op* op, const vqgen_linear_args* args, void* workspace,
                                 size_t workspace_bytes, void* stream) {
  return guarded_launch(op, args, {workspace, workspace_bytes}, stream);
}
