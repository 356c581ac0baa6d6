// Register estimates of mma attention.
#include "heuristics/kernels/fragments_registers.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace vqgen {
namespace {

// True for entries of two elements, which need the most lookups.
bool is_narrow(const VqFormat& format) { return !format.is_scalar() && format.vector_size == 2; }

// True if words hold parts of codes.
bool shares_words(const VqFormat& format) {
  return !format.is_scalar() && !std::has_single_bit(static_cast<unsigned>(format.index_bits));
}

// True if lookups wait for global memory.
bool reads_global(const VqFormat& format, const Placement& placement) {
  return !format.is_scalar() && placement == all_global();
}

bool has_byte_codes(const VqFormat& format) { return format.index_bits / format.vector_size == 8; }

// Extra registers per tile of 8-bit codes: more words, and for minifloats more instructions to make
// operands.
double scalar_registers(const VqFormat& format) {
  constexpr double kBytes = 10, kMinifloats = 33;
  if (!format.is_scalar()) return 0;
  if (format.decoder == Decoder::e4m3) return kMinifloats;
  return has_byte_codes(format) || format.has_zeros() ? kBytes : 0;
}

}  // namespace

bool looks_up_in_global(const AttentionMma& plan, const AttentionDecode& op) {
  return reads_global(op.keys, plan.key_codebook) || reads_global(op.values, plan.value_codebook);
}

int registers_of(const AttentionMma& plan, const AttentionDecode& op) {
  const double tiles = plan.step_tokens / 8.0;
  const double quads = std::ceil(plan.heads_per_block / 4.0);
  const int dims = longest_row(op.shape);
  const double octets = dims / 32.0;  // octets of a quarter of the channels
  double of_tile = 2.7 + 2.1 * quads + 2.4 * octets;
  const bool bytes = op.keys.entry_type == EntryType::int8;  // half as many words of entries
  // Words that lanes share; else codes that words share, for keys with 16-bit entries. Fitted.
  if (!std::has_single_bit(static_cast<unsigned>(dims))) {
    of_tile += bytes ? 4.5 : 9.8;
  } else if (!bytes && shares_words(op.keys)) {
    of_tile += 5;
  }
  of_tile += std::max(scalar_registers(op.keys), scalar_registers(op.values));
  if (looks_up_in_global(plan, op)) of_tile += 5.1;
  double own = 18.7 + octets * (6.5 + 2.3 * quads) + 16.8 * quads + tiles * of_tile;
  if (is_narrow(op.keys) || is_narrow(op.values)) own += 4.8 * octets;
  if (dims > 128 && !bytes) own += 33.7;
  // Quads past the second keep less at once, the more channels there are.
  own -= 4 * std::max(0.0, octets - 3) * std::max(0.0, quads - 2);
  // The fourth quad keeps less, the fewer channels there are. Fitted.
  if (quads > 3) own -= 5.5 * std::max(0.0, 5 - octets);
  // Extra registers of 8-bit codes with a balanced schedule, whose pieces start anew with queries
  // and scales: at 128 registers per thread they spill.
  const auto bytes_of = [](const VqFormat& format) {
    return format.decoder == Decoder::scalar && has_byte_codes(format);
  };
  const bool limited = plan.threads > 256 || vq::resident(configured(plan, op)) > 1;
  const bool by_length = plan.schedule == Schedule::balanced;
  if (by_length && limited && (bytes_of(op.keys) || bytes_of(op.values)))
    own += 6.3 * octets * tiles;
  return static_cast<int>(own);
}

}  // namespace vqgen
