"""A decoder layer of vqgen.vllm in several processes, each of which has a rank's heads and shards, as vLLM splits them."""

import json
import types

import torch
import torch.distributed as dist

import vllm_models
import vqgen
import vqgen.torch as vt
from vllm_reference import DIM, HEADS, KV_HEADS, SCALE, attend, rank_of
from vqgen import _folders
from vqgen._sights import Sight
from vqgen.vllm import _engine, _weights
from vqgen.vllm._pages import Raw

Fields = types.SimpleNamespace
TOKENS, PAGES, COUNTS = 64, 8, ((20, 13), (1, 1), (1, 1))
TABLE = [[3, 1, 5, 0], [7, 2, 4, 6]]
CONFIG = {"model_type": "llama", "hidden_size": HEADS * DIM, "intermediate_size": 512, "head_dim": DIM, "vocab_size": 8,
          "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "num_hidden_layers": 1}


def configuration(folder, ranks, recent):
    return vllm_models.configuration(
        folder, additional_config={"vqgen": {"recent_tokens": recent}}, lora_config=None, load_config=Fields(load_format="auto"),
        model_config__max_model_len=TOKENS, model_config__get_total_num_hidden_layers=lambda: 1,
        model_config__get_num_attention_heads=lambda parallel: HEADS // ranks)


class Decoder:
    """The layer of a rank. device: where it computes."""

    def __init__(self, folder, rank, ranks, recent, device):
        config = configuration(folder, ranks, recent)
        self.rank, self.ranks, self.device, self.recent = rank, ranks, device, recent
        self.engine = _engine.Engine(config, rank, ranks)
        self.heads = HEADS // ranks, self.engine.heads[1]
        self.engine.add(Sight(), *self.heads, DIM)
        self.kernels = self.engine.prepare(device)
        self.cache = self.engine.layer(0, attend, SCALE)
        self.pages = torch.zeros(self.kernels.cache_shape(PAGES), dtype=torch.int32, device=device)
        if recent:
            columns = -(-self.kernels.shape.tokens // self.kernels.shape.raw_page_tokens)
            self.raw_pages = torch.zeros(self.kernels.raw_shape(2 * columns), dtype=torch.float16, device=device)
            self.raw_table = torch.arange(2 * columns, dtype=torch.int32, device=device).view(2, columns)
        self.batches = self.engine.batches()
        self.folder = _weights.Folder(json.loads((folder / "config.json").read_text())["quantization_config"])
        self.folder.open(config)
        self.tensors = _folders.read_folder(folder)[1]
        inner, columns = CONFIG["intermediate_size"] // ranks, CONFIG["hidden_size"]
        rows = [heads * DIM for heads in (self.heads[0], self.heads[1], self.heads[1])]
        self.qkv = self.linear({f"self_attn.{each}_proj": each for each in "qkv"}, rows, columns)
        self.out = self.linear({"self_attn.o_proj": None}, [columns], self.heads[0] * DIM)
        self.gate_up = self.linear({"mlp.gate_proj": 0, "mlp.up_proj": 1}, [inner] * 2, columns)
        self.down = self.linear({"mlp.down_proj": None}, [columns], inner)

    def linear(self, parts, rows, columns):
        names = [f"model.layers.0.{each}" for each in parts]
        layer = _weights.Layer(self.folder, "of a test", names, rows, columns, torch.float16, self.device, self.rank, self.ranks)
        stored = layer.storage()
        for name, shard in zip(names, parts.values()):
            for suffix, tensor in self.tensors.read(name).items():
                layer.load(suffix, stored[suffix], tensor.to(self.device), shard)
        finished = list(zip(layer.launches, layer.finish(stored)))
        return lambda x: torch.cat([torch.ops.vqgen.linear(
            launch.config, x, *map(held.get, ("codes", "codebooks", "stage_scales", "output_scales"))) for launch, held in finished], -1)

    def reduced(self, x):
        if self.ranks > 1:
            whole = x.float()
            dist.all_reduce(whole)
            x = whole.half()
        return x

    def step(self, batch, x, raw):
        heads = lambda rows: rows.unflatten(-1, (-1, DIM))
        query, key, value = map(heads, self.qkv(x).split([each * DIM for each in (*self.heads, self.heads[1])], -1))
        out = torch.full(query.shape, torch.nan, dtype=torch.float16, device=self.device)
        self.cache.forward(batch, query, key, value, self.pages, out, raw)
        x = x + self.reduced(self.out(out.flatten(1)))
        gate, up = self.gate_up(x).chunk(2, -1)
        return x + self.reduced(self.down(torch.nn.functional.silu(gate) * up))

    def trace(self, given):
        """The results of all steps. given: float16 rows of each step."""
        outs, done = [], [0, 0]
        table = torch.tensor(TABLE, dtype=torch.int32, device=self.device)
        if self.recent:  # blocks of codes are larger
            table = table[:, :self.kernels.shape.tokens // self.kernels.shape.page_tokens].contiguous()
        for counts, x in zip(COUNTS, given):
            done = [before + count for before, count in zip(done, counts)]
            starts = [0, counts[0], sum(counts)]
            on_device = lambda each: torch.tensor(each, dtype=torch.int32, device=self.device)
            batch = self.batches.build(starts, done, on_device(starts), on_device(done), table, max(done))
            raw = Raw(self.raw_pages, self.raw_table) if self.recent else None
            outs.append(self.step(batch, x.to(self.device), raw).cpu())
        return outs


def run(rank, ranks, folder, recent, given, cache_dir, out):
    """What a process does: a trace, whose results and codes are saved in the folder `out`."""
    with rank_of(rank, ranks, cache_dir, out) as device:
        decoder = Decoder(folder, rank, ranks, recent, device)
        torch.save({"outs": decoder.trace(given), "codes": decoder.pages.cpu(), "heads": decoder.engine.heads},
                   f"{out}/rank{rank}")
