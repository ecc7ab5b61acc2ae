"""Cases of one vLLM engine with an LMCache server: `cases.py --url tcp://127.0.0.1:6555 [--only NAME] [--mode MODE]`.

Prints a line of JSON for each case: its name, what every client said and heard (trace.py), and what came of it. Lines
"ASK what" want something done to the server (pause, continue, kill, start, replace: another one takes its place at once),
and are answered by a line on standard input.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
import traceback

from engine import Engine, KVTransferConfig, RequestStatus, expected, model, set_current_vllm_config
import trace

from lmcache.v1.multiprocess.custom_types import IPCCacheServerKey
from lmcache.v1.multiprocess.transport.factory import RequestClientFactory

CHUNK = 256
CASES = []


def case(f):
    CASES.append(f)
    return f


class Bench:
    """What the cases of one transfer mode share: an engine, a client beside it, prompts."""

    def __init__(self, url: str, mode: str) -> None:
        self.url, self.mode = url, mode
        self.notes: list[str] = []
        self.engines: list[Engine] = []
        with trace.naming(None):
            self.probe = RequestClientFactory.create(url)
            self.probe.noop().result(30)
        self.probes = 0

    def transfer(self, role: str = "kv_both", policy: str = "recompute", **extra) -> KVTransferConfig:
        host, port = self.url.rsplit(":", 1)
        return KVTransferConfig(
            kv_connector="LMCacheMPConnector", kv_role=role, kv_load_failure_policy=policy,
            kv_connector_extra_config={
                "lmcache.mp.host": host, "lmcache.mp.port": int(port), "lmcache.mp.mp_transfer_mode": self.mode,
                "lmcache.mp.mq_timeout": 60, "lmcache.mp.heartbeat_interval": 60, **extra,
            })

    def engine(self, name: str, role: str = "kv_both", policy: str = "recompute", budget: int = 8192, blocks: int = 512,
               events: bool = False, **extra) -> Engine:
        e = Engine(name, self.transfer(role, policy, **extra), budget=budget, blocks=blocks, events=events)
        self.engines.append(e)
        return e

    def begin(self) -> None:
        """Makes the engine that most cases share."""
        self.e = Engine("engine", self.transfer())

    def prompt(self, name: str, n: int) -> list[int]:
        """n tokens that are the same in every run, and differ from the first one on between names and modes."""
        r = random.Random(f"{self.mode} {name}")
        return [r.randrange(3, 32000) for _ in range(n)]

    def say(self, *words) -> None:
        self.notes.append(" ".join(str(w) for w in words))

    def one(self, e: Engine, name: str, tokens, answer: int = 1, **more):
        """Runs a request and checks its answer."""
        r = e.one(name, tokens, answer, **more)
        self.told(e, name, tokens, answer)
        return r

    def told(self, e: Engine, name: str, tokens, answer: int) -> None:
        right = e.texts[name] == expected(tokens, answer)
        self.say(name, "ended:", e.ended.get(name), "| answer", "right" if right else "WRONG", "| free blocks", e.free())

    def key(self, tokens, request: str, salt: str = "") -> IPCCacheServerKey:
        return IPCCacheServerKey(
            model_name=model(), world_size=1, worker_id=None, token_ids=tuple(tokens), start=0,
            end=len(tokens) // CHUNK * CHUNK, request_id=request, cache_salt=salt, num_kv_readers=1)

    def found(self, tokens, salt: str = "") -> int:
        """How many chunks of a prompt the server has, asked by a client beside the engine."""
        self.probes += 1
        key = self.key(tokens, f"probe-{self.mode}-{self.probes}", salt)
        self.probe.lookup(key, 1).result(10)
        n = None
        while n is None:
            n = self.probe.query_prefetch_status(key.request_id).result(10)
        self.probe.free_lookup_locks(key, 1).result(10)
        self.probe.end_session(key.request_id).result(10)
        return n

    def stored(self, tokens, chunks: int, salt: str = "") -> None:
        """Waits until the server tells what it acknowledged: the reference takes a moment."""
        end = time.monotonic() + 10
        while (n := self.found(tokens, salt)) < chunks:
            if time.monotonic() > end:
                raise TimeoutError(f"{n} chunks of {chunks} are found")
            time.sleep(0.02)

    def settle(self) -> None:
        """Ends the engines that a case made for itself."""
        trace.settle()
        for e in self.engines:
            e.close()
        self.engines.clear()

    def ask(self, what: str) -> None:
        print("ASK", what, flush=True)
        sys.stdin.readline()


@case
def start(b: Bench):
    b.begin()
    b.a = b.prompt("a", 600)
    b.say("blocks", b.e.scheduler.kv_cache_config.num_blocks, "layout", b.e.vllm.cache_config.kv_cache_layout)


# The names of cases that connector/testdata/rows.txt has too are told apart by rows_test.go.
@case
def cold(b: Bench):
    b.one(b.e, "cold", b.a, 3)
    b.stored(b.a, 2)


@case
def warm(b: Bench):
    b.e.forget()
    b.one(b.e, "warm", b.a, 3)


@case
def warm_and_304_in_the_engine(b: Bench):
    b.e.forget()
    b.one(b.e, "local", b.a[:304])
    b.one(b.e, "rest", b.a, 3)


@case
def all_in_the_engine(b: Bench):
    b.one(b.e, "longer", b.a + b.prompt("tail", 100))


@case
def partial(b: Bench):
    b.e.forget()
    tokens = b.a[:256] + b.prompt("other tail", 400)
    b.one(b.e, "partial", tokens)
    b.stored(tokens, 2)


@case
def prompt_of_exactly_512(b: Bench):
    b.e.forget()
    b.one(b.e, "exact", b.a[:512])


@case
def prompt_of_100(b: Bench):
    b.one(b.e, "short", b.prompt("short", 100), 2)


@case
def second_turn(b: Bench):
    tokens = b.prompt("turn", 500)
    b.one(b.e, "turn-1", tokens, 40)
    b.stored(tokens, 1)
    b.e.forget()
    tokens = tokens + b.e.texts["turn-1"] + b.prompt("question", 60)
    b.one(b.e, "turn-2", tokens, 5)
    b.stored(tokens, 2)


@case
def another_salt(b: Bench):
    tokens = b.prompt("salted", 300)
    b.one(b.e, "salt-a", tokens, salt="a")
    b.stored(tokens, 1, "a")
    b.e.forget()
    b.one(b.e, "salt-b", tokens, salt="b")
    b.stored(tokens, 1, "b")
    b.e.forget()
    b.one(b.e, "salt-a-again", tokens, salt="a")
    b.say("without salt:", b.found(tokens))


@case
def parameters_of_a_request(b: Bench):
    tokens = b.prompt("parameters", 600)
    b.one(b.e, "limited", tokens, params={"lmcache.max_offload_tokens": 300, "lmcache.tag": "x"})
    b.stored(tokens, 1)
    b.e.forget()
    b.one(b.e, "counted", tokens, params={"cached_token_stats": True})
    b.say("params", sorted(b.e.params["counted"].items()))


@case
def chunked_prefill(b: Bench):
    e = b.engine("chunked", budget=304)
    b.one(e, "chunks", b.prompt("chunks", 600), 2)


@case
def decode_beyond_a_chunk(b: Bench):
    b.one(b.e, "decode", b.prompt("decode", 500), 30)


@case
def save_decode_cache(b: Bench):
    e = b.engine("saving", **{"lmcache.mp.save_decode_cache": True})
    tokens = b.prompt("saved", 500)
    b.one(e, "saved", tokens, 30)
    b.stored(tokens + e.texts["saved"][:12], 2)


@case
def eager_prefetch(b: Bench):
    e = b.engine("eager", **{"lmcache.mp.eager_prefetch": True})
    b.one(e, "eager", b.a, 2)


@case
def several_at_once(b: Bench):
    """Requests that are added at once: two hits, two misses. Their steps and blocks are a race."""
    e = b.engine("busy")
    trace.by_request(True)
    prompts = {"s1": b.a, "s2": b.prompt("chunks", 512) + b.prompt("s2", 30), "s3": b.prompt("s3", 600), "s4": b.prompt("s4", 280)}
    for name, tokens in prompts.items():
        e.add(name, tokens, 4)
    e.run(lambda: all(n in e.ended and n not in e.scheduler.requests for n in prompts))
    for name, tokens in prompts.items():
        b.told(e, name, tokens, 4)
    trace.by_request(False)


@case
def small_pool_of_the_engine(b: Bench):
    """The second request takes the blocks of the first one, whose pages come back from the server."""
    e = b.engine("small", blocks=60)
    first, second = b.prompt("first", 600), b.prompt("second", 700)
    for name, tokens in (("p1", first), ("p2", second), ("p1-again", first), ("p2-again", second)):
        b.one(e, name, tokens, 3)
        b.stored(tokens, 2)


@case
def preempt_and_resume(b: Bench):
    tokens = b.prompt("preempted", 600)
    r = b.e.add("preempted", tokens, 5)
    b.e.run(lambda: r.num_output_tokens >= 2)
    b.e.preempt_all()
    b.say("status", r.status.name)
    b.stored(tokens, 2)
    b.e.run(lambda: "preempted" in b.e.ended and "preempted" not in b.e.scheduler.requests)
    b.told(b.e, "preempted", tokens, 5)


@case
def abort_before_the_answer(b: Bench):
    b.e.add("abort-1", b.prompt("abort-1", 600))
    b.ask("pause")
    with set_current_vllm_config(b.e.vllm):
        b.e.scheduler.schedule()
    b.e.abort("abort-1")
    b.ask("continue")
    for _ in range(3):
        b.e.step()


@case
def abort_after_the_hit(b: Bench):
    """The blocks are not given out yet: the connector alone knows of the hit."""
    b.e.forget()
    r = b.e.add("abort-2", b.a)
    end = time.monotonic() + 10
    while b.e.scheduler.connector.get_num_new_matched_tokens(r, 0)[0] is None and time.monotonic() < end:
        time.sleep(0.002)
    b.e.abort("abort-2")
    for _ in range(3):
        b.e.step()
    b.say("free blocks", b.e.free())


@case
def abort_while_running(b: Bench):
    tokens = b.prompt("abort-3", 600)
    r = b.e.add("abort-3", tokens, 50)
    b.e.run(lambda: r.num_output_tokens >= 2)
    b.e.abort("abort-3")
    b.e.run(lambda: "abort-3" not in b.e.scheduler.requests)
    b.stored(tokens, 2)
    b.say("free blocks", b.e.free())


def loading(b: Bench, e: Engine, name: str, tokens):
    """Adds a request and steps until its load has begun."""
    r = e.add(name, tokens, 2)
    e.run(lambda: r.status == RequestStatus.WAITING_FOR_REMOTE_KVS or name in e.ended, pause=0)
    return r


def outcome(b: Bench, e: Engine, name: str, until) -> None:
    """Steps on, and tells which of vLLM's assertions ended it, if one did."""
    try:
        e.run(until)
        b.say(name, "ended:", e.ended.get(name), "| text", len(e.texts[name]), "| free blocks", e.free())
    except AssertionError:
        at = traceback.extract_tb(sys.exc_info()[2])[-1]
        b.say(name, "vLLM stops: assert", at.line.removeprefix("assert "), "in", at.name)


