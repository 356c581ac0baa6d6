#!/usr/bin/env python3
"""Many requests through vLLM over vqgen's cache: arrivals, shared prefixes, preemption, cancellations, drafts.

    python3 bench/vllm_compare.py model llama MODEL
    python3 bench/vllm_trace.py MODEL --requests 500
    python3 bench/vllm_trace.py MODEL --minutes 3 --cancel 0.1 --drafts 4

Requests arrive at random steps; a third of them begin as others do. The cache is too small for all that run, so vLLM
preempts. Of requests that were read whole, in parts, behind a prefix hit, and again after a preemption, some are judged:
transformers reads the tokens from the last preemption on, in the parts in which vLLM read them, over the codes that vLLM
held (bench/vllm_compare.py). It fails if a token is more than --tolerance below the largest, if a kind of request does not
occur, if blocks of the cache are lost, or with --minutes if memory at the end is 1 % from that after a sixth of the time.

Needs a GPU, vLLM 0.26 and transformers.
"""
import argparse
import dataclasses
import json
import os
import pathlib
import random
import statistics
import sys
import time

import vllm_compare
import vllm_judge
from vllm_random import core_of, engine

KINDS = ("whole", "parts", "hit", "preempted")
SHARED, FAMILIES = 1 / 3, 8  # share of requests that begin as others; in how many ways
MOST_CHANGE = 0.01  # of memory


# ---- requests

