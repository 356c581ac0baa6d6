"""Quantized experts in vqgen.vllm: layers of a model folder, between stand-ins of vLLM's, in double precision."""

import enum
import sys
import types

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
safetensors_torch = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")

import reference
import vqgen
import vqgen.torch as vt
from test_vllm_weights import engine, half_by_default, weight_of, write
from vllm_models import Fields, refused
from vllm_reference import DEVICE
from vqgen.vllm import _experts

__all__ = ["engine", "half_by_default"]  # fixtures
MAX_BUCKETS = 1  # of the fixture own_cache

HIDDEN, INNER, EXPERTS = 128, 64, 5
PREFIX = "model.layers.0.mlp.experts"
FORMATS = {  # and the kernels of gate and up
    "aqlm": ("aqlm-2x8i8", 1),
    "layout": ({"vector_size": 4, "index_bits": 8, "stage_scales": True, "layout": {"rows": 2, "words": 2}}, 1),
    "groups": ({"vector_size": 8, "index_bits": 8, "scope": "channel_group", "group_channels": 32, "stage_scales": True}, 2)}
Activation = enum.Enum("Activation", {"SILU": "silu", "GELU": "gelu", "OAI": "swigluoai", "SILU_NO_MUL": "silu_no_mul"})
ACTIVATIONS = {"silu": lambda x: x / (1 + np.exp(-x)),
               "gelu": lambda x: torch.nn.functional.gelu(torch.from_numpy(x).cpu()).numpy()}


class MethodBase:
    def __init__(self, moe):
        self.moe, self.moe_quant_config, self.moe_kernel = moe, None, None


