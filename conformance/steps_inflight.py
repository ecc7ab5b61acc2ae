"""Steps on keys in flight: equal keys, changed tokens, abandoned reservations.

The steps marked "ours" are the reference's known defects; it would fail them.
"""

from __future__ import annotations

import torch

from client import check, new_instance
from steps_locks import Beds, drops_all, store

from lmcache.v1.multiprocess.transfer_context.shm import EngineDrivenContextShm


def write(worker, slots, ids, indices):
    """Copies the objects of the prompt into the slots of a prepare_store."""
    for tensor, i in zip(slots, indices):
        check(tensor.shape == worker.object(ids, i).shape, "slot of another shape")
        tensor.view(torch.int16).copy_(worker.object(ids, i).view(torch.int16))


def same_object(worker, tensor, ids, i) -> bool:
    return torch.equal(tensor.view(torch.int16), worker.object(ids, i).view(torch.int16))


def add(R, args, C):
    T = R.timeout
    with Beds(R, args.url, C, "kind") as b:
        shm = isinstance(b.workers[0].inner, EngineDrivenContextShm)

    def equal_stores():
        with Beds(R, args.url, C, "stores") as b:
            w, ids = b.workers[0], [1, 2, 3]
            one, two = w.key(ids, R.request()), w.key(ids, R.request())
            slots, indices = w.inner.prepare_store(one, w.instance)
            check(indices == [0, 1, 2])
            again, none = w.inner.prepare_store(two, w.instance)
            check(not again and not none, "a chunk was reserved twice")
            check(w.hits(ids, R.request()) == 0, "an uncommitted chunk was found")
            write(w, slots, ids, indices)
            slots = None
            check(w.inner.commit_store(one, w.instance, []) is True)
            rid = R.request()
            check(w.lookup(ids, rid) == 3)
            check(w.retrieve(ids, rid))
            w.end(rid)
            drops_all(R, w, [ids])

    if shm:
        R.step("F: two equal prepare_stores: one gets the slots, its commit publishes", equal_stores)

    def overlapping_stores():
        with Beds(R, args.url, C, "overlap") as b:
            w, ids = b.workers[0], [1, 2, 3]
            rid = R.request()
            short, long = w.key(ids, rid, 0, 2), w.key(ids, rid, 0, 3)
            first, i1 = w.inner.prepare_store(short, w.instance)
            rest, i2 = w.inner.prepare_store(long, w.instance)
            check((i1, i2) == ([0, 1], [2]), f"reserved {i1} and {i2}")
            write(w, rest, ids, i2)
            check(w.inner.commit_store(long, w.instance, []) is True)
            check(w.hits(ids, R.request()) == 0, "found behind a hole")
            write(w, first, ids, i1)
            first = rest = None
            check(w.inner.commit_store(short, w.instance, []) is True)
            w.end(rid)
            rid = R.request()
            check(w.lookup(ids, rid) == 3)
            check(w.retrieve(ids, rid))
            w.end(rid)

    if shm:
        R.step("F: two overlapping stores of one request", overlapping_stores)

    def growing_tokens():
        # Decoding: each store of a request carries a longer token list.
        with Beds(R, args.url, C, "growing") as b:
            w, ids, rid = b.workers[0], [1, 2, 3], R.request()
            for n in range(1, 4):
                check(w.store(ids[:n], rid, first=n - 1) is True)
            w.end(rid)
            rid = R.request()
            check(w.lookup(ids, rid) == 3)
            check(w.retrieve(ids, rid))
            w.end(rid)

    R.step("F: tokens that grow under one request id", growing_tokens)

    def readers_side_by_side():
        # Two requests of the same prompt at one worker, in every order of the
        # four calls that keeps each request's own order.
        with Beds(R, args.url, C, "readers") as b:
            w, ids = b.workers[0], [1, 2, 3]
            store(w, ids, R.request())
            a, z = R.request(), R.request()
            for rid in (a, z):
                check(w.lookup(ids, rid) == 3)
            for rid in (a, z):
                got = w.inner.prepare_retrieve(w.key(ids, rid), w.instance)
                check(got is not None, "the second of two equal retrieves failed")
                check(all(same_object(w, t, ids, i) for i, t in enumerate(got)), "wrong bytes")
                got = None
            for rid in (a, z):
                check(w.inner.commit_retrieve(w.key(ids, rid), w.instance) is True)
                w.end(rid)
            if args.answers:  # defect 10b: the reference forgets the first of the two
                drops_all(R, w, [ids])

    R.step("F: two requests of one prompt retrieve side by side", readers_side_by_side)

    if not args.answers:
        return

    def equal_retrieves():
        with Beds(R, args.url, C, "twice") as b:
            w, ids, rid = b.workers[0], [1, 2, 3], R.request()
            store(w, ids, R.request())
            check(w.lookup(ids, rid, readers=2) == 3)
            key = w.key(ids, rid, readers=2)
            for _ in range(2):
                got = w.inner.prepare_retrieve(key, w.instance)
                check(got is not None and same_object(w, got[2], ids, 2))
                got = None
            for _ in range(2):
                w.inner.commit_retrieve(key, w.instance)
            w.end(rid)
            drops_all(R, w, [ids])
            # One reader only: whatever the second prepare hears, nothing is left.
            store(w, ids, R.request())
            rid = R.request()
            check(w.lookup(ids, rid) == 3)
            for _ in range(2):
                w.inner.prepare_retrieve(w.key(ids, rid), w.instance)
            for _ in range(2):
                w.inner.commit_retrieve(w.key(ids, rid), w.instance)
            w.end(rid)
            drops_all(R, w, [ids])

    R.step("F: ours: two equal prepare_retrieves of one request leak no hold", equal_retrieves)

    def cleared_under_reader():
        # The slots of a retrieve stay as they are until its commit, even when
        # everything is dropped by force and new objects look for room.
        with Beds(R, args.url, C, "cleared") as b:
            w, ids, rid = b.workers[0], [1, 2, 3], R.request()
            store(w, ids, R.request())
            check(w.lookup(ids, rid) == 3)
            got = w.inner.prepare_retrieve(w.key(ids, rid), w.instance)
            check(got is not None)
            check(w.c.clear(force=True).result(T) is None)
            for n in range(8):
                store(w, [900 + n, 901 + n, 902 + n], R.request())
            check(all(same_object(w, t, ids, i) for i, t in enumerate(got)), "a reader's bytes changed")
            got = None
            w.inner.commit_retrieve(w.key(ids, rid), w.instance)
            w.end(rid)

    if shm:
        R.step("F: ours: a reader's bytes outlive clear(force) until its commit", cleared_under_reader)

    def changed_tokens():
        with Beds(R, args.url, C, "changed") as b:
            w, rid = b.workers[0], R.request()
            old, new = [1, 2, 3], [4, 5, 6]
            check(w.store(old, rid) is True)
            check(w.lookup(old, rid) == 3)
            check(w.store(new, rid) is True)
            try:
                served = w.retrieve(new, rid)
            except AssertionError as e:
                raise AssertionError(f"the retrieve of the new tokens got the old ones' bytes: {e}") from None
            check(not served, "a retrieve was served that no lookup asked for")
            check(w.free(old, rid).result(T) is None)
            w.end(rid)
            for ids in (old, new):
                rid = R.request()
                check(w.lookup(ids, rid) == 3, f"{ids} were not stored under their own hashes")
                check(w.retrieve(ids, rid))
                w.end(rid)
            # A lookup of other tokens under a live id counts those tokens.
            rid = R.request()
            for ids, want in ((old, 3), ([1, 2, 9], 2), ([9, 2, 3], 0), (new, 3)):
                check(w.lookup(ids, rid) == want, f"lookup of {ids}")
            check(w.retrieve(new, rid))
            w.end(rid)

    R.step("F: ours: tokens that change under one request id are hashed afresh", changed_tokens)

    def abandoned():
        # A worker that leaves between PREPARE and COMMIT: nothing of it is
        # published, and another worker can store the same keys at once.
        with Beds(R, args.url, C, "left") as b:
            w, ids = b.workers[0], [1, 2, 3]
            leaver = type(w)(w.c, w.model, C, 3, instance=new_instance(), timeout=T)
            slots, indices = leaver.inner.prepare_store(leaver.key(ids, R.request()), leaver.instance)
            check(indices == [0, 1, 2])
            for t in slots:
                t.view(torch.int16).fill_(-1)
            slots = None
            leaver.close()
            check(w.hits(ids, R.request()) == 0, "a half-written store was published")
            store(w, ids, R.request())
            check(w.granted == 3, f"{w.granted} of 3 chunks could be stored again")
            rid = R.request()
            check(w.lookup(ids, rid) == 3)
            check(w.retrieve(ids, rid))
            w.end(rid)

    if shm:
        R.step("F: ours: an unregistered worker's reservation is dropped, not published", abandoned)

    def committed_after_clear():
        with Beds(R, args.url, C, "swept") as b:
            w, ids = b.workers[0], [1, 2, 3]
            key = w.key(ids, R.request())
            slots, indices = w.inner.prepare_store(key, w.instance)
            check(w.c.clear(force=True).result(T) is None)
            write(w, slots, ids, indices)
            slots = None
            check(w.inner.commit_store(key, w.instance, []) is False,
                  "a reservation that clear(force) dropped was committed")
            check(w.hits(ids, R.request()) == 0)
            store(w, ids, R.request())
            check(w.granted == 3)

    if shm:
        R.step("F: ours: clear(force) drops reservations, their commit is False", committed_after_clear)
