"""The real scheduler and KV connectors of vLLM 0.33, stepped in one process on a CPU.

Only the model is missing: pages hold a function of layer, head, position and all tokens up to there, which every step
checks in all pages of the requests that it runs. So one block that is lost, stale or somebody else's raises BadPage.
"""

from __future__ import annotations

import functools
import json
import os
import tempfile
import time

os.environ.update({
    "VLLM_TARGET_DEVICE": "cpu", "VLLM_LOGGING_LEVEL": "CRITICAL", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1",
    "LMCACHE_TRACK_USAGE": "false", "LMCACHE_DISABLE_BANNER": "1", "LMCACHE_LOG_LEVEL": "CRITICAL", "DO_NOT_TRACK": "1",
})

import numpy as np  # noqa: E402
import torch  # noqa: E402

torch.set_num_threads(1)  # the servers need the cores

from vllm.config import (  # noqa: E402
    CacheConfig, DeviceConfig, KVEventsConfig, KVTransferConfig, ModelConfig, ParallelConfig, SchedulerConfig, VllmConfig,
    set_current_vllm_config,
)
from vllm.distributed.kv_transfer import kv_transfer_state  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole  # noqa: E402
from vllm.forward_context import set_forward_context  # noqa: E402
from vllm.sampling_params import SamplingParams  # noqa: E402
from vllm.utils.hashing import sha256  # noqa: E402
from vllm.v1.attention.backends.utils import resolve_kv_cache_layout  # noqa: E402
from vllm.v1.core.kv_cache_planning import get_kv_cache_configs  # noqa: E402
from vllm.v1.core.kv_cache_utils import (  # noqa: E402
    generate_scheduler_kv_cache_config, get_request_block_hasher, init_none_hash, resolve_kv_cache_block_sizes,
)
from vllm.v1.core.sched.scheduler import Scheduler  # noqa: E402
from vllm.v1.engine.core import get_global_kv_cache_groups  # noqa: E402
from vllm.v1.kv_cache_interface import FullAttentionSpec  # noqa: E402
from vllm.v1.outputs import ModelRunnerOutput  # noqa: E402
from vllm.v1.request import Request, RequestStatus  # noqa: E402
from vllm.v1.structured_output import StructuredOutputManager  # noqa: E402
from vllm.v1.worker.kv_connector_model_runner_mixin import KVConnectorModelRunnerMixin  # noqa: E402
from vllm.v1.worker.utils import allocate_kv_cache  # noqa: E402

import trace  # noqa: E402

init_none_hash(sha256)

LAYERS, HEADS, HEAD_SIZE, VOCABULARY = 4, 4, 32, 32000
LAYOUTS = ("LBNHC", "LBHNC", "BLNHC", "BLHNC", "BHLNC", "LHBNC")  # what attention backends may want; vLLM chooses


@functools.lru_cache
def model() -> str:
    """A folder with a config.json only: no weights, no tokenizer."""
    folder = tempfile.mkdtemp(prefix="tiny-llama-")
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 512,
            "num_hidden_layers": LAYERS, "num_attention_heads": 8, "num_key_value_heads": HEADS, "head_dim": HEAD_SIZE,
            "vocab_size": VOCABULARY, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "torch_dtype": "bfloat16",
            "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False, "hidden_act": "silu",
        }, f)
    trace.call(folder, "model")
    return folder


def chain(tokens) -> np.ndarray:
    """A number for each position that depends on all tokens up to there."""
    out, h = np.empty(len(tokens), np.int64), 7
    for i, token in enumerate(tokens):
        h = (h * 1103515245 + token + 12345) & 0x3FFFFFFF
        out[i] = h
    return out


def rows(chained: np.ndarray, layer: int, rank: int = 0) -> np.ndarray:
    """What the pages of a layer hold for positions: [position, head, element]."""
    heads = np.arange(HEADS)[:, None] * 7919 + np.arange(2 * HEAD_SIZE) * 31
    return ((chained[:, None, None] + heads + layer * 104729 + rank * 1299709) & 0x7FFF).astype(np.int16)


class BadPage(Exception):
    """A page does not hold what its request computed or loaded."""


