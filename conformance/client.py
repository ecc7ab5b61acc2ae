"""What the conformance scripts share: the real lmcache 0.5.6 client, steps, and a worker.

Every script prints one line per step,

    PASS name [note] (ms)      FAIL name [reason] (ms)      SKIP name [reason] (ms)

which the Go tests of this folder turn into subtests, and ends with exit code 0
when nothing failed, 1 when a step failed, 2 when the server could not be reached.
All waits are bounded.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
import urllib.request
import uuid
import zlib

os.environ.setdefault("LMCACHE_LOG_LEVEL", "ERROR")
os.environ.setdefault("LMCACHE_DISABLE_BANNER", "1")
os.environ.setdefault("LMCACHE_TRACK_USAGE", "false")
os.environ.setdefault("PYTHONWARNINGS", "ignore")

import warnings  # noqa: E402

warnings.simplefilter("ignore")

import torch  # noqa: E402
import zmq  # noqa: E402

from lmcache.v1.multiprocess.custom_types import IPCCacheServerKey  # noqa: E402
from lmcache.v1.multiprocess.transfer_context.shm import EngineDrivenContextShm  # noqa: E402
from lmcache.v1.multiprocess.transfer_context.worker_transfer import (  # noqa: E402
    EngineDrivenTransferContext,
)
from lmcache.v1.multiprocess.transport.factory import RequestClientFactory  # noqa: E402

torch.set_num_threads(1)  # the servers need the cores

BLOCK = 16  # tokens per engine block
HINTS = {"kv_layout": "NHD"}


class Skip(Exception):
    """Raised by a step that cannot run here; its text is the reason."""


class Run:
    """Runs steps, prints their verdicts and counts them."""

    def __init__(self, timeout: float = 10.0, verbose: bool = False) -> None:
        self.timeout = timeout
        self.verbose = verbose
        self.passed = self.failed = self.skipped = 0
        self.salt = uuid.uuid4().hex[:8]  # fresh keys on every run
        self._requests = 0

    def step(self, name, fn) -> bool:
        begin = time.perf_counter()
        try:
            note, tag = fn(), "PASS"
            self.passed += 1
        except Skip as e:
            note, tag = str(e), "SKIP"
            self.skipped += 1
        except KeyboardInterrupt:
            raise
        except BaseException as e:  # noqa: BLE001
            note, tag = f"{type(e).__name__}: {e}", "FAIL"
            self.failed += 1
            if self.verbose:
                traceback.print_exc()
        ms = (time.perf_counter() - begin) * 1e3
        note = f" [{note}]" if note else ""
        print(f"{tag} {name}{note} ({ms:.1f} ms)", flush=True)
        return tag == "PASS"

    def request(self) -> str:
        """A request id that nobody else uses."""
        self._requests += 1
        return f"conf-{self.salt}-{self._requests}"

    def finish(self) -> None:
        """Prints the sum and ends the process; never returns.

        Views of the shared memory pool may still be alive, so the interpreter
        is not torn down.
        """
        print(f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped", flush=True)
        sys.stdout.flush()
        os._exit(1 if self.failed else 0)


def check(cond, msg="condition failed") -> None:
    if not cond:
        raise AssertionError(msg)


def eventually(fn, seconds: float, what: str, pause: float = 0.05):
    """Calls fn until it returns something true; at most for the given time."""
    end = time.monotonic() + seconds
    while True:
        got = fn()
        if got:
            return got
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not within {seconds:g} s")
        time.sleep(pause)


def same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and torch.equal(
        a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def new_instance() -> int:
    """A worker's instance id, made as the vLLM adapter makes it."""
    return uuid.uuid4().int & ((1 << 63) - 1)


def connect(url: str, context: zmq.Context | None = None):
    """A client with a DEALER socket of its own."""
    if context is None:
        context = zmq.Context()
        context.setsockopt(zmq.LINGER, 0)
    return RequestClientFactory.create(url, context=context)


