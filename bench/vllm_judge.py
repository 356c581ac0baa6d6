"""What transformers makes of tokens that vLLM chose, for bench/vllm_compare.py: over vqgen.hf.VQCache, with codes of its own or
with vLLM's. It needs no vLLM."""
import statistics


class Forced:
    """Makes a cache of transformers hold given codes: each of its appends is written over."""

    def __init__(self, cache, codes):
        self.codes = self.differ = 0
        for layer, given in zip(cache.layers, codes.to(cache.lengths.device)):
            own = layer.cache
            words = own.keys.codes.shape[-1]
            own.write = self.writer(own, own.write, given[..., :words], given[..., words:])

    def writer(self, cache, plain, *given):
        import torch
        at = 0

        def write(keys, values, *more):
            nonlocal at
            plain(keys, values, *more)
            span = slice(at, at + keys.shape[1])
            at += keys.shape[1]
            for own, codes in zip((cache.keys.codes, cache.values.codes), given):
                differ = own[:, :, span].contiguous().view(torch.uint8) != codes[:, :, span].contiguous().view(torch.uint8)
                self.differ += differ.sum()
                self.codes += differ.numel()
                own[:, :, span] = codes[:, :, span]
        return write


def rounded(attend, dtype):
    """A layer's `attend` for a model in float32: keys, values and queries have the cache's dtype, as in the engine."""
    return lambda *states_and_more: attend(*(each.to(dtype) for each in states_and_more[:3]), *states_and_more[3:]).float()


def logits_of(model, bundle, prompts, chosen, pieces, codes=None, recent=0, room=0):
    """(float32 [sequences, steps, vocabulary], share of bytes of codes that differ), of transformers over the cache, fed
    with `chosen`, and with vLLM's `codes` if they are given. room: tokens that the cache has room for, if more: kernels
    are compiled for each."""
    import torch

    import vqgen.hf
    prompts, chosen = (torch.tensor(each, device=model.device) for each in (prompts, chosen))
    cache = vqgen.hf.VQCache(model.config, bundle, batch=len(prompts), tokens=max(room, prompts.shape[1] + chosen.shape[1]),
                             device=model.device, recent_tokens=recent)
    for layer in cache.layers if model.dtype == torch.float32 else ():
        layer.attend = rounded(layer.attend, layer.cache.new_tokens(0)[0].dtype)
    forced = None if codes is None else Forced(cache, codes)
    found = []
    with torch.inference_mode():
        # Without generate(), which takes tokens that equal the config's pad_token_id for padding.
        for begin, count in pieces:
            out = model(input_ids=prompts[:, begin:begin + count], past_key_values=cache, use_cache=True)
        found.append(out.logits[:, -1].float())
        for at in range(chosen.shape[1] - 1):
            out = model(input_ids=chosen[:, at:at + 1], past_key_values=cache, use_cache=True)
            found.append(out.logits[:, -1].float())
    return torch.stack(found, 1), float(forced.differ / forced.codes) if forced else 0


def reference(model, bundle, run, most, recent=0, forced=False, room=0):
    """logits_of() all sequences, in batches of at most `most` that were read in the same parts."""
    import torch
    prompts, chosen = run["prompts"], run["tokens"]
    groups, out, shares = {}, [None] * len(prompts), []
    for index, own in enumerate(run["pieces"]):
        groups.setdefault(tuple(map(tuple, own)), []).append(index)
    for parts, members in groups.items():
        for at in range(0, len(members), most):
            own = members[at:at + most]
            logits, share = logits_of(model, bundle, [prompts[each] for each in own], [chosen[each] for each in own], parts,
                                      run["codes"][:, own] if forced else None, recent, room)
            shares += [share] * len(own)
            for index, each in zip(own, logits):
                out[index] = each
    return torch.stack(out), statistics.fmean(shares)


def gaps(logits, chosen):
    """[sequences, steps]: how much higher the largest logit is than the chosen token's; 0 where they are the same."""
    return logits.amax(-1) - logits.gather(-1, chosen[..., None])[..., 0]


def judged(logits, chosen, tolerance):
    """What a row of results says of tokens that were chosen, [sequences, steps]."""
    missed = gaps(logits, chosen)
    return {"steps": missed.numel(), "same": int((missed == 0).sum()), "beyond": int((missed > tolerance).sum()),
            "largest_gap": round(float(missed.max()), 4)}


def apart(logits, other, chosen):
    """Differences of the chosen tokens' log-probabilities; other: log-probabilities [sequences, steps]."""
    found = (logits.log_softmax(-1).gather(-1, chosen[..., None])[..., 0] - other).abs().flatten()
    return {"median_apart": round(float(found.median()), 5), "largest_apart": round(float(found.max()), 4)}


def judge(model, bundle, run, tolerance, most, exact=None, recent=0):
    """A row of results. run: of generated(); exact: the model in float32."""
    import torch
    chosen, given = (torch.tensor(run[each], device=model.device) for each in ("tokens", "logprobs"))
    held, share = reference(model, bundle, run, most, recent, forced=True)
    logits, _ = reference(model, bundle, run, most, recent)
    row = {"mode": run["mode"], "parts": max(map(len, run["pieces"])),
           "vllm": {**judged(held, chosen, tolerance), **apart(held, given, chosen), "codes_differ": round(share, 6)},
           "own codes": {**judged(logits, chosen, tolerance), **apart(logits, given, chosen)}}
    if exact is not None:
        other, _ = reference(exact, bundle, run, most, recent)
        row["rounding"] = {**judged(other, logits.argmax(-1), tolerance),
                           **apart(logits, other.log_softmax(-1).gather(-1, chosen[..., None])[..., 0], chosen)}
    return row
