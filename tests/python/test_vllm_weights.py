"""Quantized weights in vqgen.vllm: layers of a model folder, between stand-ins of vLLM's, in double precision."""

import importlib
import json
import pickle
import sys
import types

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
safetensors_torch = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")

import reference
import vqgen
import vqgen.torch as vt
from vllm_models import Fields, refused
from vllm_reference import DEVICE
from vqgen import _folders
from vqgen._weight_books import e8p_table, lattice_points, peak_of
from vqgen.vllm import _engine, _identity

MAX_BUCKETS = 1  # of the fixture own_cache
IN, Q, KV, DIM = 128, 4, 2, 32
SIZES = {"self_attn.q_proj": (Q * DIM, IN), "self_attn.k_proj": (KV * DIM, IN), "self_attn.v_proj": (KV * DIM, IN),
         "mlp.down_proj": (64, IN)}
QKV, DOWN = "model.layers.0.self_attn.qkv_proj", "model.layers.0.mlp.down_proj"
PACKED = {"qkv_proj": ["q_proj", "k_proj", "v_proj"]}
TILE = {"vector_size": 8, "index_bits": 8, "scope": "tile"}
FORMATS = {  # and the kernels of a layer of three parts
    "aqlm": ("aqlm-2x8i8", 1),
    "lattice": ("quip-2", 1),
    "layout": ({"vector_size": 4, "index_bits": 8, "stage_scales": True, "layout": {"rows": 2, "words": 2}}, 1),
    "tiles": ({**TILE, "tile_rows": 32, "tile_columns": 64}, 1),
    "large tiles": ({**TILE, "tile_rows": 128, "tile_columns": 64}, 3),
    "groups": ({"vector_size": 8, "index_bits": 8, "scope": "channel_group", "group_channels": 32, "stage_scales": True}, 3)}


@pytest.fixture(scope="module", autouse=True)
def half_by_default():
    """vLLM makes layers with the model's dtype as PyTorch's default, on its device."""
    torch.set_default_dtype(torch.float16)
    with DEVICE:
        yield
    torch.set_default_dtype(torch.float32)


# ---- a folder

def drawn(draw, form, suffix, kind, shape):
    """A tensor of a folder with random numbers."""
    if suffix == "codes":
        codes = torch.from_numpy(draw.integers(-1 << 31, 1 << 31, shape).astype(np.int32))
        return codes.bitwise_and(-0x60006001) if form.get("group_inputs") else codes  # f16 among them are below 1 / 128
    if suffix == "output_scales":
        return torch.from_numpy(draw.uniform(0.5, 2, shape).astype(np.float32))
    if suffix == "stage_scales":
        scales = draw.uniform(0.01, 0.02, shape).astype(np.float32)
        return torch.from_numpy(np.full_like(scales, scales[0, 0]) if form.get("common_scale") else scales)
    if form["decoder"] == "e8p":
        return e8p_table().cpu().expand(shape).contiguous().to(kind)
    peak = peak_of(form)
    return torch.from_numpy(draw.integers(-(peak or 50), (peak or 50) + 1, shape) / (1 if peak else 32)).to(kind)


def write(folder, draw, form, overrides=(), dense=("lm_head",), sizes=SIZES, **fields):
    """A folder with random codes; its tensors by name."""
    quantization = {"quant_method": "vqgen", "version": 1, "dtype": "f16", "format": vqgen.format_fields(form),
                    "overrides": [{"modules": name, "format": vqgen.format_fields(each)} for name, each in overrides],
                    "weight_shapes": [{"modules": f"*.{name}", "out_features": size[0], "in_features": size[1]}
                                      for name, size in sizes.items()], "modules_to_not_convert": list(dense), **fields}
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "quantization_config": quantization}))
    told, kinds = _folders.Quantization({**quantization, "version": 1}), {"F16": torch.float16, "BF16": torch.bfloat16}
    tensors = {"lm_head.weight": torch.zeros(4, IN, device="cpu")}
    for name, size in sizes.items():
        module = f"model.layers.0.{name}"
        if told.is_dense(module):
            tensors[f"{module}.weight"] = torch.zeros(size, device="cpu")
            continue
        for suffix, (kind, shape) in told.tensors_of(module, *size).items():
            tensors[f"{module}.{suffix}"] = drawn(draw, told.format_of(module), suffix, kinds.get(kind), shape)
    safetensors_torch.save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return quantization, tensors


