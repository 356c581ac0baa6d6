"""The quantized experts of a layer in an engine: their tensors by expert, and the GEMMs over the rows that a router gives to
each. It reads fields of vLLM's layers, and imports nothing of vLLM."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
import torch.nn.functional

import vqgen
import vqgen.torch
from vqgen._fused import row_tiles
from vqgen.vllm._weights import Folder, Part, fill_random

ROWS = 64  # of an expert in a launch
_SIZES = (1, 8, ROWS)  # tokens of the kernels; more have one of up to _MOST_TOKENS
_MOST_TOKENS = 1024
_SHARDS = {"w1": (0, 0), "w3": (0, 1), "w2": (1, 0)}  # vLLM's: a GEMM, and a part of it
_ACTIVATIONS = {"silu": torch.nn.functional.silu, "gelu": torch.nn.functional.gelu,
                "gelu_tanh": functools.partial(torch.nn.functional.gelu, approximate="tanh")}


def modules_of(layer, prefix: str) -> list[str]:
    """The modules of a folder that a layer of experts has in one."""
    names = [layer.ckpt_gate_proj_name, layer.ckpt_up_proj_name, layer.ckpt_down_proj_name]
    return [f"{prefix}.{expert}.{name}" for expert in range(layer.moe_config.num_logical_experts) for name in names if name]


def are_dense(folder: Folder, layer, prefix: str) -> bool:
    """True if no expert is quantized."""
    modules = modules_of(layer, prefix)
    dense = sum(map(folder.quantization.is_dense, modules))
    if 0 < dense < len(modules):
        one = next(filter(folder.quantization.is_dense, modules))
        raise vqgen.Infeasible(f"vqgen.vllm: {prefix} is one layer in vLLM, and '{one}' is dense and others are quantized; "
                               "quantize again, and exclude all experts of a layer or none")
    if dense:
        return folder.is_dense(prefix, modules)
    # Tensors of all experts together are in no list of modules.
    return all(folder.quantization.shape_of(each) is None for each in modules)


def require_served(layer, prefix: str, model) -> None:
    """Refuse, by name, what a layer of experts asks for and is not served. model: the model's text config."""
    moe, parallel = layer.moe_config, layer.moe_config.moe_parallel_config
    limits = [name for name in ("swiglu_limit", "swiglu_alpha", "swiglu_beta") if getattr(layer, name, None) is not None]
    asked = {
        "expert parallelism; leave enable_expert_parallel out": parallel.use_ep,
        "EPLB; leave enable_eplb out": parallel.enable_eplb or moe.num_experts != moe.num_logical_experts,
        "data or context parallelism; leave data_parallel_size and prefill_context_parallel_size out":
            max(parallel.dp_size, parallel.pcp_size) > 1,
        "LoRA; leave enable_lora out": moe.is_lora_enabled,
        "biases of experts; quantize with --exclude '*.experts.*'": moe.has_bias,
        f"the activation {layer.activation.value}; quantize with --exclude '*.experts.*'":
            layer.activation.value not in _ACTIVATIONS,
        f"{', '.join(limits)}; quantize with --exclude '*.experts.*'": bool(limits),
        "zero experts; quantize with --exclude '*.experts.*'": bool(getattr(model, "zero_expert_num", 0)),
        "shared experts among the others; unset VLLM_ROCM_USE_AITER_FUSION_SHARED_EXPERTS":
            layer.expert_map_manager.num_fused_shared_experts > 0}
    if words := next((words for words, wanted in asked.items() if wanted), None):
        raise vqgen.Infeasible(f"vqgen.vllm: {prefix} are quantized experts, which are not served with {words}")


def _is_captured(tensor) -> bool:
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


@dataclass
class Launch:
    """A kernel for each of `sizes` tokens, which multiplies by all parts of a GEMM, or by one."""

    form: dict
    part: int | None
    configs: dict[int, str]


