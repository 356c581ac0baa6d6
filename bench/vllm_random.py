"""Speed of vLLM with random weights, for bench/vllm_compare.py: decode steps over a full cache, and whole requests."""
import contextlib
import fcntl
import json
import pathlib
import statistics
import tempfile
import time

import vllm_profile

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


def experts_of(config):
    """(module, names of gate, up and down, how many, features) of a layer's experts in a folder; None of a dense model."""
    if config.get("model_type") == "mixtral":
        return "block_sparse_moe", ("w1", "w3", "w2"), config["num_local_experts"], config["intermediate_size"]
    if "num_experts" in config:
        return "mlp", ("gate_proj", "up_proj", "down_proj"), config["num_experts"], config["moe_intermediate_size"]
    return None


def quantization_of(config, form, dtype):
    """What the config.json of a folder says whose linear layers have codes of a format."""
    import vqgen
    from vqgen import _folders
    hidden, inner, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    heads, kv_heads = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    sizes = {"q_proj": (heads, hidden), "k_proj": (kv_heads, hidden), "v_proj": (kv_heads, hidden), "o_proj": (hidden, heads),
             "gate_proj": (inner, hidden), "up_proj": (inner, hidden), "down_proj": (hidden, inner)}
    if experts := experts_of(config):
        _, (*both, down), _, inner = experts  # the first pattern of a name is its
        sizes = {**{f"experts.*.{name}": (inner, hidden) for name in both}, f"experts.*.{down}": (hidden, inner), **sizes}
    return {"quant_method": _folders.METHOD, "version": _folders.VERSION, "dtype": {"float16": "f16", "bfloat16": "bf16"}[dtype],
            "format": vqgen.format_fields(form), "modules_to_not_convert": ["lm_head", "model.embed_tokens", "*.gate"],
            "weight_shapes": [{"modules": f"*.{name}", "out_features": rows, "in_features": columns}
                              for name, (rows, columns) in sizes.items()]}


def config_of(options):
    """What config.json says of a model for options.cache, options.weights and options.layers."""
    config = json.loads(pathlib.Path(options.config).read_text())
    config = {"architectures": ["LlamaForCausalLM"], **config, "hidden_act": "silu", "dtype": "float16",
              "num_hidden_layers": options.layers or config["num_hidden_layers"],
              "head_dim": config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]}
    if options.weights != "fp16":
        dtype = PLAIN.get(options.cache, config)["dtype"]
        config["quantization_config"] = quantization_of(config, options.weights, dtype)
    return config


def bound_bundle(folder, options, config):
    """Random codebooks for options.cache, in a bundle beside the config.json of a folder."""
    import vqgen.vllm
    keys, _, values = options.cache.partition(",")
    random_bundle(folder / "books", config, keys, values or keys)
    vqgen.vllm.bind(folder / "books", folder)


def shapes_of(config):
    """The shapes of a model's tensors in its folder, by name: a Llama's, with experts where the config has some."""
    hidden, dim, vocabulary = config["hidden_size"], config["head_dim"], config["vocab_size"]
    heads, kv_heads = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    module, (*both, down), count, inner = experts_of(config) or ("mlp", ("gate_proj", "up_proj", "down_proj"), 0,
                                                                 config["intermediate_size"])
    layer = {"input_layernorm": (hidden,), "post_attention_layernorm": (hidden,), "self_attn.q_proj": (heads, hidden),
             "self_attn.k_proj": (kv_heads, hidden), "self_attn.v_proj": (kv_heads, hidden),
             "self_attn.o_proj": (hidden, heads)}
    if config.get("model_type", "").startswith("qwen3"):
        layer |= {"self_attn.q_norm": (dim,), "self_attn.k_norm": (dim,)}
    if count:
        layer[f"{module}.gate"] = (count, hidden)
    for stem in [f"{module}.experts.{expert}" for expert in range(count)] or [module]:
        layer |= {**{f"{stem}.{name}": (inner, hidden) for name in both}, f"{stem}.{down}": (hidden, inner)}
    out = {"model.embed_tokens.weight": (vocabulary, hidden), "model.norm.weight": (hidden,),
           "lm_head.weight": (vocabulary, hidden)}
    return out | {f"model.layers.{number}.{name}.weight": shape for number in range(config["num_hidden_layers"])
                  for name, shape in layer.items()}


def weights_of(config):
    """Random weights by name, of a model's folder."""
    import torch

    from vqgen import _folders
    from vqgen.vllm._weights import KINDS, fill_random
    told = _folders.Quantization(config["quantization_config"]) if "quantization_config" in config else None
    device, out = "cuda" if torch.cuda.is_available() else "cpu", {}
    for name, shape in shapes_of(config).items():
        module = name.removesuffix(".weight")
        if told is not None and len(shape) > 1 and not told.is_dense(module):
            held = {suffix: torch.empty(size, dtype=KINDS[kind], device=device)
                    for suffix, (kind, size) in told.tensors_of(module, *shape).items()}
            fill_random(told.format_of(module), held)
            out |= {f"{module}.{suffix}": tensor for suffix, tensor in held.items()}
        else:
            out[name] = torch.empty(shape, dtype=torch.float16, device=device)
            out[name].normal_(0, 0.02) if len(shape) > 1 else out[name].fill_(1)
    return out