def weight_of(quantization, tensors, module):
    """W [out, in] in double precision."""
    told = _folders.Quantization(quantization)
    form, (rows, columns) = told.format_of(module), told.shape_of(module)
    stages, size, layout = form["num_codebooks"], form["vector_size"], form.get("layout", {"rows": 1})
    codes = tensors[f"{module}.codes"].numpy().view(np.uint32)
    if layout["rows"] > 1:
        codes = codes.transpose(0, 2, 1, 3).reshape(codes.shape[0] * codes.shape[2], -1)
    numbers = reference.unpack(codes[:rows], columns // size * stages, form["index_bits"]).reshape(rows, -1, stages)
    books = tensors[f"{module}.codebooks"].double()
    if form["decoder"] == "e8p":
        books = torch.stack([torch.stack([lattice_points(table) for table in unit]) for unit in books]).double()
    books = books.cpu().numpy()
    if "stage_scales" in {name.rpartition(".")[2] for name in tensors if name.startswith(module)}:
        books = books * tensors[f"{module}.stage_scales"].double().numpy()[:, :, None, None]
    unit_rows, unit_columns = {"tile": (form["tile_rows"], form["tile_columns"]),
                               "channel_group": (rows, form["group_channels"])}.get(form["scope"], (rows, columns))
    across = -(-columns // unit_columns)
    unit = np.arange(rows)[:, None] // unit_rows * across + np.arange(0, columns, size)[None] // unit_columns
    dense = sum(books[unit, stage, numbers[:, :, stage]] for stage in range(stages)).reshape(rows, columns)
    scales = tensors.get(f"{module}.output_scales")
    return dense if scales is None else dense * scales.double().numpy()[:, None]


# ---- an engine

class Linear(torch.nn.Module):
    """What vLLM's layers do with a method: they make its weights, hand it tensors of files, and multiply."""

    def __init__(self, config, prefix, whole, own, columns, of_columns, rank=0, ranks=1, dtype=torch.float16):
        super().__init__()
        self.tp_rank, self.tp_size, self.prefix = rank, ranks, prefix
        self.quant_method = config.get_quant_method(self, prefix)
        self.quant_method.create_weights(self, columns, own, of_columns, sum(whole), dtype, weight_loader=None)

    def load(self, tensors, names):
        for name, shard in names.items():
            module = self.prefix.rpartition(".")[0] + "." + name
            for suffix in ("codes", "codebooks", "stage_scales", "output_scales"):
                if f"{module}.{suffix}" in tensors:
                    parameter = self.get_parameter(suffix)
                    parameter.weight_loader(parameter, tensors[f"{module}.{suffix}"].to(DEVICE), *shard)
        self.quant_method.process_weights_after_loading(self)
        return self

    def forward(self, x, bias=None):
        return self.quant_method.apply(self, x, bias)


class Base:
    """Of quantization configs."""

    def __init__(self):
        self.packed_modules_mapping = {}


PARTS = {"q_proj": ("q",), "k_proj": ("k",), "v_proj": ("v",)}


@pytest.fixture
def engine(monkeypatch):
    """vqgen.vllm._quantization between stand-ins of vLLM's modules; `current` is the configuration."""
    def module(name, **names):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        vars(sys.modules[name]).update(names)

    held = Fields(registered={}, current=Fields(lora_config=None, load_config=Fields(load_format="auto"),
                                                model_config=Fields(model="")), envs=Fields(VLLM_BATCH_INVARIANT=False))
    register = lambda name: lambda kind: held.registered.setdefault(name, kind)
    linears = "vllm.model_executor.layers.linear"
    module("vllm", envs=held.envs)
    monkeypatch.setitem(sys.modules, "vllm.envs", held.envs)
    module("vllm.config", get_current_vllm_config=lambda: held.current)
    module("vllm.model_executor.layers.fused_moe", RoutedExperts=type("RoutedExperts", (), {}))
    module(linears, LinearBase=Linear, LinearMethodBase=object, UnquantizedLinearMethod=type("Unquantized", (), {}))
    module("vllm.model_executor.layers.quantization", register_quantization_config=register)
    module("vllm.model_executor.layers.quantization.base_config", QuantizationConfig=Base)
    monkeypatch.setattr(_engine.importlib.metadata, "version", lambda name: "0.26.0")
    for name in ("vqgen.vllm._quantization", "vqgen.vllm._method"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    held.module = importlib.import_module("vqgen.vllm._quantization")

    def config_of(quantization, folder):
        held.current.model_config.model = str(folder)
        config = held.registered["vqgen"].from_config(quantization)
        config.packed_modules_mapping = PACKED
        return config

    held.config_of = config_of
    yield held
    for name in ("vqgen.vllm._quantization", "vqgen.vllm._method"):
        sys.modules.pop(name, None)


def qkv(config, rank=0, ranks=1, **more):
    own = [Q * DIM // ranks, *[max(KV // ranks, 1) * DIM] * 2]
    return Linear(config, QKV, [each * ranks for each in own], own, IN, IN, rank, ranks, **more)


def down(config, rank=0, ranks=1, **more):
    return Linear(config, DOWN, [64], [64], IN // ranks, IN, rank, ranks, **more)


def near(y, x, weight, most=4e-3):
    return reference.worst(y.double().cpu().numpy(), x.double().cpu().numpy() @ weight.T) < most


def qkv_weight(quantization, tensors, rank=0, ranks=1):
    parts = [weight_of(quantization, tensors, f"model.layers.0.self_attn.{name}_proj") for name in "qkv"]
    kv = rank * KV // ranks, max(KV // ranks, 1)
    spans = [(rank * Q // ranks, Q // ranks), kv, kv]
    return np.concatenate([part[first * DIM:(first + count) * DIM] for part, (first, count) in zip(parts, spans)])


@pytest.mark.parametrize("name", FORMATS)
def test_a_fused_layer_multiplies_by_its_parts(engine, draw, tmp_path, name):
    form, kernels = FORMATS[name]
    quantization, tensors = write(tmp_path / "model", draw, form)
    layer = qkv(engine.config_of(quantization, tmp_path / "model")).load(tensors, PARTS)
    assert len(layer.quant_method.own.launches) == kernels
    x, bias = torch.randn(2, 3, IN).half(), torch.randn(256).half()
    weight = qkv_weight(quantization, tensors)
    assert layer(x).shape == (2, 3, 256) and near(layer(x), x, weight)
    assert torch.equal(layer(x, bias), layer(x) + bias)
    assert layer(x[:0]).shape == (0, 3, 256)
    if name == "aqlm":  # more than a kernel takes, and more than launches do
        for rows in (torch.randn(count, IN).half() for count in (300, 2100)):
            assert near(layer(rows), rows, weight)


@pytest.mark.parametrize("name", ["aqlm", "tiles", "layout"])
def test_ranks_have_their_shards(engine, draw, tmp_path, name):
    quantization, tensors = write(tmp_path / "model", draw, FORMATS[name][0])
    config = lambda: engine.config_of(quantization, tmp_path / "model")
    x = torch.randn(3, IN).half()
    for ranks in (2, 4):  # of four, two have the same keys and values
        for rank in range(ranks):
            assert near(qkv(config(), rank, ranks).load(tensors, PARTS)(x), x, qkv_weight(quantization, tensors, rank, ranks))
    weight, total = weight_of(quantization, tensors, DOWN), 0
    for rank in range(2):
        own = slice(rank * IN // 2, (rank + 1) * IN // 2)
        y = down(config(), rank, 2).load(tensors, {"down_proj": ()})(x[:, own].contiguous())
        assert near(y, x[:, own], weight[:, own])
        total = total + y.double()
    assert near(total, x, weight)
    whole = Linear(config(), DOWN, [64], [64], IN, IN, 1, 2).load(tensors, {"down_proj": ()})  # a layer that is not shared
    assert near(whole(x), x, weight)


def test_parts_of_several_formats(engine, draw, tmp_path):
    quantization, tensors = write(tmp_path / "model", draw, "aqlm-2x8i8", [("*.v_proj", FORMATS["layout"][0])])
    layer = qkv(engine.config_of(quantization, tmp_path / "model")).load(tensors, PARTS)
    x = torch.randn(3, IN).half()
    assert len(layer.quant_method.own.launches) == 3 and near(layer(x), x, qkv_weight(quantization, tensors))
    assert sum(name.startswith("output_scales") for name, _ in layer.named_parameters()) == 2


def test_a_layer_that_the_folder_has_in_one(engine, draw, tmp_path):
    sizes = {"self_attn.qkv_proj": (256, IN)}
    quantization, tensors = write(tmp_path / "model", draw, "aqlm-2x8i8", sizes=sizes)
    config = engine.config_of(quantization, tmp_path / "model")
    config.packed_modules_mapping = {"qkv_proj": ["qkv_proj"]}
    x = torch.randn(3, IN).half()
    assert near(qkv(config).load(tensors, {"qkv_proj": ()})(x), x, weight_of(quantization, tensors, QKV))
    refused("is one layer in the folder and 3 in vLLM.*tensor_parallel_size to 1", lambda: qkv(config, 0, 2), vqgen.Infeasible)


def test_a_loaded_layer_is_compiled_whole(engine, draw, tmp_path):
    quantization, tensors = write(tmp_path / "model", draw, "aqlm-2x8i8")
    layer = qkv(engine.config_of(quantization, tmp_path / "model")).load(tensors, PARTS)
    vt.runtime(DEVICE).freeze()  # nothing is compiled from here on
    compiled = torch.compile(lambda x: layer(2 * x) + 1, fullgraph=True, backend="aot_eager", dynamic=True)
    for rows in (3, 7, 290):
        x = torch.randn(rows, IN).half()
        assert torch.equal(compiled(x), layer(2 * x) + 1)
    if DEVICE.type == "cuda":
        for rows in (3, 290):
            x, graph = torch.randn(rows, IN).half(), torch.cuda.CUDAGraph()
            layer(x)
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                y = layer(x)
            x.normal_()
            graph.replay()
            assert torch.equal(y, layer(x))
    device = vt.runtime(DEVICE).device
    vt.use_runtime(vqgen.Runtime(device, cache_dir=tmp_path / "kernels", max_buckets=1))


@pytest.mark.parametrize("name", ["aqlm", "lattice", "tiles"])
def test_dummies_are_random_weights(engine, draw, tmp_path, name):
    quantization, _ = write(tmp_path / "model", draw, FORMATS[name][0])
    (tmp_path / "model" / "model.safetensors").unlink()
    engine.current.load_config.load_format = "dummy"
    layer = down(engine.config_of(quantization, tmp_path / "model"))
    for parameter in layer.parameters():  # as vLLM initializes dummies
        if parameter.is_floating_point():
            parameter.data.uniform_(-1e-3, 1e-3)
        else:
            parameter.data.zero_()
    layer.quant_method.process_weights_after_loading(layer)
    y = layer(torch.randn(5, IN).half())
    assert y.isfinite().all() and 0.02 < y.float().std() < 2 and len(layer.codes.unique()) > 100


def test_what_is_dense_is_left_alone(engine, draw, tmp_path):
    quantization, _ = write(tmp_path / "model", draw, "aqlm-2x8i8", dense=("lm_head", "*.down_proj"))
    config = engine.config_of(quantization, tmp_path / "model")
    config = pickle.loads(pickle.dumps(config))  # as workers get it
    layer = Linear.__new__(Linear)
    assert type(config.get_quant_method(layer, DOWN)).__name__ == "Unquantized"
    assert all(config.get_quant_method(object(), name) is None for name in ("lm_head", "model.embed_tokens"))
    assert config.get_supported_act_dtypes() == [torch.float16] and config.get_name() == "vqgen"
    refused(r"model.safetensors: tensor 'model.layers.0.mlp.up_proj.weight': is not there", lambda: engine.config_of(
        {**quantization, "modules_to_not_convert": ["*.up_proj"]}, tmp_path / "model").get_quant_method(
            layer, "model.layers.0.mlp.up_proj"), vqgen.BadInput)


def test_what_is_not_served_is_refused(engine, draw, tmp_path, monkeypatch):
    folder = tmp_path / "model"
    quantization, tensors = write(folder, draw, "aqlm-2x8i8")
    config = lambda **fields: engine.config_of({**quantization, **fields}, folder)
    refused("version is format version 2, and this vqgen knows up to 1; upgrade vqgen", lambda: config(version=2), vqgen.Infeasible)
    refused("unknown field 'future'", lambda: config(future=1), vqgen.Infeasible)
    refused("qkv_proj is one layer in vLLM, and .*k_proj' is dense and .*q_proj' quantized",
            lambda: qkv(config(modules_to_not_convert=["*.k_proj"])), vqgen.Infeasible)
    refused("'model.layers.0.mlp.gate' is neither in weight_shapes nor in modules_to_not_convert",
            lambda: Linear(config(), "model.layers.0.mlp.gate", [8], [8], IN, IN), vqgen.BadInput)
    refused("is of torch.float32, and the folder's codebooks are torch.float16", lambda: qkv(config(), dtype=torch.float32),
            vqgen.BadInput)
    refused("has 128 input features, of which vLLM's layer takes 96", lambda: Linear(config(), DOWN, [64], [64], 96, 96),
            vqgen.BadInput)
    refused("has 2 parts in vLLM, and 3 in the folder", lambda: Linear(config(), QKV, [128, 64], [128, 64], IN, IN),
            vqgen.Infeasible)
    refused("a rank has 8 input features of .*down_proj', and the format keeps 16 together", lambda: down(config(), 0, 16),
            vqgen.Infeasible)
    refused("is loaded as part 'index_q'", lambda: qkv(config()).load(tensors, {**PARTS, "q_proj": ("index_q",)}),
            vqgen.Infeasible)
    refused("has not loaded 'model.layers.0.self_attn.v_proj.codes'",
            lambda: qkv(config()).load(tensors, {"q_proj": ("q",), "k_proj": ("k",)}), vqgen.Infeasible)
    books = f"{DOWN}.codebooks"
    refused("down_proj.codebooks' is torch.bfloat16",
            lambda: down(config()).load({**tensors, books: tensors[books].bfloat16()}, {"down_proj": ()}), vqgen.BadInput)
    refused("down_proj.codebooks hold NaN", lambda: down(config()).load(
        {**tensors, books: tensors[books] * float("nan")}, {"down_proj": ()}), vqgen.BadInput)
    engine.envs.VLLM_BATCH_INVARIANT = True
    refused("unset VLLM_BATCH_INVARIANT", lambda: qkv(config()), vqgen.Infeasible)
    engine.envs.VLLM_BATCH_INVARIANT = False
    engine.current.lora_config = object()
    refused("LoRA over quantized weights is not served", lambda: qkv(config()), vqgen.Infeasible)
    engine.current.lora_config = None
    refused("nowhere is no folder", lambda: qkv(engine.config_of(quantization, tmp_path / "nowhere")), vqgen.BadInput)
    safetensors_torch.save_file({name: each for name, each in tensors.items() if not name.endswith("k_proj.codes")},
                                folder / "model.safetensors")
    refused("model.safetensors: tensor 'model.layers.0.self_attn.k_proj.codes': is not there", lambda: qkv(config()),
            vqgen.BadInput)
    monkeypatch.setattr(_engine.importlib.metadata, "version", lambda name: "0.40.0")
    refused("vLLM 0.40.0 is not served", config, vqgen.Infeasible)


def test_shards_that_cut_tiles_are_refused(engine, draw, tmp_path):
    for form, words, make in (
            ({**TILE, "tile_rows": 32, "tile_columns": 64}, "32 input features of .*, and the format keeps 64 together", down),
            ({**TILE, "tile_rows": 64, "tile_columns": 64}, "32 output features of .*, and the format keeps 64 together", qkv),
            ({"vector_size": 8, "index_bits": 8, "layout": {"rows": 1, "words": 4}},
             "32 input features.*keeps 128 together", down)):
        quantization, _ = write(tmp_path / "model", draw, form)
        refused(words, lambda: make(engine.config_of(quantization, tmp_path / "model"), 0, 4), vqgen.Infeasible)


def test_no_kernel_reads_the_format(engine, draw, tmp_path, monkeypatch):
    quantization, _ = write(tmp_path / "model", draw, "aqlm-2x8i8")

    def enumerate_(self, config, least, most):
        raise vqgen.Infeasible("no plan is feasible")

    monkeypatch.setattr(vqgen.Runtime, "enumerate", enumerate_)
    refused("no kernel reads 'model.layers.0.self_attn.q_proj': no plan", lambda: qkv(
        engine.config_of(quantization, tmp_path / "model")), vqgen.Infeasible)


def test_a_bundle_is_bound_to_codes(draw, tmp_path):
    write(tmp_path / "model", draw, "aqlm-2x8i8")
    first = _identity.identity(tmp_path / "model")
    assert sorted(first["tensors"]) == [f"model.layers.0.self_attn.{name}_proj.codes" for name in "kv"]
    write(tmp_path / "model", draw, "aqlm-2x8i8")
    second = _identity.identity(tmp_path / "model")
    assert first["config"] == second["config"]
    assert all(first["tensors"][name] != second["tensors"][name] for name in first["tensors"])


def test_the_plugin_registers_the_method(engine, monkeypatch):
    registry = types.ModuleType("vllm.v1.attention.backends.registry")
    registry.AttentionBackendEnum, registry.register_backend = Fields(CUSTOM=1), lambda *given: None
    monkeypatch.setitem(sys.modules, registry.__name__, registry)
    engine.registered.clear()
    monkeypatch.delitem(sys.modules, "vqgen.vllm._quantization")
    import vqgen.vllm
    monkeypatch.delattr(vqgen.vllm, "_quantization")
    vqgen.vllm.register()
    assert list(engine.registered) == ["vqgen"]
