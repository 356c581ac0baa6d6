#include "runtime/library/arguments.h"

#include <fmt/format.h>

#include "core/ceil_div.h"
#include "runtime/library/last_error.h"
#include "runtime/ops/ops.h"

namespace vqgen::library {
namespace {

void add(Json& list, const std::string& name, const std::string& type, const Extents& shape) {
  list.push_back({{"name", name}, {"type", type}, {"shape", shape}});
}

template <class Op>
std::string type_of(Content content, const Op& op) {
  switch (content) {
    case Content::f32:
      return "f32";
    case Content::i32:
      return "i32";
    case Content::i64:
      return "i64";
    case Content::i8:
      return "i8";
    case Content::own:
      break;
  }
  return std::string(enum_name(op.dtype));
}

template <class Op, class H, class D, class S>
void describe(Json& list, const Array<Op, H, D, S>& each, const Op& op,
              const std::string& behind = "") {
  if (!is_taken(each.about, op)) return;
  add(list, each.name + behind, type_of(each.about.content(op), op), each.about.shape(op));
}

// Describes codes, codebooks and scales. Keys in parts have the codebooks of all parts in one
// array, and the scales, which have a count of elements alone. Codes in a grouped layout are an
// array of groups and runs.
template <class Op, class H, class D, class F, class P>
void describe(Json& list, const Tensor<Op, H, D, F, P>& each, const Op& op) {
  const VqFormat& format = op.*each.format;
  auto [rows, columns, units, elements, stages] = each.stored(op);
  const std::int64_t words = format.row_words(columns);
  const CodeLayout& layout = format.layout;
  if (layout.plain()) {
    rows.push_back(words);
  } else {
    rows.back() = ceil_div(rows.back(), std::int64_t{layout.rows});
    rows.insert(rows.end(),
                {ceil_div(words, std::int64_t{layout.words}), layout.rows, layout.words});
  }
  const std::string name = each.name;
  add(list, name + ".codes", "u32", rows);
  add(list, name + ".codebooks", type_of(Content::own, op),
      format.in_parts()
          ? Extents{elements}
          : Extents{units, format.num_codebooks, format.entries(), format.vector_size});
  if (!format.stage_scales) return;
  add(list, name + ".scales", "f32",
      format.in_parts() ? Extents{stages} : Extents{units, format.num_codebooks});
}

template <class Op, class G, class... Arrays>
void describe(Json& list, const Parts<Op, G, Arrays...>& parts, const Op& op) {
  for (int i = 0; i < parts.count(op); ++i) {
    const std::string behind = fmt::format(".{}", i);
    std::apply([&](const auto&... each) { (describe(list, each, op, behind), ...); }, parts.arrays);
  }
}

template <class Op>
Json slot(const std::string& name, const About<Op>& about) {
  return {{"name", name},
          {"written", about.written},
          {"optional", about.optional},
          {"conditional", about.taken != nullptr},
          {"free", about.free},
          {"least", about.least},
          {"free_with", about.free_with == nullptr ? "" : about.free_with},
          {"strided", about.strided}};
}

template <class Args>
std::int64_t offset_of(const Args& args, const void* member) {
  return static_cast<const char*>(member) - reinterpret_cast<const char*>(&args);
}

template <class Op, class H, class D, class S, class Args>
void add_slots(Json& list, const Array<Op, H, D, S>& each, const Args& args) {
  list.push_back(slot(each.name, each.about));
  list.back()["offset"] = offset_of(args, &std::invoke(each.host, args));
}

template <class Op, class H, class D, class F, class P, class Args>
void add_slots(Json& list, const Tensor<Op, H, D, F, P>& each, const Args& args) {
  constexpr bool cached = !std::is_same_v<P, None>;
  const vqgen_quantized& tensor = args.*each.host;
  const auto add_one = [&](const char* part, const void* member, const About<Op>& about) {
    list.push_back(slot(std::string(each.name) + part, about));
    list.back()["offset"] = offset_of(args, member);
  };
  add_one(".codes", &tensor.codes,
          {.shape = nullptr,
           .written = each.written,
           .free = cached ? 2 : -1,
           .strided = cached ? 2 : 0});
  list.back()["cache"] = cached;
  add_one(".codebooks", &tensor.codebooks, {.shape = nullptr});
  add_one(".scales", &tensor.scales, {.shape = nullptr, .taken = [](const Op&) { return false; }});
}

// The parts' pointers are in arrays of the caller, so they have no offset in the struct.
template <class Op, class G, class... Arrays, class Args>
void add_slots(Json& list, const Parts<Op, G, Arrays...>& parts, const Args&) {
  for (int i = 0; i < vq::kMostParts; ++i) {
    const auto add_one = [&](const auto& each) {
      list.push_back(slot(fmt::format("{}.{}", each.name, i), each.about));
      list.back()["conditional"] = true;
    };
    std::apply([&](const auto&... each) { (add_one(each), ...); }, parts.arrays);
  }
}

template <class Op>
Json slots_of() {
  Json list = Json::array();
  const typename OpTraits<Op>::HostArgs args{};
  for_each_argument<OpTraits<Op>>([&](const auto& each) { add_slots(list, each, args); });
  return list;
}

template <class... Ops>
auto all_slots(const std::variant<Ops...>*) {
  return std::map<std::string, std::string>{{Ops::kOp, slots_of<Ops>().dump()}...};
}

}  // namespace

Json described_arguments(const Problem& problem) {
  Json list = Json::array();
  std::visit(
      [&]<class Held>(const Held& held) {
        const typename OpTraits<Held>::Op& op = held;
        for_each_argument<OpTraits<Held>>([&](const auto& each) { describe(list, each, op); });
      },
      problem);
  return list;
}

}  // namespace vqgen::library

const char* vqgen_arguments(const char* op) {
  using namespace vqgen::library;
  try {
    static const auto texts = all_slots(static_cast<const vqgen::Problem*>(nullptr));
    const auto found = texts.find(op == nullptr ? "" : op);
    return found == texts.end() ? "" : found->second.c_str();
  } catch (...) {
    fail_caught();
    return "";
  }
}
