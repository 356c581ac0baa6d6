"""Keys with a bias of norm 600 in eight slow channels of each head, as in k_proj of some Qwen2.5 layers, and
|k|
11 otherwise. Softmax ignores what all tokens' keys share: the loss of attention must be near that without the
bias, or the tool must say that keys have a common part."""

import re

import numpy as np

from kit import bf16, config, end, save, vqgen

CHANNELS = [60, 61, 62, 63, 124, 125, 126, 127]


def data(name, seed, bias):
    random = np.random.default_rng(seed)
    keys = random.standard_normal((2, 1024, 128)) + bias
    values = random.standard_normal((2, 1024, 128))
    save(name, {"l.k": bf16(keys), "l.v": bf16(values), "l.q": bf16(random.standard_normal((14, 16, 128)))})


def loss(form, bias):
    """Return the error of keys, the loss of attention, and whether the common part is named."""
    data("cal.safetensors", 1, bias)
    data("in.safetensors", 2, bias)
    made = vqgen("quantize", "--input", "in.safetensors", "--calibration", "cal.safetensors", "--out", "o.vq",
                 "--keys", "*.k", "--values", "*.v", "--queries", "*.q", "--keep-original",
                 "--key-format", form, "--value-format", form, check=True)
    config(op="attention_decode", dtype="bf16", keys=form, values=form,
           shape={"batch": 16, "query_heads": 14, "kv_heads": 2, "head_dim": 128, "tokens": 1024})
    ran = vqgen("run", "c.json", "--data", "o.vq", "--gpu", "h200").stdout
    return (float(re.search(r"error [\d.]+ calibration, ([\d.]+)", made.stdout)[1]),
            float(re.search(r"unquantized ([\d.]+)", ran)[1]), "common" in made.stdout + made.stderr)


shared = np.zeros((2, 1, 128), np.float32)
shared[:, :, CHANNELS] = np.random.default_rng(9).standard_normal((2, 1, len(CHANNELS)))
shared *= 600 / np.linalg.norm(shared, axis=-1, keepdims=True)
right = True
for each in ("vecinfer-d4b8i8", "vecinfer-d2b8", "fp8-e4m3", "int8-channel"):
    keys_without, without, _ = loss(each, 0 * shared)
    keys_with, with_bias, said = loss(each, shared)
    right = right and (with_bias <= 2 * without or said)
    print(f"{each:16s} without bias: keys {keys_without:.4f}, attention {without:.3f}; "
          f"with it: keys {keys_with:.4f}, attention {with_bias:.3f}")
end(right)
