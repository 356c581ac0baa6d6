#!/usr/bin/env python3
"""Makes tests/data/*.safetensors from the tinycode model: one layer's keys, values and queries, and
part of one projection weight with real rows of its input.

  scripts/make_sample_data.py FOLDER [OUT]     OUT is tests/data unless given

FOLDER holds the model (tinycode-*-of-*.safetensors), its cached keys and values
(tinycode-kv-{calibration,heldout}.safetensors). Standard library only; the forward pass for the
input rows takes about a minute and is checked against the stored keys and values. tests/data/README.md
says what the files hold and why these parts were taken.
"""

import json
import math
import pathlib
import struct
import sys

LAYER = 2
WEIGHT = "down"  # y = down(silu(gate(h)) * up(h)): 1408 input features
WEIGHT_ROWS = 224  # of 512 output features, so that all files stay within 5 MB
CONTEXT = 40  # bytes of the held-out text that the forward pass reads
INPUT_ROWS = 8  # the last of them become `x`

MAX_ERROR = 5e-3  # of the forward pass against the stored float16 keys and values

HEADS, KV_HEADS, HEAD_DIM, THETA, EPSILON = 8, 2, 128, 500000.0, 1e-5


def read_safetensors(path):
    """Name -> (shape, float16 bytes)."""
    data = path.read_bytes()
    (header_bytes,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + header_bytes])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if entry["dtype"] != "F16":
            raise ValueError(f"{path}: {name} is {entry['dtype']}, not F16")
        begin, end = (8 + header_bytes + offset for offset in entry["data_offsets"])
        tensors[name] = (entry["shape"], data[begin:end])
    return tensors


def write_safetensors(path, tensors, origin):
    """Writes float16 tensors in order of name, the header padded to a multiple of 8 bytes."""
    header, offset = {"__metadata__": {"origin": origin}}, 0
    for name, (shape, data) in sorted(tensors.items()):
        header[name] = {"dtype": "F16", "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    body = b"".join(data for _, (_, data) in sorted(tensors.items()))
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)
    print(f"{path}: {path.stat().st_size} bytes, {', '.join(sorted(tensors))}")


def floats(tensor):
    return struct.unpack(f"<{len(tensor[1]) // 2}e", tensor[1])


