"""Rotated weights in vqgen.vllm: folders that `vqgen import` makes of QuIP#'s, between stand-ins of vLLM's layers."""

import json

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

import quip_models
import vqgen
import vqgen.torch as vt
from hf_models import tiny
from safetensors.torch import load_file
from test_hf_import import run_import
from test_vllm_weights import Linear, engine, half_by_default  # noqa: F401
from vllm_models import refused
from vllm_reference import DEVICE

HIDDEN, INNER, ROWS = 192, 320, {"q_proj": 192, "k_proj": 64, "v_proj": 64}
PACKED = {"qkv_proj": list(ROWS), "gate_up_proj": ["gate_proj", "up_proj"]}
LAYER = "model.layers.0."


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The folder, its quantization and tensors, and the dense weights by name."""
    folder = tmp_path_factory.mktemp("quip")
    plain = tiny("Llama", hidden_size=HIDDEN, intermediate_size=INNER, num_attention_heads=6, num_key_value_heads=2, head_dim=32)
    quip_models.write(plain, folder / "model")
    run_import(folder / "model", folder / "out")
    quantization = json.loads((folder / "out/config.json").read_text())["quantization_config"]
    return folder / "out", quantization, load_file(next((folder / "out").glob("*.safetensors"))), plain.state_dict()


@pytest.fixture
def layer_of(engine, made):
    def make(name, own, columns, rank=0, ranks=1, change=lambda fields: None):
        folder, quantization, tensors, _ = made
        quantization = json.loads(json.dumps(quantization))
        change(quantization)
        config = engine.config_of(quantization, folder)
        config.packed_modules_mapping = PACKED
        layer = Linear(config, LAYER + name, [each * ranks for each in own], own, columns, columns * ranks, rank, ranks)
        for key in ("codes", "codebooks", "stage_scales", "input_signs", "output_signs"):
            parameter = layer.get_parameter(key)
            parameter.weight_loader(parameter, tensors[f"{LAYER}{name}.{key}"].to(DEVICE))
        layer.quant_method.process_weights_after_loading(layer)
        return layer
    return make


def near(y, x, *weights):
    wanted = torch.cat([x.float() @ weight.float().T for weight in weights], -1)
    return (y.float() - wanted).norm() < 5e-3 * wanted.norm()


def test_layers_multiply_by_the_dense_weights(made, layer_of):
    dense = {name.removeprefix(LAYER).removesuffix(".weight"): weight for name, weight in made[3].items()}
    for rows in (1, 5):
        x, inner = torch.randn(rows, HIDDEN).half(), torch.randn(rows, INNER).half()
        assert near(layer_of("self_attn.qkv_proj", list(ROWS.values()), HIDDEN)(x), x, *(dense[f"self_attn.{name}"] for name in ROWS))
        # The folder has up before gate.
        assert near(layer_of("mlp.gate_up_proj", [INNER] * 2, HIDDEN)(x), x, dense["mlp.gate_proj"], dense["mlp.up_proj"])
        assert near(layer_of("self_attn.o_proj", [HIDDEN], HIDDEN)(x), x, dense["self_attn.o_proj"])
        assert near(layer_of("mlp.down_proj", [HIDDEN], INNER)(inner), inner, dense["mlp.down_proj"])


def test_parts_in_the_order_of_the_folder_would_be_found(made, layer_of):
    x = torch.randn(3, HIDDEN).half()
    layer = layer_of("mlp.gate_up_proj", [INNER] * 2, HIDDEN)
    layer.quant_method.parts_in_order = []
    weights = [made[3][f"{LAYER}mlp.{name}.weight"] for name in ("gate_proj", "up_proj")]
    assert not near(layer(x), x, *weights) and near(layer(x), x, *weights[::-1])


def test_a_loaded_layer_is_compiled_whole(layer_of):
    layer = layer_of("mlp.gate_up_proj", [INNER] * 2, HIDDEN)
    compiled = torch.compile(lambda x: layer(2 * x) + 1, fullgraph=True, backend="aot_eager", dynamic=True)
    for rows in (3, 290):
        x = torch.randn(rows, HIDDEN).half()
        assert torch.equal(compiled(x), layer(2 * x) + 1)
    if DEVICE.type == "cuda":
        x, graph = torch.randn(3, HIDDEN).half(), torch.cuda.CUDAGraph()
        layer(x)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            y = layer(x)
        x.normal_()
        graph.replay()
        assert torch.equal(y, layer(x))


def test_what_ranks_do_not_share_is_refused_by_name(layer_of):
    refused("'model.layers.0.self_attn.o_proj' are rotated over all of its 192 x 192 features.*tensor_parallel_size to 1",
            lambda: layer_of("self_attn.o_proj", [HIDDEN], HIDDEN // 2, 0, 2), vqgen.Infeasible)
    refused("'model.layers.0.self_attn.qkv_proj' is one layer in the folder and 3 in vLLM",
            lambda: layer_of("self_attn.qkv_proj", [96, 32, 32], HIDDEN, 1, 2), vqgen.Infeasible)

    def other(fields):
        next(each for each in fields["rotations"] if each["modules"].endswith("gate_up_proj"))["parts"][0]["name"] = "w1"

    refused("gate_up_proj has gate_proj, up_proj in vLLM, and w1, gate_proj in the folder",
            lambda: layer_of("mlp.gate_up_proj", [INNER] * 2, HIDDEN, change=other), vqgen.Infeasible)


def test_dummies_have_signs(engine, made):
    folder, quantization, _, _ = made
    engine.current.load_config.load_format = "dummy"
    config = engine.config_of(quantization, folder)
    config.packed_modules_mapping = PACKED
    layer = Linear(config, LAYER + "mlp.down_proj", [HIDDEN], [HIDDEN], INNER, INNER)
    layer.quant_method.process_weights_after_loading(layer)
    assert (layer.input_signs == 1).all() and layer(torch.randn(2, INNER).half()).isfinite().all()
    assert vt.runtime(DEVICE) is not None
