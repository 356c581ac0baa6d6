// The codebook cache: load, switch, access (VQ-LLM, section V). A Codebook holds the codebooks of
// kUnits consecutive units; ops know units, stages and codes, but not where an entry is stored.
//
//   switch_to(unit)           bind to units [unit, unit + kUnits); true where load() has to follow
//   load()                    fetch what the levels keep near; all threads, sync_block before;
//                             also in two parts, begin_load() and finish_load(), and by
//                             asynchronous copies, begin() and finish()
//   add_stage(value, u, stage, code)    value[] += scale(u, stage) * entry(u, stage, code)
//   decode(value, u, code)    value[] = sum over stages s of scale(u, s) * entry(u, s, code(s))
//   entry(u, stage, code)     what one code stands for, unscaled: 16-bit elements in words
//   held(u, stage, code)      entry() in the levels' form: bytes of int8 entries
//
// Entries of more than 8 elements are in global memory alone and are read in pieces of 8: decode()
// and add_stage() take the piece's number, and value is its elements.
//
// Decoding (decoding.cuh) turns a code into words. The number of an entry decides its level
// (layout/format.h): registers, replicated shared, shared, global, hot entries first. An empty
// level vanishes at compile time, with its comparison.
#pragma once

#include <vq/args/quantized.h>
#include <vq/layout/format.h>
#include <vq/codebook/decoding.cuh>
#include <vq/codebook/entry.cuh>
#include <vq/codebook/group_factor.cuh>
#include <vq/codebook/levels.cuh>
#include <vq/codes.cuh>

namespace vq {

// `Format` says FormatConfig config() and CodebookShared shared(), both constexpr: offsets, not
// pointers kept in members, from which NVVM 13.0 derived undefined addresses and dropped the code
// that used them.
template <class Format, Element kElement, int kUnits, int kThreads>
class Codebook {
 public:
  static constexpr FormatConfig kFormat = Format::config();
  static constexpr int kVectorSize = piece_elements(kFormat);
  static constexpr int kEntryPieces = entry_pieces(kFormat);
  static constexpr int kResiduals = kFormat.num_codebooks;
  static constexpr bool kScales = kFormat.stage_scales;
  static constexpr int kEntries = entries(kFormat);
  static constexpr EntryRange kReplicated = replicated_range(kFormat);
  static constexpr EntryRange kShared = shared_range(kFormat);
  static constexpr int kRegisters = register_range(kFormat).end;
  using Words = EntryWords<kVectorSize>;
  using Decode = DecodingOf<Format, kElement>;
  using Held = EntryWords<held_bytes(kFormat) / 2>;
  using ReplicatedLevel =
      SharedLevel<Held, Format::shared().replicated, kResiduals, kReplicated.begin, kReplicated.end,
                  kFormat.placement.copies, kThreads>;
  using OnceLevel = SharedLevel<Held, Format::shared().shared, kResiduals, kShared.begin,
                                kShared.end, 1, kThreads>;

  // `units` is the number of units that the tensor has.
  VQ_DEVICE Codebook(const QuantizedArgs& args, i64 units)
      : global_(reinterpret_cast<const Words*>(args.codebooks)),
        global_scales_(args.scales),
        units_(units) {}

  VQ_DEVICE bool switch_to(i64 unit) {
    if (unit == unit_) return false;
    unit_ = unit;
    return kShared.end > 0 || kScales;
  }

  // `thread` counts the block's threads from any of them: codebooks that are fetched one after the
  // other begin with different ones.
  VQ_DEVICE void load(int thread = thread_index()) {
    registers_.load(held_units(), Fetch{*this});
    ReplicatedLevel::load(held_units(), thread, Fetch{*this});
    OnceLevel::load(held_units(), thread, Fetch{*this});
    load_scales();
  }

  // load() in two parts: a thread's first entries are in flight between them.
  struct Begun {
    Held replicated;
    Held once;
  };
  VQ_DEVICE Begun begin_load(int thread) const {
    return {ReplicatedLevel::begin(held_units(), thread, Fetch{*this}),
            OnceLevel::begin(held_units(), thread, Fetch{*this})};
  }
  VQ_DEVICE void finish_load(int thread, const Begun& begun) {
    registers_.load(held_units(), Fetch{*this});
    ReplicatedLevel::finish(held_units(), thread, begun.replicated, Fetch{*this});
    OnceLevel::finish(held_units(), thread, begun.once, Fetch{*this});
    load_scales();
  }

  // If a level holds whole codebooks as stored: copies pieces [begin, end) of 16 bytes, out of
  // kPieces, which land at a copy_async_wait. All threads, with `thread` as in load().
  static constexpr bool kIsCopy = stands_as_stored(kFormat);
  static constexpr int kPieces = kUnits * kEntries * static_cast<int>(sizeof(Words)) / 16;
  static_assert(kEntryPieces == 1 || (kShared.end == 0 && kReplicated.end == 0), "");
  VQ_DEVICE void copy(int begin, int end, int thread = thread_index()) const {
    static_assert(kIsCopy, "");
    const int all = held_units() * (kPieces / kUnits);
    const auto* const from = reinterpret_cast<const U32x4*>(global_at(0, 0, 0));
    for (int i = begin + thread; i < (end < all ? end : all); i += kThreads) {
      copy_constant_async(shared_part<U32x4>(Format::shared().shared) + i, from + i);
    }
    if (begin == 0) load_scales();
  }

