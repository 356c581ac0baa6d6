// Where quantize trains codebooks.
#pragma once

#include <memory>
#include <string>

#include "cli/command.h"
#include "quantizer/train/vector_books.h"

namespace vqgen::cli {

// Trains codebooks on the GPU that --device names, or on all cores.
class TrainingPlace {
 public:
  // Opens the device of a number, or says why not; auto takes GPU 0 if there is one.
  explicit TrainingPlace(const std::string& device);

  // Refers to this object.
  MakeBooks make_books();
  // The device that is trained on where it can train the format; else "cpu".
  std::string planned() const;
  // Where all of them were trained; "" if none was.
  std::string name() const;

 private:
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<ArtifactCache> cache_;
  bool named_ = false;
  bool on_cpu_ = false;
  std::string device_;
};

}  // namespace vqgen::cli
