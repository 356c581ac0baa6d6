#include "runtime/device_call.h"

#include <algorithm>
#include <cmath>

#include "runtime/alignment.h"
#include "runtime/workspace.h"

namespace vqgen {

namespace {

// The places of one array.
template <class T>
T* at(const std::vector<T*>& places, int call) {
  return places[static_cast<std::size_t>(call) % places.size()];
}

// A tensor with all its places.
template <class Args, class Code>
struct Places {
  std::vector<Code*> codes;
  std::vector<const std::uint16_t*> codebooks;
  std::vector<const float*> scales;
  std::int64_t head_stride;
  std::int64_t batch_stride;
  std::int64_t begin = 0;  // of the codes' storage
  std::int64_t token_stride = 0;
  const std::int32_t* pages = nullptr;
  std::int64_t page_columns = 0;

  Args operator()(int call, int books) const {
    return {at(codes, call) + begin,
            at(codebooks, books),
            at(scales, books),
            batch_stride,
            head_stride,
            token_stride,
            pages,
            page_columns};
  }
};

// All but its codes.
template <class Args, class Code>
Places<Args, Code> places_of(DeviceData& device, const QuantizedTensor& tensor,
                             const Rotation& rotation, const Misalignment& misalignment) {
  return {{},
          device.inputs(tensor.codebooks, rotation.codebooks, misalignment.entries),
          device.inputs(tensor.stage_scales, rotation.codebooks, misalignment.words),
          tensor.head_words(),
          tensor.heads * tensor.head_words()};
}

// The codes of keys and values, contiguous or in a pool of pages; `places` makes a storage's.
template <class Tensor, class MakePlaces>
void place_codes(DeviceData& device, const std::vector<std::uint32_t>& key_codes,
                 const std::vector<std::uint32_t>& value_codes, const PagePool& pool,
                 const Misalignment& misalignment, Tensor& keys, Tensor& values,
                 MakePlaces places) {
  if (pool.page_tokens == 0) {
    keys.codes = places(key_codes);
    values.codes = places(value_codes);
    return;
  }
  keys.codes = places(pool.keys);
  values.codes = places(pool.values);
  if (pool.one_tensor()) values.codes = keys.codes;
  const std::int32_t* const table = device.input(pool.table, misalignment.words);
  const auto put = [&](Tensor& tensor, const PageStrides& strides) {
    tensor.begin = strides.begin;
    tensor.batch_stride = strides.page;
    tensor.head_stride = strides.head;
    tensor.token_stride = strides.token;
    tensor.pages = table;
    tensor.page_columns = pool.columns;
  };
  put(keys, pool.key_strides);
  put(values, pool.value_strides);
}

// Keys and values of a cache with all their places, raw rows too.
template <class Tensor, class Raw>
struct CachePlaces {
  Tensor keys, values;
  std::vector<const float*> smooth;
  std::vector<Raw*> raw_keys, raw_values;