class Model:
    """The first layers of tinycode, a token at a time: a Llama-style decoder in plain Python."""

    def __init__(self, tensors):
        self.tensors = tensors
        self.unpacked = {}
        self.keys, self.values = {}, {}  # (layer, kv head) -> list of vectors

    def vector(self, name):
        if name not in self.unpacked:
            self.unpacked[name] = floats(self.tensors[name])
        return self.unpacked[name]

    def linear(self, name, x):
        weight, columns = self.vector(name + ".weight"), len(x)
        y = [math.sumprod(weight[i : i + columns], x) if hasattr(math, "sumprod")
             else sum(map(float.__mul__, weight[i : i + columns], x))
             for i in range(0, len(weight), columns)]
        if name + ".bias" in self.tensors:
            y = [a + b for a, b in zip(y, self.vector(name + ".bias"))]
        return y

    def norm(self, name, x):
        scale = 1.0 / math.sqrt(sum(a * a for a in x) / len(x) + EPSILON)
        return [a * scale * g for a, g in zip(x, self.vector(name + ".weight"))]

    @staticmethod
    def rotate(x, position):
        """RoPE in halves layout: channel i turns with channel i + HEAD_DIM / 2."""
        half = HEAD_DIM // 2
        out = list(x)
        for i in range(half):
            angle = position * THETA ** (-i / half)
            c, s = math.cos(angle), math.sin(angle)
            out[i], out[i + half] = x[i] * c - x[i + half] * s, x[i + half] * c + x[i] * s
        return out

    @staticmethod
    def heads(x):
        return [x[i : i + HEAD_DIM] for i in range(0, len(x), HEAD_DIM)]

    def attention(self, layer, h, position):
        block = f"blocks.{layer}."
        queries = self.heads(self.linear(block + "q", h))
        for head, (k, v) in enumerate(zip(self.heads(self.linear(block + "k", h)),
                                          self.heads(self.linear(block + "v", h)))):
            self.keys.setdefault((layer, head), []).append(self.rotate(k, position))
            self.values.setdefault((layer, head), []).append(v)
        out = []
        for head, query in enumerate(queries):
            kv = (layer, head // (HEADS // KV_HEADS))
            query = self.rotate(query, position)
            scores = [sum(a * b for a, b in zip(query, key)) / math.sqrt(HEAD_DIM)
                      for key in self.keys[kv]]
            top = max(scores)
            weights = [math.exp(score - top) for score in scores]
            total = sum(weights)
            out += [sum(w * v[c] for w, v in zip(weights, self.values[kv])) / total
                    for c in range(HEAD_DIM)]
        return self.linear(block + "o", out)

    def down_input(self, token, position):
        """The input of blocks.LAYER.down for one token, all earlier ones having been given."""
        hidden = len(self.vector("norm.weight"))
        x = list(self.vector("emb.weight")[token * hidden : (token + 1) * hidden])
        for layer in range(LAYER + 1):
            block = f"blocks.{layer}."
            attended = self.attention(layer, self.norm(block + "n1", x), position)
            x = [a + b for a, b in zip(x, attended)]
            h = self.norm(block + "n2", x)
            gate, up = self.linear(block + "gate", h), self.linear(block + "up", h)
            inner = [g / (1.0 + math.exp(-g)) * u for g, u in zip(gate, up)]
            if layer == LAYER:
                return inner
            x = [a + b for a, b in zip(x, self.linear(block + "down", inner))]


def main(folder, out):
    out.mkdir(parents=True, exist_ok=True)
    caches = {}
    for part in ("calibration", "heldout"):
        name = f"tinycode-kv-{part}.safetensors"
        caches[part] = read_safetensors(folder / name)
        taken = {k: v for k, v in caches[part].items() if k.startswith(f"layer{LAYER}.")}
        write_safetensors(out / name, taken, f"tinycode, layer {LAYER}, {part} text")

    tensors = {}
    for shard in sorted(folder.glob("tinycode-*-of-*.safetensors")):
        tensors.update(read_safetensors(shard))
    model = Model(tensors)
    text = recover_text(model, caches["heldout"]["layer0.v"], CONTEXT)
    rows = [model.down_input(token, position) for position, token in enumerate(text)]
    check_match(caches["heldout"][f"layer{LAYER}.k"], model.keys)
    check_match(caches["heldout"][f"layer{LAYER}.v"], model.values)

    (_, columns), data = tensors[f"blocks.{LAYER}.{WEIGHT}.weight"]
    x = [value for row in rows[-INPUT_ROWS:] for value in row]
    write_safetensors(
        out / "tinycode-weight.safetensors",
        {
            f"blocks.{LAYER}.{WEIGHT}.weight": ([WEIGHT_ROWS, columns],
                                                data[: WEIGHT_ROWS * columns * 2]),
            "x": ([INPUT_ROWS, columns], struct.pack(f"<{len(x)}e", *x)),
        },
        f"tinycode, first {WEIGHT_ROWS} output features, with inputs from held-out text",
    )


def recover_text(model, tensor, count):
    """The first bytes of the text behind a cache: a value of layer 0 depends on its byte alone."""
    stored, hidden = floats(tensor), len(model.vector("norm.weight"))
    table = []
    for token in range(256):
        x = model.vector("emb.weight")[token * hidden : (token + 1) * hidden]
        table.append(model.linear("blocks.0.v", model.norm("blocks.0.n1", x))[:HEAD_DIM])

    def distance(token, vector):
        return sum((a - b) ** 2 for a, b in zip(table[token], vector))

    vectors = [stored[i * HEAD_DIM : (i + 1) * HEAD_DIM] for i in range(count)]
    return bytes(min(range(256), key=lambda token: distance(token, v)) for v in vectors)


def check_match(tensor, mine):
    """Fails unless the forward pass gives the stored cache again, but for float16 rounding."""
    (_, tokens, channels), stored = tensor[0], floats(tensor)
    error = norm = 0.0
    for head in range(KV_HEADS):
        for position, vector in enumerate(mine[(LAYER, head)]):
            base = (head * tokens + position) * channels
            error += sum((a - b) ** 2 for a, b in zip(vector, stored[base : base + channels]))
            norm += sum(b * b for b in stored[base : base + channels])
    relative = math.sqrt(error / norm)
    print(f"forward pass against the stored cache: relative error {relative:.1e}")
    if relative > MAX_ERROR:
        sys.exit(f"make_sample_data: the forward pass is off by {relative:.1e}, over {MAX_ERROR}")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    default = pathlib.Path(__file__).resolve().parent.parent / "tests" / "data"
    main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]) if len(sys.argv) == 3 else default)
