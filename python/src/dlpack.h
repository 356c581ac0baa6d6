// As much of DLPack's C ABI as arguments need: a tensor that somebody else owns, and the table of
// functions by which a library hands one out without a Python object.
// https://dmlc.github.io/dlpack/latest/c_api.html, version 1.3.
#pragma once

#include <cstdint>

namespace vqgen::python {

enum DeviceType : std::int32_t { kCpu = 1, kCuda = 2, kCudaManaged = 13 };
enum TypeCode : std::uint8_t { kInt = 0, kUint = 1, kFloat = 2, kBfloat = 4, kBool = 6 };

struct DLDevice {
  std::int32_t type;
  std::int32_t id;
};

struct DLDataType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
  bool operator==(const DLDataType&) const = default;
};

struct DLTensor {
  void* data;
  DLDevice device;
  std::int32_t ndim;
  DLDataType dtype;
  const std::int64_t* shape;
  const std::int64_t* strides;  // elements; null where contiguous
  std::uint64_t byte_offset;
};

struct DLPackVersion {
  std::uint32_t major, minor;
};

// In a capsule "dltensor_versioned". One named "dltensor" begins with the tensor.
struct DLManagedTensorVersioned {
  DLPackVersion version;
  void* manager;
  void (*deleter)(DLManagedTensorVersioned*);
  std::uint64_t flags;
  DLTensor tensor;
};
inline constexpr std::uint64_t kReadOnly = 1;

// In a capsule "dlpack_exchange_api" that stands as __dlpack_c_exchange_api__ on the array's type.
struct ExchangeApi {
  DLPackVersion version;
  ExchangeApi* previous;  // of an older major version
  void* allocate;
  void* to_managed;
  void* from_managed;
  // 0, or -1 with a Python error set. The tensor is the object's, and lives as it does.
  int (*to_tensor)(void* object, DLTensor* tensor);
  int (*current_stream)(std::int32_t device_type, std::int32_t device, void** stream);
};

}  // namespace vqgen::python