  // begin_load() and finish_load() by bulk or asynchronous copies, if a thread has several entries
  // to fetch. A block that ends without finish() must wait for them.
  static constexpr bool kByCopies = kIsCopy && kUnits * kEntries > kThreads;
  VQ_DEVICE Begun begin(int thread) const {
    if constexpr (kByCopies) {
      copy(0, kPieces, thread);
      copy_async_commit();
      return {};
    } else {
      return begin_load(thread);
    }
  }
  VQ_DEVICE void finish(int thread, const Begun& begun) {
    if constexpr (kByCopies) {
      copy_async_wait<0>();
    } else {
      finish_load(thread, begun);
    }
  }

  // `u` counts from the bound unit; code(stage) gives the code.
  template <class Code>
  VQ_DEVICE void decode(float (&value)[kVectorSize], int u, Code code, int piece = 0) const {
    VQ_UNROLL
    for (int i = 0; i < kVectorSize; ++i) value[i] = 0.0f;
    if constexpr (kResiduals <= kUnrolledStages) {
      VQ_UNROLL
      for (int stage = 0; stage < kResiduals; ++stage) {
        add_stage(value, u, stage, code(stage), piece);
      }
    } else {  // texts of 36 stages take long to compile
      for (int stage = 0; stage < kResiduals; ++stage) {
        add_stage(value, u, stage, code(stage), piece);
      }
    }
  }

  // value[] += one stage's scaled entry.
  VQ_DEVICE void add_stage(float (&value)[kVectorSize], int u, int stage, u32 code,
                           int piece = 0) const {
    if constexpr (kEntryPieces > 1) {
      const Words* const entry = global_at(u, stage, static_cast<int>(code));
      add_entry<kElement>(value, load_constant(entry + piece), scale(u, stage));
    } else if constexpr (is_scalar(kFormat.decoder)) {
      Decode::add(value, held(u, stage, code), code);
    } else {
      add_entry<kElement>(value, entry(u, stage, code), scale(u, stage));
    }
  }

  VQ_DEVICE float scale(int u, int stage) const {
    if constexpr (kScales) return load_shared(scales() + u * kResiduals + stage);
    return 1.0f;
  }

  // Word i of an entry of a table, elements 2i and 2i + 1, from global memory: for readers that go
  // through all entries in order.
  VQ_DEVICE u32 entry_word(int u, int stage, int number, int i) const {
    return load_constant(reinterpret_cast<const u32*>(global_at(u, stage, number)) + i);
  }

  // Entries [kRunEntries * number, ..) of a table, 16 bytes from global memory, for the same.
  static constexpr int kRunEntries = 8 / kVectorSize;
  VQ_DEVICE U32x4 run(int u, int stage, int number) const {
    return load_constant(reinterpret_cast<const U32x4*>(global_at(u, stage, 0)) + number);
  }

  VQ_DEVICE Words entry(int u, int stage, u32 code) const {
    return Decode::value(held(u, stage, code), code);
  }
  VQ_DEVICE Held held(int u, int stage, u32 code) const {
    return find(u, stage, Decode::entry_of(code));
  }

  // entry() of unit first + u. For a byte that is a table's code, the address is cheapest if
  // `first` is one register for many lookups and u a constant.
  VQ_DEVICE Words entry(int first, int u, int stage, u32 code) const {
    return entry(first + u, stage, code);
  }
  VQ_DEVICE Words entry(int first, int u, int stage, CodeByte code) const {
    if constexpr (kFormat.decoder != Decoder::table) {
      return entry(first + u, stage, u32{code});
    } else {
      return Decode::value(held(first, u, stage, code), 0);
    }
  }
  VQ_DEVICE Words entry(int first, int u, int stage, SignedByte code) const {
    return Decode::value(held_by(first, u, stage, CodeByte{code.word, code.byte}), code);
  }
  VQ_DEVICE Held held(int first, int u, int stage, u32 code) const {
    return held(first + u, stage, code);
  }
  VQ_DEVICE Held held(int first, int u, int stage, CodeByte code) const {
    static_assert(kFormat.index_bits == 8 && kFormat.decoder == Decoder::table, "");
    return held_by(first, u, stage, code);
  }

