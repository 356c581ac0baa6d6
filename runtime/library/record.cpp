#include "runtime/library/record.h"

#include <fmt/format.h>
#include <vq/layout/codes.h>

#include <algorithm>

#include "core/ceil_div.h"
#include "core/json/json_text.h"
#include "core/parallel.h"
#include "runtime/workspace.h"

namespace vqgen::library {
namespace {

// Of addresses that are multiples of a power of two of bytes.
std::uintptr_t mask_of(int bytes) { return static_cast<std::uintptr_t>(bytes - 1); }

// Of the op whatever its plan, and the alignments of a call.
Demands demands_of(const Problem& problem, const vq::CallShape& shape) {
  Demands demands;
  demands.codes_mask = mask_of(shape.code_bytes);
  demands.elements_mask = mask_of(shape.element_bytes);
  const auto rows_of = [](const VqFormat& format, std::int64_t head_dim) {
    const std::int64_t words = format.row_words(head_dim);
    return PagedRows{4 * vq::padded_words(format.layout, words), format.layout.rows};
  };
  const auto set_own = [&]<class Op>(const Op& op) {
    if constexpr (std::is_base_of_v<Linear, Op>) {
      demands.output_scales = op.weights.output_scales;
      demands.scales = op.weights.stage_scales;
    } else if constexpr (requires { op.keys; }) {
      demands.key_smooth = op.keys.smooth;
      demands.scales = op.keys.stage_scales;
      demands.value_scales = op.values.stage_scales;
      demands.recent_tokens = op.shape.recent_tokens > 0;
      demands.sinks = op.shape.sinks > 0;
      demands.page_tokens = op.shape.page_tokens;
      demands.keys = rows_of(op.keys, op.shape.head_dim);
      demands.values = rows_of(op.values, op.shape.head_dim);
    }
  };
  std::visit(set_own, problem);
  return demands;
}

bool merges_by_last_block(const Plan& plan) {
  return std::visit(
      [](const auto& own) {
        if constexpr (requires { own.combine; }) return own.combine == vq::Combine::last_block;
        return false;
      },
      plan);
}

// As prepare() makes it, but that a plan which no access_counts can change is not looked for again.
Prepared prepared(const Maker& maker, const Backend& compiler, const BucketPlan& wanted) {
  if (wanted.config.access_counts) {
    return prepare(wanted.config, maker.gpu, compiler, maker.cache, maker.plan);
  }
  KernelSource source = source_for(wanted.config, wanted.plan, maker.gpu, compiler.machine());
  CompileResult result = compile_cached(compiler, source, maker.cache);
  return {{.plan = wanted.plan, .from = wanted.from},
          std::move(source),
          std::move(result.artifact),
          result.hit};
}

Bucket make_bucket(const Maker& maker, const Backend& compiler, const BucketPlan& wanted) {
  const Prepared made = prepared(maker, compiler, wanted);
  Bucket bucket{wanted};
  bucket.plan = made.plan;
  bucket.from = made.from;
  bucket.entries = made.source.entries.size();
  const vq::CallShape shape = call_shape(made.plan, wanted.config.problem);
  bucket.own_bytes = bytes_behind_counters(shape);
  bucket.workspace_bytes = bucket.own_bytes;
  bucket.handed_bytes = static_cast<std::size_t>(shape.handed_bytes);
  if (merges_by_last_block(made.plan)) {
    bucket.counter_bytes = sizeof(vq::u32) * static_cast<std::size_t>(shape.counters);
    maker.counters->reserve();
  }
  bucket.demands = demands_of(wanted.config.problem, shape);
  bucket.demands.readable = maker.backend->machine() == Machine::host;
  bucket.resources = made.artifact.kernels;
  bucket.from_disk = made.cache_hit;
  const std::lock_guard lock(*maker.load);
  bucket.kernel = maker.backend->load(made.artifact, made.source);
  return bucket;
}

using Shape = std::vector<std::int64_t>;

void add(Json& list, const std::string& name, const std::string& type, const Shape& shape) {
  list.push_back({{"name", name}, {"type", type}, {"shape", shape}});
}

// Codes, codebooks and scales of one tensor; the elements of codebooks are told of keys in parts,
// which have those of all parts in a row. `rows` is its shape but for the words of a row. Codes
// that are not stored row after row are an array of their groups and runs.
void add_quantized(Json& list, const std::string& name, const VqFormat& format,
                   const std::string& dtype, Shape rows, std::int64_t columns, std::int64_t units,
                   std::int64_t codebook_elements = 0) {
  const std::int64_t words = format.row_words(columns);
  const CodeLayout& layout = format.layout;
  if (layout.plain()) {
    rows.push_back(words);
  } else {
    rows.back() = ceil_div(rows.back(), std::int64_t{layout.rows});
    rows.insert(rows.end(),
                {ceil_div(words, std::int64_t{layout.words}), layout.rows, layout.words});
  }
  add(list, name + ".codes", "u32", rows);
  add(list, name + ".codebooks", dtype,
      format.in_parts() ? Shape{codebook_elements}
                        : Shape{units, format.num_codebooks, format.entries(), format.vector_size});
  if (format.stage_scales) {
    add(list, name + ".scales", "f32", {units, format.num_codebooks});
  }
}

// The cache that one op reads and another appends to. Of pages there are as many as the pool and a
// row of the table have; the description has 0 for both.
template <class Op>
void add_cache(Json& list, const Op& op, const std::string& dtype) {
  const auto& s = op.shape;
  const bool paged = s.page_tokens > 0;
  for (const bool keys : {true, false}) {
    const VqFormat& format = keys ? op.keys : op.values;
    add_quantized(list, keys ? "keys" : "values", format, dtype,
                  {paged ? 0 : s.batch, s.kv_heads, paged ? s.page_tokens : s.tokens}, s.head_dim,
                  kv_units(format, s.kv_heads, s.head_dim),
                  kv_codebook_elements(format, s.kv_heads, s.head_dim));
  }
  if (op.keys.smooth) add(list, "key_smooth", "f32", {s.kv_heads, s.head_dim});
  if (paged) add(list, "block_table", "i32", {s.batch, 0});
  if (op.raw_slots() == 0) return;
  for (const char* name : {"raw_keys", "raw_values"}) {
    add(list, name, dtype, {s.batch, s.kv_heads, op.raw_slots(), s.head_dim});
  }
}

// Of what reads a cache.
template <class Shape>
void add_counts(Json& list, const Shape& s) {
  add(list, "lengths", "i32", {s.batch});
  if (s.recent_tokens > 0) add(list, "recent_counts", "i32", {s.batch});
  if (s.sinks > 0) add(list, "sinks", "i32", {s.batch});
}

Json arguments(const AttentionDecode& op) {
  const AttentionShape& s = op.shape;
  const std::string dtype(enum_name(op.dtype));
  Json list = Json::array();
  const std::int64_t rows = std::int64_t{s.batch} * s.query_tokens;
  add(list, "query", dtype, {rows, s.query_heads, s.head_dim});
  add(list, "out", dtype, {rows, s.query_heads, s.head_dim});
  add(list, "lse", "f32", {rows, s.query_heads});
  add_cache(list, op, dtype);
  add_counts(list, s);
  if (s.query_tokens == 1) return list;
  add(list, "query_start", "i32", {s.batch + 1});
  for (const char* name : {"new_keys", "new_values"}) {
    add(list, name, dtype, {rows, s.kv_heads, s.head_dim});
  }
  return list;
}

Json arguments(const KvAppend& op) {
  const AppendShape& s = op.shape;
  const std::string dtype(enum_name(op.dtype));
  Json list = Json::array();
  for (const char* name : {"new_keys", "new_values"}) {
    add(list, name, dtype, {s.batch, s.new_tokens, s.kv_heads, s.head_dim});
  }
  add(list, "positions", "i32", {s.batch});
  add(list, "counts", "i32", {s.batch});
  add_cache(list, op, dtype);
  return list;
}

Json arguments(const KvDequantize& op) {
  const DequantizeShape& s = op.shape;
  const std::string dtype(enum_name(op.dtype));
  Json list = Json::array();
  for (const char* name : {"out_keys", "out_values"}) {
    add(list, name, dtype, {s.batch, s.kv_heads, s.tokens, s.head_dim});
  }
  add_cache(list, op, dtype);
  add_counts(list, s);
  return list;
}

Json arguments(const AttentionMerge& op) {
  const MergeShape& s = op.shape;
  const std::string dtype(enum_name(op.dtype));
  Json list = Json::array();
  add(list, "out", dtype, {s.rows, s.heads, s.head_dim});
  add(list, "lse", "f32", {s.rows, s.heads});
  for (int i = 0; i < s.parts; ++i) {
    add(list, fmt::format("outs.{}", i), dtype, {s.rows, s.heads, s.head_dim});
    add(list, fmt::format("lses.{}", i), "f32", {s.rows, s.heads});
  }
  return list;
}

Json arguments(const ScalarMatrix& op) {
  const ScalarShape& s = op.shape;
  const std::string dtype(enum_name(op.dtype));
  Json list = Json::array();
  add(list, "from", op.decodes ? "i8" : dtype, {s.tokens, s.channels});
  add(list, "to", op.decodes ? dtype : "i8", {s.tokens, s.channels});
  add(list, "scales", "f32", {s.channels});
  return list;
}

Json arguments(const Linear& op) {
  const LinearShape& s = op.shape;
  const std::string dtype(enum_name(op.dtype));
  Json list = Json::array();
  add(list, "x", dtype, {s.call_rows(), s.in_features});
  add(list, "y", dtype, {s.call_rows(), s.out_features});
  // An axis more of experts, whose codebooks stand one behind the other.
  Shape outputs{s.out_features};
  if (s.grouped()) outputs.insert(outputs.begin(), s.experts);
  add_quantized(list, "weights", op.weights, dtype, outputs, s.in_features, weight_units(op));
  if (op.weights.output_scales) add(list, "output_scales", "f32", outputs);
  if (s.grouped()) add(list, "expert_rows", "i32", {s.experts + 1});
  return list;
}

Json bucket_json(const Bucket& bucket) {
  const Demands& demands = bucket.demands;
  Json kernels = Json::array();
  for (const KernelResources& each : bucket.resources) kernels.push_back(to_json(each));
  return {{"most", bucket.most},
          {"plan", to_json(bucket.plan)},
          {"plan_from", to_json(bucket.from)},
          {"kernels", std::move(kernels)},
          {"workspace_bytes", bucket.workspace_bytes},
          {"codes_alignment", demands.codes_mask + 1},
          {"elements_alignment", demands.elements_mask + 1},
          {"provenance", bucket.from_disk ? "disk" : "compiled"}};
}

// Record::description: as JSON, for people and for what they build on it.
std::string describe(const Record& record, const Maker& maker) {
  const Problem& problem = record.buckets.back().config.problem;
  Json json;
  json["key"] = record.key;
  json["problem"] = to_json(problem);
  json["device"] = maker.gpu.name;
  json["chooser"] = std::string(enum_name(maker.plan.chooser));
  if (maker.cache != nullptr) {
    if (std::string warning = maker.cache->warning(); !warning.empty()) {
      json["cache_warning"] = std::move(warning);
    }
  }
  if (maker.plan.tables != nullptr) {
    if (std::string warning = maker.plan.tables->warning(); !warning.empty()) {
      json["tuned_warning"] = std::move(warning);
    }
  }
  json["workspace_bytes"] = record.workspace_bytes;
  json["arguments"] = std::visit([](const auto& op) { return arguments(op); }, problem);
  json["buckets"] = Json::array();
  for (const Bucket& each : record.buckets) {
    json["buckets"].push_back(bucket_json(each));
  }
  return dump_description(json);
}

}  // namespace

// Paths and messages may hold bytes that are no UTF-8.
std::string dump_description(const Json& json) { return json_text(json, 2); }

const char* Record::told() const {
  const std::string* const other = failed.load(std::memory_order_acquire);
  return (other != nullptr ? *other : current().description).c_str();
}

bool Record::from_disk() const {
  return std::all_of(buckets.begin(), buckets.end(),
                     [](const Bucket& each) { return each.from_disk; });
}

std::shared_ptr<Record> make_record(const Maker& maker, const Backend& compiler, std::string key,
                                    std::span<const BucketPlan> plans,
                                    std::span<const BucketPlan> wanted) {
  auto record = std::make_shared<Record>();
  record->backend = maker.backend;
  record->counters = maker.counters;
  record->key = std::move(key);
  record->buckets.resize(plans.size());
  // The largest first: where nothing can be compiled, it says so before anything is.
  in_parallel(plans.size(), maker.threads, [&](std::size_t turn) {
    if (maker.stop.stop_requested()) {
      throw Error(ErrorKind::device,
                  record->key + ": not compiled, since the runtime is destroyed");
    }
    const std::size_t index = plans.size() - 1 - turn;
    record->buckets[index] = make_bucket(maker, compiler, plans[index]);
  });
  record->baseline = !wanted.empty();
  // The sizes of a baseline are among the wanted ones, so all that a wanted kernel will take over
  // is one bucket's.
  for (const BucketPlan& later : wanted) {
    const vq::CallShape shape = call_shape(later.plan, later.config.problem);
    const Demands demands = demands_of(later.config.problem, shape);
    Bucket& bucket = record->buckets[bucket_index(record->buckets, later.most)];
    bucket.demands.codes_mask |= demands.codes_mask;
    bucket.demands.elements_mask |= demands.elements_mask;
    bucket.workspace_bytes = std::max(bucket.workspace_bytes, bytes_behind_counters(shape));
  }
  for (const Bucket& each : record->buckets) {
    record->workspace_bytes = std::max(record->workspace_bytes, each.workspace_bytes);
  }
  record->description = describe(*record, maker);
  return record;
}

}  // namespace vqgen::library
