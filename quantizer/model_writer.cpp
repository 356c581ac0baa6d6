#include "quantizer/model_writer.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <set>

#include "core/error.h"
#include "core/files/digest.h"
#include "core/files/files.h"

namespace vqgen {
namespace {

namespace fs = std::filesystem;

constexpr const char* kJournalKey = "vqgen_quantize_model";
constexpr int kJournalVersion = 1;

[[noreturn]] void refuse(const std::string& message) { throw Error(ErrorKind::bad_input, message); }

// Without a slash at its end.
fs::path without_slash(const fs::path& path) {
  const fs::path normal = path.lexically_normal();
  return normal.has_filename() ? normal : normal.parent_path();
}

fs::path parent_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : ".";
}

bool is_inside(const fs::path& path, const fs::path& folder) {
  const fs::path inner = fs::weakly_canonical(fs::absolute(path));
  const fs::path outer = fs::weakly_canonical(fs::absolute(folder));
  return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
}

std::uint64_t bytes_on_disk(const fs::path& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 ? static_cast<std::uint64_t>(status.st_blocks) * 512
                                            : 0;
}

std::uint64_t element_bytes(const TensorInfo& tensor) {
  const std::int64_t elements = std::max<std::int64_t>(tensor.elements(), 1);
  return (tensor.end - tensor.begin) / static_cast<std::uint64_t>(elements);
}

void make_folder(const fs::path& folder) {
  std::error_code code;
  fs::create_directory(folder, code);
  if (!code) return;
  refuse(
      fmt::format("{}: cannot be made: {}; choose another --out", folder.string(), code.message()));
}

std::string as_line(const Json& json) { return json.dump() + "\n"; }

}  // namespace

ShardPlan::ShardPlan(std::string name, std::vector<TensorInfo> tensors)
    : name_(std::move(name)), tensors_(std::move(tensors)) {
  std::sort(tensors_.begin(), tensors_.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::pair(element_bytes(b), a.name) < std::pair(element_bytes(a), b.name);
  });
  std::uint64_t offset = 0;
  for (TensorInfo& tensor : tensors_) {
    const std::uint64_t bytes = tensor.end - tensor.begin;
    tensor.begin = offset;
    tensor.end = offset += bytes;
  }
  header_ = safetensors_header(tensors_, {{"format", "pt"}});  // which readers ask for
}

std::vector<ShardPlan> number_shards(std::map<std::size_t, std::vector<TensorInfo>> parts) {
  std::vector<ShardPlan> shards;
  for (auto& [part, tensors] : parts) {
    shards.emplace_back(
        fmt::format("model-{:05}-of-{:05}.safetensors", shards.size() + 1, parts.size()),
        std::move(tensors));
  }
  return shards;
}

ModelWriter::ModelWriter(const fs::path& out, const fs::path& model) : out_(without_slash(out)) {
  partial_ = out_;
  partial_ += ".partial";
  model_ = partial_ / "model";
  if (is_inside(out_, model)) {
    refuse(fmt::format("--out {}: is in the folder of the model, {}; choose a place outside of it",
                       out_.string(), model.string()));
  }
  std::error_code code;
  if (fs::exists(fs::symlink_status(out_, code))) {
    // A run that was killed just after its rename has left its journal.
    if (fs::exists(journal_path(), code) && !fs::exists(model_, code)) {
      fs::remove_all(partial_, code);
    }
    refuse(fmt::format("--out {}: is there already; remove it, or choose another name",
                       out_.string()));
  }
  const fs::path parent = parent_of(out_);
  if (!fs::is_directory(parent, code) || ::access(parent.c_str(), W_OK) != 0) {
    refuse(fmt::format("--out {}: {} is no folder that can be written; make it, or choose another",
                       out_.string(), parent.string()));
  }
}

void ModelWriter::plan(std::vector<ShardPlan> shards, Json arguments, std::uint64_t other_bytes) {
  shards_ = std::move(shards);
  arguments_ = std::move(arguments);
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    for (const TensorInfo& tensor : shards_[i].tensors()) {
      places_[tensor.name] = {i, shards_[i].header().size() + tensor.begin,
                              tensor.end - tensor.begin};
    }
  }
  read_journal();
  require_space(other_bytes);
}

void ModelWriter::require_same(const JsonCursor& begun) const {
  for (const auto& [name, value] : arguments_.items()) {
    if (begun.has(name) && begun.at(name).value() == value) continue;
    const std::string before = begun.has(name) ? begun.at(name).value().dump() : "not there";
    constexpr std::size_t kShown = 200;
    const bool shown = before.size() + value.dump().size() < kShown;
    refuse(
        fmt::format("{}: was begun with another '{}'{}; give the same arguments to go on, or "
                    "remove {}",
                    partial_.string(), name,
                    shown ? fmt::format(": {} where this run has {}", before, value.dump()) : "",
                    partial_.string()));
  }
}

void ModelWriter::read_journal() {
  std::error_code code;
  if (!fs::exists(journal_path(), code)) {
    if (!fs::exists(partial_, code) || fs::is_empty(partial_, code)) return;
    refuse(
        fmt::format("{}: is there without a journal, so no run of vqgen made it; "
                    "remove it, or choose another --out",
                    partial_.string()));
  }
  const std::string source = journal_path().string();
  const std::string text = read_text(journal_path());
  for (std::size_t end = 0; (end = text.find('\n', journal_bytes_)) != std::string::npos;) {
    const auto line = std::string_view(text).substr(journal_bytes_, end - journal_bytes_);
    const Json json = parse_json(line, source);
    const JsonCursor cursor(json, source);
    if (journal_bytes_ == 0) {
      const auto version = cursor.member(kJournalKey).integer(0, 1e9);
      if (version != kJournalVersion) {
        cursor.at(kJournalKey)
            .fail(fmt::format("is {} where this vqgen writes {}; remove {}", version,
                              kJournalVersion, partial_.string()));
      }
      require_same(cursor.member("arguments"));
    } else {
      take_finished(cursor);
    }
    journal_bytes_ = end + 1;
  }
}

