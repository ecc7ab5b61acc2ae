"""What the clients of LMCache say to a server and what it answers, as lines that can be compared.

Import before any client is made. What differs between two runs by nature (instance and process ids, handles, offsets
in the pool, how often a client pinged or asked again) is replaced by a word or left out.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import threading

import zmq

from lmcache.v1.multiprocess.transport.zmq_impl.client import ZmqMultiprocessClient

REPLY_SECONDS = 3.0  # how long a line waits for its reply when it is taken; an answer comes within milliseconds

_who: str | None = None  # whose clients are being made
_records: list[_Record] = []
_lock = threading.Lock()
_words: dict[str, str] = {}
_by_request = False
_left_out: set[tuple[str, str]] = set()


class _Record:
    def __init__(self, who, operation, args):
        self.who, self.operation, self.args, self.future = who, operation, args, None


def by_request(on: bool) -> None:
    """From now on lines are told apart by request, and blocks are counted only: for requests that race."""
    global _by_request
    _by_request = on


class naming:
    """While it is entered, clients that first speak are called so; None leaves them out."""

    def __init__(self, who: str | None) -> None:
        self.who = who

    def __enter__(self) -> None:
        global _who
        self.before, _who = _who, self.who

    def __exit__(self, *_) -> None:
        global _who
        _who = self.before


def call(text: str, word: str) -> None:
    """Lines say word where they would say text."""
    _words[text] = word


def _digest(numbers) -> str:
    return hashlib.sha256(repr(list(numbers)).encode()).hexdigest()[:8]


def _ranges(numbers) -> str:
    """1-4,7 for 1 2 3 4 7."""
    if _by_request:
        return str(len(numbers))
    out: list[list[int]] = []
    for n in numbers:
        if out and n == out[-1][1] + 1:
            out[-1][1] = n
        else:
            out.append([n, n])
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in out) or "none"


def _key(k) -> str:
    s = f"[{k.start},{k.end}) of {len(k.token_ids)} tokens {_digest(k.token_ids)}, {k.request_id}, {_words.get(k.model_name, k.model_name)}"
    s += f", worker {k.worker_id} of {k.world_size}, readers {k.num_kv_readers}"
    if k.cache_salt:
        s += f", salt {k.cache_salt}"
    if k.request_configs:
        s += f", {sorted(k.request_configs.items())}"
    return s


def _slots(context: dict) -> str:
    """Which slots a server gave; not where in the pool they are."""
    out = []
    for slot in context.get("slots", []):
        out.append(f"{slot['length']} bytes {list(slot['shape'])} {slot['dtype']}")
    s = f"{len(out)} slots of {sorted(set(out))}"
    if "chunk_indices" in context:
        s += f", chunks {list(context['chunk_indices'])}"
    return s


def render(v, operation: str = "") -> str:
    """A value of a request or a reply as text."""
    name = type(v).__name__
    if name == "IPCCacheServerKey":
        return _key(v)
    if name == "BlockAllocationRecord":
        return f"{v.req_id}: blocks {_ranges(v.new_block_ids)}, {len(v.new_token_ids)} tokens {_digest(v.new_token_ids)}"
    if name == "EngineGroupInfo":
        return f"group {v.engine_group_id}, layers {_ranges(v.layer_indices)}, {v.tokens_per_block} tokens a block, window {v.sw_size_tokens}"
    if name == "RegisterEngineDrivenContextPayload":
        return (f"{_words.get(v.model_name, v.model_name)}, world {v.world_size}, {v.num_layers} layers, {v.block_size} tokens a block, "
                f"hidden {v.hidden_dim_size}, {v.dtype_str}, mla {v.use_mla}, slots {v.num_physical_slots}")
    if name == "RegisterEngineDrivenContextResponse":
        return "a pool" if v.shm_name and v.pool_size else "no pool"
    if name == "PrepareStoreResponse":
        return _slots(v.context)
    if name == "PrepareRetrieveResponse":
        return f"{v.success}, {len(v.data)} bytes, {_slots(v.context)}"
    if "Wrapper" in name:
        return f"{name} {v.shape if hasattr(v, 'shape') else ''}".strip()
    if isinstance(v, bool) or v is None:
        return str(v)
    if isinstance(v, int):
        if v > 1 << 32:
            return "an instance"
        return "a process" if operation == "report_block_allocation" else str(v)
    if isinstance(v, bytes):
        return "a handle" if v else "no handle"
    if isinstance(v, str):
        return _words.get(v, v)
    if isinstance(v, (list, tuple)):
        if v and all(isinstance(x, (list, tuple)) for x in v) and all(isinstance(i, int) for x in v for i in x):
            return "blocks " + " and ".join(_ranges(x) for x in v)
        return "(" + ", ".join(render(x) for x in v) + ")"
    if isinstance(v, dict):
        return "{" + ", ".join(f"{k}: {render(x)}" for k, x in sorted(v.items())) + "}"
    return str(v)


_monitor, _monitors = zmq.Socket.get_monitor_socket, itertools.count()


def _get_monitor_socket(self, events=None, addr=None):
    """pyzmq names a monitor by its socket's descriptor, which a new client may have while an old one is being closed."""
    return _monitor(self, events, addr or f"inproc://monitor-{next(_monitors)}")


