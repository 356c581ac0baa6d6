"""`vqgen quantize --weights '*.weight'` refuses a file whose last matrix cannot be quantized before it trains
anything, since the header says it all. The tool's CPU time shows this."""

import os
import resource

import numpy as np

from kit import end, path, save, vqgen

random = np.random.default_rng(0)


def normal(*shape):
    return random.standard_normal(shape).astype(np.float16)


def cpu_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


right = True
for name, last in (("in_features 100", normal(64, 100)), ("a norm", normal(128)),
                   ("16 sub-vectors", normal(1, 128)),
                   ("a NaN", np.full((64, 128), np.nan, np.float16))):
    save("m.safetensors", {"a.weight": normal(1024, 1024), "z.weight": last})
    before = cpu_seconds()
    done = vqgen("quantize", "--input", "m.safetensors", "--weights", "*.weight", "--format", "aqlm-2x8",
                 "--out", "o.vq")
    spent = cpu_seconds() - before
    right = right and done.returncode in (2, 3) and "z.weight" in done.stderr and spent <= 0.7
    right = right and not os.path.exists(path("o.vq"))
    last_line = (done.stderr.strip().splitlines() or [""])[-1]
    print(f"{name}: {done.returncode} after {spent:.1f} s, bundle "
          f"{'there' if os.path.exists(path('o.vq')) else 'none'}: {last_line[:150]}")
end(right)
