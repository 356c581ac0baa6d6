#!/usr/bin/env python3
"""vLLM over vqgen's cache: its tokens beside transformers', and its steps beside vLLM's own caches (docs/guides/vllm.md).

    python3 bench/vllm_compare.py tokens MODEL --text FILE --mode full      # MODEL: a folder with a vqgen.bundle
    python3 bench/vllm_compare.py model gemma2 MODEL --keys vecinfer-d4b8i8 --values vecinfer-d4b8i8 --dtype bfloat16
    python3 bench/vllm_compare.py tokens MODEL --dtype bfloat16             # of that random model
    python3 bench/vllm_compare.py steps CONFIG --cache vecinfer-d4b8i8      # CONFIG: a model's config.json
    python3 bench/vllm_compare.py steps CONFIG --cache klt-2bit-keys,klt-2bit-values --weights aqlm-2x8i8 --ranks 2
    python3 bench/vllm_compare.py folder CONFIG MODEL --cache vecinfer-d4b8i8 --weights aqlm-2x8i8
    python3 bench/vllm_compare.py requests CONFIG --cache klt-2bit-keys,klt-2bit-values --recent 128

`tokens` lets vLLM continue prompts greedily, then feeds its tokens to transformers over vqgen.hf.VQCache with the same
bundle: each prompt in the parts in which vLLM read it, then one token at a time. Where transformers has another token
first, the gap is how much higher that one's logit is. Each mode is judged in these ways:

    vllm       vLLM and transformers in --dtype; transformers' cache gets the codes that vLLM wrote
    own codes  vLLM and transformers in --dtype; both encode, so a rounding may make another entry the nearest one
    rounding   transformers in --dtype and in float32, both encode: what roundings alone change (--float32)

After prefix hits, `own codes` also has what the prompts that filled the pages read in other parts. With --record, vLLM's
tokens and codes are kept in a file, and judged again without vLLM. Blocks behind sliding windows are read too, since none
is given to another sequence.

`model` writes a small random model with layers of a kind that no figures are of, and its bundle, for `tokens` without
--text: its prompts are random tokens.

`steps` times decode steps of random weights, in FP16 or quantized by --weights. Prompts are not read: the scheduler is
told that their tokens are cached, and the cache is filled with random numbers. A step is the time from one call of the
engine to the next one.

`requests` times the first token of single prompts, then a run of requests that all come at once, prompts included.

`model` and `folder` write a folder with random weights for `tokens` without --text: a small model of a kind, or one of a
config's shapes, whose linear layers may be quantized.

With --ranks N, vLLM's tensor parallelism has N GPUs, and transformers one.

Needs a GPU, vLLM 0.26, and for `tokens` transformers.
"""
import argparse
import json
import os
import pathlib
import re
import sys
import time

import vllm_kinds
import vllm_random
from vllm_judge import judge
from vllm_random import core_of, engine

