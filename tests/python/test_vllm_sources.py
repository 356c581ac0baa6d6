"""The backend of vqgen.vllm against the sources of the versions of vLLM that it is for: names, signatures and fields.
VQGEN_VLLM_SOURCES names a folder with an unpacked wheel of each in a folder of its version, 0.26.0/vllm and so on."""

import ast
import functools
import os
import pathlib

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import vqgen
import vqgen.vllm
from vqgen.vllm import _engine

OURS = pathlib.Path(vqgen.vllm.__file__).parent
GIVEN = os.environ.get("VQGEN_VLLM_SOURCES")
FOLDERS = sorted(pathlib.Path(GIVEN).glob("0.*")) if GIVEN else []
pytestmark = pytest.mark.skipif(not GIVEN, reason="VQGEN_VLLM_SOURCES names no folder with unpacked wheels of vLLM")
# What one version alone is asked for.
ONLY = {"KVCacheLayout": "0.33", "register_kv_cache_dtype": "0.33", "KVQuantMode": "0.33", "TQFullAttentionSpec": "0.26",
        "get_kv_cache_shape": "0.26", "get_kv_cache_stride_order": "0.26", "customize_spec": "0.33",
        "supported_kv_cache_layouts": "0.33"}
ATTENTION, LAYERS = "vllm.v1.attention.backend", "vllm.model_executor.layers"
BASES = {  # and where we derive from them, and where they are
    "Backend": ("_backend.py", ATTENTION, ["AttentionBackend"]),
    "Builder": ("_backend.py", ATTENTION, ["AttentionMetadataBuilder"]),
    "Impl": ("_backend.py", ATTENTION, ["AttentionImpl", "AttentionImplBase"]),
    "RawRows": ("_raw.py", f"{LAYERS}.attention_layer_base", ["AttentionLayerBase"]),
    "RawBackend": ("_raw.py", ATTENTION, ["AttentionBackend"]),
    "RawBuilder": ("_raw.py", ATTENTION, ["AttentionMetadataBuilder"]),
    "Config": ("_quantization.py", f"{LAYERS}.quantization.base_config", ["QuantizationConfig"]),
    "Method": ("_method.py", f"{LAYERS}.linear", ["LinearMethodBase"]),
    "ExpertsMethod": ("_experts_method.py", f"{LAYERS}.fused_moe.fused_moe_method_base", ["FusedMoEMethodBase"])}


class Sources:
    def __init__(self, folder):
        self.root, self.version = folder, _engine.require_version(folder.name)

    @functools.cache
    def tree(self, module):
        path = self.root / module.replace(".", "/")
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        return ast.parse(path.read_text(encoding="utf-8")) if path.exists() else None

    @functools.cache
    def names(self, module):
        """What a module defines or imports at its top, in branches too."""
        found = set()
        for node in ast.walk(self.tree(module) or ast.Module([], [])):
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
                found.add(node.name)
            elif isinstance(node, (ast.Assign, ast.AnnAssign)):
                found |= {to.id for to in getattr(node, "targets", None) or [node.target] if isinstance(to, ast.Name)}
            elif isinstance(node, ast.ImportFrom) and any(each.name == "*" for each in node.names):
                found |= self.names(f"{module}.{node.module}" if node.level else node.module)
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                found |= {each.asname or each.name for each in node.names}
        return found

    def definition(self, module, name):
        return next(node for node in self.tree(module).body if isinstance(node, (ast.ClassDef, ast.FunctionDef))
                    and node.name == name)

    def fields(self, module, name):
        """Methods and fields of a class and of its bases in the same module."""
        node = self.definition(module, name)
        own = {each.name: each for each in node.body if isinstance(each, ast.FunctionDef)}
        own |= {each.target.id: each for each in node.body if isinstance(each, ast.AnnAssign)}
        for base in node.bases:
            base = getattr(getattr(base, "value", base), "id", None)
            if base in {each.name for each in self.tree(module).body if isinstance(each, ast.ClassDef)}:
                own = self.fields(module, base) | own
        return own


@pytest.fixture(params=FOLDERS or [None], ids=lambda folder: folder.name if folder else "none")
def sources(request):
    return Sources(request.param)


def parameters(node):
    """(names by position or keyword, whether there are more keywords)"""
    return [each.arg for each in node.args.posonlyargs + node.args.args + node.args.kwonlyargs], node.args.kwarg is not None


def of_file(name):
    return ast.parse((OURS / name).read_text(encoding="utf-8"))


def test_both_versions_are_there():
    assert {_engine.require_version(folder.name) for folder in FOLDERS} == set(_engine.VERSIONS)


