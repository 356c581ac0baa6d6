"""What bench/vllm_trace.py, vllm_profile.py and vllm_experts.py make of what vLLM says, with stand-ins for its engine."""

import os
import pathlib
import sys
import types

import pytest

sys.path.insert(0, str(pathlib.Path(os.environ.get("VQGEN_SOURCE_DIR", pathlib.Path(__file__).parents[2])) / "bench"))
import vllm_compare  # noqa: E402
import vllm_experts  # noqa: E402
import vllm_profile  # noqa: E402
import vllm_trace  # noqa: E402

Fields = types.SimpleNamespace


# ---- requests

def test_requests_repeat_themselves_and_share_beginnings():
    source = vllm_trace.Source(3, 50, 200, 40)
    requests = [source.request() for _ in range(300)]
    assert requests[0] == vllm_trace.Source(3, 50, 200, 40).request()
    assert all(30 <= len(prompt) <= 200 and 16 <= new <= 40 and min(prompt) >= 2 and max(prompt) < 50 for prompt, new in requests)
    begins = [tuple(prompt[:100]) for prompt, _ in requests]
    assert 60 < sum(begins.count(each) > 1 for each in begins) < 140 and len(set(begins)) > 150


class Scheduler:
    """A scheduler of one request "a" with a prompt of 10 tokens; decode() is what a test has happen to it."""

    def __init__(self):
        self.request = Fields(request_id="a", num_computed_tokens=0, num_tokens=10, all_token_ids=list(range(10)),
                              status=Fields(name="FINISHED_LENGTH_CAPPED"))
        self.requests, self.freed = {"a": self.request}, []
        self.kv_cache_manager = Fields(get_block_ids=lambda name: ([1, 2],))

    def schedule(self, count=0):
        self.request.num_computed_tokens += count
        return Fields(num_scheduled_tokens={"a": count} if count else {})

    def decode(self, token, count=1, taken=1):
        self.schedule(count)
        self.request.num_computed_tokens -= count - taken
        self.request.num_tokens += taken
        self.request.all_token_ids += [token] * taken

    def _preempt_request(self, request, timestamp):
        request.num_computed_tokens = 0

    def _free_blocks(self, request):
        self.freed.append(request.request_id)


@pytest.fixture
def followed():
    scheduler, ended = Scheduler(), []
    watch = vllm_trace.Watch(scheduler, lambda *given: ended.append(given))
    return scheduler, watch, ended


def test_parts_are_followed_to_the_end_of_a_prompt(followed):
    scheduler, watch, ended = followed
    scheduler.schedule(6)
    scheduler.schedule()
    scheduler.schedule(4)
    scheduler.request.num_tokens += 1
    for count, taken in ((1, 1), (4, 2), (4, 4)):  # drafts of which some are taken back
        scheduler.decode(7, count, taken)
    reading = watch.readings["a"]
    assert (reading.known, reading.pieces, reading.hit) == (10, [(0, 6), (6, 4)], False) and reading.kind(0) == "parts"
    scheduler._free_blocks(scheduler.request)
    (request, *told), = ended
    assert told == [reading, "parts", ([1, 2],)] and request is scheduler.request and scheduler.freed == ["a"]
    assert not watch.readings


def test_a_preempted_request_is_read_again_with_its_own_tokens(followed):
    scheduler, watch, ended = followed
    scheduler.schedule(10)
    assert watch.readings["a"].kind(0) == "whole"
    scheduler.request.num_tokens += 1
    scheduler.decode(7)
    scheduler._preempt_request(scheduler.request, 0.0)
    assert watch.preemptions == 1 and watch.again == {"a"} and not watch.readings
    scheduler.request.num_computed_tokens = 8  # a prefix hit, of its own blocks
    scheduler.schedule(2)
    scheduler.schedule(2)
    scheduler.decode(7)
    reading = watch.readings["a"]
    assert (reading.known, reading.pieces, reading.hit) == (12, [(0, 8), (8, 2), (10, 2)], True)
    assert reading.kind(1) == "preempted" and reading.kind(0) == "hit"
    scheduler._free_blocks(scheduler.request)
    assert [each[2] for each in ended] == ["preempted"] and not watch.again


def test_a_cancelled_request_is_not_judged(followed):
    scheduler, watch, ended = followed
    scheduler.schedule(10)
    scheduler.request.status = Fields(name="FINISHED_ABORTED")
    scheduler._free_blocks(scheduler.request)
    assert not ended and not watch.readings and scheduler.freed == ["a"]


class Engine:
    """Gives each request a token per step."""

    def __init__(self):
        self.left, self.all, self.aborted, self.most, self.tokens = {}, [], [], 0, {}

    def add_request(self, name, prompt, sampling):
        self.left[name] = self.tokens[name] = sampling
        self.all.append(name)
        return f"{name}-internal"

    def abort_request(self, names):
        for name in names:
            del self.left[name]
        self.aborted += names

    def has_unfinished_requests(self):
        return bool(self.left)

    def step(self):
        self.most = max(self.most, len(self.left))
        self.left = {name: count - 1 for name, count in self.left.items()}
        done = [name for name, count in self.left.items() if count == 0]
        self.left = {name: count for name, count in self.left.items() if count}
        return [Fields(request_id=name, finished=True, outputs=[Fields(token_ids=[0] * self.tokens[name])]) for name in done]


