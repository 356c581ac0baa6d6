// Codebook training on a device (quantizer/train/vector_books.h): k-means runs there
// (templates/vq/training/training.cuh), on a GPU or on the host backend.
#pragma once

#include "quantizer/train/vector_books.h"
#include "runtime/backend/backend.h"
#include "runtime/cache/artifact_cache.h"

namespace vqgen {

// True if the size is 2, 4, 8 or 16.
bool trains_on_devices(int vector_size);

// The entries of a training text, in order.
enum class TrainingKernel { sums, subtract, peaks, gather };

// The text for vectors of this size, for which trains_on_devices() holds, with launches for `books`
// books of at most `vectors` vectors.
KernelSource training_source(int vector_size, std::int64_t books, std::int64_t vectors,
                             Machine machine, const std::string& arch);

// Uploads the vectors. `backend` has a device; it and `cache`, which may be null, outlive the
// books. Throws Error(device), and Error(infeasible) for sizes that devices do not train and for
// 2^32 vectors or more.
std::unique_ptr<VectorBooks> make_device_books(Backend& backend, ArtifactCache* cache,
                                               std::span<const float> vectors, BookShape shape);

// Uses device memory, [all][size] and 16-byte aligned, that the caller keeps as long as the books
// live. It is only read: subtract() makes a copy. Waits for the default stream first.
std::unique_ptr<VectorBooks> borrow_device_books(Backend& backend, ArtifactCache* cache,
                                                 const float* vectors, BookShape shape);

}  // namespace vqgen
