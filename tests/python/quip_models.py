"""QuIP#'s rotations and codes in double precision, and made-up checkpoints of it."""

import json
import os

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file

SAMPLES = os.path.join(os.environ["VQGEN_SOURCE_DIR"], "tests/data/checkpoints/quip.safetensors")
# First rows of the matrices had.52.will, had.156.will and had.172.will of Sloane's tables.
FIRST_ROWS = {
    52: "+-+--++++--+-+---++++++---++-+--++--+-++----+--+----",
    156: "+++--+-+-----+--++----++--+-----+-+--++++++---+--++----+-+--+-+----++--+---++++++--++-+---+-+--+----+--+-+---+-+"
         "+--+++---++-+-+-----+++-++-+++-----+-+-++---",
    172: "+---++--++++-+-+++-++--++-+++-+-++++--++---++-++++++----+-+--++-++-++--+-+----++++++-++++-+-++--+-+-++++-+----+-"
         "++++-+-+--++-+-++++---++++-+--+--++--------++--+--+-++++---+"}


def _square(q, number):
    return pow(int(number) % q, (q - 1) // 2, q) == 1


def matrix(order):
    """The matrix of QuIP# of such an order, +1 and -1."""
    if order in FIRST_ROWS:
        size, row = order // 4, [1 if sign == "+" else -1 for sign in FIRST_ROWS[order]]
        a, b, c, d = ([[row[part * size + (j - i) % size] for j in range(size)] for i in range(size)] for part in range(4))
        a, b, c, d = map(np.array, (a, b, c, d))
        return np.block([[a, b, c, d], [-b, a, -d, c], [-c, d, a, -b], [-d, -c, b, a]]).astype(float)
    if order in (28, 36):
        q = order // 2 - 1
        core = np.array([[0 if i == j else 1 if 0 in (i, j) or _square(q, j - i) else -1 for j in range(q + 1)] for i in range(q + 1)])
        one = np.eye(q + 1)
        return np.block([[core + one, core - one], [core - one, -core - one]])
    if order == 1:
        return np.ones((1, 1))
    q = order - 1
    return np.array([[1 if j == 0 or i == j else -1 if i == 0 or _square(q, j - i) else 1 for j in range(order)]
                     for i in range(order)], float)


def had(x, transposed=False):
    """Rows of x times the matrix over all of their features, as matmul_had.py of QuIP# does it."""
    features = x.shape[-1]
    odd = features
    while odd % 2 == 0:
        odd //= 2
    order = 1 if odd == 1 else 4 * odd
    rows = np.asarray(x, float).reshape(-1, order, features // order)
    step = 1
    while step < rows.shape[2]:
        pairs = rows.reshape(*rows.shape[:2], -1, 2, step)
        rows = np.stack([pairs[..., 0, :] + pairs[..., 1, :], pairs[..., 0, :] - pairs[..., 1, :]], -2).reshape(rows.shape)
        step *= 2
    first = matrix(order)
    return ((first.T if transposed else first) @ rows).reshape(np.shape(x)) / np.sqrt(features)


def decoded(words):
    """The numbers of Qidxs, int64 [out, in / 32]."""
    with safe_open(SAMPLES, "np") as file:
        table = file.get_tensor("table").astype(float) / 2
    rows, columns = words.shape[0], words.shape[1] * 4  # columns of codes
    words = words.view(np.uint64).reshape(rows // 16, columns // 8, 8, 4)
    codes = np.zeros((rows, columns), np.int64)
    for number in range(4):
        entry = words >> np.uint64(8 * number) & np.uint64(255)
        signs = sum((words >> np.uint64(32 + 4 * bit + number) & np.uint64(1)) << np.uint64(bit) for bit in range(8))
        tile = (entry << np.uint64(8) | signs).astype(np.int64)  # [tiles of rows, of columns, row, column]
        codes.reshape(rows // 16, 8, 2, columns // 8, 4, 2)[:, :, number % 2, :, :, number // 2] = tile.transpose(0, 2, 1, 3)
    entries, signs = table[codes >> 8], codes & 255
    odd = np.array([bin(number).count("1") % 2 for number in range(256)])[signs]
    signs = signs ^ odd
    minus = np.stack([signs >> place & 1 for place in (0, 4, 1, 5, 2, 6, 3)], -1)
    signed = entries[..., :7] * (1 - 2 * minus)
    even = (signed.sum(-1) + entries[..., 7]) % 2 == 0
    last = np.where(even, entries[..., 7], -entries[..., 7])
    return (np.concatenate([signed, last[..., None]], -1) + np.where(odd, -0.25, 0.25)[..., None]).reshape(rows, -1)


def write(model, folder, rescale=False, stages=1):
    """Write the model's folder with random codes for its linear layers, as QuIP# has them, and give the dense weights that they
    stand for to the model. stages: 1, of E8P12, or 2, of E8P12RVQ4B."""
    draw = np.random.default_rng(3)
    tensors = {name: tensor.cpu().clone() for name, tensor in model.state_dict().items() if "_proj." not in name}
    tensors["lm_head.weight"] = model.lm_head.weight.detach().cpu().clone()
    for number, layer in enumerate(model.model.layers):
        attention, mlp = layer.self_attn, layer.mlp
        for name, linears in (("self_attn.qkv_proj", (attention.q_proj, attention.k_proj, attention.v_proj)),
                              ("self_attn.o_proj", (attention.o_proj,)), ("mlp.upgate_proj", (mlp.up_proj, mlp.gate_proj)),
                              ("mlp.down_proj", (mlp.down_proj,))):
            rows, columns = [linear.out_features for linear in linears], linears[0].in_features
            words = draw.integers(-1 << 63, 1 << 63, (sum(rows), columns // 32 * stages))
            first, *second = np.split(words, stages, 1)
            numbers = decoded(np.ascontiguousarray(first)) + sum(decoded(np.ascontiguousarray(each)) / 3.45 for each in second)
            su, sv = (draw.choice([-1.0, 1.0], size) * draw.uniform(0.8, 1.25, size) for size in (columns, sum(rows)))
            su, sv = su.astype(np.float16), sv.astype(np.float16)
            scales, wh = draw.uniform(0.5, 2, len(rows)).astype(np.float16), draw.uniform(0.5, 2, columns).astype(np.float16)
            scale = np.float16(0.06)
            # y = SV o H What H^T (SU o x): the rows of W^T are what unit vectors give.
            inner = had(np.diag(su / (wh.astype(float) if rescale else 1)), transposed=True)
            dense = (had(inner @ numbers.T * float(scale)) * sv).T
            begin = 0
            for linear, count, own in zip(linears, rows, scales):
                part = dense[begin:begin + count] * (float(own) if len(rows) > 1 else 1)
                linear.weight.data = torch.from_numpy(part).to(linear.weight)
                begin += count
            stem = f"model.layers.{number}.{name}"
            made = {"Qidxs": words, "SU": su, "SV": sv, "Wscale": scale, "codebook_id": np.int64(7 if stages == 1 else 17)}
            made |= {"fuse_scales": scales} if len(rows) > 1 else {}
            made |= {"scaleWH": wh} if rescale else {}
            tensors |= {f"{stem}.{key}": torch.from_numpy(np.array(value)) for key, value in made.items()}
    folder.mkdir()
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    config = json.loads(model.config.to_json_string()) | {"quip_params": {
        "codebook": "E8P12" if stages == 1 else "E8P12RVQ4B", "codesz": 8, "packsz": 4 // stages, "idx_dtype": "torch.int64", "codebook_version": 1,
        "rescale_WH": rescale, "lora_rank": 0, "outlier_channel_split": False}}
    (folder / "config.json").write_text(json.dumps(config))
