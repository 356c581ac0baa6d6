"""Models that transformers runs by eager or flash attention alone, such as gpt-oss: calibrate() gives
codebooks, since keys do not depend on who attends, or one of vqgen's errors."""

import transformers

import vqgen
from hfkit import bundle, end, steps, tiny, with_attention

model = tiny(transformers.GptOssConfig, transformers.GptOssForCausalLM, num_local_experts=2,
             num_experts_per_tok=1, layer_types=["full_attention"] * 2)
steps(with_attention(model, "eager"))
right = True
try:
    print("codebooks at", bundle(model))
except vqgen.Error as error:
    print(error)
    right = "sinks" in str(error)
except Exception as error:  # pylint: disable=broad-except
    print(f"{type(error).__name__}: {str(error)[:200]}")
    right = False
end(right)
