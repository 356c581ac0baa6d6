#include "core/json/json.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "core/files/files.h"
#include "core/json/json_text.h"
#include "core/suggest.h"

namespace vqgen {
namespace {

constexpr std::size_t kMaxDepth = 64;

// nlohmann's message without "[json.exception...] ", and only the beginning of a broken text.
std::string plain_what(const nlohmann::detail::exception& error) {
  constexpr std::size_t kLongest = 240;
  std::string what = error.what();
  what.erase(0, what.starts_with('[') ? what.find("] ") + 2 : 0);
  if (what.size() > kLongest) what = what.substr(0, kLongest) + "...";
  return what;
}

// Builds the value from the events of the parser, and refuses what nlohmann accepts in silence.
class StrictBuilder : public nlohmann::json_sax<Json> {
 public:
  bool null() override { return put(nullptr) != nullptr; }
  bool boolean(bool fact) override { return put(fact) != nullptr; }
  bool number_integer(number_integer_t number) override { return put(number) != nullptr; }
  bool number_unsigned(number_unsigned_t number) override { return put(number) != nullptr; }
  bool number_float(number_float_t number, const string_t&) override {
    return put(number) != nullptr;
  }
  bool string(string_t& text) override { return put(std::move(text)) != nullptr; }
  bool binary(binary_t& bytes) override { return put(std::move(bytes)) != nullptr; }
  bool start_object(std::size_t) override { return enter(Json::object()); }
  bool start_array(std::size_t) override { return enter(Json::array()); }
  bool end_object() override { return leave(); }
  bool end_array() override { return leave(); }
  bool key(string_t& name) override {
    Level& level = levels_.back();
    const auto [member, fresh] = level.container->emplace(name, nullptr);
    if (!fresh) {
      level.key.clear();
      problem =
          fmt::format("{}: the key '{}' is there twice in one object; remove one", path(), name);
      return false;
    }
    level.key = "/" + name;
    level.member = &*member;
    return true;
  }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    problem = fmt::format("malformed JSON near byte {}: {}; correct it there", position,
                          plain_what(error));
    return false;
  }

  Json result;
  std::string problem;

 private:
  // An open object or array, with the member being read and "/its name" if it is an object.
  struct Level {
    Json* container;
    Json* member = nullptr;
    std::string key = {};
  };

  Json* put(Json&& value) {
    if (levels_.empty()) return &(result = std::move(value));
    Level& level = levels_.back();
    if (level.container->is_array()) return &level.container->emplace_back(std::move(value));
    return &(*level.member = std::move(value));
  }
  bool enter(Json&& container) {
    Json* const place = put(std::move(container));
    if (levels_.size() == kMaxDepth) {
      problem = fmt::format("{}: nested deeper than {} levels; flatten it", path(), kMaxDepth);
      return false;
    }
    levels_.push_back({place});
    return true;
  }
  bool leave() {
    levels_.pop_back();
    return true;
  }
  std::string path() const {
    std::string path;
    for (const Level& level : levels_) {
      const bool array = level.container->is_array();
      path += array ? fmt::format("/{}", level.container->size() - 1) : level.key;
    }
    return path.empty() ? "/" : path;
  }

  std::vector<Level> levels_;
};

std::string type_of(const Json& value) {
  if (value.is_number_float()) return fmt::format("the number {}", value.dump());
  if (value.is_number()) return fmt::format("the integer {}", value.dump());
  if (value.is_string()) return "a string";
  if (value.is_object()) return "an object";
  if (value.is_array()) return "an array";
  return value.dump();
}

// "1", "-2.5": bounds in messages, without an exponent for whole numbers.
std::string plain(double value) {
  if (std::floor(value) == value && std::abs(value) < 1e15) return fmt::format("{:.0f}", value);
  return fmt::format("{}", value);
}

}  // namespace

Json parse_json(std::string_view text, const std::string& source) {
  StrictBuilder builder;
  if (!Json::sax_parse(text.begin(), text.end(), &builder)) {
    std::string problem = std::move(builder.problem);
    std::replace(problem.begin(), problem.end(), '\n', ' ');
    throw Error(ErrorKind::bad_input, fmt::format("{}: {}", source, problem));
  }
  return std::move(builder.result);
}

