#include "python/src/runtime.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>

namespace vqgen::python {
namespace {

// The arrays, which the host backend would not know.
std::vector<Lent> lend(const Runtime& runtime, const Arguments& arguments) {
  std::vector<Lent> lent;
  for (const auto& each : arguments.tensors()) {
    if (each) lent.emplace_back(runtime, each->data(), each->span_bytes());
  }
  return lent;
}

// The slots of a cache in the calls of an op.
struct CacheSlots {
  int keys, values, block_table;
};

// The tokens of a call: those that are told, or all that the cache has room for and the op takes.
std::int64_t tokens_of(const Signature& signature, const Arguments& given, CacheSlots slots,
                       std::optional<std::int64_t> count) {
  const bool paged = signature.page_tokens > 0;
  const std::int64_t room =
      paged ? given.size(slots.block_table, 1) * signature.page_tokens
            : std::min(given.capacity(slots.keys), given.capacity(slots.values));
  if (!count) return std::min(room, signature.tokens);
  if (*count <= room) return *count;
  throw bad_input("tokens is " + std::to_string(*count) + ", and the " +
                  (paged ? "pages of the block table" : "codes") + " have room for " +
                  std::to_string(room) + "; pass larger ones");
}

// Where a call's pages stand, of a cache in pages.
vqgen_pages pages_of(const Signature& signature, const Arguments& given, CacheSlots slots) {
  if (signature.page_tokens == 0) return {};
  const std::int64_t pages = given.size(slots.keys, 0);
  if (given.size(slots.values, 0) != pages) {
    throw bad_input("'keys.codes' has " + std::to_string(pages) + " pages, and 'values.codes' " +
                    std::to_string(given.size(slots.values, 0)) + "; make them equal");
  }
  return {.block_table = given.data<std::int32_t>(slots.block_table),
          .columns = given.size(slots.block_table, 1),
          .count = pages,
          .keys = given.page_strides(slots.keys),
          .values = given.page_strides(slots.values)};
}

vqgen_attention_args attention_args(const Signature& signature, const Arguments& given,
                                    std::optional<std::int64_t> count, float softmax_scale) {
  enum {
    query,
    out,
    lse,
    keys,
    values = 6,
    key_smooth = 9,
    raw_keys,
    raw_values,
    lengths,
    recent_counts,
    sinks,
    query_start,
    new_keys,
    new_values,
    block_table
  };
  constexpr CacheSlots kCache{keys, values, block_table};
  const bool rows = signature.page_tokens == 0;
  for (const int each : {out, lse, new_keys, new_values}) given.require_rows(each, query);
  return {.struct_bytes = sizeof(vqgen_attention_args),
          .tokens = tokens_of(signature, given, kCache, count),
          .query = given.data(query),
          .out = given.data(out),
          .lse = given.data<float>(lse),
          .keys = given.quantized(keys, rows),
          .values = given.quantized(values, rows),
          .key_smooth = given.data<float>(key_smooth),
          .raw_keys = given.data(raw_keys),
          .raw_values = given.data(raw_values),
          .raw_batch_stride = given.stride(raw_keys, 0),
          .raw_head_stride = given.stride(raw_keys, 1),
          .lengths = given.data<std::int32_t>(lengths),
          .recent_counts = given.data<std::int32_t>(recent_counts),
          .sinks = given.data<std::int32_t>(sinks),
          .softmax_scale = softmax_scale,
          .query_start = given.data<std::int32_t>(query_start),
          .new_keys = given.data(new_keys),
          .new_values = given.data(new_values),
          .pages = pages_of(signature, given, kCache)};
}

vqgen_append_args append_args(const Signature& signature, const Arguments& given,
                              std::optional<std::int64_t> count) {
  enum {
    new_keys,
    new_values,
    positions,
    counts,
    keys,
    values = 7,
    key_smooth = 10,
    raw_keys,
    raw_values,
    block_table
  };
  constexpr CacheSlots kCache{keys, values, block_table};
  const bool rows = signature.page_tokens == 0;
  return {.struct_bytes = sizeof(vqgen_append_args),
          .tokens = tokens_of(signature, given, kCache, count),
          .new_keys = given.data(new_keys),
          .new_values = given.data(new_values),
          .positions = given.data<std::int32_t>(positions),
          .counts = given.data<std::int32_t>(counts),
          .keys = given.quantized(keys, rows),
          .values = given.quantized(values, rows),
          .key_smooth = given.data<float>(key_smooth),
          .raw_keys = given.data(raw_keys),
          .raw_values = given.data(raw_values),
          .raw_batch_stride = given.stride(raw_keys, 0),
          .raw_head_stride = given.stride(raw_keys, 1),
          .pages = pages_of(signature, given, kCache)};
}

vqgen_kv_dequantize_args decode_args(const Signature& signature, const Arguments& given) {
  enum {
    out_keys,
    out_values,
    keys,
    values = 5,
    key_smooth = 8,
    raw_keys,
    raw_values,
    lengths,
    recent_counts,
    sinks,
    block_table
  };
  constexpr CacheSlots kCache{keys, values, block_table};
  const bool rows = signature.page_tokens == 0;
  const std::int64_t tokens = given.size(out_keys, 2);
  if (given.size(out_values, 2) != tokens) {
    throw bad_input("'out_keys' has " + std::to_string(tokens) + " tokens, and 'out_values' " +
                    std::to_string(given.size(out_values, 2)) + "; make them equal");
  }
  return {.struct_bytes = sizeof(vqgen_kv_dequantize_args),
          .tokens = tokens_of(signature, given, kCache, tokens),
          .out_keys = given.data(out_keys),
          .out_values = given.data(out_values),
          .keys = given.quantized(keys, rows),
          .values = given.quantized(values, rows),
          .key_smooth = given.data<float>(key_smooth),
          .raw_keys = given.data(raw_keys),
          .raw_values = given.data(raw_values),
          .raw_batch_stride = given.stride(raw_keys, 0),
          .raw_head_stride = given.stride(raw_keys, 1),
          .lengths = given.data<std::int32_t>(lengths),
          .recent_counts = given.data<std::int32_t>(recent_counts),
          .sinks = given.data<std::int32_t>(sinks),
          .pages = pages_of(signature, given, kCache)};
}

// Of as many parts as the op has; holds what the arguments point to.
struct MergeCall {
  MergeCall(const Signature& signature, const Arguments& given) {
    enum { out, lse, first };
    const std::int64_t rows = given.size(out, 0);
    const auto slots = static_cast<int>(signature.expected.size());
    int parts = 0;
    for (int slot = first; slot < slots && signature.expected[static_cast<std::size_t>(slot)];
         slot += 2, ++parts) {
      outs[parts] = given.data(slot);
      lses[parts] = given.data<float>(slot + 1);
      require_rows(given, slot, rows);
      require_rows(given, slot + 1, rows);
    }
    require_rows(given, lse, rows);
    args = {.struct_bytes = sizeof(vqgen_merge_args),
            .rows = rows,
            .parts = parts,
            .outs = outs,
            .lses = lses,
            .out = given.data(out),
            .lse = given.data<float>(lse)};
  }

