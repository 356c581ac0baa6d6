// The C functions of an op: what it says of itself, and its launches: the bucket by a scan,
// arguments judged without touching what they point to, and the kernels in order on the caller's
// stream. No allocation, no lock, no string.
#include <vq/args/attention_decode.h>
#include <vq/args/attention_merge.h>
#include <vq/args/kv_append.h>
#include <vq/args/kv_decode.h>
#include <vq/args/linear.h>

#include <array>

#include "runtime/device_call.h"
#include "runtime/library/last_error.h"
#include "runtime/library/registry.h"
#include "runtime/workspace.h"

namespace vqgen::library {
namespace {

struct Workspace {
  void* pointer = nullptr;
  std::size_t bytes = 0;
};

// Looks at arguments one after the other and keeps the first fault.
class FirstFault {
 public:
  void present(const char* name, const void* pointer, std::uintptr_t mask, bool wanted = true) {
    if (status_ != VQGEN_OK || !wanted) return;
    if (pointer == nullptr) {
      status_ =
          fail_argument(VQGEN_BAD_INPUT, name, "is null; the op's description lists what it takes");
    } else if ((reinterpret_cast<std::uintptr_t>(pointer) & mask) != 0) {
      status_ = fail_argument(VQGEN_ALIGNMENT, name,
                              "is not aligned as the op's description says; align it");
    }
  }
  void stride(const char* name, std::int64_t count, std::uintptr_t mask, int bytes) {
    if (status_ != VQGEN_OK) return;
    if (count < 0) {
      status_ = fail_argument(VQGEN_BAD_INPUT, name, "is negative; strides are 0 or more");
    } else if ((static_cast<std::uint64_t>(count) * static_cast<unsigned>(bytes) & mask) != 0) {
      status_ = fail_argument(VQGEN_ALIGNMENT, name,
                              "is not a multiple of the alignment; pad what it spans");
    }
  }
  // Of `count` things that are told apart by it alone: 0 would be the first one for all.
  void apart(const char* name, std::int64_t stride, std::int64_t count, bool wanted = true) {
    if (status_ != VQGEN_OK || !wanted || stride != 0 || count <= 1) return;
    status_ = fail_argument(VQGEN_BAD_INPUT, name,
                            "is 0, which makes heads or sequences one; give the stride of the "
                            "memory, or prepare with shared_cache");
  }
  void quantized(const char* name, const vqgen_quantized& each, std::uintptr_t mask, bool scales) {
    present(name, each.codes, mask);
    present(name, each.codebooks, 15);
    present(name, each.scales, 3, scales);
    stride(name, each.batch_stride, mask, 4);
    stride(name, each.head_stride, mask, 4);
  }
  void require(bool holds, vqgen_status status, const char* message) {
    if (status_ == VQGEN_OK && !holds) status_ = fail(status, message);
  }
  void workspace(const Workspace& given, std::size_t needed) {
    if (needed == 0) return;
    require(given.pointer != nullptr && given.bytes >= needed, VQGEN_WORKSPACE,
            "the workspace is null or smaller than vqgen_op_workspace_bytes(); give as much");
    require((reinterpret_cast<std::uintptr_t>(given.pointer) & 15) == 0, VQGEN_WORKSPACE,
            "the workspace is not 16-byte aligned; align it");
  }
  vqgen_status status() const { return status_; }

