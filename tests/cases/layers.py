"""A VQLinear of 96 x 128 whose codes are all zero."""

import numpy as np
import torch

import vqgen
import vqgen.torch

FORMAT = {"vector_size": 4, "index_bits": 8}


def linear():
    weights = np.random.default_rng(0).standard_normal((1, 96, 128)).astype(np.float32)
    codebooks = np.asarray(vqgen.train_codebooks(weights, FORMAT).codebooks)
    quantized = vqgen.Quantized(torch.zeros(96, 8, dtype=torch.int32), torch.from_numpy(codebooks), None)
    return vqgen.torch.VQLinear(quantized, FORMAT, 96, 128)
