#!/usr/bin/env python3
"""The torch end of TestRealTorch.

usage: check_torch.py DIRECTORY

Reads DIRECTORY/ours.json ([{file, dtype, shape, sha256: [one per tensor]}]), loads every file with pickle.loads as the
client does, and writes DIRECTORY/result.json: a list of complaints. Then writes pickles of its own, DIRECTORY/*.pkl,
with DIRECTORY/theirs.json in the same form (a dtype and a shape per tensor).
"""

import hashlib
import json
import pathlib
import pickle
import sys
import warnings

import torch

warnings.simplefilter("ignore")
torch.set_num_threads(1)
d = pathlib.Path(sys.argv[1])


def raw(t):
    """Row-major bytes of any plain tensor."""
    if not t.numel():
        return b""
    size, u8 = t.element_size(), torch.uint8
    flat = torch.empty(0, dtype=u8).set_(t.untyped_storage())
    v = flat.as_strided((*t.shape, size), (*(s * size for s in t.stride()), 1), t.storage_offset() * size)
    return v.contiguous().numpy().tobytes()


def sha(b):
    return hashlib.sha256(b).hexdigest()


complaints = []
for case in json.loads((d / "ours.json").read_text()):
    try:
        tensors = pickle.loads((d / case["file"]).read_bytes())
    except Exception as e:
        complaints.append(f"{case['file']}: {type(e).__name__}: {e}")
        continue
    if len(tensors) != len(case["sha256"]):
        complaints.append(f"{case['file']}: {len(tensors)} tensors")
        continue
    for i, t in enumerate(tensors):
        if str(t.dtype) != "torch." + case["dtype"] or list(t.shape) != case["shape"] or not t.is_contiguous():
            complaints.append(f"{case['file']}[{i}]: {t.dtype} {tuple(t.shape)} {t.stride()}")
        elif sha(raw(t)) != case["sha256"][i]:
            complaints.append(f"{case['file']}[{i}]: other bytes")
(d / "result.json").write_text(json.dumps(complaints))

theirs = []


def dump(name, tensors, protocol):
    file = f"torch_{name}_p{protocol}.pkl"
    (d / file).write_bytes(pickle.dumps(tensors, protocol=protocol))
    theirs.append({
        "file": file,
        "dtypes": [str(t.dtype).split(".")[1] for t in tensors],
        "shapes": [list(t.shape) for t in tensors],
        "sha256": [sha(raw(t)) for t in tensors],
    })


def random(dtype, *shape):
    n = dtype.itemsize
    for s in shape:
        n *= s
    b = torch.randint(0, 2 if dtype == torch.bool else 256, (n,), dtype=torch.uint8)
    return b.view(dtype).reshape(shape)


dtypes = {v for v in vars(torch).values() if isinstance(v, torch.dtype)}
for dt in sorted(dtypes, key=str):
    try:
        pickle.dumps(torch.empty(1, dtype=dt))
    except Exception:
        continue
    for p in (2, 3, 4, 5):
        dump(str(dt)[6:], [random(dt, 3, 5), random(dt, 40, 1000)], p)  # within a frame; beyond 64 KiB
bf = torch.bfloat16
big = random(bf, 2, 8, 256, 512)
for p in (2, 3, 4, 5):
    dump("chunks", [random(bf, 2, 8, 256, 128) for _ in range(4)], p)
    dump("views", [big[:, 3], big[1], big.transpose(1, 2), big[..., ::3], big[:, :, 5:6], big[0, 0, 0, :0], big], p)
    dump("many", [random(torch.int16, 1 + i % 3) for i in range(1501)], p)
dump("large", [random(torch.uint8, 33 << 20)], 4)
(d / "theirs.json").write_text(json.dumps(theirs))
