#include "runtime/tuning/sweep/sweep.h"

#include <fmt/format.h>

#include <map>

#include "core/problem/config.h"
#include "core/profiles.h"
#include "heuristics/check.h"

namespace vqgen {
namespace {

constexpr std::size_t kMostItems = 10'000;  // a longer list is a mistake
constexpr double kMostWeight = 1e9;

template <class Value>
struct Named {
  Value value;
  std::string name;
  bool operator==(const Named& other) const { return value == other.value; }
};

// Keys and values of one cache.
struct CacheFormats {
  VqFormat keys;
  VqFormat values;
  bool operator==(const CacheFormats&) const = default;
};

struct SweepFormats {
  std::vector<Named<VqFormat>> weights;
  std::vector<Named<CacheFormats>> kv;
};

// The elements, each read by `read`; no two may be equal.
template <class Value, class Read>
std::vector<Value> read_list(const JsonCursor& cursor, Read&& read) {
  if (!cursor.value().is_array() || cursor.value().empty()) {
    cursor.fail("must be an array with at least one element");
  }
  if (cursor.value().size() > kMostItems) {
    cursor.fail(fmt::format("more than {} elements; shorten the list", kMostItems));
  }
  std::vector<Value> values;
  for (std::size_t i = 0; i < cursor.value().size(); ++i) {
    Value value = read(cursor.at(i));
    for (std::size_t j = 0; j < i; ++j) {
      if (values[j] == value) cursor.at(i).fail(fmt::format("equals element {}; remove one", j));
    }
    values.push_back(std::move(value));
  }
  return values;
}

// A preset's name, or a short description of another format.
std::string format_name(const JsonCursor& cursor, const VqFormat& format) {
  const bool preset = cursor.value().is_string() && !names_a_file(cursor.string());
  return preset ? cursor.string() : short_name(format);
}

Named<VqFormat> read_weight_format(const JsonCursor& cursor) {
  const VqFormat format = read_format(cursor, FormatUse::weights);
  return {format, format_name(cursor, format)};
}

Named<CacheFormats> read_cache_formats(const JsonCursor& cursor) {
  cursor.expect_object({"keys", "values"});
  const JsonCursor keys = cursor.member("keys", ": the format of the keys");
  const JsonCursor values = cursor.member("values", ": the format of the values");
  const CacheFormats formats{read_format(keys, FormatUse::keys), read_value_format(values)};
  const std::string key_name = format_name(keys, formats.keys);
  const std::string value_name = format_name(values, formats.values);
  return {formats, key_name == value_name ? key_name : key_name + "/" + value_name};
}

SweepFormats read_formats(const JsonCursor& cursor) {
  cursor.expect_object({"weights", "kv"});
  SweepFormats formats;
  if (cursor.has("weights")) {
    formats.weights = read_list<Named<VqFormat>>(cursor.at("weights"), read_weight_format);
  }
  if (cursor.has("kv")) {
    formats.kv = read_list<Named<CacheFormats>>(cursor.at("kv"), read_cache_formats);
  }
  return formats;
}

// One combination of a shape's sizes. `sizes` names the varying ones: " rows=8".
template <class Shape>
struct Sized {
  Shape shape;
  std::string sizes;
};

template <class Shape>
std::vector<Sized<Shape>> read_shapes(const JsonCursor& cursor) {
  std::vector<std::string> known;
  for_each_field<Shape>([&](const auto& field) { known.emplace_back(field.name); });
  cursor.expect_object(known);
  std::vector<Sized<Shape>> all(1);
  for_each_field<Shape>([&]<class Member>(const Field<Shape, Member>& field) {
    if (!cursor.has(field.name)) {
      if (field.rule.required) cursor.member(field.name, std::string(": ") + field.doc);
      return;
    }
    const auto read = [&](const JsonCursor& at) {
      Member value{};
      read_value(at, field.rule, value);
      return value;
    };
    const JsonCursor at = cursor.at(field.name);
    const bool list = at.value().is_array();
    const std::vector<Member> values =
        list ? read_list<Member>(at, read) : std::vector<Member>{read(at)};
    if (all.size() > kMostItems / values.size()) {
      cursor.fail(fmt::format("more than {} combinations; shorten the lists", kMostItems));
    }
    std::vector<Sized<Shape>> next;
    for (const Sized<Shape>& each : all) {
      for (const Member value : values) {
        Sized<Shape> sized = each;
        sized.shape.*field.member = value;
        if constexpr (std::is_enum_v<Member>) {
          if (list) sized.sizes += fmt::format(" {}={}", field.name, enum_name(value));
        } else {
          if (list) sized.sizes += fmt::format(" {}={}", field.name, value);
        }
        next.push_back(std::move(sized));
      }
    }
    all = std::move(next);
  });
  return all;
}

// Collects the list of work.
class Expansion {
 public:
  explicit Expansion(DType dtype) : dtype_(dtype) {}

  void add(const JsonCursor& op, const SweepFormats& formats) {
    op.expect_object({"name", "op", "weight", "shape", "source"});
    name_ = op.member("name", ": what reports call the op").string();
    if (name_.empty()) op.at("name").fail("is empty; name the op");
    weight_ = op.has("weight") ? op.at("weight").number(0, kMostWeight) : 1;
    if (weight_ <= 0) op.at("weight").fail("must be above 0");
    if (op.has("source")) op.at("source").string();
    const JsonCursor shape = op.member("shape", ": sizes, each a number or a list");
    static constexpr std::array kOps{AttentionDecode::kOp, KvAppend::kOp, KvDequantize::kOp,
                                     Gemv::kOp, Gemm::kOp};
    const std::size_t kind = op.has("op")          ? op.at("op").choice(kOps)
                             : shape.has("tokens") ? 0
                                                   : kOps.size();
    if (kind == 0) {
      add_of_cache<AttentionDecode>(shape, formats);
    } else if (kind == 1) {
      add_of_cache<KvAppend>(shape, formats);
    } else if (kind == 2) {
      add_of_cache<KvDequantize>(shape, formats);
    } else {
      add_products(shape, formats, op.has("op") ? op.at("op").string() : "");
    }
  }

