#include "runtime/tuning/sweep/sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <numeric>

#include "core/files/digest.h"

namespace vqgen {
namespace {

constexpr int kMostShards = 65536;

// A whole number in digits alone, at most kMostShards.
std::optional<int> shard_number(std::string_view text) {
  if (text.empty() || text.find_first_not_of("0123456789") != std::string_view::npos) return {};
  int value = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (fault != std::errc() || value > kMostShards) return {};
  return value;
}

constexpr const char* kRemedy = "give --shard I/N";

int number_of(const char* name, const std::string& text) {
  const std::optional<int> value = shard_number(text);
  if (!value) {
    throw Error(ErrorKind::bad_input, fmt::format("{}: '{}' is no number from 0 to {}; {}", name,
                                                  text, kMostShards, kRemedy));
  }
  return *value;
}

// A rank and the number of ranks; nullopt if neither is set.
std::optional<Shard> pair(const ReadVariable& variable, const char* rank_name,
                          const char* size_name) {
  const std::optional<std::string> rank = variable(rank_name), size = variable(size_name);
  if (!rank && !size) return std::nullopt;
  if (!rank || !size) {
    throw Error(ErrorKind::bad_input,
                fmt::format("{} is set without {}; set both, or {}", rank ? rank_name : size_name,
                            rank ? size_name : rank_name, kRemedy));
  }
  const Shard shard{number_of(rank_name, *rank), number_of(size_name, *size)};
  if (shard.index >= shard.count) {
    throw Error(ErrorKind::bad_input, fmt::format("{} {} is not below {} {}; {}", rank_name,
                                                  shard.index, size_name, shard.count, kRemedy));
  }
  return shard;
}

std::optional<Shard> array_task(const ReadVariable& variable) {
  const auto task = pair(variable, "SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT");
  if (!task) return task;
  const auto bound = [&](const char* name) { return number_of(name, variable(name).value_or("")); };
  const int least = bound("SLURM_ARRAY_TASK_MIN");
  const int most = bound("SLURM_ARRAY_TASK_MAX");
  if (least != 0 || most != task->count - 1) {
    throw Error(ErrorKind::bad_input,
                fmt::format("the Slurm array has {} tasks from {} to {}, not all from 0 on; submit "
                            "--array=0-{}, or {}",
                            task->count, least, most, most, kRemedy));
  }
  return task;
}

// The rank within the launcher's job, or within one task of a Slurm array.
std::optional<LauncherShard> rank_of(const ReadVariable& variable) {
  const auto told = [](const Shard& shard, const char* reason) {
    return LauncherShard{shard, fmt::format(fmt::runtime(reason), shard.index, shard.count)};
  };
  if (const auto shard = pair(variable, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")) {
    return told(*shard, "rank {} of Open MPI's {}");
  }
  if (const auto shard = pair(variable, "PMI_RANK", "PMI_SIZE")) {
    return told(*shard, "rank {} of PMI's {}");
  }
  // A batch script always has a SLURM_PROCID of 0; only srun's processes know their number.
  if (!variable("SLURM_STEP_NUM_TASKS")) return std::nullopt;
  return told(*pair(variable, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
              "process {} of a Slurm step of {}");
}

double arithmetic(const AttentionDecode& op) {
  return 1.0 * op.shape.batch * op.shape.query_heads * (op.shape.head_dim + op.shape.value_dim()) *
         static_cast<double>(op.shape.tokens);
}
double arithmetic(const KvAppend& op) {
  const double rows = 1.0 * op.shape.batch * op.shape.kv_heads * op.shape.new_tokens;
  const auto of = [&](const VqFormat& format, int channels) {
    return rows * channels * format.num_codebooks * format.entries();
  };
  return of(op.keys, op.shape.head_dim) + of(op.values, op.shape.value_dim());
}
double arithmetic(const KvDequantize& op) {
  const double rows =
      1.0 * op.shape.batch * op.shape.kv_heads * static_cast<double>(op.shape.tokens);
  return rows * (op.shape.head_dim * op.keys.num_codebooks +
                 op.shape.value_dim() * op.values.num_codebooks);
}
double arithmetic(const WeightDequantize& op) { return op.elements() * op.weights.num_codebooks; }
double arithmetic(const ScalarMatrix& op) { return op.elements(); }

double arithmetic(const AttentionMerge& op) { return op.bytes() / 2; }
double arithmetic(const Linear& op) {
  return 1.0 * op.shape.call_rows() * static_cast<double>(op.shape.out_features) *
         static_cast<double>(op.shape.in_features);
}

}  // namespace

Shard read_shard(const std::string& text, const std::string& what) {
  const std::size_t slash = text.find('/');
  const auto index = shard_number(std::string_view(text).substr(0, slash));
  const auto count = slash == std::string::npos
                         ? std::nullopt
                         : shard_number(std::string_view(text).substr(slash + 1));
  if (!index || !count) {
    throw Error(ErrorKind::bad_input,
                fmt::format("{}: '{}' is no shard; write I/N, such as 0/4, with N up to {}", what,
                            text, kMostShards));
  }
  if (*index >= *count) {
    throw Error(ErrorKind::bad_input,
                fmt::format("{}: '{}': shards count from 0; the last of {} is {}/{}", what, text,
                            *count, std::max(*count - 1, 0), *count));
  }
  return {*index, *count};
}

std::optional<LauncherShard> find_shard(const ReadVariable& variable) {
  const std::optional<Shard> task = array_task(variable);
  std::optional<LauncherShard> rank = rank_of(variable);
  if (!task) return rank;
  const std::string reason =
      fmt::format("task {} of a Slurm array of {}", task->index, task->count);
  if (!rank) return LauncherShard{*task, reason};
  const Shard inner = rank->shard;
  if (task->count > kMostShards / inner.count) {
    throw Error(ErrorKind::bad_input, fmt::format("{}, {}: more than {} shards; {}", rank->reason,
                                                  reason, kMostShards, kRemedy));
  }
  return LauncherShard{{task->index * inner.count + inner.index, task->count * inner.count},
                       rank->reason + ", " + reason};
}

LauncherShard choose_shard(const std::string& flag, const ReadVariable& variable) {
  if (flag.empty()) return {{}, "all of it"};
  if (flag != "auto") return {read_shard(flag, "--shard"), "named by --shard"};
  if (const auto found = find_shard(variable)) return *found;
  throw Error(ErrorKind::bad_input,
              "--shard auto: no launcher: none of SLURM_ARRAY_TASK_ID, SLURM_STEP_NUM_TASKS, "
              "OMPI_COMM_WORLD_RANK and PMI_RANK is set; give --shard I/N");
}

double arithmetic_of(const Problem& problem) {
  return std::visit([](const auto& op) { return arithmetic(op); }, problem);
}

std::vector<std::size_t> items_of(const Work& work, const Shard& shard) {
  std::vector<std::size_t> order(work.items.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return arithmetic_of(work.items[a].problem) > arithmetic_of(work.items[b].problem);
  });
  const auto count = static_cast<std::size_t>(shard.count);
  const auto index = static_cast<std::size_t>(shard.index);
  std::vector<std::size_t> mine;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::size_t turn = i % count;
    const bool back = i / count % 2 == 1;
    if ((back ? count - 1 - turn : turn) == index) mine.push_back(order[i]);
  }
  std::sort(mine.begin(), mine.end());
  return mine;
}

std::filesystem::path item_journal(const std::filesystem::path& folder, const std::string& label,
                                   const std::string& key) {
  constexpr std::size_t kLongest = 80;  // bytes of a file name; systems allow 255
  std::string name = label.substr(0, kLongest);
  for (char& c : name) {
    const bool safe = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (!safe && c != '.' && c != '=' && c != '_') c = '-';
  }
  const std::string digest = Digest().add(key).hex();
  return folder / fmt::format("{}-{}.journal", name, digest.substr(0, 12));
}

}  // namespace vqgen