 private:
  // The entry whose number is a byte.
  VQ_DEVICE Held held_by(int first, int u, int stage, CodeByte code) const {
    if constexpr (kRegisters == 0 && kReplicated.end == kEntries) {
      return ReplicatedLevel::access_byte(first, u, stage, code);
    } else if constexpr (kShared.begin == 0 && kShared.end == kEntries) {
      return OnceLevel::access_byte(first, u, stage, code);
    } else {
      return find(first + u, stage, u32{code});
    }
  }
  static constexpr int kUnrolledStages = 4;
  struct Fetch {
    const Codebook& book;
    VQ_DEVICE Held operator()(int u, int stage, int number) const {
      return Decode::held(begin_constant(book.global_at(u, stage, number)));
    }
  };
  // Bound units that exist.
  VQ_DEVICE int held_units() const {
    if (kUnits > 1 && units_ - unit_ < kUnits) return static_cast<int>(units_ - unit_);
    return kUnits;
  }
  VQ_DEVICE void load_scales() const {
    if constexpr (kScales) {
      for (int i = thread_index(); i < held_units() * kResiduals; i += kThreads) {
        store_shared(scales() + i, load_constant(global_scales_ + unit_ * kResiduals + i));
      }
    }
  }
  VQ_DEVICE static float* scales() { return shared_part<float>(Format::shared().scales); }

  // The entry of a number, as levels hold it.
  VQ_DEVICE Held find(int u, int stage, u32 number) const {
    if constexpr (kRegisters == 0) {
      return below_registers(u, stage, number);
    } else {
      Held held{};
      if (number >= static_cast<u32>(kRegisters)) held = below_registers(u, stage, number);
      return registers_.access(u, stage, number, held);
    }
  }
  VQ_DEVICE Held below_registers(int u, int stage, u32 number) const {
    if constexpr (kReplicated.end == kEntries) {
      return ReplicatedLevel::access(u, stage, number);
    } else if constexpr (kReplicated.end > kReplicated.begin) {
      if (number < static_cast<u32>(kReplicated.end)) {
        return ReplicatedLevel::access(u, stage, number);
      }
    }
    if constexpr (kShared.end == kEntries) {
      return OnceLevel::access(u, stage, number);
    } else if constexpr (kShared.end > kShared.begin) {
      if (number < static_cast<u32>(kShared.end)) return OnceLevel::access(u, stage, number);
    }
    return Decode::held(load_constant(global_at(u, stage, static_cast<int>(number))));
  }
  // Address of an entry in global memory.
  VQ_DEVICE const Words* global_at(int u, int stage, int number) const {
    return global_ + (((unit_ + u) * kResiduals + stage) * kEntries + number) * kEntryPieces;
  }

  const Words* global_;
  const float* global_scales_;
  i64 units_;
  i64 unit_ = -1;
  RegisterLevel<Held, kUnits, kResiduals, kRegisters> registers_;
};

// Converts the codes of one sub-vector to MMA operand words:
//
//   kEntry   the unscaled entry of one stage: the MMA adds up stages
//   kHeld    kEntry in the levels' form: bytes of int8 entries, four per word
//   kSum     the scaled entries of all stages, summed in fp32, times `factor`, rounded to 16 bits
//   kScaled  the unscaled entry of the one stage times `factor`, each rounded to 16 bits
//
// A factor may have a minimum to subtract (group_factor.cuh).
enum class Rebuilt : int { kEntry = 0, kHeld = 1, kSum = 2, kScaled = 3 };

// What operands of weights are, where sums of a stage are scaled or else entries are.
VQ_HD constexpr Rebuilt rebuilt(const FormatConfig& f, bool scaled_sums) {
  if (f.group_inputs > 0) return f.num_codebooks == 1 ? Rebuilt::kScaled : Rebuilt::kSum;
  return f.stage_scales && !scaled_sums ? Rebuilt::kSum : Rebuilt::kEntry;
}

// A factor of sub-vectors: in pairs of 16 bits for kScaled, else as it is.
template <Rebuilt kWhat, Element kElement, class Factor>
VQ_DEVICE auto factor_of(Factor factor) {
  if constexpr (kWhat == Rebuilt::kScaled) {
    return paired_factor<kElement>(factor);
  } else {
    return factor;
  }
}

// The sub-vector of unit first + u (codebook.cuh says why two); `pass` is the stage, 0 for sums.
// code(stage) gives a u32, a CodeByte or a SignedByte; `factor` is a factor_of().
template <Rebuilt kWhat, Element kElement, class Book, class Code, class Factor = float>
VQ_DEVICE void rebuild(u32* words, const Book& book, int first, int u, int pass, Code code,
                       Factor factor = 1.0f) {
  if constexpr (kWhat == Rebuilt::kSum) {
    float value[Book::kVectorSize];
    book.decode(value, first + u, code);
    VQ_UNROLL
    for (int i = 0; i < Book::kVectorSize; i += 2) {
      words[i / 2] =
          pack2<kElement>(apply_factor(factor, value[i]), apply_factor(factor, value[i + 1]));
    }
  } else if constexpr (kWhat == Rebuilt::kHeld) {
    const auto held = book.held(first, u, pass, code(pass));
    VQ_UNROLL
    for (int i = 0; i < Book::kVectorSize / 4; ++i) words[i] = word_of(held, i);
  } else {
    const auto entry = book.entry(first, u, pass, code(pass));
    VQ_UNROLL
    for (int i = 0; i < Book::kVectorSize / 2; ++i) {
      words[i] = word_of(entry, i);
      if constexpr (kWhat == Rebuilt::kScaled) {
        words[i] = apply_factor2<kElement>(factor, words[i]);
      }
    }
  }
}

}  // namespace vq
