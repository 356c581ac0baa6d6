#!/usr/bin/env python3
"""vLLM over vqgen's cache: its tokens beside transformers', and its steps beside vLLM's own caches (docs/guides/vllm.md).

    python3 bench/vllm_compare.py tokens MODEL --text FILE --mode full      # MODEL: a folder with a vqgen.bundle
    python3 bench/vllm_compare.py steps CONFIG --cache vecinfer-d4b8i8      # CONFIG: a model's config.json
    python3 bench/vllm_compare.py steps CONFIG --cache klt-2bit-keys,klt-2bit-values --weights aqlm-2x8i8

`tokens` lets vLLM continue prompts greedily, then feeds its tokens to transformers over vqgen.hf.VQCache with the same
bundle: each prompt in the parts in which vLLM read it, then one token at a time. Where transformers has another token
first, the gap is how much higher that one's logit is. Each mode is judged in these ways:

    vllm       vLLM and transformers in float16; transformers' cache gets the codes that vLLM wrote
    own codes  vLLM and transformers in float16; both encode, so a rounding may make another entry the nearest one
    rounding   transformers in float16 and in float32, both encode: what roundings alone change (--float32)

After prefix hits, `own codes` also has what the prompts that filled the pages read in other parts. With --record, vLLM's
tokens and codes are kept in a file, and judged again without vLLM.

`steps` times decode steps of random weights, in FP16 or quantized by --weights. Prompts are not read: the scheduler is
told that their tokens are cached, and the cache is filled with random numbers. A step is the time from one call of the
engine to the next one.

Needs a GPU, vLLM 0.26, and for `tokens` transformers.
"""
import argparse
import fcntl
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time

from vllm_judge import judge

