// The C functions of training, and of formats.
#include <fmt/format.h>

#include <cstring>

#include "core/format/e8p.h"
#include "core/problem/check.h"
#include "core/profiles.h"
#include "quantizer/model_folder.h"
#include "quantizer/train/train.h"
#include "runtime/library/last_error.h"
#include "runtime/library/registry.h"
#include "runtime/training/device_books.h"

using namespace vqgen::library;

namespace {

using vqgen::Error;
using vqgen::ErrorKind;

// Sub-vectors per unit. Throws Error for sizes that no memory holds.
vqgen::BookShape shape_of(const vqgen_training_args& args, const vqgen::VqFormat& format) {
  constexpr std::int64_t kMost = std::int64_t{1} << 40;
  const auto within = [](std::int64_t size) { return size >= 1 && size <= kMost; };
  if (!within(args.units) || !within(args.rows) || !within(args.columns) ||
      args.columns % format.vector_size != 0 || args.rows > kMost / args.columns ||
      args.units > kMost / (args.rows * args.columns)) {
    throw Error(ErrorKind::bad_input,
                fmt::format("training: vectors are [{}, {}, {}]; each size is at least 1, the last "
                            "a multiple of {}, and all are at most 2^40 numbers",
                            args.units, args.rows, args.columns, format.vector_size));
  }
  vqgen::BookShape shape{format.vector_size, {}};
  for (std::int64_t unit = 0; unit <= args.units; ++unit) {
    shape.begins.push_back(unit * args.rows * (args.columns / format.vector_size));
  }
  return shape;
}

vqgen::DType dtype_of(std::int32_t element) {
  if (element == VQGEN_F16) return vqgen::DType::f16;
  if (element == VQGEN_BF16) return vqgen::DType::bf16;
  throw Error(ErrorKind::bad_input,
              fmt::format("element is {}; it is VQGEN_F16 or VQGEN_BF16", element));
}

// Training on vectors that were not transformed would succeed silently and lose half as much again.
void require_no_transforms(const vqgen::VqFormat& format) {
  std::string names, off;
  for (const auto& [name, on] :
       {std::pair{"smooth", format.smooth}, std::pair{"hadamard", format.hadamard},
        std::pair{"output_scales", format.output_scales}}) {
    if (!on) continue;
    names += (names.empty() ? "" : " and ") + std::string(name);
    off += (off.empty() ? "" : ", ") + fmt::format("\"{}\": false", name);
  }
  if (names.empty()) return;
  throw Error(ErrorKind::bad_input,
              fmt::format("training: the format has {}, which training does not apply; transform "
                          "the vectors and give the format with {}, or use vqgen quantize or "
                          "vqgen.hf.calibrate(), which transform",
                          names, off));
}

vqgen::TrainRequest request_of(const vqgen_training_args& args, const vqgen::VqFormat& format) {
  vqgen::TrainRequest request{"training", format, vqgen::DType::f16, nullptr, {}};
  if (format.decoder != vqgen::Decoder::table) {
    throw Error(ErrorKind::infeasible,
                fmt::format("training: the decoder {} has no entries to train; use vqgen quantize, "
                            "which fits its scales",
                            vqgen::enum_name(format.decoder)));
  }
  require_no_transforms(format);
  if (args.iterations < 0) {
    throw Error(ErrorKind::bad_input,
                fmt::format("training: iterations is {}; it is at least 1, or 0 for the default",
                            args.iterations));
  }
  if (format.stage_scales && args.stage_scales == nullptr) {
    throw Error(ErrorKind::bad_input,
                "training: stage_scales is null, and the format has them; give memory for them");
  }
  request.dtype = dtype_of(args.element);
  if (args.iterations > 0) request.options.iterations = args.iterations;
  request.options.seed = args.seed;
  return request;
}

}  // namespace

vqgen_status vqgen_format_fields(const char* format, char** json) {
  return guarded({format, json}, [&] {
    *json = nullptr;
    *json = copied(to_json(vqgen::parse_format(format, "format")).dump());
    return VQGEN_OK;
  });
}

vqgen_status vqgen_weight_tensors(const char* format, int32_t element, int64_t out_features,
                                  int64_t in_features, char** json) {
  return guarded({format, json}, [&] {
    *json = nullptr;
    const vqgen::QuantizedTensor sizes =
        weight_sizes(vqgen::parse_format(format, "format"), dtype_of(element), out_features,
                     in_features, "format");
    vqgen::Json tensors = vqgen::Json::object();
    for (const vqgen::WeightTensor& each : weight_tensors(sizes)) {
      tensors[each.suffix + 1] = {enum_name(each.type), each.shape};
    }
    const vqgen::Verdict verdict =
        check(vqgen::Gemv{{sizes.dtype, {1, sizes.rows, sizes.columns}, sizes.format}});
    *json = copied(
        vqgen::Json{{"tensors", std::move(tensors)}, {"refused", verdict.ok ? "" : verdict.reason}}
            .dump());
    return VQGEN_OK;
  });
}

const float* vqgen_e8p_table(void) {
  static const std::vector<float> table = vqgen::e8p_table();
  return table.data();
}

vqgen_status vqgen_train_codebooks(vqgen_runtime* runtime, const vqgen_training_args* args) {
  return guarded({args}, [&] {
    if (args->struct_bytes != sizeof(*args)) {
      return fail(VQGEN_BAD_INPUT,
                  "vqgen_training_args has another size than the library's; set struct_bytes");
    }
    if (args->format == nullptr || args->vectors == nullptr || args->codebooks == nullptr) {
      return fail(VQGEN_BAD_INPUT, "training: format, vectors or codebooks is null");
    }
    const vqgen::VqFormat format = vqgen::parse_format(args->format, "format");
    if (format.in_parts()) {
      return fail(VQGEN_BAD_INPUT,
                  "training: keys in parts are trained part by part; give the format of one");
    }
    const vqgen::TrainRequest request = request_of(*args, format);
    vqgen::BookShape shape = shape_of(*args, format);
    std::unique_lock<std::mutex> one;
    std::unique_ptr<vqgen::VectorBooks> books;
    if (runtime == nullptr) {
      const std::int64_t count = shape.begins.back() * format.vector_size;
      books = vqgen::make_host_books({args->vectors, args->vectors + count}, std::move(shape));
    } else {
      one = std::unique_lock(runtime->registry->one_training);
      books = vqgen::borrow_device_books(runtime->registry->backend(), runtime->registry->cache(),
                                         args->vectors, std::move(shape));
    }
    const vqgen::Codebooks trained = vqgen::train_books(*books, request);
    std::memcpy(args->codebooks, trained.entries.data(), trained.entries.size() * 2);
    if (format.stage_scales) {
      std::memcpy(args->stage_scales, trained.stage_scales.data(),
                  trained.stage_scales.size() * sizeof(float));
    }
    return VQGEN_OK;
  });
}
