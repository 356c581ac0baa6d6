#include "runtime/paging.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

#include "core/ceil_div.h"

namespace vqgen {
namespace {

// Copies groups of rows. The rows of a group are contiguous, word by word, both in a sequence's
// rows and in a page.
class Groups {
 public:
  Groups(const PagePool& pool, const PageStrides& strides, const QuantizedTensor& tensor)
      : pool_(pool), strides_(strides), tensor_(tensor), rows_(tensor.format.layout.rows) {}

  std::int64_t words() const {
    return rows_ * vq::padded_words(tensor_.format.layout, tensor_.row_words);
  }
  // visit(words of the tensor before a group, words of the storage before it) for those groups of a
  // sequence's page `number` that the tensor's rows reach.
  template <class Visit>
  void each_of_page(std::int64_t sequence, std::int64_t number, std::int64_t page,
                    Visit&& visit) const {
    const std::int64_t first = number * pool_.page_tokens;
    const std::int64_t groups =
        std::min<std::int64_t>(ceil_div(tensor_.rows - first, rows_), pool_.page_tokens / rows_);
    for (std::int64_t head = 0; head < tensor_.heads; ++head) {
      const std::int64_t from = (sequence * tensor_.heads + head) * tensor_.head_words();
      const std::int64_t to = strides_.begin + page * strides_.page + head * strides_.head;
      for (std::int64_t group = 0; group < groups; ++group) {
        visit(from + (first / rows_ + group) * words(), to + group * rows_ * strides_.token);
      }
    }
  }