@case
def abort_while_loading_as_consumer(b: Bench):
    e = b.engine("consumer", role="kv_consumer")
    loading(b, e, "abort-4", b.a)
    e.abort("abort-4")
    outcome(b, e, "abort-4", lambda: "abort-4" not in e.scheduler.requests and e.free() == 511)


@case
def abort_while_loading_and_storing(b: Bench):
    e = b.engine("both")
    loading(b, e, "abort-5", b.a)
    e.abort("abort-5")
    outcome(b, e, "abort-5", lambda: "abort-5" not in e.scheduler.requests and e.free() == 511)


@case
def consumer_stores_nothing(b: Bench):
    e = b.engine("reader", role="kv_consumer")
    tokens = b.prompt("consumed", 600)
    b.one(e, "consumed", tokens, 2)
    b.say("found", b.found(tokens))
    b.one(e, "consumed-hit", b.a, 2)


def lose(b: Bench, name: str, tokens):
    """Takes from the server what a request is about to load."""
    def act():
        b.probe.free_lookup_locks(b.key(tokens, name), 1).result(10)
        end = time.monotonic() + 10
        while b.found(tokens) and time.monotonic() < end:
            b.probe.clear(False).result(10)
            time.sleep(0.02)
        b.say("left", b.found(tokens))
    return act


