"""A static KV cache of 16 bits, for comparison: what a captured step costs over it."""

import warnings

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import Cache

import vqgen
from vqgen._attention import prompt_attention
from vqgen._models import heads_of, value_dim_of
from vqgen._tokens import Tokens, TokensLayer

_BACKENDS = (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION,
             SDPBackend.EFFICIENT_ATTENTION)


class _Layer(TokensLayer):
    def __init__(self, tokens, number, shape, channels, dtype, device):
        super().__init__(tokens, number)
        self.keys, self.values = (torch.empty((*shape, each), dtype=dtype, device=device).normal_() for each in channels)

    def attend(self, query, key, value, scaling, padding, sinks, sees=None):
        if sinks is not None:
            raise vqgen.Infeasible("s_aux: sink logits are not in the attention that steps are compared with")
        tokens, count = self.tokens, query.shape[2]
        if self.number == 0:
            tokens.begin(count, None)
            tokens.slots = (torch.arange(query.shape[0], device=query.device), slice(None),
                            tokens.positions.long())  # which all layers write to
        if count > 1:
            self.keys[:, :, :count], self.values[:, :, :count] = key, value
            return prompt_attention(query, key, value, None, tokens, scaling, sees=sees).transpose(1, 2).contiguous()
        for held, new in ((self.keys, key), (self.values, value)):
            held[tokens.slots] = new[:, :, 0]
        return self.fastest(query, self.keys, self.values, scaling).transpose(1, 2)


class PlainCache(Cache):
    """Random keys and values in `tokens` slots of each of `batch` sequences, for a prompt and for
    steps of one token, which attend to all slots by whichever of PyTorch's backends is fastest here.
    """

    def __init__(self, config, *, batch, tokens, dtype, device):
        config = config.get_text_config(decoder=True)
        query_heads, kv_heads, head_dim = heads_of(config)
        self.tokens = Tokens(batch, tokens, device, layers=config.num_hidden_layers)
        channels = head_dim, value_dim_of(config, head_dim)
        super().__init__(layers=[_Layer(self.tokens, number, (batch, kv_heads, tokens), channels, dtype, device)
                                 for number in range(config.num_hidden_layers)])
        query = torch.randn(batch, query_heads, 1, head_dim, dtype=dtype, device=device)
        fastest = _fastest(query, self.layers)
        for layer in self.layers:
            layer.fastest = fastest

    def bucket(self, _):
        return self.tokens.room


def _attend(backend, grouped):
    def attend(query, keys, values, scaling):
        shape = query.shape
        if grouped:  # the query heads of a KV head as rows of one query
            query = query.view(shape[0], keys.shape[1], -1, shape[3])
        with sdpa_kernel(backend):
            return torch.nn.functional.scaled_dot_product_attention(
                query, keys, values, scale=scaling,
                enable_gqa=query.shape[1] != keys.shape[1]).reshape(*shape[:3], values.shape[3])
    return attend


def _fastest(query, layers):
    """The fastest backend of those that take the shape, timed over the caches of some layers in turn."""
    best = None
    for backend in _BACKENDS:
        for grouped in (False, True):
            attend = _attend(backend, grouped)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # in which PyTorch says why not
                    attend(query, layers[0].keys, layers[0].values, 1.0)
            except RuntimeError:  # the backend does not take it
                continue
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            begin.record()
            for layer in layers[:4]:
                attend(query, layer.keys, layer.values, 1.0)
            end.record()
            torch.cuda.synchronize()
            if best is None or begin.elapsed_time(end) < best[0]:
                best = begin.elapsed_time(end), attend
    if best is None:
        raise vqgen.Infeasible("no backend of PyTorch's attention takes this shape")
    return best[1]
