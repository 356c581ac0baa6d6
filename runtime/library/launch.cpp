// The C functions of an op: what it says of itself, and its launches: the bucket by a scan,
// arguments judged without touching what they point to, and the kernels in order on the caller's
// stream. No allocation, no lock, no string.
#include <vq/args/attention_decode.h>
#include <vq/args/attention_merge.h>
#include <vq/args/kv_append.h>
#include <vq/args/kv_dequantize.h>
#include <vq/args/linear.h>
#include <vq/args/scalar_matrix.h>

#include <array>

#include "runtime/device_call.h"
#include "runtime/library/examine.h"
#include "runtime/library/host_integers.h"
#include "runtime/library/last_error.h"
#include "runtime/library/registry.h"
#include "runtime/workspace.h"

namespace vqgen::library {
namespace {

// vq::QuantizedArgs, or vq::EncodedArgs, whose codes are written.
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

// Of a cache in pages too.
template <class Args>
Args cache_args(const vqgen_quantized& given, const vqgen_pages& pages,
                const vqgen_page_strides& strides) {
  Args tensor = tensor_args<Args>(given);
  if (pages.block_table == nullptr) return tensor;
  tensor.batch_stride = strides.page / 4;
  tensor.head_stride = strides.head / 4;
  tensor.token_stride = strides.token / 4;
  tensor.pages = pages.block_table;
  tensor.page_columns = pages.columns;
  return tensor;
}

template <class Call, class Args>
void set_cache(Call& call, const Args& args) {
  call.keys = cache_args<decltype(call.keys)>(args.keys, args.pages, args.pages.keys);
  call.values = cache_args<decltype(call.values)>(args.values, args.pages, args.pages.values);
  call.key_smooth = args.key_smooth;
  call.raw_keys = static_cast<decltype(call.raw_keys)>(args.raw_keys);
  call.raw_values = static_cast<decltype(call.raw_values)>(args.raw_values);
  call.raw_batch_stride = args.raw_batch_stride;
  call.raw_head_stride = args.raw_head_stride;
  if constexpr (requires { call.lengths; }) {
    call.lengths = args.lengths;
    call.recent_counts = args.recent_counts;
    call.sinks = args.sinks;
  }
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
template <class Args>
void set_workspace(Args& call, const Record& record, const Bucket& bucket, Workspace workspace,
                   void* stream) {
  void* counters = nullptr;
  if (bucket.counter_bytes > 0) {
    counters = record.counters->of(workspace.pointer, bucket.counter_bytes);
    if (bucket.demands.readable) record.backend->zero(counters, bucket.counter_bytes, stream);
  }
  point_into_workspace(call, counters, workspace.pointer, bucket.own_bytes, bucket.handed_bytes);
}

vqgen_status wrong_op(const Record& record) {
  constexpr std::array kOwn{
      // of each op, in their order
      "the op is an attention; launch it with vqgen_attention_launch()",
      "the op is a product; launch it with vqgen_linear_launch()",
      "the op is a product; launch it with vqgen_linear_launch()",
      "the op is a kv_append; launch it with vqgen_append_launch()",
      "the op is a kv_dequantize; launch it with vqgen_kv_dequantize_launch()",
      "the op is an attention_merge; launch it with vqgen_attention_merge_launch()",
      "the op is a int8_quantize; launch it with vqgen_scalar_launch()",
      "the op is a scalar_dequantize; launch it with vqgen_scalar_launch()"};
  static_assert(kOwn.size() == std::variant_size_v<Problem>);
  return fail(VQGEN_BAD_INPUT, kOwn[record.buckets.back().config.problem.index()]);
}

// The arguments of a cache op, and where the host can read them its integers.
template <class Shape, class Args>
vqgen_status judged(FirstFault& fault, const Record& record, const Shape& shape,
                    const Demands& demands, const Args& args) {
  examine(fault, shape, demands, args);
  if (fault.status() != VQGEN_OK || !demands.readable) return fault.status();
  return judge_integers(*record.backend, shape, args);
}

// A status with its line kept (last_error.h). Throws what LoadedKernel::enqueue() throws.
vqgen_status launch(const Record& record, const vqgen_attention_args& args, Workspace workspace,
                    void* stream) {
  const auto& buckets = record.buckets;
  const auto* op = std::get_if<AttentionDecode>(&buckets.back().config.problem);
  if (op == nullptr) return wrong_op(record);
  if (args.tokens < 0 || args.tokens > buckets.back().most) {
    return fail_range("tokens", args.tokens, 0, buckets.back().most);
  }
  const Bucket& bucket = buckets[bucket_index(buckets, args.tokens)];
  FirstFault fault;
  fault.workspace(workspace, bucket.workspace_bytes);
  if (const auto status = judged(fault, record, op->shape, bucket.demands, args)) return status;

  vq::AttentionDecodeArgs call{};
  call.query = static_cast<const vq::u16*>(args.query);
  call.out = static_cast<vq::u16*>(args.out);
  call.lse = args.lse;
  set_cache(call, args);
  set_workspace(call, record, bucket, workspace, stream);
  call.query_start = args.query_start;
  call.new_keys = static_cast<const vq::u16*>(args.new_keys);
  call.new_values = static_cast<const vq::u16*>(args.new_values);
  call.capacity = bucket.most;
  call.batch = op->shape.batch;
  call.softmax_scale = args.softmax_scale > 0 ? args.softmax_scale : softmax_scale(*op);
  enqueue(bucket, call, stream);
  return VQGEN_OK;
}

vqgen_status launch(const Record& record, const vqgen_append_args& args, Workspace, void* stream) {
  const Bucket& bucket = record.buckets.back();
  const auto* op = std::get_if<KvAppend>(&bucket.config.problem);
  if (op == nullptr) return wrong_op(record);
  if (args.tokens < 0 || args.tokens > bucket.most) {
    return fail_range("tokens", args.tokens, 0, bucket.most);
  }
  FirstFault fault;
  if (const auto status = judged(fault, record, op->shape, bucket.demands, args)) return status;
  if (args.tokens == 0) return VQGEN_OK;  // room for none

  vq::KvAppendArgs call{};
  call.new_keys = static_cast<const vq::u16*>(args.new_keys);
  call.new_values = static_cast<const vq::u16*>(args.new_values);
  call.positions = args.positions;
  call.counts = args.counts;
  set_cache(call, args);
  call.capacity = static_cast<vq::i32>(args.tokens);
  call.batch = op->shape.batch;
  enqueue(bucket, call, stream);
  return VQGEN_OK;
}

vqgen_status launch(const Record& record, const vqgen_kv_dequantize_args& args, Workspace,
                    void* stream) {
  const auto& buckets = record.buckets;
  const auto* op = std::get_if<KvDequantize>(&buckets.back().config.problem);
  if (op == nullptr) return wrong_op(record);
  if (args.tokens < 0 || args.tokens > buckets.back().most) {
    return fail_range("tokens", args.tokens, 0, buckets.back().most);
  }
  const Bucket& bucket = buckets[bucket_index(buckets, args.tokens)];
  FirstFault fault;
  if (const auto status = judged(fault, record, op->shape, bucket.demands, args)) return status;
  if (args.tokens == 0) return VQGEN_OK;

  vq::KvDequantizeArgs call{};
  call.out_keys = static_cast<vq::u16*>(args.out_keys);
  call.out_values = static_cast<vq::u16*>(args.out_values);
  set_cache(call, args);
  call.tokens = static_cast<vq::i32>(args.tokens);
  enqueue(bucket, call, stream);
  return VQGEN_OK;
}

vqgen_status launch(const Record& record, const vqgen_merge_args& args, Workspace, void* stream) {
  const Bucket& bucket = record.buckets.back();
  const auto* op = std::get_if<AttentionMerge>(&bucket.config.problem);
  if (op == nullptr) return wrong_op(record);
  if (args.rows < 0 || args.rows > bucket.most) {
    return fail_range("rows", args.rows, 0, bucket.most);
  }
  FirstFault fault;
  fault.require(args.parts == op->shape.parts, VQGEN_BAD_INPUT,
                "parts is not the number of the config; prepare an op of as many");
  examine(fault, op->shape, bucket.demands, args);
  if (fault.status() != VQGEN_OK) return fault.status();
  if (args.rows == 0) return VQGEN_OK;

  vq::AttentionMergeArgs call{};
  call.out = static_cast<vq::u16*>(args.out);
  call.lse = args.lse;
  for (int i = 0; i < op->shape.parts; ++i) {
    call.outs[i] = static_cast<const vq::u16*>(args.outs[i]);
    call.lses[i] = args.lses[i];
  }
  call.rows = static_cast<vq::i32>(args.rows);
  enqueue(bucket, call, stream);
  return VQGEN_OK;
}

vqgen_status launch(const Record& record, const vqgen_linear_args& args, Workspace workspace,
                    void* stream) {
  const auto& buckets = record.buckets;
  const Linear* const op = as_linear(buckets.back().config.problem);
  if (op == nullptr) return wrong_op(record);
  const bool grouped = op->shape.grouped();
  if (args.m < 0 || args.m > buckets.back().most) {
    return fail_range("m", args.m, 0, buckets.back().most);
  }
  const Bucket& bucket = buckets[bucket_index(buckets, args.m)];
  FirstFault fault;
  fault.workspace(workspace, bucket.workspace_bytes);
  fault.present("x", args.x, bucket.demands.elements_mask, args.m > 0);
  fault.present("y", args.y, kElementAlignment - 1, args.m > 0);
  fault.quantized("weights", args.weights, bucket.demands.codes_mask, bucket.demands.scales);
  fault.present("output_scales", args.output_scales, kWordAlignment - 1,
                bucket.demands.output_scales);
  fault.present("expert_rows", args.expert_rows, kWordAlignment - 1, grouped);
  fault.require(grouped || args.expert_rows == nullptr, VQGEN_BAD_INPUT,
                "expert_rows is given, and the config has no experts; leave it null, or prepare "
                "with experts");
  if (fault.status() != VQGEN_OK) return fault.status();
  if (args.m == 0) return VQGEN_OK;
  if (grouped && bucket.demands.readable) {
    if (const auto status = judge_integers(*record.backend, op->shape, args)) return status;
  }

  vq::LinearArgs call{};
  call.x = static_cast<const vq::u16*>(args.x);
  call.y = static_cast<vq::u16*>(args.y);
  call.weights = tensor_args<vq::QuantizedArgs>(args.weights);
  call.output_scales = args.output_scales;
  call.rows = static_cast<vq::i32>(args.m);
  call.expert_rows = args.expert_rows;
  set_workspace(call, record, bucket, workspace, stream);
  enqueue(bucket, call, stream);
  return VQGEN_OK;
}

vqgen_status launch(const Record& record, const vqgen_scalar_args& args, Workspace workspace,
                    void* stream) {
  const Bucket& bucket = record.buckets.back();
  const ScalarMatrix* const op = as_scalar(bucket.config.problem);
  if (op == nullptr) return wrong_op(record);
  if (args.tokens < 0 || args.tokens > bucket.most) {
    return fail_range("tokens", args.tokens, 0, bucket.most);
  }
  FirstFault fault;
  fault.workspace(workspace, bucket.workspace_bytes);
  const auto [codes, elements] = std::pair(bucket.demands.codes_mask, bucket.demands.elements_mask);
  fault.present("from", args.from, op->decodes ? codes : elements, args.tokens > 0);
  fault.present("to", args.to, op->decodes ? elements : codes, args.tokens > 0);
  fault.present("scales", args.scales, kEntryAlignment - 1);
  if (fault.status() != VQGEN_OK) return fault.status();
  if (args.tokens == 0 && op->shape.scales != Scales::computed) return VQGEN_OK;

  vq::ScalarMatrixArgs call{};
  call.from = static_cast<const vq::u8*>(args.from);
  call.to = static_cast<vq::u8*>(args.to);
  call.scales = args.scales;
  call.tokens = args.tokens;
  set_workspace(call, record, bucket, workspace, stream);
  enqueue(bucket, call, stream);
  return VQGEN_OK;
}

template <class Args>
vqgen_status guarded_launch(const vqgen_op* op, const Args* args, Workspace workspace,
                            void* stream) noexcept {
  return guarded({op, args}, [&] {
    if (args->struct_bytes != sizeof(Args)) {
      return fail(VQGEN_BAD_INPUT,
                  "struct_bytes of the arguments is not the size of the library's "
                  "struct; set it, and compile against this version's header");
    }
    return launch(op->record->current(), *args, workspace, stream);
  });
}

// The bucket that `count` takes; null where none does.
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

vqgen_status vqgen_kv_dequantize_launch(const vqgen_op* op, const vqgen_kv_dequantize_args* args,
                                        void* stream) {
  return guarded_launch(op, args, {}, stream);
}

vqgen_status vqgen_attention_merge_launch(const vqgen_op* op, const vqgen_merge_args* args,
                                          void* stream) {
  return guarded_launch(op, args, {}, stream);
}

vqgen_status vqgen_linear_launch(const vqgen_op* op, const vqgen_linear_args* args, void* workspace,
                                 size_t workspace_bytes, void* stream) {
  return guarded_launch(op, args, {workspace, workspace_bytes}, stream);
}

vqgen_status vqgen_scalar_launch(const vqgen_op* op, const vqgen_scalar_args* args, void* workspace,
                                 size_t workspace_bytes, void* stream) {
  return guarded_launch(op, args, {workspace, workspace_bytes}, stream);
}