CAPTURED = {"cudagraph_capture_sizes": [1, 2, 4, 8, 16, 32, 64]}
MODES = {
    "eager": {"enforce_eager": True},
    "full": {"compilation_config": {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", **CAPTURED}},
    "compiled": {"compilation_config": CAPTURED},
    "chunks": {"enforce_eager": True, "max_num_batched_tokens": 512},
    "prefix": {"enforce_eager": True, "enable_prefix_caching": True},
}


# ---- tokens

def prompts_of(ids, count, tokens, stride, shared):
    """Prompts from the end of a text's tokens; with `shared`, each of the second half begins as one of the first half."""
    if len(ids) < count * stride or tokens > stride:
        raise SystemExit(f"the text has {len(ids)} tokens, and {count} prompts of {tokens} tokens, one every {stride}, need more")
    ids = [ids[at:at + tokens] for at in range(len(ids) - count * stride, len(ids), stride)]
    if shared:
        for first, second in zip(ids, ids[count // 2:]):
            second[:tokens // 2] = first[:tokens // 2]
    return ids


def recorded(scheduler):
    """prompt -> {"pieces": [(first token, tokens)] of each step, as the scheduler deals them out, with cached tokens as
    the first part; "blocks": the numbers of its blocks in each group of the cache, also of those behind a window;
    "decodes": steps in which it decoded}."""
    found, names, plain, manager = {}, {}, scheduler.schedule, scheduler.kv_cache_manager

    def schedule(*arguments, **more):
        out = plain(*arguments, **more)
        for new in out.scheduled_new_reqs:
            names[new.req_id] = tuple(new.prompt_token_ids)
            found[names[new.req_id]] = {"pieces": [(0, new.num_computed_tokens)] * (new.num_computed_tokens > 0), "blocks": [],
                                         "decodes": 0}
        for name, count in out.num_scheduled_tokens.items():
            own = found[names[name]]
            for group, blocks in enumerate(manager.get_block_ids(name)):
                if group == len(own["blocks"]):
                    own["blocks"].append([])
                own["blocks"][group] += blocks[len(own["blocks"][group]):]
            begin = sum(own["pieces"][-1]) if own["pieces"] else 0
            if begin < len(names[name]):
                own["pieces"].append((begin, count))
            else:
                own["decodes"] += 1
        return out

    # Blocks that are freed would be the first to be given to another sequence.
    manager.block_pool.free_blocks = lambda blocks: None
    scheduler.schedule = schedule
    return found


def blocks_of(groups, found):
    """layer -> (tokens of a block, blocks of each sequence), in the order of the layers, of what recorded() found."""
    layers = {name: (group.kv_cache_spec.block_size, [own["blocks"][number] for own in found])
              for number, group in enumerate(groups) for name in group.layer_names if not name.endswith(".raw")}
    return dict(sorted(layers.items(), key=lambda each: int(re.search(r"layers\.(\d+)\.", each[0])[1])))


def codes_of(worker, layers, tokens):
    """int32 [layers, sequences, heads, tokens, words], of the pages of sequences, with the heads of the worker's rank. layers: of
    blocks_of()."""
    import torch
    held, codes = worker.vllm_config.compilation_config.static_forward_context, []
    for name, (block, numbers) in layers.items():
        cache = held[name].kv_cache  # [pages, heads, tokens, words]; a block may have several pages
        pages = torch.tensor(numbers, device=cache.device)[..., None] * (block // cache.shape[2])
        pages = pages + torch.arange(block // cache.shape[2], device=cache.device)
        codes.append(cache[pages.flatten(1)].transpose(1, 2).flatten(2, 3)[:, :, :tokens].cpu())
    return torch.stack(codes)


def of_ranks(codes, heads):
    """codes_of() all ranks as one. Where ranks are more than heads, several have the same, and have to hold the same."""
    import torch
    same = max(1, len(codes) // heads)
    for rank, own in enumerate(codes):
        if not torch.equal(own, codes[rank // same * same]):
            raise SystemExit(f"rank {rank} has other codes of its heads than rank {rank // same * same}")
    return torch.cat(codes[::same], 2)


def texts_of(options, folder):
    """Prompts as lists of tokens."""
    shared = options.mode == "prefix"
    if options.text is None:
        vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
        ids = vllm_kinds.random_ids(1, options.prompts * options.prompt_tokens, vocabulary, 3)[0].tolist()
        return prompts_of(ids, options.prompts, options.prompt_tokens, options.prompt_tokens, shared)
    import transformers
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(pathlib.Path(options.text).read_text(errors="replace"), add_special_tokens=False)["input_ids"]
    return prompts_of(ids, options.prompts, options.prompt_tokens, options.stride, shared)


def drafted(count):
    """Options of an engine that drafts so many tokens by what a sequence has had before."""
    return {"speculative_config": {"method": "ngram", "num_speculative_tokens": count, "prompt_lookup_max": 4,
                                   "prompt_lookup_min": 2}} if count else {}


def generated(options, folder, bundle):
    """Tokens, codes and log-probabilities of vLLM, for judge(): one dict for each time that it got the prompts."""
    from vllm import SamplingParams
    prompts = texts_of(options, folder)
    began = time.time()
    llm = engine(folder, max_model_len=-(-(options.prompt_tokens + options.new) // 256) * 256, max_num_seqs=options.prompts,
                 attention_backend=options.backend, gpu_memory_utilization=0.1, kv_cache_memory_bytes=options.memory << 20,
                 additional_config={"vqgen": {"bundle": str(bundle), "recent_tokens": options.recent}},
                 dtype=options.dtype, skip_tokenizer_init=options.text is None, tensor_parallel_size=options.ranks,
                 **drafted(options.drafts), **{"max_num_batched_tokens": options.prompts * options.prompt_tokens,
                                               **MODES[options.mode]})
    print(f"engine: {time.time() - began:.1f} s", flush=True)
    found = recorded(core_of(llm).scheduler)
    sampling = SamplingParams(temperature=0, max_tokens=options.new, ignore_eos=True, logprobs=0, detokenize=False)
    heads = llm.llm_engine.vllm_config.model_config.get_total_num_kv_heads()
    runs = []
    for again in range(2 if options.mode == "prefix" else 1):
        began = time.time()
        outs = [each.outputs[0] for each in llm.generate([{"prompt_token_ids": each} for each in prompts], sampling,
                                                         use_tqdm=False)]
        print(f"generated: {time.time() - began:.1f} s", flush=True)
        runs.append({"mode": options.mode + " again" * again, "prompts": prompts,
                     "pieces": [found[tuple(each)]["pieces"] for each in prompts],
                     "decodes": sum(found[tuple(each)]["decodes"] for each in prompts),
                     "codes": of_ranks(llm.collective_rpc(codes_of, args=(
                         blocks_of(core_of(llm).scheduler.kv_cache_config.kv_cache_groups,
                                   [found[tuple(each)] for each in prompts]), options.prompt_tokens + options.new - 1)), heads),
                     "tokens": [list(out.token_ids) for out in outs],
                     "logprobs": [[step[token].logprob for step, token in zip(out.logprobs, out.token_ids)] for out in outs]})
    return runs


def run_tokens(options):
    import torch
    folder = pathlib.Path(options.model)
    bundle = options.bundle or folder / "vqgen.bundle"
    if options.record and pathlib.Path(options.record).exists():
        runs = torch.load(options.record, weights_only=True)
    else:
        runs = generated(options, folder, bundle)
        if options.record:
            torch.save(runs, options.record)
    import transformers

    import vqgen.hf  # noqa: F401
    load = lambda dtype: transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation="vqgen").eval().to(options.device)
    model, exact = load(getattr(torch, options.dtype)), load(torch.float32) if options.float32 else None
    rows = []
    for run in runs:
        began = time.time()
        rows.append(judge(model, bundle, run, options.tolerance, options.most or options.prompts, exact, options.recent))
        rows[-1] |= {"recent_tokens": options.recent, "ranks": options.ranks, "drafts": options.drafts, "decodes": run["decodes"]}
        print(f"transformers: {time.time() - began:.1f} s\n##", json.dumps(rows[-1]), flush=True)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(rows, indent=1))
    return any(row["vllm"]["beyond"] for row in rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    tokens = parts.add_parser("tokens", help="compare greedy tokens with transformers'")
    tokens.add_argument("model", help="folder of a model, with a vqgen.bundle")
    tokens.add_argument("--text", help="file whose last tokens are the prompts [random tokens]")
    tokens.add_argument("--dtype", default="float16", help="of vLLM and transformers [float16]")
    tokens.add_argument("--bundle", help="another bundle, bound to the model [MODEL/vqgen.bundle]")
    tokens.add_argument("--mode", choices=MODES, default="eager", help="how vLLM runs [eager]")
    tokens.add_argument("--prompts", type=int, default=8, help="prompts at once [8]")
    tokens.add_argument("--prompt-tokens", type=int, default=1000, help="tokens of a prompt [1000]")
    tokens.add_argument("--stride", type=int, default=12000, help="tokens from one prompt to the next [12000]")
    tokens.add_argument("--new", type=int, default=256, help="new tokens of a prompt [256]")
    tokens.add_argument("--tolerance", type=float, default=0.02, help="gap of logits that counts as beyond [0.02]")
    tokens.add_argument("--float32", action="store_true", help="run transformers in float32 too")
    tokens.add_argument("--record", help="file for vLLM's tokens and codes; if it is there, vLLM does not run")
    tokens.add_argument("--most", type=int, help="sequences that transformers reads at once [as many as prompts]")
    tokens.add_argument("--drafts", type=int, default=0, help="tokens that vLLM's ngram method drafts [0]")
    tokens.add_argument("--memory", type=int, default=256, help="MiB of vLLM's cache [256]")
    tokens.add_argument("--device", default="cuda", help="device of transformers [cuda]")
    steps = parts.add_parser("steps", help="time decode steps with random weights")
    steps.add_argument("--shapes", default=vllm_random.SHAPES, help=f"BATCHxTOKENS,... [{vllm_random.SHAPES}]")
    steps.add_argument("--profile", type=int, default=0, help="steps whose kernels are listed, per layer [0]")
    requests = parts.add_parser("requests", help="time prompts and whole requests with random weights")
    requests.add_argument("--first", default="2048,8192,32768", help="prompts for the first token [2048,8192,32768]")
    requests.add_argument("--requests", type=int, default=256, help="requests of the run [256]")
    requests.add_argument("--prompt-tokens", type=int, default=8192, help="tokens of a prompt [8192]")
    requests.add_argument("--new", type=int, default=512, help="new tokens of a request [512]")
    folder = parts.add_parser("folder", help="write a folder of a config's shapes, with random weights and codebooks")
    for each in (folder, steps, requests):
        each.add_argument("config", help="config.json of a Llama, a Mixtral or a Qwen3-MoE")
    folder.add_argument("out", help="the folder")
    for each in (folder, steps, requests):
        each.add_argument("--layers", type=int, help="layers instead of the config's")
        each.add_argument("--cache", required=True, help="fp16, fp8, or formats as KEYS[,VALUES]")
        each.add_argument("--weights", default="fp16", help="fp16, or a format as aqlm-2x8i8 [fp16]")
    for each in (steps, requests):
        each.add_argument("--turns", help="file that processes on one GPU share, so that one after the other has it")
    model = parts.add_parser("model", help="write a small random model and its bundle")
    model.add_argument("kind", choices=vllm_kinds.KINDS)
    model.add_argument("model", help="folder, which is written")
    model.add_argument("--dtype", default="float16", help="of the model [float16]")
    model.add_argument("--keys", default="klt-2bit-keys", help="format of the keys [klt-2bit-keys]")
    model.add_argument("--values", default="klt-2bit-values", help="format of the values [klt-2bit-values]")
    model.add_argument("--sequences", type=int, default=8, help="of 512 random tokens, which train [8]")
    for each in (tokens, steps, requests):
        each.add_argument("--ranks", type=int, default=1, help="GPUs of vLLM's tensor parallelism [1]")
        each.add_argument("--recent", type=int, default=0, help="tokens in full precision, of vqgen's caches [0]")
        each.add_argument("--backend", default="CUSTOM", help="vqgen's name in vLLM [CUSTOM, which is that of 0.26]")
        each.add_argument("--json", help="file for the results")
    options = parser.parse_args()
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the scheduler is read, so it has to be in this process
    return {"model": vllm_kinds.run_model, "folder": vllm_random.run_folder, "tokens": run_tokens,
            "steps": vllm_random.run_steps, "requests": vllm_random.run_requests}[options.part](options)


if __name__ == "__main__":
    sys.exit(main())
