#include "cli/training_place.h"

#include "runtime/training/device_books.h"

namespace vqgen::cli {

TrainingPlace::TrainingPlace(const std::string& device) {
  if (device == "cpu") return;
  Environment environment = read_environment();
  if (device != "auto") environment.cuda.device = std::stoi(device);
  backend_ = make_cuda(environment);
  named_ = device != "auto";
  if (named_) backend_->release(backend_->allocate(1));  // opens the device, or says why not
  if (!named_ && !backend_->device()) backend_.reset();
  if (backend_) cache_ = make_cache(environment);
}

MakeBooks TrainingPlace::make_books() {
  return [this](std::vector<float> vectors, BookShape shape) {
    if (!backend_ || (!named_ && !trains_on_devices(shape.dimension))) {
      on_cpu_ = true;
      return make_host_books(std::move(vectors), std::move(shape));
    }
    auto books = make_device_books(*backend_, cache_.get(), vectors, std::move(shape));
    device_ = backend_->device()->name;
    return books;
  };
}

std::string TrainingPlace::planned() const { return backend_ ? backend_->device()->name : "cpu"; }

std::string TrainingPlace::name() const {
  if (device_.empty()) return on_cpu_ ? "cpu" : "";
  return on_cpu_ ? device_ + " and cpu" : device_;
}

}  // namespace vqgen::cli