def failed_load(b: Bench, role: str, policy: str):
    name = f"failed-{role}-{policy}"
    tokens = b.prompt(name, 600)
    b.one(b.e, name + "-before", tokens)
    b.stored(tokens, 2)
    e = b.engine(name, role=role, policy=policy)
    trace.take()
    e.interfere = lose(b, name, tokens)
    e.add(name, tokens, 2)
    outcome(b, e, name, lambda: name in e.ended and name not in e.scheduler.requests)
    if policy == "recompute":
        b.told(e, name, tokens, 2)
    if policy == "recompute" and role == "kv_both":
        b.stored(tokens, 2)
        e.forget()
        b.one(e, name + "-after", tokens, 2)


@case
def failed_load_recomputed(b: Bench):
    failed_load(b, "kv_both", "recompute")


@case
def failed_load_recomputed_by_consumer(b: Bench):
    failed_load(b, "kv_consumer", "recompute")


@case
def failed_load_under_fail(b: Bench):
    """vLLM stops here, with any server: it hears twice of a request that has ended."""
    failed_load(b, "kv_both", "fail")


@case
def failed_load_under_fail_by_consumer(b: Bench):
    failed_load(b, "kv_consumer", "fail")


@case
def kv_events(b: Bench):
    """What a router hears of the server, by way of the engine."""
    e = b.engine("publisher", events=True)
    kept, lost = b.prompt("kept", 600), b.prompt("told", 700)
    b.one(e, "kept", kept)
    b.stored(kept, 2)
    b.one(e, "told", lost)
    b.stored(lost, 2)
    tokens = {kept[0], kept[CHUNK], lost[0], lost[CHUNK]}  # the log has older records too
    end = time.monotonic() + 1.5
    while time.monotonic() < end and len(cpu_events(e, tokens)) < 4:
        e.step()
        time.sleep(0.02)
    while b.found(kept) + b.found(lost):
        b.probe.clear(False).result(10)  # nobody holds anything
    end = time.monotonic() + 1.5
    while time.monotonic() < end and not any(x.startswith("BlockRemoved") for x in cpu_events(e, tokens)):
        e.step()
        time.sleep(0.02)
    for x in cpu_events(e, tokens):
        b.say(x)
    b.one(e, "told again", lost)


