#include <algorithm>
#include <cmath>
#include <mutex>
#include <thread>

#include "core/parallel.h"
#include "quantizer/nearest.h"
#include "quantizer/train/vector_books.h"

namespace vqgen {
namespace {

// A share of a book, small enough to keep all cores busy to the end.
struct Share {
  std::size_t book;
  std::size_t begin, end;  // vectors
};
constexpr std::size_t kShareVectors = 8192;

class HostBooks : public VectorBooks {
 public:
  HostBooks(std::vector<float> vectors, BookShape shape)
      : VectorBooks(std::move(shape)),
        size_(static_cast<std::size_t>(shape_.dimension)),
        vectors_(std::move(vectors)),
        threads_(static_cast<int>(std::max(1u, std::thread::hardware_concurrency()))) {
    for (std::size_t book = 0; book + 1 < shape_.begins.size(); ++book) {
      const auto end = static_cast<std::size_t>(shape_.begins[book + 1]);
      for (auto at = static_cast<std::size_t>(shape_.begins[book]); at < end; at += kShareVectors) {
        shares_.push_back({book, at, std::min(end, at + kShareVectors)});
      }
    }
  }

  std::vector<float> peaks() override {
    std::vector<float> peaks(books(), 0.0f);
    for (const Share& share : shares_) {
      for (std::size_t i = share.begin * size_; i < share.end * size_; ++i) {
        const float magnitude = std::abs(vectors_[i]);
        float& peak = peaks[share.book];
        if (!std::isnan(peak) && !(magnitude <= peak)) peak = magnitude;
      }
    }
    return peaks;
  }

  std::vector<float> gather(std::span<const std::int64_t> picks) override {
    const std::size_t each = picks.size() / books();
    std::vector<float> result;
    result.reserve(picks.size() * size_);
    for (std::size_t i = 0; i < picks.size(); ++i) {
      const std::int64_t at = shape_.begins[i / each] + picks[i];
      const float* vector = vectors_.data() + static_cast<std::size_t>(at) * size_;
      result.insert(result.end(), vector, vector + size_);
    }
    return result;
  }

  void sum(std::span<const float> entries, std::span<const SumFactors> factors,
           std::vector<std::int64_t>& sums) override {
    const std::size_t fields = size_ + 2;
    const std::size_t count = entries.size() / size_ / books();
    sums.assign(books() * count * fields, 0);
    std::mutex mutex;
    for_shares(entries, [&](const Share& share, const NearestEntry& search) {
      const std::size_t vectors = share.end - share.begin;
      std::vector<std::uint32_t> nearest(vectors);
      std::vector<float> distances(vectors);
      search.find_alone(of(share), nearest, distances);
      std::vector<std::int64_t> own(count * fields, 0);
      const SumFactors factor = factors[share.book];
      for (std::size_t i = 0; i < vectors; ++i) {
        std::int64_t* const sum = own.data() + nearest[i] * fields;
        const float* const vector = vectors_.data() + (share.begin + i) * size_;
        for (std::size_t d = 0; d < size_; ++d) {
          sum[d] += static_cast<std::int64_t>(vector[d] * factor.element);
        }
        sum[size_] += static_cast<std::int64_t>(distances[i] * factor.distance);
        ++sum[size_ + 1];
      }
      const std::scoped_lock lock(mutex);
      std::int64_t* const all = sums.data() + share.book * count * fields;
      for (std::size_t i = 0; i < own.size(); ++i) all[i] += own[i];
    });
  }

  void subtract(std::span<const float> entries) override {
    const std::size_t book_floats = entries.size() / books();
    for_shares(entries, [&](const Share& share, const NearestEntry& search) {
      std::vector<std::uint32_t> nearest(share.end - share.begin);
      search.find_alone(of(share), nearest);
      const float* const book = entries.data() + share.book * book_floats;
      for (std::size_t i = 0; i < nearest.size(); ++i) {
        float* const vector = vectors_.data() + (share.begin + i) * size_;
        for (std::size_t d = 0; d < size_; ++d) vector[d] -= book[nearest[i] * size_ + d];
      }
    });
  }

 private:
  std::size_t books() const { return static_cast<std::size_t>(shape_.books()); }
  std::span<const float> of(const Share& share) const {
    return std::span(vectors_).subspan(share.begin * size_, (share.end - share.begin) * size_);
  }

  template <class Visit>
  void for_shares(std::span<const float> entries, const Visit& visit) const {
    const std::size_t book_floats = entries.size() / books();
    std::vector<NearestEntry> searches;
    for (std::size_t book = 0; book < books(); ++book) {
      searches.emplace_back(entries.subspan(book * book_floats, book_floats), shape_.dimension);
    }
    in_parallel(shares_.size(), threads_,
                [&](std::size_t i) { visit(shares_[i], searches[shares_[i].book]); });
  }

  std::size_t size_;
  std::vector<float> vectors_;
  int threads_;
  std::vector<Share> shares_;
};

}  // namespace

std::unique_ptr<VectorBooks> make_host_books(std::vector<float> vectors, BookShape shape) {
  return std::make_unique<HostBooks>(std::move(vectors), std::move(shape));
}

}  // namespace vqgen