Json parse_json_file(const std::filesystem::path& path) {
  return parse_json(read_text(path), path.string());
}

std::string json_text(const Json& value, int indent) {
  return value.dump(indent, ' ', true, Json::error_handler_t::replace);
}

std::string missing_hint(const char* doc, const Rule* bounds) {
  std::string hint = fmt::format(": {}", doc);
  if (bounds == nullptr) return hint;
  if (!bounds->only.empty())
    return hint + fmt::format("; give one of {}", fmt::join(bounds->only, ", "));
  return hint +
         fmt::format("; give a number from {} to {}", plain(bounds->min), plain(bounds->max));
}

JsonCursor JsonCursor::at(const std::string& key) const { return member(key); }

JsonCursor JsonCursor::member(const std::string& key, const std::string& hint) const {
  if (!value_->is_object())
    fail(fmt::format("must be an object, not {}{}", type_of(*value_), hint));
  const auto found = value_->find(key);
  if (found == value_->end()) fail(fmt::format("the field '{}' is missing{}", key, hint));
  return JsonCursor(*found, source_, path_ + "/" + key);
}

JsonCursor JsonCursor::at(std::size_t index) const {
  if (!value_->is_array()) fail(fmt::format("must be an array, not {}", type_of(*value_)));
  if (index >= value_->size()) fail(fmt::format("has no element {}", index));
  return JsonCursor((*value_)[index], source_, path_ + "/" + std::to_string(index));
}

void JsonCursor::fail(const std::string& message) const {
  throw Error(ErrorKind::bad_input,
              fmt::format("{}: {}: {}", source_, path_.empty() ? "/" : path_, message));
}

void JsonCursor::expect_object(const std::vector<std::string>& known) const {
  if (!value_->is_object()) fail(fmt::format("must be an object, not {}", type_of(*value_)));
  for (const auto& [key, unused] : value_->items()) {
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      fail(fmt::format("unknown field '{}'{}the fields here are {}", key, suggest_then(key, known),
                       few_of(known)));
    }
  }
}

bool JsonCursor::boolean() const {
  if (!value_->is_boolean()) fail(fmt::format("must be true or false, not {}", type_of(*value_)));
  return value_->get<bool>();
}

std::int64_t JsonCursor::integer(double min, double max) const {
  const bool huge = value_->is_number_unsigned() &&
                    value_->get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX);
  const bool whole = value_->is_number_integer() && !huge;
  const std::int64_t number = whole ? value_->get<std::int64_t>() : 0;
  const bool inside = static_cast<double>(number) >= min && static_cast<double>(number) <= max;
  if (!whole || !inside) {
    fail(fmt::format("must be a whole number from {} to {}, not {}", plain(min), plain(max),
                     type_of(*value_)));
  }
  return number;
}

int JsonCursor::integer_of(std::span<const int> only) const {
  const bool known = value_->is_number_integer() &&
                     std::ranges::any_of(only, [&](int each) { return *value_ == each; });
  if (!known) {
    fail(fmt::format("must be one of {}, not {}", fmt::join(only, ", "), type_of(*value_)));
  }
  return value_->get<int>();
}

double JsonCursor::number(double min, double max) const {
  const double number = value_->is_number() ? value_->get<double>() : NAN;
  if (!(number >= min && number <= max)) {
    fail(fmt::format("must be a number from {} to {}, not {}", plain(min), plain(max),
                     type_of(*value_)));
  }
  return number;
}

std::string JsonCursor::string() const {
  if (!value_->is_string()) fail(fmt::format("must be a string, not {}", type_of(*value_)));
  return value_->get<std::string>();
}

std::size_t JsonCursor::choice(std::span<const char* const> names) const {
  const std::string name = string();
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) {
    const std::vector<std::string> known(names.begin(), names.end());
    fail(did_you_mean(name, known).empty() ? fmt::format("'{}' is none of {}", name, few_of(known))
                                           : fmt::format("'{}' is unknown{}give one of {}", name,
                                                         suggest_then(name, known), few_of(known)));
  }
  return static_cast<std::size_t>(found - names.begin());
}

}  // namespace vqgen
