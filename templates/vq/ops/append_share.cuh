// The part of one tensor that a block of kv_append encodes: a share of the sub-vectors of some new
// tokens' rows, in shared memory, and the codebooks to compare them with. Nearest gives the
// distance to a candidate and its code; candidates are numbered so that the lowest of equally near
// ones has the quantizer's code.
//
// Distances are sums of squared differences: |x|^2 - 2xc + |c|^2 would save a third of the work,
// but loses the small differences of large vectors.
#pragma once

#include <vq/args/kv_append.h>
#include <vq/layout/append.h>
#include <vq/codebook/scalar.cuh>
#include <vq/loads.cuh>

namespace vq {

// The elements of an entry, times `scale`.
template <Element kElement, int kVectorSize, class Words>
VQ_DEVICE void read_entry(float (&value)[kVectorSize], Words words, float scale) {
  VQ_UNROLL
  for (int i = 0; i < kVectorSize; ++i) value[i] = 0.0f;
  add_entry<kElement>(value, words, scale);
}

// For each decoder:
//
//   kOfEntry                 candidates per entry
//   scaled(x, scale)         prepares the sub-vector for comparison, in place
//   entry_scale(scale)       factor of entries
//   distance(x, entry, c)    squared distance to candidate c of the entry
//   code(x, entry, n, c)     code of candidate c of entry n
template <Decoder kDecoder, int kVectorSize>
struct Nearest;

// A candidate is an entry, and its number the code.
template <int kVectorSize>
struct Nearest<Decoder::table, kVectorSize> {
  static constexpr int kOfEntry = 1;
  using Vector = float[kVectorSize];
  VQ_DEVICE static void scaled(Vector&, float) {}
  VQ_DEVICE static float entry_scale(float scale) { return scale; }
  VQ_DEVICE static float distance(const Vector& x, const Vector& entry, int) {
    float sum = 0.0f;
    VQ_UNROLL
    for (int i = 0; i < kVectorSize; ++i) {
      const float difference = x[i] - entry[i];
      sum += difference * difference;
    }
    return sum;
  }
  VQ_DEVICE static u32 code(const Vector&, const Vector&, int number, int) {
    return static_cast<u32>(number);
  }
};

// The E8P lattice (layout/format.h): an entry stands for 256 points. For each shift c by 1/4 the
// best signs are those of z = x - c, or, if their parity is not the entry's, with the element
// flipped where this costs least: 4 a_i |z_i|. Two candidates per entry therefore cover all points.
template <int kVectorSize>
struct Nearest<Decoder::e8p, kVectorSize> {
  static constexpr int kOfEntry = 2;
  using Vector = float[kVectorSize];
  VQ_DEVICE static void scaled(Vector& x, float scale) {
    VQ_UNROLL
    for (int i = 0; i < kVectorSize; ++i) x[i] = scale > 0.0f ? x[i] / scale : 0.0f;
  }
  VQ_DEVICE static float entry_scale(float) { return 1.0f; }

  VQ_DEVICE static float distance(const Vector& x, const Vector& entry, int candidate) {
    const Signed all = signs(x, entry, candidate);
    float sum = 0.0f;
    VQ_UNROLL
    for (int i = 0; i < kVectorSize; ++i) {
      const float difference = magnitude(x[i], candidate) - entry[i];
      sum += difference * difference;
    }
    return all.fit ? sum : sum + 4.0f * all.least;
  }

  VQ_DEVICE static u32 code(const Vector& x, const Vector& entry, int number, int candidate) {
    const Signed all = signs(x, entry, candidate);
    const u32 turned = all.fit ? all.negative : all.negative ^ 1u << all.cheapest;
    return static_cast<u32>(number) | (turned & 0x7fu) << 8 | static_cast<u32>(candidate) << 15;
  }

