"""NIXL's Python binding as an initiator for `lmcache-go nixl bench --compare python`.

It speaks the lines that package pair describes. GPU memory comes from the CUDA driver.
"""
import base64
import ctypes as C
import mmap
import os
import sys
import time

out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # logs do not mix with answers
os.environ.setdefault("NIXL_LOG_LEVEL", "WARN")

import numpy as np  # noqa: E402

try:
    from nixl._api import nixl_agent, nixl_agent_config, nixl_thread_sync_t
except ImportError:
    from nixl_cu12._api import nixl_agent, nixl_agent_config, nixl_thread_sync_t

MEM = {0: "DRAM", 1: "VRAM"}
state = {}


def word(seed, n):
    i = np.arange(1, n // 8 + 1, dtype=np.uint64)
    return i * np.uint64((seed * 0x9E3779B97F4A7C15 | 1) & (1 << 64) - 1)


def cuda_memory(dev, size):
    cuda = C.CDLL("libcuda.so.1")
    ctx, d, p = C.c_void_p(), C.c_int(), C.c_void_p()
    for st in (
        cuda.cuInit(0),
        cuda.cuDeviceGet(C.byref(d), dev),
        cuda.cuDevicePrimaryCtxRetain(C.byref(ctx), d),
        cuda.cuCtxSetCurrent(ctx),
        cuda.cuMemAlloc_v2(C.byref(p), C.c_size_t(size)),
    ):
        if st:
            raise RuntimeError("CUDA error %d" % st)
    return p.value


def start(w):
    mem, dev, size, params = int(w[1]), int(w[2]), int(w[3]), w[4]
    name, blob = w[6], base64.b64decode(w[7])
    # The same locking as the Go binding's default.
    agent = nixl_agent("py-%d" % os.getpid(), nixl_agent_config(backends=[], sync_mode=nixl_thread_sync_t.NIXL_THREAD_SYNC_RW))
    kv = {} if params == "-" else dict(p.split("=", 1) for p in params.split(";"))
    if kv.get("num_threads") == "0":
        del kv["num_threads"]
    agent.create_backend("UCX", kv)
    if mem == 0:
        # Huge pages and their alignment, as the other initiators have.
        huge = 2 << 20
        m = mmap.mmap(-1, size + huge, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        m.madvise(mmap.MADV_HUGEPAGE)
        whole = np.frombuffer(m, dtype=np.uint8)
        skip = -whole.ctypes.data % huge
        buf = whole[skip : skip + size]
        buf[:] = 0
        addr = buf.ctypes.data
    else:
        buf, addr = None, cuda_memory(dev, size)
    agent.register_memory([(addr, size, dev if mem else 0, "")], MEM[mem], backends=["UCX"])
    agent.add_remote_agent(blob)
    far_mem = int(w[8])
    state.update(agent=agent, buf=buf, addr=addr, mem=MEM[mem], dev=dev if mem else 0, name=name, far_mem=MEM[far_mem],
                 far_dev=int(w[9]) if far_mem else 0, far=int(w[10]), size=size)
    return "ok"


def build(op, length, count, stride, arrays):
    """From the numbers of blocks to a request, through lists of tuples or through numpy arrays."""
    s, agent = state, state["agent"]
    t = time.perf_counter_ns()
    if arrays:
        index = np.arange(count, dtype=np.uint64) * np.uint64(stride)
        a, b = np.empty((count, 3), dtype=np.uint64), np.empty((count, 3), dtype=np.uint64)
        a[:, 0], a[:, 1], a[:, 2] = index + np.uint64(s["addr"]), length, s["dev"]
        b[:, 0], b[:, 1], b[:, 2] = index + np.uint64(s["far"]), length, s["far_dev"]
    else:
        addr, dev, far, far_dev = s["addr"], s["dev"], s["far"], s["far_dev"]
        a = [(addr + i * stride, length, dev) for i in range(count)]
        b = [(far + i * stride, length, far_dev) for i in range(count)]
    req = agent.initialize_xfer(op, agent.get_xfer_descs(a, s["mem"]), agent.get_xfer_descs(b, s["far_mem"]), s["name"], backends=["UCX"])
    return req, time.perf_counter_ns() - t


def prepared(op, length, count, stride):
    """From the numbers of blocks to a request, through prepared lists."""
    s, agent = state, state["agent"]
    local = agent.prep_xfer_dlist("", [(s["addr"] + i * stride, length, s["dev"]) for i in range(count)], s["mem"], backends=["UCX"])
    remote = agent.prep_xfer_dlist(s["name"], [(s["far"] + i * stride, length, s["far_dev"]) for i in range(count)], s["far_mem"], backends=["UCX"])
    best = 1 << 62
    for _ in range(5):
        t = time.perf_counter_ns()
        index = list(range(count))
        req = agent.make_prepped_xfer(op, local, index, remote, index)
        best = min(best, time.perf_counter_ns() - t)
        agent.release_xfer_handle(req)
    local.release()
    remote.release()
    return best


def case(w):
    op, length, count, stride, nsec = w[1], *map(int, w[2:6])
    agent = state["agent"]
    best = {}
    for arrays in (False, True):
        for _ in range(5):
            req, t = build(op, length, count, stride, arrays)
            best[arrays] = min(t, best.get(arrays, t))
            agent.release_xfer_handle(req)
    ready = prepared(op, length, count, stride)
    req, _ = build(op, length, count, stride, True)
    transfer, check = agent.transfer, agent.check_xfer_state

    def once():
        st = transfer(req)
        while st == "PROC":
            st = check(req)
        if st != "DONE":
            raise RuntimeError(st)

    once()
    iters, cpu, wall, n = 0, 0, 0, 1
    best_cpu = best_wall = 1 << 62
    while wall < nsec:
        c, t = time.thread_time_ns(), time.perf_counter_ns()
        for _ in range(n):
            once()
        c, t = time.thread_time_ns() - c, time.perf_counter_ns() - t
        cpu, wall, iters = cpu + c, wall + t, iters + n
        best_cpu, best_wall = min(best_cpu, 1000 * c // n), min(best_wall, 1000 * t // n)
        n = min(2 * n, 64)
    agent.release_xfer_handle(req)
    return "result %d %d %d %d %d %d %d %d %d" % (iters, cpu, wall, best[False], count, best[True], best_cpu, best_wall, ready)


def fill(w):
    state["buf"].view(np.uint64)[:] = word(int(w[1]), state["size"])
    return "ok"


def check(w):
    seed, old, length, count, stride = map(int, w[1:6])
    want = word(old, state["size"])
    new = word(seed, state["size"])
    for k in range(count):
        a = k * stride // 8
        want[a : a + length // 8] = new[a : a + length // 8]
    return "ok" if (state["buf"].view(np.uint64) == want).all() else "error other bytes"


commands = {"start": start, "case": case, "fill": fill, "check": check}
for line in sys.stdin:
    words = line.split()
    try:
        answer = commands[words[0]](words)
    except Exception as e:  # the driver reads it
        answer = "error " + repr(e).replace("\n", " ")
    out.write(answer + "\n")
    out.flush()
os._exit(0)