def cpu_events(e: Engine, tokens: set[int]) -> list[str]:
    """What was published of chunks that begin with these tokens."""
    out, of = [], set()
    for x in e.published:
        if getattr(x, "medium", None) != "CPU":
            continue
        hashes = {str(h) for h in x.block_hashes}
        if type(x).__name__ == "BlockStored" and x.token_ids[0] in tokens:
            of |= hashes
            out.append(f"BlockStored {min(hashes)[:8]} behind {str(x.parent_block_hash)[:8]}, {len(x.token_ids)} tokens from {x.token_ids[0]}, block {x.block_size}")
        elif type(x).__name__ == "BlockRemoved" and hashes & of:
            out.append(f"BlockRemoved {', '.join(sorted(h[:8] for h in hashes & of))}")
    return out


@case
def stop(b: Bench):
    b.e.close()


@case
def server_dies_before_a_load(b: Bench):
    """Heartbeats are missed, the load is given up and recomputed; later the worker registers again."""
    tokens = b.prompt("lost", 600)
    e = b.engine("survivor", **{"lmcache.mp.mq_timeout": 3, "lmcache.mp.heartbeat_interval": 1})
    b.one(e, "lost-before", tokens)
    b.stored(tokens, 2)
    e.forget()
    e.interfere = lambda: b.ask("kill")
    for operation in ("report_block_allocation", "end_session"):  # until the scheduler misses its own heartbeat
        trace.without(operation, "lost")
    e.add("lost", tokens, 2)
    e.run(lambda: "lost" in e.ended and "lost" not in e.scheduler.requests)
    b.told(e, "lost", tokens, 2)
    adapters = [e.worker.worker_adapter, e.scheduler.connector.scheduler_adapter]
    e.run(lambda: not any(a.is_healthy for a in adapters), pause=0.05)
    e.forget()
    b.one(e, "while-dead", tokens, 2)
    b.ask("start")
    e.run(lambda: all(a.is_healthy for a in adapters), pause=0.05)
    e.forget()
    b.one(e, "after", tokens, 2)
    b.stored(tokens, 2)
    e.forget()
    b.one(e, "after-hit", tokens, 2)


@case
def server_restarts_between_heartbeats(b: Bench):
    """No heartbeat is missed, so nobody but the server can tell the worker to register again."""
    tokens = b.prompt("restarted", 600)
    e = b.engine("patient", **{"lmcache.mp.heartbeat_interval": 3, "lmcache.mp.mq_timeout": 3})
    b.one(e, "before", tokens)
    b.stored(tokens, 2)
    b.ask("replace")
    begun = len(trace.pings("patient worker"))
    e.run(lambda: len(trace.pings("patient worker")) >= begun + 3, pause=0.05)
    b.say("pings of the worker were answered", *dict.fromkeys(trace.pings("patient worker")))
    for name in ("restarted-1", "restarted-2"):
        e.forget()
        try:
            b.one(e, name, tokens, 2)
        except TimeoutError as x:
            b.say(name, "vLLM stops:", type(x).__name__)
            return
        time.sleep(0.5)


def main() -> None:
    args = argparse.ArgumentParser()
    args.add_argument("--url", required=True)
    args.add_argument("--mode", default="lmcache_driven,engine_driven")
    args.add_argument("--only", default="", help="comma-separated names of cases; start is always run")
    args = args.parse_args()
    only = set(filter(None, args.only.split(",")))
    for mode in args.mode.split(","):
        b = Bench(args.url, mode)
        for f in CASES:
            if only and f.__name__ not in only | {"start", "stop"}:
                continue
            begin, error = time.monotonic(), ""
            try:
                f(b)
                b.settle()
            except Exception:  # noqa: BLE001
                error = traceback.format_exc()
            print("CASE", json.dumps({
                "case": f.__name__.replace("_", " "), "mode": mode, "error": error, "notes": b.notes, "trace": trace.take(),
                "seconds": round(time.monotonic() - begin, 2),
            }), flush=True)
            b.notes = []
    os._exit(0)  # nothing of a stopped vLLM is torn down


if __name__ == "__main__":
    main()
