#include "python/src/runtime.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>

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

// The tokens of a call: those that are told, or all that the cache has room for and the op takes.
std::int64_t tokens_of(const Signature& slots, const Arguments& given,
                       std::optional<std::int64_t> count) {
  const bool paged = slots.page_tokens > 0;
  const std::int64_t room =
      paged ? given.size(slots.block_table, 1) * slots.page_tokens
            : std::min(given.capacity(slots.keys), given.capacity(slots.values));
  if (!count) return std::min(room, slots.tokens);
  if (*count <= room) return *count;
  throw bad_input("tokens is " + std::to_string(*count) + ", and the " +
                  (paged ? "pages of the block table" : "codes") + " have room for " +
                  std::to_string(room) + "; pass larger ones");
}

// Where a call's pages stand, of a cache in pages.
vqgen_pages pages_of(const Signature& slots, const Arguments& given) {
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

vqgen_raw_pages raw_pages_of(const Signature& slots, const Arguments& given) {
  const std::int64_t pages = given.size(slots.raw_keys, 0);
  if (given.size(slots.raw_values, 0) != pages) {
    throw bad_input("'raw_values' has other pages than 'raw_keys'; give as many of both");
  }
  return {.block_table = given.data<std::int32_t>(slots.raw_block_table),
          .columns = given.size(slots.raw_block_table, 1),
          .count = pages,
          .token_stride = given.stride(slots.raw_keys, 2)};
}

// Pointers, and of a cache its tokens and strides.
template <class Args>
Args args_of(const Signature& signature, const Arguments& given,
             std::optional<std::int64_t> count = std::nullopt) {
  Args args{};
  args.struct_bytes = sizeof(Args);
  for (std::size_t i = 0; i < signature.slots->size(); ++i) {
    const std::int64_t offset = (*signature.slots)[i].offset;
    void* const pointer = given.data(static_cast<int>(i));
    if (offset < 0) continue;
    std::memcpy(reinterpret_cast<char*>(&args) + offset, &pointer, sizeof(pointer));
  }
  if constexpr (requires { args.pages; }) {
    const auto [keys, values] = std::pair(signature.raw_keys, signature.raw_values);
    const bool paged = signature.raw_page_tokens > 0;
    const vqgen_raw_value_strides own{.batch = given.stride(values, 0),
                                      .head = given.stride(values, 1),
                                      .token = paged ? given.stride(values, 2) : 0};
    args.raw_batch_stride = given.stride(keys, 0);
    args.raw_head_stride = given.stride(keys, 1);
    if (signature.values_differ) {
      args.raw_value_strides = own;
    } else if (args.raw_batch_stride != own.batch || args.raw_head_stride != own.head ||
               (paged && given.stride(keys, 2) != own.token)) {
      throw bad_input("'raw_values' has other strides than 'raw_keys'; lay both out alike");
    }
    if (signature.raw_page_tokens > 0) args.raw_pages = raw_pages_of(signature, given);
    args.tokens = tokens_of(signature, given, count);
    if (signature.page_tokens > 0) {
      args.pages = pages_of(signature, given);
    } else {
      for (auto* const each : {&args.keys, &args.values}) {
        const int slot = each == &args.keys ? signature.keys : signature.values;
        each->batch_stride = given.stride(slot, 0);
        each->head_stride = given.stride(slot, 1);
      }
    }
  }
  return args;
}

// Of as many parts as the op has; holds what the arguments point to.
struct MergeCall {
  MergeCall(const Signature& signature, const Arguments& given)
      : args(args_of<vqgen_merge_args>(signature, given)) {
    const int first = signature.slot("outs.0");
    while (args.parts < kMost &&
           signature.expected[static_cast<std::size_t>(first + 2 * args.parts)]) {
      outs[args.parts] = given.data(first + 2 * args.parts);
      lses[args.parts] = given.data<float>(first + 2 * args.parts + 1);
      ++args.parts;
    }
    args.rows = given.size(0, 0);
    args.outs = outs;
    args.lses = lses;
  }

  static constexpr int kMost = 8;
  const void* outs[kMost];
  const float* lses[kMost];
  vqgen_merge_args args;
};

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
  const auto as = [&](const auto& args) { launch_as(state, op, arguments, args, stream); };
  if (signature.op == "attention_decode") {
    if (arguments.size(0, 0) == 0) return;  // no query token of any sequence
    auto args = args_of<vqgen_attention_args>(signature, arguments, count);
    args.softmax_scale = softmax_scale;
    as(args);
  } else if (signature.op == "kv_append") {
    as(args_of<vqgen_append_args>(signature, arguments, count));
  } else if (signature.op == "kv_dequantize") {
    as(args_of<vqgen_kv_dequantize_args>(signature, arguments, arguments.size(0, 2)));
  } else if (signature.op == "weight_dequantize") {
    auto args = args_of<vqgen_weight_dequantize_args>(signature, arguments);
    args.rows = arguments.size(0, 0);
    args.first_row = count.value_or(0);
    as(args);
  } else if (signature.op == "attention_merge") {
    as(MergeCall(signature, arguments).args);
  } else if (signature.op.starts_with("int8")) {
    const auto scales = static_cast<std::size_t>(signature.slot("scales"));
    if (signature.writes(scales) && arguments.tensors()[scales]->read_only()) {
      throw bad_input("'scales' is read-only, and is written");
    }
    auto args = args_of<vqgen_scalar_args>(signature, arguments);
    args.tokens = arguments.size(0, 0);
    as(args);
  } else {
    auto args = args_of<vqgen_linear_args>(signature, arguments);
    args.m = arguments.size(0, 0);
    as(args);
  }
}

}  // namespace vqgen::python
