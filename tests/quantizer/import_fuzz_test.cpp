// Mutated checkpoints: each is imported or refused by one line, without a crash, a hang, or memory
// beyond a bound. The files are planned and all of their tensors decoded, and nothing is written.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <fstream>

#include "quantizer/import/aqlm.h"
#include "quantizer/import/bitsandbytes.h"
#include "quantizer/import/gguf_model.h"
#include "quantizer/import/quip.h"
#include "tests/in_folder.h"
#include "tests/quantizer/bitsandbytes_checkpoint.h"
#include "tests/quantizer/fuzz_files.h"
#include "tests/quantizer/gguf_models.h"
#include "tests/quantizer/quip_checkpoint.h"

namespace vqgen {
namespace {

namespace fs = std::filesystem;

// The bound on memory holds in this process from here on; sanitizers reserve more than it.
void bound_memory() {
#ifndef __SANITIZE_ADDRESS__
  const rlimit most{std::uint64_t{3} << 30, RLIM_INFINITY};
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &most), 0);
#endif
}

// Not published: a fuzz has no use for files that are on the disk for certain.
void put(const fs::path& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), std::ssize(bytes));
}

void decode_all(const ImportPlan& plan) {
  for (const ImportedTensor& tensor : plan.tensors) {
    std::uint64_t next = 0;
    tensor.write([&](std::uint64_t offset, std::span<const std::byte> bytes) {
      ASSERT_EQ(offset, next) << tensor.info.name;
      next += bytes.size();
    });
    ASSERT_EQ(next, tensor.info.end) << tensor.info.name;
  }
}

class ImportFuzz : public test::InFolder {
 protected:
  // Mutates the tensors or the config of a checkpoint, and plans it by `plan`; only while its
  // config has a quantization_config, if `by_method`.
  void fuzz_folder(const char* name, const RawCheckpoint& made, bool by_method,
                   ImportPlan (*plan)(const fs::path&, const ModelConfig&)) {
    made.write(folder_);
    const fs::path files[] = {folder_ / "model.safetensors", folder_ / "config.json"};
    const std::vector<std::string> corpus{read_text(files[0]), read_text(files[1])};
    fuzz(name, corpus, [&](Mutator& mutator, std::size_t base) {
      put(files[1 - base], corpus[1 - base]);
      put(files[base], mutator.mutate(corpus[base]));
      const ModelConfig config = read_model_config(folder_);
      if (by_method && (!config.quantization || !config.quantization->is_object())) return;
      decode_all(plan(folder_, config));
    });
  }
};

TEST_F(ImportFuzz, Gguf) {
  bound_memory();
  const std::vector<std::string> corpus{gguf_models::llama().file(),
                                        gguf_models::qwen("qwen2").file(),
                                        gguf_models::qwen("qwen3").file(),
                                        gguf_models::wide_llama({16, 21, 17, 18}).file(),
                                        gguf_models::wide_mixture("llama", {16, 29, 22}).file(),
                                        gguf_models::wide_mixture("qwen3moe", {19, 19, 10}).file()};
  const fs::path path = folder_ / "model.gguf";
  fuzz("gguf", corpus, [&](Mutator& mutator, std::size_t base) {
    const std::string& whole = corpus[base];
    const std::size_t header = whole.size() < 4096 ? whole.size() : 4096;
    // Most of a file is data, which is hard to get wrong.
    put(path, mutator.below(4) == 0
                  ? mutator.mutate(whole)
                  : mutator.mutate(whole.substr(0, header)) + whole.substr(header));
    decode_all(plan_gguf(path, {}, {}));
  });
}

TEST_F(ImportFuzz, Aqlm) {
  bound_memory();
  RawCheckpoint made;
  made.config["quantization_config"] = {{"quant_method", "aqlm"},
                                        {"in_group_size", 8},
                                        {"out_group_size", 1},
                                        {"num_codebooks", 2},
                                        {"nbits_per_codebook", 6}};
  const std::string module = "model.layers.0.mlp.up_proj";
  made.add(module + ".codes", "I8", {8, 5, 2}, std::vector<std::int8_t>(80, -3));
  made.add(module + ".codebooks", "F16", {2, 64, 1, 8}, std::vector<std::uint16_t>(1024, 0x3c00));
  made.add(module + ".scales", "F16", {8, 1, 1, 1}, std::vector<std::uint16_t>(8, 0x3c00));
  made.add("model.norm.weight", "F32", {4}, std::vector<float>(4, 1));
  fuzz_folder("aqlm", made, true, plan_aqlm);
}

TEST_F(ImportFuzz, Bitsandbytes) {
  bound_memory();
  fuzz_folder("bitsandbytes", bitsandbytes_checkpoint("nf4_double"), true, plan_bitsandbytes);
}

TEST_F(ImportFuzz, Quip) {
  bound_memory();
  RawCheckpoint made = quip_checkpoint("model.layers.0.mlp.upgate_proj");
  made.config["quip_params"]["rescale_WH"] = true;
  made.config["quip_params"]["resid_scale_override"] = 3.5;
  fuzz_folder("quip", made, false, plan_quip);
}

}  // namespace
}  // namespace vqgen