def run_folder(options):
    """A folder with random weights and codebooks."""
    from safetensors.torch import save_file
    folder, config = pathlib.Path(options.out), config_of(options)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.cpu() for name, tensor in weights_of(config).items()}, folder / "model.safetensors",
              {"format": "pt"})
    bound_bundle(folder, options, config)
    return 0


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


def timed(llm, batch, tokens, profile=0):
    """Seconds of TIMED decode steps of `batch` sequences with prompts of `tokens`, the blocks of a sequence, and tables of
    the kernels of `profile` further steps, one for each rank."""
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
    layers = llm.llm_engine.vllm_config.model_config.hf_text_config.num_hidden_layers
    tables = vllm_profile.profiled(llm, llm_engine.step, profile, layers) if profile else []
    scheduler.connector = None  # a scheduler asks it at the end of a request, too
    llm_engine.abort_request(names)
    while llm_engine.has_unfinished_requests():
        llm_engine.step()
    return seconds, blocks, tables


@contextlib.contextmanager
def started(options, batches, most_tokens):
    """An engine with random weights for options.cache and options.weights; batches: that graphs are captured for."""
    config = config_of(options)
    turn = take_turn(options.turns) if options.turns else None  # noqa: F841
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "config.json").write_text(json.dumps(config))
        if options.cache in PLAIN:
            more = {"attention_backend": "FLASH_ATTN", **PLAIN[options.cache]}
        else:
            bound_bundle(pathlib.Path(folder), options, config)
            more = {"attention_backend": options.backend, "additional_config": {"vqgen": {"recent_tokens": options.recent}}}
        began = time.time()
        llm = engine(folder, load_format="dummy", skip_tokenizer_init=True, max_num_seqs=max(batches),
                     max_model_len=most_tokens, max_num_batched_tokens=8192, gpu_memory_utilization=UTILIZATION,
                     tensor_parallel_size=options.ranks, compilation_config={"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY",
                                         "cudagraph_capture_sizes": sorted(batches)}, **more)
        print(f"engine: {time.time() - began:.1f} s", flush=True)
        yield llm


def side(options):
    """What a row of results says of its engine."""
    import torch
    import vllm
    return {"cache": options.cache, "recent_tokens": options.recent if options.cache not in PLAIN else "",
            "weights": options.weights, "ranks": options.ranks, "vllm": vllm.__version__, "gpu": torch.cuda.get_device_name()}


def report(options, rows, row):
    rows.append({**side(options), **row})
    print("##", json.dumps(rows[-1]), flush=True)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(rows, indent=1))


def run_steps(options):
    shapes = [tuple(map(int, each.split("x"))) for each in options.shapes.split(",")]
    with started(options, {batch for batch, _ in shapes}, max(tokens for _, tokens in shapes) + ROOM) as llm:
        cache, rows = llm.llm_engine.vllm_config.cache_config, []
        llm.collective_rpc(fill)
        for batch, tokens in shapes:
            core_of(llm).scheduler.connector = Cached()
            seconds, blocks, tables = timed(llm, batch, tokens, options.profile)
            report(options, rows, {
                "batch": batch, "tokens": tokens, "step_ms": round(statistics.median(seconds) * 1e3, 3),
                "mean_ms": round(statistics.fmean(seconds) * 1e3, 3), "slowest_ms": round(max(seconds) * 1e3, 3),
                "capacity_tokens": round(cache.num_gpu_blocks / blocks * (tokens + WARM_UP))})
            for rank, table in enumerate(tables):
                print(vllm_profile.text_of(f"{options.cache} B{batch} N{tokens}, rank {rank}", table), flush=True)
    return 0


def random_prompts(count, tokens, seed):
    import random
    draw = random.Random(seed)
    return [{"prompt_token_ids": [draw.randrange(1000) for _ in range(tokens)]} for _ in range(count)]


def run_requests(options):
    """Times to the first token, and a run of requests that all come at once."""
    from vllm import SamplingParams
    lengths = [int(each) for each in options.first.split(",")]
    batches = {1, 2, 4, *range(8, options.requests + 1, 8)}
    with started(options, batches, max(*lengths, options.prompt_tokens + options.new) + 16) as llm:
        def generate(prompts, new):
            began = time.perf_counter()
            llm.generate(prompts, SamplingParams(temperature=0, max_tokens=new, ignore_eos=True, detokenize=False), use_tqdm=False)
            return time.perf_counter() - began

        rows = []
        for tokens in lengths:
            generate(random_prompts(1, tokens, 0), 1)
            seconds = [generate(random_prompts(1, tokens, seed), 1) for seed in range(1, 8)]
            report(options, rows, {"requests": 1, "tokens": tokens, "new": 1, "seconds": round(statistics.median(seconds), 5)})
        generate(random_prompts(8, 512, 0), 32)
        seconds = generate(random_prompts(options.requests, options.prompt_tokens, 1), options.new)
        report(options, rows, {"requests": options.requests, "tokens": options.prompt_tokens, "new": options.new,
                               "seconds": round(seconds, 2)})
    return 0
