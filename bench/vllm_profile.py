"""Kernels of vLLM's decode steps by torch's profiler, in the processes of all ranks, for bench/vllm_compare.py."""
import re

# A name of the table, and what the names of its kernels contain; the first that fits.
CLASSES = (
    ("all-reduce", r"nccl|all_?reduce|multimem"),
    ("vqgen append", r"vqgen.*append|kv_append"),
    ("vqgen attention", r"vqgen|attention_decode"),
    ("flash attention", r"flash|fmha"),
    ("cache write", r"reshape_and_cache"),
    ("rotary", r"rotary|rope"),
    ("norm", r"rms_?norm|layernorm"),
    ("activation", r"silu|act_and_mul|swiglu"),
    ("experts", r"fused_moe|moe_|topk"),
    ("GEMM", r"gemm|gemv|cutlass|nvjet|cublas|splitk"),
    ("copy", r"copy|memcpy|memset|index|gather|scatter|fill|cat"),
)


def start(worker):
    import torch
    worker.vqgen_profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
    torch.cuda.synchronize()
    worker.vqgen_profile.start()


def stop(worker):
    """(name, begin and duration in us) of each kernel and copy on a rank's GPU, in order."""
    import torch
    torch.cuda.synchronize()
    worker.vqgen_profile.stop()
    found = [(event.name, event.time_range.start, event.time_range.elapsed_us()) for event in worker.vqgen_profile.events()
             if event.device_type == torch.autograd.DeviceType.CUDA]
    worker.vqgen_profile = None
    return sorted(found, key=lambda each: each[1])


def class_of(name):
    return next((each for each, pattern in CLASSES if re.search(pattern, name, re.IGNORECASE)), "other")


def per_layer(events, steps, layers):
    """Rows of a table of one rank: launches and us per layer and step, by class and then by kernel; how long a step takes
    from its first kernel to its last, and in how much of that no kernel runs."""
    kernels = {}
    for name, _, elapsed in events:
        count, total = kernels.get(name, (0, 0.0))
        kernels[name] = count + 1, total + elapsed
    classes = {}
    for name, (count, total) in kernels.items():
        own = classes.setdefault(class_of(name), {"launches": 0, "us": 0.0, "kernels": []})
        own["launches"] += count / steps / layers
        own["us"] += total / steps / layers
        own["kernels"].append((total / steps / layers, count / steps / layers, name))
    for own in classes.values():
        own["kernels"].sort(reverse=True)
    busy, end = 0.0, float("-inf")
    for _, begin, elapsed in events:
        busy += max(0.0, begin + elapsed - max(begin, end))
        end = max(end, begin + elapsed)
    whole = end - events[0][1] if events else 0.0
    return {"classes": dict(sorted(classes.items(), key=lambda each: -each[1]["us"])), "step_us": whole / steps,
            "busy_us": busy / steps}


def text_of(title, table, kernels=4):
    lines = [f"{title}: {table['step_us']:.0f} us a step, kernels run in {table['busy_us']:.0f} us of it",
             f"{'per layer':20} {'launches':>9} {'us':>9}"]
    for name, own in table["classes"].items():
        lines.append(f"{name:20} {own['launches']:9.2f} {own['us']:9.2f}")
        lines += [f"    {us:8.2f} us {count:6.2f} x {kernel[:110]}" for us, count, kernel in own["kernels"][:kernels]]
    return "\n".join(lines)


def profiled(llm, step, steps, layers):
    """The tables of all ranks, of so many calls of step()."""
    llm.collective_rpc(start)
    for _ in range(steps):
        step()
    return [per_layer(events, steps, layers) for events in llm.collective_rpc(stop)]
