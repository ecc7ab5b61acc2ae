#!/usr/bin/env python3
"""Drive a full MP conversation with the REAL lmcache 0.5.6 client classes.

    python oracle_client.py --url tcp://127.0.0.1:6555 [--answers | --reference] [--modes engine,lmcache]

Runs on CPU only (torch CPU wheel is enough).  One line per step: PASS / FAIL / SKIP.
Exit code 0 when nothing failed.

  engine  : engine-driven path (PREPARE/COMMIT).  SHM when the server advertises a
            pool, pickle otherwise; when SHM is offered, the pickle commit fallback
            is exercised too.
  lmcache : lmcache-driven path (REGISTER_KV_CACHE + STORE/RETRIEVE) with CPU
            tensors in POSIX shared memory.  A server that does not answer the
            registration is reported as SKIP unless --require-lmcache is given.
  steps_*.py: sessions, locks, keys in flight, pickles; part of the engine run.
  --answers  : also demand lmcache-go's answers to bad requests (wire-protocol.md 3.1), and
               what it does better than the reference (the steps marked "ours").
  --reference: also demand the reference's silence for the same requests.
  --http URL : the server's HTTP address; some steps then read /status too.
"""

from __future__ import annotations

import argparse
import os
import pickle
import threading
import time
import uuid

import msgspec
import torch
import zmq

import steps_inflight
import steps_locks
import steps_pickle
from client import BLOCK, HINTS, Run, Skip, check, connect, make_key, same_bytes

from lmcache.v1.multiprocess.custom_types import (
    BlockAllocationRecord,
    RegisterEngineDrivenContextPayload,
)
from lmcache.v1.multiprocess.transfer_context.base import create_engine_driven_context
from lmcache.v1.multiprocess.transfer_context.pickle import EngineDrivenContextPickle
from lmcache.v1.multiprocess.transfer_context.shm import EngineDrivenContextShm
from lmcache.v1.multiprocess.transfer_context.worker_transfer import (
    EngineDrivenTransferContext,
    LMCacheDrivenTransferContext,
)

LAYERS, HEADS, HEAD_DIM = 3, 2, 8


def no_reply(future, seconds=1.0):
    try:
        future.result(timeout=seconds)
    except TimeoutError:
        return
    raise AssertionError("a reply arrived where the reference sends none")


def make_kv(num_blocks, seed, dtype=torch.bfloat16):
    g = torch.Generator().manual_seed(seed)
    return {
        f"layer.{i}": torch.randn(
            (2, num_blocks, BLOCK, HEADS, HEAD_DIM), generator=g
        ).to(dtype)
        for i in range(LAYERS)
    }


