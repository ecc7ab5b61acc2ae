"""Steps on pickles: protocols, dtypes, views, and data that does not fit.

COMMIT_STORE with inline data is served whether or not there is a pool, so these
steps run in both modes.
"""

from __future__ import annotations

import os
import pickle
import tempfile

import torch

from client import Worker, check, connect, lookup, make_key, new_instance, prompt_tokens, same_bytes
from steps_locks import Beds, drops_all, store

from lmcache.v1.multiprocess.custom_types import RegisterEngineDrivenContextPayload
from lmcache.v1.multiprocess.transfer_context.base import create_engine_driven_context
from lmcache.v1.multiprocess.transfer_context.pickle import EngineDrivenContextPickle

LAYERS, HIDDEN = 2, 4
# dtypes with a storage class of their own, and those that torch pickles as
# untyped bytes (and, as of 2.15, cannot load again).
TYPED = ("bfloat16", "float16", "float32", "float64", "uint8", "int8", "int16", "int32", "int64", "bool")
UNTYPED = ("float8_e4m3fn", "float8_e5m2", "uint16", "uint32", "uint64")


def sample(dtype: torch.dtype, shape, seed: int) -> torch.Tensor:
    n = 1
    for d in shape:
        n *= d
    top = 1 if dtype is torch.bool else 255
    raw = (torch.arange(n * dtype.itemsize, dtype=torch.int64) * 7 + seed) % (top + 1)
    return raw.to(torch.uint8).view(dtype).reshape(shape).clone()


class Bare:
    """A registration without a KV cache, for objects of any dtype and shape."""

    def __init__(self, run, url, chunk, name, dtype="bfloat16"):
        self.c, self.run, self.chunk = connect(url), run, chunk
        self.model, self.instance = f"conf/{run.salt}-{name}", new_instance()
        self.dtype, self.shape = getattr(torch, dtype), (2, LAYERS, chunk, HIDDEN)
        got = self.c.register_kv_cache_engine_driven_context(RegisterEngineDrivenContextPayload(
            instance_id=self.instance, model_name=self.model, world_size=1, block_size=16,
            num_layers=LAYERS, hidden_dim_size=HIDDEN, dtype_str=dtype, use_mla=False,
            num_physical_slots=chunk)).result(run.timeout)
        # Maps the pool where there is one, reads pickles where there is none.
        self.inner = create_engine_driven_context(None, self.c, run.timeout, got.shm_name, got.pool_size)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        try:
            check(self.c.unregister_kv_cache_engine_driven_context(self.instance).result(self.run.timeout) is None)
            self.inner.close()
        except Exception:  # noqa: BLE001
            if kind is None:  # else the step's own failure is the one to tell
                raise
        self.c.close()

    def key(self, ids):
        return make_key(self.model, prompt_tokens(ids, self.chunk), self.run.request())

    def chunks(self, n=3, seed=1):
        return [sample(self.dtype, self.shape, seed + i) for i in range(n)]

    def commit(self, ids, data) -> bool:
        key = self.key(ids)
        ok = self.c.commit_store(key, self.instance, data).result(self.run.timeout)
        self.c.end_session(key.request_id).result(self.run.timeout)
        return ok

    def holds(self, ids, want) -> bool:
        """Whether exactly these tensors come back for the prompt."""
        key = self.key(ids)
        hit = lookup(self.c, key, self.run.timeout)
        check(hit == len(want), f"{hit} of {len(want)} chunks are there")
        got = self.inner.prepare_retrieve(key, self.instance)
        check(got is not None, "the retrieve failed")
        same = len(got) == len(want) and all(
            g.dtype == w.dtype and same_bytes(g, w) for g, w in zip(got, want))
        got = None
        self.inner.commit_retrieve(key, self.instance)
        self.c.end_session(key.request_id).result(self.run.timeout)
        return same


