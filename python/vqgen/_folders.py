"""Model folders that `vqgen quantize MODEL_DIR`, `vqgen import` and vqgen.hf.quantize() write: what their config.json says of
quantized layers, and whether their tensors are those (docs/reference/file-formats.md)."""

from __future__ import annotations

import json
import os
import re

import vqgen
from vqgen import _core
from vqgen._rotation_orders import order
from vqgen._versions import format_version

METHOD = "vqgen"
VERSION = 1
INDEX = "model.safetensors.index.json"
_FIELDS = {"quant_method": str, "version": int, "dtype": str, "format": dict, "overrides": list, "weight_shapes": list,
           "rotations": list, "modules_to_not_convert": list}
_ELEMENTS = ("f16", "bf16")
_SUFFIXES = ("codes", "codebooks", "stage_scales", "output_scales", "input_signs", "output_signs")
_AGAIN = "fetch the folder again, or quantize again"


def matches(pattern: str, name: str) -> bool:
    """True if the name is the pattern's, in which each star stands for any text."""
    if "*" not in pattern:
        return pattern == name
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name) is not None


def tensors_of(form: dict, dtype: str, out_features: int, in_features: int) -> dict:
    """What vqgen_weight_tensors() says of a quantized layer: "tensors", the type and shape of each by what follows the
    layer's name, and "refused", why no kernel reads them, or "". dtype: "f16" or "bf16". Raises BadInput."""
    return json.loads(_core.weight_tensors(json.dumps(form), _ELEMENTS.index(dtype), out_features, in_features))