class Engine:
    """One engine: scheduler, connector of the scheduler, and the connector and pages of one worker."""

    def __init__(self, name: str, transfer: KVTransferConfig, *, block: int = 16, blocks: int = 512, budget: int = 8192,
                 events: bool = False) -> None:
        longest = min(4096, (blocks - 1) * block)  # one block is vLLM's own
        self.name, self.block = name, block
        self.texts: dict[str, list[int]] = {}
        self.ended: dict[str, str] = {}
        self.params: dict[str, dict | None] = {}
        self.interfere = None  # called once in the step that starts a load, before the load
        self._chains: dict[str, np.ndarray] = {}
        self.vllm = v = VllmConfig(
            model_config=ModelConfig(model=model(), skip_tokenizer_init=True, dtype="bfloat16", max_model_len=longest, seed=0),
            cache_config=CacheConfig(block_size=block, enable_prefix_caching=True),
            scheduler_config=SchedulerConfig(
                max_num_seqs=16, max_num_batched_tokens=budget, max_model_len=longest, enable_chunked_prefill=True, is_encoder_decoder=False),
            parallel_config=ParallelConfig(), device_config=DeviceConfig(device="cpu"), kv_transfer_config=transfer,
            kv_events_config=KVEventsConfig(enable_kv_cache_events=True, publisher="null") if events else None,
        )
        specs = {
            f"model.layers.{i}.self_attn.attn":
                FullAttentionSpec(block_size=block, num_kv_heads=HEADS, head_size=HEAD_SIZE, dtype=torch.bfloat16)
            for i in range(LAYERS)
        }
        with set_current_vllm_config(v):
            layout = resolve_kv_cache_layout(v, [list(LAYOUTS)], list(specs.values()))
            page = next(iter(specs.values())).page_size_bytes
            configs = get_kv_cache_configs(v, [specs], [page * LAYERS * blocks], get_global_kv_cache_groups(v, [specs]))
            for c in configs:
                c.kv_cache_layout = v.cache_config.kv_cache_layout
            cache = generate_scheduler_kv_cache_config(configs)
            v.cache_config.num_gpu_blocks = cache.num_blocks
            scheduler_block, hash_block = resolve_kv_cache_block_sizes(cache, v)
            cache.hash_block_size = hash_block
            with trace.naming(f"{name} worker"):  # before the scheduler, as in vLLM
                self.worker = KVConnectorFactory.create_connector(v, KVConnectorRole.WORKER, configs[0])
                self.pages = allocate_kv_cache(configs[0], torch.device("cpu"), layout)
                self._share()
                self.worker.register_kv_caches(self.pages)
            with trace.naming(f"{name} scheduler"):
                self.scheduler = Scheduler(
                    vllm_config=v, kv_cache_config=cache, structured_output_manager=StructuredOutputManager(v),
                    block_size=scheduler_block, hash_block_size=hash_block, log_stats=True)
            self.published: list = []  # KV events, as a router would hear them
            if events:
                self.scheduler.kv_event_publisher.publish = lambda batch: self.published.extend(batch.events)
            handshake = self.worker.get_handshake_metadata()
            if handshake is not None:
                self.scheduler.connector.set_xfer_handshake_metadata_pp_aware({(0, 0): handshake})
        self._hasher = get_request_block_hasher(hash_block, sha256)

    def _share(self) -> None:
        """Before NIXL registers memory: LMCache moves the tensors when it registers them after NIXL did."""
        if self.vllm.kv_transfer_config.kv_connector == "LMCacheMPConnector":
            return
        from lmcache.v1.platform.kv_wrap import wrap_one_kv_cache
        self._kept = [wrap_one_kv_cache(t) for t in self.pages.values()]

    # Pages.

    def _move(self, request: Request, begin: int, end: int, write: bool) -> None:
        """Writes the pages of positions, or raises BadPage when they hold something else."""
        if begin >= end:
            return
        ids = self.scheduler.kv_cache_manager.get_block_ids(request.request_id)[0]
        at = np.arange(begin, end)
        block, slot = torch.tensor(np.asarray(ids)[at // self.block]), torch.tensor(at % self.block)
        for layer, pages in enumerate(self.pages.values()):
            want = torch.from_numpy(rows(self._chain(request)[begin:end], layer))
            view = pages.view(torch.int16)
            if view.shape[1] != self.block:  # heads first
                view = view.transpose(1, 2)
            if write:
                view[block, slot] = want
            elif not torch.equal(got := view[block, slot], want):
                bad = int((got != want).any(dim=(1, 2)).nonzero()[0]) + begin
                raise BadPage(f"{request.request_id}: layer {layer}, position {bad} of [{begin},{end}), block {ids[bad // self.block]}")

    def _chain(self, request: Request) -> np.ndarray:
        known = self._chains.get(request.request_id)
        if known is None or len(known) != request.num_tokens:
            known = self._chains[request.request_id] = chain(request.all_token_ids)
        return known

    # Requests.

    def add(self, name: str, tokens, answer: int = 1, params: dict | None = None, salt: str | None = None) -> Request:
        sampling = SamplingParams(max_tokens=answer, ignore_eos=True, extra_args={"kv_transfer_params": params} if params else None)
        r = Request(
            request_id=name, prompt_token_ids=list(tokens), sampling_params=sampling, pooling_params=None,
            block_hasher=self._hasher, arrival_time=time.time(), cache_salt=salt)
        with set_current_vllm_config(self.vllm):
            self.scheduler.add_request(r)
        self.texts[name] = []
        return r

    def step(self):
        """One step of the engine; returns what the connector's worker reported."""
        with set_current_vllm_config(self.vllm):
            plan = self.scheduler.schedule()
            kv_transfer_state._KV_CONNECTOR_AGENT = self.worker
            if plan.kv_connector_metadata is not None:
                self.worker.handle_preemptions(plan.kv_connector_metadata)
            if self.interfere is not None and any(
                    r.status == RequestStatus.WAITING_FOR_REMOTE_KVS for r in self.scheduler.requests.values()):
                act, self.interfere = self.interfere, None
                act()
            names, sampled = list(plan.num_scheduled_tokens), []
            with set_forward_context(None, self.vllm), KVConnectorModelRunnerMixin._get_kv_connector_output(plan) as report:
                for name in names:
                    r, n = self.scheduler.requests[name], plan.num_scheduled_tokens[name]
                    done = r.num_computed_tokens - n  # schedule() has advanced it
                    self._move(r, 0, done, write=False)
                    self._move(r, done, r.num_computed_tokens, write=True)
                    last = r.num_computed_tokens >= r.num_tokens
                    sampled.append([3 + int(self._chain(r)[-1]) % (VOCABULARY - 3)] if last else [])
            if names:
                output = ModelRunnerOutput(
                    req_ids=names, req_id_to_index={n: i for i, n in enumerate(names)}, sampled_token_ids=sampled,
                    prompt_logprobs_dict={}, kv_connector_output=report)
            else:
                output = ModelRunnerOutput.with_kv_conn_output_only(report)
            told = self.scheduler.update_from_output(plan, output)
        for outputs in told.values():
            for o in outputs.outputs:
                self.texts.setdefault(o.request_id, []).extend(o.new_token_ids)
                if o.finish_reason is not None:
                    self.ended[o.request_id] = str(o.finish_reason)
                    self.params[o.request_id] = o.kv_transfer_params
        return report

    def run(self, until, seconds: float = 30.0, pause: float = 0.002) -> None:
        """Steps until something is true."""
        end = time.monotonic() + seconds
        while not until():
            if time.monotonic() > end:
                raise TimeoutError(f"{self.name}: not within {seconds:g} s")
            self.step()
            time.sleep(pause)

    def one(self, name: str, tokens, answer: int = 1, params: dict | None = None, salt: str | None = None) -> Request:
        """Runs a request to its end, and until its blocks are free."""
        r = self.add(name, tokens, answer, params, salt)
        self.run(lambda: name in self.ended and name not in self.scheduler.requests)
        return r

    def abort(self, name: str) -> None:
        with set_current_vllm_config(self.vllm):
            self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)

    def preempt_all(self) -> None:
        """Preempts what runs and forgets the local cache."""
        with set_current_vllm_config(self.vllm):
            if not self.scheduler.reset_prefix_cache(reset_running_requests=True):
                raise RuntimeError("the prefix cache was not reset")

    def forget(self) -> None:
        """Empties the local prefix cache: blocks in use keep it from that."""
        if not self.scheduler.reset_prefix_cache():
            raise RuntimeError("the prefix cache was not reset: some blocks are in use")

    def free(self) -> int:
        return self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()

    def close(self) -> None:
        self.worker.shutdown()
        self.scheduler.connector.shutdown()


def expected(tokens, answer: int) -> list[int]:
    """What an engine without any cache answers."""
    all_tokens = list(tokens)
    for _ in range(answer):
        all_tokens.append(3 + int(chain(all_tokens)[-1]) % (VOCABULARY - 3))
    return all_tokens[len(tokens):]
