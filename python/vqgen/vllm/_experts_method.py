"""The quantized experts of a layer as vLLM 0.26 and 0.33 have them: signatures, and nothing else (_experts.py)."""

from __future__ import annotations

import functools

import torch
from vllm.model_executor.layers.fused_moe.fused_moe_method_base import FusedMoEMethodBase

from vqgen.vllm._experts import Experts
from vqgen.vllm._weights import Folder


class ExpertsMethod(FusedMoEMethodBase):
    """Multiplies by the weights of one layer's experts."""

    def __init__(self, folder: Folder, prefix: str, moe):
        super().__init__(moe)
        self.folder, self.prefix = folder, prefix

    def create_weights(self, layer, num_experts, hidden_size, intermediate_size_per_partition, params_dtype,
                       **extra_weight_attrs):
        parallel = self.moe.moe_parallel_config
        names = layer.ckpt_gate_proj_name, layer.ckpt_up_proj_name, layer.ckpt_down_proj_name
        self.own = Experts(self.folder, self.prefix, names, num_experts, self.moe.experts_per_token, hidden_size,
                           intermediate_size_per_partition, params_dtype, torch.empty(0).device, layer.activation.value,
                           layer.apply_router_weight_on_input, parallel.tp_rank, parallel.tp_size)
        for name, tensor in self.own.storage().items():
            parameter = torch.nn.Parameter(tensor, requires_grad=False)
            parameter.weight_loader = functools.partial(_load, self.own, name)
            layer.register_parameter(name, parameter)

    def process_weights_after_loading(self, layer):
        self.own.finish({name: layer._parameters.pop(name).data for name in list(layer._parameters) if name.startswith("w")})
        # What is refused at all is refused now.
        x = torch.zeros(1, self.own.hidden, dtype=self.folder.dtype, device=self.own.device)
        ids = torch.arange(self.own.top_k, device=self.own.device)[None]
        self.own(x, torch.ones_like(ids, dtype=torch.float32), ids)

    def get_fused_moe_quant_config(self, layer):
        return None

    def apply(self, layer, x, topk_weights, topk_ids, shared_experts, shared_experts_input):
        return self.own(x.contiguous(), topk_weights.float(), topk_ids)


def _load(own, name, param, loaded_weight, weight_name, shard_id, expert_id, return_success=False):
    own.load(name, param.data, loaded_weight, shard_id, expert_id)
    return True if return_success else None