 private:
  struct Signed {
    u32 negative;  // a bit an element
    bool fit;      // their number has the entry's parity
    float least;   // least a_i |z_i|, and its element
    int cheapest;
  };
  VQ_DEVICE static float shifted(float x, int candidate) {
    return candidate == 0 ? x - 0.25f : x + 0.25f;
  }
  VQ_DEVICE static float magnitude(float x, int candidate) {
    return float_from_bits(float_bits(shifted(x, candidate)) & 0x7fffffffu);
  }
  VQ_DEVICE static Signed signs(const Vector& x, const Vector& entry, int candidate) {
    Signed all{0, false, infinity(), 0};
    float sum = 0.0f;
    u32 parity = 0;
    VQ_UNROLL
    for (int i = 0; i < kVectorSize; ++i) {
      const u32 sign = float_bits(shifted(x[i], candidate)) >> 31;
      all.negative |= sign << i;
      parity ^= sign;
      sum += entry[i];
      const float cost = entry[i] * magnitude(x[i], candidate);
      if (cost < all.least) {
        all.least = cost;
        all.cheapest = i;
      }
    }
    all.fit = (static_cast<u32>(sum) & 1u) == parity;
    return all;
  }
};

// A scalar code has one candidate, the numbers nearest to the elements by the unit's scales.
template <Decoder kDecoder, int kVectorSize>
struct NearestScalars {
  static constexpr int kOfEntry = 1;
  using Vector = float[kVectorSize];
  VQ_DEVICE static void scaled(Vector&, float) {}
  VQ_DEVICE static float entry_scale(float) { return 1.0f; }
  VQ_DEVICE static float distance(const Vector&, const Vector&, int) { return 0.0f; }
  VQ_DEVICE static u32 code(const Vector& x, const Vector& scales, int, int) {
    using Code = ScalarCode<kDecoder, kVectorSize>;
    u32 code = 0;
    VQ_UNROLL
    for (int i = 0; i < kVectorSize; ++i) code |= Code::bits(x[i] / scales[i]) << Code::kBits * i;
    return code;
  }
};
template <int kVectorSize>
struct Nearest<Decoder::scalar, kVectorSize> : NearestScalars<Decoder::scalar, kVectorSize> {};
template <int kVectorSize>
struct Nearest<Decoder::e4m3, kVectorSize> : NearestScalars<Decoder::e4m3, kVectorSize> {};
template <int kVectorSize>
struct Nearest<Decoder::affine, kVectorSize> : NearestScalars<Decoder::affine, kVectorSize> {};

// The new tokens of a sequence that a block encodes: `count` tokens from number `first` of the call
// on, of `all`. With batched flushing `first` may be negative (a token of an earlier call). In a
// block of several sequences lane l has that of sequence l.
struct AppendWork {
  int batch, head;
  int position;  // position of the call's token 0
  int first, count, all;
};

// `Operand` says which tensor, or part of the keys: FormatConfig config().
template <class Plan, class Operand>
struct AppendShare {
  static constexpr auto kConfig = Plan::config();
  static constexpr FormatConfig kFormat = Operand::config();
  static constexpr AppendShared kShared = shared_layout(kConfig, kFormat);
  static constexpr int kChannels = kFormat.part.channels;  // channels of a row, or of a part
  static constexpr int kRowFloats = row_floats(kConfig, kFormat);
  static constexpr int kThreads = kConfig.threads;
  static constexpr int kVectorSize = kFormat.vector_size;
  static constexpr int kResiduals = kFormat.num_codebooks;
  static constexpr int kEntries = entries(kFormat);
  static constexpr int kVectors = share_sub_vectors(kConfig, kFormat);  // at most
  static constexpr int kSequences = kConfig.sequences_per_block;
  static constexpr int kTokens = kConfig.tokens_per_block;  // rows of a sequence
  using Words = EntryWords<kVectorSize>;
  using Candidates = Nearest<kFormat.decoder, kVectorSize>;
  using Vector = float[kVectorSize];

  EncodedArgs to;
  AppendWork work;
  int begin;    // the first sub-vector of the head
  int vectors;  // and how many there are

  VQ_DEVICE static AppendShare of_block(const EncodedArgs& to, const AppendWork& work, int share) {
    const int begin = share * kVectors;
    const int left = sub_vectors(kConfig, kFormat) - begin;
    return {to, work, begin, left < kVectors ? left : kVectors};
  }

