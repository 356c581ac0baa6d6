"""Codebooks of a model's keys and values, trained where these are, without the tool: the bundle that
`vqgen quantize` writes of them (docs/guides/quantize.md)."""

import json

import torch
from transformers import Cache

import vqgen
import vqgen.torch
from vqgen import _kmeans
from vqgen._attention import prompt_attention
from vqgen._basis import books_of_parts
from vqgen._bundles import ROWS, in_rows, packed, write_items
from vqgen._models import attending, in_float32, require_served
from vqgen._nearest import encoded
from vqgen._reconstruction import common_share, warn_of_common
from vqgen._sights import require_bounds
from vqgen._tokens import Tokens, TokensLayer
from vqgen._training import without_transforms
from vqgen.simulation import rotated

_AT_ONCE = 1 << 13  # tokens that are encoded by PyTorch at once
_TOKENS = 1024  # that are encoded at once,
_VECTORS = 1 << 20  # or sub-vectors


def can_write(dtype, *forms) -> bool:
    """True if kernels train the formats on devices, and codes are stored row after row."""
    return dtype in vqgen.torch.DTYPES and all(
        _by_kernels(fields) and in_rows(fields) for fields in map(vqgen.format_fields, forms))


def can_write_by_torch(dtype, *forms) -> bool:
    """True if the formats are trained on a GPU, some of them by PyTorch."""
    return dtype in vqgen.torch.DTYPES and all(
        (_by_kernels(fields) or _kmeans.takes(fields)) and in_rows(fields)
        for fields in map(vqgen.format_fields, forms))


def _by_kernels(fields) -> bool:
    return fields.get("decoder") == "table" and fields["vector_size"] in _kmeans.SIZES


class _Recorded(TokensLayer):
    """Attends to a prompt and keeps its keys and values."""

    def attend(self, query, key, value, scaling, padding, sinks, sees=None):
        if self.number == 0:
            self.tokens.begin(key.shape[2], padding)
        self.keys, self.values = key, value
        out = prompt_attention(query, key, value, None, self.tokens, scaling, self.sight, sinks, sees)
        return out.transpose(1, 2).contiguous()