 private:
  vqgen_status status_ = VQGEN_OK;
};

// vq::QuantizedArgs, or vq::EncodedArgs, whose codes are written.
template <class Args>
Args tensor_args(const vqgen_quantized& given) {
  return {static_cast<vq::u32*>(const_cast<void*>(given.codes)),
          static_cast<const vq::u16*>(given.codebooks), given.scales, given.batch_stride,
          given.head_stride};
}

template <class Call, class Args>
void set_cache(Call& call, const Args& args) {
  call.keys = tensor_args<decltype(call.keys)>(args.keys);
  call.values = tensor_args<decltype(call.values)>(args.values);
  call.key_smooth = args.key_smooth;
  call.raw_keys = static_cast<decltype(call.raw_keys)>(args.raw_keys);
  call.raw_values = static_cast<decltype(call.raw_values)>(args.raw_values);
  call.raw_batch_stride = args.raw_batch_stride;
  call.raw_head_stride = args.raw_head_stride;
  if constexpr (requires { call.lengths; }) {
    call.lengths = args.lengths;
    call.windows = args.windows;
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

// The cache of so many sequences and heads, which one op reads and another appends to.
template <class Args>
void examine_cache(FirstFault& fault, std::int64_t caches, std::int64_t kv_heads,
                   const Demands& demands, const Args& args) {
  const bool raw = demands.window || demands.sinks;
  fault.quantized("keys", args.keys, demands.codes_mask, demands.scales);
  fault.quantized("values", args.values, demands.codes_mask, demands.value_scales);
  fault.present("key_smooth", args.key_smooth, 3, demands.key_smooth);
  fault.present("raw_keys", args.raw_keys, demands.elements_mask, raw);
  fault.present("raw_values", args.raw_values, demands.elements_mask, raw);
  if (raw) {
    fault.stride("raw_batch_stride", args.raw_batch_stride, demands.elements_mask, 2);
    fault.stride("raw_head_stride", args.raw_head_stride, demands.elements_mask, 2);
  }
  fault.apart("keys.batch_stride", args.keys.batch_stride, caches);
  fault.apart("keys.head_stride", args.keys.head_stride, kv_heads);
  fault.apart("values.batch_stride", args.values.batch_stride, caches);
  fault.apart("values.head_stride", args.values.head_stride, kv_heads);
  fault.apart("raw_batch_stride", args.raw_batch_stride, caches, raw);
  fault.apart("raw_head_stride", args.raw_head_stride, kv_heads, raw);
}

template <class Args>
void examine_counts(FirstFault& fault, const Demands& demands, const Args& args) {
  fault.present("lengths", args.lengths, 3);
  fault.present("windows", args.windows, 3, demands.window);
  fault.present("sinks", args.sinks, 3, demands.sinks);
}

void examine(FirstFault& fault, const AttentionShape& shape, const Demands& demands,
             const vqgen_attention_args& args) {
  fault.present("query", args.query, 1);
  fault.present("out", args.out, 1);
  fault.present("lse", args.lse, 3);
  examine_cache(fault, shape.shared_cache ? 1 : shape.batch, shape.kv_heads, demands, args);
  examine_counts(fault, demands, args);
  // Written so that NaN fails.
  fault.require(args.softmax_scale >= 0 && args.softmax_scale <= 3e38f, VQGEN_BAD_INPUT,
                "softmax_scale is negative or not finite; 0 stands for 1 / sqrt(head_dim)");
}

void examine(FirstFault& fault, const AppendShape& shape, const Demands& demands,
             const vqgen_append_args& args) {
  fault.present("new_keys", args.new_keys, 1);
  fault.present("new_values", args.new_values, 1);
  fault.present("positions", args.positions, 3);
  fault.present("counts", args.counts, 3, args.counts != nullptr);
  examine_cache(fault, shape.batch, shape.kv_heads, demands, args);
}

void examine(FirstFault& fault, const DecodeShape& shape, const Demands& demands,
             const vqgen_kv_decode_args& args) {
  fault.present("out_keys", args.out_keys, demands.elements_mask);
  fault.present("out_values", args.out_values, demands.elements_mask);
  examine_cache(fault, shape.batch, shape.kv_heads, demands, args);
  examine_counts(fault, demands, args);
}

void examine(FirstFault& fault, const MergeShape& shape, const Demands& demands,
             const vqgen_merge_args& args) {
  fault.present("out", args.out, demands.elements_mask);
  fault.present("lse", args.lse, 3);
  fault.present("outs", args.outs, alignof(void*) - 1);
  fault.present("lses", args.lses, alignof(void*) - 1);
  if (fault.status() != VQGEN_OK) return;
  for (int i = 0; i < shape.parts; ++i) {
    fault.present("outs", args.outs[i], demands.elements_mask);
    fault.present("lses", args.lses[i], 3);
  }
}

vqgen_status wrong_op(const Record& record) {
  constexpr std::array kOwn{
      // of each op, in their order
      "the op is an attention; launch it with vqgen_attention_launch()",
      "the op is a product; launch it with vqgen_linear_launch()",
      "the op is a product; launch it with vqgen_linear_launch()",
      "the op is a kv_append; launch it with vqgen_append_launch()",
      "the op is a kv_decode; launch it with vqgen_kv_decode_launch()",
      "the op is an attention_merge; launch it with vqgen_attention_merge_launch()"};
  static_assert(kOwn.size() == std::variant_size_v<Problem>);
  return fail(VQGEN_BAD_INPUT, kOwn[record.buckets.back().config.problem.index()]);
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
  examine(fault, op->shape, bucket.demands, args);
  if (fault.status() != VQGEN_OK) return fault.status();

  vq::AttentionDecodeArgs call{};
  call.query = static_cast<const vq::u16*>(args.query);
  call.out = static_cast<vq::u16*>(args.out);
  call.lse = args.lse;
  set_cache(call, args);
  point_into_workspace(call, workspace.pointer, bucket.own_bytes, bucket.score_bytes);
  call.score_stride = bucket.most;
  call.softmax_scale = args.softmax_scale > 0 ? args.softmax_scale : softmax_scale(*op);
  enqueue(bucket, call, stream);
  return VQGEN_OK;
}

vqgen_status launch(const Record& record, const vqgen_append_args& args, Workspace, void* stream) {
  const Bucket& bucket = record.buckets.back();
  const auto* op = std::get_if<KvAppend>(&bucket.config.problem);
  if (op == nullptr) return wrong_op(record);
  if (args.tokens < 1 || args.tokens > bucket.most) {
    return fail_range("tokens", args.tokens, 1, bucket.most);
  }
  FirstFault fault;
  examine(fault, op->shape, bucket.demands, args);
  if (fault.status() != VQGEN_OK) return fault.status();

  vq::KvAppendArgs call{};
  call.new_keys = static_cast<const vq::u16*>(args.new_keys);
  call.new_values = static_cast<const vq::u16*>(args.new_values);
  call.positions = args.positions;
  call.counts = args.counts;
  set_cache(call, args);
  call.capacity = static_cast<vq::i32>(args.tokens);
  enqueue(bucket, call, stream);
  return VQGEN_OK;
}

vqgen_status launch(const Record& record, const vqgen_kv_decode_args& args, Workspace,
                    void* stream) {
  const auto& buckets = record.buckets;
  const auto* op = std::get_if<KvDecode>(&buckets.back().config.problem);
  if (op == nullptr) return wrong_op(record);
  if (args.tokens < 1 || args.tokens > buckets.back().most) {
    return fail_range("tokens", args.tokens, 1, buckets.back().most);
  }
  const Bucket& bucket = buckets[bucket_index(buckets, args.tokens)];
  FirstFault fault;
  examine(fault, op->shape, bucket.demands, args);
  if (fault.status() != VQGEN_OK) return fault.status();

  vq::KvDecodeArgs call{};
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
  if (args.rows < 1 || args.rows > bucket.most) {
    return fail_range("rows", args.rows, 1, bucket.most);
  }
  FirstFault fault;
  fault.require(args.parts == op->shape.parts, VQGEN_BAD_INPUT,
                "parts is not the number of the config; prepare an op of as many");
  examine(fault, op->shape, bucket.demands, args);
  if (fault.status() != VQGEN_OK) return fault.status();

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
  if (as_linear(buckets.back().config.problem) == nullptr) return wrong_op(record);
  if (args.rows < 1 || args.rows > buckets.back().most) {
    return fail_range("rows", args.rows, 1, buckets.back().most);
  }
  const Bucket& bucket = buckets[bucket_index(buckets, args.rows)];
  FirstFault fault;
  fault.workspace(workspace, bucket.workspace_bytes);
  fault.present("x", args.x, bucket.demands.elements_mask);
  fault.present("y", args.y, 1);
  fault.quantized("weights", args.weights, bucket.demands.codes_mask, bucket.demands.scales);
  fault.present("output_scales", args.output_scales, 3, bucket.demands.output_scales);
  if (fault.status() != VQGEN_OK) return fault.status();

  vq::LinearArgs call{};
  call.x = static_cast<const vq::u16*>(args.x);
  call.y = static_cast<vq::u16*>(args.y);
  call.weights = tensor_args<vq::QuantizedArgs>(args.weights);
  call.output_scales = args.output_scales;
  call.rows = static_cast<vq::i32>(args.rows);
  point_into_workspace(call, workspace.pointer, bucket.own_bytes, 0);
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

vqgen_status vqgen_kv_decode_launch(const vqgen_op* op, const vqgen_kv_decode_args* args,
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