class Source:
    """Random requests: prompts of 30 tokens to `most`, which repeat themselves so that drafts are found, and 16 to `new`
    new tokens."""

    def __init__(self, seed, vocabulary, most, new):
        self.draw, self.vocabulary, self.most, self.new = random.Random(seed), vocabulary, most, new
        self.families = [self.tokens(most // 2) for _ in range(FAMILIES)]

    def tokens(self, count):
        phrase = [self.draw.randrange(2, self.vocabulary) for _ in range(self.draw.randint(8, 64))]
        return [self.draw.randrange(2, self.vocabulary) if self.draw.random() < 0.3 else phrase[at % len(phrase)]
                for at in range(count)]

    def request(self):
        """(prompt, new tokens)."""
        shared = self.draw.choice(self.families) if self.draw.random() < SHARED else []
        return shared + self.tokens(self.draw.randint(30, self.most - len(shared))), self.draw.randint(16, self.new)


# ---- what happens to them

@dataclasses.dataclass
class Reading:
    """How a request was read, since its last preemption. known: its tokens then. pieces: (first token, tokens) of each
    step, with cached tokens as the first part."""

    known: int
    pieces: list
    hit: bool

    def kind(self, preempted):
        return "preempted" if preempted else "hit" if self.hit else "whole" if len(self.pieces) == 1 else "parts"


class Watch:
    """Follows a scheduler's requests. ended(request, reading, kind, blocks) is called before a request that was not
    cancelled gives its blocks back."""

    def __init__(self, scheduler, ended):
        self.readings, self.again, self.preemptions = {}, set(), 0
        plain = scheduler.schedule, scheduler._preempt_request, scheduler._free_blocks

        def schedule(*arguments, **more):
            out = plain[0](*arguments, **more)
            for name, count in out.num_scheduled_tokens.items():
                request = scheduler.requests[name]
                self.scheduled(name, request.num_computed_tokens - count, count, request.num_tokens)
            return out

        def preempt(request, *more):
            self.preempted(request.request_id)
            return plain[1](request, *more)

        def free(request, *more):
            name = request.request_id
            reading = self.readings.pop(name, None)
            if reading is not None and "ABORT" not in request.status.name:
                ended(request, reading, reading.kind(name in self.again), scheduler.kv_cache_manager.get_block_ids(name))
            self.again.discard(name)
            return plain[2](request, *more)

        scheduler.schedule, scheduler._preempt_request, scheduler._free_blocks = schedule, preempt, free

    def scheduled(self, name, begin, count, known):
        if name not in self.readings:
            self.readings[name] = Reading(known, [(0, begin)] * (begin > 0), begin > 0)
        reading = self.readings[name]
        if begin < reading.known:
            reading.pieces.append((begin, count))

    def preempted(self, name):
        self.readings.pop(name, None)
        self.again.add(name)
        self.preemptions += 1


def settled_codes(worker, layers, tokens):
    import torch
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return vllm_compare.codes_of(worker, layers, tokens)


class Samples:
    """Keeps what the judge needs of up to `each` requests of each kind."""

    def __init__(self, llm, each, heads):
        self.llm, self.each, self.heads = llm, each, heads
        self.found, self.kinds = {}, dict.fromkeys(KINDS, 0)  # by name; of all requests
        self.watch = Watch(core_of(llm).scheduler, self.ended)

    def ended(self, request, reading, kind, blocks):
        self.kinds[kind] += 1
        tokens = list(request.all_token_ids)
        if len(tokens) - reading.known < 4 or sum(held["kind"] == kind for held in self.found.values()) == self.each:
            return
        groups = core_of(self.llm).scheduler.kv_cache_config.kv_cache_groups
        codes = self.llm.collective_rpc(settled_codes, args=(
            vllm_compare.blocks_of(groups, [{"blocks": blocks}]), len(tokens) - 1))
        self.found[request.request_id] = {"kind": kind, "prompts": [tokens[:reading.known]],
                                           "tokens": [tokens[reading.known:]], "pieces": [reading.pieces],
                                           "codes": vllm_compare.of_ranks(codes, self.heads)}


# ---- the engine

def memory():
    """Bytes of the GPU and of this process."""
    import torch
    free, total = torch.cuda.mem_get_info()
    resident = int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return {"gpu": total - free, "host": resident}


def drive(llm_engine, source, options, sampling, keep, clock=time.monotonic, memory=memory):
    """Send requests until there are --requests, or --minutes are over, and step until all have ended. Returns the outputs by
    vLLM's names, of requests whose name keep() says, {"requests", "cancelled", "new_tokens"}, and (second, memory) of the
    time."""
    draw, began = random.Random(options.seed + 1), clock()
    live, outs, counts, track, next_track = {}, {}, {"requests": 0, "cancelled": 0, "new_tokens": 0}, [], 0.0
    sent = 0
    while True:
        now = clock() - began
        sending = sent < options.requests if options.requests else now < 60 * options.minutes
        if not sending and not llm_engine.has_unfinished_requests():
            return outs, counts, track
        if sending and len(live) < 3 * options.sequences and (not live or draw.random() < options.arrivals):
            prompt, new = source.request()
            live[str(sent)] = llm_engine.add_request(str(sent), {"prompt_token_ids": prompt}, sampling(new))
            sent += 1
        # Some live a few steps, some long.
        if live and draw.random() < options.cancel * options.arrivals:
            given_up = draw.choice(list(live))
            del live[given_up]
            counts["cancelled"] += 1
            llm_engine.abort_request([given_up])
        for out in llm_engine.step():
            if out.finished and out.request_id in live:
                name = live.pop(out.request_id)
                counts["requests"] += 1
                counts["new_tokens"] += len(out.outputs[0].token_ids)
                if keep(name):
                    outs[name] = out
        if now >= next_track:
            track.append((now, memory()))
            next_track = now + 1


def growth(track, name):
    """(after a sixth of the time, at the end, change as a share) of a track of memory, by medians of a tenth of the time."""
    whole = track[-1][0]
    early, late = ([held[name] for at, held in track if begin * whole <= at <= end * whole]
                   for begin, end in ((1 / 6, 1 / 6 + 0.1), (0.9, 1)))
    early, late = statistics.median(early), statistics.median(late)
    return early, late, late / early - 1


def room_of(options):
    return -(-(options.prompt_tokens + options.new) // 256) * 256


def run(options, bundle):
    """Everything that vLLM says, for summary()."""
    from vllm import SamplingParams
    vocabulary = json.loads((options.model / "config.json").read_text())["vocab_size"]
    llm = engine(options.model, max_model_len=room_of(options), max_num_seqs=options.sequences,
                 max_num_batched_tokens=options.step_tokens, attention_backend=options.backend,
                 gpu_memory_utilization=0.1, kv_cache_memory_bytes=options.memory << 20,
                 additional_config={"vqgen": {"bundle": str(bundle), "recent_tokens": options.recent}}, dtype=options.dtype,
                 skip_tokenizer_init=True, tensor_parallel_size=options.ranks,
                 **{"enable_prefix_caching": True, **vllm_compare.drafted(options.drafts), **vllm_compare.MODES[options.mode]})
    pool = core_of(llm).scheduler.kv_cache_manager.block_pool
    samples = Samples(llm, options.sample, llm.llm_engine.vllm_config.model_config.get_total_num_kv_heads())
    sampling = lambda new: SamplingParams(temperature=0, max_tokens=new, ignore_eos=True, logprobs=0, detokenize=False)
    free = pool.get_num_free_blocks()
    began = time.monotonic()
    outs, counts, track = drive(llm.llm_engine, Source(options.seed, vocabulary, options.prompt_tokens, options.new), options,
                                sampling, lambda name: name in samples.found)
    for name, held in samples.found.items():
        out = outs[name].outputs[0]
        chosen = len(held["tokens"][0])
        held["logprobs"] = [[step[token].logprob for step, token in zip(out.logprobs[-chosen:], out.token_ids[-chosen:])]]
        held["agree"] = list(out.token_ids[-chosen:]) == held["tokens"][0]
    return {**counts, "seconds": round(time.monotonic() - began, 1), "kinds": samples.kinds,
            "preemptions": samples.watch.preemptions,
            "blocks": pool.num_gpu_blocks, "free_before": free, "free_after": pool.get_num_free_blocks(),
            "samples": list(samples.found.values()), "track": track}


def judged(samples, model, bundle, options):
    """A row of results for the samples of each kind."""
    import torch
    rows = []
    for kind in KINDS:
        own = [held for held in samples if held["kind"] == kind]
        counts = {"steps": 0, "same": 0, "beyond": 0, "largest_gap": 0.0, "largest_apart": 0.0}
        for held in own:
            chosen, given = (torch.tensor(held[each], device=model.device) for each in ("tokens", "logprobs"))
            logits, _ = vllm_judge.reference(model, bundle, held, 1, options.recent, forced=True,
                                              room=room_of(options))
            row = {**vllm_judge.judged(logits, chosen, options.tolerance), **vllm_judge.apart(logits, given, chosen)}
            counts = {name: (max if name.startswith("largest") else sum)((count, row[name])) for name, count in counts.items()}
        rows.append({"kind": kind, "samples": len(own), **counts})
    return rows


def summary(found, rows, options):
    """(what happened, what is wrong with it)."""
    wrong = [f"{row['beyond']} tokens of requests read {row['kind']} are beyond" for row in rows if row["beyond"]]
    wrong += [f"no request was read {kind}" for kind, count in found["kinds"].items() if not count]
    wrong += [f"requests read {held['kind']} have other tokens in the scheduler" for held in found["samples"]
              if not held["agree"]]
    if found["free_before"] != found["free_after"]:
        wrong.append(f"{found['free_before'] - found['free_after']} blocks are lost")
    row = {name: each for name, each in found.items() if name not in ("samples", "track")}
    if options.minutes:
        for name in ("gpu", "host"):
            early, late, change = growth(found["track"], name)
            row[f"{name}_mib"], row[f"{name}_change"] = [round(each / 2**20) for each in (early, late)], round(change, 5)
            if abs(change) > MOST_CHANGE:
                wrong.append(f"memory of the {name} changes by {100 * change:.2f} %")
    return row, wrong


def parsed(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path, help="folder of a model, with a vqgen.bundle")
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument("--requests", type=int, default=0, help="requests of the run")
    length.add_argument("--minutes", type=float, default=0, help="time in which requests arrive")
    parser.add_argument("--arrivals", type=float, default=0.5, help="chance of a request before a step [0.5]")
    parser.add_argument("--cancel", type=float, default=0, help="share of requests that are cancelled [0]")
    parser.add_argument("--drafts", type=int, default=0, help="tokens that vLLM's ngram method drafts [0]")
    parser.add_argument("--sequences", type=int, default=32, help="requests that run at once [32]")
    parser.add_argument("--prompt-tokens", type=int, default=1500, help="of the longest prompt [1500]")
    parser.add_argument("--new", type=int, default=96, help="most new tokens of a request [96]")
    parser.add_argument("--step-tokens", type=int, default=1024, help="max_num_batched_tokens [1024]")
    parser.add_argument("--memory", type=int, default=8, help="MiB of vLLM's cache [8]")
    parser.add_argument("--mode", choices=vllm_compare.MODES, default="full", help="how vLLM runs [full]")
    parser.add_argument("--sample", type=int, default=6, help="requests of each kind that are judged [6]")
    parser.add_argument("--tolerance", type=float, default=0.02, help="gap of logits that counts as beyond [0.02]")
    parser.add_argument("--dtype", default="float16", help="of vLLM and transformers [float16]")
    parser.add_argument("--bundle", help="another bundle, bound to the model [MODEL/vqgen.bundle]")
    parser.add_argument("--recent", type=int, default=128, help="tokens in full precision [128]")
    parser.add_argument("--ranks", type=int, default=1, help="GPUs of vLLM's tensor parallelism [1]")
    parser.add_argument("--backend", default="CUSTOM", help="vqgen's name in vLLM [CUSTOM, which is that of 0.26]")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda", help="device of transformers [cuda]")
    parser.add_argument("--json", help="file for the results")
    return parser.parse_args(arguments)


def main():
    options = parsed()
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the scheduler is read, so it has to be in this process
    bundle = options.bundle or options.model / "vqgen.bundle"
    found = run(options, bundle)
    print("##", json.dumps({name: each for name, each in found.items() if name not in ("samples", "track")}), flush=True)
    import torch
    import transformers

    import vqgen.hf  # noqa: F401
    model = transformers.AutoModelForCausalLM.from_pretrained(
        options.model, dtype=getattr(torch, options.dtype), attn_implementation="vqgen").eval().to(options.device)
    rows = judged(found["samples"], model, bundle, options)
    row, wrong = summary(found, rows, options)
    for each in rows:
        print("##", json.dumps(each))
    print("##", json.dumps({**row, "drafts": options.drafts, "recent_tokens": options.recent, "wrong": wrong}), flush=True)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps({"rows": rows, **row, "wrong": wrong, "track": found["track"]},
                                                         indent=1))
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
