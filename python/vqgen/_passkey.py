"""Does a model find again what is far back? A line of the text gives five digits, and the text's end asks for them."""

from __future__ import annotations

import torch

_DIGITS = 5
_NAME = "\nPASS_KEY = "


def prompts(tokenizer, fillers, seed: int = 1):
    """Put a line with a pass key into each of fillers [n, length] of tokens, at n places from the start to near the end,
    and its question at the end. Returns tokens [n, length] and how many of the last ones are each answer's."""
    draw = torch.Generator().manual_seed(seed)

    def encoded(text):
        return torch.tensor(tokenizer(text, add_special_tokens=False).input_ids)

    rows, answers = [], []
    for number, filler in enumerate(fillers):
        digits = "".join(str(each) for each in torch.randint(0, 10, (_DIGITS,), generator=draw).tolist())
        line, question, answer = encoded(f"{_NAME}{digits}\n"), encoded(_NAME), encoded(digits)
        room = len(filler) - len(line) - len(question) - len(answer)
        at = room * number // len(fillers)
        rows.append(torch.cat((filler[:at], line, filler[at:room], question, answer)))
        answers.append(len(answer))
    return torch.stack(rows), answers


@torch.no_grad()
def found(passes, tokens, answers) -> float:
    """The share of prompts() whose answer's tokens are all the most likely ones, by passes as _losses.whole_logits()
    yields them."""
    right = torch.ones(len(tokens), dtype=torch.bool)
    for first, at, logits in passes:
        for row, own in enumerate(logits.argmax(-1).cpu(), first):
            begin = max(tokens.shape[1] - 1 - answers[row] - at, 0)
            wanted = tokens[row, at + begin + 1:at + 1 + len(own)]
            right[row] &= torch.equal(own[begin:], wanted)
    return float(right.double().mean())
