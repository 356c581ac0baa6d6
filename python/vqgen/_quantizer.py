"""Quantized model folders in transformers: a quantizer by the name "vqgen", which from_pretrained() finds."""

from __future__ import annotations

import copy
import re

import torch
from transformers import AutoModelForCausalLM
from transformers.quantizers import HfQuantizer, register_quantization_config, register_quantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

import vqgen
import vqgen.torch
from vqgen import _folders
from vqgen._folders import METHOD, Quantization, Tensors
from vqgen._layers import VQJoined, VQPart

_TYPES = {name: dtype for dtype, name in vqgen.torch.DTYPES.items()}


@register_quantization_config(METHOD)
class VQConfig(QuantizationConfigMixin):
    """The quantization_config of a folder that `vqgen quantize` wrote. Raises BadInput for one that it did not."""

    def __init__(self, **fields):
        self.__dict__.update(copy.deepcopy(fields))
        Quantization(fields)  # refuses what it does not know


@register_quantizer(METHOD)
class VQQuantizer(HfQuantizer):
    """Makes a model's linear layers VQLinear before their tensors are loaded, once all of them are judged."""

    def __init__(self, quantization_config, **kwargs):
        super().__init__(quantization_config, **kwargs)
        if not self.pre_quantized:
            raise vqgen.BadInput("from_pretrained(): the model is not quantized; quantize its folder by vqgen quantize "
                                 "MODEL_DIR --out DIR, and load DIR")
        self._quantization = Quantization(quantization_config.to_dict())
        self.fused = False  # by vqgen.hf.fuse()

    def update_dtype(self, dtype):
        """Refuse another dtype than that of the codebooks, which were trained for it."""
        own = _TYPES[self._quantization.dtype]
        if dtype not in (None, own):
            raise vqgen.BadInput(f"dtype is {dtype}, and the folder's codebooks are {own}; leave dtype out, or quantize with "
                                 f"--dtype {vqgen.torch.DTYPES.get(dtype, 'f16')}")
        return own

    def _process_model_before_weight_loading(self, model, checkpoint_files=None, **_):
        if not checkpoint_files:
            raise vqgen.BadInput("from_pretrained(state_dict=...): a quantized model is read from its folder's files; leave "
                                 "state_dict out")
        tensors = Tensors(checkpoint_files)
        head = model.get_output_embeddings()
        linears = {name: module for name, module in model.named_modules()
                   if isinstance(module, torch.nn.Linear) and module is not head}
        names = _Names(model, tensors)
        quantized = {name: module for name, module in linears.items()
                     if not self._quantization.is_dense(names.in_file(name))}
        known = self._join(model, quantized, names, tensors) | {names.in_file(name) for name in quantized}
        unknown = sorted(tensors.modules() - known)
        if expert := next((name for name in unknown if re.search(r"\.experts\.\d+\.", name)), None):
            tensors.fail(f"{expert}.codes", f"is of an expert, and {type(model).__name__} has the experts of a layer in one "
                                            "tensor; serve the folder by vqgen.vllm, or quantize again with --exclude "
                                            "'*.experts.*'")
        if unknown:
            tensors.fail(f"{unknown[0]}.codes", f"is of no linear layer that {type(model).__name__} has and the config "
                                                "names as quantized; quantize this model again")
        for name, module in quantized.items():
            self._replace(model, name, module, names.in_file(name), tensors)
        names.require_dense(model)

    def _join(self, model, quantized, names, tensors) -> set[str]:
        """Put what takes its outputs from one VQLinear in the place of linear layers that are one module in the folder, and
        drop them from `quantized`. Returns the names of such modules in the files."""
        by_name = {names.in_file(name): name for name in quantized}
        joined = set()
        for in_file in sorted(tensors.modules()):
            parts = self._quantization.rotation_of(in_file)
            if not parts:
                continue
            stem = in_file.rpartition(".")[0]
            own = [by_name.get(f"{stem}.{part}") for part, _ in parts]
            linears = [quantized.pop(name, None) for name in own]
            for (part, rows), linear in zip(parts, linears):
                if linear is None or linear.out_features != rows or linear.in_features != linears[0].in_features or (
                        linear.bias is not None):
                    tensors.fail(f"{in_file}.codes", f"has {rows} rows of '{stem}.{part}', and {type(model).__name__} has no "
                                                     "such linear layer without a bias; import the model again")
            size = sum(rows for _, rows in parts), linears[0].in_features
            whole = self._linear(model, in_file, size, None, tensors)
            place = own[0].rpartition(".")[0]
            model.get_submodule(place).add_module(in_file.rpartition(".")[2], whole)
            shared = VQJoined(whole, [rows for _, rows in parts])
            for number, (name, linear) in enumerate(zip(own, linears)):
                model.set_submodule(name, VQPart(shared, number, linear.out_features, linear.in_features))
            joined.add(in_file)
        return joined

    def _replace(self, model, name, module, in_file, tensors):
        """Put a VQLinear without data in the place of the module, whose tensors in the files are judged."""
        size = module.out_features, module.in_features
        model.set_submodule(name, self._linear(model, in_file, size, module.bias, tensors))

    def _linear(self, model, in_file, size, bias, tensors) -> vqgen.torch.VQLinear:
        form = self._quantization.format_of(in_file)
        told = self._quantization.shape_of(in_file)
        if told != size:
            raise vqgen.BadInput(f"{self._quantization.source}: weight_shapes say {told} of '{in_file}', and "
                                 f"{type(model).__name__} has {size}; quantize this model again")
        expected = self._quantization.tensors_of(in_file, *size)
        tensors.require(in_file, expected)
        kinds = {"I32": torch.int32, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
        empty = {suffix: torch.empty(shape, dtype=kinds[kind], device="meta")
                 for suffix, (kind, shape) in expected.items()}
        weights = vqgen.Quantized(empty.pop("codes"), empty.pop("codebooks"), empty.pop("stage_scales", None))
        return vqgen.torch.VQLinear(weights, form, *size, bias=bias, dtype=_TYPES[self._quantization.dtype], **empty)

    def _process_model_after_weight_loading(self, model, **_):
        """Copy what is not aligned, since a file's tensors may begin anywhere, and kernels read sixteen bytes."""
        for name, module in model.named_modules():
            if not isinstance(module, vqgen.torch.VQLinear):
                continue
            for suffix, tensor in list(module._buffers.items()):
                if tensor is None:
                    continue
                if tensor.is_floating_point() and not tensor.isfinite().all():
                    raise vqgen.BadInput(f"tensor '{name}.{suffix}' holds NaN or infinity; fetch the folder again, or "
                                         "quantize again")
                if tensor.data_ptr() % 16 or not tensor.is_contiguous():
                    module._buffers[suffix] = tensor.clone(memory_format=torch.contiguous_format)
        return model

    def is_serializable(self):
        """save_pretrained() writes what from_pretrained() reads, but of a model whose layers fuse() joined."""
        if self.fused:
            raise vqgen.BadInput("save_pretrained(): vqgen.hf.fuse() joined layers of this model, which no folder has; "
                                 "save it before")
        return True

    @property
    def is_trainable(self):
        """Codes have no gradient."""
        return False


class _Names:
    """The names of a model's modules in its files, which have a prefix more or less where the model is a part of
    another: AutoModel of a causal model's folder."""

    def __init__(self, model, tensors):
        self.tensors = tensors
        self.prefix = f"{model.base_model_prefix}." if model.base_model_prefix else ""
        there = set(tensors.about)
        self.added = self.prefix and not any(name in there for name in model.state_dict()) and any(
            self.prefix + name in there for name in model.state_dict())

    def in_file(self, name: str) -> str:
        return self.prefix + name if self.added else name

    def require_dense(self, model) -> None:
        """Refuse files that lack a tensor of the model that is not quantized, or have it in another shape: transformers
        draws it at random, or takes it."""
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightConverter
        if any(isinstance(each, WeightConverter) for each in get_model_conversion_mapping(model)):
            return  # tensors of the files are not those of the model one by one
        tied = set(model.all_tied_weights_keys) | set(model.all_tied_weights_keys.values())
        ignored = [re.compile(each) for each in getattr(model, "_keys_to_ignore_on_load_missing", None) or ()]
        for name, tensor in model.state_dict().items():
            if any(each.search(name) for each in ignored):
                continue
            found = self.tensors.about.get(self.in_file(name))
            if found is None and name not in tied:
                self.tensors.fail(self.in_file(name), f"is not there, and {type(model).__name__} has it; fetch the folder "
                                                      "again")
            if found is not None and found[1] != list(tensor.shape):
                self.tensors.fail(self.in_file(name), f"has shape {found[1]} where {type(model).__name__} has "
                                                      f"{list(tensor.shape)}; fetch the folder again")


def load(folder, *, device: torch.device | str = "cpu", dtype: torch.dtype | None = None):
    """Load a model that `vqgen quantize MODEL_DIR --out folder` wrote, for inference.

    folder: its path. device: where codes and dense tensors go. dtype: that of the folder's codebooks, which is the
    default; the dense tensors are in it too.
    Returns a model of transformers whose quantized linear layers are vqgen.torch.VQLinear, in eval mode.
    AutoModelForCausalLM.from_pretrained(folder) makes the same once vqgen.hf is imported, and save_pretrained() of
    either writes a folder that both read.
    Raises BadInput, by one line that names file and tensor, for a folder that is not whole, lies, is of a newer version,
    or is of another dtype.

    Example: model = vqgen.hf.load("out/model", device="cuda"); model.generate(**inputs, max_new_tokens=64)
    """
    _folders.read_folder(folder)
    model, about = AutoModelForCausalLM.from_pretrained(folder, dtype="auto" if dtype is None else dtype,
                                                        local_files_only=True, output_loading_info=True)
    if missing := sorted(about["missing_keys"]):
        raise vqgen.BadInput(f"{folder}: tensor '{missing[0]}' is not there, and {type(model).__name__} has it; fetch the "
                             "folder again")
    return model.to(device)
