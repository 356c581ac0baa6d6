"""Codebooks of the runs that vqgen.eval compares, each trained once."""

from __future__ import annotations

import json
import os
import pathlib
import sys
import zlib

import vqgen
import vqgen.hf
from vqgen import _calibration, _shares
from vqgen._basis import row_words
from vqgen._losses import AT_ONCE
from vqgen._models import heads_of, value_dim_of
from vqgen._reconstruction import reconstruction, rope_split

_MOST_STAGES = 36  # of a format


class Codebooks:
    """The codebooks of a model. Bundles are kept in `folder`, and those there are taken; keys in parts, and what no
    kernel reads, are trained again. shares: of the bundles with shared-out codes that were written, by path. training: arguments of vqgen.train_rsimvq(); judges: token numbers
    [sequences, tokens] by which its steps are judged, or None for those that train."""

    def __init__(self, model, folder, training: dict, judges=None):
        self.model, self.folder, self.training, self.judges = model, folder, training, judges
        self.layers, self.states, self.lost, self.rises, self.shares = {}, {}, {}, {}, {}

    def of(self, run, tokens):
        """The layers of a run, as vqgen.hf.layers_of() reads them, trained on token numbers
        [sequences, tokens]."""
        key = _key(run, tokens)
        if key not in self.layers:
            train = self.in_parts if run.parts is not None else (
                self.rotated_first if run.rotated_first else self.bundle)
            self.layers[key] = train(run, tokens)
        return self.layers[key]

    def states_of(self, tokens):
        """The keys and values of sequences in each layer, [kv_heads, tokens, head_dim]."""
        key = len(tokens), _checksum(tokens)
        if key not in self.states:
            self.states[key] = list(_calibration.states_of(self.model, tokens.split(AT_ONCE), self.model.device))
        return self.states[key]

    def errors(self, run, tokens, of):
        """reconstruction() of the sequences `of` by the layers of a run."""
        key = _key(run, tokens), len(of), _checksum(of)
        if key not in self.lost:
            self.lost[key] = reconstruction(self.of(run, tokens), self.states_of(of), run.rotated_first)
        return self.lost[key]

    def name(self, run, tokens):
        keys, values = run.keys, run.values
        name = f"{_file_name(*keys)}-{_file_name(*values)}-{len(tokens)}-{_checksum(tokens):08x}"
        name += "-gain" * run.key_gain
        if run.rsimvq:
            name += "-rsimvq" + "".join(f"-{key}-{self.training[key]}" for key in sorted(self.training))
            if self.judges is not None:
                name += f"-judged-{len(self.judges)}-{_checksum(self.judges):08x}"
        return name

    def bundle(self, run, tokens):
        path = os.path.join(self.folder, f"{self.name(run, tokens)}.safetensors")
        if not os.path.exists(path):
            start = None
            if run.rsimvq and self.training.get("start", "kmeans") == "kmeans":
                start = self.of(run._replace(rsimvq=False, key_gain=False), tokens)
            self.say(run, tokens)
            if run.bits is not None:
                self.shared(run, tokens, path)
                return vqgen.hf.layers_of(path)
            keys, values = self.formats(run)
            vqgen.hf.calibrate(
                self.model, tokens.split(AT_ONCE), path, keys=keys, values=values,
                key_gain=run.key_gain, rsimvq=self.training if run.rsimvq else None, start=start,
                judged_by=self.judges.split(AT_ONCE) if run.rsimvq and self.judges is not None else None)
        layers = vqgen.hf.layers_of(path)
        if run.bits is None:
            self.require_formats(run, path, layers)
        return layers

    def require_formats(self, run, path, layers):
        """Refuses a bundle of a name's formats as they were before."""
        for operand, form in _calibration._forms(*self.formats(run)).items():
            if vqgen.format_fields(layers[0][0][operand]) != form:
                raise vqgen.BadInput(f"{path} has {operand} of another format than {getattr(run, operand)[0]}; remove it, "
                                     "so that it is trained again")

    def formats(self, run):
        """The formats of keys and values: those of a KLT cache as the model's head_dim has them."""
        if run.klt is None:
            return run.keys[1], run.values[1]
        config = self.model.config.get_text_config(decoder=True)
        head_dim = heads_of(config)[2]
        return [vqgen.hf.klt_format(operand, run.klt, channels)
                for operand, channels in (("keys", head_dim), ("values", value_dim_of(config, head_dim)))]

    def rotated_first(self, run, tokens):
        self.say(run, tokens)
        return _calibration.layers_rotated_first(self.states_of(tokens), run.keys[1], run.values[1],
                                                 key_gain=run.key_gain)

    def shared(self, run, tokens, path):
        """Writes a bundle with shared-out codes; what they cost is measured once for all such runs."""
        key = run.key_gain, len(tokens), _checksum(tokens)
        states = self.states_of(tokens)
        _shares.require_one_size(*(each.shape[2] for each in states[0]))
        if key not in self.rises:
            judges = _shares.judging(tokens.split(AT_ONCE), None if self.judges is None else self.judges.split(AT_ONCE))
            self.rises[key] = _shares.measured(self.model, states, judges, "loss", 1, run.key_gain)
        shares = _shares.shared(self.rises[key], run.bits, "loss", states[0][0].shape[2])
        _calibration.write_basis_bundle(path, states, shares.formats(), 1, run.key_gain)
        self.shares[self.name(run, tokens)] = shares

    def in_parts(self, run, tokens):
        """Keys in two parts, split where the codebooks of the same keys in one part tell: those by
        k-means, for RSimVQ too."""
        start = None
        if run.rsimvq:
            start = self.of(run._replace(rsimvq=False, key_gain=False), tokens)
            forms = start[0][0]["keys"]["parts"]
        else:
            forms = self.parts(run, tokens)
        whole = self.of(run._replace(parts=None), tokens)
        self.say(run, tokens)
        judges = self.states_of(self.judges) if run.rsimvq and self.judges is not None else None
        return _calibration.layers_in_parts(
            whole, self.states_of(tokens), forms, training=self.training if run.rsimvq else None,
            start=start if self.training.get("start", "kmeans") == "kmeans" else None, judges=judges,
            key_gain=run.key_gain)

    def parts(self, run, tokens):
        by_channel = self.errors(run._replace(parts=None, key_gain=False), tokens, tokens)["keys"]["by_channel"]
        low = rope_split(by_channel)
        high = [each for each in range(len(by_channel)) if each not in low]
        stages = run.keys[1]["num_codebooks"] * len(by_channel) // run.keys[1]["vector_size"]
        of_low = round(stages * len(low) / len(by_channel)) + run.parts
        of_low = min(max(of_low, stages - _MOST_STAGES, 1), stages - 1, _MOST_STAGES)
        print(f"keys in parts of {len(low)} channels of low frequency and {len(high)} of high",
              file=sys.stderr, flush=True)
        return [{**run.keys[1], "channels": channels, "vector_size": len(channels), "num_codebooks": of_part}
                for channels, of_part in ((low, of_low), (high, stages - of_low))]

    def say(self, run, tokens):
        in_parts = " in parts" * (run.parts is not None)
        print(f"training {self.name(run, tokens)}{in_parts}", file=sys.stderr, flush=True)


def size_of(layers) -> dict | None:
    """The `bits` of an element and the `bytes_per_token` of all layers, by the words of their codes; None for formats
    that store more, and layouts."""
    elements = total = 0
    for item, _ in layers:
        for operand in ("keys", "values"):
            form = item[operand]
            if form.get("decoder", "table") != "table" or form.get("layout") not in (None, {"rows": 1, "words": 1}):
                return None
            channels = item.get("value_head_dim", item["head_dim"]) if operand == "values" else item["head_dim"]
            words = row_words(form, channels)
            elements += item["kv_heads"] * channels
            total += item["kv_heads"] * words * 4
    return {"bits": 8 * total / elements, "bytes_per_token": float(total)}


def _key(run, tokens):
    return json.dumps((*run.trained(), len(tokens), _checksum(tokens)), sort_keys=True)


def _checksum(tokens):
    return zlib.crc32(tokens.numpy())


def _file_name(name, format):
    """The part of a bundle's name that stands for a format: a format file's stem, with a checksum of its fields."""
    if format != name or not ("/" in name or name.endswith(".json")):
        return name
    fields = json.dumps(vqgen.format_fields(format), sort_keys=True)
    return f"{pathlib.Path(name).stem}-{zlib.crc32(fields.encode()):08x}"
