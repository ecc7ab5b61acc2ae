#!/usr/bin/env python3
"""Write msgspec_verdicts.json: odd frames and what msgspec makes of them.

Needs msgspec only (pip install msgspec==0.23.0). The types are declared as
spec sections 2 and 6 describe those of lmcache 0.5.6. Each case is a frame, the
codec it is for and what comes out: the bytes of the decoded value encoded again,
or null where msgspec refuses it. lmcache-go must do the same; cases where it
means to differ are listed in verdicts_test.go.

    make_verdicts.py > msgspec_verdicts.json
"""
import enum
import json
import math
import struct
import sys
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypedDict

import msgspec
from msgspec.msgpack import Ext

Nat = Annotated[int, msgspec.Meta(ge=0)]


def check_salt(s):
    if set(s) & set("@/\\\0") or len(s) > 128:
        raise ValueError("salt")


@dataclass
class Key:
    model_name: str
    world_size: int
    worker_id: int | None
    token_ids: tuple[int, ...]
    start: int
    end: int
    request_id: str
    cache_salt: str = ""
    request_configs: dict[str, Any] | None = None
    num_kv_readers: int = 0

    def __post_init__(self):
        check_salt(self.cache_salt)


class Context(msgspec.Struct):
    instance_id: int
    model_name: str
    world_size: int
    block_size: int
    num_layers: int
    hidden_dim_size: int
    dtype_str: str
    use_mla: bool
    num_physical_slots: int | None = None

    def __post_init__(self):
        if self.num_physical_slots is not None and self.num_physical_slots <= 0:
            raise ValueError("slots")  # the reference's handler refuses it


class Group(msgspec.Struct):
    engine_group_id: int
    layer_indices: tuple[int, ...] = ()
    tokens_per_block: int = 0
    sw_size_tokens: int = -1
    extra_object_group_tag: int = 0
    recurrent_state: bool = False


class Hints(TypedDict, total=False):
    kv_layout: Literal["NHD", "HND", "BLHNC", "BLNHC"]
    num_kv_heads: int
    tokens_per_block: int
    kv_list_layout: Literal["k_v", "unified"]
    head_dim: int


class Engine(enum.Enum):
    VLLM = "vllm"
    ATOM = "atom"
    SGLANG = "sglang"
    TRTLLM = "trtllm"
    MOCK = "mock"


@dataclass
class Allocation:
    req_id: str
    new_block_ids: list[int]
    new_token_ids: list[int]


@dataclass
class ObjectKey:
    chunk_hash: bytes
    model_name: str
    kv_rank: int
    object_group_id: int = 0
    cache_salt: str = ""

    def __post_init__(self):
        check_salt(self.cache_salt)
        if "@" in self.model_name or self.object_group_id < 0:
            raise ValueError("object key")


@dataclass
class Layout:
    shapes: list[list[int]]
    dtypes: list[str]

    def __post_init__(self):
        if len(self.shapes) != len(self.dtypes):
            raise ValueError("layout")


@dataclass
class Address:
    offset: int
    size: int


@dataclass
class Event:
    seq: int
    kind: str
    medium: str
    model_name: str
    block_hashes: list[bytes]
    parent_block_hash: bytes | None
    token_ids: list[int]


@dataclass
class Batch:
    enabled: bool
    incarnation: int
    next_cursor: int
    lost: bool
    events: list[Event]


class Call(msgspec.Struct):
    method: str
    payload: bytes


SIZES = {"bfloat16": 2, "float32": 4, "uint8": 1}


class Metadata(msgspec.Struct, forbid_unknown_fields=True):
    dtype: str
    shape: tuple[Nat, ...]
    stride: tuple[Nat, ...]
    storage_offset: Nat
    device_uuid: str

    def __post_init__(self):
        if self.dtype not in SIZES or len(self.shape) != len(self.stride):
            raise ValueError("metadata")

    def span(self):
        if 0 in self.shape:
            return 0
        last = self.storage_offset + sum((n - 1) * s for n, s in zip(self.shape, self.stride))
        return SIZES[self.dtype] * (last + 1)