  // From lanes' own work: true if any has a token; the work of the whole block; the work of row t's
  // sequence. All lanes call them.
  VQ_DEVICE static bool any(const AppendWork& own) {
    return kSequences == 1 ? own.count > 0 : any_of_warp(own.count > 0);
  }
  VQ_DEVICE static AppendWork of_all(const AppendWork& own) {
    if constexpr (kSequences == 1) return own;
    return {block_z() * kSequences, block_y(), 0, 0, kSequences * kTokens, 0};
  }
  VQ_DEVICE static AppendWork of_row(const AppendWork& own, int t) {
    if constexpr (kSequences == 1) return own;
    const int owner = t / kTokens;
    const auto of_owner = [owner](int number) {
      return static_cast<int>(shuffle(static_cast<u32>(number), owner));
    };
    return {block_z() * kSequences + owner,
            own.head,
            of_owner(own.position),
            of_owner(own.first),
            of_owner(own.count),
            of_owner(own.all)};
  }

  // has(): true if row t has a token. Then its sequence's work, and the token's number in the call.
  VQ_DEVICE bool has(int t) const {
    if constexpr (kSequences == 1) return true;  // the count covers existing rows only
    return t % kTokens < work_of(t).count;
  }
  VQ_DEVICE AppendWork work_of(int t) const {
    if constexpr (kSequences == 1) return work;
    const U32x4 words = load_shared(works() + t / kTokens);
    const auto number = [](u32 word) { return static_cast<int>(word); };
    return {work.batch + t / kTokens, work.head,       number(words.x),
            number(words.y),          number(words.z), number(words.w)};
  }
  VQ_DEVICE static int number_of(const AppendWork& own, int t) {
    return own.first + (kSequences == 1 ? t : t % kTokens);
  }
  VQ_DEVICE static void store_work(int sequence, const AppendWork& own) {
    store_shared(works() + sequence,
                 U32x4{static_cast<u32>(own.position), static_cast<u32>(own.first),
                       static_cast<u32>(own.count), static_cast<u32>(own.all)});
  }

  // The codebook of a sub-vector of the head and a stage, counted through all of the tensor.
  VQ_DEVICE i64 book_of(int vector, int stage) const {
    constexpr int kUnits = kChannels / kFormat.unit_elements;
    const int in_head = vector * kVectorSize / kFormat.unit_elements;
    return (kFormat.per_head ? i64{work.head} * kUnits + in_head : i64{0}) * kResiduals + stage;
  }
  VQ_DEVICE float scale_of(i64 book) const {
    if constexpr (kFormat.stage_scales) return load_global(to.scales + book);
    return 1.0f;
  }
  VQ_DEVICE Words entry(i64 book, int number) const { return load_global(entry_at(book, number)); }
  VQ_DEVICE const Words* entry_at(i64 book, int number) const {
    return reinterpret_cast<const Words*>(to.codebooks) + book * kEntries + number;
  }

  // A sub-vector of row t, as candidates are compared with it.
  VQ_DEVICE static void load_vector(Vector& x, int t, int vector, float scale) {
    VQ_UNROLL
    for (int d = 0; d < kVectorSize; ++d) {
      x[d] = load_shared(row(t) + vector * kVectorSize + d);
    }
    Candidates::scaled(x, scale);
  }

  // Parts of shared memory (layout/append.h).
  VQ_DEVICE static float* rows() { return shared_part<float>(kShared.rows); }
  VQ_DEVICE static float* row(int t) { return rows() + t * kRowFloats; }
  VQ_DEVICE static float* norms() { return shared_part<float>(kShared.norms); }
  VQ_DEVICE static float* distances() { return shared_part<float>(kShared.distances); }
  VQ_DEVICE static u32* nearest() { return shared_part<u32>(kShared.nearest); }
  VQ_DEVICE static u32* codes() { return shared_part<u32>(kShared.codes); }
  VQ_DEVICE static u32* scales() { return shared_part<u32>(kShared.scales); }
  VQ_DEVICE static U32x4* works() { return shared_part<U32x4>(kShared.works); }
};

}  // namespace vq
