// The C functions of an op: its description and its launches. A launch finds its bucket by a scan,
// judges arguments without touching what they point to, and enqueues the kernels in order on the
// caller's stream. No allocation, no lock, no string.
#include "runtime/library/examine.h"
#include "runtime/library/host_integers.h"
#include "runtime/library/last_error.h"
#include "runtime/library/registry.h"
#include "runtime/workspace.h"

namespace vqgen::library {
namespace {

// Fills vq::QuantizedArgs, or vq::EncodedArgs, whose codes are written.
template <class Args>
Args tensor_args(const vqgen_quantized& given) {
  return {static_cast<vq::u32*>(const_cast<void*>(given.codes)),
          static_cast<const vq::u16*>(given.codebooks),
          given.scales,
          given.batch_stride,
          given.head_stride,
          0,
          nullptr,
          0};
}

// Copies one argument of the C struct into the device struct.
template <class Op, class H, class D, class S, class Call, class Args>
void set(const Array<Op, H, D, S>& each, Call& call, const Args& args, const Op&) {
  if constexpr (!std::is_same_v<D, None>) {
    auto& member = call.*each.device;
    member = static_cast<std::remove_reference_t<decltype(member)>>(args.*each.host);
  }
}

template <class Op, class H, class D, class F, class P, class Call, class Args>
void set(const Tensor<Op, H, D, F, P>& each, Call& call, const Args& args, const Op&) {
  auto& tensor = call.*each.device;
  tensor = tensor_args<std::remove_reference_t<decltype(tensor)>>(args.*each.host);
  if constexpr (!std::is_same_v<P, None>) {
    const vqgen_pages& pages = args.pages;
    if (pages.block_table == nullptr) return;
    const vqgen_page_strides& strides = pages.*each.pages;
    tensor.batch_stride = strides.page / 4;
    tensor.head_stride = strides.head / 4;
    tensor.token_stride = strides.token / 4;
    tensor.pages = pages.block_table;
    tensor.page_columns = pages.columns;
  }
}

template <class Op, class G, class... Arrays, class Call, class Args>
void set(const Parts<Op, G, Arrays...>& parts, Call& call, const Args& args, const Op& op) {
  const auto list = [&](const auto& each) {
    for (int i = 0; i < parts.count(op); ++i) {
      auto& member = (call.*each.device)[i];
      member = static_cast<std::remove_reference_t<decltype(member)>>((args.*each.host)[i]);
    }
  };
  std::apply([&](const auto&... each) { (list(each), ...); }, parts.arrays);
}

template <class Args>
void enqueue(const Bucket& bucket, const Args& args, void* stream) {
  const auto bytes = std::as_bytes(std::span(&args, 1));
  for (std::size_t entry = 0; entry < bucket.entries; ++entry) {
    bucket.kernel->enqueue(entry, bytes, stream);
  }
}

// The parts of a launch's workspace, and its counters. Those of the host backend are zeroed anew,
// since a kernel that was stopped there leaves them as they were.
template <class Args, class Op>
void set_workspace(Args& call, const Op& op, const Record& record, const Bucket& bucket,
                   Workspace workspace, void* stream) {
  void* counters = nullptr;
  if (bucket.counter_bytes > 0) {
    counters = record.counters->of(workspace.pointer, bucket.counter_bytes);
    if (bucket.demands.readable) record.backend->zero(counters, bucket.counter_bytes, stream);
  }
  point_into_workspace(
      call, op,
      {counters, workspace.pointer, bucket.own_bytes, bucket.basis_bytes, bucket.handed_bytes});
}

// The op of a record; null if the record is for another op. Linear matches gemv and gemm.
template <class Op>
const Op* own(const Problem& problem) {
  return std::visit(
      []<class Held>(const Held& held) -> const Op* {
        if constexpr (std::is_base_of_v<Op, Held>) return &held;
        return nullptr;
      },
      problem);
}

vqgen_status wrong_op(const Problem& problem) {
  return std::visit(
      []<class Op>(const Op&) { return fail(VQGEN_BAD_INPUT, OpTraits<Op>::kLaunch); }, problem);
}

// Returns a status with its line kept (last_error.h). Throws what LoadedKernel::enqueue() throws.
template <class Op>
vqgen_status launch(const Record& record, const typename OpTraits<Op>::HostArgs& args,
                    Workspace workspace, void* stream) {
  using Traits = OpTraits<Op>;
  const auto& buckets = record.buckets;
  const Problem& problem = buckets.back().config.problem;
  const Op* const op = own<Op>(problem);
  if (op == nullptr) return wrong_op(problem);
  const std::int64_t size = args.*Traits::kSize;
  if (size < 0 || size > buckets.back().most) {
    return fail_range(Traits::kSizeName, size, 0, buckets.back().most);
  }
  const Bucket& bucket = buckets[bucket_index(buckets, size)];
  FirstFault fault;
  fault.workspace(workspace, bucket.workspace_bytes);
  for_each_argument<Traits>(
      [&](const auto& each) { examine(fault, each, *op, bucket.demands, args, size); });
  if constexpr (requires { examine_together(fault, *op, bucket.demands, args); }) {
    examine_together(fault, *op, bucket.demands, args);
  }
  if (fault.status() != VQGEN_OK) return fault.status();
  if constexpr (requires { judge_integers(*record.backend, op->shape, args); }) {
    if (bucket.demands.readable) {
      if (const auto status = judge_integers(*record.backend, op->shape, args)) return status;
    }
  }
  if (size == 0 && !Traits::runs_empty(*op)) return VQGEN_OK;

  typename Traits::DeviceArgs call{};
  for_each_argument<Traits>([&](const auto& each) { set(each, call, args, *op); });
  if constexpr (requires { call.raw_batch_stride; }) {
    call.raw_batch_stride = args.raw_batch_stride;
    call.raw_head_stride = args.raw_head_stride;
    call.raw_table = args.raw_pages.block_table;
    call.raw_table_columns = args.raw_pages.columns;
    call.raw_token_stride = args.raw_pages.token_stride;
    call.raw_value_batch_stride = args.raw_value_strides.batch;
    call.raw_value_head_stride = args.raw_value_strides.head;
    call.raw_value_token_stride = args.raw_value_strides.token;
  }
  Traits::set_numbers(call, args, *op, bucket.most);
  set_workspace(call, *op, record, bucket, workspace, stream);
  enqueue(bucket, call, stream);
  return VQGEN_OK;
}

template <class Op>
vqgen_status guarded_launch(const vqgen_op* op, const typename OpTraits<Op>::HostArgs* args,
                            Workspace workspace, void* stream) noexcept {
  return guarded({op, args}, [&] {
    if (args->struct_bytes != sizeof(*args)) {
      return fail(VQGEN_BAD_INPUT,
                  "struct_bytes of the arguments is not the size of the library's "
                  "struct; set it, and compile against this version's header");
    }
    return launch<Op>(op->record->current(), *args, workspace, stream);
  });
}

// The bucket that serves `count`; null if none does.
const Bucket* bucket_of(const vqgen_op* op, int64_t count) {
  if (op == nullptr || count < 0) return nullptr;
  const auto& buckets = op->record->current().buckets;
  const std::size_t index = bucket_index(buckets, count);
  return index < buckets.size() ? &buckets[index] : nullptr;
}

}  // namespace
}  // namespace vqgen::library

