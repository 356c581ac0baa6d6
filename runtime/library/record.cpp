#include "runtime/library/record.h"

#include <algorithm>

#include "core/json/json_text.h"
#include "core/parallel.h"
#include "heuristics/many_rows.h"
#include "runtime/library/arguments.h"
#include "runtime/workspace.h"

namespace vqgen::library {
namespace {

// The mask that addresses aligned to `bytes`, a power of two, leave zero.
std::uintptr_t mask_of(int bytes) { return static_cast<std::uintptr_t>(bytes - 1); }

Demands demands_of(const vq::CallShape& shape) {
  return {.codes_mask = mask_of(shape.code_bytes), .elements_mask = mask_of(shape.element_bytes)};
}

bool merges_by_last_block(const Plan& plan) {
  return std::visit(
      [](const auto& own) {
        if constexpr (requires { own.combine; }) return own.combine == vq::Combine::last_block;
        return false;
      },
      plan);
}

// Does what prepare() does, but keeps the bucket's plan if no access_counts can change it.
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
  bucket.basis_bytes = static_cast<std::size_t>(shape.basis_bytes);
  bucket.handed_bytes = static_cast<std::size_t>(shape.handed_bytes);
  if (merges_by_last_block(made.plan)) {
    bucket.counter_bytes = sizeof(vq::u32) * static_cast<std::size_t>(shape.counters);
    maker.counters->reserve();
  }
  bucket.demands = demands_of(shape);
  bucket.demands.readable = maker.backend->machine() == Machine::host;
  bucket.resources = made.artifact.kernels;
  bucket.from_disk = made.cache_hit;
  const std::lock_guard lock(*maker.load);
  bucket.kernel = maker.backend->load(made.artifact, made.source);
  return bucket;
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

// Makes Record::description: JSON, for people and for the code that they build on it.
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
  json["arguments"] = described_arguments(problem);
  if (const auto* gemm = std::get_if<Gemm>(&problem)) {
    if (const auto many = many_rows(record.buckets.back().plan, *gemm, maker.gpu)) {
      json["many_rows"] = {{"from", many->from}, {"part", many->part}};
    }
  }
  json["buckets"] = Json::array();
  for (const Bucket& each : record.buckets) {
    json["buckets"].push_back(bucket_json(each));
  }
  return dump_description(json);
}

}  // namespace

// Paths and messages may hold bytes that are not UTF-8.
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
  // The largest first: if nothing can be compiled, it says so before anything is.
  in_parallel(plans.size(), maker.threads, [&](std::size_t turn) {
    if (maker.stop.stop_requested()) {
      throw Error(ErrorKind::device,
                  record->key + ": not compiled, since the runtime is destroyed");
    }
    const std::size_t index = plans.size() - 1 - turn;
    record->buckets[index] = make_bucket(maker, compiler, plans[index]);
  });
  record->baseline = !wanted.empty();
  // A wanted kernel takes over sizes of one bucket of the baseline, which must require what it
  // will.
  for (const BucketPlan& later : wanted) {
    const vq::CallShape shape = call_shape(later.plan, later.config.problem);
    const Demands demands = demands_of(shape);
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