 private:
  const PagePool& pool_;
  const PageStrides& strides_;
  const QuantizedTensor& tensor_;
  std::int64_t rows_;
};

auto at(auto& values, std::int64_t index) {
  return values.begin() + static_cast<std::ptrdiff_t>(index);
}

// visit(sequence, the page's number in the sequence, the page).
template <class Visit>
void for_each_page(const PagePool& pool, const std::vector<std::int32_t>& lengths, Visit&& visit) {
  for (std::int64_t b = 0; b < std::ssize(lengths); ++b) {
    const std::int64_t pages = ceil_div(std::int64_t{lengths[static_cast<std::size_t>(b)]},
                                        std::int64_t{pool.page_tokens});
    for (std::int64_t i = 0; i < pages; ++i) visit(b, i, *at(pool.table, b * pool.columns + i));
  }
}

// True if two sequences have the same rows in page `number`, which both fill.
bool equal_pages(const PagePool& pool, const QuantizedTensor& tensor, std::int64_t a,
                 std::int64_t b, std::int64_t number) {
  const Groups groups(pool, pool.key_strides, tensor);
  bool equal = true;
  const std::int64_t apart = (b - a) * tensor.heads * tensor.head_words();
  groups.each_of_page(a, number, 0, [&](std::int64_t from, std::int64_t) {
    const auto begin = at(tensor.codes, from);
    equal = equal && std::equal(begin, begin + groups.words(), at(tensor.codes, from + apart));
  });
  return equal;
}

PageStrides strides_of(PageOrder order, const QuantizedTensor& tensor, int page_tokens) {
  const CodeLayout& layout = tensor.format.layout;
  const std::int64_t words = vq::padded_words(layout, tensor.row_words);
  const std::int64_t page = words * tensor.heads * page_tokens;
  if (order == PageOrder::nhd) return {0, page, layout.rows * words, tensor.heads * words};
  return {0, page, page_tokens * words, words};
}

void put_together(PagePool& pool) {
  PageStrides& keys = pool.key_strides;
  PageStrides& values = pool.value_strides;
  if (pool.order == PageOrder::joint) {
    values.begin = keys.page;
  } else {
    values.begin = keys.token;
    keys.token = values.token = keys.token + values.token;
    keys.head = values.head = pool.page_tokens * keys.token;
  }
  keys.page = values.page = keys.page + values.page;
}

// Fills the table with pages numbered in order of use; returns how many there are.
std::int64_t number_pages(PagePool& pool, const QuantizedTensor& keys,
                          const QuantizedTensor& values, const std::vector<std::int32_t>& lengths,
                          bool shared, Random& random) {
  const auto filled = [&](std::int64_t b, std::int64_t number) {
    return lengths[static_cast<std::size_t>(b)] >= (number + 1) * pool.page_tokens;
  };
  std::int32_t next = 0;
  for_each_page(pool, lengths, [&](std::int64_t b, std::int64_t number, std::int32_t) {
    const bool same = shared && b > 0 && filled(b, number) && filled(b - 1, number) &&
                      equal_pages(pool, keys, b - 1, b, number) &&
                      equal_pages(pool, values, b - 1, b, number) && random.chance(0.5);
    const std::int64_t place = b * pool.columns + number;
    *at(pool.table, place) = same ? *at(pool.table, place - pool.columns) : next++;
  });
  return next;
}

}  // namespace

PagePool make_pool(const QuantizedTensor& keys, const QuantizedTensor& values,
                   const std::vector<std::int32_t>& lengths, int page_tokens, bool shared,
                   Random random, std::optional<PageOrder> order) {
  constexpr int kOrders = 4;
  constexpr std::int64_t kSpare = 3;
  PagePool pool;
  pool.page_tokens = page_tokens;
  const auto drawn = static_cast<PageOrder>(random.below(kOrders));
  pool.order = order.value_or(drawn);
  const bool plain = keys.format.layout.plain() && values.format.layout.plain();
  if (pool.order == PageOrder::side_by_side && !plain) pool.order = PageOrder::joint;
  pool.columns = ceil_div(keys.rows, std::int64_t{page_tokens}) + random.below(2);
  pool.table.assign(static_cast<std::size_t>(keys.batch * pool.columns),
                    std::numeric_limits<std::int32_t>::max());
  pool.key_strides = strides_of(pool.order, keys, page_tokens);
  pool.value_strides = strides_of(pool.order, values, page_tokens);
  if (pool.one_tensor()) put_together(pool);
  const std::int64_t used = number_pages(pool, keys, values, lengths, shared, random);
  pool.pages = used + kSpare;
  std::vector<std::int32_t> places(static_cast<std::size_t>(pool.pages));
  std::iota(places.begin(), places.end(), 0);
  random.shuffle(places);
  for_each_page(pool, lengths, [&](std::int64_t b, std::int64_t number, std::int32_t page) {
    *at(pool.table, b * pool.columns + number) = places[static_cast<std::size_t>(page)];
  });

  const auto fill = [&](std::vector<std::uint32_t>& storage, std::int64_t page_words) {
    storage.resize(static_cast<std::size_t>(pool.pages * page_words));
    for (std::uint32_t& word : storage) word = static_cast<std::uint32_t>(random.bits());
  };
  fill(pool.keys, pool.key_strides.page);
  if (!pool.one_tensor()) fill(pool.values, pool.value_strides.page);
  const auto copy = [&](const QuantizedTensor& tensor, const PageStrides& strides,
                        std::vector<std::uint32_t>& storage) {
    const Groups groups(pool, strides, tensor);
    for_each_page(pool, lengths, [&](std::int64_t b, std::int64_t number, std::int32_t page) {
      groups.each_of_page(b, number, page, [&](std::int64_t from, std::int64_t to) {
        std::copy_n(at(tensor.codes, from), groups.words(), at(storage, to));
      });
    });
  };
  copy(keys, pool.key_strides, pool.keys);
  copy(values, pool.value_strides, pool.one_tensor() ? pool.keys : pool.values);
  return pool;
}

bool take_rows(const PagePool& pool, const QuantizedTensor& keys, const QuantizedTensor& values,
               const std::vector<std::int32_t>& lengths, std::vector<std::uint32_t> key_storage,
               std::vector<std::uint32_t> value_storage, std::vector<std::uint32_t>& key_codes,
               std::vector<std::uint32_t>& value_codes) {
  // Rows that are taken are reset, so that a storage equals the pool's again once all are taken.
  const auto take = [&](const PageStrides& strides, const QuantizedTensor& tensor,
                        std::vector<std::uint32_t>& storage, const std::vector<std::uint32_t>& was,
                        std::vector<std::uint32_t>& codes) {
    const Groups groups(pool, strides, tensor);
    codes = tensor.codes;
    for_each_page(pool, lengths, [&](std::int64_t b, std::int64_t number, std::int32_t page) {
      groups.each_of_page(b, number, page, [&](std::int64_t from, std::int64_t to) {
        std::copy_n(at(storage, to), groups.words(), at(codes, from));
        std::copy_n(at(was, to), groups.words(), at(storage, to));
      });
    });
  };
  const bool one = pool.one_tensor();
  take(pool.key_strides, keys, key_storage, pool.keys, key_codes);
  take(pool.value_strides, values, one ? key_storage : value_storage, one ? pool.keys : pool.values,
       value_codes);
  return key_storage == pool.keys && (one || value_storage == pool.values);
}

namespace {

std::vector<std::uint32_t> words_of(const std::vector<std::uint16_t>& elements) {
  std::vector<std::uint32_t> words(elements.size() / 2);
  if (!words.empty()) std::memcpy(words.data(), elements.data(), 4 * words.size());
  return words;
}

std::vector<std::uint16_t> elements_of(const std::vector<std::uint32_t>& words) {
  std::vector<std::uint16_t> elements(2 * words.size());
  if (!words.empty()) std::memcpy(elements.data(), words.data(), 4 * words.size());
  return elements;
}

// A tensor whose codes are raw rows.
QuantizedTensor raw_tensor(const QuantizedTensor& cache, std::vector<std::uint32_t> words) {
  QuantizedTensor tensor;
  tensor.batch = cache.batch;
  tensor.heads = cache.heads;
  tensor.rows = cache.rows;
  tensor.columns = cache.columns;
  tensor.row_words = cache.columns / 2;
  tensor.codes = std::move(words);
  return tensor;
}

}  // namespace

RawPool make_raw_pool(const QuantizedTensor& keys, const QuantizedTensor& values,
                      const std::vector<std::uint16_t>& raw_keys,
                      const std::vector<std::uint16_t>& raw_values,
                      const std::vector<std::int32_t>& lengths, int page_tokens, Random random,
                      const std::vector<std::int32_t>& firsts) {
  PagePool pages =
      make_pool(raw_tensor(keys, words_of(raw_keys)), raw_tensor(values, words_of(raw_values)),
                lengths, page_tokens, false, std::move(random));
  for (std::size_t b = 0; b < firsts.size(); ++b) {
    const auto row = at(pages.table, static_cast<std::int64_t>(b) * pages.columns);
    std::fill_n(row, std::max(firsts[b], 0) / page_tokens,
                std::numeric_limits<std::int32_t>::max());
  }
  RawPool pool{std::move(pages), {}, {}};
  pool.keys = elements_of(pool.pages.keys);
  pool.values = elements_of(pool.pages.values);
  return pool;
}

bool take_raw_rows(const RawPool& pool, const QuantizedTensor& keys, const QuantizedTensor& values,
                   const std::vector<std::int32_t>& lengths,
                   const std::vector<std::uint16_t>& key_storage,
                   const std::vector<std::uint16_t>& value_storage,
                   std::vector<std::uint16_t>& raw_keys, std::vector<std::uint16_t>& raw_values) {
  std::vector<std::uint32_t> key_words, value_words;
  const bool kept = take_rows(
      pool.pages, raw_tensor(keys, words_of(raw_keys)), raw_tensor(values, words_of(raw_values)),
      lengths, words_of(key_storage), words_of(value_storage), key_words, value_words);
  raw_keys = elements_of(key_words);
  raw_values = elements_of(value_words);
  return kept;
}

}  // namespace vqgen
