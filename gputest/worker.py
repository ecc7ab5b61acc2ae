"""One engine worker of gputest: a KV cache as vLLM 0.33 lays it out, its IPC handles and its events.

Reads one JSON object a line on stdin and answers each with one line on stdout. It speaks no protocol of the
cache server: the driver does. With --device cpu the cache is POSIX shared memory, which is for trying gputest itself.
"""

import collections
import ctypes
import json
import mmap
import os
import struct
import sys
import time

import torch

TIMELINE_BYTES = 32768
TIMELINE_EXPORT = struct.Struct("!B64sQQ")


def mixed(x):
    """Scrambles int32 values, the same on every device."""
    x = x * 1540483477
    x = x ^ ((x >> 15) & 0x1FFFF)
    return x * 668265261


class Driver:
    """The few calls of libcuda that torch does not offer."""

    def __init__(self):
        self.lib = ctypes.CDLL("libcuda.so.1")

    def call(self, name, *args):
        code = getattr(self.lib, name)(*args)
        if code != 0:
            raise RuntimeError(f"{name}: CUDA error {code}")

    def base(self, ptr):
        base, size = ctypes.c_uint64(), ctypes.c_size_t()
        self.call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(ptr))
        return base.value, size.value

    def export(self, ptr):
        handle = (ctypes.c_char * 64)()
        self.call("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(ptr))
        return bytes(handle)

    def open(self, handle):
        class Handle(ctypes.Structure):
            _fields_ = [("data", ctypes.c_char * 64)]

        ptr = ctypes.c_uint64()
        h = Handle.from_buffer_copy(handle)
        f = self.lib.cuIpcOpenMemHandle_v2
        f.argtypes = [ctypes.c_void_p, Handle, ctypes.c_uint]
        code = f(ctypes.addressof(ptr), h, 1)
        if code != 0:
            raise RuntimeError(f"cuIpcOpenMemHandle: CUDA error {code}")
        return ptr.value


class Timeline:
    """Events as values in device memory (isolated_ipc): 81-byte handles."""

    def __init__(self, driver):
        self.driver = driver
        self.buffer = ctypes.c_uint64()
        driver.call("cuMemAlloc_v2", ctypes.byref(self.buffer), ctypes.c_size_t(TIMELINE_BYTES))
        driver.call("cuMemsetD8_v2", self.buffer, ctypes.c_ubyte(0), ctypes.c_size_t(TIMELINE_BYTES))
        driver.call("cuCtxSynchronize")
        self.handle = driver.export(self.buffer.value)
        self.seq = 0
        self.opened = {self.handle: self.buffer.value}

    def record(self, stream):
        self.seq += 1
        self.driver.call(
            "cuStreamWriteValue64_v2", ctypes.c_void_p(stream.cuda_stream),
            ctypes.c_uint64(self.buffer.value + 8), ctypes.c_uint64(self.seq), ctypes.c_uint(0))
        return TIMELINE_EXPORT.pack(1, self.handle, 8, self.seq)

    def wait(self, handle, stream):
        version, memory, offset, seq = TIMELINE_EXPORT.unpack(handle)
        if version != 1 or offset % 8 or not 0 < offset < TIMELINE_BYTES:
            raise RuntimeError(f"timeline event: version {version}, offset {offset}")
        if seq == 0:
            return
        if memory not in self.opened:
            self.opened[memory] = self.driver.open(memory)
        self.driver.call(
            "cuStreamWaitValue64_v2", ctypes.c_void_p(stream.cuda_stream),
            ctypes.c_uint64(self.opened[memory] + offset), ctypes.c_uint64(seq), ctypes.c_uint(0))


class Worker:
    def __init__(self, device):
        self.gpu = device != "cpu"
        self.device = torch.device(device)
        self.kept = collections.deque(maxlen=4096)  # exported events live as long as somebody may look
        self.timer = None
        if self.gpu:
            torch.cuda.set_device(self.device)
            torch.zeros(1, device=self.device)  # the context
            self.stream = torch.cuda.Stream()
            self.driver = Driver()
            self.timeline = None

    # Memory.

    def alloc(self, layers, blocks, slots, heads, width, order, planes=1, bytes=2, wrapper="cuda"):
        """Makes a cache and answers with the tensors of a registration.

        order is vLLM's name of the layout: LBNHC (NHD), LBHNC (HND), BLNHC, BLHNC. width is elements of one head
        of one token, K and V together. planes=2 makes separate tensors [2, blocks, slots, heads, width] instead,
        as older engines have.
        """
        self.views = None
        self.storages = []
        self.dtype = {1: torch.uint8, 2: torch.int16}[bytes]
        name = {1: "uint8", 2: "bfloat16"}[bytes]
        self.slots, self.heads, self.width, self.planes, self.bytes = slots, heads, width, planes, bytes
        n, c = slots * heads * width, width
        hnd = order in ("LBHNC", "BLHNC")
        self.views, tensors = [], []
        if planes == 2:
            for _ in range(layers):
                flat = self.new_storage(2 * blocks * n * bytes)
                t = flat.view(self.dtype).view(2, blocks, slots, heads, width)
                if hnd:
                    t = flat.view(self.dtype).view(2, blocks, heads, slots, width)
                self.views.append([v.permute(0, 2, 1, 3) if hnd else v for v in (t[0], t[1])])
                tensors.append(self.wrap(t, flat, name, wrapper))
            return {"tensors": tensors, "uuid": self.uuid(), "bytes": sum(s.numel() for s in self.storages)}
        flat = self.new_storage(layers * blocks * n * bytes)
        typed = flat.view(self.dtype)
        layer_step, block_step = (blocks * n, n) if order[0] == "L" else (n, layers * n)
        inner = (slots * c, c, 1) if hnd else (c, heads * c, 1)  # strides of head, slot, element
        for layer in range(layers):
            # The logical view [blocks, heads, slots, width], as vLLM has it.
            view = typed.as_strided((blocks, heads, slots, c), (block_step, *inner), layer * layer_step)
            physical = view if hnd else view.permute(0, 2, 1, 3)
            self.views.append([view.permute(0, 2, 1, 3)])
            tensors.append(self.wrap(physical, flat, name, wrapper))
        return {"tensors": tensors, "uuid": self.uuid(), "bytes": flat.numel()}

    def new_storage(self, size):
        if self.gpu:
            flat = torch.zeros(size, dtype=torch.int8, device=self.device)
        else:
            self.shm = f"/lmcache_kv_gputest_{os.getpid()}_{len(self.storages)}"
            with open("/dev/shm" + self.shm, "w+b") as f:
                f.truncate(size)
                flat = torch.frombuffer(mmap.mmap(f.fileno(), size), dtype=torch.int8)
        self.storages.append(flat)
        return flat

    def uuid(self):
        return str(torch.cuda.get_device_properties(self.device).uuid) if self.gpu else "cpu"

    def wrap(self, t, flat, dtype, wrapper):
        out = {"type": wrapper, "dtype": dtype, "shape": list(t.shape), "stride": list(t.stride()),
               "storage_offset": t.storage_offset(), "uuid": self.uuid()}
        if not self.gpu:
            out.update(type="cpu_shm", shm=self.shm, size=flat.numel())
        elif wrapper == "cuda":
            h = flat.untyped_storage()._share_cuda_()
            out["handle"] = [v.hex() if isinstance(v, bytes) else v for v in h]
        elif wrapper == "cuda_raw":
            start = t.data_ptr()
            base, _ = self.driver.base(start)
            out.update(ipc=self.driver.export(base).hex(), offset=start - base, size=t.numel() * t.element_size(), storage_offset=0)
        else:
            raise ValueError(wrapper)
        return out

    # Content: a value for each (seed, token, layer, head, element), whatever the layout.

    def content(self, seed, tokens, layer):
        dev = self.device
        t = torch.arange(tokens[0], tokens[1], dtype=torch.int32, device=dev)[:, None, None]
        h = torch.arange(self.heads, dtype=torch.int32, device=dev)[None, :, None]
        c = torch.arange(self.width * self.planes, dtype=torch.int32, device=dev)[None, None, :]
        x = mixed(t * 40503 + h * 9176 + c * 131 + layer * 65599 + seed * 7919)
        return ((x >> 9) & ((1 << (8 * self.bytes - 1)) - 1)).to(self.dtype)

    def each(self, seed, ids, first):
        """Yields every (view, blocks, expected values), in pieces that fit."""
        step = max(1, (1 << 24) // (self.slots * self.heads * self.width))
        for layer, planes in enumerate(self.views):
            for at in range(0, len(ids), step):
                some = torch.tensor(ids[at:at + step], dtype=torch.int64, device=self.device)
                start = first + at * self.slots
                want = self.content(seed, (start, start + len(some) * self.slots), layer)
                want = want.view(len(some), self.slots, self.heads, -1)
                for p, view in enumerate(planes):
                    yield view, some, want[..., p * self.width:(p + 1) * self.width]

    def fill(self, seed, ids, first=0):
        for view, some, want in self.each(seed, ids, first):
            view[some] = want
        self.sync()
        return {}

    def check(self, seed, ids, first=0, untouched=None):
        """Counts wrong elements in the blocks, and, where asked, others that are not the scramble's value."""
        wrong = torch.zeros((), dtype=torch.int64, device=self.device)
        for view, some, want in self.each(seed, ids, first):
            wrong += (view[some] != want).sum()
        out = {"wrong": int(wrong)}
        if untouched is not None:
            dirty = torch.zeros((), dtype=torch.int64, device=self.device)
            for planes in self.views:
                for view in planes:
                    keep = torch.ones(view.shape[0], dtype=torch.bool, device=self.device)
                    keep[torch.tensor(ids, dtype=torch.int64, device=self.device)] = False
                    rest = keep.nonzero().flatten()
                    for at in range(0, len(rest), 1024):
                        dirty += (view[rest[at:at + 1024]] != untouched).sum()
            out["dirty"] = int(dirty)
        return out

    def scramble(self, value=0):
        """Overwrites the whole cache; answers with what an element is now."""
        for s in self.storages:
            s.fill_(0x5A)
        self.sync()
        return {"value": 0x5A if self.bytes == 1 else 0x5A5A}

    # Events.

    def record(self, scheme="event", sleep_ms=0):
        """Records an event behind sleep_ms of work, as an engine's forward is, and answers with its handle."""
        if not self.gpu:
            return {"event": b"stub_ipc_handle".hex()}
        with torch.cuda.stream(self.stream):
            if sleep_ms:
                torch.cuda._sleep(int(sleep_ms * 1.9e6))
            self.timer = torch.cuda.Event(enable_timing=True)
            self.timer.record(self.stream)
            if scheme == "timeline":
                if self.timeline is None:
                    self.timeline = Timeline(self.driver)
                return {"event": self.timeline.record(self.stream).hex()}
            event = torch.cuda.Event(interprocess=True)
            event.record(self.stream)
            self.kept.append(event)
            return {"event": event.ipc_handle().hex()}

    def wait(self, event, limit=30.0):
        """Waits for the server's event and answers with the time since record on the device's clock."""
        handle = bytes.fromhex(event)
        if not self.gpu or not handle:
            return {"device_ms": 0.0}
        end = torch.cuda.Event(enable_timing=True)
        if len(handle) == TIMELINE_EXPORT.size:
            self.timeline.wait(handle, self.stream)
        else:
            imported = torch.cuda.Event.from_ipc_handle(self.device, handle)
            imported.wait(self.stream)
            self.kept.append(imported)
        end.record(self.stream)
        deadline = time.monotonic() + limit
        while not end.query():
            if time.monotonic() > deadline:
                raise TimeoutError(f"the server's event did not fire within {limit} s")
        return {"device_ms": self.timer.elapsed_time(end) if self.timer is not None else 0.0}

    def sync(self):
        if self.gpu:
            torch.cuda.synchronize()

    # Load.

    def matmul(self, seconds, n=8192):
        """Multiplies matrices for a time and answers with the rate."""
        if not self.gpu:
            time.sleep(seconds)
            return {"tflops": 0.0}
        a = torch.randn(n, n, dtype=torch.bfloat16, device=self.device)
        b = torch.randn(n, n, dtype=torch.bfloat16, device=self.device)
        out = torch.empty_like(a)
        for _ in range(20):
            torch.mm(a, b, out=out)
        torch.cuda.synchronize()
        start, done = time.perf_counter(), 0
        while time.perf_counter() - start < seconds:
            for _ in range(20):
                torch.mm(a, b, out=out)
            torch.cuda.synchronize()
            done += 20
        return {"tflops": done * 2 * n**3 / (time.perf_counter() - start) / 1e12}

    def contiguous(self, size):
        """Measures one pinned copy each way: the ceiling of this machine."""
        if not self.gpu:
            return {"store": 0.0, "load": 0.0}
        dev = torch.empty(size, dtype=torch.uint8, device=self.device)
        host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        rates = []
        for dst, src in ((host, dev), (dev, host)):
            best = 0.0
            for _ in range(4):
                a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                with torch.cuda.stream(self.stream):
                    a.record(self.stream)
                    dst.copy_(src, non_blocking=True)
                    b.record(self.stream)
                torch.cuda.synchronize()
                best = max(best, size / a.elapsed_time(b) / 1e6)
            rates.append(best)
        return {"store": rates[0], "load": rates[1]}

    def free(self):
        self.views, self.storages = None, []
        if self.gpu:
            torch.cuda.empty_cache()
        return {}

    def info(self):
        out = {"torch": torch.__version__, "pid": os.getpid(), "uuid": self.uuid(), "device": str(self.device)}
        if self.gpu:
            out["name"] = torch.cuda.get_device_name(self.device)
        return out


def main():
    device = sys.argv[1]
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever else prints must not mix with replies
    worker = Worker(device)
    print(json.dumps({"ok": True, **worker.info()}), file=replies, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            out = {"ok": True, **getattr(worker, request.pop("do"))(**request)}
        except Exception as e:  # the driver decides what it means
            out = {"ok": False, "error": f"{type(e).__name__}: {e}"}
        print(json.dumps(out), file=replies, flush=True)


if __name__ == "__main__":
    try:
        main()
    finally:
        for name in os.listdir("/dev/shm"):
            if name.startswith(f"lmcache_kv_gputest_{os.getpid()}_"):
                os.unlink("/dev/shm/" + name)
