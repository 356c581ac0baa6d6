"""Configs as dataclasses: the fields of docs/reference/config.md, with its defaults. A field that is None is
left out."""

import dataclasses
from dataclasses import dataclass
from typing import Any, Optional, Union


@dataclass
class Format:
    """How vectors are coded. `preset` brings the fields that are not given here."""

    vector_size: Optional[int] = None
    index_bits: Optional[int] = None
    preset: Optional[str] = None
    num_codebooks: Optional[int] = None
    scope: Optional[str] = None
    group_channels: Optional[int] = None
    tile_rows: Optional[int] = None
    tile_columns: Optional[int] = None
    entry_type: Optional[str] = None
    decoder: Optional[str] = None
    stage_scales: Optional[bool] = None
    output_scales: Optional[bool] = None
    smooth: Optional[bool] = None
    hadamard: Optional[bool] = None
    center: Optional[bool] = None
    klt: Optional[bool] = None
    token_scales: Optional[bool] = None
    group_tokens: Optional[int] = None
    group_inputs: Optional[int] = None
    group_scale_bits: Optional[int] = None
    group_minima: Optional[bool] = None
    common_scale: Optional[bool] = None
    layout: Optional[dict] = None
    channels: Optional[list] = None  # of a part
    parts: Optional[list] = None  # of keys or values, beside which only center and klt stand


AnyFormat = Union[str, Format, dict]


@dataclass(kw_only=True)
class _Config:
    """What configs of all ops may have."""

    dtype: Optional[str] = None
    plan: Optional[dict] = None
    gpu: Optional[str] = None
    version: Optional[int] = None


@dataclass
class AttentionShape:
    """`tokens` is the longest sequence that will come; `recent_tokens` and `sinks` are raw tokens,
    `query_tokens` the most of a sequence in one call, `page_tokens` those of a page, `raw_page_tokens`
    those of a page of raw rows, `flush_block` those that leave the window together. With `batch_invariant` no bit of a result depends on the rest
    of the call. A query token sees the newest `sliding_window` tokens, or those of its own chunk of
    `attention_chunk`; its scores stay within `logit_softcap`; with `sink_logits` a call has logits that
    add to the denominators, with `tree_mask` which drafts of a tree each query token sees. With
    `shared_prefix` all query tokens see all tokens, which several sequences share (vqgen.torch.Cascade).
    Heads of values, and so of results, have `value_head_dim` channels where that is given, else `head_dim`."""

    batch: int
    query_heads: int
    kv_heads: int
    head_dim: int
    tokens: int
    recent_tokens: Optional[int] = None
    sinks: Optional[int] = None
    query_tokens: Optional[int] = None
    page_tokens: Optional[int] = None
    raw_page_tokens: Optional[int] = None
    batch_invariant: Optional[bool] = None
    flush_block: Optional[int] = None
    sliding_window: Optional[int] = None
    attention_chunk: Optional[int] = None
    logit_softcap: Optional[float] = None
    sink_logits: Optional[bool] = None
    tree_mask: Optional[bool] = None
    shared_prefix: Optional[bool] = None
    value_head_dim: Optional[int] = None


@dataclass
class AttentionConfig(_Config):
    shape: AttentionShape
    keys: AnyFormat
    values: AnyFormat
    op: str = "attention_decode"
    access_counts: Optional[str] = None


@dataclass
class AppendShape:
    """`tokens` is the room of a sequence, `new_tokens` the most that one call appends to it."""

    batch: int
    kv_heads: int
    head_dim: int
    tokens: int
    new_tokens: Optional[int] = None
    recent_tokens: Optional[int] = None
    sinks: Optional[int] = None
    page_tokens: Optional[int] = None
    raw_page_tokens: Optional[int] = None
    flush_block: Optional[int] = None
    value_head_dim: Optional[int] = None


@dataclass
class AppendConfig(_Config):
    shape: AppendShape
    keys: AnyFormat
    values: AnyFormat
    op: str = "kv_append"


@dataclass
class DequantizeShape:
    """`tokens` is the most that will be decoded of a sequence."""

    batch: int
    kv_heads: int
    head_dim: int
    tokens: int
    recent_tokens: Optional[int] = None
    sinks: Optional[int] = None
    page_tokens: Optional[int] = None
    raw_page_tokens: Optional[int] = None
    flush_block: Optional[int] = None
    value_head_dim: Optional[int] = None


@dataclass
class DequantizeConfig(_Config):
    shape: DequantizeShape
    keys: AnyFormat
    values: AnyFormat
    op: str = "kv_dequantize"
    access_counts: Optional[str] = None


@dataclass
class MergeShape:
    """`rows` is the most query tokens that will come, `parts` the results that become one; `head_dim` is the
    `value_head_dim` of the attentions that they come from."""

    rows: int
    heads: int
    head_dim: int
    parts: int


@dataclass
class MergeConfig(_Config):
    shape: MergeShape
    op: str = "attention_merge"


@dataclass
class LinearShape:
    """`m` is the most rows of x that will come; with `experts` of one of them, and `total_rows` of all. `gate` "silu" makes
    y of gate rows and up rows of W; `multiplier` and a `residual` follow."""

    m: int
    out_features: int
    in_features: int
    experts: Optional[int] = None
    total_rows: Optional[int] = None
    gate: Optional[str] = None
    gate_rows: Optional[int] = None
    multiplier: Optional[float] = None
    residual: Optional[bool] = None


@dataclass
class LinearConfig(_Config):
    shape: LinearShape
    weights: AnyFormat
    op: Optional[str] = None  # "gemv" or "gemm", by m
    access_counts: Optional[str] = None


@dataclass
class WeightRowsShape:
    """`rows` is the most rows that one call will write."""

    rows: int
    out_features: int
    in_features: int


@dataclass
class WeightRowsConfig(_Config):
    shape: WeightRowsShape
    weights: AnyFormat
    op: str = "weight_dequantize"
    access_counts: Optional[str] = None


@dataclass
class ScalarShape:
    """`tokens` is the most that will come; `scales` "given" or, to quantize, "computed"."""

    tokens: int
    channels: int
    scales: Optional[str] = None


@dataclass
class ScalarConfig(_Config):
    shape: ScalarShape
    op: str = "int8_quantize"  # or "int8_dequantize"


def as_json(config: Any) -> Any:
    """The JSON value of a config or of a part of one."""
    if dataclasses.is_dataclass(config):
        config = vars(config)
    if isinstance(config, dict):
        return {key: as_json(value) for key, value in config.items() if value is not None}
    return config
