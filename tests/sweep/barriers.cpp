#include "tests/sweep/barriers.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <vector>

#include "core/profiles.h"
#include "runtime/backend/host/host_backend.h"
#include "tests/message_of.h"
#include "tests/sweep/harness.h"
#include "tests/sweep/plans.h"

namespace vqgen::test {
namespace {

// A place of the text, and the call there.
struct Barrier {
  std::size_t at;
  std::string call;
};

// The variable that a kernel of numbered() reads when it is loaded.
constexpr const char* kLeftOut = "VQGEN_TEST_LEFT_OUT";

// The kernel with its barriers numbered from 1. If kLeftOut is a number when it is loaded, it omits
// that barrier; with 0, none. So one compilation serves all.
KernelSource numbered(KernelSource right, const std::vector<Barrier>& barriers) {
  std::vector<std::size_t> order(barriers.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return barriers[a].at > barriers[b].at; });
  for (const std::size_t i : order) {
    const std::string call = fmt::format("if (left_out != {}) {}", i + 1, barriers[i].call);
    right.text.replace(barriers[i].at, barriers[i].call.size(), call);
  }
  right.text.insert(0, fmt::format("#include <cstdlib>\n"
                                   "static const int left_out = std::atoi(std::getenv(\"{}\"));\n",
                                   kLeftOut));
  return right;
}

// Runs over data that fills several tiles, chunks and units. Throws Error(device) if there is a
// race.
void run(Backend& backend, const KernelSource& source, const Problem& problem, const Plan& plan,
         std::size_t left_out = 0) {
  ASSERT_EQ(::setenv(kLeftOut, std::to_string(left_out).c_str(), 1), 0);
  const auto kernel = backend.load(backend.compile(source), source);
  if (const auto* op = std::get_if<AttentionDecode>(&problem)) {
    execute(backend, *kernel, source, *op, plan, make_attention_data(*op, HardInput{.seed = 3}));
  } else if (const auto* append = std::get_if<KvAppend>(&problem)) {
    execute(backend, *kernel, source, *append, plan,
            make_append_data(*append, HardInput{.seed = 3}));
  } else if (const auto* decode = std::get_if<KvDequantize>(&problem)) {
    execute(backend, *kernel, source, *decode, plan,
            make_dequantize_data(*decode, HardInput{.seed = 3}));
  } else if (const auto* merge = std::get_if<AttentionMerge>(&problem)) {
    MergeData data = make_merge_data(*merge, HardInput{.seed = 3});
    data.in_place = 1;
    execute(backend, *kernel, source, *merge, plan, data);
  } else if (const auto* rows = std::get_if<WeightDequantize>(&problem)) {
    execute(backend, *kernel, source, *rows, plan,
            make_weight_rows_data(*rows, HardInput{.seed = 3}));
  } else {
    const Linear& linear = *as_linear(problem);
    execute(backend, *kernel, source, linear, plan, make_linear_data(linear, HardInput{.seed = 3}));
  }
}

}  // namespace

