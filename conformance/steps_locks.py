"""Steps on sessions and read locks: readers, ranks, freeing, ending, second lookups.

A lookup holds each object of its hit once per reader; a retrieve gives one hold
back, FREE_LOOKUP_LOCKS gives back one per reader. Whether a hold is left shows
in clear(force=False), which drops exactly the objects nobody holds.
"""

from __future__ import annotations

from client import Skip, Worker, check, connect, eventually, l1_status, make_key, prompt_tokens


class Beds:
    """Workers of one fresh model, all on one client socket."""

    def __init__(self, run, url, chunk, name, world=1, chunks=3):
        self.c = connect(url)
        self.model = f"conf/{run.salt}-{name}"
        self.workers = [
            Worker(self.c, self.model, chunk, chunks, world=world, rank=r, timeout=run.timeout)
            for r in range(world)
        ]

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        try:
            for w in self.workers:
                w.close()
        except Exception:  # noqa: BLE001
            if kind is None:  # else the step's own failure is the one to tell
                raise
        self.c.close()


def store(worker, ids, rid):
    check(worker.store(ids, rid) is True, "store failed")
    worker.end(rid)


def drops_all(run, worker, prompts, seconds=0.0):
    """clear(force=False) must leave none of the prompts; with seconds it may take that long."""

    def gone():
        check(worker.c.clear(force=False).result(run.timeout) is None)
        return all(worker.hits(ids, run.request()) == 0 for ids in prompts)

    if seconds:
        eventually(gone, seconds, "objects still held")
    else:
        check(gone(), "clear(force=False) left objects: somebody still holds them")


