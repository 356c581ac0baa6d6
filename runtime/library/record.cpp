#include "runtime/library/record.h"

#include <algorithm>

#include "runtime/parallel.h"
#include "runtime/prepare.h"

namespace vqgen::library {
namespace {

// Of addresses that are multiples of a power of two of bytes.
std::uintptr_t mask_of(int bytes) { return static_cast<std::uintptr_t>(bytes - 1); }

// Of the op whatever its plan, and the alignments of a call.
Demands demands_of(const Problem& problem, const vq::CallShape& shape) {
  Demands demands;
  demands.codes_mask = mask_of(shape.code_bytes);
  demands.elements_mask = mask_of(shape.element_bytes);
  const auto set_own = [&]<class Op>(const Op& op) {
    if constexpr (std::is_base_of_v<Linear, Op>) {
      demands.output_scales = op.weights.output_scales;
      demands.scales = op.weights.stage_scales;
    } else {
      demands.key_smooth = op.keys.smooth;
      demands.scales = op.keys.stage_scales;
      demands.value_scales = op.values.stage_scales;
      demands.window = op.shape.window > 0;
      demands.sinks = op.shape.sinks > 0;
    }
  };
  std::visit(set_own, problem);
  return demands;
}

// As prepare() makes it, but that a plan which no hotness can change is not looked for again.
Prepared prepared(const Maker& maker, const Backend& compiler, const BucketPlan& wanted) {
  if (wanted.config.hotness) {
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
  bucket.own_bytes = static_cast<std::size_t>(shape.workspace_bytes);
  bucket.workspace_bytes = bucket.own_bytes;
  bucket.score_bytes = static_cast<std::size_t>(shape.score_bytes);
  bucket.demands = demands_of(wanted.config.problem, shape);
  bucket.resources = made.artifact.kernels;
  bucket.from_disk = made.cache_hit;
  const std::lock_guard lock(*maker.load);
  bucket.kernel = maker.backend->load(made.artifact, made.source);
  return bucket;
}

}  // namespace

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
    bucket.workspace_bytes =
        std::max(bucket.workspace_bytes, static_cast<std::size_t>(shape.workspace_bytes));
  }
  for (const Bucket& each : record->buckets) {
    record->workspace_bytes = std::max(record->workspace_bytes, each.workspace_bytes);
  }
  record->description = describe(*record, maker);
  return record;
}

}  // namespace vqgen::library
