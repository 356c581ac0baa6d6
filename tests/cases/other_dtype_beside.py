"""A shard whose other tensors have safetensors' newer types (F8_E8M0 scales, F4): the requested tensor is
F16,
and is quantized."""

import numpy as np

from kit import end, vqgen, write

weights = np.random.default_rng(0).standard_normal((256, 128)).astype(np.float16).tobytes()
right = True
for kind, size in (("F8_E8M0", 64), ("F4", 32), ("F6_E2M3", 48), ("F8_E4M3FNUZ", 64), ("C64", 512),
                   ("F8_E4M3", 64)):
    write("m.safetensors",
          {"scale": {"dtype": kind, "shape": [64], "data_offsets": [0, size]},
           "x.weight": {"dtype": "F16", "shape": [256, 128], "data_offsets": [size, size + len(weights)]}},
          bytes(size) + weights)
    done = vqgen("quantize", "--input", "m.safetensors", "--weights", "x.weight", "--format", "gptvq-2",
                 "--out", "o.vq")
    right = right and done.returncode == 0
    print(kind, done.returncode, done.stderr.strip()[:150] if done.returncode else "")
end(right)