  template <class Args>
  void set(Args& args, int call, int books) const {
    args.keys = keys(call, books);
    args.values = values(call, books);
    args.key_smooth = at(smooth, books);
    args.raw_keys = at(raw_keys, call);
    args.raw_values = at(raw_values, call);
  }
};

// A cache that is read, and what goes with it: strides of raw rows, and counts.
template <class Args, class Op>
auto read_cache(DeviceData& device, Args& args, const Op& op, const AttentionData& data,
                const PagePool& pool, const Rotation& rotation, const Misalignment& misalignment) {
  args.raw_head_stride = std::int64_t{op.raw_slots()} * op.shape.head_dim;
  args.raw_batch_stride = op.shape.kv_heads * args.raw_head_stride;
  args.lengths = device.input(data.lengths, misalignment.words);
  args.recent_counts = device.input(data.recent_counts, misalignment.words);
  args.sinks = device.input(data.sinks, misalignment.words);
  using Tensor = Places<vq::QuantizedArgs, const std::uint32_t>;
  Tensor keys =
      places_of<vq::QuantizedArgs, const std::uint32_t>(device, data.keys, rotation, misalignment);
  Tensor values = places_of<vq::QuantizedArgs, const std::uint32_t>(device, data.values, rotation,
                                                                    misalignment);
  place_codes(device, data.keys.codes, data.values.codes, pool, misalignment, keys, values,
              [&](const std::vector<std::uint32_t>& codes) {
                return device.inputs(codes, rotation.codes, misalignment.codes);
              });
  return CachePlaces<Tensor, const std::uint16_t>{
      keys, values, device.inputs(data.keys.smooth, rotation.codebooks, misalignment.words),
      device.inputs(data.raw_keys, rotation.codes, misalignment.rows),
      device.inputs(data.raw_values, rotation.codes, misalignment.rows)};
}

// Of a cache in pages, else empty.
PagePool pool_of(const auto& op, const AttentionData& data) {
  if (op.shape.page_tokens == 0) return {};
  return make_pool(data.keys, data.values, data.lengths, op.shape.page_tokens, true,
                   Random(data.paging_seed), data.page_order);
}

// Tokens of which each sequence has pages: all that it has room for, where it is appended to.
std::vector<std::int32_t> paged_lengths(const AppendData& data) {
  std::vector<std::int32_t> lengths;
  for (std::size_t b = 0; b < data.positions.size(); ++b) {
    const std::int32_t position = data.positions[b];
    const bool some = data.counts.empty() || data.counts[b] > 0;
    const bool appends = some && position >= 0 && position < data.keys.rows;
    lengths.push_back(appends ? static_cast<std::int32_t>(data.keys.rows) : 0);
  }
  return lengths;
}

PagePool pool_of(const KvAppend& op, const AppendData& data) {
  if (op.shape.page_tokens == 0) return {};
  return make_pool(data.keys, data.values, paged_lengths(data), op.shape.page_tokens, false,
                   Random(data.paging_seed), data.page_order);
}

}  // namespace

Misalignment least_alignment(const vq::CallShape& shape) {
  return {.codes = static_cast<std::size_t>(shape.code_bytes),
          .rows = static_cast<std::size_t>(shape.element_bytes),
          .elements = kElementAlignment,
          .results = kElementAlignment,
          .entries = kEntryAlignment,
          .words = kWordAlignment};
}

float softmax_scale(const AttentionDecode& op) {
  return 1.0f / std::sqrt(static_cast<float>(op.shape.head_dim));
}

DeviceCall::DeviceCall(Backend& backend, const AttentionDecode& op, const AttentionData& data,
                       Misalignment misalignment, Rotation rotation, std::size_t guard)
    : backend_(backend),
      op_(op),
      pool_(pool_of(op, data)),
      device_(backend, guard),
      guard_(guard),
      slack_(misalignment.entries),
      places_(rotation.places()) {
  const std::int64_t heads = data.query_rows() * op.shape.query_heads;
  const std::int64_t head_dim = op.shape.head_dim;
  vq::AttentionDecodeArgs args{};
  args.query = device_.input(data.queries, misalignment.elements);
  const auto cache = read_cache(device_, args, op, data, pool_, rotation, misalignment);
  args.query_start = device_.input(data.query_start, misalignment.words);
  args.new_keys = device_.input(data.new_keys, misalignment.rows);
  args.new_values = device_.input(data.new_values, misalignment.rows);
  args.capacity = op.shape.tokens;
  args.batch = op.shape.batch;
  args.softmax_scale = softmax_scale(op);
  args.out = device_.output<std::uint16_t>(static_cast<std::size_t>(heads * head_dim),
                                           misalignment.results);
  args.lse = device_.output<float>(static_cast<std::size_t>(heads), misalignment.words);
  args_of_ = [=](int call, int codebooks) mutable {
    cache.set(args, call, codebooks);
    return args;
  };
}

DeviceCall::DeviceCall(Backend& backend, const Linear& op, const LinearData& data,
                       Misalignment misalignment, Rotation rotation, std::size_t guard)
    : backend_(backend),
      op_(op.shape.rows < Gemm::kLeastRows ? Problem(Gemv{op}) : Problem(Gemm{op})),
      device_(backend, guard),
      guard_(guard),
      slack_(misalignment.entries),
      places_(rotation.places()) {
  vq::LinearArgs args{};
  args.x = device_.input(data.x, misalignment.rows);
  const auto codes = device_.inputs(data.weights.codes, rotation.codes, misalignment.codes);
  auto weights = places_of<vq::QuantizedArgs, const std::uint32_t>(device_, data.weights, rotation,
                                                                   misalignment);
  weights.codes = codes;
  const auto output_scales =
      device_.inputs(data.weights.output_scales, rotation.codebooks, misalignment.words);
  args.y = device_.output<std::uint16_t>(
      static_cast<std::size_t>(data.input_rows * op.shape.out_features), misalignment.results);
  args.rows = static_cast<vq::i32>(data.input_rows);
  std::vector<const std::int32_t*> expert_rows{nullptr};
  if (!data.expert_rows.empty()) {
    expert_rows = {device_.input(data.expert_rows, misalignment.words)};
    for (int turn = 1; turn < rotation.turns; ++turn) {
      expert_rows.push_back(device_.copy(offsets_of_turn(data, turn), misalignment.words));
    }
  }
  args_of_ = [=, turns = rotation.turns](int call, int codebooks) mutable {
    args.weights = weights(call / turns, codebooks / turns);
    args.output_scales = at(output_scales, codebooks / turns);
    args.expert_rows = at(expert_rows, call);
    return args;
  };
}

DeviceCall::DeviceCall(Backend& backend, const KvAppend& op, const AppendData& data,
                       Misalignment misalignment, Rotation rotation, std::size_t guard)
    : backend_(backend),
      op_(op),
      pool_(pool_of(op, data)),
      device_(backend, guard),
      guard_(guard),
      slack_(misalignment.entries),
      places_(rotation.places()) {
  vq::KvAppendArgs args{};
  args.new_keys = device_.input(data.new_keys, misalignment.elements);
  args.new_values = device_.input(data.new_values, misalignment.elements);
  args.positions = device_.input(data.positions, misalignment.words);
  args.counts = device_.input(data.counts, misalignment.words);
  using Tensor = Places<vq::EncodedArgs, std::uint32_t>;
  Tensor keys =
      places_of<vq::EncodedArgs, std::uint32_t>(device_, data.keys, rotation, misalignment);
  Tensor values =
      places_of<vq::EncodedArgs, std::uint32_t>(device_, data.values, rotation, misalignment);
  place_codes(device_, data.keys.codes, data.values.codes, pool_, misalignment, keys, values,
              [&](const std::vector<std::uint32_t>& codes) {
                return device_.states(codes, rotation.codes, misalignment.codes);
              });
  const CachePlaces<Tensor, std::uint16_t> cache{
      keys, values, device_.inputs(data.keys.smooth, rotation.codebooks, misalignment.words),
      device_.states(data.raw_keys, rotation.codes, misalignment.rows),
      device_.states(data.raw_values, rotation.codes, misalignment.rows)};
  args.raw_head_stride = std::int64_t{op.raw_slots()} * op.shape.head_dim;
  args.raw_batch_stride = op.shape.kv_heads * args.raw_head_stride;
  args.capacity = static_cast<vq::i32>(op.shape.tokens);
  args.batch = op.shape.batch;
  if (op.shape.page_tokens > 0) appended_ = &data;
  args_of_ = [=](int call, int codebooks) mutable {
    cache.set(args, call, codebooks);
    return args;
  };
}

DeviceCall::DeviceCall(Backend& backend, const KvDequantize& op, const AttentionData& data,
                       Misalignment misalignment, Rotation rotation, std::size_t guard)
    : backend_(backend),
      op_(op),
      pool_(pool_of(op, data)),
      device_(backend, guard),
      guard_(guard),
      slack_(misalignment.entries),
      places_(rotation.places()) {
  const auto elements =
      static_cast<std::size_t>(data.batch * data.keys.heads * data.keys.rows * data.keys.columns);
  vq::KvDequantizeArgs args{};
  args.out_keys = device_.output<std::uint16_t>(elements, misalignment.rows);
  args.out_values = device_.output<std::uint16_t>(elements, misalignment.rows);
  const auto cache = read_cache(device_, args, op, data, pool_, rotation, misalignment);
  args.tokens = static_cast<vq::i32>(data.keys.rows);
  args_of_ = [=](int call, int codebooks) mutable {
    cache.set(args, call, codebooks);
    return args;
  };
}

DeviceCall::DeviceCall(Backend& backend, const AttentionMerge& op, const MergeData& data,
                       Misalignment misalignment, Rotation rotation, std::size_t guard)
    : backend_(backend),
      op_(op),
      device_(backend, guard),
      guard_(guard),
      slack_(misalignment.entries),
      places_(rotation.places()) {
  std::vector<std::uint16_t*> out;
  std::vector<float*> lse;
  std::vector<std::vector<const std::uint16_t*>> outs;
  std::vector<std::vector<const float*>> lses;
  for (const MergePart& part : data.parts) {
    if (static_cast<int>(outs.size()) == data.in_place) {
      out = device_.states(part.out, rotation.codes, misalignment.rows);
      lse = device_.states(part.lse, rotation.codes, misalignment.words);
      outs.emplace_back(out.begin(), out.end());
      lses.emplace_back(lse.begin(), lse.end());
    } else {
      outs.push_back(device_.inputs(part.out, rotation.codes, misalignment.rows));
      lses.push_back(device_.inputs(part.lse, rotation.codes, misalignment.words));
    }
  }
  if (data.in_place < 0) {
    out = {device_.output<std::uint16_t>(data.parts[0].out.size(), misalignment.rows)};
    lse = {device_.output<float>(data.parts[0].lse.size(), misalignment.words)};
  }
  vq::AttentionMergeArgs args{};
  args.rows = static_cast<vq::i32>(data.rows);
  args_of_ = [=](int call, int) mutable {
    args.out = at(out, call);
    args.lse = at(lse, call);
    for (std::size_t i = 0; i < outs.size(); ++i) {
      args.outs[i] = at(outs[i], call);
      args.lses[i] = at(lses[i], call);
    }
    return args;
  };
}

const std::vector<std::vector<std::byte>>& DeviceCall::args(const Plan& plan,
                                                            CodebookCaching codebooks) {
  const vq::CallShape shape = call_shape(plan, op_);
  const auto bytes = static_cast<std::size_t>(shape.workspace_bytes);
  if (bytes > workspace_.bytes()) workspace_ = GuardedBuffer(backend_, bytes, guard_, slack_);
  if (workspace_.bytes() > 0) workspace_.raise_guards(bytes);
  device_.poison_outputs();
  std::vector<std::byte> unset(bytes, std::byte{0xff});
  counter_bytes_ = bytes - bytes_behind_counters(shape);
  std::fill_n(unset.begin(), counter_bytes_, std::byte{0});
  backend_.upload(workspace_.data(), unset);
  const auto handed = static_cast<std::size_t>(shape.handed_bytes);
  bytes_.clear();
  for (int call = 0; call < places_; ++call) {
    std::visit(
        [&](auto args) {
          std::byte* const counters = bytes > 0 ? workspace_.data() : nullptr;
          point_into_workspace(args, counters, counters + counter_bytes_, bytes - counter_bytes_,
                               handed);
          const auto view = std::as_bytes(std::span(&args, 1));
          bytes_.emplace_back(view.begin(), view.end());
        },
        args_of_(call, codebooks == CodebookCaching::warm ? 0 : call));
  }
  return bytes_;
}

AppendResult DeviceCall::append_output() const {
  if (appended_ != nullptr) return paged_output(*appended_);
  return {device_.fetch<std::uint32_t>(0), device_.fetch<std::uint32_t>(1),
          device_.fetch<std::uint16_t>(2), device_.fetch<std::uint16_t>(3)};
}

AppendResult DeviceCall::paged_output(const AppendData& data) const {
  AppendResult result{{}, {}, device_.fetch<std::uint16_t>(2), device_.fetch<std::uint16_t>(3)};
  if (!take_rows(pool_, data.keys, data.values, paged_lengths(data),
                 device_.fetch<std::uint32_t>(0), device_.fetch<std::uint32_t>(1), result.key_codes,
                 result.value_codes)) {
    throw Error(ErrorKind::verification_failed,
                "the kernel wrote to words of the pool that are no row's of a sequence");
  }
  return result;
}

}  // namespace vqgen
