#include "runtime/library/registry.h"

#include <fmt/format.h>

#include <chrono>

#include "core/files/digest.h"
#include "core/files/files.h"
#include "core/profiles.h"
#include "runtime/backend/backend.h"
#include "runtime/prepare.h"

namespace vqgen::library {
namespace {

// The most texts that are remembered; beyond that, ops are found by their key alone.
constexpr std::size_t kMostTexts = 4096;

// A compiler that refuses, by which prepare() finds out whether the cache holds all that an op
// takes. It has the identity of `backend`, which must outlive it, so that keys agree. Its compile()
// throws, and missed() remembers that.
class CacheOnly final : public NoDevice {
 public:
  explicit CacheOnly(const Backend& backend) : backend_(backend) {}
  bool missed() const { return missed_; }

  std::string_view name() const override { return backend_.name(); }
  Machine machine() const override { return backend_.machine(); }
  std::optional<GpuSpec> device() const override { return backend_.device(); }
  CompilerIdentity compiler(const KernelSource& source) const override {
    return backend_.compiler(source);
  }
  bool may_compile() const override { return false; }
  Artifact compile(const KernelSource& source) const override {
    missed_ = true;
    throw Error(ErrorKind::device, source.op + ": not in the cache, and may not be compiled here");
  }

 private:
  const Backend& backend_;
  mutable std::atomic<bool> missed_{false};
};

Config config_of(std::string_view text, const std::string& source) {
  return read_config(parse_json(text, source), source);
}

}  // namespace

std::string spec_key(const Config& config, const GpuSpec& gpu, std::string_view backend) {
  return Digest()
      .add(to_json(config.problem).dump())
      .add(config.plan.dump())
      .add(config.access_counts.value_or(""))
      .add(to_json(gpu).dump())
      .add(backend)
      .hex();
}

Registry::Registry(std::shared_ptr<Backend> backend, std::unique_ptr<ArtifactCache> cache,
                   RegistryOptions options)
    : backend_(std::move(backend)),
      counters_(std::make_shared<LaunchCounters>(backend_)),
      cache_(std::move(cache)),
      options_(std::move(options)) {}

Registry::~Registry() = default;

GpuSpec Registry::gpu_of(const Config& config) const {
  if (options_.gpu) return *options_.gpu;
  return config.gpu ? named_gpu(config) : default_gpu();
}

Outcome Registry::found(std::shared_ptr<const Record> record) {
  const bool waiting = record->baseline && &record->current() == record.get();
  return {std::move(record), waiting ? Provenance::baseline : Provenance::memory, Refusal::none};
}

void Registry::remember(std::string_view seen, const std::shared_ptr<const Record>& record) {
  const std::unique_lock lock(mutex_);
  if (by_text_.size() < kMostTexts) by_text_.try_emplace(std::string(seen), record);
}

Outcome Registry::prepare_file(const std::string& path, void* stream) {
  const std::string text = read_text(path);
  return find_or_make(path + '\0' + text, text, path, stream, 0);
}

Outcome Registry::find_or_make(std::string_view seen, std::string_view text,
                               const std::string& source, void* stream, int threads) {
  {
    const std::shared_lock lock(mutex_);
    const auto known = by_text_.find(seen);
    if (known != by_text_.end()) return found(known->second);
  }
  const Config config = config_of(text, source);
  const std::string key = spec_key(config, gpu_of(config), backend_->name());
  const bool capturing = stream != nullptr && backend_->capturing(stream);
  std::promise<Outcome> promise;
  Making making;
  bool mine = false;
  {
    const std::unique_lock lock(mutex_);
    const auto known = by_key_.find(key);
    if (known != by_key_.end()) {
      making = known->second;
    } else {
      if (frozen_) return {nullptr, {}, Refusal::frozen};
      if (capturing) return {nullptr, {}, Refusal::capturing};
      making = promise.get_future().share();
      by_key_.emplace(key, making);
      mine = true;
    }
  }
  if (!mine) {
    // Releases the lock: another thread may have to load before this one can go on.
    if (capturing && making.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
      return {nullptr, {}, Refusal::capturing};
    }
    const Outcome outcome = making.get();
    if (outcome.refusal != Refusal::none) return outcome;
    remember(seen, outcome.record);
    return found(outcome.record);
  }
  const auto forget = [&] {
    const std::unique_lock lock(mutex_);
    by_key_.erase(key);
  };
  try {
    Outcome outcome = make(config, key, threads == 0 ? options_.threads : threads);
    if (outcome.refusal == Refusal::none) {
      remember(seen, outcome.record);
    } else {
      forget();
    }
    promise.set_value(outcome);
    return outcome;
  } catch (...) {
    forget();
    promise.set_exception(std::current_exception());
    throw;
  }
}

Outcome Registry::make(const Config& config, const std::string& key, int threads) {
  Maker maker{backend_, counters_,      cache_.get(), gpu_of(config),
              threads,  plan_options(), &load_mutex_};
  std::vector<BucketPlan> plans = plan_buckets(config, maker.gpu, options_.max_buckets, maker.plan);
  if (options_.miss != MissPolicy::compile) {
    const CacheOnly stored(*backend_);
    try {
      return {make_record(maker, stored, key, plans), Provenance::disk, Refusal::none};
    } catch (const Error&) {
      if (!stored.missed()) throw;
    }
    if (options_.miss == MissPolicy::fail) return {nullptr, {}, Refusal::miss};
    return make_baseline(config, std::move(maker), key, std::move(plans));
  }
  const auto record = make_record(maker, *backend_, key, plans);
  return {record, record->from_disk() ? Provenance::disk : Provenance::compiled, Refusal::none};
}

Outcome Registry::make_baseline(const Config& config, Maker maker, const std::string& key,
                                std::vector<BucketPlan> wanted) {
  Config plain = config;
  plain.plan = Json{{"dataflow", as_scalar(config.problem) != nullptr ? "forms" : "simt"}};
  plain.access_counts.reset();
  Maker by_rules = maker;
  by_rules.plan = {.chooser = Chooser::rules};
  std::vector<BucketPlan> plans =
      plan_buckets(plain, maker.gpu, options_.max_buckets, by_rules.plan, wanted);
  for (BucketPlan& each : plans) {
    each.from = {Rung::rules, "the baseline, until the wanted kernel is there"};
  }
  const auto record = make_record(by_rules, *backend_, key, plans, wanted);
  later([this, maker = std::move(maker), key, wanted = std::move(wanted),
         record](const std::stop_token& stop) {
    try {
      Maker stoppable = maker;
      stoppable.stop = stop;
      record->better = make_record(stoppable, *backend_, key, wanted);
      record->now.store(record->better.get(), std::memory_order_release);
    } catch (const std::exception& error) {  // the baseline stays, and its description says why
      Json json = parse_json(record->description, "description");
      json["failed"] = error.what();
      record->without_better = dump_description(json);
      record->failed.store(&record->without_better, std::memory_order_release);
    }
  });
  return {record, Provenance::baseline, Refusal::none};
}

std::vector<BucketPlan> Registry::enumerate(std::string_view text, std::int64_t least,
                                            std::int64_t most) const {
  const Config config = config_of(text, "config");
  if (least < 1 || most < least || most > size_of(config.problem)) {
    throw Error(ErrorKind::bad_input,
                fmt::format("enumerate: {} to {} is no range within the 1 to {} of the config",
                            least, most, size_of(config.problem)));
  }
  std::vector<BucketPlan> all =
      plan_buckets(config, gpu_of(config), options_.max_buckets, plan_options());
  const auto at = [&](std::int64_t size) {
    return all.begin() + static_cast<std::ptrdiff_t>(bucket_index(all, size));
  };
  return {std::make_move_iterator(at(least)), std::make_move_iterator(at(most) + 1)};
}

void Registry::later(Task task) {
  const std::lock_guard lock(queue_mutex_);
  queue_.push_back(std::move(task));
  if (!worker_.joinable()) {
    worker_ = std::jthread([this](const std::stop_token& stop) { work(stop); });
  }
  queued_.notify_one();
}

void Registry::work(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    Task task;
    {
      std::unique_lock lock(queue_mutex_);
      // With an end: the endless wait needs libstdc++ of GCC 12, and wheels run with that of
      // GCC 11.
      while (!queued_.wait_for(lock, stop, std::chrono::hours(1),
                               [this] { return !queue_.empty(); })) {
        if (stop.stop_requested()) return;
      }
      task = std::move(queue_.front());
      queue_.pop_front();
    }
    try {
      task(stop);
    } catch (const std::exception&) {  // no memory to say why: the baseline stays
    }
  }
}

}  // namespace vqgen::library