def driven(*arguments):
    options, engine, now = vllm_trace.parsed(["model", *arguments]), Engine(), iter(range(10**6))
    source = vllm_trace.Source(0, 50, 100, 20)
    keep = lambda name: name in ("3-internal", "5-internal")
    return engine, vllm_trace.drive(engine, source, options, lambda new: new, keep, lambda: next(now) / 10, lambda: {"gpu": 5})


def test_all_requests_end():
    engine, (outs, counts, track) = driven("--requests", "60", "--sequences", "4")
    assert counts == {"requests": 60, "cancelled": 0, "new_tokens": sum(engine.tokens.values())}
    assert len(engine.all) == 60 and not engine.aborted and 1 < engine.most <= 12 and set(outs) == {"3-internal", "5-internal"}
    assert [at for at, _ in track] == sorted({at for at, _ in track}) and track[1][0] - track[0][0] >= 1


def test_requests_are_cancelled_for_minutes():
    engine, (_, counts, track) = driven("--minutes", "0.5", "--cancel", "0.5")
    assert 10 < counts["cancelled"] == len(engine.aborted)
    assert counts["requests"] + counts["cancelled"] == len(engine.all) and 30 <= track[-1][0] < 60


def test_growth_is_between_a_sixth_and_the_end():
    track = [(at, {"gpu": 50 if at < 100 else 100 if at < 300 else 102}) for at in range(600)]
    assert vllm_trace.growth(track, "gpu") == (100, 102, pytest.approx(0.02))


def found_of(**more):
    return {"kinds": dict.fromkeys(vllm_trace.KINDS, 3), "free_before": 9, "free_after": 9, "samples": [{"agree": True, "kind": "hit"}],
            "track": [(at, {"gpu": 2**30, "host": 2**30}) for at in range(60)], **more}


@pytest.mark.parametrize("more, beyond, words", [
    ({}, 0, None), ({"free_after": 7}, 0, "2 blocks are lost"), ({}, 3, "3 tokens of requests read parts are beyond"),
    ({"kinds": {"whole": 5, "preempted": 0}}, 0, "no request was read preempted"),
    ({"samples": [{"agree": False, "kind": "hit"}]}, 0, "requests read hit have other tokens in the scheduler"),
    ({"track": [(at, {"gpu": 2**30, "host": 2**30 + at * 2**20}) for at in range(60)]}, 0, "memory of the host changes by 4")])
def test_what_is_wrong_is_said(more, beyond, words):
    row, wrong = vllm_trace.summary(found_of(**more), [{"kind": "parts", "beyond": beyond}], vllm_trace.parsed(["m", "--minutes", "1"]))
    assert wrong == [] if words is None else len(wrong) == 1 and words in wrong[0]
    assert "samples" not in row and row["gpu_mib"] == [1024, 1024]


def test_a_run_has_requests_or_minutes(capsys):
    for given in ([], ["--requests", "5", "--minutes", "1"]):
        with pytest.raises(SystemExit):
            vllm_trace.parsed(["model", *given])
    assert "not allowed with" in capsys.readouterr().err


def test_drafts_are_options_of_an_engine():
    assert vllm_compare.drafted(0) == {}
    assert vllm_compare.drafted(4)["speculative_config"] == {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4,
                                                             "prompt_lookup_min": 2}


# ---- kernels

def test_kernels_are_listed_per_layer():
    events = [("ncclDevKernel_AllReduce", 0.0, 4.0), ("vqgen_attention_decode_1a", 4.0, 10.0), ("void flash_fwd_splitkv", 12.0, 6.0),
              ("vqgen_kv_append_2b", 16.0, 4.0), ("nvjet_hsh_64x8", 20.0, 2.0)]
    table = vllm_profile.per_layer(events + [(name, begin + 30, elapsed) for name, begin, elapsed in events], 2, 2)
    assert list(table["classes"]) == ["vqgen attention", "flash attention", "all-reduce", "vqgen append", "GEMM"]
    assert table["classes"]["vqgen attention"] == {"launches": 0.5, "us": 5.0, "kernels": [(5.0, 0.5, "vqgen_attention_decode_1a")]}
    assert (table["step_us"], table["busy_us"]) == (26.0, 22.0)  # of 52 from the first to the last, 8 without kernels
    text = vllm_profile.text_of("vqgen", table)
    assert "26 us a step" in text and "vqgen_kv_append_2b" in text
    assert vllm_profile.per_layer([], 1, 1) == {"classes": {}, "step_us": 0.0, "busy_us": 0.0}


# ---- experts

def test_gaps_are_to_the_largest_log_probability():
    step = lambda **held: {int(name[1:]): Fields(logprob=each) for name, each in held.items()}
    own, gaps = vllm_experts.read_tokens([step(t4=-0.5), step(t4=-0.25, t7=-1.25)], [4, 7])
    assert (own, gaps) == ([-0.5, -1.25], [0, 1.0])
    row = vllm_experts.row_of("a", [own], [[-0.5, -1.0]], [gaps], 0.02)
    assert row == {"side": "a", "steps": 2, "median_apart": 0.125, "largest_apart": 0.25, "same": 1, "beyond": 1, "largest_gap": 1.0}
    assert "beyond" not in vllm_experts.row_of("a", [own], [[-0.5, -1.0]], None, 0.02)
