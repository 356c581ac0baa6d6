"""Generation with transformers over a 2-bit KV cache.

    python3 examples/python/generate.py [MODEL] [PROMPT...]

MODEL is a folder that transformers loads, of a Llama- or Qwen-like model; without it a small one of
random weights shows the calls. On a GPU each step of one token is a CUDA graph.
"""
import sys
import tempfile

import torch
import transformers

import vqgen.hf

device = "cuda" if torch.cuda.is_available() else "cpu"
if len(sys.argv) > 1:
    model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float16)
    tokenizer = transformers.AutoTokenizer.from_pretrained(sys.argv[1], padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    prompts = sys.argv[2:] or ["The capital of France", "def main():"]
    inputs = tokenizer(prompts, padding=True, return_tensors="pt")
    new = 64
else:
    config = transformers.Qwen2Config(
        vocab_size=64, hidden_size=128, intermediate_size=128, num_hidden_layers=2, head_dim=64,
        num_attention_heads=2, num_key_value_heads=1, pad_token_id=0, eos_token_id=None)
    model, tokenizer = transformers.Qwen2ForCausalLM(config).half(), None
    tokens = torch.tensor([[0, 0, 5, 9, 2], [7, 3, 8, 1, 6]])
    inputs = {"input_ids": tokens, "attention_mask": (tokens != 0).long()}
    new = 8
model = model.to(device).eval()
inputs = {name: tensor.to(device) for name, tensor in inputs.items()}

with tempfile.TemporaryDirectory() as folder:
    # In earnest: a few dozen sequences of text like that which will come.
    sample = torch.randint(0, model.config.vocab_size, (4, 256))
    vqgen.hf.calibrate(model, [sample], f"{folder}/codebooks", keys="vecinfer-d4b8i8",
                       values="vecinfer-d4b8i8")
    batch, prompt = inputs["input_ids"].shape
    cache = vqgen.hf.VQCache(model.config, f"{folder}/codebooks", batch=batch, tokens=prompt + new,
                             recent_tokens=16, device=device)
model.set_attn_implementation("vqgen")
with vqgen.hf.captured(model, cache):
    out = model.generate(**inputs, past_key_values=cache, max_new_tokens=new, do_sample=False)
for line in tokenizer.batch_decode(out, skip_special_tokens=True) if tokenizer else out.tolist():
    print(line)
print(f"{cache.bytes_per_token():.0f} bytes of codes per token, {cache.lengths.tolist()} tokens")
