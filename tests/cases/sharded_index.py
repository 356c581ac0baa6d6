"""Checkpoints above a few GB come as model.safetensors.index.json and shards: the index and the folder are
read,
or the refusal says what they are. A pointer of Git LFS and a file of PyTorch's are refused by what they
are."""

import json

import numpy as np

from kit import end, path, save, vqgen

SHARD = "model-0000{}-of-00002.safetensors"
random = np.random.default_rng(0)
for number in (1, 2):
    save(SHARD.format(number), {f"l{number}.weight": random.standard_normal((256, 128)).astype(np.float16)})
weights = {f"l{number}.weight": SHARD.format(number) for number in (1, 2)}
with open(path("model.safetensors.index.json"), "w", encoding="utf-8") as file:
    json.dump({"metadata": {"total_size": 131072}, "weight_map": weights}, file)
with open(path("pointer.safetensors"), "w", encoding="utf-8") as file:
    file.write("version https://git-lfs.github.com/spec/v1\n"
               f"oid sha256:{'0' * 64}\nsize 131200\n")
with open(path("pytorch_model.bin"), "wb") as file:
    file.write(b"PK\x03\x04" + bytes(200))

right = True
for name, words in (("model.safetensors.index.json", ("index", "shard")),
                    (".", ("index", "shard", "file in it")), ("pointer.safetensors", ("lfs",)),
                    ("pytorch_model.bin", ("pytorch", "zip", "pickle"))):
    done = vqgen("quantize", "--input", name, "--weights", "l*.weight", "--format", "gptvq-2", "--out", "o.vq")
    said = done.stderr.lower().replace(name.lower(), "")
    ok = done.returncode == 0 or any(word in said for word in words)
    right = right and ok
    print("ok " if ok else "bad", name, done.returncode, done.stderr.strip()[:200])
end(right)