class Gemm:
    """One GEMM of all experts. `names` of the folder are its parts: what y has of one expert, side by side."""

    def __init__(self, folder: Folder, prefix: str, names: list[str], experts: int, rows: int, columns: int, rank: int,
                 ranks: int):
        self.folder, self.rows, self.columns = folder, rows, columns
        self.parts = [[Part(folder.quantization, f"{prefix}.{expert}.{name}", rows, columns, rank, ranks) for name in names]
                      for expert in range(experts)]
        self.first = self.parts[0][0]
        for part in (part for parts in self.parts for part in parts):
            folder.require(part)
            if part.rotated:
                raise vqgen.Infeasible(f"vqgen.vllm: the weights of '{part.module}' are rotated, and experts are served without "
                                       "rotations; quantize again, with another format")
            if part.form != self.first.form:
                raise vqgen.Infeasible(f"vqgen.vllm: '{part.module}' and '{self.first.module}' have different formats, and "
                                       "experts are served by one kernel; quantize again, with one format")
        self.loaded: set[tuple[str, int, int]] = set()

    # ---- kernels

    def plan(self, sizes: dict[int, int], device) -> None:
        """Choose kernels. sizes: rows of all experts by tokens."""
        self.launches = self._fused(sizes, device) or [self._launch(self.first.form, number, sizes, device)
                                                       for number in range(len(self.parts[0]))]
        for launch in self.launches:
            self.folder.configs |= dict.fromkeys(launch.configs.values())

    def _launch(self, form, part, sizes, device) -> Launch:
        configs = {}
        for tokens, rows in sizes.items():
            most = min(tokens, ROWS)
            configs[tokens] = vqgen.torch.config_text({
                "op": "gemv" if most <= 8 else "gemm", "dtype": self.folder.quantization.dtype, "weights": form,
                "shape": {"m": most, "out_features": self.rows * (len(self.parts[0]) if part is None else 1),
                          "in_features": self.columns, "experts": len(self.parts), "total_rows": rows}})
            self.folder.require_kernel(configs[tokens], rows, f"'{self.first.module}' and the other experts", device)
        return Launch(form, part, configs)

    def _fused(self, sizes, device) -> list[Launch]:
        """One kernel for all parts, or none."""
        parts = len(self.parts[0])
        form = self.first.form if parts == 1 else row_tiles(self.first.form, [self.rows] * parts, self.first.columns)
        if form is None:
            return []
        try:
            return [self._launch(form, None, sizes, device)]
        except (vqgen.Infeasible, vqgen.BadInput):
            if parts == 1:
                raise
            return []

    # ---- tensors

    def storage(self, device) -> dict[str, torch.Tensor]:
        """Memory for the experts' tensors, [experts, parts, ...], by the names of the folder."""
        return {suffix: torch.empty(len(self.parts), len(self.parts[0]), *shape, dtype=kind, device=device)
                for suffix, (kind, shape) in self.first.tensors.items()}

    def load(self, suffix: str, data: torch.Tensor, tensor: torch.Tensor, expert: int, part: int) -> None:
        data[expert, part].copy_(self.parts[expert][part].shard(suffix, tensor))
        self.loaded.add((suffix, expert, part))

    def finish(self, stored: dict[str, torch.Tensor]) -> None:
        """Take the tensors, once all that the folder has is loaded."""
        if self.folder.dummy:
            fill_random(self.first.form, stored)
        else:
            for expert, parts in enumerate(self.parts):
                for number, part in enumerate(parts):
                    for suffix in part.tensors:
                        if (suffix, expert, number) not in self.loaded:
                            raise vqgen.Infeasible(f"vqgen.vllm: vLLM's model has not loaded '{part.module}.{suffix}'; serve "
                                                   "the original model")
        for suffix, tensor in stored.items():
            if tensor.is_floating_point() and not (finite := tensor.flatten(2).isfinite().all(-1)).all():
                expert, part = (~finite).nonzero()[0].tolist()
                raise vqgen.BadInput(f"{self.first.source}: '{self.parts[expert][part].module}.{suffix}' holds NaN or "
                                     "infinity; fetch the folder again, or quantize again")
        self.weights = [{suffix: self._of(launch, suffix, tensor) for suffix, tensor in stored.items()}
                        for launch in self.launches]

    def _of(self, launch, suffix, tensor):
        """What a launch takes: rows of codes and scales [experts, rows, ...], and codebooks of all experts."""
        tensor = tensor.flatten(1, 2) if launch.part is None else tensor[:, launch.part].contiguous()
        return tensor.flatten(0, 1) if suffix in ("codebooks", "stage_scales") else tensor

    def __call__(self, x, rounds, size) -> torch.Tensor:
        """Multiply rows of x, sorted by rounds and by experts. rounds: offsets of each expert's rows, of each launch. Rows
        of no expert are zeros."""
        outs = []
        for launch, weights in zip(self.launches, self.weights):
            op = vqgen.torch.prepare(launch.configs[size], x.device)
            out = x.new_zeros(len(x), self.rows * (len(self.parts[0]) if launch.part is None else 1))
            own = vqgen.Quantized(weights["codes"], weights["codebooks"], weights.get("stage_scales"))
            for offsets in rounds:
                op(x, own, out=out, output_scales=weights.get("output_scales"), expert_rows=offsets)
            outs.append(out)
        return outs[0] if len(outs) == 1 else torch.cat(outs, -1)