class Quantization:
    """What "quantization_config" says. fields: its members. source: the file, for messages. Raises BadInput for another
    method, a newer version, and members that are missing, unknown or of a wrong type."""

    def __init__(self, fields: dict, source: str = "config.json"):
        self.source = f"{source}: quantization_config"
        if fields.get("quant_method") != METHOD:
            self._fail(f"quant_method is {fields.get('quant_method')!r} where vqgen writes '{METHOD}'; "
                       + ("import the model with vqgen import" if fields.get("quant_method") == "aqlm" else
                          "quantize the original model with vqgen quantize"))
        format_version(fields, "version", VERSION, self.source)
        self._require("", fields, _FIELDS, {"overrides", "version", "rotations"})
        if fields["dtype"] not in _ELEMENTS:
            self._fail(f"dtype is {fields['dtype']!r}; it is f16 or bf16: quantize again")
        self.dtype = fields["dtype"]
        self.format = self._format("format", fields["format"])
        self._overrides, self._shapes = [], []
        for number, each in enumerate(fields.get("overrides", [])):
            place = f"overrides[{number}]"
            self._require(place, each, {"modules": str, "format": dict})
            self._overrides.append((each["modules"], self._format(place, each["format"])))
        for number, each in enumerate(fields["weight_shapes"]):
            self._require(f"weight_shapes[{number}]", each, {"modules": str, "out_features": int, "in_features": int})
            self._shapes.append((each["modules"], (each["out_features"], each["in_features"])))
        self._rotations = []
        for number, each in enumerate(fields.get("rotations", [])):
            place = f"rotations[{number}]"
            self._require(place, each, {"modules": str, "parts": list}, {"parts"})
            for part in each.get("parts", []):
                self._require(f"{place}: parts", part, {"name": str, "out_features": int})
            self._rotations.append((each["modules"], [(part["name"], part["out_features"]) for part in each.get("parts", [])]))
        for each in fields["modules_to_not_convert"]:
            if not isinstance(each, str):
                self._fail(f"modules_to_not_convert has {each!r}, which is no name; quantize again")
        # There may be a name for each expert; names without stars are looked up, and not matched one by one.
        self._dense = {each for each in fields["modules_to_not_convert"] if "*" not in each}
        self._dense_patterns = [each for each in fields["modules_to_not_convert"] if "*" in each]

    def _fail(self, what):
        raise vqgen.BadInput(f"{self.source}: {what}")

    def _require(self, place, value, kinds, optional=frozenset()):
        name = f"{place}: " if place else ""
        if not isinstance(value, dict):
            self._fail(f"{name}is {type(value).__name__}; it is an object: quantize again")
        for key, kind in kinds.items():
            if key not in value and key in optional:
                continue
            if not isinstance(value.get(key), kind) or isinstance(value[key], bool):
                self._fail(f"{name}{key} is {value.get(key)!r}; it is of type {kind.__name__}: quantize again")
        if unknown := sorted(set(value) - set(kinds)):
            self._fail(f"{name}unknown field '{unknown[0]}'; update vqgen, or quantize again")

    def _format(self, place, fields):
        try:
            return vqgen.format_fields(fields)
        except vqgen.BadInput as error:
            raise vqgen.BadInput(f"{self.source}: {place}: {error}") from None

    def format_of(self, module: str) -> dict:
        """The format of a quantized module: that of the first override that names it, else the common one."""
        return next((form for pattern, form in self._overrides if matches(pattern, module)), self.format)

    def shape_of(self, module: str) -> tuple[int, int] | None:
        """(out_features, in_features) of a quantized module; None if no pattern is its."""
        return next((shape for pattern, shape in self._shapes if matches(pattern, module)), None)

    def rotation_of(self, module: str) -> list[tuple[str, int]] | None:
        """The parts of a module whose weights are rotated, each the name of a linear layer beside it and its rows; no parts if
        the module is one linear layer. None if its weights are not rotated."""
        return next((parts for pattern, parts in self._rotations if matches(pattern, module)), None)

    def is_dense(self, module: str) -> bool:
        """True if the module is one that stays as it is."""
        return module in self._dense or any(matches(pattern, module) for pattern in self._dense_patterns)

    def tensors_of(self, module: str, out_features: int, in_features: int) -> dict[str, tuple[str, list[int]]]:
        """The type and shape of each tensor of a quantized module, by what follows its name."""
        try:
            found = tensors_of(self.format_of(module), self.dtype, out_features, in_features)["tensors"]
        except vqgen.BadInput as error:
            raise vqgen.BadInput(f"{self.source}: format of '{module}': {error}; quantize again") from None
        if (parts := self.rotation_of(module)) is not None:
            for what, features in (("in_features", in_features), ("out_features", out_features)):
                if not order(features):
                    self._fail(f"rotations: '{module}' has {what} {features}, which no matrix rotates; import again")
            if parts and sum(rows for _, rows in parts) != out_features:
                self._fail(f"rotations: the parts of '{module}' have {sum(rows for _, rows in parts)} rows of {out_features}; "
                           "import again")
            found |= {"input_signs": ("F32", [in_features]), "output_signs": ("F32", [out_features])}
        return {suffix: tuple(found[suffix]) for suffix in _SUFFIXES if suffix in found}