def status(http: str, timeout: float = 10.0) -> dict:
    with urllib.request.urlopen(f"{http}/status", timeout=timeout) as r:
        return json.load(r)


def l1_status(http: str) -> dict:
    return status(http)["storage_manager"]["l1_manager"]


def prompt_tokens(chunk_ids, chunk: int) -> tuple[int, ...]:
    """The tokens of a prompt whose chunks have these ids (ids below 2**24)."""
    out: list[int] = []
    for cid in chunk_ids:
        out.append(70000 + cid)
        out.extend((cid * 7 + i) % 128256 for i in range(1, chunk))
    return tuple(out)


def make_key(model, tokens, rid, start=0, end=None, worker=0, world=1, salt="", readers=1, configs=None):
    return IPCCacheServerKey(
        model_name=model, world_size=world, worker_id=worker, token_ids=tuple(tokens), start=start,
        end=len(tokens) if end is None else end, request_id=rid, cache_salt=salt,
        request_configs=configs, num_kv_readers=readers)


def lookup(client, key, timeout: float) -> int:
    """LOOKUP as the scheduler sends it, then the number of hit chunks."""
    check(client.lookup(key.no_worker_id_version(), 1).result(timeout) is None, "lookup must ack with None")
    end = time.monotonic() + timeout
    while True:
        hit = client.query_prefetch_status(key.request_id).result(timeout)
        if hit is not None:
            return hit
        check(time.monotonic() < end, "the lookup never finished")
        time.sleep(0.002)


class Cache:
    """An engine's paged KV cache in host memory.

    It has two halves: requests are stored out of the first one and retrieved
    into the second. Every byte of a chunk depends on the ids of all chunks up
    to it, on the layer and on the rank, so a piece of another object, an old
    version or a hole shows wherever it is.
    """

    def __init__(self, chunk, chunks, layers=3, heads=2, head_dim=8, rank=0):
        self.chunk, self.chunks, self.rank = chunk, chunks, rank
        self.per_chunk = chunk // BLOCK
        half = chunks * self.per_chunk
        self.src, self.dst = list(range(half)), list(range(half, 2 * half))
        self.kv = {
            f"layer.{i}": torch.zeros((2, 2 * half, BLOCK, heads, head_dim), dtype=torch.bfloat16)
            for i in range(layers)
        }
        self.chunk_bytes = 2 * layers * chunk * heads * head_dim * 2
        shape = (2, self.per_chunk, BLOCK, heads, head_dim)
        n = 2 * chunk * heads * head_dim
        self._ramp = (torch.arange(n, dtype=torch.int32) * 31).to(torch.int16).reshape(shape)

    def content(self, ids, i: int, layer: int) -> torch.Tensor:
        """What chunk i of the prompt holds in a layer, as 16-bit words."""
        seed = zlib.crc32(repr((tuple(ids[: i + 1]), layer, self.rank)).encode()) & 0xFFFF
        return self._ramp + (seed - 0x10000 if seed & 0x8000 else seed)

    def object(self, ids, i: int) -> torch.Tensor:
        """The whole object of chunk i: [2, layers, tokens, heads * head_dim]."""
        words = [self.content(ids, i, n).reshape(2, self.chunk, -1) for n in range(len(self.kv))]
        return torch.stack(words, dim=1).contiguous().view(torch.bfloat16)

    def fill(self, ids, first: int, last: int) -> list[int]:
        """Puts chunks [first, last) into the source half and returns their blocks."""
        for n, kv in enumerate(self.kv.values()):
            words = kv.view(torch.int16)
            for j, i in enumerate(range(first, last)):
                words[:, j * self.per_chunk:(j + 1) * self.per_chunk] = self.content(ids, i, n)
        return self.src[: (last - first) * self.per_chunk]

    def zero(self, n: int) -> list[int]:
        """Zeroes n chunks of the destination half and returns their blocks."""
        blocks = self.dst[: n * self.per_chunk]
        for kv in self.kv.values():
            kv[:, blocks[0]:blocks[-1] + 1].zero_()
        return blocks

    def verify(self, ids, first: int, last: int) -> None:
        """Raises unless the destination half holds exactly chunks [first, last)."""
        for n, kv in enumerate(self.kv.values()):
            words = kv.view(torch.int16)
            for j, i in enumerate(range(first, last)):
                b = self.dst[j * self.per_chunk]
                check(torch.equal(words[:, b:b + self.per_chunk], self.content(ids, i, n)),
                      f"wrong bytes in layer {n} of chunk {i} of prompt {ids}")


