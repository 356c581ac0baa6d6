// Entries of int8 GEMMs: a unit's codebooks in shared memory as bytes whose sums over the stages
// need no carry.
//
// A packed addition of four bytes in a word is correct if no byte exceeds 255. The entries of a
// stage, within -127 / stages .. 127 / stages, are therefore raised by about 128 / stages; the sum
// of all is raised by 128, and flipping its top bit makes it a signed byte again.
//
// Signs of codes turn the bytes (signed_bytes()). Where masks of all signs are in shared memory
// too, bytes are unsigned, 128 + e or 128 - e. A sum of products then has 128 times the sum of x
// too:
//
//   byte   (128 + e ^ mask) + (1 where the mask is 255), which has no carry
#pragma once

#include <vq/ops/linear_work.cuh>

namespace vq {

template <class Plan>
class ByteTable {
 public:
  using Work = LinearWork<Plan>;
  static constexpr auto kConfig = Plan::config();
  static constexpr FormatConfig kFormat = kConfig.weights;
  static constexpr int kVectorSize = kFormat.vector_size;
  static constexpr int kResiduals = kFormat.num_codebooks;
  static constexpr int kEntries = entries(kFormat);
  static constexpr bool kCopies = replicated_range(kFormat).end == kEntries;
  using Stored = EntryWords<kVectorSize>;
  using Held = EntryWords<kVectorSize / 2>;
  static constexpr bool kMasks = mask_bytes(kConfig) > 0;
  static constexpr bool kSigns = kFormat.decoder == Decoder::signs && !kMasks;
  struct Format {
    VQ_HD static constexpr FormatConfig config() { return kFormat; }
  };
  using Decode = DecodingOf<Format, kConfig.element>;
  using Level =
      SharedLevel<Held, kCopies ? Work::at().codebook.replicated : Work::at().codebook.shared,
                  kResiduals, 0, kEntries, kCopies ? kFormat.placement.copies : 1, kConfig.threads>;
  using Masks = SharedLevel<Held, Work::at().beside, 1, 0, kMasks ? 1 << kVectorSize : 0,
                            128 / kVectorSize, kConfig.threads>;
  static constexpr int kAll = kResiduals * kEntries;
  // Entries per thread in the first loads.
  static constexpr int kLoads = ceil_div(kAll, kConfig.threads);
  static constexpr int kFirst = kLoads < 4 ? kLoads : 4;
  static_assert(kFormat.int8_entries && (kVectorSize == 4 || kVectorSize == 8), "");
  static_assert(!(kSigns || kMasks) || kResiduals == 1, "");
  static_assert(kCopies || shared_range(kFormat).end == kEntries, "");

  VQ_DEVICE explicit ByteTable(const LinearArgs& args) : weights_(args.weights) {}

  // True where load() has to follow.
  VQ_DEVICE bool switch_to(i64 unit) {
    if (unit == unit_) return false;
    unit_ = unit;
    return true;
  }
  VQ_DEVICE Held begin_load() const { return Level::begin(1, thread_index(), Fetch{*this}); }
  VQ_DEVICE void finish_load(const Held& begun) {
    Level::finish(1, thread_index(), begun, Fetch{*this});
    scale_ = load_constant(weights_.scales + unit_ * kResiduals);
  }

  // Masks of all signs, bytes of 0 or 255, once per block.
  VQ_DEVICE static void load_masks() {
    Masks::load(1, thread_index(), [](int, int, int number) {
      const u32 signs = static_cast<u32>(number);
      if constexpr (kVectorSize == 4) {
        return byte_ones(signs) * 0xffu;
      } else {
        return U32x2{byte_ones(signs) * 0xffu, byte_ones(signs >> 4) * 0xffu};
      }
    });
  }

  // load() in two parts: all first loads of a thread are in flight before the second part waits for
  // any.
  struct Begun {
    Stored entries[kFirst];
  };
  VQ_DEVICE Begun begin_all() const {
    Begun begun{};
    VQ_UNROLL
    for (int i = 0; i < kFirst; ++i) {
      const int number = thread_index() + i * kConfig.threads;
      if (number < kAll) begun.entries[i] = begin_constant(stored(number));
    }
    return begun;
  }
  VQ_DEVICE void finish_all(const Begun& begun) {
    VQ_UNROLL
    for (int i = 0; i < kFirst; ++i) {
      const int number = thread_index() + i * kConfig.threads;
      if (number < kAll) put(number, begun.entries[i]);
    }
    for (int i = thread_index() + kFirst * kConfig.threads; i < kAll; i += kConfig.threads) {
      put(i, begin_constant(stored(i)));
    }
    scale_ = load_constant(weights_.scales + unit_ * kResiduals);
  }