void expect_every_barrier_needed(const Problem& problem, const Plan& plan, std::size_t barriers,
                                 const std::string& unseen,
                                 const std::pair<std::string, std::string>& change) {
  const auto backend = test_host({.check_races = true});
  KernelSource right = generate(problem, plan, find_gpu("h200"), Machine::host, {});
  if (!change.first.empty()) {
    const KernelSource changed = with_fault(right, change.first, change.second);
    ASSERT_NE(changed.text, right.text);
    right = changed;
  }

  // Parts of the text that only some plans run.
  struct Part {
    std::size_t begin, end;
    bool runs;
  };
  std::vector<Part> parts;
  const auto add_part = [&](const char* begin, const char* end, bool stands, bool runs) {
    const std::size_t from = right.text.find(begin);
    const std::size_t to = right.text.find(end, from);
    ASSERT_EQ(to != std::string::npos, stands) << begin;
    if (to != std::string::npos) parts.push_back({from, to, runs});
  };
  const char* const of_class = "\n};\n";
  const char* const of_function = "\n}\n";
  const char* const of_member = "\n  }\n";
  const bool linear = as_linear(problem) != nullptr;
  const auto* attention = std::get_if<AttentionDecode>(&problem);
  const auto* append = std::get_if<KvAppend>(&problem);
  const bool clusters = right.text.find("VQ_KERNEL_AHEAD_CLUSTERS(gem") != std::string::npos;
  const bool in_teams =
      std::any_of(right.entries.begin(), right.entries.end(), [](const KernelEntry& each) {
        return each.shared_bytes > 0 && each.name.find("combine") != std::string::npos;
      });
  add_part("VQ_DEVICE bool is_last_of", of_function, attention != nullptr || linear,
           merges_by_last_block(plan));
  const Linear* const product = as_linear(problem);
  const bool ends = product != nullptr && !facts(*product).epilogue.none();
  add_part("struct BlockSums {", of_class, linear, clusters || ends);
  add_part("static void merge_elements(", of_member, linear, ends);
  add_part("static void merge_quads(", of_member, linear, !ends);
  add_part("VQ_DEVICE void attention_combine", of_function, attention != nullptr, in_teams);

  const auto [cache, basis] = std::visit(
      [](const auto& op) {
        if constexpr (requires { op.keys; }) {
          return std::pair(true, has_basis(op.keys) || has_basis(op.values));
        }
        return std::pair(false, false);
      },
      problem);
  const auto has_kernel = [&right](const char* name) {
    return std::any_of(right.entries.begin(), right.entries.end(), [name](const KernelEntry& each) {
      return each.name.find(name) != std::string::npos;
    });
  };
  const bool to_basis = has_kernel("to_basis");
  const bool stands = cache && (attention == nullptr || to_basis || has_kernel("from_basis"));
  add_part("class BasisBlock {", of_class, stands, basis);

  const auto* fragments = std::get_if<AttentionMma>(&plan);
  const bool grouped = (append != nullptr && append->keys.group_tokens > 0) ||
                       (attention != nullptr && attention->keys.group_tokens > 0);
  const bool ring = fragments != nullptr && fragments->code_stages > 0;
  add_part(append != nullptr ? "class AppendGroups" : "class GroupQuery {", of_class,
           append != nullptr || fragments != nullptr, grouped);
  add_part("class RingCodes {", of_class, fragments != nullptr, ring);
  add_part("static void await_copy()", of_member, fragments != nullptr, !ring);
  // Another test covers this function.
  add_part("void begin_first() const {", of_member,
           std::holds_alternative<AttentionHistogram>(plan), false);

  if (const auto* products = std::get_if<AppendGemm>(&plan)) {
    const bool groups = products->warpgroups == 1;
    add_part("class MadeRing {", of_class, true, groups);
    add_part("class BulkRing {", of_class, true, groups);
    add_part("static float estimate_by_warps(", of_member, true, !groups);
  }
  if (const auto* bytes = std::get_if<AttentionInt8Mma>(&plan)) {
    const bool raw = attention->raw_slots() > 0 || attention->shape.query_tokens > 1;
    add_part("if (!work_.take(args_, piece)) return;", "\n      });\n", true,
             bytes->schedule == Schedule::balanced);
    add_part("class RawTiles {", of_class, true, raw);
    add_part("class RotatedQuery {", of_class, true, attention->keys.klt && !to_basis);
    add_part("class RotatedOutput {", of_class, true, bytes->fused_basis == 1);
    add_part("VQ_DEVICE static void add_raw(", of_member, true,
             raw && attention->values.in_parts());
  }
  if (const auto* groups = std::get_if<LinearInt8Wgmma>(&plan)) {
    add_part("class BulkRing {", of_class, true, groups->prepack_x == 1);
    add_part("class StagedRow {", of_class, true, groups->prepack_x == 1);
  }
  if (const auto* bytes = std::get_if<LinearInt8Mma>(&plan)) {
    const bool making = bytes->producer_warps > 0;
    add_part("class MadeRing {", of_class, true, making);
    add_part("class BulkRing {", of_class, true, bytes->prepack_x == 1);
    add_part("void make_first() const {", of_member, true, making);
    add_part("for (i64 first = Work::begin(); first < Work::end();", "x_.ring().await();", true,
             !making);
  }

  const auto* rows = std::get_if<LinearWgmmaLargeM>(&plan);
  if (rows != nullptr || std::holds_alternative<LinearWgmma>(plan)) {
    add_part("void add_groups() {", of_member, true,
             rows != nullptr && rows->groups_along_columns > 1);
  }
  if (rows != nullptr) add_part("class XRing {", of_class, true, rows->prepack_x == 1);

  std::vector<Barrier> found;
  for (const std::string call :
       {"sync_block();", "sync_warp();", "copy_async_wait<kStages - 1>();",
        "warpgroup_wait<kSets - 1>();", "sync_cluster();", "leave_cluster();"}) {
    if (call == unseen) continue;
    for (std::size_t at = right.text.find(call); at != std::string::npos;
         at = right.text.find(call, at + 1)) {
      if (right.text[right.text.find_last_not_of(' ', at - 1)] != '\n') continue;
      if (std::any_of(parts.begin(), parts.end(), [at](const Part& part) {
            return !part.runs && part.begin < at && at < part.end;
          })) {
        continue;
      }
      found.push_back({at, call});
    }
  }
  EXPECT_EQ(found.size(), barriers);

  const KernelSource source = numbered(right, found);
  EXPECT_NO_THROW(run(*backend, source, problem, plan));
  std::vector<std::size_t> all(found.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  for (const std::size_t i : a_third(all)) {
    const std::string what = right.text.substr(found[i].at, 200) + " left out";
    try {
      run(*backend, source, problem, plan, i + 1);
      ADD_FAILURE() << "no report with " << what;
    } catch (const Error& error) {
      const std::string said = error.what();
      const auto says = [&](const char* words) { return said.find(words) != std::string::npos; };
      // A block may read a peer's memory before the peer has begun or after it has ended.
      const bool of_peer = says("load_peer of 16 bytes from block") &&
                           (says("may not have begun") || says("has ended"));
      EXPECT_TRUE(says(": race at ") || (clusters && of_peer)) << said << " with " << what;
    }
  }
}

std::string report_of(const KernelSource& right, const Problem& problem, const Plan& plan,
                      const std::string& place, const std::string& instead, ErrorKind kind) {
  const KernelSource wrong = with_fault(right, place, instead);
  if (wrong.text == right.text) return "";
  const auto backend = test_host({.check_races = true});
  return message_of([&] { run(*backend, wrong, problem, plan); }, kind);
}

}  // namespace vqgen::test
