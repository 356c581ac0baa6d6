#include "quantizer/train/kmeans.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <queue>
#include <random>
#include <thread>
#include <unordered_set>

#include "core/parallel.h"

namespace vqgen {
namespace {

// `count` different numbers below `all`, each choice equally likely (Floyd's algorithm).
void pick(std::int64_t all, int count, std::uint64_t seed, std::vector<std::int64_t>& picks) {
  std::mt19937_64 random(seed);
  std::unordered_set<std::int64_t> chosen;
  for (std::int64_t last = all - count; last < all; ++last) {
    const auto number = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(last + 1));
    const std::int64_t taken = chosen.contains(number) ? last : number;
    chosen.insert(taken);
    picks.push_back(taken);
  }
}

// The entries of one book, moved to the means of what is nearest to them.
class BookUpdate {
 public:
  BookUpdate(std::span<float> entries, std::span<const std::int64_t> sums, SumFactors factors,
             std::size_t size)
      : entries_(entries), sums_(sums), factors_(factors), size_(size) {}

  void run() {
    std::vector<std::size_t> empty;
    const std::size_t count = entries_.size() / size_;
    for (std::size_t entry = 0; entry < count; ++entry) {
      const std::int64_t* const sum = sums_.data() + entry * (size_ + 2);
      const auto vectors = static_cast<double>(sum[size_ + 1]);
      if (sum[size_ + 1] == 0) {
        empty.push_back(entry);
        continue;
      }
      for (std::size_t d = 0; d < size_; ++d) {
        entries_[entry * size_ + d] =
            static_cast<float>(static_cast<double>(sum[d]) / factors_.element / vectors);
      }
    }
    if (!empty.empty()) split(empty);
  }

 private:
  struct Missed {
    double squares;  // summed squared error of its vectors
    std::size_t entry;
    double step;  // between it and the next that goes beside it
    bool operator<(const Missed& other) const {
      return squares != other.squares ? squares < other.squares : entry > other.entry;
    }
  };

  void split(const std::vector<std::size_t>& empty) {
    std::priority_queue<Missed> missed;
    for (std::size_t entry = 0; entry < entries_.size() / size_; ++entry) {
      const std::int64_t* const sum = sums_.data() + entry * (size_ + 2);
      if (sum[size_] == 0) continue;
      const double squares = static_cast<double>(sum[size_]) / factors_.distance;
      const double elements = static_cast<double>(sum[size_ + 1]) * static_cast<double>(size_);
      missed.push({squares, entry, kStep * std::sqrt(squares / elements)});
    }
    for (const std::size_t entry : empty) {
      if (missed.empty()) return;
      Missed most = missed.top();
      missed.pop();
      for (std::size_t d = 0; d < size_; ++d) {
        float& whole = entries_[most.entry * size_ + d];
        const auto step = static_cast<float>(d % 2 == 0 ? most.step : -most.step);
        entries_[entry * size_ + d] = whole + step;
        whole -= step;
      }
      most.squares /= 2;
      most.step /= 2;
      missed.push(most);
      missed.push({most.squares, entry, most.step});
    }
  }

  static constexpr double kStep = 0.1;  // in standard deviations of an element

  std::span<float> entries_;
  std::span<const std::int64_t> sums_;
  SumFactors factors_;
  std::size_t size_;
};

}  // namespace

SumFactors sum_factors(float peak, std::int64_t count, int dimension) {
  const int room = 62 - static_cast<int>(std::bit_width(static_cast<std::uint64_t>(count)));
  const auto factor = [room](double most) {
    if (most == 0) return 1.0f;
    // The largest power of two of a float, so that tiny numbers have fewer steps.
    return std::ldexp(1.0f, std::min(std::min(room, 40) - std::ilogb(most) - 1, 126));
  };
  return {factor(peak), factor(4.0 * dimension * peak * peak)};
}

std::vector<float> kmeans(VectorBooks& books, const KMeansRequest& request) {
  const auto size = static_cast<std::size_t>(books.shape().dimension);
  const auto count = static_cast<std::size_t>(request.entries);
  std::vector<std::int64_t> picks;
  for (std::int64_t book = 0; book < books.shape().books(); ++book) {
    pick(books.shape().count(book), request.entries, request.seeds[static_cast<std::size_t>(book)],
         picks);
  }
  std::vector<float> entries = books.gather(picks);
  std::vector<float> before;
  std::vector<std::int64_t> sums;
  const int threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  for (int iteration = 0; iteration < request.iterations && entries != before; ++iteration) {
    if (request.begun) request.begun(iteration);
    before = entries;
    books.sum(entries, request.factors, sums);
    const std::size_t fields = size + 2;
    in_parallel(request.seeds.size(), threads, [&](std::size_t book) {
      BookUpdate(std::span(entries).subspan(book * count * size, count * size),
                 std::span(sums).subspan(book * count * fields, count * fields),
                 request.factors[book], size)
          .run();
    });
  }
  return entries;
}

}  // namespace vqgen
