"""The quantized linear layers of a model folder in an engine: which part of the folder's tensors a rank's layer holds, and
by which kernels it multiplies. It reads fields of vLLM's configuration, and imports nothing of vLLM."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

import torch

import vqgen
import vqgen.torch
from vqgen import _folders
from vqgen._fused import per_tile, row_tiles
from vqgen._weight_books import e8p_table, peak_of
from vqgen.torch import MOST_ROWS
from vqgen.vllm import _group_scales

KINDS = {"I32": torch.int32, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
SIGNS = ("input_signs", "output_signs")
_SHARDS = {"q": 0, "k": 1, "v": 2}
_DUMMY_SIZE = 0.02  # of random weights


class Folder:
    """The quantized layers of a model. fields: what its config.json says in quantization_config. Raises BadInput for a
    folder that `vqgen quantize` did not write."""

    def __init__(self, fields: dict):
        self.quantization = _folders.Quantization(fields)
        self.dtype = KINDS[{"f16": "F16", "bf16": "BF16"}[self.quantization.dtype]]
        self.dummy, self.configs, self._tensors, self._path = False, {}, None, None

    def open(self, config) -> None:
        """Judge an engine's configuration, and the headers of the folder's files: vLLM does not notice that a tensor of a
        quantized model is missing."""
        path = config.model_config.model
        if path == self._path:
            return
        if config.lora_config is not None:
            raise vqgen.Infeasible("vqgen.vllm: LoRA over quantized weights is not served; leave enable_lora out, or merge the "
                                   "adapter and quantize again")
        self.dummy = config.load_config.load_format == "dummy"
        if not self.dummy:
            if not os.path.isdir(path):
                raise vqgen.BadInput(f"model: {path} is no folder, and vqgen.vllm judges the files of quantized weights; "
                                     "download it (hf download), and give the folder")
            self._tensors = _folders.read_folder(path)[1]
        self._path = path

    def is_dense(self, prefix: str, modules: list[str]) -> bool:
        """True if the modules that a layer of the engine has in one are not quantized."""
        dense = [module for module in modules if self.quantization.is_dense(module)]
        if dense and len(dense) < len(modules):
            other = next(module for module in modules if module not in dense)
            raise vqgen.Infeasible(f"vqgen.vllm: {prefix} is one layer in vLLM, and '{dense[0]}' is dense and '{other}' "
                                   f"quantized; quantize again, with all or none of {', '.join(modules)} excluded")
        if dense and self._tensors is not None and f"{dense[0]}.weight" not in self._tensors.about:
            self._tensors.fail(f"{dense[0]}.weight", "is not there; fetch the folder again")
        return bool(dense)

    def require(self, part: Part) -> None:
        """Refuse a module whose tensors are not in the folder."""
        if self._tensors is not None:
            self._tensors.require(part.module, part.whole)

    def require_kernel(self, config: str, most: int, whose: str, device) -> None:
        """Refuse a format that no kernel reads. most: rows of x. whose: the modules, for the message."""
        if config in self.configs:
            return
        try:
            vqgen.torch.runtime(device).enumerate(vqgen.torch.parsed(config), 1, most)
        except vqgen.Infeasible as error:
            raise vqgen.Infeasible(f"vqgen.vllm: no kernel reads {whose}: {error}") from None

    def prepare(self, device) -> None:
        """Compile and load the kernels of all layers; nothing if they are there."""
        if self.configs:
            vqgen.torch.runtime(device).prefetch(map(vqgen.torch.parsed, self.configs), threads=min(16, os.cpu_count() or 1))
        for config in self.configs:
            vqgen.torch.prepare(config, device)
        self.configs = {}


class Part:
    """A rank's shard of a module: `rows` of its output features and `columns` of its input features."""

    def __init__(self, quantization, module: str, rows: int, columns: int, rank: int, ranks: int):
        self.module, self.rows, self.columns, self.source = module, rows, columns, quantization.source
        size = quantization.shape_of(module)
        if size is None:
            raise vqgen.BadInput(f"{self.source}: vLLM's layer '{module}' is neither in weight_shapes nor in "
                                 "modules_to_not_convert; quantize this model again, or serve it by vqgen.hf")
        self.form = quantization.format_of(module)
        self.whole = quantization.tensors_of(module, *size)
        self.out_features, self.in_features = size
        self.rotated = quantization.rotation_of(module) is not None
        self.row = self._place("output", self.out_features, rows, rank, ranks)
        self.column = self._place("input", self.in_features, columns, rank, ranks)
        self._require_uncut()
        self.tensors = {suffix: (KINDS[kind], shape)
                        for suffix, (kind, shape) in quantization.tensors_of(module, rows, columns).items()}

    def _place(self, what, whole, own, rank, ranks):
        """Where the rank's features begin; several ranks may have the same."""
        shards = whole // own
        if whole != shards * own or ranks % shards:
            raise vqgen.BadInput(f"{self.source}: '{self.module}' has {whole} {what} features, of which vLLM's layer takes "
                                 f"{own} by {ranks} ranks; quantize this model again, or change tensor_parallel_size")
        return rank * shards // ranks * own

    @property
    def layout(self) -> tuple[int, int]:
        layout = self.form.get("layout", {"rows": 1, "words": 1})
        return layout["rows"], layout["words"]

    @property
    def unit(self) -> tuple[int, int]:
        """(rows, columns) of the module that share a codebook."""
        if self.form["scope"] == "tile":
            return self.form["tile_rows"], self.form["tile_columns"]
        if self.form["scope"] == "channel_group":
            return self.out_features, self.form["group_channels"] or self.form["vector_size"]
        return self.out_features, self.in_features

    @property
    def column_bits(self) -> tuple[int, int]:
        """Bits of codes, and the input features that they are of."""
        return self.form["num_codebooks"] * self.form["index_bits"], self.form["vector_size"]

    @property
    def _cuts_groups(self) -> bool:
        return bool(self.form.get("group_inputs")) and self.columns != self.in_features

    def _require_uncut(self):
        bits, size = self.column_bits
        words = 32 * self.layout[1]
        together = [("output", self.rows, self.out_features, self.layout[0]),
                    ("input", self.columns, self.in_features, words // math.gcd(bits, words) * size)]  # whole words
        if self.form["scope"] in ("tile", "channel_group"):
            together += [(what, own, whole, step) for (what, own, whole, _), step in zip(together, self.unit) if step != whole]
        if self._cuts_groups:
            if self.layout != (1, 1):
                raise vqgen.Infeasible(f"vqgen.vllm: '{self.module}' has scales of groups of inputs in a layout of several rows "
                                       "or words, which ranks do not share; set tensor_parallel_size to 1, or quantize without "
                                       "layout")
            together.append(("input", self.columns, self.in_features, _group_scales.inputs_together(self.form)))
        if self.rotated and (self.rows, self.columns) != (self.out_features, self.in_features):
            raise vqgen.Infeasible(f"vqgen.vllm: the weights of '{self.module}' are rotated over all of its {self.out_features} x "
                                   f"{self.in_features} features, which ranks do not share; set tensor_parallel_size to 1")
        for what, own, whole, step in together:
            if own != whole and own % step:
                raise vqgen.Infeasible(f"vqgen.vllm: a rank has {own} {what} features of '{self.module}', and the format keeps "
                                       f"{step} together; set tensor_parallel_size to less, or quantize with another format")

    def shard(self, suffix: str, tensor: torch.Tensor) -> torch.Tensor:
        """The rank's shard of a tensor of the folder."""
        kind, shape = self.whole[suffix]
        tensor = tensor.view(torch.int32) if tensor.dtype == torch.uint32 else tensor
        if tensor.dtype != KINDS[kind] or list(tensor.shape) != shape:
            raise vqgen.BadInput(f"{self.source}: '{self.module}.{suffix}' is {tensor.dtype} {list(tensor.shape)} where the "
                                 f"config asks for {kind} {shape}; fetch the folder again, or quantize again")
        own = self.tensors[suffix][1]
        if suffix in SIGNS:
            return tensor
        if suffix == "output_scales":
            return tensor[self.row:self.row + self.rows]
        if suffix == "codes":
            (rows, words), (bits, size) = self.layout, self.column_bits
            row, word = self.row // rows, self.column // size * bits // 32 // words
            tensor = tensor[row:row + own[0]]
            if not self._cuts_groups:
                return tensor[:, word:word + own[1]]
            codes, scales = tensor.tensor_split([self.in_features // size * bits // 32], 1)
            own = codes[:, word:word + self.columns // size * bits // 32]
            return torch.cat([own, _group_scales.cut(self.form, scales, self.in_features, self.column, self.columns)], 1)
        sides = zip((self.out_features, self.in_features), (self.row, self.column), (self.rows, self.columns), self.unit)
        grid, own = zip(*((-(-whole // step), slice(begin // step, -(-(begin + count) // step)))
                          for whole, begin, count, step in sides))
        return tensor.unflatten(0, grid)[own].flatten(0, 1)


@dataclass
class Launch:
    """A kernel of a layer, which multiplies by the parts [first, end)."""

    config: str
    form: dict
    first: int
    end: int


class Layer:
    """A linear layer of an engine's rank.

    modules: of the folder, which the layer has in one. rows: output features of each on this rank; columns: input
    features. Raises Infeasible or BadInput, by one line, for what no kernel multiplies.
    """

    def __init__(self, folder: Folder, prefix: str, modules: list[str], rows: list[int], columns: int, dtype: torch.dtype,
                 device: torch.device, rank: int = 0, ranks: int = 1):
        if dtype != folder.dtype:
            raise vqgen.BadInput(f"vqgen.vllm: {prefix} is of {dtype}, and the folder's codebooks are {folder.dtype}; set "
                                 "dtype to it, or quantize with another --dtype")
        modules, self.order = _joined(folder.quantization, prefix, modules, rows)
        if len(modules) == 1 and len(rows) > 1 and ranks > 1:
            raise vqgen.Infeasible(f"vqgen.vllm: '{modules[0]}' is one layer in the folder and {len(rows)} in vLLM, which "
                                   "tensor parallel ranks do not share; set tensor_parallel_size to 1")
        if len(modules) == 1:
            rows = [sum(rows)]
        if len(modules) != len(rows):
            raise vqgen.Infeasible(f"vqgen.vllm: {prefix} has {len(rows)} parts in vLLM, and {len(modules)} in the folder; "
                                   "serve the model by vqgen.hf")
        self.folder, self.prefix, self.device = folder, prefix, torch.device(device)
        self.parts = [Part(folder.quantization, module, each, columns, rank, ranks) for module, each in zip(modules, rows)]
        for part in self.parts:
            folder.require(part)
        self.loaded: set[tuple[str, int]] = set()
        self.launches = self._fused() or [self._launch(part.form, n, n + 1) for n, part in enumerate(self.parts)]
        folder.configs |= dict.fromkeys(launch.config for launch in self.launches)

    # ---- kernels

    def _launch(self, form, first, end) -> Launch:
        rows = sum(part.rows for part in self.parts[first:end])
        config = vqgen.torch.config_text({
            "op": "gemm", "dtype": self.folder.quantization.dtype, "weights": form,
            "shape": {"m": MOST_ROWS, "out_features": rows, "in_features": self.parts[0].columns}})
        self.folder.require_kernel(config, MOST_ROWS, f"'{self.parts[first].module}'", self.device)
        return Launch(config, form, first, end)

    def _fused(self) -> list[Launch]:
        """One kernel for all parts, or none."""
        first = self.parts[0]
        if len(self.parts) == 1 or any(part.form != first.form or part.rotated for part in self.parts):
            return []
        form = row_tiles(first.form, [part.rows for part in self.parts], first.columns)
        if form is None:
            return []
        try:
            return [self._launch(form, 0, len(self.parts))]
        except (vqgen.Infeasible, vqgen.BadInput):
            return []

    # ---- tensors

    def storage(self) -> dict[str, torch.Tensor]:
        """Memory for the parts' tensors, one behind the other, by the names of the folder."""
        out = {}
        for suffix in dict.fromkeys(suffix for part in self.parts for suffix in part.tensors):
            kind = next(part.tensors[suffix][0] for part in self.parts if suffix in part.tensors)
            out[suffix] = torch.empty(self._begin(suffix, len(self.parts)), dtype=kind, device=self.device)
        return out

    def _begin(self, suffix, number) -> int:
        """Where a part's tensor begins."""
        return sum(math.prod(part.tensors[suffix][1]) for part in self.parts[:number] if suffix in part.tensors)

    def _held(self, suffix, data, number) -> torch.Tensor:
        return data[self._begin(suffix, number):self._begin(suffix, number + 1)].view(self.parts[number].tensors[suffix][1])

    def load(self, suffix: str, data: torch.Tensor, tensor: torch.Tensor, shard=None) -> None:
        """Copy the rank's shard of a tensor of the folder to where it belongs. shard: the part, as vLLM's loaders name it."""
        number = 0 if shard is None and len(self.parts) == 1 else _SHARDS.get(shard, shard)
        if not isinstance(number, int) or not 0 <= number < len(self.parts) or suffix not in self.parts[number].tensors:
            raise vqgen.Infeasible(f"vqgen.vllm: {self.prefix}.{suffix} is loaded as part {shard!r}, which it has not; serve "
                                   "the model by vqgen.hf")
        self._held(suffix, data, number).copy_(self.parts[number].shard(suffix, tensor))
        self.loaded.add((suffix, number))

    def finish(self, stored: dict[str, torch.Tensor]) -> list[dict[str, torch.Tensor]]:
        """The tensors of each launch, once all that the folder has is loaded."""
        if self.folder.dummy:
            self._fill(stored)
        else:
            for number, part in enumerate(self.parts):
                for suffix in part.tensors:
                    if (suffix, number) not in self.loaded:
                        raise vqgen.Infeasible(f"vqgen.vllm: vLLM's model has not loaded '{part.module}.{suffix}'; serve the "
                                               "model by vqgen.hf")
        for suffix, tensor in stored.items():
            if tensor.is_floating_point() and not tensor.isfinite().all():
                raise vqgen.BadInput(f"{self.parts[0].source}: {self.prefix}.{suffix} hold NaN or infinity; fetch the folder "
                                     "again, or quantize again")
        return [self._tensors(launch, stored) for launch in self.launches]

    def _tensors(self, launch, stored):
        out = {}
        for suffix in self.parts[launch.first].tensors:
            held = [self._held(suffix, stored[suffix], number) for number in range(launch.first, launch.end)]
            if suffix in ("codebooks", "stage_scales") and len(held) > 1:
                held = per_tile(held, [part.rows for part in self.parts], self.parts[0].form, launch.form)
            # Copied, so that it is aligned; but codes of all parts stay where they are.
            whole = suffix == "codes" and launch.end - launch.first == len(self.parts)
            out[suffix] = stored[suffix].view(-1, *held[0].shape[1:]) if whole else torch.cat(held)
        return out

    def _fill(self, stored):
        for number, part in enumerate(self.parts):
            fill_random(part.form, {suffix: self._held(suffix, stored[suffix], number) for suffix in part.tensors})


def _joined(quantization, prefix: str, modules: list[str], rows: list[int]):
    """(modules, order): those of the folder that a layer with the `modules` has, which may be one of their rows together; and
    which part of its outputs each of `modules` has, or None if they are in order. rows: of each on this rank."""
    parts = quantization.rotation_of(prefix)
    if not parts:
        return modules, None
    names, wanted = [name for name, _ in parts], [module.rpartition(".")[2] for module in modules]
    if sorted(names) != sorted(wanted) or len(rows) != len(wanted):
        raise vqgen.Infeasible(f"vqgen.vllm: {prefix} has {', '.join(wanted)} in vLLM, and {', '.join(names)} in the folder; serve "
                               "the model by vqgen.hf")
    return [prefix], None if names == wanted else [names.index(name) for name in wanted]


def fill_random(form: dict, held: dict[str, torch.Tensor]) -> None:
    """Fill the tensors of a layer, by suffix, with random codes, and with entries and scales of small weights."""
    held["codes"].random_(-1 << 31, (1 << 31) - 1)
    if form.get("group_inputs"):  # scales behind codes are finite
        held["codes"].bitwise_and_(-0x40004001)
    peak, scaled = peak_of(form), "stage_scales" in held
    if form["decoder"] == "e8p":
        held["codebooks"].copy_(e8p_table())
    elif peak is not None:
        held["codebooks"].random_(-peak, peak + 1)
    else:
        held["codebooks"].normal_(0, 1 if scaled else _DUMMY_SIZE)
    if form["decoder"] == "signs":
        held["codebooks"].abs_()
    if scaled:
        held["stage_scales"].fill_(_DUMMY_SIZE / (peak or 1))
    for name in {"output_scales", *SIGNS} & held.keys():
        held[name].fill_(1)