zmq.Socket.get_monitor_socket = _get_monitor_socket

_call = ZmqMultiprocessClient._call


def _traced(self, spec, args, kwargs):
    if not hasattr(self, "_who"):
        self._who = _who
    if self._who is None:
        return _call(self, spec, args, kwargs)
    payloads = spec.bind_payloads(args, kwargs)
    if _by_request:
        records = [_Record(f"{self._who}, {name}", spec.operation, text) for name, text in _split(spec.operation, payloads)]
    else:
        records = [_Record(self._who, spec.operation, ", ".join(render(p, spec.operation) for p in payloads))]
    with _lock:
        _records.extend(records)
    future = _call(self, spec, args, kwargs)
    for record in records:
        record.future = future
    return future


def _split(operation: str, payloads):
    """What a call says of each request."""
    if operation == "report_block_allocation":
        return [(r.req_id, render(r)) for r in payloads[2]]
    first = payloads[0] if payloads else ""
    name = getattr(first, "request_id", first if isinstance(first, str) else "")
    return [(name, ", ".join(render(p, operation) for p in payloads))]


ZmqMultiprocessClient._call = _traced


def _reply(record: _Record) -> str:
    future = record.future
    if not hasattr(future, "result"):
        return "a stream"
    try:
        return render(future.result(REPLY_SECONDS))
    except TimeoutError:
        return "no reply"
    except Exception as e:  # noqa: BLE001 a refusal
        return f"{type(e).__name__}"


def without(operation: str, request: str) -> None:
    """Leaves out what a race decides: whether an operation is sent for a request."""
    _left_out.add((operation, request))


def settle() -> None:
    """Waits until what was asked is answered."""
    with _lock:
        records = _records[:]
    for r in records:
        if hasattr(r.future, "wait"):
            r.future.wait(REPLY_SECONDS)


def take() -> dict[str, list[str]]:
    """The lines since the last call, by client, without pings, which have their own time."""
    with _lock:
        records = [r for r in _records if r.operation != "ping"]
        _records.clear()
    out: dict[str, list[str]] = {}
    for r in records:
        line = f"{r.operation} {r.args} -> {_reply(r)}"
        if r.operation == "query_prefetch_status" and line.endswith("-> None"):
            continue
        if any(r.operation == operation and request in re.split(r"[ ,:()]+", r.args) for operation, request in _left_out):
            continue
        # A thread of its own subscribes.
        out.setdefault(r.who + " events" * (r.operation == "subscribe_kv_events"), []).append(line)
    return out


def pings(who: str) -> list[str]:
    """What a client's pings since the last take were answered, up to the first that still waits."""
    with _lock:
        records = [r for r in _records if r.operation == "ping" and r.who == who]
    out = []
    for r in records:
        if r.future is None or not r.future.query():
            break
        out.append(_reply(r))
    return out
