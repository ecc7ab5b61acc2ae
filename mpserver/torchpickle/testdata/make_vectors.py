#!/usr/bin/env python3
"""Makes torch_vectors.json and many.pkl.gz from a real torch: see README.md.

usage: make_vectors.py DIRECTORY-TO-WRITE-TO
"""

import gzip
import json
import pathlib
import pickle
import sys
import warnings

import torch

warnings.simplefilter("ignore")


def patterned(dtype, *shape):
    """A tensor whose bytes count up, whatever its dtype."""
    n = dtype.itemsize
    for d in shape:
        n *= d
    raw = bytes((3 + 7 * i) & 0x3F if dtype != torch.bool else i & 1 for i in range(n))
    if not n:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(dtype).reshape(shape).clone()


def raw(t):
    """Row-major bytes, by reading the storage (works for every dtype)."""
    size, buf, out = t.element_size(), bytes(t.untyped_storage()), bytearray()

    def walk(dim, at):
        if dim == t.dim():
            out.extend(buf[at * size : (at + 1) * size])
            return
        for i in range(t.shape[dim]):
            walk(dim + 1, at + i * t.stride(dim))

    walk(0, t.storage_offset())
    return bytes(out)


def vector(name, tensors, protocol=4, dumps=pickle.dumps):
    data = dumps(tensors, protocol=protocol)
    try:
        pickle.loads(data)
        loads = True
    except Exception:
        loads = False
    return {
        "name": name, "protocol": protocol, "loads_in_torch": loads,
        "tensors": [
            {"dtype": str(t.dtype).split(".")[1], "shape": list(t.shape), "stride": list(t.stride()),
             "offset": t.storage_offset(), "raw": raw(t).hex()}
            for t in tensors
        ],
        "pickle": data.hex(),
    }


def python_pickler(obj, protocol):
    return pickle._dumps(obj, protocol=protocol)


def main():
    out = pathlib.Path(sys.argv[1])
    good = []
    dtypes = {getattr(torch, n) for n in dir(torch) if isinstance(getattr(torch, n), torch.dtype)}
    for d in sorted(dtypes, key=str):
        name = str(d).split(".")[1]
        try:
            pickle.dumps(torch.empty(1, dtype=d))
        except Exception:
            continue
        for p in (2, 3, 4, 5):
            good.append(vector(f"{name}_p{p}", [patterned(d, 2, 3)], p))
    bf = torch.bfloat16
    base = patterned(torch.int32, 100)
    grid = patterned(torch.float16, 3, 4, 5)
    for name, tensors in {
        "empty_list": [],
        "scalar": [patterned(torch.float32)],
        "zero_size": [patterned(bf, 0), patterned(bf, 2, 0, 3)],
        "one_dim_of_one": [patterned(bf, 1, 1, 4)],
        "slices_of_one_storage": [base[10:20], base[50:60:2], base[:0], base[99:]],
        "transposed": [grid.t() if grid.dim() == 2 else grid.permute(2, 0, 1), grid.transpose(1, 2), grid[:, 1, ::2]],
        "expanded": [patterned(torch.uint8, 3).unsqueeze(0).expand(4, 3), patterned(bf, 1).expand(5)],
        "overlapping": [base.as_strided((4, 4), (2, 1), 3)],
        "requires_grad": [patterned(torch.float32, 2).requires_grad_()],
        "many_dims": [patterned(torch.uint8, 1, 2, 1, 2, 1, 2, 1, 2)],
        "mixed": [patterned(torch.float8_e4m3fn, 4), patterned(bf, 3), patterned(torch.float8_e4m3fn, 5)],
        "kv_chunk": [patterned(bf, 2, 2, 4, 8) for _ in range(3)],
    }.items():
        for p in (2, 3, 4, 5):
            good.append(vector(f"{name}_p{p}", tensors, p))
    same = patterned(bf, 2, 2)
    good.append(vector("same_tensor_twice", [same, same]))
    good.append(vector("python_pickler_p4", [patterned(bf, 2, 2, 2), patterned(bf, 2, 2, 2)], 4, python_pickler))
    good.append(vector("python_pickler_p2", [patterned(bf, 2, 2, 2)], 2, python_pickler))

    bad = {
        "conj": [torch.ones(2, dtype=torch.complex64).conj()],
        "negative": [torch.ones(2, dtype=torch.complex64).conj().imag],
        "parameter": [torch.nn.Parameter(torch.ones(2))],
        "sparse": [torch.ones(2).to_sparse()],
        "quantized": [torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)],
        "meta": [torch.ones(2, device="meta")],
        "tensor_not_list": torch.ones(2),
        "tuple": (torch.ones(2),),
        "dict": {"a": torch.ones(2)},
        "list_of_int": [1],
        "list_of_bytes": [b"abc"],
        "list_of_list": [[torch.ones(2)]],
        "storage": [torch.ones(2).storage()],
        "untyped_storage": [torch.ones(2).untyped_storage()],
        "numpy": [torch.ones(2).numpy()],
        "function": [print],
        "none": None,
    }
    bad = {k: pickle.dumps(v, protocol=4).hex() for k, v in bad.items()}
    doc = {"torch": torch.__version__, "python": sys.version.split()[0], "good": good, "refused": bad}
    (out / "torch_vectors.json").write_text(json.dumps(doc, indent=0) + "\n")

    many = pickle.dumps([torch.tensor([i, -i], dtype=torch.int16) for i in range(2501)], protocol=4)
    (out / "many.pkl.gz").write_bytes(gzip.compress(many, 9, mtime=0))


main()
