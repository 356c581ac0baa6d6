"""A tiny model, and the folder with its calibrated weights."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import vqgen.hf
from hf_models import tiny

FORM = {"vector_size": 8, "index_bits": 5, "num_codebooks": 2, "scope": "tensor", "entry_type": "int8", "stage_scales": True,
        "common_scale": True, "output_scales": True}
IDS = torch.randint(1, 64, (6, 24), generator=torch.Generator().manual_seed(3))
FAST = {"format": FORM, "rounds": 1, "beam": 2}
LINEARS = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj",
           "mlp.down_proj"]


def small(**fields):
    model = tiny(**{"hidden_size": 64, "intermediate_size": 96, "head_dim": 32, "num_attention_heads": 2,
                    "num_key_value_heads": 1, **fields})
    return model


@pytest.fixture(scope="module")
def model():
    return small()


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    out = tmp_path_factory.mktemp("weights") / "weights"
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    said = []
    shares = vqgen.hf.quantize(model, IDS.split(2), out, progress=lambda *each: said.append(each), **FAST)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert model.config._attn_implementation == "vqgen"
    assert [each[:2] for each in said] == [(0, 2), (1, 2)] and "q_proj" in said[0][2]
    assert set(shares) == {f"model.layers.{layer}.{name}" for layer in (0, 1) for name in LINEARS}
    assert all(0 < share < 0.5 for share in shares.values())
    assert [path.name for path in out.parent.iterdir()] == ["weights"]
    return out


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}