  Work finish(const JsonCursor& root) {
    if (work_.items.empty()) {
      throw Error(ErrorKind::infeasible,
                  fmt::format("{}: no problem of {} can be done: {}: {}; change shapes or formats",
                              root.source(), work_.skipped.size(), work_.skipped.front().label,
                              work_.skipped.front().reason));
    }
    return std::move(work_);
  }

 private:
  template <class Op>
  void add_of_cache(const JsonCursor& cursor, const SweepFormats& formats) {
    const auto shapes = read_shapes<decltype(Op::shape)>(cursor);
    if (formats.kv.empty()) cursor.fail("is of attention; give its formats in /formats/kv");
    for (const auto& [shape, sizes] : shapes) {
      for (const auto& [format, name] : formats.kv) {
        add(cursor, Op{dtype_, shape, format.keys, format.values}, sizes, name);
      }
    }
  }

  void add_products(const JsonCursor& cursor, const SweepFormats& formats, const std::string& op) {
    const auto shapes = read_shapes<LinearShape>(cursor);
    if (formats.weights.empty()) {
      cursor.fail("is a GEMM or GEMV; give its formats in /formats/weights");
    }
    for (const auto& [shape, sizes] : shapes) {
      const bool gemv = op.empty() ? shape.rows <= Gemv::kMostRows : op == Gemv::kOp;
      if (gemv ? shape.rows > Gemv::kMostRows : shape.rows < Gemm::kLeastRows) {
        cursor.at("m").fail(fmt::format("{} does not take m {}; remove it, or op", op, shape.rows));
      }
      for (const auto& [format, name] : formats.weights) {
        const Linear product{dtype_, shape, format};
        add(cursor, gemv ? Problem(Gemv{product}) : Problem(Gemm{product}), sizes, name);
      }
    }
  }

  void add(const JsonCursor& cursor, const Problem& problem, const std::string& sizes,
           const std::string& formats) {
    const std::string label = name_ + sizes + " " + formats;
    const auto known = places_.find(to_json(problem).dump());
    if (known != places_.end()) {
      work_.items[known->second].weight += weight_;
      return;
    }
    if (const std::string reason = why_not(problem, cursor); !reason.empty()) {
      work_.skipped.push_back({label, reason});
    } else {
      places_[to_json(problem).dump()] = work_.items.size();
      work_.items.push_back({problem, label, weight_});
    }
    if (work_.items.size() + work_.skipped.size() > kMostItems) {
      cursor.fail(fmt::format("makes more than {} problems; shorten the lists", kMostItems));
    }
  }

  // A format that does not fit a shape is not an error in the file: others of the list may fit.
  static std::string why_not(const Problem& problem, const JsonCursor& cursor) {
    try {
      validate(problem, cursor.source());
    } catch (const Error& error) {
      return error.what();
    }
    return check(problem).reason;
  }

  DType dtype_;
  std::string name_;
  double weight_ = 1;
  std::map<std::string, std::size_t> places_;  // indices of items, by their canonical problem
  Work work_;
};

Work read_sweep(const JsonCursor& root) {
  root.expect_object({"model", "dtype", "formats", "ops"});
  const JsonCursor model = root.member("model", ": name and source");
  model.expect_object({"name", "source"});
  const std::string name = model.member("name", ": what reports call it").string();
  model.member("source", ": where its sizes come from").string();
  DType dtype = DType::f16;
  if (root.has("dtype")) read_value(root.at("dtype"), Rule{}, dtype);
  const SweepFormats formats = read_formats(root.member("formats", ": weights, kv, or both"));
  const JsonCursor ops = root.at("ops");
  if (!ops.value().is_array() || ops.value().empty()) {
    ops.fail("must be an array with at least one op");
  }
  Expansion expansion(dtype);
  for (std::size_t i = 0; i < ops.value().size(); ++i) expansion.add(ops.at(i), formats);
  Work work = expansion.finish(root);
  work.name = name;
  return work;
}

Work read_one(const Json& json, const std::string& source) {
  const Config config = read_config(json, source);
  if (!config.plan.empty()) {
    throw Error(ErrorKind::bad_input,
                source +
                    ": /plan: fixes what tuning looks for; remove it, or measure the config "
                    "with vqgen measure");
  }
  if (const Verdict verdict = check(config.problem); !verdict.ok) {
    throw Error(ErrorKind::infeasible, source + ": " + verdict.reason);
  }
  const std::string name = std::filesystem::path(source).stem().string();
  return {name, {{config.problem, name, 1}}, {}, config.gpu, config.access_counts};
}

}  // namespace

Work read_work(const std::string& name) {
  if (!names_a_file(name)) {
    const EmbeddedFile& file = find_sweep(name);
    return read_work(parse_json(file.text, std::string(file.path)), std::string(file.path));
  }
  return read_work(parse_json_file(name), name);
}

Work read_work(const Json& json, const std::string& source) {
  const JsonCursor root(json, source);
  if (root.has("ops")) return read_sweep(root);
  if (root.has("op")) return read_one(json, source);
  root.fail("is neither a sweep, which has ops, nor a config, which has op");
}

}  // namespace vqgen