class Tensors:
    """The headers of a folder's files of tensors. files: their paths. Raises BadInput for a file that cannot be read and
    for an index beside them that says other than they do."""

    def __init__(self, files):
        from safetensors import SafetensorError, safe_open
        self.about, self.file_of = {}, {}
        for path in map(os.fspath, files):
            try:
                with safe_open(path, "pt") as file:
                    for name in file.keys():
                        part = file.get_slice(name)
                        self.about[name] = (part.get_dtype(), list(part.get_shape()))
                        self.file_of[name] = path
            except (OSError, SafetensorError) as error:
                raise vqgen.BadInput(f"{path}: it cannot be read as safetensors: {error}; {_AGAIN}") from None
        self.source = os.fspath(files[0])
        index = os.path.join(os.path.dirname(self.source), INDEX)
        if os.path.exists(index):
            self.source = index
            for name, file in weight_map(index).items():
                found = self.file_of.get(name)
                if found is None or os.path.basename(found) != file:
                    raise vqgen.BadInput(f"{index}: tensor '{name}' is in {file} by the index, and "
                                         f"{'in no file' if found is None else 'in ' + os.path.basename(found)}; {_AGAIN}")

    def fail(self, tensor, what):
        """Raises BadInput about a tensor, with its file."""
        raise vqgen.BadInput(f"{self.file_of.get(tensor, self.source)}: tensor '{tensor}': {what}")

    def modules(self) -> set[str]:
        """The names of the modules that have tensors of a quantized layer."""
        return {stem for stem, _, suffix in (name.rpartition(".") for name in self.about) if suffix in _SUFFIXES}

    def read(self, module: str) -> dict:
        """The tensors of a quantized layer, on the CPU, by what follows its name."""
        from safetensors import safe_open
        found = {}
        for suffix in _SUFFIXES:
            if path := self.file_of.get(f"{module}.{suffix}"):
                with safe_open(path, "pt") as file:
                    found[suffix] = file.get_tensor(f"{module}.{suffix}")
        return found

    def require(self, module: str, tensors: dict) -> None:
        """Refuses a module whose tensors are not `tensors`, as Quantization.tensors_of() says them."""
        for suffix, (kind, shape) in tensors.items():
            name = f"{module}.{suffix}"
            if name not in self.about:
                self.fail(name, f"is not there, though the layer is quantized; {_AGAIN}")
            found_kind, found = self.about[name]
            if (found_kind != kind and (kind, found_kind) != ("I32", "U32")) or found != shape:
                self.fail(name, f"is {found_kind} {found} where the config asks for {kind} {shape}; {_AGAIN}")
        for suffix in _SUFFIXES:
            if suffix not in tensors and f"{module}.{suffix}" in self.about:
                self.fail(f"{module}.{suffix}", f"is there, but the config's format has none; {_AGAIN}")


def weight_map(index: str) -> dict[str, str]:
    """The file of each tensor by an index. Raises BadInput for a file that is no index, or names files elsewhere."""
    try:
        with open(index, encoding="utf-8") as file:
            names = json.load(file)["weight_map"]
        if not all(isinstance(each, str) and each == os.path.basename(each) for each in names.values()):
            raise ValueError("it names a file that is not beside it")
        return names
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise vqgen.BadInput(f"{index}: it is no index of shards: {error!r}; {_AGAIN}") from None


def read_folder(folder) -> tuple[Quantization, Tensors]:
    """The quantization and the tensors of a folder. Raises BadInput, by one line that names the file, for a folder that
    `vqgen quantize` did not write or has not finished, and for files that are missing, cut or lie."""
    folder = os.fspath(folder)
    config = os.path.join(folder, "config.json")
    if not os.path.isdir(folder):
        held = folder.rstrip("/") + ".partial"
        raise vqgen.BadInput(f"{folder}: it is being written, or its run was killed: start the same run again"
                             if os.path.isdir(held) else
                             f"{folder}: it is no folder; write one by vqgen quantize MODEL_DIR --out {folder}")
    try:
        with open(config, encoding="utf-8") as file:
            fields = json.load(file)
        quantization = fields.get("quantization_config")
    except (OSError, ValueError, AttributeError) as error:
        raise vqgen.BadInput(f"{config}: it cannot be read as the config of a model: {error}; {_AGAIN}") from None
    if not isinstance(quantization, dict):
        raise vqgen.BadInput(f"{config}: it has no quantization_config, so the model is not quantized; quantize it by vqgen "
                             "quantize MODEL_DIR --out DIR")
    index = os.path.join(folder, INDEX)
    names = {"model.safetensors"}
    if os.path.exists(index):
        names = set(weight_map(index).values())
    for name in sorted(names):
        if not os.path.exists(os.path.join(folder, name)):
            raise vqgen.BadInput(f"{os.path.join(folder, name)}: it is not there; {_AGAIN}")
    return Quantization(quantization, config), Tensors([os.path.join(folder, name) for name in sorted(names)])