class RoutedExperts(torch.nn.Module):
    """What vLLM's layer of experts does with a method: it makes its weights, hands it tensors of files, and calls it."""

    def __init__(self, config, rank=0, ranks=1, top_k=2, dtype=torch.float16, names=("gate_proj", "up_proj", "down_proj"),
                 activation=Activation.SILU, weighted=False, hidden=HIDDEN, **more):
        super().__init__()
        parallel = Fields(**{**dict(use_ep=False, enable_eplb=False, dp_size=1, pcp_size=1, tp_rank=rank, tp_size=ranks), **{
            name: more.pop(name) for name in list(more) if name in ("use_ep", "enable_eplb", "dp_size", "pcp_size")}})
        self.moe_config = Fields(**{**dict(moe_parallel_config=parallel, num_experts=EXPERTS, num_logical_experts=EXPERTS,
                                           experts_per_token=top_k, is_lora_enabled=False, has_bias=False), **{
            name: more.pop(name) for name in list(more) if name in ("num_experts", "is_lora_enabled", "has_bias")}})
        self.expert_map_manager = Fields(num_fused_shared_experts=more.pop("fused", 0))
        self.ckpt_gate_proj_name, self.ckpt_up_proj_name, self.ckpt_down_proj_name = names
        self.activation, self.apply_router_weight_on_input = activation, weighted
        self.swiglu_limit = more.pop("swiglu_limit", None)
        assert not more
        self.quant_method = config.get_quant_method(self, PREFIX)
        if self.quant_method is None:
            return
        self.quant_method.create_weights(
            layer=self, num_experts=EXPERTS, hidden_size=hidden, unpadded_hidden_size=hidden, params_dtype=dtype,
            intermediate_size_per_partition=INNER // ranks, weight_loader=None, global_num_experts=EXPERTS)

    def load(self, tensors, shards=("w1", "w3", "w2")):
        names = self.ckpt_gate_proj_name, self.ckpt_up_proj_name, self.ckpt_down_proj_name
        for expert in range(EXPERTS):
            for shard, name in zip(shards, names):
                for whole, tensor in tensors.items():
                    module, _, suffix = whole.rpartition(".")
                    if module != f"{PREFIX}.{expert}.{name}":
                        continue
                    parameter = getattr(self, f"{'w2' if name == names[2] else 'w13'}_{suffix}")
                    if expert % 2:  # as RoutedExperts does, and as models do
                        assert parameter.weight_loader(param=parameter, loaded_weight=tensor.to(DEVICE), weight_name=whole,
                                                       shard_id=shard, expert_id=expert, return_success=True)
                    else:
                        parameter.weight_loader(parameter, tensor.to(DEVICE), whole, shard_id=shard, expert_id=expert)
        self.quant_method.process_weights_after_loading(self)
        assert not list(self.parameters()) and self.quant_method.get_fused_moe_quant_config(self) is None
        return self

    def forward(self, x, weights, ids):
        return self.quant_method.apply(layer=self, x=x, topk_weights=weights, topk_ids=ids, shared_experts=None,
                                       shared_experts_input=None)


@pytest.fixture
def served(engine, monkeypatch, draw, tmp_path):
    """A folder with experts of a format, and its config in an engine."""
    layers = "vllm.model_executor.layers.fused_moe"
    sys.modules[layers].RoutedExperts = RoutedExperts
    base = types.ModuleType(f"{layers}.fused_moe_method_base")
    base.FusedMoEMethodBase = MethodBase
    monkeypatch.setitem(sys.modules, base.__name__, base)
    monkeypatch.delitem(sys.modules, "vqgen.vllm._experts_method", raising=False)
    engine.current.model_config.hf_text_config = Fields()

    def make(form, names=("gate_proj", "up_proj", "down_proj"), **more):
        sizes = {f"mlp.experts.{expert}.{name}": (HIDDEN, INNER) if name == names[2] else (INNER, HIDDEN)
                 for expert in range(EXPERTS) for name in names}
        quantization, tensors = write(tmp_path / "model", draw, form, sizes=sizes, **more)
        return lambda: engine.config_of(quantization, tmp_path / "model"), quantization, tensors

    yield make
    sys.modules.pop("vqgen.vllm._experts_method", None)


def routed(draw, tokens, top_k, used=EXPERTS - 1):
    """x, and weights and numbers of experts: all tokens have expert 1, none the last."""
    x = torch.from_numpy((draw.standard_normal((tokens, HIDDEN)) / 8).astype(np.float16)).to(DEVICE)
    others = np.stack([draw.permutation([each for each in range(used) if each != 1])[:top_k] for _ in range(tokens)])
    others[np.arange(tokens), draw.integers(0, top_k, tokens)] = 1
    weights = draw.uniform(0.2, 1, others.shape).astype(np.float32)
    return x, torch.from_numpy(weights).to(DEVICE), torch.from_numpy(others.astype(np.int32)).to(DEVICE)


def expected(quantization, tensors, x, weights, ids, activation="silu", names=("gate_proj", "up_proj", "down_proj"),
             weighted=False, own=slice(None)):
    """The sum of each token's experts in double precision; own: the features of `inner` that a rank has."""
    x, weights, ids = (each.double().cpu().numpy() for each in (x, weights, ids))
    out = np.zeros((len(x), HIDDEN))
    for expert in range(EXPERTS):
        gate, up, down = (weight_of(quantization, tensors, f"{PREFIX}.{expert}.{name}") for name in names)
        for token, number in np.argwhere(ids == expert):
            given = x[token] * (weights[token, number] if weighted else 1)
            inner = ACTIVATIONS[activation](gate[own] @ given) * (up[own] @ given)
            out[token] += down[:, own] @ inner * (1 if weighted else weights[token, number])
    return out


def near(y, wanted):
    return reference.worst(y.double().cpu().numpy(), wanted) < 8e-3


@pytest.mark.parametrize("name", FORMATS)
def test_tokens_have_the_sum_of_their_experts(served, draw, name):
    form, kernels = FORMATS[name]
    config, quantization, tensors = served(form)
    for top_k in (1, 2) if name == "aqlm" else (2,):
        layer = RoutedExperts(config(), top_k=top_k).load(tensors)
        assert len(layer.quant_method.own.gemms["w13"].launches) == kernels
        # 70 tokens give an expert more rows than a launch takes; 200 are more than all experts take.
        for tokens in (1, 3, 64, 70, 200):
            given = routed(draw, tokens, top_k)
            y = layer(*given)
            assert y.shape == given[0].shape and y.dtype == torch.float16
            assert near(y, expected(quantization, tensors, *given)), (top_k, tokens)
        x, weights, ids = routed(draw, 70, top_k)
        assert layer(x[:0], weights[:0], ids[:0]).shape == (0, HIDDEN)
        y = layer(x, weights, ids.long())
        assert torch.equal(y, layer(x, weights, ids))
        ids[5:7] = -1  # rows that pad
        y[5:7] = 0
        assert torch.equal(layer(x, weights, ids), y)


def test_down_may_have_another_format_than_gate_and_up(served, draw):
    config, quantization, tensors = served("aqlm-2x8i8", overrides=[("*.experts.*.down_proj", FORMATS["layout"][0])])
    layer = RoutedExperts(config()).load(tensors)
    for tokens in (3, 70):
        given = routed(draw, tokens, 2)
        assert near(layer(*given), expected(quantization, tensors, *given)), tokens


@pytest.mark.parametrize("name", ["aqlm", "layout"])
def test_ranks_have_their_shards(served, draw, name):
    config, quantization, tensors = served(FORMATS[name][0])
    given = routed(draw, 70, 2)
    total = 0
    for rank in range(2):
        y = RoutedExperts(config(), rank, 2).load(tensors)(*given)
        own = slice(rank * INNER // 2, (rank + 1) * INNER // 2)
        assert near(y, expected(quantization, tensors, *given, own=own))
        total = total + y.double()
    assert near(total, expected(quantization, tensors, *given))


def test_mixtrals_names_and_weights_on_the_input(served, draw):
    names = ("w1", "w3", "w2")
    config, quantization, tensors = served("aqlm-2x8i8", names)
    given = routed(draw, 9, 1)
    for activation, weighted in ((Activation.GELU, False), (Activation.SILU, True)):
        layer = RoutedExperts(config(), top_k=1, names=names, activation=activation, weighted=weighted).load(tensors)
        assert near(layer(*given), expected(quantization, tensors, *given, activation.value, names, weighted))


def test_rounds_in_a_capture_are_as_many_as_there_may_be(served, draw, monkeypatch):
    config, quantization, tensors = served("aqlm-2x8i8")
    layer = RoutedExperts(config()).load(tensors)
    order = layer.quant_method.own._order
    ids = torch.stack([torch.full((130,), 1), torch.arange(130) % 2 * 2], 1).int()  # of expert 1 all, of 0 and 2 a half
    pairs, offsets = order(ids)
    counts = offsets.diff(dim=1).cpu().numpy()
    assert counts.tolist() == [[64, 64, 64, 0, 0], [1, 64, 1, 0, 0], [0, 2, 0, 0, 0]]
    experts = np.concatenate([np.repeat(np.arange(EXPERTS), each) for each in counts])
    assert np.array_equal(ids.flatten()[pairs].cpu().numpy(), experts) and sorted(pairs.tolist()) == list(range(260))
    monkeypatch.setattr(_experts, "_is_captured", lambda tensor: True)
    monkeypatch.setattr(torch.Tensor, "__int__", lambda tensor: pytest.fail("the host reads a tensor"))
    assert torch.equal(order(ids)[1], offsets)
    ids[:, 0] = torch.arange(130) % 3  # a third each
    ids[:, 1] = 3
    fewer = order(ids)[1].diff(dim=1).cpu().numpy()
    assert fewer.tolist() == [[44, 43, 43, 64, 0], [0, 0, 0, 64, 0], [0, 0, 0, 2, 0]]


def test_dummies_are_random_weights(served, engine, draw, tmp_path):
    config, _, _ = served("aqlm-2x8i8")
    (tmp_path / "model" / "model.safetensors").unlink()
    engine.current.load_config.load_format = "dummy"
    layer = RoutedExperts(config())
    codes = layer.w13_codes
    layer.quant_method.process_weights_after_loading(layer)
    y = layer(*routed(draw, 5, 2))
    assert y.isfinite().all() and 1e-5 < y.float().std() < 1e-2 and len(codes.unique()) > 100


def test_dense_experts_are_vllms(served, engine, draw, tmp_path):
    config, quantization, _ = served("aqlm-2x8i8", dense=("lm_head", "*.experts.*"))
    assert RoutedExperts(config(), use_ep=True).quant_method is None
    # Tensors of all experts together are in no list.
    quantization["modules_to_not_convert"], quantization["weight_shapes"] = [], [
        {"modules": "*.q_proj", "out_features": 8, "in_features": 8}]
    assert RoutedExperts(engine.config_of(quantization, tmp_path / "model")).quant_method is None


def test_what_is_not_served_is_refused(served, engine, draw, tmp_path):
    config, quantization, tensors = served("aqlm-2x8i8")
    for words, more in (
            ("expert parallelism; leave enable_expert_parallel out", {"use_ep": True}),
            ("EPLB; leave enable_eplb out", {"enable_eplb": True}), ("EPLB", {"num_experts": EXPERTS + 1}),
            ("data or context parallelism", {"dp_size": 2}), ("data or context parallelism", {"pcp_size": 2}),
            ("LoRA; leave", {"is_lora_enabled": True}), ("biases of experts; quantize with --exclude", {"has_bias": True}),
            ("activation swigluoai; quantize with --exclude", {"activation": Activation.OAI}),
            ("activation silu_no_mul", {"activation": Activation.SILU_NO_MUL, "names": ("gate_proj", None, "down_proj")}),
            ("swiglu_limit; quantize", {"swiglu_limit": 7.0}), ("shared experts among the others", {"fused": 1})):
        refused(f"model.layers.0.mlp.experts are quantized experts, which are not served with.*{words}",
                lambda more=more: RoutedExperts(config(), **more), vqgen.Infeasible)
    engine.current.model_config.hf_text_config.zero_expert_num = 2
    refused("with zero experts", lambda: RoutedExperts(config()), vqgen.Infeasible)
    engine.current.model_config.hf_text_config.zero_expert_num = 0
    refused("are of torch.bfloat16, and the folder's codebooks are torch.float16",
            lambda: RoutedExperts(config(), dtype=torch.bfloat16), vqgen.BadInput)
    refused("has 128 input features, of which vLLM's layer takes 192", lambda: RoutedExperts(config(), hidden=192),
            vqgen.BadInput)
    refused("a rank has 8 input features of .*experts.0.down_proj', and the format keeps 16 together",
            lambda: RoutedExperts(config(), 0, 8), vqgen.Infeasible)
    lost = f"{PREFIX}.3.up_proj.codes"
    refused(f"has not loaded '{lost}'", lambda: RoutedExperts(config()).load(
        {name: each for name, each in tensors.items() if name != lost}), vqgen.Infeasible)
    refused("w13_.* is loaded as 'w2' of expert 0", lambda: RoutedExperts(config()).load(tensors, ("w2", "w3", "w1")),
            vqgen.Infeasible)
    books = f"{PREFIX}.4.down_proj.codebooks"
    refused("experts.4.down_proj.codebooks' is torch.bfloat16",
            lambda: RoutedExperts(config()).load({**tensors, books: tensors[books].bfloat16()}), vqgen.BadInput)
    refused("experts.4.down_proj.codebooks' holds NaN", lambda: RoutedExperts(config()).load(
        {**tensors, books: tensors[books] * float("nan")}), vqgen.BadInput)
    safetensors_torch.save_file({name: each for name, each in tensors.items() if name != lost},
                                tmp_path / "model" / "model.safetensors")
    refused(f"model.safetensors: tensor '{lost}': is not there", lambda: RoutedExperts(config()), vqgen.BadInput)
    engine.envs.VLLM_BATCH_INVARIANT = True
    refused("unset VLLM_BATCH_INVARIANT", lambda: RoutedExperts(config()), vqgen.Infeasible)


def test_experts_are_alike(served, draw):
    config, _, _ = served("aqlm-2x8i8", overrides=[("*.experts.2.up_proj", FORMATS["layout"][0])])
    refused("experts.2.up_proj' and .*experts.0.gate_proj' have different formats", lambda: RoutedExperts(config()),
            vqgen.Infeasible)
    config, _, _ = served("aqlm-2x8i8", dense=["*.experts.2.up_proj"])
    refused("experts is one layer in vLLM, and .*experts.2.up_proj' is dense and others are", lambda: RoutedExperts(config()),
            vqgen.Infeasible)


def test_no_kernel_reads_the_format(served, draw, monkeypatch):
    config, _, _ = served("aqlm-2x8i8")

    def enumerate_(self, config, least, most):
        raise vqgen.Infeasible("no plan is feasible")

    monkeypatch.setattr(vqgen.Runtime, "enumerate", enumerate_)
    refused("no kernel reads .*experts.0.gate_proj' and the other experts: no plan", lambda: RoutedExperts(config()),
            vqgen.Infeasible)


def test_no_kernel_is_compiled_in_a_request(served, draw, tmp_path):
    config, quantization, tensors = served("aqlm-2x8i8")
    layer = RoutedExperts(config()).load(tensors)
    vt.runtime(DEVICE).freeze()
    for tokens in (1, 2, 9, 33, 65, 161):
        given = routed(draw, tokens, 2)
        y = layer(*given)
        if DEVICE.type == "cuda":
            graph = torch.cuda.CUDAGraph()
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                captured = layer(*given)
            for held, new in zip(given, routed(draw, tokens, 2)):
                held.copy_(new)
            graph.replay()
            assert torch.equal(captured, layer(*given)) and not torch.equal(captured, y)
    device = vt.runtime(DEVICE).device
    vt.use_runtime(vqgen.Runtime(device, cache_dir=tmp_path / "kernels", max_buckets=1))