def test_what_is_imported_is_there(sources):
    count = 0
    for file in OURS.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "vllm":
                for each in node.names:
                    if ONLY.get(each.name, sources.version) == sources.version:
                        assert each.name in sources.names(node.module), f"{file.name}: {node.module} has no {each.name}"
                        count += 1
    assert count > 10


@pytest.mark.parametrize("name", BASES)
def test_methods_are_those_of_the_base(sources, name):
    file, module, bases = BASES[name]
    ours = {node.name: node for node in next(
        node for node in of_file(file).body if getattr(node, "name", "") == name).body if isinstance(node, ast.FunctionDef)}
    theirs = {}
    if name.endswith("Method"):
        theirs |= sources.fields(f"{LAYERS}.quantization.base_config", "QuantizeMethodBase")
    for base in reversed(bases):
        theirs |= sources.fields(module, base)
    for method, node in theirs.items():
        if any("abstractmethod" in ast.unparse(each) for each in getattr(node, "decorator_list", ())):
            assert method in ours, f"{name} lacks {method}"
    for method, node in ours.items():
        if ONLY.get(method, sources.version) != sources.version:
            continue
        if method == "__init__":
            continue
        assert method in theirs, f"{name}.{method} is not of {bases[0]}"
        (wanted, _), (given, more) = parameters(theirs[method]), parameters(node)
        wanted = [each for each in wanted if each not in ("self", "cls")]
        given = [each for each in given if each not in ("self", "cls")]
        assert given[:len(wanted)] == wanted or more and not given, f"{name}.{method}{wanted}, and ours takes {given}"


def test_fields_of_batches_are_there(sources):
    build = next(node for node in ast.walk(of_file("_backend.py")) if getattr(node, "name", "") == "build")
    read = {node.attr for node in ast.walk(build) if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "common"}
    assert len(read) >= 7 and read <= sources.fields("vllm.v1.attention.backend", "CommonAttentionMetadata").keys()


def test_the_selector_asks_for_nothing_unknown(sources):
    asked = set(sources.fields("vllm.v1.attention.selector", "AttentionSelectorConfig")) - {"__repr__"}
    taken, _ = parameters(next(node for node in of_file("_engine.py").body if getattr(node, "name", "") == "refusals"))
    known = set(taken) | _engine._ASKED.keys() | set(_engine._SAID_BY_LAYERS)
    assert asked <= known
    asked = set(parameters(sources.fields("vllm.v1.attention.backend", "AttentionBackend")["validate_configuration"])[0]) - {"cls"}
    assert asked <= known and "device_capability" in asked


# Keywords of vLLM's layer of attention: those that a layer is served with, and others with an argument of AttentionImpl or
# a field of the layer by which they are refused; or why neither is needed.
SERVED = {"num_heads", "head_size", "scale", "num_kv_heads", "logits_soft_cap", "per_layer_sliding_window"}
REFUSED = {"alibi_slopes": [1.0], "attn_type": "encoder", "kv_sharing_target_layer_name": "a"}
ELSEWHERE = {"use_alibi_sqrt": "supports_alibi_sqrt", "head_size_v": "layer.head_size_v != layer.head_size",
             "attn_backend": "layer.attn_backend is not Backend", "mm_prefix_clamp_sliding_window": "use_mm_prefix"}
HARMLESS = {"self", "cache_config", "quant_config", "prefix"}  # the cache's dtype is refused by the selector


def test_what_layers_may_ask_for_is_served_or_refused(sources):
    layers = f"{LAYERS}.attention.attention"
    asked, more = parameters(sources.fields(layers, "Attention")["__init__"])
    assert more and set(asked) == SERVED | REFUSED.keys() | ELSEWHERE.keys() | HARMLESS
    for name, value in {**REFUSED, "anything_else": 1}.items():
        with pytest.raises(vqgen.Infeasible, match=name):
            _engine.sight_of(**{name: value})
    ours, layer = ((OURS / "_backend.py").read_text(), ast.unparse(sources.definition(layers, "Attention")))
    assert ELSEWHERE["head_size_v"] in ours and ELSEWHERE["attn_backend"] in ours and "use_mm_prefix" in _engine._ASKED
    assert "supports_alibi_sqrt" not in ours and "use_alibi_sqrt and (not backend_supports_alibi_sqrt)" in layer
    # Windows count a token's own; what a layer has is what AttentionImpl gets.
    assert "self.sliding_window = sliding_window" in layer and "sinks" in layer
    assert "(sliding_window - 1, 0)" in ast.unparse(sources.tree("vllm.v1.attention.backends.flash_attn"))
    passed = set(parameters(sources.fields(ATTENTION, "AttentionImpl")["__init__"])[0]) - {"self"}
    taken = set(parameters(next(node for node in of_file("_engine.py").body if getattr(node, "name", "") == "sight_of"))[0])
    assert passed - {"num_heads", "head_size", "scale", "num_kv_heads", "kv_cache_dtype"} <= taken