def chunk_bytes(kv, blocks):
    """Expected object for one chunk: [2, layers, tokens, heads*head_dim]."""
    per_layer = [t[:, blocks].reshape(2, len(blocks) * BLOCK, HEADS * HEAD_DIM) for t in kv.values()]
    return torch.stack(per_layer, dim=1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--url", default="tcp://127.0.0.1:6555")
    ap.add_argument("--timeout", type=float, default=10.0)
    ap.add_argument("--modes", default="engine,lmcache")
    ap.add_argument("--require-lmcache", action="store_true")
    ap.add_argument("--require-shm", action="store_true")
    ap.add_argument("--answers", action="store_true")
    ap.add_argument("--reference", action="store_true")
    ap.add_argument("--http", default="")
    ap.add_argument("--verbose", action="store_true")
    a = ap.parse_args()
    R = Run(a.timeout, a.verbose)
    T = a.timeout
    c = connect(a.url)

    ok = R.step("noop returns 'OK'", lambda: check(c.noop().result(T) == "OK"))
    if not ok:
        print("server unreachable; giving up", flush=True)
        os._exit(2)
    R.step("ping(None) is True", lambda: check(c.ping(None).result(T) is True))
    if a.answers:
        def unknown_instance():
            stranger = uuid.uuid4().int & ((1 << 63) - 1)
            check(c.ping(stranger).result(T) is False, "an unknown instance must be told once to register")
            check(c.ping(stranger).result(T) is True)

        R.step("ping of an unknown instance is False once, then True", unknown_instance)
    else:
        R.step("ping(63-bit id) answers a bool", lambda: check(isinstance(c.ping(2**63 - 1).result(T), bool)))
    chunk = [256]

    def get_chunk():
        chunk[0] = c.get_chunk_size().result(T)
        check(isinstance(chunk[0], int) and chunk[0] > 0 and chunk[0] % BLOCK == 0)
        return f"chunk_size={chunk[0]}"

    R.step("get_chunk_size", get_chunk)
    C = chunk[0]
    caps: list = []

    def experimental():
        caps.extend(c.get_experimental().result(T))
        check(all(isinstance(x, str) for x in caps))
        return str(caps)

    R.step("get_experimental is a list of str", experimental)
    if a.answers and "kv_event_stream" not in caps:
        def no_stream():
            stream = c.subscribe_kv_events(1, "m", 0, 10)
            got = []
            th = threading.Thread(target=lambda: got.append(next(stream, None)), daemon=True)
            th.start()
            th.join(T)
            check(got and got[0] is not None and got[0].enabled is False and not got[0].events,
                  "a subscription without a stream needs one disabled batch, or clients resubscribe for ever")
            stream.close()
            check(c.noop().result(T) == "OK")

        R.step("A: subscription without an event stream gets one disabled batch", no_stream)
    R.step("report_block_allocation acks", lambda: check(
        c.report_block_allocation(1, "m", [BlockAllocationRecord("r", [1], [2])]).result(T) is None))
    R.step("end_session of an unknown request acks", lambda: check(c.end_session("nobody").result(T) is None))
    R.step("query of an unknown request is 0", lambda: check(c.query_prefetch_status("nobody").result(T) == 0))
    R.step("wait of an unknown request is 0", lambda: check(c.wait_prefetch_status("nobody", 0.1).result(T) == 0))
    R.step("unregister of an unknown instance acks", lambda: check(
        c.unregister_kv_cache_engine_driven_context(987654321).result(T) is None
        if "engine" in a.modes else c.unregister_kv_cache(987654321).result(T) is None))

    bpc = C // BLOCK
    base = int(R.salt, 16) & 0x7FFFFFFF
    tokens = tuple((base + 7 * i) % 4_000_000_000 for i in range(3 * C + 5))

    def mk_key(model, rid, start=0, end=3 * C, worker=0, world=1, salt="", readers=1, toks=tokens, cfg=None):
        return make_key(model, toks, rid, start, end, worker, world, salt, readers, cfg)

    def lookup(key, poll=False):
        check(c.lookup(key.no_worker_id_version(), 1).result(T) is None, "lookup must ack with None")
        if not poll:
            r = c.wait_prefetch_status(key.request_id, T).result(T + 5)
            check(r is not None, "wait timed out")
            return r
        end = time.monotonic() + T
        while time.monotonic() < end:
            r = c.query_prefetch_status(key.request_id).result(T)
            if r is not None:
                return r
            time.sleep(0.002)
        raise AssertionError("query never finished")

    def end(rid):
        check(c.end_session(rid).result(T) is None)

    # ------------------------------------------------------------------ engine
    def engine_suite():
        model = f"oracle/{R.salt}-engine"
        kv = make_kv(8 * bpc, 1)
        pristine = {k: v.clone() for k, v in kv.items()}
        iid = uuid.uuid4().int & ((1 << 63) - 1)
        ctx = EngineDrivenTransferContext(iid, c)
        src = [list(range(0, bpc)), list(range(bpc, 2 * bpc)), list(range(2 * bpc, 3 * bpc))]
        flat = [b for x in src for b in x]

        def early():
            k = mk_key(model, R.request())
            check(lookup(k) == 0)
            end(k.request_id)

        R.step("E: lookup before any registration is 0", early)
        if not R.step("E: register (EngineDrivenTransferContext)", lambda: ctx.register(
                kv, model, 1, bpc, T, layout_hints=HINTS)):
            return
        inner = ctx.engine_driven_context
        shm = isinstance(inner, EngineDrivenContextShm)
        R.step("E: transfer kind", lambda: (check(shm or not a.require_shm, "no SHM offered"),
                                            "SHM" if shm else "pickle")[1])

        def again():
            p = RegisterEngineDrivenContextPayload(
                instance_id=iid, model_name=model, world_size=1, block_size=BLOCK,
                num_layers=LAYERS, hidden_dim_size=HEADS * HEAD_DIM, dtype_str="bfloat16",
                use_mla=False, num_physical_slots=C)
            r = c.register_kv_cache_engine_driven_context(p).result(T)
            check(bool(r.shm_name) == shm and (r.pool_size > 0) == shm)
            return f"{r.shm_name!r} {r.pool_size}"

        R.step("E: registering the same instance again answers alike", again)
        R.step("E: ping(worker) is True", lambda: check(c.ping(iid).result(T) is True))
        k1 = mk_key(model, R.request())
        R.step("E: lookup miss is 0", lambda: check(lookup(k1) == 0))
        R.step("E: status consumed once (then 0)", lambda: check(
            c.query_prefetch_status(k1.request_id).result(T) == 0))
        R.step("E: store 3 chunks", lambda: check(
            ctx.submit_store(k1.request_id, k1, kv, [flat], None, bpc).result(T) is True))
        R.step("E: storing the same chunks again is True", lambda: check(
            ctx.submit_store(k1.request_id, k1, kv, [flat], None, bpc).result(T) is True))
        R.step("E: end_session", lambda: end(k1.request_id))

        def retrieve_without_lock():
            k = mk_key(model, R.request())
            dst = make_kv(8 * bpc, 2)
            check(ctx.submit_retrieve(k.request_id, k, dst, [flat], None, bpc).result(T) is False)
            end(k.request_id)

        R.step("E: retrieve without lookup fails", retrieve_without_lock)

        def full(poll):
            k = mk_key(model, R.request(), cfg={"lmcache.tag": "oracle"})
            n = lookup(k, poll)
            check(n == 3, f"hit={n}")
            dst = {x: torch.zeros_like(v) for x, v in kv.items()}
            blocks = list(range(4 * bpc, 7 * bpc))
            check(ctx.submit_retrieve(k.request_id, k, dst, [blocks], None, bpc).result(T) is True)
            for name in kv:
                check(same_bytes(dst[name][:, blocks], pristine[name][:, flat]), f"{name} differs")
                rest = [b for b in range(8 * bpc) if b not in blocks]
                check(int(dst[name][:, rest].ne(0).sum()) == 0, "wrote outside the blocks")
            end(k.request_id)

        R.step("E: lookup (wait) + retrieve, byte exact", lambda: full(False))
        R.step("E: lookup (poll) + retrieve, byte exact", lambda: full(True))

        def raw_objects():
            k = mk_key(model, R.request())
            check(lookup(k) == 3)
            got = inner.prepare_retrieve(k, iid)
            check(got is not None and len(got) == 3)
            for i, t in enumerate(got):
                want = chunk_bytes(pristine, src[i])
                check(tuple(t.shape) == tuple(want.shape) == (2, LAYERS, C, HEADS * HEAD_DIM))
                check(t.dtype == want.dtype and same_bytes(t, want), f"object {i} differs")
            got = t = None
            check(inner.commit_retrieve(k, iid) is True)
            end(k.request_id)

        R.step("E: object shape and bytes [2,L,T,H*D]", raw_objects)

        def middle():
            k = mk_key(model, R.request())
            check(lookup(k) == 3)
            part = mk_key(model, k.request_id, start=C, end=2 * C)
            dst = {x: torch.zeros_like(v) for x, v in kv.items()}
            check(ctx.submit_retrieve(k.request_id, part, dst, [src[0]], None, bpc).result(T) is True)
            for name in kv:
                check(same_bytes(dst[name][:, src[0]], pristine[name][:, src[1]]))
            for s, e in ((0, C), (2 * C, 3 * C)):
                free = mk_key(model, k.request_id, start=s, end=e, worker=None)
                check(c.free_lookup_locks(free, 1).result(T) is None)
            end(k.request_id)

        R.step("E: retrieve one middle chunk, free the others", middle)
        R.step("E: longer prompt, same prefix hits 3", lambda: check(
            lookup_and_free(mk_key(model, R.request(), end=4 * C, toks=tokens[: 3 * C] + tuple(range(C)))) == 3))
        R.step("E: shared first chunk only hits 1", lambda: check(
            lookup_and_free(mk_key(model, R.request(), toks=tokens[:C] + tuple(range(2 * C)))) == 1))
        R.step("E: other first token hits 0", lambda: check(
            lookup_and_free(mk_key(model, R.request(), toks=(tokens[0] ^ 1,) + tokens[1:])) == 0))
        R.step("E: prompt shorter than a chunk hits 0", lambda: check(
            lookup_and_free(mk_key(model, R.request(), end=0, toks=tokens[: C - 1])) == 0))
        R.step("E: cache_salt isolates", lambda: check(
            lookup_and_free(mk_key(model, R.request(), salt="tenant-a")) == 0))
        R.step("E: unknown model hits 0", lambda: check(
            lookup_and_free(mk_key(model + "-x", R.request())) == 0))

        def append():
            toks = tokens[: 3 * C] + tuple(range(50, 50 + C))
            k = mk_key(model, R.request(), start=3 * C, end=4 * C, toks=toks)
            check(ctx.submit_store(k.request_id, k, kv, [src[0]], None, bpc).result(T) is True)
            end(k.request_id)
            k = mk_key(model, R.request(), end=4 * C, toks=toks)
            check(lookup(k) == 4)
            dst = {x: torch.zeros_like(v) for x, v in kv.items()}
            blocks = list(range(4 * bpc))
            check(ctx.submit_retrieve(k.request_id, k, dst, [blocks], None, bpc,
                                      skip_first_n_tokens=BLOCK).result(T) is True)
            for name in kv:
                check(same_bytes(dst[name][:, blocks[1:]], pristine[name][:, (flat + src[0])[1:]]))
                check(int(dst[name][:, 0].ne(0).sum()) == 0, "skip_first_n_tokens ignored")
            end(k.request_id)

        R.step("E: append a 4th chunk (start>0), retrieve 4, skip 1 block", append)

        def readers():
            k = mk_key(model, R.request(), readers=2)
            check(lookup(k) == 3)
            for i in range(2):
                dst = {x: torch.zeros_like(v) for x, v in kv.items()}
                check(ctx.submit_retrieve(k.request_id, k, dst, [flat], None, bpc).result(T) is True,
                      f"reader {i}")
            dst = {x: torch.zeros_like(v) for x, v in kv.items()}
            check(ctx.submit_retrieve(k.request_id, k, dst, [flat], None, bpc).result(T) is False,
                  "a third retrieve must fail: only 2 read locks were taken")
            end(k.request_id)

        R.step("E: num_kv_readers=2 gives exactly two retrieves", readers)

        def locks_survive_clear():
            k = mk_key(model, R.request())
            check(lookup(k) == 3)
            check(c.clear(force=False).result(T) is None)
            k2 = mk_key(model, R.request())
            check(lookup(k2) == 3, "clear(force=False) dropped locked objects")
            for x in (k, k2):
                check(c.free_lookup_locks(x.no_worker_id_version(), 1).result(T) is None)
                end(x.request_id)
            check(c.clear().result(T) is None)
            k3 = mk_key(model, R.request())
            check(lookup(k3) == 0, "clear() left unlocked objects")
            end(k3.request_id)

        R.step("E: clear spares locked objects; free_lookup_locks unlocks", locks_survive_clear)

        def force_clear():
            k = mk_key(model, R.request())
            check(ctx.submit_store(k.request_id, k, kv, [flat], None, bpc).result(T) is True)
            check(lookup(k) == 3)
            check(c.clear(force=True).result(T) is None)
            k2 = mk_key(model, R.request())
            check(lookup(k2) == 0)
            end(k.request_id)
            end(k2.request_id)

        R.step("E: clear(force=True) drops locked objects too", force_clear)

        def two_workers():
            m2 = model + "-tp2"
            ctxs = [EngineDrivenTransferContext(uuid.uuid4().int & ((1 << 63) - 1), c) for _ in range(2)]
            kvs = [make_kv(4 * bpc, 10 + i) for i in range(2)]
            for x, v in zip(ctxs, kvs):
                x.register(v, m2, 2, bpc, T, layout_hints=HINTS)
            rid = R.request()
            k0, k1_ = mk_key(m2, rid, worker=0, world=2), mk_key(m2, rid, worker=1, world=2)
            check(ctxs[0].submit_store(rid, k0, kvs[0], [flat], None, bpc).result(T) is True)
            check(lookup_and_free(mk_key(m2, R.request(), world=2)) == 0, "hit with one of two ranks stored")
            check(ctxs[1].submit_store(rid, k1_, kvs[1], [flat], None, bpc).result(T) is True)
            end(rid)
            k = mk_key(m2, R.request(), world=2)
            check(lookup(k) == 3)
            for w in range(2):
                dst = {x: torch.zeros_like(v) for x, v in kvs[w].items()}
                kw = mk_key(m2, k.request_id, worker=w, world=2)
                check(ctxs[w].submit_retrieve(k.request_id, kw, dst, [flat], None, bpc).result(T) is True)
                for name in dst:
                    check(same_bytes(dst[name][:, flat], kvs[w][name][:, flat]), f"rank {w}")
            end(k.request_id)
            for x in ctxs:
                check(x.unregister().result(T) is None)
                x.close()

        R.step("E: world_size 2, one object per rank", two_workers)

        def mla():
            m3 = model + "-mla"
            x = EngineDrivenTransferContext(uuid.uuid4().int & ((1 << 63) - 1), c)
            v = {f"l{i}": torch.randn(4 * bpc, BLOCK, 24).to(torch.float16) for i in range(2)}
            x.register(v, m3, 1, bpc, T, layout_hints=HINTS)
            check(x.engine_driven_context.metadata.use_mla is True)
            rid = R.request()
            k = mk_key(m3, rid)
            check(x.submit_store(rid, k, v, [flat], None, bpc).result(T) is True)
            check(lookup(k) == 3)
            dst = {n: torch.zeros_like(t) for n, t in v.items()}
            check(x.submit_retrieve(rid, k, dst, [flat], None, bpc).result(T) is True)
            for n in v:
                check(same_bytes(dst[n][flat], v[n][flat]))
            end(rid)
            check(x.unregister().result(T) is None)
            x.close()

        R.step("E: single-plane (MLA) object", mla)

        def pickle_commit():
            # COMMIT_STORE with inline data and no PREPARE_STORE: accepted by both kinds.
            toks = tuple(t ^ 3 for t in tokens)
            k = mk_key(model, R.request(), toks=toks)
            data = pickle.dumps([chunk_bytes(pristine, s) for s in src])
            check(c.commit_store(k, iid, data).result(T) is True)
            check(lookup(k) == 3)
            got = inner.prepare_retrieve(k, iid)
            check(got is not None and all(
                same_bytes(t, chunk_bytes(pristine, s)) for t, s in zip(got, src)))
            got = None
            inner.commit_retrieve(k, iid)
            end(k.request_id)

        R.step("E: inline pickle COMMIT_STORE", pickle_commit)

        def pickle_bad():
            toks = tuple(t ^ 5 for t in tokens)
            k = mk_key(model, R.request(), toks=toks)
            bad = pickle.dumps([torch.zeros(2, LAYERS, C, 1, dtype=torch.bfloat16)] * 3)
            check(c.commit_store(k, iid, bad).result(T) is False, "wrong shape must give False")
            end(k.request_id)

        R.step("E: inline COMMIT_STORE with a wrong shape is False", pickle_bad)

        if not shm:
            R.step("E: pickle context in use", lambda: check(isinstance(inner, EngineDrivenContextPickle)))
        else:
            def forced_pickle():
                p = create_engine_driven_context(inner.metadata, c, T, "", 0, use_pickle=True)
                k = mk_key(model, R.request(), toks=tuple(t ^ 3 for t in tokens))
                check(lookup(k) == 3)
                check(p.prepare_retrieve(k, iid) is None, "a SHM reply must carry no inline data")
                # The failed pickle retrieve still holds the reservation; the commit drops it.
                check(c.commit_retrieve(k, iid).result(T) is True)
                end(k.request_id)

            R.step("E: SHM server answers a pickle client's retrieve without data", forced_pickle)

        if "kv_event_stream" in caps:
            def events():
                s = c.subscribe_kv_events(iid, model, 0, 1024)
                first = next(s)
                check(first.enabled is True and first.incarnation > 0)
                got = []

                def reader():
                    for b in s:
                        got.append(b)
                        if any(r.kind == "removed" for r in b.events):
                            return

                th = threading.Thread(target=reader, daemon=True)
                th.start()
                check(c.clear(force=True).result(T) is None)
                th.join(T)
                recs = [r for b in got for r in b.events if r.kind == "removed"]
                check(recs, "no 'removed' record after clear")
                check(all(r.medium == "CPU" and r.model_name == model for r in recs))
                seqs = [r.seq for r in recs]
                check(seqs == sorted(seqs))
                s.close()
                check(c.noop().result(T) == "OK")
                return f"{sum(len(r.block_hashes) for r in recs)} hashes removed"

            R.step("E: kv event stream: status batch, then 'removed'", events)

        bad_dtype = RegisterEngineDrivenContextPayload(
            instance_id=1, model_name="m", world_size=1, block_size=16, num_layers=1,
            hidden_dim_size=1, dtype_str="no_such_dtype", use_mla=False)
        if a.reference:
            def silence():
                raw = zmq.Context.instance().socket(zmq.DEALER)
                raw.setsockopt(zmq.LINGER, 0)
                raw.connect(a.url)
                enc = msgspec.msgpack.encode
                for frames in ([enc(1), enc("nope")], [enc(1), enc(99)], [enc(1), enc(11)],
                               [enc(1), enc(21), enc(1)], [enc(1), enc(20)], [enc(1), enc(22), enc("x")],
                               [enc(1), b"\xc1"], [enc(1), enc(22), b"\xc1"]):
                    raw.send_multipart(frames)
                check(not raw.poll(1500), "a bad request was answered")
                raw.send_multipart([b"\xffopaque", enc("noop")])
                check(raw.poll(5000) and raw.recv_multipart() == [b"\xffopaque", enc("noop"), enc("OK")])
                raw.close(0)

            R.step("S: bad requests are dropped; op/uid frames are echoed", silence)
            R.step("S: lookup with num_kv_readers=0 gets no reply", lambda: no_reply(
                c.lookup(mk_key(model, R.request(), readers=0, worker=None), 1)))
            R.step("S: misaligned range gets no reply", lambda: no_reply(
                c.prepare_retrieve(mk_key(model, R.request(), start=1), iid)))
            R.step("S: range past the tokens gets no reply", lambda: no_reply(
                c.prepare_retrieve(mk_key(model, R.request(), end=9 * C), iid)))
            R.step("S: bad dtype registration gets no reply", lambda: no_reply(
                c.register_kv_cache_engine_driven_context(bad_dtype)))
        if a.answers:
            def answered():
                enc, dec = msgspec.msgpack.encode, msgspec.msgpack.decode
                raw = zmq.Context.instance().socket(zmq.DEALER)
                raw.setsockopt(zmq.LINGER, 0)
                raw.connect(a.url)

                def ask(uid, op, *payloads):
                    raw.send_multipart([enc(uid), enc(op), *payloads])
                    check(raw.poll(3000), f"{op!r} with {len(payloads)} payloads was not answered")
                    frames = raw.recv_multipart()
                    check(frames[0] == enc(uid), "uid not echoed")
                    return frames

                for uid, op, payloads in ((1, "nope", ()), (2, 99, ()), (3, 11, ()), (4, 21, (enc(1),)), (5, 20, ()),
                                          (6, 24, (enc(1),)), (7, 25, ()), (8, "cb_reorder_plan", (b"\xc1",) * 3)):
                    frames = ask(uid, op, *payloads)
                    refused = dec(frames[1])
                    check(len(frames) == 2 and refused != op and isinstance(refused, int) and 1 <= refused <= 33 and refused != 11,
                          f"{op!r}: not a refusal: {frames[1:]}")
                for payload in (enc("x"), b"\xc1"):
                    check(ask(9, 22, payload)[1:] == [enc(22), enc(False)], "a bad ping must answer False")
                for uid, op, name, payloads in ((10, 6, "store", 4), (11, 7, "retrieve", 2)):
                    got = ask(uid, op, *[b"\xc1"] * payloads)[1:]
                    check(got == [enc(op), enc((b"", False))], f"a bad {name}: {got}")
                raw.send_multipart([b"x"])
                raw.send_multipart([b"\xffopaque", enc("noop")])
                check(raw.poll(5000) and raw.recv_multipart() == [b"\xffopaque", enc("noop"), enc("OK")])
                raw.close(0)

            R.step("A: bad requests are refused or answered as that operation's failure", answered)

            def no_readers():
                k = mk_key(model, R.request(), readers=0, worker=None)
                check(c.lookup(k, 1).result(T) is None and c.query_prefetch_status(k.request_id).result(T) == 0)

            R.step("A: lookup with num_kv_readers=0 counts 0", no_readers)
            R.step("A: misaligned range is a miss", lambda: check(
                c.prepare_retrieve(mk_key(model, R.request(), start=1), iid).result(T).success is False))
            R.step("A: range past the tokens is a miss", lambda: check(
                c.prepare_retrieve(mk_key(model, R.request(), end=9 * C), iid).result(T).success is False))

            def refused_registration():
                try:
                    c.register_kv_cache_engine_driven_context(bad_dtype).result(T)
                except ValueError:
                    return
                raise AssertionError("registered")

            R.step("A: bad dtype registration fails at once in the client", refused_registration)

        R.step("E: unregister", lambda: check(ctx.unregister().result(T) is None))
        if a.reference:
            R.step("S: prepare_store after unregister gets no reply", lambda: no_reply(
                c.prepare_store(mk_key(model, R.request()), iid)))
        if a.answers:
            def after_unregister():
                k = mk_key(model, R.request())
                check("slots" not in c.prepare_store(k, iid).result(T).context)
                check(c.commit_store(k, iid, b"").result(T) is False)
                check(c.prepare_retrieve(k, iid).result(T).success is False)

            R.step("A: prepare and commit after unregister fail in band", after_unregister)
        R.step("E: lookup after unregister is 0", lambda: check(lookup(mk_key(model, R.request())) == 0))
        ctx.close()

    def lookup_and_free(k):
        n = lookup(k)
        if n:
            check(c.free_lookup_locks(k.no_worker_id_version(), 1).result(T) is None)
        end(k.request_id)
        return n

    # ----------------------------------------------------------------- lmcache
    def lmcache_suite():
        model = f"oracle/{R.salt}-lmcache"
        kv = make_kv(8 * bpc, 3)
        iid = uuid.uuid4().int & ((1 << 63) - 1)
        ctx = LMCacheDrivenTransferContext(iid, c)

        def reg():
            try:
                ctx.register(kv, model, 1, bpc, min(T, 5.0), layout_hints=HINTS)
            except TimeoutError:
                if a.require_lmcache:
                    raise
                raise Skip("server does not answer REGISTER_KV_CACHE (cpu_shm)") from None

        if not R.step("L: register_kv_cache with cpu_shm wrappers", reg):
            return
        pristine = {n: t.clone() for n, t in kv.items()}
        flat = list(range(1, 3 * bpc + 1))
        dstb = list(range(4 * bpc, 7 * bpc))
        k = mk_key(model, R.request())
        R.step("L: lookup miss is 0", lambda: check(lookup(k) == 0))
        R.step("L: store 3 chunks", lambda: check(ctx.submit_store(
            k.request_id, k, kv, [flat], ctx.create_recorded_event(), bpc).result(T) is True))

        def visible():
            # STORE answers before the commit callback may have run; poll briefly.
            deadline = time.monotonic() + T
            while True:
                kk = mk_key(model, R.request())
                n = lookup(kk)
                if n == 3 or time.monotonic() > deadline:
                    check(n == 3, f"hit={n}")
                    return kk
                if n:
                    c.free_lookup_locks(kk.no_worker_id_version(), 1).result(T)
                end(kk.request_id)
                time.sleep(0.02)

        box = []
        R.step("L: lookup hit is 3", lambda: (box.append(visible()), None)[1])

        def retr():
            kk = box[0]
            check(ctx.submit_retrieve(kk.request_id, kk, kv, [dstb], ctx.create_recorded_event(),
                                      bpc, skip_first_n_tokens=BLOCK).result(T) is True)
            for n in kv:
                check(same_bytes(kv[n][:, dstb[1:]], pristine[n][:, flat[1:]]), f"{n} differs")
                check(same_bytes(kv[n][:, dstb[0]], pristine[n][:, dstb[0]]), "skip ignored")
            end(kk.request_id)

        R.step("L: retrieve, byte exact, skip 1 block", retr)

        def short():
            kk = mk_key(model, R.request(), toks=tuple(t ^ 9 for t in tokens))
            check(ctx.submit_store(kk.request_id, kk, kv, [flat[:1]],
                                   ctx.create_recorded_event(), bpc).result(T) is False)
            end(kk.request_id)

        R.step("L: block id underflow answers False", short)

        def null_chunk():
            toks = tuple(t ^ 17 for t in tokens)
            kk = mk_key(model, R.request(), toks=toks)
            blocks = [0] * bpc + flat[bpc:]
            check(ctx.submit_store(kk.request_id, kk, kv, [blocks],
                                   ctx.create_recorded_event(), bpc).result(T) is True)
            end(kk.request_id)
            time.sleep(0.3)
            check(lookup_and_free(mk_key(model, R.request(), toks=toks)) == 0, "null-block chunk was stored")

        R.step("L: an all-null (block 0) chunk is not stored", null_chunk)
        R.step("L: clear(force)", lambda: check(c.clear(force=True).result(T) is None))
        R.step("L: unregister", lambda: check(ctx.unregister().result(T) is None))

        def gone():
            h, okk = c.store(mk_key(model, R.request()), iid, [flat], b"x").result(T)
            check((h, okk) == (b"", False), (h, okk))
            h, okk = c.retrieve(mk_key(model, R.request()), iid, [flat], b"x", 0).result(T)
            check((h, okk) == (b"", False), (h, okk))

        R.step("L: store/retrieve of an unregistered instance answer (b'', False)", gone)
        ctx.close()

    if "engine" in a.modes.split(","):
        engine_suite()
        for part in (steps_locks, steps_inflight, steps_pickle):
            part.add(R, a, C)
        if a.answers:
            steps_locks.nothing_held(R, a)
    if "lmcache" in a.modes.split(","):
        lmcache_suite()
    R.step("noop at the end", lambda: check(c.noop().result(T) == "OK"))
    c.close()
    R.finish()


if __name__ == "__main__":
    main()
