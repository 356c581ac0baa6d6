"""Humming: products of integer weights of 2 and 4 bits with f16 activations, by the package's own layer.

Its quantizer makes the codes, its heuristics choose the kernel. The reference reads the packed codes:
value = (code - half the range) * scale, codes along a row, the lowest bits first.
"""
import importlib.util
import pathlib
from copy import deepcopy

import baselines
from checking import Prepared, version_of

DISTRIBUTION = "humming-kernels"
VARIANTS = ("int2", "int2-g128", "int4")  # one scale per output channel, or per 128 inputs
GROUP = 128
QUANTIZED = 2  # layers of weights of their own
TOLERANCE = 5e-3  # f16 products, summed in f32, rounded to f16


def missing(_):
    """Why it cannot run, and how to get it; None where it can."""
    found = importlib.util.find_spec("humming")
    folders = (found and found.submodule_search_locations) or []
    if any((pathlib.Path(folder) / "layer.py").is_file() for folder in folders):
        return None
    return ('no package humming-kernels is installed: pip install "humming-kernels[cu13]==0.1.19", or [cu12] '
            "for PyTorch with CUDA 12")


def version():
    return version_of(DISTRIBUTION)


def takes(problem, _):
    return problem["part"] == "products"


def bits_of(variant):
    return int(variant[3])


def decoded(words, scales, bits):
    """The weights that packed int32 words [outputs][words] and scales [outputs][groups] stand for, in f64."""
    import torch
    shifts = torch.arange(0, 32, bits, device=words.device, dtype=torch.int32)
    codes = (words.unsqueeze(-1) >> shifts) & ((1 << bits) - 1)
    groups = scales.shape[1]
    values = (codes.reshape(words.shape[0], groups, -1) - (1 << (bits - 1))).double()
    return (values * scales.double().unsqueeze(-1)).reshape(words.shape[0], -1)


class Layers:
    """Layers of random weights that the package quantized, copies of them, and what each of the first stored."""

    def __init__(self, outputs, inputs, variant, seed):
        import torch
        from humming.layer import HummingLayer
        config = {"dtype": variant[:4]}
        if variant.endswith("-g128"):
            config["group_size"] = GROUP
        count = baselines.copies_of(outputs * inputs * bits_of(variant) // 8)
        self.layers, self.stored = [], {}
        generator = torch.Generator("cuda").manual_seed(seed)
        for copy in range(count):
            if copy >= QUANTIZED:  # copies of the first ones, which would take seconds to quantize
                self.layers.append(deepcopy(self.layers[copy % QUANTIZED]))
                continue
            weight = torch.empty(outputs, inputs, device="cuda", dtype=torch.float16)
            layer = HummingLayer(shape_n=outputs, shape_k=inputs, weight_config=dict(config),
                                 torch_dtype=torch.float16).cuda()
            layer.load_from_unquantized(weight.normal_(std=0.05, generator=generator))
            self.stored[copy] = (layer.weight.detach().clone(), layer.weight_scale.detach().clone())
            layer.transform()
            self.layers.append(layer)


def prepare(kept, problem, variant, options):
    shape = problem["config"]["shape"]
    rows, outputs, inputs = shape["m"], shape["out_features"], shape["in_features"]
    made = kept.get(("humming", variant, outputs, inputs), baselines.ROTATED_BYTES,
                    lambda: Layers(outputs, inputs, variant, options.seed))
    x = baselines.random(rows, inputs, dtype=baselines.element_type(problem["config"]))

    def expected(copy):
        return x.double() @ decoded(*made.stored[copy % QUANTIZED], bits_of(variant)).T

    calls = [lambda layer=layer: layer(x) for layer in baselines.turns_on(made.layers)]
    return Prepared({"": calls}, len(made.layers), expected, TOLERANCE, bits_of(variant))