def test_other_layers_of_attention_are_no_plain_ones(sources):
    found = {node.name for file in (sources.root / "vllm/model_executor").rglob("*.py") if "Attention)" in (
        text := file.read_text(encoding="utf-8")) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)
        and any(getattr(base, "id", "") == "Attention" for base in node.bases)}
    # _require_plain() refuses classes other than Attention, for masks and caches that they alone know.
    assert {"ChunkedLocalAttention", "CrossAttention", "EncoderOnlyAttention", "PrefillPrefixLMAttention"} <= found
    assert "type(layer) is not Attention" in (OURS / "_backend.py").read_text()


def test_calls_take_what_they_are_given(sources):
    calls = {name: node for node in ast.walk(of_file("_backend.py")) if isinstance(node, ast.Call)
             for name in [getattr(node.func, "id", getattr(node.func, "attr", ""))]}
    keywords = lambda name: {each.arg for each in calls[name].keywords}
    flash = parameters(sources.definition("vllm.vllm_flash_attn.flash_attn_interface", "flash_attn_varlen_func"))[0]
    assert keywords("flash_attn_varlen_func") <= set(flash)
    utilities = "vllm.v1.attention.backends.fa_utils"
    assert keywords("get_flash_attn_version") <= set(parameters(sources.definition(utilities, "get_flash_attn_version"))[0])
    threshold = sources.fields("vllm.v1.attention.backend", "AttentionMetadataBuilder")["_init_reorder_batch_threshold"]
    assert keywords("_init_reorder_batch_threshold") <= set(parameters(threshold)[0])
    specs = "vllm.v1.kv_cache_interface"
    if sources.version == "0.26":
        given = {key.value for node in ast.walk(of_file("_backend.py")) if isinstance(node, ast.Assign)
                 and getattr(node.targets[0], "id", "") == "held" for key in node.value.keys}
        assert given == {"block_size", "num_kv_heads", "dtype"}
        for name in ("TQFullAttentionSpec", "SlidingWindowSpec"):
            assert keywords(name) - {None} | given <= sources.fields(specs, name).keys() | {"block_size"}
        rows = ast.unparse(sources.fields(specs, "SlidingWindowSpec")["real_page_size_bytes"])
        assert "self.block_size * self.num_kv_heads * (self.head_size + self.head_size_v)" in rows
    else:
        assert keywords("replace") <= sources.fields(specs, "AttentionSpec").keys()
        first = sources.definition("vllm.v1.attention.backends.registry", "register_backend").args.args[0]
        assert "str" in ast.unparse(first.annotation)  # a name of one's own
        assert "LBHNC" in (sources.root / "vllm/v1/kv_cache_layout.py").read_text()
        assert "CUSTOM" in (sources.root / "vllm/v1/kv_cache_interface.py").read_text()


def test_fields_of_the_configuration_are_there(sources):
    for module, name, fields in (
            ("model", "ModelConfig", {"model", "dtype", "max_model_len", "get_head_size", "get_total_num_kv_heads",
                                      "get_total_num_hidden_layers", "get_num_attention_heads"}),
            ("cache", "CacheConfig", {"block_size", "kv_cache_dtype_skip_layers"}),
            ("scheduler", "SchedulerConfig", {"max_num_seqs", "max_num_batched_tokens", "disable_hybrid_kv_cache_manager"}),
            ("parallel", "ParallelConfig", {"decode_context_parallel_size"}),
            ("speculative", "SpeculativeConfig", {"method", "num_speculative_tokens", "parallel_drafting"}),
            ("compilation", "CompilationConfig", {"static_forward_context"}),
            ("device", "DeviceConfig", {"device_type"}), ("load", "LoadConfig", {"load_format"}),
            ("vllm", "VllmConfig", {"additional_config", "speculative_config", "model_config", "cache_config", "device_config",
                                    "lora_config", "load_config", "scheduler_config", "parallel_config",
                                    "compilation_config"})):
        assert fields <= sources.fields(f"vllm.config.{module}", name).keys(), name
    layer = ast.unparse(sources.definition("vllm.model_executor.layers.attention.attention", "Attention"))
    assert "self.impl.process_weights_after_loading(act_dtype)" in layer and "static_forward_context[prefix] = self" in layer
    assert "self.attention_chunk_size = getattr(" in (sources.root / "vllm/config/model.py").read_text()
    assert "attn_backend" in layer and "get_kv_cache_spec(self, vllm_config" in layer


