// The codebook cache's seam: load, switch, access (VQ-LLM, section V). A Codebook holds the
// codebooks of kUnits consecutive units at one level; ops know units, stages and codes, and never
// where an entry stands.
//
//   switch_to(unit)           bind to units [unit, unit + kUnits); true where load() has to follow
//   load()                    fetch what the level keeps near; all threads, sync_block before
//   access decode(value, u, code)    value[] = sum over stages s of scale(u, s) * entry(u, s,
//   code(s))
//
// Level kGlobal reads entries where they are. Level kShared keeps them all in shared memory.
#pragma once

#include <vq/args/quantized.h>
#include <vq/layout/format.h>
#include <vq/codebook/entry.cuh>

namespace vq {

// `Format` says FormatConfig config(), constexpr, and where in shared memory the block keeps
// entries and scales (layout/*.h): u8* shared_entries(), u8* shared_scales(). These are functions
// of constants, not pointers kept in members: from kept pointers NVVM 13.0 derived undefined
// addresses, and dropped the code that used them.
template <class Format, Element kElement, int kUnits, int kThreads>
class Codebook {
 public:
  static constexpr int kVectorSize = Format::config().vector_size;
  static constexpr int kIndexBits = Format::config().index_bits;
  static constexpr int kResiduals = Format::config().residuals;
  static constexpr bool kScales = Format::config().stage_scales;
  static constexpr Level kLevel = Format::config().level;
  using Words = typename EntryWords<kVectorSize>::type;
  static constexpr i64 kUnitEntries = i64{kResiduals} << kIndexBits;

  // `units` is the number of units that the tensor has.
  VQ_DEVICE Codebook(const QuantizedArgs& args, i64 units)
      : global_(reinterpret_cast<const Words*>(args.codebooks)),
        global_scales_(args.scales),
        units_(units) {}

  VQ_DEVICE bool switch_to(i64 unit) {
    if (unit == unit_) return false;
    unit_ = unit;
    return kLevel == Level::kShared || kScales;
  }

  VQ_DEVICE void load() {
    const i64 held = units_ - unit_ < kUnits ? units_ - unit_ : i64{kUnits};
    if constexpr (kLevel == Level::kShared) {
      const Words* from = global_ + unit_ * kUnitEntries;
      for (i64 i = thread_index(); i < held * kUnitEntries; i += kThreads) {
        store_shared(entries() + i, load_global(from + i));
      }
    }
    if constexpr (kScales) {
      for (int i = thread_index(); i < held * kResiduals; i += kThreads) {
        store_shared(scales() + i, load_global(global_scales_ + unit_ * kResiduals + i));
      }
    }
  }

  // `u` counts from the bound unit; code(stage) gives the code.
  template <class Code>
  VQ_DEVICE void decode(float (&value)[kVectorSize], i64 u, Code code) const {
    VQ_UNROLL
    for (int i = 0; i < kVectorSize; ++i) value[i] = 0.0f;
    VQ_UNROLL
    for (int stage = 0; stage < kResiduals; ++stage) {
      float scale = 1.0f;
      if constexpr (kScales) scale = load_shared(scales() + u * kResiduals + stage);
      add_entry<kElement>(value, access(u, stage, code(stage)), scale);
    }
  }

 private:
  VQ_DEVICE static Words* entries() { return reinterpret_cast<Words*>(Format::shared_entries()); }
  VQ_DEVICE static float* scales() { return reinterpret_cast<float*>(Format::shared_scales()); }

  VQ_DEVICE Words access(i64 u, int stage, u32 code) const {
    const i64 index = ((u * kResiduals + stage) << kIndexBits) + code;
    if constexpr (kLevel == Level::kShared) return load_shared(entries() + index);
    return load_global(global_ + unit_ * kUnitEntries + index);
  }

  const Words* global_;
  const float* global_scales_;
  i64 units_;
  i64 unit_ = -1;
};

}  // namespace vq
