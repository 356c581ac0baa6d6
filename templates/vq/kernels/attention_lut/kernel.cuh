// attention_decode by score tables (VecInfer Alg. 1; MILLION): a block computes the inner products
// of the query and all key entries once (score_table.cuh), and a token's score is a sum of lookups
// by its key codes: no key is decoded, and a lookup serves several heads. Values are decoded as in
// simt (attention_tiles.cuh).
//
// 8 lanes share a token, each with the codes of its own run of sub-vectors, kTokens tokens at a
// time; their sums meet by a transposing reduction, 7 shuffles for 8 sums.
#pragma once

#include <vq/kernels/attention_lut/plan.h>
#include <vq/kernels/attention_lut/score_table.cuh>
#include <vq/ops/attention_query.cuh>
#include <vq/ops/attention_tiles.cuh>
#include <vq/transposing_sum.cuh>

namespace vq {

template <class Plan>
class KeyTables {
 public:
  using Work = AttentionWork<Plan>;
  using Table = ScoreTable<Plan>;
  using Rows = typename Table::Rows;
  static constexpr AttentionPart kPart = AttentionPart::kWhole;
  static constexpr auto kConfig = Plan::config();
  static constexpr int kWords = Rows::kWords;
  static constexpr int kVectorSize = Rows::kVectorSize;
  static constexpr int kLanes = kTableLanes;
  static constexpr int kSums = kLanes;  // reduced at once
  static constexpr int kTokens = kSums / Table::kHeads;
  static constexpr int kWarpTokens = 32 / kLanes * kTokens;
  // The codes of a lane's run are read as whole words if they are such, or as part of one.
  static constexpr int kRunBits = Table::kRun * Rows::kResiduals * Rows::kBits;
  static constexpr bool kOneWord = 32 % kRunBits == 0;
  static constexpr bool kByWords =
      kOneWord || (kRunBits % 32 == 0 && kRunBits <= 256 && Table::kPhaseGroups == 1);

  VQ_DEVICE KeyTables(const AttentionDecodeArgs& args, const Work& work)
      : args_(args), work_(work), book_(args.keys, Rows::units()) {}

  VQ_DEVICE void prepare() {
    book_.switch_to(Rows::first_unit(work_.kv_head, 0));
    book_.load();  // scales
    QueryRows<Plan>(args_, work_).store(score_scale(args_), part(at().query), part(at().raw_query));
    sync_block();
    Table::fill(book_, part(at().query));
  }
  VQ_DEVICE void stage(int first, int count, u32* to) const {
    Rows::stage(args_.keys, work_, 0, first, count, to);
  }

  VQ_DEVICE void score(int first, int count, const u32* keys, float* scores) const {
    sync_block();
    const int group = token_set() * kTokens;
    for (int base = warp() * kWarpTokens; base < count;
         base += kConfig.threads / 32 * kWarpTokens) {  // whole warps: shuffles below
      float sums[Table::kPlanes][kSums] = {};
      VQ_UNROLL
      for (int t = 0; t < kTokens; ++t) {
        // The last one again where there is no such token: a branch would order the lookups.
        const int token = base + group + t < count ? base + group + t : count - 1;
        if (reads_raw(kConfig) && work_.is_raw(first + token)) {
          add_raw(work_.raw_key(args_, first + token), t, sums);
        } else {
          add_codes(keys + token * kWords, t, sums);
        }
      }
      VQ_UNROLL
      for (int plane = 0; plane < Table::kPlanes; ++plane) {
        const float sum = transposing_sum<kSums, kLanes>(sums[plane]);
        const int place = place_in_set();
        const int token = base + group + place / Table::kHeads;
        const int head = plane * Table::kHeads + place % Table::kHeads;
        if (place < kSums && token < count && head < kConfig.heads_per_block) {
          store_shared(scores + head * kConfig.tile_tokens + token, sum);
        }
      }
    }
  }

 private:
  VQ_HD static constexpr AttentionTilesShared at() { return shared_layout(kConfig, kPart); }
  VQ_DEVICE static float* part(i64 offset) { return shared_part<float>(offset); }

  // Lanes that share tokens: which of the warp's sets of kLanes, and which lane of the set.
  VQ_DEVICE static int token_set() { return lane() / kLanes; }
  VQ_DEVICE static int place_in_set() { return lane() % kLanes; }

  // This lane's part of the scores of token t of its group.
  VQ_DEVICE static void add_codes(const u32* row, int t, float (&sums)[Table::kPlanes][kSums]) {
    // Groups that one access serves begin with other sub-vectors of their runs.
    const int turn = token_set() % Table::kPhaseGroups;
    const int first = place_in_set() * Table::kRun;
    u32 words[kByWords ? ceil_div(kRunBits, 32) : 1];
    if constexpr (kByWords) {
      VQ_UNROLL
      for (int w = 0; w < ceil_div(kRunBits, 32); ++w) {
        words[w] = load_shared(row + place_in_set() * kRunBits / 32 + w);
      }
      if constexpr (kRunBits < 32) words[0] >>= place_in_set() * kRunBits % 32;
    }
    VQ_UNROLL
    for (int j = 0; j < Table::kRun; ++j) {
      const int in_run = (j + turn) % Table::kRun;
      const int s = first + in_run;
      if (Table::kSubVectors < Table::kColumns && s >= Table::kSubVectors) continue;
      VQ_UNROLL
      for (int stage = 0; stage < Rows::kResiduals; ++stage) {
        u32 code;
        if constexpr (kOneWord) {
          constexpr u32 kMask = (1u << Rows::kBits) - 1u;
          code = words[0] >> ((in_run * Rows::kResiduals + stage) * Rows::kBits) & kMask;
        } else if constexpr (kByWords) {
          code = read_code<Rows::kBits>(words, j * Rows::kResiduals + stage,
                                        [](const u32* word) { return *word; });
        } else {
          code = Rows::code(row, 0, s, stage);
        }
        VQ_UNROLL
        for (int plane = 0; plane < Table::kPlanes; ++plane) {
          Table::add(sums[plane] + t * Table::kHeads, plane, stage, code, Table::column_of(s));
        }
      }
    }
  }

  // add() for a raw token, element by element.
  VQ_DEVICE static void add_raw(const u16* row, int t, float (&sums)[Table::kPlanes][kSums]) {
    for (int j = 0; j < Table::kRun; ++j) {
      const int s = place_in_set() * Table::kRun + j;
      if (s >= Table::kSubVectors) continue;
      float value[kVectorSize];
      Rows::load_raw(row, 0, s, value);
      VQ_UNROLL
      for (int head = 0; head < kConfig.heads_per_block; ++head) {
        const float* q = part(at().raw_query) + head * kConfig.head_dim + s * kVectorSize;
        float total = 0.0f;
        VQ_UNROLL
        for (int i = 0; i < kVectorSize; ++i) total += load_shared(q + i) * value[i];
        sums[head / Table::kHeads][t * Table::kHeads + head % Table::kHeads] += total;
      }
    }
  }

  const AttentionDecodeArgs& args_;
  const Work work_;
  typename Table::Book book_;
};

template <class Plan>
VQ_DEVICE void attention_lut(const AttentionDecodeArgs& args) {
  AttentionWork<Plan>::of_block(args, 1, [&](const AttentionWork<Plan>& work) {
    AttentionTiles<Plan, KeyTables<Plan>>(args, work, 0).run();
  });
}

}  // namespace vq