using namespace vqgen::library;

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
  // The record that replaces a baseline may need more, and may replace it at any moment.
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
  return guarded_launch<vqgen::AttentionDecode>(op, args, {workspace, workspace_bytes}, stream);
}

vqgen_status vqgen_append_launch(const vqgen_op* op, const vqgen_append_args* args, void* workspace,
                                 size_t workspace_bytes, void* stream) {
  return guarded_launch<vqgen::KvAppend>(op, args, {workspace, workspace_bytes}, stream);
}

vqgen_status vqgen_kv_dequantize_launch(const vqgen_op* op, const vqgen_kv_dequantize_args* args,
                                        void* stream) {
  return guarded_launch<vqgen::KvDequantize>(op, args, {}, stream);
}

vqgen_status vqgen_attention_merge_launch(const vqgen_op* op, const vqgen_merge_args* args,
                                          void* stream) {
  return guarded_launch<vqgen::AttentionMerge>(op, args, {}, stream);
}

vqgen_status vqgen_linear_launch(const vqgen_op* op, const vqgen_linear_args* args, void* workspace,
                                 size_t workspace_bytes, void* stream) {
  return guarded_launch<vqgen::Linear>(op, args, {workspace, workspace_bytes}, stream);
}

vqgen_status vqgen_weight_dequantize_launch(const vqgen_op* op,
                                            const vqgen_weight_dequantize_args* args,
                                            void* stream) {
  return guarded_launch<vqgen::WeightDequantize>(op, args, {}, stream);
}

vqgen_status vqgen_scalar_launch(const vqgen_op* op, const vqgen_scalar_args* args, void* workspace,
                                 size_t workspace_bytes, void* stream) {
  return guarded_launch<vqgen::ScalarMatrix>(op, args, {workspace, workspace_bytes}, stream);
}