def add(R, args, C):
    T = R.timeout

    def ranks_and_readers():
        with Beds(R, args.url, C, "ranks", world=2) as b:
            w0, w1 = b.workers
            ids = [1, 2, 3]
            for w in b.workers:
                store(w, ids, R.request())
            rid = R.request()
            check(w0.lookup(ids, rid, readers=2) == 3)
            for i in range(2):
                check(w0.retrieve(ids, rid, readers=2), f"rank 0, reader {i}")
            check(not w0.retrieve(ids, rid, readers=2), "rank 0: a third retrieve must fail")
            # Rank 0's holds are used up, rank 1's are not.
            check(w0.c.clear(force=False).result(T) is None)
            check(w0.c.lookup(w1.key(ids, other := R.request(), worker=1), 1).result(T) is None)
            check(w0.c.query_prefetch_status(other).result(T) == 3, "clear dropped objects rank 1 was promised")
            w0.c.free_lookup_locks(w1.key(ids, other, worker=1), 1).result(T)
            w0.end(other)
            check(w0.hits(ids, R.request()) == 0, "clear kept objects that rank 0 had used up")
            for i in range(2):
                check(w1.retrieve(ids, rid, readers=2), f"rank 1, reader {i}")
            check(not w1.retrieve(ids, rid, readers=2), "rank 1: a third retrieve must fail")
            w0.end(rid)
            check(w0.c.clear(force=False).result(T) is None)
            check(w0.c.lookup(w1.key(ids, other := R.request(), worker=1), 1).result(T) is None)
            check(w0.c.query_prefetch_status(other).result(T) == 0, "rank 1's objects are still held")
            w0.end(other)

    R.step("K: readers and ranks each get their own retrieves", ranks_and_readers)

    def reader_limit():
        with Beds(R, args.url, C, "limit") as b:
            w, ids, rid = b.workers[0], [1], R.request()
            store(w, ids, R.request())
            check(w.lookup(ids, rid, readers=1000) == 1)
            key = w.key(ids, rid, readers=1000)
            for i in range(128):
                got = w.inner.prepare_retrieve(key, w.instance)
                check(got is not None, f"retrieve {i} of 128 failed")
                got = None
                w.inner.commit_retrieve(key, w.instance)
            check(w.inner.prepare_retrieve(key, w.instance) is None, "more than 128 readers were granted")
            w.end(rid)
            drops_all(R, w, [ids])

    R.step("K: num_kv_readers counts at most 128", reader_limit)

    def retrieve_then_free():
        with Beds(R, args.url, C, "mixed") as b:
            w, ids, rid = b.workers[0], [1, 2, 3], R.request()
            store(w, ids, R.request())
            check(w.lookup(ids, rid, readers=2) == 3)
            check(w.retrieve(ids, rid, readers=2))
            check(w.free(ids, rid, readers=2).result(T) is None)
            check(not w.retrieve(ids, rid, readers=2), "a freed chunk could be retrieved")
            w.end(rid)
            drops_all(R, w, [ids])

    R.step("K: one reader retrieves, the rest is freed", retrieve_then_free)

    def unaligned_free():
        # vLLM frees [0, tokens it has), which need not end at a chunk: the
        # chunk it ends in is still going to be retrieved.
        with Beds(R, args.url, C, "unaligned") as b:
            w, ids, rid = b.workers[0], [1, 2, 3], R.request()
            store(w, ids, R.request())
            check(w.lookup(ids, rid) == 3)
            key = make_key(w.model, prompt_tokens(ids, C), rid, 0, C + C // 2, worker=None)
            check(w.c.free_lookup_locks(key, 1).result(T) is None)
            check(not w.retrieve(ids, rid, first=0, last=1), "the first chunk was freed")
            check(w.retrieve(ids, rid, first=1, last=3), "chunks behind the freed range were lost")
            w.end(rid)
            drops_all(R, w, [ids])

    R.step("K: a free that ends inside a chunk spares that chunk", unaligned_free)

    def free_unread():
        # Freed before anybody asked for the result: the free takes the result.
        with Beds(R, args.url, C, "unread") as b:
            w, ids, rid = b.workers[0], [1, 2, 3], R.request()
            store(w, ids, R.request())
            check(w.c.lookup(w.key(ids, rid).no_worker_id_version(), 1).result(T) is None)
            check(w.free(ids, rid).result(T) is None)
            check(w.c.query_prefetch_status(rid).result(T) == 0, "the freed result was given out")
            w.end(rid)
            drops_all(R, w, [ids])

    R.step("K: a lookup freed before its result was read", free_unread)

    def free_then_end():
        # Both fire and forget, back to back on one socket, as vLLM does on an
        # abort: run the other way round, the holds would stay until their TTL.
        with Beds(R, args.url, C, "abort") as b:
            w = b.workers[0]
            prompts = [[100 + i, 200 + i, 300 + i] for i in range(20)]
            for ids in prompts:
                store(w, ids, R.request())
            last = None
            for ids in prompts:
                rid = R.request()
                check(w.lookup(ids, rid) == 3)
                w.free(ids, rid)
                last = w.c.end_session(rid)
            check(last.result(T) is None)
            drops_all(R, w, prompts)

    R.step("K: free_lookup_locks then end_session, unawaited, 20 times, leaves no hold", free_then_end)

    def overtaken():
        with Beds(R, args.url, C, "overtaken") as b:
            w, ids = b.workers[0], [1, 2, 3]
            store(w, ids, R.request())
            other = connect(args.url)
            rid = R.request()
            check(w.lookup(ids, rid) == 3)
            check(other.end_session(rid).result(T) is None)
            check(w.retrieve(ids, rid), "END_SESSION of another socket came first and the retrieve failed")
            drops_all(R, w, [ids], seconds=2.0)
            # The same as a race: nobody knows who is first.
            store(w, ids, R.request())
            for i in range(20):
                rid = R.request()
                check(w.lookup(ids, rid) == 3)
                ended = other.end_session(rid)
                check(w.retrieve(ids, rid), f"race {i}: the retrieve failed")
                check(ended.result(T) is None)
            drops_all(R, w, [ids], seconds=2.0)
            other.close()

    R.step("K: END_SESSION of another socket overtakes the retrieve, which succeeds", overtaken)

    def second_lookup_freed():
        with Beds(R, args.url, C, "again") as b:
            w, ids, rid = b.workers[0], [1, 2, 3], R.request()
            store(w, ids, R.request())
            for _ in range(2):
                check(w.lookup(ids, rid) == 3)
            check(w.retrieve(ids, rid), "the retrieve after a second lookup failed")
            check(w.free(ids, rid).result(T) is None)
            w.end(rid)
            drops_all(R, w, [ids])

    R.step("K: second lookup with one id; retrieve and free give everything back", second_lookup_freed)

    def preempted_and_resumed():
        # vLLM: a lookup that misses, a store, a preemption, and a lookup with
        # the same request id, which hits, with no END_SESSION in between.
        with Beds(R, args.url, C, "resumed") as b:
            w, ids, rid = b.workers[0], [1, 2, 3], R.request()
            check(w.lookup(ids, rid) == 0)
            check(w.store(ids, rid) is True)
            check(w.lookup(ids, rid) == 3)
            check(w.retrieve(ids, rid))
            w.end(rid)
            drops_all(R, w, [ids])

    R.step("K: miss, store, second lookup with one id, retrieve", preempted_and_resumed)

    if not args.answers:
        return

    def lookups_of_one_id():
        with Beds(R, args.url, C, "again-ours") as b:
            w, rid = b.workers[0], R.request()
            long, short = [1, 2, 3], [1, 2]
            store(w, long, R.request())
            for ids in (long, short, long):
                check(w.lookup(ids, rid) == len(ids))
            check(w.retrieve(long, rid), "the retrieve after a third lookup failed")
            w.end(rid)  # nothing_held, at the end of the run, sees whether it leaks

    R.step("K: ours: three lookups with one id, then a retrieve", lookups_of_one_id)

    def aborted():
        # vLLM frees nothing when it aborts a request before it allocated.
        with Beds(R, args.url, C, "aborted") as b:
            w, ids = b.workers[0], [1, 2, 3]
            store(w, ids, R.request())
            check(w.lookup(ids, rid := R.request()) == 3)
            w.end(rid)
            check(w.c.lookup(w.key(ids, rid := R.request()).no_worker_id_version(), 1).result(T) is None)
            w.end(rid)

    R.step("K: ours: requests aborted after their lookup", aborted)


def nothing_held(R, args):
    """The last step: no hold has outlived the grace of its session."""

    def released():
        if not args.http:
            raise Skip("needs --http")
        held = lambda: l1_status(args.http)["read_locked_count"]  # noqa: E731
        eventually(lambda: held() == 0, 35.0, f"{held()} objects are still held")

    R.step("K: ours: at the end nothing is held, what earlier lookups and aborts left included", released)