class Experts:
    """The experts of a layer on an engine's rank.

    names: of an expert's modules in the folder: gate, up and down. inner: output features of gate and up, and input features
    of down, on this rank. Raises Infeasible or BadInput, by one line, for what no kernel multiplies.
    """

    def __init__(self, folder: Folder, prefix: str, names: tuple[str, str, str], experts: int, top_k: int, hidden: int,
                 inner: int, dtype: torch.dtype, device: torch.device, activation: str = "silu",
                 weighted_input: bool = False, rank: int = 0, ranks: int = 1):
        if dtype != folder.dtype:
            raise vqgen.BadInput(f"vqgen.vllm: {prefix} are of {dtype}, and the folder's codebooks are {folder.dtype}; set "
                                 "dtype to it, or quantize with another --dtype")
        gate, up, down = names
        self.folder, self.prefix, self.device = folder, prefix, torch.device(device)
        self.experts, self.top_k, self.hidden = experts, top_k, hidden
        self.activation, self.weighted_input = _ACTIVATIONS[activation], weighted_input
        self.gemms = {"w13": Gemm(folder, prefix, [gate, up], experts, inner, hidden, rank, ranks),
                         "w2": Gemm(folder, prefix, [down], experts, hidden, inner, rank, ranks)}
        # No launch has more rows than ROWS for each expert.
        most = max(ROWS, min(_MOST_TOKENS, ROWS * experts // top_k))
        self.sizes = sorted({*_SIZES, most})
        for gemm in self.gemms.values():
            gemm.plan({tokens: tokens * top_k for tokens in self.sizes}, self.device)

    def storage(self) -> dict[str, torch.Tensor]:
        """Memory for the tensors, by the names that vLLM's loaders make of the folder's."""
        return {f"{name}_{suffix}": tensor for name, gemm in self.gemms.items()
                for suffix, tensor in gemm.storage(self.device).items()}

    def load(self, name: str, data: torch.Tensor, tensor: torch.Tensor, shard: str, expert: int) -> None:
        """Copy the rank's shard of a tensor of the folder to where it belongs. shard: as vLLM's loaders name it."""
        gemm, _, suffix = name.partition("_")
        number, part = _SHARDS.get(shard, (None, None))
        if number is None or list(self.gemms)[number] != gemm or not 0 <= expert < self.experts:
            raise vqgen.Infeasible(f"vqgen.vllm: {self.prefix}.{name} is loaded as {shard!r} of expert {expert}, which it has "
                                   "not; serve the original model")
        self.gemms[gemm].load(suffix, data, tensor, expert, part)

    def finish(self, stored: dict[str, torch.Tensor]) -> None:
        """Take the tensors, once all that the folder has is loaded, and prepare the kernels."""
        for name, gemm in self.gemms.items():
            gemm.finish({each.removeprefix(f"{name}_"): tensor for each, tensor in stored.items()
                            if each.startswith(f"{name}_")})
        self.folder.prepare(self.device)

    def __call__(self, x: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """The sum of each token's experts. x: [tokens, hidden]. weights: float32 [tokens, top_k]. ids: [tokens, top_k], which
        differ within a token; negative ones are no expert."""
        most = self.sizes[-1]
        outs = [self._sum(*each) for each in zip(x.split(most), weights.split(most), ids.split(most))]
        return outs[0] if len(outs) == 1 else torch.cat(outs)

    def _sum(self, x, weights, ids):
        tokens, top_k = ids.shape
        if tokens == 0:
            return x.new_empty(0, self.hidden)
        size = next(each for each in self.sizes if each >= tokens)
        order, rounds = self._order(ids)
        rows = x[order // top_k]
        if self.weighted_input:
            rows = rows * weights.flatten()[order, None].to(x.dtype)
        gate, up = self.gemms["w13"](rows, rounds, size).chunk(2, -1)
        out = self.gemms["w2"](self.activation(gate).mul_(up).contiguous(), rounds, size)
        out = torch.empty_like(out).index_copy_(0, order, out).view(tokens, top_k, self.hidden)
        if not self.weighted_input:
            out = out * weights[..., None]
        return out.sum(1, dtype=torch.float32).to(x.dtype)

    def _order(self, ids):
        """The pairs of a token and its expert by rounds and by experts, and the offsets of each round, int32
        [rounds, experts + 1]. An expert has up to ROWS rows in a round. Reads nothing on the host in captures."""
        tokens, pairs = len(ids), ids.numel()
        experts, order = ids.flatten().sort(stable=True)
        bounds = torch.arange(self.experts + 1, device=ids.device, dtype=ids.dtype)
        offsets = torch.searchsorted(experts, bounds, out_int32=True)
        if tokens <= ROWS:
            return order, offsets[None]
        number = torch.arange(pairs, device=ids.device, dtype=ids.dtype) - offsets[experts.long()]
        turn = number.div(ROWS, rounding_mode="floor")
        rounds = -(-tokens // ROWS) if _is_captured(ids) else int(turn.max()) + 1
        keys, again = (turn * self.experts + experts).sort(stable=True)
        first = torch.arange(rounds, device=ids.device, dtype=ids.dtype)[:, None] * self.experts
        return order[again], torch.searchsorted(keys, first + bounds, out_int32=True)