class Worker(Cache):
    """An engine worker with its cache, through the real client classes."""

    def __init__(self, client, model, chunk, chunks, instance=None, world=1, rank=0, timeout=10.0, **cache):
        super().__init__(chunk, chunks, rank=rank, **cache)
        self.c, self.model, self.world, self.timeout = client, model, world, timeout
        self.instance = new_instance() if instance is None else instance
        self.granted: int | None = None  # slots of the last prepare_store; None in pickle mode
        self.register()

    def register(self) -> None:
        self.ctx = EngineDrivenTransferContext(self.instance, self.c)
        self.ctx.register(self.kv, self.model, self.world, self.per_chunk, self.timeout, layout_hints=HINTS)
        prepare = self.inner.prepare_store

        def counting(key, instance_id):
            got = prepare(key, instance_id)
            self.granted = None if got is None else len(got[1])
            return got

        self.inner.prepare_store = counting

    @property
    def inner(self):
        """The shared-memory or pickle context underneath."""
        return self.ctx.engine_driven_context

    @property
    def shm(self) -> bool:
        return isinstance(self.inner, EngineDrivenContextShm)

    def key(self, ids, rid, first=0, last=None, **more):
        """The key of chunks [first, last) of the prompt; defaults to all of it."""
        more = {"worker": self.rank, "world": self.world, **more}
        last = len(ids) if last is None else last
        return make_key(self.model, prompt_tokens(ids, self.chunk), rid, first * self.chunk,
                        last * self.chunk, **more)

    def store(self, ids, rid, first=0, last=None, **more) -> bool:
        """Fills the source half with the chunks and stores them."""
        key = self.key(ids, rid, first, last, **more)
        blocks = self.fill(ids, first, len(ids) if last is None else last)
        return bool(self.ctx.submit_store(rid, key, self.kv, [blocks], None, self.per_chunk).result(self.timeout))

    def retrieve(self, ids, rid, first=0, last=None, **more) -> bool:
        """Retrieves chunks [first, last) into the zeroed other half; raises on a wrong byte."""
        key = self.key(ids, rid, first, last, **more)
        last = len(ids) if last is None else last
        blocks = self.zero(last - first)
        if not self.ctx.submit_retrieve(rid, key, self.kv, [blocks], None, self.per_chunk).result(self.timeout):
            return False
        self.verify(ids, first, last)
        return True

    def lookup(self, ids, rid, **more) -> int:
        return lookup(self.c, self.key(ids, rid, **more), self.timeout)

    def end(self, rid) -> None:
        check(self.c.end_session(rid).result(self.timeout) is None)

    def free(self, ids, rid, first=0, last=None, **more):
        """FREE_LOOKUP_LOCKS of chunks [first, last) as the scheduler sends it; returns the future."""
        return self.c.free_lookup_locks(self.key(ids, rid, first, last, **more).no_worker_id_version(), 1)

    def hits(self, ids, rid, **more) -> int:
        """Looks the prompt up and gives the hit back at once."""
        n = self.lookup(ids, rid, **more)
        if n:
            check(self.free(ids, rid, **more).result(self.timeout) is None)
        self.end(rid)
        return n

    def close(self) -> None:
        check(self.ctx.unregister().result(self.timeout) is None)
        self.ctx.close()