class Base(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    version: Literal[1]
    metadata: Metadata


class Cuda(Base, tag="cuda"):
    handle: tuple[int, bytes | None, Nat, Nat, bytes | None, Nat, bytes | None, bool]

    def __post_init__(self):
        if self.metadata.span() > self.handle[2]:
            raise ValueError("span")


class Raw(Base, tag="cuda_raw"):
    ipc_handle: Annotated[bytes, msgspec.Meta(min_length=64, max_length=64)]
    alloc_offset: Nat
    nbytes: Nat

    def __post_init__(self):
        if self.metadata.span() > self.nbytes:
            raise ValueError("span")


class Vmm(Base, tag="cuda_vmm"):
    export_id: Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
    kind: Literal["posix_fd", "fabric"]
    fabric_blob: bytes | None
    alloc_size: Nat
    alloc_offset: Nat
    nbytes: Nat

    def __post_init__(self):
        if self.metadata.span() > self.nbytes or self.alloc_offset + self.nbytes > self.alloc_size:
            raise ValueError("span")
        if (self.kind == "fabric") != (self.fabric_blob is not None):
            raise ValueError("kind")


class Shm(Base, tag="cpu_shm"):
    shm_name: str
    nbytes: Nat

    def __post_init__(self):
        if self.metadata.span() > self.nbytes:
            raise ValueError("span")


Wrapper = Cuda | Raw | Vmm | Shm


def decode_device(frame):
    def hook(code, data):
        if code != 1:
            raise ValueError("ext")
        return msgspec.msgpack.decode(bytes(data), type=Wrapper)

    # The element type is a class of its own in the reference; here the hook's
    # result is checked by hand.
    out = msgspec.msgpack.Decoder(type=list[Any], ext_hook=hook).decode(frame)
    if not all(isinstance(w, Base) for w in out):
        raise ValueError("not a wrapper")
    return out


def encode_device(ws):
    return msgspec.msgpack.encode([Ext(1, msgspec.msgpack.encode(w)) for w in ws])


def typed(cls):
    return lambda frame: msgspec.msgpack.decode(frame, type=cls), msgspec.msgpack.encode


def coerced(cls):
    return lambda frame: cls(msgspec.msgpack.decode(frame)), msgspec.msgpack.encode


CODECS = {
    "int": coerced(int),
    "bool": coerced(bool),
    "opt_int": typed(int | None),
    "string": typed(str),
    "bytes": typed(bytes),
    "float": typed(float),
    "strings": typed(list[str]),
    "block_ids": typed(list[list[int]]),
    "key": typed(Key),
    "context": typed(Context),
    "groups": typed(list[Group]),
    "hints": typed(Hints),
    "engine_type": typed(Engine),
    "allocations": typed(list[Allocation]),
    "object_keys": typed(list[ObjectKey]),
    "layouts": typed(dict[int, Layout]),
    "addresses": typed(list[Address]),
    "batch": typed(Batch),
    "module_call": typed(Call),
    "store_reply": typed(tuple[bytes, bool]),
    "devices": (decode_device, encode_device),
}


class Raw8(bytes):
    """Bytes that are a msgpack document already."""


class Pairs(list):
    """A map with repeated or odd keys."""


def enc(v):
    """Encode v; unlike msgspec's encoder it takes Raw8 and Pairs."""
    if isinstance(v, Raw8):
        return bytes(v)
    if isinstance(v, Pairs):
        return b"\xde" + struct.pack(">H", len(v)) + b"".join(enc(k) + enc(x) for k, x in v)
    if isinstance(v, dict):
        head = bytes([0x80 | len(v)]) if len(v) < 16 else b"\xde" + struct.pack(">H", len(v))
        return head + b"".join(enc(k) + enc(x) for k, x in v.items())
    if isinstance(v, (list, tuple)):
        head = bytes([0x90 | len(v)]) if len(v) < 16 else b"\xdc" + struct.pack(">H", len(v))
        return head + b"".join(enc(x) for x in v)
    return msgspec.msgpack.encode(v)


def wide(v):
    """The same value in the widest forms there are."""
    if isinstance(v, bool) or v is None or isinstance(v, (float, Raw8)):
        return v
    if isinstance(v, Ext):
        return Raw8(b"\xc9" + struct.pack(">Ib", len(v.data), v.code) + v.data)
    if isinstance(v, int):
        return Raw8(b"\xcf" + struct.pack(">Q", v) if v >= 0 else b"\xd3" + struct.pack(">q", v))
    if isinstance(v, str):
        return Raw8(b"\xdb" + struct.pack(">I", len(v.encode())) + v.encode())
    if isinstance(v, bytes):
        return Raw8(b"\xc6" + struct.pack(">I", len(v)) + v)
    if isinstance(v, dict):
        return Raw8(b"\xdf" + struct.pack(">I", len(v)) + b"".join(enc(wide(k)) + enc(wide(x)) for k, x in v.items()))
    return Raw8(b"\xdd" + struct.pack(">I", len(v)) + b"".join(enc(wide(x)) for x in v))


POOL = [
    None, True, False, 0, 1, -1, 2**31, 2**63 - 1, -(2**63), 1.5, 0.0, math.nan, "", "x", "é", "5", b"", b"x", b"5",
    [], [1], ["x"], [[]], {}, {"a": 1}, {1: 2}, Ext(5, b"xy"), Raw8(b"\xc1"), Raw8(b"\xa2\xff\xfe"),
    Raw8(b"\xa3\xed\xa0\x80"), Raw8(b"\xca\x3f\x80\x00\x00"), Raw8(b"\xcc\x05"), Raw8(b"\xd3" + b"\xff" * 8),
]

FEW = [None, True, -1, 1.5, "x", b"x", [], {}]

CASES = []


def case(codec, frame):
    frame = bytes(frame)
    decode, encode = CODECS[codec]
    try:
        out = encode(decode(frame)).hex()
    except Exception:
        out = None
    CASES.append({"codec": codec, "frame": frame.hex(), "out": out})


def around(codec, v):
    """Cases that any codec can have: widths, ends, other types."""
    good = enc(v)
    case(codec, good)
    case(codec, enc(wide(v)))
    case(codec, good + b"\xc0")
    case(codec, good[:-1])
    case(codec, b"")
    for p in POOL:
        case(codec, enc(p))


def mapped(codec, m, wrap=lambda m: m, pools=None, pool=POOL):
    """Cases of a map: each key absent, repeated, of each other type."""
    around(codec, wrap(m))
    case(codec, enc(wrap(dict(reversed(m.items())))))
    case(codec, enc(wrap({**m, "future": {"a": [1, {"b": b"x"}]}})))
    case(codec, enc(wrap(Pairs([*m.items(), (7, 1)]))))
    case(codec, enc(wrap(Pairs([*m.items(), (Raw8(b"\xa2\xff\xfe"), 1)]))))
    case(codec, enc(wrap(list(m.values()))))
    for k, v in m.items():
        case(codec, enc(wrap({n: x for n, x in m.items() if n != k})))
        case(codec, enc(wrap(Pairs([(k, Raw8(b"\xc0" if v is not None else b"\x01")), *m.items()]))))
        case(codec, enc(wrap(Pairs([*m.items(), (k, v)]))))
        for p in pool + (pools or {}).get(k, []):
            case(codec, enc(wrap({**m, k: p})))


KEY = {
    "model_name": "m", "world_size": 2, "worker_id": None, "token_ids": [1, 200, 70000], "start": 0, "end": 2,
    "request_id": "r", "cache_salt": "s", "request_configs": {"lmcache.a": [1, None]}, "num_kv_readers": 1,
}
META = {"dtype": "bfloat16", "shape": [2, 3], "stride": [3, 1], "storage_offset": 1, "device_uuid": "u"}
HANDLE = [0, b"h", 64, 0, None, 0, b"", True]


def device(body):
    return [Ext(1, enc(body))]


def main():
    for codec in ("int", "bool", "opt_int", "string", "bytes", "float", "engine_type"):
        around(codec, {"string": "é", "bytes": b"\x00\xff", "float": 2.5, "engine_type": "vllm"}.get(codec, 300))
    for s in (" 7 ", "-7", "+7", "1_0", "1__0", "_1", "1_", "0x1", "1.0", "+-1", "٣", "9223372036854775807"):
        case("int", enc(s))
        case("int", enc(s.encode()))
    for v in (1e18, -1e18, 1e300, math.inf, -0.5, 2.9):
        case("int", enc(v))
    for v in ([[]], {"": None}, Raw8(b"\xdc\x00\x00"), Raw8(b"\xdf\x00\x00\x00\x00"), Ext(1, b""), 0.0, -0.0):
        case("bool", enc(v))
    for e in ("atom", "sglang", "trtllm", "mock", "VLLM", "vllm "):
        case("engine_type", enc(e))
    around("strings", ["a", "é"])
    around("block_ids", [[1, 2], [], [300, -1]])
    case("block_ids", enc([[1], [None]]))
    case("block_ids", enc([[1.0]]))
    mapped("key", KEY, pools={
        "cache_salt": ["a@b", "a/b", "a\\b", "a\0b", "x" * 128, "x" * 129, "é" * 128, "é" * 129],
        "token_ids": [[1, -1], [2**64 - 1], [True], [1.0], [None], [[1]], Raw8(b"\x92\x01"), Raw8(b"\xdd\xff\xff\xff\xff\x01")],
        "request_configs": [{"a": {"b": {"c": [1.5, b"x"]}}}, {1: 2}, {b"a": 1}, [], {"": None}],
    })
    mapped("context", {
        "instance_id": 7, "model_name": "m", "world_size": 1, "block_size": 16, "num_layers": 2,
        "hidden_dim_size": 64, "dtype_str": "half", "use_mla": False, "num_physical_slots": 256,
    })
    mapped("groups", {
        "engine_group_id": 1, "layer_indices": [0, 2], "tokens_per_block": 16, "sw_size_tokens": 128,
        "extra_object_group_tag": 1, "recurrent_state": True,
    }, lambda m: [m])
    case("groups", enc([]))
    for hints in ({"kv_layout": "HND"}, {"num_kv_heads": 8, "head_dim": 64}, {"kv_list_layout": "k_v", "tokens_per_block": 16}):
        mapped("hints", hints)
    mapped("allocations", {"req_id": "r", "new_block_ids": [1], "new_token_ids": [2, 300]}, lambda m: [m])
    mapped("object_keys", {
        "chunk_hash": b"\x01" * 32, "model_name": "m", "kv_rank": 0x01000100, "object_group_id": 1, "cache_salt": "s",
    }, lambda m: [m], pools={"model_name": ["a@b"], "cache_salt": ["a@b"]})
    mapped("layouts", {"shapes": [[1, 2], []], "dtypes": ["half", "uint8"]}, lambda m: {0: m})
    case("layouts", enc(Pairs([(1, {"shapes": [], "dtypes": []}), (1, {"shapes": [[1]], "dtypes": ["x"]})])))
    case("layouts", enc({"0": {"shapes": [], "dtypes": []}}))
    case("layouts", enc({}))
    mapped("addresses", {"offset": -1, "size": 4096}, lambda m: [m])
    event = {
        "seq": 1, "kind": "stored", "medium": "CPU", "model_name": "m", "block_hashes": [b"\x01" * 32],
        "parent_block_hash": None, "token_ids": [1, 300],
    }
    batch = {"enabled": True, "incarnation": 1700000000000000000, "next_cursor": 1, "lost": False, "events": [event]}
    mapped("batch", {**batch, "events": []})
    mapped("batch", event, lambda e: {**batch, "events": [e]}, pool=FEW)
    mapped("module_call", {"method": "a.b", "payload": b"x"})
    around("store_reply", [b"event", True])
    for v in ([b"e"], [b"e", True, 1], ["e", True], [b"e", 1], [None, True]):
        case("store_reply", enc(v))
    bodies = {
        "cuda": {"handle": HANDLE},
        "cuda_raw": {"ipc_handle": b"\x01" * 64, "alloc_offset": 0, "nbytes": 14},
        "cuda_vmm": {
            "export_id": b"\x02" * 16, "kind": "fabric", "fabric_blob": b"f", "alloc_size": 20, "alloc_offset": 6, "nbytes": 14,
        },
        "cpu_shm": {"shm_name": "/lmcache_kv_x", "nbytes": 14},
    }
    for tag, own in bodies.items():
        body = {"type": tag, **own, "version": 1, "metadata": META}
        mapped("devices", body, device, pools={
            "type": [*bodies, "hip"], "version": [2], "nbytes": [13], "alloc_size": [19], "alloc_offset": [7],
            "kind": ["posix_fd", "fabric", "other"], "ipc_handle": [b"\x01" * 63, b"\x01" * 65],
            "handle": [HANDLE[:7], HANDLE + [1]] + [HANDLE[:i] + [p] + HANDLE[i + 1:] for i in range(8) for p in FEW if tag == "cuda"],
        }, pool=FEW)
        mapped("devices", META, lambda m: device({**body, "metadata": m}), pools={
            "dtype": ["half", "torch.bfloat16", "bfloat16x", "uint8", "float32"],
            "shape": [[0, 3], [3, 3], [2], [2, 3, 1], [2**40, 2**40], [-1, 3], [True, 1]],
            "stride": [[1, 1], [-1, 1], [2**40, 2**40], [3.0, 1]], "storage_offset": [2, 0, 2**62, -1],
        }, pool=FEW) if tag in ("cuda", "cpu_shm") else None
    case("devices", enc([]))
    case("devices", enc([Ext(2, b"\x80")]))
    case("devices", enc([Ext(1, enc({"type": "cpu_shm", "shm_name": "", "nbytes": 0, "version": 1,
                                     "metadata": {**META, "shape": [0], "stride": [1], "storage_offset": 0}}) + b"\xc0")]))
    seen = {}
    for c in CASES:
        seen.setdefault((c["codec"], c["frame"]), c["out"])
    by_codec = {}
    for (codec, frame), out in seen.items():
        by_codec.setdefault(codec, []).append([frame, out] if out != frame else [frame])
    print('{"msgspec": "%s", "cases": {' % msgspec.__version__)
    for i, (codec, cases) in enumerate(by_codec.items()):
        print(',' * (i > 0) + json.dumps(codec) + ': [')
        print(",\n".join(json.dumps(c, separators=(",", ":")) for c in cases) + "]")
    print("}}")
    print(f"{len(seen)} cases", file=sys.stderr)


main()
