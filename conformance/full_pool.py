#!/usr/bin/env python3
"""A full L1: streams of stores over twice the pool, of one size and of mixed sizes.

    python full_pool.py --url tcp://127.0.0.1:6555 --pool-bytes 536870912

Needs a server with a shared memory pool of --pool-bytes and chunk size 256. A
vLLM worker takes a store for which it gets no slots for one that was cached
already, so refusals are counted here by the slots granted; what was kept is
found by looking the newest prompts up again, the newest first.
"""

from __future__ import annotations

import argparse

from client import Run, Worker, check, connect

SIZES = {  # objects of 256 tokens in bfloat16
    "1 MiB": dict(layers=8, heads=1, head_dim=128, per_prompt=4),
    "32 MiB": dict(layers=32, heads=8, head_dim=128, per_prompt=2),
}


class Stream:
    """A worker that keeps storing new prompts of one object size."""

    def __init__(self, run, client, name):
        shape = dict(SIZES[name])
        n = shape.pop("per_prompt")
        self.run, self.name, self.per_prompt = run, name, n
        self.worker = Worker(client, f"conf/{run.salt}-{name.replace(' ', '')}", 256, n, timeout=60.0, **shape)
        self.prompts: list[list[int]] = []
        self.refused = 0

    def store_one(self) -> int:
        """Stores the next prompt; returns its bytes."""
        n, k = len(self.prompts), self.per_prompt
        ids, rid = list(range(n * k + 1, n * k + 1 + k)), self.run.request()
        check(self.worker.store(ids, rid) is True, "a store answered False")
        check(self.worker.granted is not None, "no shared memory pool")
        self.refused += k - self.worker.granted
        self.worker.end(rid)
        self.prompts.append(ids)
        return k * self.worker.chunk_bytes

    def store(self, total: int) -> str:
        done = 0
        while done < total:
            done += self.store_one()
        check(self.refused == 0, f"{self.refused} of {len(self.prompts) * self.per_prompt} chunks were refused")
        return f"{done >> 20} MiB"


def audit(run, newest, limit: int, verify_every: int) -> str:
    """Looks up (stream, prompt) pairs until limit bytes were found; all must be there."""
    found = 0
    for n, (stream, ids) in enumerate(newest):
        if found >= limit:
            break
        w, rid = stream.worker, run.request()
        hit = w.lookup(ids, rid)
        check(hit == len(ids), f"{hit} of {len(ids)} chunks left of prompt {n} from the newest "
              f"({stream.name}), behind {found >> 20} MiB that were kept")
        if n % verify_every == 0:
            check(w.retrieve(ids, rid), "the retrieve after a hit failed")
        else:
            check(w.free(ids, rid).result(w.timeout) is None)
        w.end(rid)
        found += len(ids) * w.chunk_bytes
    return f"the newest {found >> 20} MiB"


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--url", required=True)
    ap.add_argument("--pool-bytes", type=int, required=True)
    ap.add_argument("--verbose", action="store_true")
    a = ap.parse_args()
    run = Run(verbose=a.verbose)
    client = connect(a.url)
    small, big = Stream(run, client, "1 MiB"), Stream(run, client, "32 MiB")
    # The watermark loop keeps headroom: at its defaults it may stop at 64 % of
    # the pool. Half of the pool is what must be there at any time.
    kept = a.pool_bytes // 2

    def newest(stream):
        return [(stream, ids) for ids in reversed(stream.prompts)]

    def phase(stream, title):
        run.step(f"{title}: twice the pool, nothing refused", lambda: stream.store(2 * a.pool_bytes))
        run.step(f"{title}: the newest are all there, byte exact",
                 lambda: audit(run, newest(stream), kept, 8 if stream is small else 2))

    phase(small, "1 MiB objects")
    phase(big, "then 32 MiB objects")
    phase(small, "back to 1 MiB objects")

    order = []

    def mixed():
        stored = 0
        while stored < 2 * a.pool_bytes:
            for stream, count in ((small, 8), (big, 1)):
                for _ in range(count):
                    stored += stream.store_one()
                    order.append((stream, stream.prompts[-1]))
        refused = small.refused + big.refused
        check(refused == 0, f"{refused} chunks were refused")
        return f"{stored >> 20} MiB"

    run.step("both in turn: twice the pool, nothing refused", mixed)
    run.step("both in turn: the newest are all there, byte exact",
             lambda: audit(run, list(reversed(order)), kept, 4))
    run.step("clear(force) empties the pool", lambda: check(client.clear(force=True).result(60.0) is None))
    run.step("nothing is found after it", lambda: check(
        all(s.worker.hits(s.prompts[-1], run.request()) == 0 for s in (small, big))))
    run.finish()


if __name__ == "__main__":
    main()
