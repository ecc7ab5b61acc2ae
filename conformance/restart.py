#!/usr/bin/env python3
"""vLLM's adapters under load while the server is killed, restarted and stopped.

    python restart.py --url tcp://127.0.0.1:6555

Each engine is the scheduler adapter and the worker adapter of the unmodified
vLLM integration, with their heartbeats, in a thread that keeps sending requests.
What happens to the server is done by whoever started this script: a line

    ASK what

on stdout asks for it (kill-and-restart, kill, start, terminate), and the script
goes on when a line comes on stdin. The server wants chunk size 16 and a pool.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
import traceback

import zmq

from client import BLOCK, HINTS, Cache, Run, check, eventually, prompt_tokens

from lmcache.integration.vllm.vllm_multi_process_adapter import (
    LMCacheMPSchedulerAdapter,
    LMCacheMPWorkerAdapter,
    LoadStoreOp,
    ParallelStrategy,
)

CHUNKS, PROMPTS = 4, 12
ALONE = ParallelStrategy(mla_only=False, vllm_world_size=1, vllm_worker_id=0, tp_size=1, pp_size=1, n_servers=1)
SHAPE = dict(layers=2, heads=2, head_dim=32)
HEARTBEAT, TIMEOUT = 1.0, 4.0


class Engine(threading.Thread):
    """One engine; counts what its requests came to."""

    def __init__(self, url, model, n, chunk):
        super().__init__(daemon=True, name=f"engine-{n}")
        context = zmq.Context()
        context.setsockopt(zmq.LINGER, 0)
        kept = dict(mq_timeout=TIMEOUT, heartbeat_interval=HEARTBEAT)
        self.scheduler = LMCacheMPSchedulerAdapter([url], context, model, BLOCK, ALONE, **kept)
        self.worker = LMCacheMPWorkerAdapter(url, context, model, BLOCK, ALONE, **kept)
        self.cache = Cache(chunk, CHUNKS, **SHAPE)
        self.worker.register_kv_caches(self.cache.kv, layout_hints=HINTS)
        self.n, self.requests, self.stop = n, 0, threading.Event()
        self.hits = self.stores = self.lost = 0
        self.longest = 0.0
        self.error = ""

    def run(self):
        try:
            while not self.stop.is_set():
                begin = time.monotonic()
                self.request()
                self.longest = max(self.longest, time.monotonic() - begin)
                self.stop.wait(0.005)
        except BaseException:  # noqa: BLE001
            self.error = traceback.format_exc(limit=6)

    def request(self):
        """One request: lookup, retrieve what hits, store what does not."""
        self.requests += 1
        rid = f"engine-{self.n}-{self.requests}"
        p = self.requests % PROMPTS
        ids = [self.n * 1000 + p * CHUNKS + i for i in range(CHUNKS)]
        tokens = list(prompt_tokens(ids, self.cache.chunk))
        self.scheduler.maybe_submit_lookup_request(rid, tokens)
        end = time.monotonic() + TIMEOUT + 5.0
        while (found := self.scheduler.check_lookup_result(rid)) is None:
            check(time.monotonic() < end, "a lookup hangs")
            time.sleep(0.002)
        hit = found // self.cache.chunk
        if hit:
            op = LoadStoreOp(token_ids=tokens, block_ids=[self.cache.zero(hit)], start=0, end=found)
            self.worker.submit_retrieve_request(rid, op, None)
            _, received = self.worker.get_finished(set())
            check(rid in received, "a finished retrieve was not reported")
            if self.worker.get_block_ids_with_load_errors():
                self.lost += 1
            else:
                self.cache.verify(ids, 0, hit)
                self.hits += hit == CHUNKS
        if hit < CHUNKS:
            op = LoadStoreOp(token_ids=tokens, block_ids=[self.cache.fill(ids, hit, CHUNKS)], start=found,
                             end=len(tokens))
            try:
                self.worker.submit_store_request(rid, op, None)
                self.stores += 1
            except TimeoutError:
                self.lost += 1
            self.worker.get_finished({rid})
        self.scheduler.end_session(rid)
        self.scheduler.cleanup_lookup_result(rid)


def ask(what: str) -> None:
    print(f"ASK {what}", flush=True)
    check(sys.stdin.readline(), f"nobody answered {what}")


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--url", required=True)
    ap.add_argument("--engines", type=int, default=3)
    ap.add_argument("--chunk", type=int, default=16)
    ap.add_argument("--verbose", action="store_true")
    a = ap.parse_args()
    run = Run(verbose=a.verbose)
    engines: list[Engine] = []

    def healthy():
        for e in engines:
            check(not e.error, f"{e.name}: {e.error}")

    def serving(seconds: float) -> str:
        """Every engine must store and then hit, from now on."""
        before = [(e.stores, e.hits) for e in engines]
        begin = time.monotonic()

        def all_hit():
            healthy()
            return all(e.stores > s and e.hits >= h + 2 * PROMPTS for e, (s, h) in zip(engines, before))

        eventually(all_hit, seconds, "not every engine stores and hits")
        return f"after {time.monotonic() - begin:.1f} s"

    def start():
        model = f"conf/{run.salt}-engines"
        engines.extend(Engine(a.url, model, n, a.chunk) for n in range(a.engines))
        for e in engines:
            e.start()
        return serving(20.0)

    if not run.step("engines are under load", start):
        run.finish()

    def fast():
        ask("kill-and-restart")
        return serving(20.0)

    run.step("killed and restarted at once: every engine stores and hits again by itself", fast)

    def slow():
        ask("kill")
        eventually(lambda: not any(e.worker.is_healthy or e.scheduler.is_healthy for e in engines), 15.0,
                   "the engines did not notice the outage")
        ask("start")
        return serving(20.0)

    run.step("restarted after an outage: every engine stores and hits again by itself", slow)

    def orderly():
        ask("terminate")
        ask("start")
        return serving(20.0)

    run.step("terminated under load and started again: the same", orderly)

    def all_right():
        healthy()
        for e in engines:
            e.stop.set()
        for e in engines:
            e.join(20.0)
            check(not e.is_alive(), f"{e.name} hangs")
        healthy()
        # No request may have waited longer than the client's own timeouts of
        # one store, one retrieve with its commit, and one lookup.
        longest = max(e.longest for e in engines)
        check(longest < 5 * TIMEOUT, f"a request took {longest:.1f} s")
        return (f"{sum(e.requests for e in engines)} requests, {sum(e.lost for e in engines)} lost a transfer, "
                f"longest {longest:.1f} s")

    run.step("no wrong byte, no request that hangs", all_right)
    run.finish()


if __name__ == "__main__":
    main()