@torch.no_grad()
def states_of(model, batches, device, keys=None):
    """Yields each layer's keys and values of all batches, [kv_heads, tokens, head_dim], on
    `device`. batches: as of vqgen.hf.calibrate(). They are those that vqgen's attention gets, which refuses
    here, before anything is trained, what it could not serve. Warns at the end of keys that are mostly alike,
    where `keys` is a format that spends codes on that."""
    *_, sights = require_served(model.config)
    for sight in dict.fromkeys(sights) if keys is not None else ():
        require_bounds(sight, vqgen.format_fields(keys), "calibrate(keys)")
    layers = model.config.get_text_config(decoder=True).num_hidden_layers
    parts, dtype = {}, model.dtype
    for tokens in batches:
        counts = Tokens(*tokens.shape, model.device, layers=layers)
        cache = Cache(layers=[_Recorded(counts, number, sight) for number, sight in enumerate(sights)])
        with attending(model, "vqgen"), in_float32(model):
            model(tokens.to(model.device), past_key_values=cache, use_cache=True)
        for number, layer in enumerate(cache.layers):
            if layer.keys is None or layer.keys.shape[:3] != layer.values.shape[:3]:
                shapes = [None if each is None else list(each.shape) for each in (layer.keys, layer.values)]
                raise vqgen.Infeasible(f"layer {number}: its keys and values are {shapes[0]} and {shapes[1]}, and a VQCache "
                                       "holds as many of both in each layer; calibrate a model that has them")
            for name, states in (("k", layer.keys), ("v", layer.values)):
                heads = states.transpose(0, 1).flatten(1, 2)
                parts.setdefault((number, name), []).append(heads.to(device, dtype))
    if not parts:
        raise vqgen.BadInput("calibrate() got no batches; pass token numbers")
    shares = []
    for number in range(len(parts) // 2):
        states = [torch.cat(parts.pop((number, name)), 1) for name in "kv"]
        shares.append(common_share(states[0]))
        yield states
    warn_of_common(shares, keys)


def _forms(keys, values):
    """All fields of two formats; values are neither smoothed nor rotated by Hadamard."""
    keys, values = vqgen.format_fields(keys), vqgen.format_fields(values)
    if "parts" not in values:
        values |= {"smooth": False, "hadamard": False}
    return {"keys": keys, "values": values}


def has_basis(*forms) -> bool:
    """True if one of the formats has a mean or a rotation of its own (center, klt)."""
    return any(fields.get("center") or fields.get("klt") for fields in map(vqgen.format_fields, forms))


def layers_rotated_first(layers, keys, values, seed: int = 1, key_gain: bool = True):
    """What layers_of() would read of a bundle whose keys were rotated before all that their format
    says. For simulation alone: no kernel reads such keys, so that no bundle is written of them.
    layers: as of write_bundle()."""
    forms = _forms(keys, values)
    if "parts" in forms["keys"]:
        raise vqgen.BadInput("keys in parts are not rotated; give keys of one format")
    out = []
    for states in layers:
        tensors = {}
        for operand, part in zip(forms, states):
            is_keys = operand == "keys"
            trained = _trained(part, forms[operand], seed, rotated_first=is_keys, gain=is_keys and key_gain)
            tensors |= {f"{operand}.{name}": tensor for name, tensor in trained.items()}
        out.append(({**forms, **_heads(states)}, tensors))
    return out


def layers_in_parts(whole, layers, parts, seed: int = 1, training=None, start=None, judges=None,
                    key_gain: bool = True):
    """Layers as `whole`, which layers_of() reads of a bundle, except for their keys, which come in parts.
    parts: of the format, of scope tensor or head; training: as of write_torch_bundle(), or None for
    k-means; start: such layers, whose keys training starts from; judges: as layers, by which it is
    judged. layers: as of write_bundle()."""
    parts = vqgen.format_fields({"parts": parts})["parts"]
    forms = [{name: field for name, field in part.items() if name != "channels"} for part in parts]
    out = []
    for number, ((item, tensors), states) in enumerate(zip(whole, layers)):
        starts = [None] * len(parts)
        if start is not None:
            starts = [vqgen.Codebooks(books, None) for _, books in books_of_parts(
                parts, start[number][1]["keys.codebooks"], states[0].shape[0])]
        books, gains = [], []
        for part, form, begin in zip(parts, forms, starts):
            channels = part["channels"]
            judge = None if judges is None else judges[number][0][:, :, channels]
            trained = _trained(states[0][:, :, channels], form, seed, training=training, start=begin, judge=judge,
                               gain=key_gain)
            books.append(trained["codebooks"].flatten())
            gains += [trained["gain"]] if key_gain else []
        own = {name: tensor for name, tensor in tensors.items() if name.startswith("values.")}
        own["keys.codebooks"] = torch.cat(books)
        if key_gain:
            own["keys.gain"] = torch.cat(gains)
        out.append(({**item, "keys": {"parts": parts}}, own))
    return out


def _heads(states) -> dict:
    """Heads, and the channels of each, of keys and values [kv_heads, tokens, channels], as configs and bundles have them."""
    keys, values = states
    same = keys.shape[2] == values.shape[2]
    return {"kv_heads": keys.shape[0], "head_dim": keys.shape[2], **({} if same else {"value_head_dim": values.shape[2]})}


def require_runs(forms, dtype, device, heads: dict, tokens: int) -> None:
    """Refuses formats that vqgen has no attention for, before anything is trained."""
    shape = {"batch": 1, "query_heads": heads["kv_heads"], **heads, "tokens": tokens}
    config = vqgen.torch.config_text({"op": "attention_decode", "dtype": dtype, "shape": shape, **forms})
    vqgen.torch.runtime(device).enumerate(json.loads(config), tokens, tokens)


def _require_runs(forms, dtype, states) -> None:
    require_runs(forms, dtype, states[0].device, _heads(states), states[0].shape[1])


def _item(number, dtype, forms, states) -> dict:
    """The metadata of a layer whose keys and values are `states`."""
    return {"name": f"layer{number}", "kind": "attention", "dtype": dtype, **forms, "cache_batch": 1,
            "tokens": states[0].shape[1], **_heads(states)}


def _named(number, operand, trained) -> dict:
    """The tensors of an operand by their names in the bundle's file."""
    return {f"layer{number}.{operand}.{name}": tensor.cpu().contiguous() for name, tensor in trained.items()}


def write_bundle(out, layers, keys, values, seed: int, key_gain: bool = True) -> None:
    """layers: of each the keys and values, [kv_heads, tokens, channels], on one device. keys,
    values: formats, of which and of the dtype can_write() is true. key_gain: as of vqgen.hf.calibrate()."""
    forms = _forms(keys, values)
    items, tensors = [], {}
    for number, parts in enumerate(layers):
        heads, tokens, _ = parts[0].shape
        dtype = vqgen.torch.DTYPES[parts[0].dtype]
        if number == 0:
            _require_runs(forms, dtype, parts)
        trained = {}
        for operand, part in zip(forms, parts):
            trained[operand] = _trained(part, forms[operand], seed, gain=operand == "keys" and key_gain)
        cache = vqgen.torch.VQCache(
            batch=1, query_heads=heads, **_heads(parts), tokens=tokens, **forms,
            key_codebooks=trained["keys"]["codebooks"],
            value_codebooks=trained["values"]["codebooks"],
            key_scales=trained["keys"].get("stage_scales"),
            value_scales=trained["values"].get("stage_scales"),
            key_smooth=trained["keys"].get("smooth"), key_gain=trained["keys"].get("gain"))
        for first in range(0, tokens, _TOKENS):
            cache.append(*(part[:, first:first + _TOKENS].transpose(0, 1)[None] for part in parts))
        for operand, own in (("keys", cache.keys), ("values", cache.values)):
            tensors |= _named(number, operand, {**trained[operand], "codes": own.codes.view(torch.uint32)})
        items.append(_item(number, dtype, forms, parts))
    write_items(out, items, tensors)


def write_torch_bundle(out, layers, keys, values, seed: int, training: dict | None = None, start=None,
                       judges=None, key_gain: bool = True) -> None:
    """Writes a bundle with codes by PyTorch, on any device, and sub-vectors of any size that a format has.
    training: arguments of vqgen.train_rsimvq(), which makes the codebooks then, or None for k-means; start: layers
    of layers_of() with the same formats, which it starts from; judges: as layers, by which it is judged."""
    forms = _forms(keys, values)
    if "parts" in forms["keys"]:
        raise vqgen.BadInput("keys in parts are calibrated by k-means, without rsimvq; give keys of one format")
    if start is not None:
        _require_start(start, forms)
    items, tensors = [], {}
    judges = iter(judges or ())
    for number, parts in enumerate(layers):
        dtype, judge = vqgen.torch.DTYPES.get(parts[0].dtype), next(judges, (None, None))
        for (operand, form), part in zip(forms.items(), parts):
            head_dim = part.shape[2]
            if dtype is None or not in_rows(form) or head_dim % form["vector_size"]:
                raise vqgen.Infeasible(
                    f"{operand}: PyTorch calibrates models of float16 and bfloat16, formats without layout, "
                    f"and sub-vectors that divide head_dim; these are {parts[0].dtype}, "
                    f"{form.get('layout', ROWS)} and {form['vector_size']} of {head_dim}")
        for operand, part, other in zip(forms, parts, judge):
            begin = None
            if start is not None:
                if number == len(start):
                    raise vqgen.BadInput(f"start has {number} layers, and the model more; take its own codebooks")
                given = start[number][1]
                begin = vqgen.Codebooks(given[f"{operand}.codebooks"], given.get(f"{operand}.stage_scales"))
            named = _trained(part, forms[operand], seed, training=training, start=begin, judge=other,
                             gain=operand == "keys" and key_gain)
            named["codes"] = _codes(part, forms[operand], named)
            tensors |= _named(number, operand, named)
        items.append(_item(number, dtype, forms, parts))
    write_items(out, items, tensors)


def basis_dtype(dtype) -> str:
    """The element type of bundles of formats with center or klt, of a model of dtype."""
    if dtype not in vqgen.torch.DTYPES:
        raise vqgen.Infeasible(f"formats with center or klt are calibrated from models of float16 and bfloat16; this one "
                               f"is {dtype}; pass model.half()")
    return vqgen.torch.DTYPES[dtype]


def write_basis_bundle(out, layers, formats, seed: int, key_gain: bool = True) -> None:
    """Writes a bundle of formats with center or klt, trained by PyTorch where the states are. layers: as of
    write_bundle(); formats: of each layer a dict of `keys` and `values`; key_gain: as of vqgen.hf.calibrate()."""
    items, tensors = [], {}
    for number, (states, given) in enumerate(zip(layers, formats)):
        forms = _forms(**given)
        dtype = basis_dtype(states[0].dtype)
        if number == 0 or forms != before:
            _require_runs(forms, dtype, states)
        before = forms
        for operand, rows in zip(forms, states):
            named = _in_basis(rows, forms[operand], seed, operand == "keys" and key_gain)
            tensors |= _named(number, operand, named)
        items.append(_item(number, dtype, forms, states))
    write_items(out, items, tensors)


def _in_basis(rows, form, seed, gain, basis=None, with_codes=True):
    """The tensors of an operand by their names in a bundle, of rows [kv_heads, tokens, head_dim]. basis: basis_of() these,
    if it is known. Without `with_codes` they lack the codes of the rows."""
    from vqgen._klt import based, basis_of, dealt, sampled
    out = {}
    basis = basis_of(rows) if basis is None else basis
    if form.get("center"):
        out["mean"] = basis.mean.float().to(rows.device)
    if form.get("klt"):
        out["rotation"] = dealt(basis, form).rotation.float().to(rows.device)
    states = based(rows, out.get("mean"), out.get("rotation"))
    in_parts = "parts" in form
    trained = []
    for part in form["parts"] if in_parts else [form]:
        own = states[:, :, part["channels"]] if in_parts else states
        named = _trained(sampled(own, part, seed), part, seed, gain=gain)
        if with_codes:
            named["codes"] = torch.cat([_codes(each, part, named).view(torch.int32) for each in own.split(_AT_ONCE, 1)], 2)
        trained.append(named)
    for name in trained[0]:
        each = [named[name] for named in trained]
        out[name] = (each[0] if not in_parts else torch.cat(each, -1) if name == "codes" else
                     torch.cat([own.flatten() for own in each]))
    if with_codes:
        out["codes"] = out["codes"].view(torch.uint32)
    return out


def _require_start(start, forms) -> None:
    for item, _ in start:
        for operand, form in forms.items():
            if {**form, "layout": None} != {**item[operand], "layout": None}:
                raise vqgen.BadInput(f"start has {operand} of another format; take codebooks of the same")


def _codes(states, form, named):
    """Packed codes [1, kv_heads, tokens, row words] of what _trained() returned (docs/reference/config.md)."""
    heads, tokens, _ = states.shape
    vectors = _domain(states.float(), form, named.get("smooth"))
    tables = named["codebooks"].to(vectors.device).float()
    if "stage_scales" in named:
        tables = tables * named["stage_scales"].to(vectors.device)[..., None, None]
    codes = torch.stack([encoded(own.reshape(-1, form["vector_size"]), table)[0]
                         for own, table in zip(vectors, tables)])
    if form["scope"] == "channel_group":  # units are heads and groups, each with its tokens
        codes = codes.view(heads, len(tables) // heads, tokens, -1).transpose(1, 2)
    codes = codes.reshape(1, heads, tokens, -1)
    return packed(codes, form["index_bits"])


def _domain(states, form, smooth=None, rotated_first=False):
    """What is quantized, [units, rows, columns], of float32 states [kv_heads, tokens, head_dim]."""
    vectors = rotated(states) if rotated_first else states
    if smooth is not None:
        vectors = vectors / smooth[:, None]
    if form["hadamard"]:
        vectors = rotated(vectors)
    heads, tokens, head_dim = vectors.shape
    if form["scope"] == "tensor":
        vectors = vectors.reshape(1, heads * tokens, head_dim)
    elif form["scope"] == "channel_group":
        group = form["group_channels"] or form["vector_size"]
        vectors = vectors.view(heads, tokens, head_dim // group, group).transpose(1, 2)
        vectors = vectors.reshape(-1, tokens, group)
    return vectors.contiguous()


def _trained(states, form, seed, rotated_first=False, training=None, start=None, judge=None, gain=False):
    """Codebooks, and the factors that go with them, by their names in a bundle. training: arguments of
    vqgen.train_rsimvq(), which trains then, from the Codebooks `start` if there are, and judged by the
    states `judge`. gain: as of keys."""
    states_now, named, smooth = states.float(), {}, None
    if form["smooth"]:
        largest = (rotated(states_now) if rotated_first else states_now).abs().amax(1)
        least = largest.where(largest > 0, torch.inf).amin(1, keepdim=True)  # of the head's live channels
        largest = largest.where(largest > 0, least.where(least < torch.inf, 1.0))
        smooth = named["smooth"] = largest.sqrt()
    vectors, plain = _domain(states_now, form, smooth, rotated_first), without_transforms(form)
    if training is None:
        trained = vqgen.torch.train_codebooks(vectors, plain, dtype=states.dtype, seed=seed)
    else:
        training = {**training, **({} if start is None else {"start": start})}
        if judge is not None:
            training["judged_by"] = _domain(judge.float(), form, smooth, rotated_first)
        trained = vqgen.train_rsimvq(vectors, plain, dtype=vqgen.torch.DTYPES[states.dtype], seed=seed,
                                     **training)
    if gain:
        named["gain"] = _gains(trained, vectors)
    named["codebooks"] = trained.codebooks
    if trained.scales is not None:
        named["stage_scales"] = trained.scales
    return named


def _gains(trained, vectors):
    """The gain of each unit, float32 [units]: sum z.z / sum z.z' over its vectors z and what their codes stand for.
    vectors: [units, rows, columns]."""
    books, scales = trained
    gains = torch.ones(len(books), dtype=torch.float32)
    for unit, own in enumerate(vectors.reshape(len(books), -1, books.shape[-1])):
        tables = books[unit].to(own.device).float()
        if scales is not None:
            tables = tables * scales[unit].to(own.device)[:, None, None]
        whole = shared = 0.0
        for part in own.split(_VECTORS):
            whole += float(part.square().sum(dtype=torch.double))
            shared += float((part * encoded(part, tables)[1]).sum(dtype=torch.double))
        if shared > 0:  # else codes stand for zeros alone
            gains[unit] = whole / shared
    return gains.to(books.device)
