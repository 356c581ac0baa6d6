#include "tests/sweep/barriers.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/profiles.h"
#include "runtime/backend/host/host_backend.h"
#include "tests/message_of.h"
#include "tests/sweep/harness.h"
#include "tests/sweep/plans.h"

namespace vqgen::test {
namespace {

// Runs over data that fills several tiles, chunks and units. Error(device) where there is a race.
void run(Backend& backend, const KernelSource& source, const Problem& problem, const Plan& plan) {
  const auto kernel = backend.load(backend.compile(source), source);
  if (const auto* op = std::get_if<AttentionDecode>(&problem)) {
    execute(backend, *kernel, source, *op, plan, make_attention_data(*op, HardInput{.seed = 3}));
  } else if (const auto* append = std::get_if<KvAppend>(&problem)) {
    execute(backend, *kernel, source, *append, plan,
            make_append_data(*append, HardInput{.seed = 3}));
  } else if (const auto* decode = std::get_if<KvDecode>(&problem)) {
    execute(backend, *kernel, source, *decode, plan,
            make_decode_data(*decode, HardInput{.seed = 3}));
  } else if (const auto* merge = std::get_if<AttentionMerge>(&problem)) {
    MergeData data = make_merge_data(*merge, HardInput{.seed = 3});
    data.in_place = 1;
    execute(backend, *kernel, source, *merge, plan, data);
  } else {
    const Linear& linear = *as_linear(problem);
    execute(backend, *kernel, source, linear, plan, make_linear_data(linear, HardInput{.seed = 3}));
  }
}

}  // namespace

void expect_every_barrier_needed(const Problem& problem, const Plan& plan, std::size_t barriers,
                                 const std::string& unseen,
                                 const std::pair<std::string, std::string>& change) {
  const auto backend = make_host_backend({.check_races = true, .optimize = false});
  KernelSource right = generate(problem, plan, find_gpu("h200"), Machine::host, {});
  if (!change.first.empty()) {
    const KernelSource changed = with_fault(right, change.first, change.second);
    ASSERT_NE(changed.text, right.text);
    right = changed;
  }
  EXPECT_NO_THROW(run(*backend, right, problem, plan));

  // Only plans whose last block merges have these run.
  const std::size_t merging = right.text.find("VQ_DEVICE bool is_last_of");
  const std::size_t merging_end = right.text.find("\n}\n", merging);
  const bool merges = merges_by_last_block(plan);
  const bool splits =
      std::holds_alternative<AttentionDecode>(problem) || as_linear(problem) != nullptr;
  ASSERT_EQ(merging_end != std::string::npos, splits);

  // Only those whose blocks form clusters these.
  const std::size_t sums = right.text.find("struct ClusterSums {");
  const std::size_t sums_end = right.text.find("\n};\n", sums);
  const bool clusters = right.text.find("VQ_KERNEL_AHEAD_CLUSTERS(gem") != std::string::npos;
  ASSERT_EQ(sums_end != std::string::npos, as_linear(problem) != nullptr);

  // And only kernels that merge in teams these.
  const std::size_t teams = right.text.find("VQ_DEVICE void attention_combine");
  const std::size_t teams_end = right.text.find("\n}\n", teams);
  const bool in_teams =
      std::any_of(right.entries.begin(), right.entries.end(), [](const KernelEntry& each) {
        return each.shared_bytes > 0 && each.name.find("combine") != std::string::npos;
      });
  ASSERT_EQ(teams_end != std::string::npos, std::holds_alternative<AttentionDecode>(problem));

  // And only formats with groups of tokens these.
  const auto* append = std::get_if<KvAppend>(&problem);
  const auto* attention = std::get_if<AttentionDecode>(&problem);
  const std::size_t groups =
      right.text.find(append != nullptr ? "class AppendGroups" : "class GroupQuery {");
  const std::size_t groups_end = right.text.find("\n};\n", groups);
  const bool grouped = (append != nullptr && append->keys.group_tokens > 0) ||
                       (attention != nullptr && attention->keys.group_tokens > 0);
  ASSERT_EQ(groups_end != std::string::npos,
            append != nullptr || std::holds_alternative<AttentionFragments>(plan));

  // And only kernels with a ring of codes these, or those without.
  const auto* fragments = std::get_if<AttentionFragments>(&plan);
  const bool ring = fragments != nullptr && fragments->code_stages > 1;
  const std::size_t rings = right.text.find("class RingCodes {");
  const std::size_t rings_end = right.text.find("\n};\n", rings);
  const std::size_t copied = right.text.find("static void await_copy()");
  const std::size_t copied_end = right.text.find("\n  }\n", copied);
  ASSERT_EQ(rings_end != std::string::npos, fragments != nullptr);
  ASSERT_EQ(copied_end != std::string::npos, fragments != nullptr);

  // And only plans with a field of their own these, and those without others.
  const auto* bytes = std::get_if<LinearBytes>(&plan);
  const bool making = bytes != nullptr && bytes->making_warps > 0;
  struct Part {
    std::size_t begin, end;
    bool runs;
  };
  std::vector<Part> parts;
  const auto add_part = [&](const char* begin, const char* end, bool runs) {
    const std::size_t from = right.text.find(begin);
    const std::size_t to = right.text.find(end, from);
    ASSERT_NE(to, std::string::npos) << begin;
    parts.push_back({from, to, runs});
  };
  if (std::holds_alternative<AttentionBins>(plan)) {  // which has a test of its own
    add_part("void begin_first() const {", "\n  }\n", false);
  }
  if (bytes != nullptr) {
    add_part("class MadeRing {", "\n};\n", making);
    add_part("class BulkRing {", "\n};\n", bytes->x_before == 1);
    add_part("void make_first() const {", "\n  }\n", making);
    add_part("for (i64 first = Work::begin(); first < Work::end();", "x_.ring().await();", !making);
  }

  std::size_t found = 0;
  for (const std::string call :
       {"sync_block();", "sync_warp();", "copy_async_wait<kStages - 1>();",
        "warpgroup_wait<kSets - 1>();", "sync_cluster();", "leave_cluster();"}) {
    if (call == unseen) continue;
    for (std::size_t at = right.text.find(call); at != std::string::npos;
         at = right.text.find(call, at + 1)) {
      if (right.text[right.text.find_last_not_of(' ', at - 1)] != '\n') continue;
      if (!merges && merging < at && at < merging_end) continue;
      if (!clusters && sums < at && at < sums_end) continue;
      if (!in_teams && teams < at && at < teams_end) continue;
      if (!grouped && groups < at && at < groups_end) continue;
      if (!ring && rings < at && at < rings_end) continue;
      if (ring && copied < at && at < copied_end) continue;
      if (std::any_of(parts.begin(), parts.end(), [at](const Part& part) {
            return !part.runs && part.begin < at && at < part.end;
          })) {
        continue;
      }
      KernelSource wrong = right;
      wrong.text.erase(at, call.size());
      const std::string what = right.text.substr(at, 200) + " left out";
      ++found;
      try {
        run(*backend, wrong, problem, plan);
        ADD_FAILURE() << "no report with " << what;
      } catch (const Error& error) {
        const std::string said = error.what();
        const auto says = [&](const char* words) { return said.find(words) != std::string::npos; };
        // A block that reads a peer's memory before that has begun or behind its end.
        const bool of_peer = says("load_peer of 16 bytes from block") &&
                             (says("may not have begun") || says("has ended"));
        EXPECT_TRUE(says(": race at ") || (clusters && of_peer)) << said << " with " << what;
      }
    }
  }
  EXPECT_EQ(found, barriers);
}

std::string report_of(const KernelSource& right, const Problem& problem, const Plan& plan,
                      const std::string& place, const std::string& instead, ErrorKind kind) {
  const KernelSource wrong = with_fault(right, place, instead);
  if (wrong.text == right.text) return "";
  const auto backend = make_host_backend({.check_races = true, .optimize = false});
  return message_of([&] { run(*backend, wrong, problem, plan); }, kind);
}

}  // namespace vqgen::test
