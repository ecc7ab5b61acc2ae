#!/usr/bin/env python3
"""Many real clients on a pool that holds a third of what they use: every byte right, no lease left.

    python soak.py --url tcp://127.0.0.1:6555 --http http://127.0.0.1:8080 --seconds 20 --clients 16 --set-bytes N

Each client is a process with a worker and a scheduler socket of its own. They
share prompts, so that they store the same keys at once and meet each other's
eviction; a prompt is two chunks of its family and two of its own. Besides the
ordinary cycle some requests are aborted, freed in parts or ended from the other
socket before the retrieve, and --kills clients are killed and replaced.

The server should run with a short --l1-read-ttl-seconds (10): what an aborted
request or a killed client held is then given back soon after the end.
"""

from __future__ import annotations

import argparse
import collections
import multiprocessing as mp
import os
import random
import signal
import time
import traceback

from client import Run, Worker, check, connect, eventually, l1_status

CHUNK, PER_PROMPT = 16, 4
SHAPE = dict(layers=8, heads=4, head_dim=32)  # 64 KiB a chunk of 16 tokens
CHUNK_BYTES = 2 * 8 * CHUNK * 4 * 32 * 2


class Client:
    def __init__(self, a, n, run):
        self.a, self.run, self.n = a, run, n
        self.rng = random.Random(f"{a.seed}/{n}")
        self.worker = Worker(connect(a.url), a.model, CHUNK, PER_PROMPT, timeout=30.0, **SHAPE)
        self.scheduler = connect(a.url)
        self.count: collections.Counter = collections.Counter()

    def prompt(self):
        """A prompt of the working set; some are asked for far more often."""
        p = min(int(self.rng.random() ** 2 * self.a.prompts), self.a.prompts - 1)
        family = p // 4
        return [family * 2 + 1, family * 2 + 2, 1_000_000 + 2 * p, 1_000_001 + 2 * p]

    def cycle(self) -> None:
        ids, rid, dice = self.prompt(), f"{self.n}-{self.run.request()}", self.rng.random()
        w, s = self.worker, self.scheduler
        key = w.key(ids, rid).no_worker_id_version()
        check(s.lookup(key, 1).result(30.0) is None)
        found = time.monotonic()
        hit = s.query_prefetch_status(rid).result(30.0)
        if hit is None:
            hit = s.wait_prefetch_status(rid, 30.0).result(40.0)
        check(hit is not None and 0 <= hit <= len(ids), f"hit {hit}")
        self.count["hit"] += hit
        self.count["missed"] += len(ids) - hit
        if hit and dice < 0.05:  # aborted, with or without a free
            if dice < 0.03:
                s.free_lookup_locks(key, 1)
            s.end_session(rid)
            self.count["aborted"] += 1
            return
        ended, first = None, 0
        if hit:
            if dice < 0.15 and hit > 1:  # the engine has the first chunk itself
                part = w.key(ids, rid, 0, 1).no_worker_id_version()
                s.free_lookup_locks(part, 1)
                first = 1
            if 0.15 <= dice < 0.25:  # END_SESSION may come first
                ended = s.end_session(rid)
            if w.retrieve(ids, rid, first, hit):
                self.count["verified"] += hit - first
            else:
                late = time.monotonic() - found
                check(late > self.a.promise, f"a hit of {hit} chunks could not be retrieved {late:.2f} s later")
                self.count["late"] += 1
        if hit < len(ids):
            if w.store(ids, rid, first=hit):
                self.count["stored"] += len(ids) - hit
            else:
                self.count["refused"] += 1
        if ended is None:
            ended = s.end_session(rid)
        check(ended.result(30.0) is None)
        self.count["cycles"] += 1


def client_main(a, n, ready, results) -> None:
    try:
        client = Client(a, n, Run())
        ready.set()
        # time.monotonic is one clock for all processes of a machine.
        while time.monotonic() < a.end.value:
            client.cycle()
        client.worker.close()
        results.put((n, dict(client.count), ""))
    except BaseException:  # noqa: BLE001
        results.put((n, {}, traceback.format_exc(limit=4)))
    results.close()
    results.join_thread()
    os._exit(0)