  static void require_rows(const Arguments& given, int slot, std::int64_t rows) {
    if (given.size(slot, 0) == rows) return;
    throw bad_input(std::string("'") + slots_of(Kind::merge)[static_cast<std::size_t>(slot)].name +
                    "' has " + std::to_string(given.size(slot, 0)) + " rows, and 'out' " +
                    std::to_string(rows) + "; pass as many");
  }

  const void* outs[8];
  const float* lses[8];
  vqgen_merge_args args;
};

vqgen_linear_args linear_args(const Arguments& given) {
  enum { x, y, weights, output_scales = 5, expert_rows };
  given.require_rows(y, x);
  return {.struct_bytes = sizeof(vqgen_linear_args),
          .m = given.size(x, 0),
          .x = given.data(x),
          .y = given.data(y),
          .weights = given.quantized(weights, false),
          .output_scales = given.data<float>(output_scales),
          .expert_rows = given.data<std::int32_t>(expert_rows)};
}

vqgen_scalar_args scalar_args(const Signature& signature, const Arguments& given) {
  enum { from, to, scales };
  given.require_rows(to, from);
  if (signature.writes_scales && given.tensors()[scales]->read_only()) {
    throw bad_input("'scales' is read-only, and is written");
  }
  return {.struct_bytes = sizeof(vqgen_scalar_args),
          .tokens = given.size(from, 0),
          .from = given.data(from),
          .to = given.data(to),
          .scales = given.data<float>(scales)};
}

// raw_keys and raw_values share their strides.
void require_like(const Arguments& given, int keys, int values) {
  if (given.stride(keys, 0) == given.stride(values, 0) &&
      given.stride(keys, 1) == given.stride(values, 1)) {
    return;
  }
  throw bad_input("'raw_values' has other strides than 'raw_keys'; lay both out alike");
}

template <class Args>
void launch_as(RuntimeState& state, const Op& op, const Arguments& arguments, const Args& args,
               void* stream) {
  const auto queue = [&](void* workspace) {
    if constexpr (requires { op.launch(args, stream); }) {
      op.launch(args, stream);
    } else {
      op.launch(args, workspace, workspace == nullptr ? 0 : op.workspace_bytes(), stream);
    }
  };
  if (!state.on_host()) {
    state.make_current();
    return queue(state.workspace(op.workspace_bytes(), stream));
  }
  const WithoutGil without;
  const std::lock_guard one(state.one_launch);
  const std::vector<Lent> lent = lend(state.runtime(), arguments);
  queue(state.workspace(op.workspace_bytes(), nullptr));
}

}  // namespace

RuntimeState::RuntimeState(const vqgen_options& options)
    : runtime_(std::make_unique<Runtime>(options)),
      on_host_(options.backend == VQGEN_HOST),
      device_(on_host_ ? DLDevice{kCpu, 0} : DLDevice{kCuda, options.device}),
      process_(getpid()) {
  static std::atomic<std::uint64_t> made{0};
  number_ = ++made;
}

RuntimeState::~RuntimeState() {
  if (getpid() == process_) return;
  // Nothing here is the child's to free.
  for (auto& each : memory_) static_cast<void>(each.release());
  for (auto& each : spare_) static_cast<void>(each.release());
  static_cast<void>(runtime_.release());
}

void RuntimeState::require_same_process() const {
  if (getpid() != process_) {
    throw bad_input("the runtime was made before this process was forked; make a new one here");
  }
}

void RuntimeState::make_current() const {
  thread_local std::uint64_t last = 0;
  if (last == number_) return;
  runtime_->make_current();
  last = number_;
}

std::unique_ptr<RuntimeState::Memory> RuntimeState::make_workspace(std::size_t bytes) const {
  if (!on_host_) runtime_->make_current();
  return std::make_unique<Memory>(*runtime_, bytes);
}

void RuntimeState::reserve(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (bytes <= largest_) return;
  spare_.clear();
  while (spare_.size() < (on_host_ ? 1 : 2)) spare_.push_back(make_workspace(bytes));
  largest_ = bytes;
}

void* RuntimeState::workspace(std::size_t bytes, void* stream) {
  if (bytes == 0) return nullptr;
  const std::lock_guard lock(mutex_);
  auto& [have, memory] = used_[stream];
  if (have < bytes) {
    if (spare_.empty()) spare_.push_back(make_workspace(largest_));
    have = largest_;
    memory = spare_.back()->data();
    memory_.push_back(std::move(spare_.back()));
    spare_.pop_back();
  }
  return memory;
}

void launch(RuntimeState& state, const Op& op, const Signature& signature,
            const Arguments& arguments, std::optional<std::int64_t> count, float softmax_scale,
            void* stream) {
  switch (signature.kind) {
    case Kind::attention:
      require_like(arguments, 10, 11);
      if (arguments.size(0, 0) == 0) return;  // no query token of any sequence
      return launch_as(state, op, arguments,
                       attention_args(signature, arguments, count, softmax_scale), stream);
    case Kind::append:
      require_like(arguments, 11, 12);
      return launch_as(state, op, arguments, append_args(signature, arguments, count), stream);
    case Kind::decode:
      require_like(arguments, 9, 10);
      return launch_as(state, op, arguments, decode_args(signature, arguments), stream);
    case Kind::merge:
      return launch_as(state, op, arguments, MergeCall(signature, arguments).args, stream);
    case Kind::linear:
      return launch_as(state, op, arguments, linear_args(arguments), stream);
    case Kind::scalar:
      return launch_as(state, op, arguments, scalar_args(signature, arguments), stream);
  }
}

}  // namespace vqgen::python