// A layer whose bytes are not those that the journal tells of is not finished.
void ModelWriter::take_finished(const JsonCursor& line) {
  std::vector<std::string> tensors;
  read_value(line.member("tensors"), Rule{}, tensors);
  std::vector<std::byte> bytes;
  for (const std::string& tensor : tensors) {
    const auto place = places_.find(tensor);
    if (place == places_.end()) line.fail(fmt::format("no shard has the tensor '{}'", tensor));
    const fs::path path = model_ / shards_[place->second.shard].name();
    std::error_code code;
    if (!fs::exists(path, code)) return;
    const OpenFile file(path);
    const auto& [shard, offset, size] = place->second;
    if (file.size() < offset + size) return;
    const std::size_t begin = bytes.size();
    bytes.resize(begin + static_cast<std::size_t>(size));
    file.read(offset, std::span(bytes).subspan(begin));
  }
  if (sha256_hex(bytes) != line.member("sha256").string()) return;
  finished_[line.member("layer").string()] = line.member("facts").value();
}

void ModelWriter::require_space(std::uint64_t other_bytes) const {
  std::uint64_t needed = other_bytes;
  for (const ShardPlan& shard : shards_) {
    const std::uint64_t there = bytes_on_disk(model_ / shard.name());
    needed += shard.bytes() - std::min(shard.bytes(), there);
  }
  const fs::path parent = parent_of(out_);
  std::error_code code;
  const fs::space_info space = fs::space(parent, code);
  if (code || needed <= space.available) return;
  refuse(
      fmt::format("--out {}: needs {} bytes and {} has {} free; free some, or choose another "
                  "place",
                  out_.string(), needed, parent.string(), space.available));
}

Json ModelWriter::finished(const std::string& layer) const {
  const auto found = finished_.find(layer);
  return found == finished_.end() ? Json() : found->second;
}

void ModelWriter::begin() {
  // The journal comes before all else, since what is there without one is not taken.
  make_folder(partial_);
  journal_ = std::make_unique<PlacedFile>(journal_path());
  if (!journal_->lock()) {
    refuse(
        fmt::format("{}: another run of vqgen is writing it; wait for it, or choose another "
                    "--out",
                    partial_.string()));
  }
  if (journal_bytes_ == 0) {
    const std::string line = as_line({{kJournalKey, kJournalVersion}, {"arguments", arguments_}});
    journal_->write(0, std::as_bytes(std::span(line)));
    journal_bytes_ = line.size();
  }
  journal_->resize(journal_bytes_);  // a line that a kill has cut is gone
  journal_->sync();
  make_folder(model_);
  for (const ShardPlan& shard : shards_) {
    files_.push_back(std::make_unique<PlacedFile>(model_ / shard.name()));
    files_.back()->resize(shard.bytes());
    files_.back()->write(0, std::as_bytes(std::span(shard.header())));
  }
  sync_folder(model_);
  sync_folder(partial_);
}

void ModelWriter::write(const std::string& tensor, std::uint64_t offset,
                        std::span<const std::byte> bytes) {
  const Place& place = places_.at(tensor);
  files_[place.shard]->write(place.offset + offset, bytes);
}

void ModelWriter::finish(const std::string& layer, std::span<const NamedBytes> tensors,
                         Json facts) {
  std::vector<std::byte> all;
  std::vector<std::string> names;
  std::set<std::size_t> written;  // shards
  for (const auto& [name, bytes] : tensors) {
    write(name, 0, bytes);
    written.insert(places_.at(name).shard);
    all.insert(all.end(), bytes.begin(), bytes.end());
    names.push_back(name);
  }
  for (const std::size_t shard : written) files_[shard]->sync();
  const std::string line = as_line(
      {{"layer", layer}, {"tensors", names}, {"sha256", sha256_hex(all)}, {"facts", facts}});
  journal_->write(journal_bytes_, std::as_bytes(std::span(line)));
  journal_->sync();
  journal_bytes_ += line.size();
  finished_[layer] = std::move(facts);
}

void ModelWriter::add_file(const std::string& name, std::span<const std::byte> bytes) const {
  publish_file(model_ / name, bytes);
}

void ModelWriter::publish() {
  Json weight_map = Json::object();
  std::uint64_t total = 0;
  for (const ShardPlan& shard : shards_) {
    total += shard.data_bytes();
    for (const TensorInfo& tensor : shard.tensors()) weight_map[tensor.name] = shard.name();
  }
  const Json index = {{"metadata", {{"total_size", total}}}, {"weight_map", weight_map}};
  const std::string text = index.dump(2) + "\n";
  add_file("model.safetensors.index.json", std::as_bytes(std::span(text)));
  for (const auto& file : files_) file->sync();
  files_.clear();
  sync_folder(model_);
  std::error_code code;
  fs::rename(model_, out_, code);
  if (code) {
    refuse(fmt::format("--out {}: cannot be made of {}: {}; move it there", out_.string(),
                       model_.string(), code.message()));
  }
  sync_folder(parent_of(out_));
  discard();
}

void ModelWriter::discard() {
  files_.clear();
  journal_.reset();
  std::error_code code;
  fs::remove_all(partial_, code);
}

}  // namespace vqgen
