"""One engine with the real NixlConnector of vLLM 0.33 inside its MultiConnector, driven by lines of JSON on stdin.

    peer.py FOLDER ROLE SERVER    FOLDER holds the model's config.json, the same for all peers; ROLE is kv_producer or
                                  kv_consumer; SERVER is the port of an MP server

The engine is that of ../vllm/engine.py: real scheduler and connectors, pages that are a function of the tokens and are
checked in every step. It is stepped all the time, also while nothing is asked. Every answer is a line "@{...}".
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "vllm"))

import engine  # noqa: E402
from vllm.config import KVTransferConfig  # noqa: E402
from vllm.distributed.parallel_state import init_distributed_environment, initialize_model_parallel  # noqa: E402

BLOCK, BLOCKS, LEASE = 32, 256, 8  # CPU attention wants blocks of 32 tokens; seconds


def say(**what) -> None:
    print("@" + json.dumps(what), flush=True)


class Peer(engine.Engine):
    """Keeps the statistics, which every step takes."""

    def step(self):
        report = super().step()
        stats = getattr(report, "kv_connector_stats", None)
        if stats is not None:
            for name, child in stats.data.items():
                for key, values in getattr(child, "data", child).items():
                    self.counts.setdefault(name, {}).setdefault(key, []).extend(values if isinstance(values, list) else [])
        return report


def transfer(role: str, server: int) -> KVTransferConfig:
    return KVTransferConfig(
        kv_connector="MultiConnector", kv_role=role, kv_load_failure_policy="recompute",
        kv_connector_extra_config={"connectors": [
            {"kv_connector": "NixlConnector", "kv_role": role,
             "kv_connector_extra_config": {"backends": ["UCX"], "kv_lease_duration": LEASE}},
            {"kv_connector": "LMCacheMPConnector", "kv_role": "kv_both",
             "kv_connector_extra_config": {
                 "lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": server, "lmcache.mp.mp_transfer_mode": "lmcache_driven",
                 "lmcache.mp.mq_timeout": 20, "lmcache.mp.heartbeat_interval": 1}},
        ]})


def start(folder: str, role: str, server: int) -> Peer:
    shutil.copy(os.path.join(engine.model(), "config.json"), folder)
    engine.model = lambda: folder  # its path is part of the compatibility hash
    config = transfer(role, server)
    Peer.counts = {}
    os.environ["VLLM_NIXL_SIDE_CHANNEL_HOST"] = "127.0.0.1"
    os.environ["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(free_port())
    from vllm.config import VllmConfig, set_current_vllm_config
    with set_current_vllm_config(VllmConfig()):
        init_distributed_environment(1, 0, f"tcp://127.0.0.1:{free_port()}", local_rank=0, backend="gloo")
        initialize_model_parallel(1, 1)
    return Peer(role, config, block=BLOCK, blocks=BLOCKS)


def free_port() -> int:
    import socket
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def describe(e: Peer) -> None:
    worker = e.worker._connectors[0].connector_worker
    m, c = e.vllm.model_config, e.vllm.cache_config
    say(
        hash=worker.compat_hash, model=m.model, dtype=str(m.dtype), heads=m.get_total_num_kv_heads(), head_size=m.get_head_size(),
        layers=m.get_total_num_hidden_layers(), backend=worker.backend_name, cache=str(c.cache_dtype), layout=worker.kv_cache_layout,
        hybrid=not e.vllm.scheduler_config.disable_hybrid_kv_cache_manager, block=worker.block_size, blocks=worker.num_blocks,
        lens=worker.block_len_per_layer, names=worker.region_names, free=e.free(), engine=worker.engine_id,
        port=int(os.environ["VLLM_NIXL_SIDE_CHANNEL_PORT"]))


@contextlib.contextmanager
def parked(e: Peer, seconds: float):
    """No request gets blocks: new ones wait, as when the engine is busy."""
    manager = e.scheduler.kv_cache_manager
    allocate = manager.allocate_slots
    if seconds:
        manager.allocate_slots = lambda *args, **kw: None
    try:
        yield
    finally:
        manager.allocate_slots = allocate


def do(e: Peer, c: dict) -> None:
    name = c.get("id")
    if c["do"] == "prefill":
        e.add(name, c["tokens"], 1, c["params"])
        e.run(lambda: name in e.ended)
        say(ended=e.ended[name], params=e.params[name], text=e.texts[name], free=e.free())
    elif c["do"] == "decode":
        with parked(e, c.get("park", 0)):
            e.add(name, c["tokens"], c["answer"], c["params"])
            end = time.monotonic() + c.get("park", 0)
            e.run(lambda: time.monotonic() >= end)
        e.run(lambda: name in e.ended and name not in e.scheduler.requests)
        say(ended=e.ended[name], text=e.texts[name], want=engine.expected(c["tokens"], c["answer"]), free=e.free())
    elif c["do"] == "look":
        say(free=e.free(), requests=len(e.scheduler.requests), counts=e.counts)
    else:
        say(error=f"what is {c['do']}?")


def main() -> None:
    e = start(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    describe(e)
    pending = b""
    while True:
        ready, _, _ = select.select([0], [], [], 0.005)
        if not ready:
            e.step()
            continue
        data = os.read(0, 1 << 20)
        if not data:
            break
        *lines, pending = (pending + data).split(b"\n")
        for line in lines:
            try:
                do(e, json.loads(line))
            except Exception as err:  # noqa: BLE001  the test tells
                say(error=f"{type(err).__name__}: {err}")
    e.close()
    time.sleep(0.1)
    os._exit(0)


main()