def drain(results, into) -> None:
    while not results.empty():
        into.append(results.get())


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--url", required=True)
    ap.add_argument("--http", required=True)
    ap.add_argument("--seconds", type=float, default=20.0)
    ap.add_argument("--clients", type=int, default=16)
    ap.add_argument("--set-bytes", type=int, required=True, help="bytes of the whole working set")
    ap.add_argument("--kills", type=int, default=2, help="clients to kill -9 on the way, each replaced")
    ap.add_argument("--promise", type=float, default=8.0, help="seconds for which a hit must be honoured")
    ap.add_argument("--release", type=float, default=25.0, help="seconds after which no lease may be left")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--verbose", action="store_true")
    a = ap.parse_args()
    run = Run(verbose=a.verbose)
    a.model = f"conf/{run.salt}-soak"
    # A family of four prompts has two chunks in common and two for each.
    a.prompts = max(4, a.set_bytes // CHUNK_BYTES * 4 // 10)
    ctx = mp.get_context("fork")
    a.end = ctx.Value("d", time.monotonic() + 120.0, lock=False)  # a killed client must not keep a lock
    results, got = ctx.Queue(), []
    rng = random.Random(a.seed)

    def spawn(n):
        ready = ctx.Event()
        p = ctx.Process(target=client_main, args=(a, n, ready, results))
        p.start()
        return p, ready

    clients = {n: spawn(n) for n in range(a.clients)}

    def started():
        for n, (p, ready) in clients.items():
            check(ready.wait(60.0), f"client {n} did not start; {[e for _, _, e in got]}")
        a.end.value = time.monotonic() + a.seconds
        return f"{a.clients} clients, {a.prompts} prompts"

    if run.step("all clients register", started):
        pause, following = a.seconds / (a.kills + 1), a.clients
        for _ in range(a.kills):
            time.sleep(pause)
            victim = rng.choice(sorted(clients))
            p, _ = clients.pop(victim)
            os.kill(p.pid, signal.SIGKILL)
            p.join(10.0)
            clients[following] = spawn(following)
            following += 1
    end = a.end.value + 60.0
    while len(got) < len(clients) and time.monotonic() < end and any(p.is_alive() for p, _ in clients.values()):
        drain(results, got)
        time.sleep(0.05)
    for p, _ in clients.values():
        p.join(5.0)
        if p.is_alive():
            p.kill()
    drain(results, got)

    total: collections.Counter = collections.Counter()
    for _, counted, _ in got:
        total.update(counted)

    def all_done():
        errors = [f"client {n}: {e}" for n, _, e in got if e]
        check(not errors, f"{len(errors)} clients failed; the first: {errors[:1]}")
        check(len(got) == len(clients), f"{len(clients) - len(got)} clients did not end")
        return ", ".join(f"{k} {v}" for k, v in sorted(total.items()))

    run.step("every client ran to the end, every byte right", all_done)

    def busy():
        check(total["verified"] > 0 and total["missed"] > 0 and total["stored"] > 0, f"too little happened: {total}")
        check(total["refused"] == 0, f"{total['refused']} stores were refused")
        check(total["late"] == 0 or total["late"] * 100 < total["cycles"], f"{total['late']} hits expired")

    run.step("hits, misses and evictions happened, no store was refused", busy)

    def released():
        last = {}

        def none_held():
            last.update(l1_status(a.http))
            return last["read_locked_count"] == 0 and last["staging_object_count"] == 0

        try:
            eventually(none_held, a.release, "leases or reservations are left", pause=0.25)
        except AssertionError as e:
            raise AssertionError(f"{e}: {last}") from None
        return f"{last['total_object_count']} objects"

    run.step("no lease and no reservation is left", released)

    def emptied():
        c = connect(a.url)
        check(c.clear(force=False).result(30.0) is None)
        got = l1_status(a.http)
        check(got["total_object_count"] == 0 and got["memory_used_bytes"] == 0,
              f"left after clear: {got['total_object_count']} objects, {got['memory_used_bytes']} bytes")
        c.close()

    run.step("clear leaves an empty pool", emptied)
    run.finish()


if __name__ == "__main__":
    main()
