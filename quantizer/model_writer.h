// Writes a quantized model folder piece by piece, so that a killed run can be continued; internal
// to what makes such folders.
//
//   OUT.partial/journal.jsonl   the arguments, then a line for each finished layer
//   OUT.partial/model/          becomes OUT by one rename when all is there
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/files/placed_file.h"
#include "core/json/json.h"
#include "quantizer/safetensors.h"

namespace vqgen {

// A shard as it will be: its tensors' places are known before the first is written.
class ShardPlan {
 public:
  // Largest elements first, so that each tensor is aligned to its elements; `begin` and `end` of
  // `tensors` say how many bytes each has.
  ShardPlan(std::string name, std::vector<TensorInfo> tensors);

  const std::string& name() const { return name_; }
  const std::string& header() const { return header_; }
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  std::uint64_t data_bytes() const { return tensors_.empty() ? 0 : tensors_.back().end; }
  std::uint64_t bytes() const { return header_.size() + data_bytes(); }

 private:
  std::string name_;
  std::vector<TensorInfo> tensors_;
  std::string header_;
};

// A shard for each part, whose number is not kept, "model-00001-of-00003.safetensors".
std::vector<ShardPlan> number_shards(std::map<std::size_t, std::vector<TensorInfo>> parts);

class ModelWriter {
 public:
  // Judges the place: Error(bad_input) if `out` is there, its folder is missing, or `model` is it
  // or holds it. Writes nothing; removes the journal that a finished run has left.
  ModelWriter(const std::filesystem::path& out, const std::filesystem::path& model);

  // The shards and arguments, of which equal ones give equal bytes. Error(bad_input) where a run
  // with others has begun the folder, or the disk has too little space for shards and
  // `other_bytes`. Writes nothing.
  void plan(std::vector<ShardPlan> shards, Json arguments, std::uint64_t other_bytes);
  // What an earlier run has said of a layer that it finished; null if it has not.
  Json finished(const std::string& layer) const;
  std::size_t finished_layers() const { return finished_.size(); }

  // Makes the folder, or takes what an earlier run has left. Error(bad_input) if another run is
  // writing it.
  void begin();
  // Writes bytes of a tensor, from `offset` in it on.
  void write(const std::string& tensor, std::uint64_t offset, std::span<const std::byte> bytes);
  using NamedBytes = std::pair<std::string, std::span<const std::byte>>;
  // Writes the whole tensors of a layer. `facts` is an object, which finished() returns from now
  // on.
  void finish(const std::string& layer, std::span<const NamedBytes> tensors, Json facts);
  // Writes a whole file beside the shards.
  void add_file(const std::string& name, std::span<const std::byte> bytes) const;
  // Writes the index; then the folder gets its name, and all else is removed.
  void publish();
  // Removes what begin() made, with all that earlier runs have finished.
  void discard();

 private:
  struct Place {
    std::size_t shard;
    std::uint64_t offset, bytes;
  };

  std::filesystem::path journal_path() const { return partial_ / "journal.jsonl"; }
  void read_journal();
  void take_finished(const JsonCursor& line);
  void require_same(const JsonCursor& begun) const;
  void require_space(std::uint64_t other_bytes) const;

  std::filesystem::path out_, partial_, model_;
  std::vector<ShardPlan> shards_;
  std::map<std::string, Place> places_;
  Json arguments_;
  std::map<std::string, Json> finished_;
  std::uint64_t journal_bytes_ = 0;  // of whole lines
  std::unique_ptr<PlacedFile> journal_;
  std::vector<std::unique_ptr<PlacedFile>> files_;  // as shards_
};

}  // namespace vqgen