  // Factor from sums of entries to numbers.
  VQ_DEVICE float scale() const { return scale_; }

  // The entries of a sub-vector, and their signs; code(stage) gives a u32, a CodeByte or a
  // SignedByte.
  struct Looked {
    Held held[kResiduals];
    u32 signs = 0;
    Held masks{};
  };
  template <class Code>
  VQ_DEVICE Looked look_up(Code code) const {
    Looked looked;
    if constexpr (kMasks) {
      looked.held[0] = access(0, number_of(code(0)));
      looked.masks = mask_of(code(0));
    } else if constexpr (kSigns) {
      const u32 signed_code = code(0);
      looked.held[0] = access(0, Decode::entry_of(signed_code));
      looked.signs = Decode::signs_of(signed_code);
    } else {
      VQ_UNROLL
      for (int stage = 0; stage < kResiduals; ++stage) {
        looked.held[stage] = access(stage, code(stage));
      }
    }
    return looked;
  }

  // words[] = the sum of the stages, signed bytes; with masks unsigned ones, raised by kRaised.
  static constexpr u32 kRaised = kMasks ? 128u : 0u;
  VQ_DEVICE static void add_stages(u32 (&words)[kVectorSize / 4], const Looked& looked) {
    VQ_UNROLL
    for (int stage = 0; stage < kResiduals; ++stage) {
      VQ_UNROLL
      for (int i = 0; i < kVectorSize / 4; ++i) {
        const u32 word = word_of(looked.held[stage], i);
        words[i] = stage == 0 ? word : words[i] + word;
      }
    }
    VQ_UNROLL
    for (int i = 0; i < kVectorSize / 4; ++i) {
      if constexpr (kResiduals > 1) words[i] ^= 0x80808080u;
      if constexpr (kSigns) words[i] = signed_bytes(words[i], looked.signs >> 4 * i);
      if constexpr (kMasks) {
        const u32 mask = word_of(looked.masks, i);
        words[i] = (words[i] ^ mask) + mask * kOneOf255;
      }
    }
  }

 private:
  static constexpr u32 kOneOf255 = 0xfefefeffu;  // times 255 modulo 2^32
  static_assert(255u * kOneOf255 == 1u, "");
  // 128 in all.
  VQ_DEVICE static u32 raise_of(int stage) {
    return static_cast<u32>((128 * (stage + 1)) / kResiduals - 128 * stage / kResiduals);
  }
  struct Fetch {
    const ByteTable& table;
    VQ_DEVICE Held operator()(int, int stage, int number) const {
      const auto* const stored = reinterpret_cast<const Stored*>(table.weights_.codebooks) +
                                 (table.unit_ * kResiduals + stage) * kEntries + number;
      return raised(Decode::held(begin_constant(stored)), stage);
    }
  };
  // Entries of all stages, one stage after the other.
  VQ_DEVICE const Stored* stored(int number) const {
    return reinterpret_cast<const Stored*>(weights_.codebooks) + unit_ * kAll + number;
  }
  VQ_DEVICE static void put(int number, const Stored& entry) {
    Level::put(number, raised(Decode::held(entry), number / kEntries));
  }
  // Byte by byte: bytes below zero would carry.
  VQ_DEVICE static u32 raised(u32 bytes, int stage) {
    if constexpr (kMasks) return bytes ^ 0x80808080u;
    if constexpr (kResiduals == 1) return bytes;
    const u32 all = raise_of(stage) * 0x01010101u;
    return ((bytes & 0x7f7f7f7fu) + all) ^ (bytes & 0x80808080u);
  }
  VQ_DEVICE static U32x2 raised(U32x2 bytes, int stage) {
    return {raised(bytes.x, stage), raised(bytes.y, stage)};
  }
  VQ_DEVICE static u32 number_of(u32 code) { return Decode::entry_of(code); }
  VQ_DEVICE static CodeByte number_of(SignedByte code) { return {code.word, code.byte}; }
  VQ_DEVICE static Held mask_of(u32 code) { return Masks::access(0, 0, Decode::signs_of(code)); }
  VQ_DEVICE static Held mask_of(SignedByte code) {
    return Masks::access_byte(0, 0, 0, CodeByte{code.word, code.byte + 1});
  }
  VQ_DEVICE static Held access(int stage, u32 code) { return Level::access(0, stage, code); }
  VQ_DEVICE static Held access(int stage, CodeByte code) {
    return Level::access_byte(0, 0, stage, code);
  }

  const QuantizedArgs& weights_;
  i64 unit_ = -1;
  float scale_ = 0.0f;
};

}  // namespace vq