CAPTURED = {"cudagraph_capture_sizes": [1, 2, 4, 8, 16, 32, 64]}
MODES = {
    "eager": {"enforce_eager": True},
    "full": {"compilation_config": {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", **CAPTURED}},
    "compiled": {"compilation_config": CAPTURED},
    "chunks": {"enforce_eager": True, "max_num_batched_tokens": 512},
    "prefix": {"enforce_eager": True, "enable_prefix_caching": True},
}
# Options of vLLM's own caches, by --cache. FlashAttention 3 reads FP8 only for a model in bfloat16.
PLAIN = {"fp16": {"dtype": "float16", "kv_cache_dtype": "auto"}, "fp8": {"dtype": "bfloat16", "kv_cache_dtype": "fp8"}}
SHAPES = "1x32768,8x32768,64x4096"
ROOM = 256  # tokens of a sequence beside its prompt
WARM_UP, TIMED = 24, 64  # steps
UTILIZATION = 0.9


def take_turn(path):
    """Waits until no other process with the same file has the GPU, and has it until this process ends."""
    file = open(path, "w")  # noqa: SIM115
    fcntl.flock(file, fcntl.LOCK_EX)
    return file


def engine(model, **more):
    from vllm import LLM
    return LLM(**{"model": str(model), "dtype": "float16", "seed": 0, "disable_log_stats": True,
                  "enable_prefix_caching": False, **more})


def core_of(llm):
    return llm.llm_engine.engine_core.engine_core


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
    the first part; "blocks": the numbers of its pages}."""
    found, names, plain = {}, {}, scheduler.schedule

    def schedule(*arguments, **more):
        out = plain(*arguments, **more)
        for new in out.scheduled_new_reqs:
            names[new.req_id] = tuple(new.prompt_token_ids)
            found[names[new.req_id]] = {"pieces": [(0, new.num_computed_tokens)] * (new.num_computed_tokens > 0)}
        for name, count in out.num_scheduled_tokens.items():
            own = found[names[name]]
            own["blocks"] = list(scheduler.kv_cache_manager.get_block_ids(name)[0])  # of codes; others are of a window
            begin = sum(own["pieces"][-1]) if own["pieces"] else 0
            if begin < len(names[name]):
                own["pieces"].append((begin, count))
        return out

    # Pages of a sequence that has ended would be the first to be given to another one.
    scheduler.kv_cache_manager.free = lambda request: None
    scheduler.schedule = schedule
    return found


def codes_of(worker, blocks, tokens):
    """int32 [layers, sequences, heads, tokens, words], of the pages of sequences."""
    import torch
    caches = [cache for cache in worker.model_runner.kv_caches if not cache.is_floating_point()]
    pages = torch.stack([cache[torch.tensor(blocks, device=cache.device)] for cache in caches])
    return pages.transpose(2, 3).flatten(3, 4)[:, :, :, :tokens].cpu()  # pages: [layers, sequences, blocks, heads, ...]


def generated(options, folder, bundle):
    """Tokens, codes and log-probabilities of vLLM, for judge(): one dict for each time that it got the prompts."""
    import transformers
    from vllm import SamplingParams
    tokenizer, text = transformers.AutoTokenizer.from_pretrained(folder), pathlib.Path(options.text).read_text(errors="replace")
    prompts = prompts_of(tokenizer(text, add_special_tokens=False)["input_ids"], options.prompts, options.prompt_tokens,
                         options.stride, options.mode == "prefix")
    began = time.time()
    llm = engine(folder, max_model_len=-(-(options.prompt_tokens + options.new) // 256) * 256, max_num_seqs=options.prompts,
                 attention_backend=options.backend, gpu_memory_utilization=0.1, kv_cache_memory_bytes=options.memory << 20,
                 additional_config={"vqgen": {"bundle": str(bundle), "recent_tokens": options.recent}},
                 **{"max_num_batched_tokens": options.prompts * options.prompt_tokens, **MODES[options.mode]})
    print(f"engine: {time.time() - began:.1f} s", flush=True)
    found = recorded(core_of(llm).scheduler)
    sampling = SamplingParams(temperature=0, max_tokens=options.new, ignore_eos=True, logprobs=0)
    runs = []
    for again in range(2 if options.mode == "prefix" else 1):
        began = time.time()
        outs = [each.outputs[0] for each in llm.generate([{"prompt_token_ids": each} for each in prompts], sampling,
                                                         use_tqdm=False)]
        print(f"generated: {time.time() - began:.1f} s", flush=True)
        runs.append({"mode": options.mode + " again" * again, "prompts": prompts,
                     "pieces": [found[tuple(each)]["pieces"] for each in prompts],
                     "codes": llm.collective_rpc(codes_of, args=([found[tuple(each)]["blocks"] for each in prompts],
                                                                 options.prompt_tokens + options.new - 1))[0],
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
    model, exact = load(torch.float16), load(torch.float32) if options.float32 else None
    rows = []
    for run in runs:
        began = time.time()
        rows.append(judge(model, bundle, run, options.tolerance, options.most or options.prompts, exact, options.recent))
        rows[-1]["recent_tokens"] = options.recent
        print(f"transformers: {time.time() - began:.1f} s\n##", json.dumps(rows[-1]), flush=True)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(rows, indent=1))
    return any(row["vllm"]["beyond"] for row in rows)


# ---- steps

class Cached:
    """A scheduler's connector to other caches that has all tokens of a prompt but the last one."""

    def get_num_new_matched_tokens(self, request, computed):
        return request.num_tokens - 1 - computed, False

    def request_finished(self, request, blocks):
        return False, None

    def has_pending_push_work(self):
        return False

    def take_events(self):
        return ()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *arguments, **more: None


def random_bundle(path, config, keys, values):
    """A bundle of random codebooks for a model of config.json's shapes: one layer is trained on noise, all have it."""
    import torch
    from safetensors.torch import load_file, save_file

    from vqgen._bundles import read_bundle
    from vqgen._calibration import has_basis, write_basis_bundle, write_bundle
    heads, dim = config["num_key_value_heads"], config["head_dim"]
    draw, device = torch.Generator().manual_seed(1), "cuda" if torch.cuda.is_available() else "cpu"
    states = [torch.randn(heads, 2048, dim, generator=draw).half().to(device) for _ in range(2)]
    if has_basis(keys, values):
        write_basis_bundle(path, [states], [{"keys": keys, "values": values}], 1)
    else:
        write_bundle(path, [states], keys, values, 1)
    item, = read_bundle(path)
    own = {name.removeprefix("layer0."): tensor for name, tensor in load_file(path).items()
           if not name.endswith(".codes")}
    layers = range(config["num_hidden_layers"])
    items = [{**item, "name": f"layer{layer}"} for layer in layers]
    save_file({f"layer{layer}.{name}": tensor.clone() for layer in layers for name, tensor in own.items()}, path,
              {"vqgen.bundle": json.dumps({"schema": 1, "items": items})})


def quantization_of(config, form, dtype):
    """What the config.json of a Llama's folder says whose linear layers have codes of a format."""
    import vqgen
    from vqgen import _folders
    hidden, inner, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    heads, kv_heads = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    sizes = {"q_proj": (heads, hidden), "k_proj": (kv_heads, hidden), "v_proj": (kv_heads, hidden), "o_proj": (hidden, heads),
             "gate_proj": (inner, hidden), "up_proj": (inner, hidden), "down_proj": (hidden, inner)}
    return {"quant_method": _folders.METHOD, "version": _folders.VERSION, "dtype": {"float16": "f16", "bfloat16": "bf16"}[dtype],
            "format": vqgen.format_fields(form), "modules_to_not_convert": ["lm_head", "model.embed_tokens"],
            "weight_shapes": [{"modules": f"*.{name}", "out_features": rows, "in_features": columns}
                              for name, (rows, columns) in sizes.items()]}


def fill(worker):
    """Fill a worker's cache with random numbers. Blocks of codes that full-precision tokens may have too get finite
    numbers of either."""
    import torch
    caches = worker.model_runner.kv_caches
    codes = [cache for cache in caches if not cache.is_floating_point() and cache.element_size() > 1]
    for cache in codes if len(codes) < len(caches) else ():
        cache.random_(-1 << 31, (1 << 31) - 1).bitwise_and_(-0x40004001)
    for cache in caches if not codes or len(codes) == len(caches) else ():
        if cache.element_size() == 1:  # small positive numbers in FP8
            cache.view(torch.uint8).random_(0, 64)
        elif cache.is_floating_point():
            cache.normal_()
        else:
            cache.random_(-1 << 31, (1 << 31) - 1)


def timed(llm, batch, tokens):
    """Seconds of TIMED decode steps of `batch` sequences with prompts of `tokens`, and the blocks of a sequence."""
    import torch
    from vllm import SamplingParams
    llm_engine, names = llm.llm_engine, [f"{batch}x{tokens}-{each}" for each in range(batch)]
    sampling = SamplingParams(temperature=0, max_tokens=ROOM - 1, ignore_eos=True, detokenize=False)
    for number, name in enumerate(names):
        prompt = [(7 * at + 13 * number) % 1000 for at in range(tokens)]
        llm_engine.add_request(name, {"prompt_token_ids": prompt}, sampling)
    for _ in range(WARM_UP):
        llm_engine.step()
    scheduler = core_of(llm).scheduler
    running = scheduler.running
    if len(running) != batch or any(each.num_computed_tokens < tokens for each in running):
        raise SystemExit(f"B{batch} N{tokens}: {len(running)} sequences decode after {WARM_UP} steps")
    torch.cuda.synchronize()
    pool = scheduler.kv_cache_manager.block_pool
    blocks = (pool.num_gpu_blocks - pool.get_num_free_blocks()) / batch
    seconds = []
    for _ in range(TIMED):
        began = time.perf_counter()
        llm_engine.step()
        seconds.append(time.perf_counter() - began)
    scheduler.connector = None  # a scheduler asks it at the end of a request, too
    llm_engine.abort_request(names)
    while llm_engine.has_unfinished_requests():
        llm_engine.step()
    return seconds, blocks


def run_steps(options):
    import torch
    shapes = [tuple(map(int, each.split("x"))) for each in options.shapes.split(",")]
    config = json.loads(pathlib.Path(options.config).read_text())
    config = {**config, "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "dtype": "float16"}
    if options.weights != "fp16":
        dtype = PLAIN.get(options.cache, config)["dtype"]
        config["quantization_config"] = quantization_of(config, options.weights, dtype)
    import vllm
    turn = take_turn(options.turns) if options.turns else None  # noqa: F841
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "config.json").write_text(json.dumps(config))
        if options.cache in PLAIN:
            more = {"attention_backend": "FLASH_ATTN", **PLAIN[options.cache]}
        else:
            import vqgen.vllm
            keys, _, values = options.cache.partition(",")
            random_bundle(pathlib.Path(folder) / "books", config, keys, values or keys)
            vqgen.vllm.bind(pathlib.Path(folder) / "books", folder)
            more = {"attention_backend": options.backend, "additional_config": {"vqgen": {"recent_tokens": options.recent}}}
        began = time.time()
        llm = engine(folder, load_format="dummy", skip_tokenizer_init=True, max_num_seqs=max(batch for batch, _ in shapes),
                     max_model_len=max(tokens for _, tokens in shapes) + ROOM, max_num_batched_tokens=8192,
                     gpu_memory_utilization=UTILIZATION, compilation_config={
                         **MODES["full"]["compilation_config"],
                         "cudagraph_capture_sizes": sorted({batch for batch, _ in shapes})}, **more)
        print(f"engine: {time.time() - began:.1f} s", flush=True)
        cache = llm.llm_engine.vllm_config.cache_config
        llm.collective_rpc(fill)
        rows = []
        for batch, tokens in shapes:
            core_of(llm).scheduler.connector = Cached()
            seconds, blocks = timed(llm, batch, tokens)
            ordered = sorted(seconds)
            rows.append({"cache": options.cache, "recent_tokens": options.recent if options.cache not in PLAIN else "",
                         "weights": options.weights, "batch": batch, "tokens": tokens,
                         "step_ms": round(statistics.median(seconds) * 1e3, 3),
                         "mean_ms": round(statistics.fmean(seconds) * 1e3, 3),
                         "slowest_ms": round(ordered[-1] * 1e3, 3),
                         "capacity_tokens": round(cache.num_gpu_blocks / blocks * (tokens + WARM_UP)),
                         "vllm": vllm.__version__, "gpu": torch.cuda.get_device_name()})
            print("##", json.dumps(rows[-1]), flush=True)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(rows, indent=1))
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    tokens = parts.add_parser("tokens", help="compare greedy tokens with transformers'")
    tokens.add_argument("model", help="folder of a model, with a vqgen.bundle")
    tokens.add_argument("--text", required=True, help="file whose last tokens are the prompts")
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
    tokens.add_argument("--memory", type=int, default=256, help="MiB of vLLM's cache [256]")
    tokens.add_argument("--device", default="cuda", help="device of transformers [cuda]")
    steps = parts.add_parser("steps", help="time decode steps with random weights")
    steps.add_argument("config", help="config.json of a Llama")
    steps.add_argument("--cache", required=True, help="fp16, fp8, or formats as KEYS[,VALUES]")
    steps.add_argument("--weights", default="fp16", help="fp16, or a format as aqlm-2x8i8 [fp16]")
    steps.add_argument("--shapes", default=SHAPES, help=f"BATCHxTOKENS,... [{SHAPES}]")
    steps.add_argument("--turns", help="file that processes on one GPU share, so that one after the other has it")
    for each in (tokens, steps):
        each.add_argument("--recent", type=int, default=0, help="tokens in full precision, of vqgen's caches [0]")
        each.add_argument("--backend", default="CUSTOM", help="vqgen's name in vLLM [CUSTOM, which is that of 0.26]")
        each.add_argument("--json", help="file for the results")
    options = parser.parse_args()
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the scheduler is read, so it has to be in this process
    return (run_tokens if options.part == "tokens" else run_steps)(options)


if __name__ == "__main__":
    sys.exit(main())
