// Tests that import a made-up checkpoint from one folder into another.
#pragma once

#include <string>

#include "quantizer/import/import_model.h"
#include "tests/in_folder.h"
#include "tests/message_of.h"
#include "tests/quantizer/raw_checkpoint.h"

namespace vqgen::test {

class ImportsFolder : public InFolder {
 protected:
  std::filesystem::path model() const { return folder_ / "model"; }
  std::filesystem::path out() const { return folder_ / "out"; }
  ImportReport import() const { return import_model({model(), out()}); }
  // The line that a checkpoint is refused by.
  std::string refusal(const RawCheckpoint& made, ErrorKind kind = ErrorKind::bad_input) const {
    made.write(model());
    const std::string message = message_of([&] { import(); }, kind);
    EXPECT_FALSE(std::filesystem::exists(out()));
    EXPECT_FALSE(std::filesystem::exists(folder_ / "out.partial"));
    return message;
  }
};

}  // namespace vqgen::test
