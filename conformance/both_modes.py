#!/usr/bin/env python3
"""The clients of soak.py, half of them with KV caches that the server copies out of and into.

    python both_modes.py --url tcp://127.0.0.1:6555 --http http://127.0.0.1:8080 --seconds 20 --clients 16 --set-bytes N

All of them store and retrieve the chunks of one model: every second client is
engine-driven, and the server-driven ones have their tensors with tokens before
heads (NHD) or heads before tokens (HND) in turn, so that objects of every order
are read by clients of every other. A killed client leaves its tensors in
/dev/shm; they are removed for it.
"""

from __future__ import annotations

import glob
import os
import random

import soak
from client import BLOCK, Worker, connect  # sets the log level: before lmcache

import torch
from lmcache.v1.multiprocess.transfer_context.worker_transfer import LMCacheDrivenTransferContext

KINDS = ("engine", "NHD", "engine", "HND")


class CopiedWorker(Worker):
    """A worker whose blocks the server copies."""

    def __init__(self, *args, layout, heads, head_dim, **more):
        self.layout, self.dims = layout, (heads, head_dim)
        super().__init__(*args, heads=heads, head_dim=head_dim, **more)

    def register(self) -> None:
        heads, dim = self.dims
        blocks = 1 + len(self.src) + len(self.dst)  # block 0 is the engine's null block
        inner = (BLOCK, heads, dim) if self.layout == "NHD" else (heads, BLOCK, dim)
        self.tensors = {n: torch.zeros((2, blocks, *inner), dtype=torch.bfloat16) for n in self.kv}
        self.ctx = LMCacheDrivenTransferContext(self.instance, self.c)
        self.ctx.register(self.tensors, self.model, self.world, self.per_chunk, self.timeout,
                          layout_hints={"kv_layout": self.layout})
        # Registering has moved the tensors into shared memory: views come after it.
        self.kv = {
            n: (t if self.layout == "NHD" else t.permute(0, 1, 3, 2, 4))[:, 1:] for n, t in self.tensors.items()
        }

    def store(self, ids, rid, first=0, last=None, **more) -> bool:
        key = self.key(ids, rid, first, last, **more)
        blocks = [b + 1 for b in self.fill(ids, first, len(ids) if last is None else last)]
        return bool(self.ctx.submit_store(rid, key, self.tensors, [blocks], self.ctx.create_recorded_event(),
                                          self.per_chunk).result(self.timeout))

    def retrieve(self, ids, rid, first=0, last=None, **more) -> bool:
        key = self.key(ids, rid, first, last, **more)
        last = len(ids) if last is None else last
        blocks = [b + 1 for b in self.zero(last - first)]
        if not self.ctx.submit_retrieve(rid, key, self.tensors, [blocks], self.ctx.create_recorded_event(),
                                        self.per_chunk, skip_first_n_tokens=0).result(self.timeout):
            return False
        self.verify(ids, first, last)
        return True

    def close(self) -> None:
        super().close()
        tidy(os.getpid())  # a soak client ends without the interpreter's clean-up


def tidy(pid: int) -> None:
    for name in glob.glob(f"/dev/shm/lmcache_kv_{pid}_*"):
        os.unlink(name)


class Client(soak.Client):
    def __init__(self, a, n, run):
        kind = KINDS[n % len(KINDS)]
        if kind == "engine":
            super().__init__(a, n, run)
            return
        self.a, self.run, self.n = a, run, n
        self.rng = random.Random(f"{a.seed}/{n}")
        self.worker = CopiedWorker(connect(a.url), a.model, soak.CHUNK, soak.PER_PROMPT, timeout=30.0,
                                   layout=kind, **soak.SHAPE)
        self.scheduler = connect(a.url)
        self.count = soak.collections.Counter()


kill = os.kill


def kill_and_tidy(pid, sig) -> None:
    kill(pid, sig)
    tidy(pid)


if __name__ == "__main__":
    soak.Client = Client
    os.kill = kill_and_tidy
    soak.main()