def add(R, args, C):
    T = R.timeout

    def protocols():
        with Bare(R, args.url, C, "protocols") as b:
            for p in range(2, 6):
                want = b.chunks(seed=10 * p)
                check(b.commit([p, p, p], pickle.dumps(want, protocol=p)) is True, f"protocol {p}")
                check(b.holds([p, p, p], want), f"protocol {p}: other bytes came back")

    R.step("P: pickle protocols 2 to 5", protocols)

    def dtypes(names):
        for name in names:
            with Bare(R, args.url, C, f"dtype-{name}", name) as b:
                want = b.chunks()
                check(b.commit([1, 2, 3], pickle.dumps(want)) is True, name)
                check(b.holds([1, 2, 3], want), f"{name}: other bytes came back")
        return f"{len(names)} dtypes"

    R.step("P: every dtype with a storage class", lambda: dtypes(TYPED))

    def views():
        # Tensors that share a storage, start inside it, or are strided.
        with Bare(R, args.url, C, "views") as b:
            base = sample(b.dtype, (3, *b.shape), 5)
            odd = sample(b.dtype, (C, HIDDEN, LAYERS, 2), 6).permute(3, 2, 0, 1)
            check(tuple(odd.shape) == b.shape and not odd.is_contiguous())
            lists = {1: list(base.unbind()), 2: [base[2], odd, base[0]],
                     3: [odd, sample(b.dtype, b.shape, 9)[:, :1].expand(b.shape), base[1]]}
            for n, want in lists.items():
                check(b.commit([n, n, n], pickle.dumps(want)) is True, f"list {n}")
                check(b.holds([n, n, n], want), f"list {n}: other bytes came back")

    R.step("P: views, shared storages and strides", views)

    def long_list():
        # More than 1000 items take more than one APPENDS batch.
        with Bare(R, args.url, C, "long") as b:
            ids = [5000 + i for i in range(1001)]
            one = b.chunks(1)[0]
            want = [one.roll(i, dims=2) for i in range(1001)]
            check(b.commit(ids, pickle.dumps(want)) is True)
            check(b.holds(ids, want), "other bytes came back")

    if C == 16:  # 16 MiB there; 256 MiB at 256
        R.step("P: a list of 1001 chunks", long_list)

    def other_dtype():
        with Bare(R, args.url, C, "convert") as b:
            data = [t.float() for t in b.chunks()]
            ok = b.commit([1, 2, 3], pickle.dumps(data))
            if not ok:
                return "refused"
            check(b.holds([1, 2, 3], [t.to(b.dtype) for t in data]), "neither refused nor converted")
            return "converted"

    R.step("P: tensors of another dtype are refused or converted", other_dtype)

    if not args.answers:
        return

    def no_storage_class():
        return dtypes(UNTYPED)

    R.step("P: ours: fp8 and the other dtypes without a storage class", no_storage_class)

    def retried():
        with Bare(R, args.url, C, "retry") as b:
            want, bad = b.chunks(), torch.zeros((2, LAYERS, C, 1), dtype=b.dtype)
            for n, wrong in enumerate(([bad, bad, bad], [want[0], bad, want[2]], want[:2], want + want[:1], [], bad)):
                ids = [n, n, n]
                first = b.commit(ids, pickle.dumps(wrong))
                if wrong is not bad and len(wrong) == 4:
                    check(first in (True, False))  # one chunk too many may be ignored
                else:
                    check(first is False, f"list {n} was accepted")
                check(b.commit(ids, pickle.dumps(want)) is True, f"list {n}: the retry failed")
                check(b.holds(ids, want), f"list {n}: the retry stored nothing, or other bytes")

    R.step("P: ours: a commit of a wrong shape does not block its retry", retried)

    def broken():
        with Bare(R, args.url, C, "broken") as b:
            want = b.chunks()
            good = pickle.dumps(want)
            for n, data in enumerate((good[:-1], good[: len(good) // 2], b"\x80\x04.", b"no pickle", pickle.dumps({}),
                                      pickle.dumps(["a", "b", "c"]), pickle.dumps(None), b"\x80\xff" + good[2:])):
                check(b.commit([n, 1, 2], data) is False, f"data {n} was accepted")
                key = b.key([n, 1, 2])
                check(lookup(b.c, key, T) == 0, f"data {n}: something was stored")
                b.c.end_session(key.request_id).result(T)
            check(b.commit([0, 1, 2], good) is True)
            check(b.holds([0, 1, 2], want))

    R.step("P: ours: pickles that cannot be read answer False", broken)

    def harmless():
        with Bare(R, args.url, C, "harmless") as b, tempfile.TemporaryDirectory() as d:
            mark = os.path.join(d, "executed")

            class Evil:
                def __reduce__(self):
                    return os.mkdir, (mark,)

            for data in ([Evil()] * 3, Evil(), [*b.chunks(2), Evil()]):
                check(b.commit([1, 2, 3], pickle.dumps(data)) is False)
            check(not os.path.exists(mark), "the server executed a pickle")

    R.step("P: ours: a pickle can execute nothing", harmless)

    def pickle_client():
        # The client fell back to pickles because it could not map the pool.
        with Beds(R, args.url, C, "fallback") as b:
            w, ids = b.workers[0], [1, 2, 3]
            if not w.shm:
                return "no pool here"
            fallen = Worker(w.c, w.model, C, 3, instance=new_instance(), timeout=T)
            fallen.ctx._engine_driven_context = EngineDrivenContextPickle(fallen.inner.metadata, w.c, T)
            check(fallen.store(ids, rid := R.request()) is True)
            fallen.end(rid)
            check(w.lookup(ids, rid := R.request()) == 3, "the store of a pickle client is not found")
            check(w.retrieve(ids, rid))
            w.end(rid)
            check(fallen.store(ids, rid := R.request()) is True, "storing resident chunks again")
            fallen.end(rid)
            check(w.lookup(ids, rid := R.request()) == 3)
            check(not fallen.retrieve(ids, rid), "a pickle client got data by pickle from a pool")
            w.end(rid)
            drops_all(R, w, [ids])
            store(w, ids, R.request())
            check(w.granted == 3)
            fallen.close()

    R.step("P: ours: what a pickle client stores on a pool is found and readable", pickle_client)
