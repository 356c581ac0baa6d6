"""Models with heads of 80, 96 and 112 numbers over quantized caches, against the simulation that shares no code with
kernels; and the Hadamard matrices of such sizes."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

import vqgen
import vqgen.hf
from vqgen.simulation import rotated, simulated

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HADAMARD = {"keys": "vecinfer-d4b8i8", "values": "vecinfer-d4b8i8"}


@pytest.mark.parametrize("size", [12, 20, 28, 80, 96, 112, 128, 160, 192])
def test_hadamard_is_orthonormal_symmetric_and_of_one_magnitude(size):
    matrix = rotated(torch.eye(size, dtype=torch.double))
    assert torch.equal(matrix, matrix.mT)
    assert torch.allclose(matrix @ matrix, torch.eye(size, dtype=torch.double), atol=1e-12)
    assert torch.allclose(matrix.abs(), torch.full_like(matrix, size**-0.5))


def test_other_sizes_are_refused():
    with pytest.raises(vqgen.Infeasible, match="no Hadamard matrix of 36 times"):
        rotated(torch.eye(36))


@pytest.mark.parametrize("head_dim, klt", [(80, True), (80, False), (96, False), (112, True)])
@torch.no_grad()
def test_models_are_served(tmp_path, head_dim, klt):
    torch.manual_seed(11)
    config = transformers.Qwen2Config(
        vocab_size=64, hidden_size=4 * head_dim, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, initializer_range=0.08, eos_token_id=None, bos_token_id=None)
    model = transformers.Qwen2ForCausalLM(config).to(DEVICE, torch.float16).eval()
    forms = {name: vqgen.hf.klt_format(name, 2, head_dim) for name in ("keys", "values")} if klt else HADAMARD
    bundle = tmp_path / "bundle"
    vqgen.hf.calibrate(model, [torch.randint(1, 64, (4, 96)) for _ in range(2)], bundle, **forms)
    ids = torch.randint(1, 64, (2, 24), device=DEVICE)
    plain = model(ids).logits.float()
    with simulated(model, vqgen.hf.layers_of(bundle), recent_tokens=8):
        expected = model(ids).logits.float()
    model.set_attn_implementation("vqgen")
    cache = vqgen.hf.VQCache(model.config, bundle, batch=2, tokens=32, recent_tokens=8, device=DEVICE)
    steps = [model(ids[:, at:at + 1], past_key_values=cache, use_cache=True).logits for at in range(ids.shape[1])]
    got = torch.cat(steps, 1).float()
    # Codes of near ties may differ.
    assert (got - expected).norm() / expected.norm() <= 0.2 * (got - plain).norm() / plain.norm()
