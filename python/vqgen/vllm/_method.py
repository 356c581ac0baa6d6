"""A quantized linear layer as vLLM 0.26 and 0.33 have it: signatures, and nothing else (_weights.py)."""

from __future__ import annotations

import functools

import torch
from vllm.model_executor.layers.linear import LinearMethodBase

from vqgen.vllm._weights import SIGNS, Folder, Layer

_WEIGHTS = ("codes", "codebooks", "stage_scales", "output_scales")
_TENSORS = _WEIGHTS + SIGNS


class Method(LinearMethodBase):
    """Multiplies by the weights of one layer."""

    def __init__(self, folder: Folder, prefix: str, modules: list[str]):
        self.folder, self.prefix, self.modules = folder, prefix, modules

    def create_weights(self, layer, input_size_per_partition, output_partition_sizes, input_size, output_size, params_dtype,
                       **extra_weight_attrs):
        device = torch.empty(0).device  # where vLLM makes parameters
        self.own = Layer(self.folder, self.prefix, self.modules, output_partition_sizes, input_size_per_partition, params_dtype,
                         device, layer.tp_rank, layer.tp_size)
        self.names = [[f"{name}_{number}" if number else name for name in _TENSORS] for number in range(len(self.own.launches))]
        for name, tensor in self.own.storage().items():
            parameter = torch.nn.Parameter(tensor, requires_grad=False)
            parameter.weight_loader = functools.partial(_load, self.own, name)
            layer.register_parameter(name, parameter)

    def process_weights_after_loading(self, layer):
        stored = {name: layer._parameters.pop(name).data for name in _TENSORS if name in layer._parameters}
        for names, tensors in zip(self.names, self.own.finish(stored)):
            for name, kind in zip(names, _TENSORS):
                tensor = tensors.get(kind)
                layer.register_parameter(name, None if tensor is None else torch.nn.Parameter(tensor, requires_grad=False))
        self.configs = [launch.config for launch in self.own.launches]
        self.out_features = sum(part.rows for part in self.own.parts)
        self.parts_in_order = self._in_order()
        self.folder.prepare(layer.codes.device)
        # What is refused at all is refused now.
        self.apply(layer, torch.zeros(1, self.own.parts[0].columns, dtype=self.folder.dtype, device=layer.codes.device))

    def _in_order(self) -> list[tuple[int, int]]:
        """Where the outputs of vLLM's parts begin and end in those of a module that has them in another order."""
        if self.own.order is None:
            return []
        rows = [rows for _, rows in self.folder.quantization.rotation_of(self.prefix)]
        return [(sum(rows[:number]), sum(rows[:number + 1])) for number in self.own.order]

    def apply(self, layer, x, bias=None):
        rows = x.reshape(-1, x.shape[-1]).contiguous()
        outs = [_multiply(config, rows, *(getattr(layer, name) for name in names))
                for config, names in zip(self.configs, self.names)]
        if self.parts_in_order:
            outs = [outs[0][:, first:end] for first, end in self.parts_in_order]
        out = (outs[0] if len(outs) == 1 else torch.cat(outs, -1)).view(*x.shape[:-1], self.out_features)
        return out if bias is None else out + bias


def _multiply(config, x, codes, codebooks, stage_scales, output_scales, input_signs, output_signs):
    if input_signs is not None:
        x = torch.ops.vqgen.rotate(x, input_signs, False)
    y = torch.ops.vqgen.linear(config, x, codes, codebooks, stage_scales, output_scales)
    return y if output_signs is None else torch.ops.vqgen.rotate(y, output_signs, True)


def _load(layer, name, parameter, loaded_weight, loaded_shard_id=None):
    layer.load(name, parameter.data, loaded_weight, loaded_shard_id)