def test_linear_layers_do_what_methods_rely_on(sources):
    linear = ast.unparse(sources.tree(f"{LAYERS}.linear"))
    # A rank, and its number, before weights are made; create_weights() by these names; bias and x in apply().
    assert "self.tp_rank" in linear and "self.tp_size" in linear
    assert all(f"self.quant_method.apply(self, {given})" in linear for given in ("x, bias", "input_, bias", "input_parallel, bias_"))
    calls = [node for node in ast.walk(sources.tree(f"{LAYERS}.linear")) if isinstance(node, ast.Call)
             and ast.unparse(node.func) == "self.quant_method.create_weights"]
    taken, more = parameters(next(node for node in ast.walk(of_file("_method.py"))
                                  if getattr(node, "name", "") == "create_weights"))
    assert len(calls) >= 3 and more
    for call in calls:
        assert {each.arg for each in call.keywords} - {"weight_loader"} <= set(taken)
    shards = ast.unparse(sources.definition(f"{LAYERS}.linear", "QKVParallelLinear"))
    assert "param.weight_loader(param, loaded_weight, shard_id)" in shards and "['q', 'k', 'v']" in shards
    loader = ast.unparse(sources.tree("vllm.model_executor.model_loader.utils"))
    assert "quant_method.process_weights_after_loading(module)" in loader
    assert "VLLM_BATCH_INVARIANT" in sources.names("vllm.envs")
    registered = ast.unparse(sources.definition(f"{LAYERS}.quantization", "register_quantization_config"))
    assert "issubclass(quant_config_cls, QuantizationConfig)" in registered
    assert "quant_cls.from_config(" in ast.unparse(sources.tree("vllm.model_executor.model_loader.weight_utils"))
    experts = ast.unparse(sources.tree(f"{LAYERS}.fused_moe.routed_experts"))
    assert any(f"{call}(" in experts for call in ("quant_config.get_quant_method", "resolve_quant_method"))


def test_experts_do_what_methods_rely_on(sources):
    moe = f"{LAYERS}.fused_moe"
    experts = ast.unparse(sources.tree(f"{moe}.routed_experts"))
    layer = sources.fields(f"{moe}.routed_experts", "RoutedExperts")
    # Names and configuration are there before the method is asked for, and weights are made by keywords.
    made = ast.unparse(layer["__init__"])
    asked = made.index("self._get_quant_method(")
    for name in ("ckpt_gate_proj_name", "ckpt_up_proj_name", "ckpt_down_proj_name", "moe_config", "activation", "swiglu_limit",
                 "swiglu_alpha", "swiglu_beta", "expert_map_manager", "apply_router_weight_on_input"):
        assert 0 < made.index(f"self.{name} = ") < asked, name
    assert "self.quant_method.create_weights(layer=self, **moe_quant_params)" in made
    taken, more = parameters(next(node for node in ast.walk(of_file("_experts_method.py"))
                                  if getattr(node, "name", "") == "create_weights"))
    assert more and all(f"'{name}'" in made for name in set(taken) - {"self", "layer"})
    # Loaders: by keywords here, and two by position where models load themselves. Parameters' names end as in the folder.
    loader, _ = parameters(next(node for node in ast.walk(of_file("_experts_method.py")) if getattr(node, "name", "") == "_load"))
    theirs = [each for each in parameters(layer["weight_loader"])[0] if each != "self"]
    assert loader[2:] == theirs and "getattr(self, param_name" in experts
    given = [{each.arg for each in node.keywords} for node in ast.walk(layer["load_weights"]) if isinstance(node, ast.Call)
             and ast.unparse(node.func) == "param.weight_loader"]
    assert given == [set(theirs)]
    assert all(f"w{number}_" in ast.unparse(layer["build_expert_params_mapping"]) for number in (13, 2))
    # apply() gets what the base says; its result is summed over ranks where the method has no kernel of vLLM's.
    runner = ast.unparse(sources.tree(f"{moe}.runner.moe_runner"))
    assert "self._quant_method.moe_kernel is not None" in runner and "tensor_model_parallel_all_reduce(states)" in runner
    fields = sources.fields(f"{moe}.config", "FusedMoEConfig").keys()
    assert {"moe_parallel_config", "num_experts", "num_logical_experts", "experts_per_token", "is_lora_enabled",
            "has_bias"} <= fields
    assert {"use_ep", "enable_eplb", "dp_size", "pcp_size", "tp_rank", "tp_size"} <= sources.fields(
        f"{moe}.config", "FusedMoEParallelConfig").keys()
    assert {"silu", "gelu", "gelu_tanh"} <= {ast.literal_eval(node.value) for node in sources.definition(
        f"{moe}.activation", "MoEActivation").body if isinstance(node, ast.Assign)}
    assert "num_fused_shared_experts" in ast.unparse(sources.tree(f"{moe}.expert_map_manager"))
    assert "zero_expert_num" in ast.unparse(sources.tree("vllm.model_executor.models.longcat_flash"))
