"""A NIXL peer for the tests of package nixl, driven by lines of JSON on stdin.

It answers the same commands as the Go peer (child_test.go), through NIXL's own Python binding.
    peer.py NAME SIZE [TLS]
"""
import base64
import json
import os
import sys
import time

name, size = sys.argv[1], int(sys.argv[2])
if len(sys.argv) > 3:
    os.environ["UCX_TLS"] = sys.argv[3]
os.environ.setdefault("UCX_LOG_FILE", "stderr")
os.environ["NIXL_LOG_LEVEL"] = "WARN"
# stdout is the answers' alone.
out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

import numpy as np  # noqa: E402

try:
    from nixl._api import nixl_agent, nixl_agent_config
except ImportError:
    from nixl_cu12._api import nixl_agent, nixl_agent_config

agent = nixl_agent(name, nixl_agent_config())
buf = np.zeros(size, dtype=np.uint8)
addr = buf.ctypes.data
agent.register_memory([(addr, size, 0, "")], "DRAM", backends=["UCX"])
index = np.arange(size, dtype=np.uint64)


def pattern(seed):
    return ((index * 7 + (index >> 8) + seed) & 255).astype(np.uint8)


def xfer(c):
    local = agent.get_xfer_descs([(addr + c["off"], c["len"], 0)], "DRAM")
    remote = agent.get_xfer_descs([(c["addr"], c["len"], 0)], "DRAM")
    req = agent.initialize_xfer(c["op"], local, remote, c["peer"], c.get("msg", "").encode())
    state = agent.transfer(req)
    while state == "PROC":
        time.sleep(0.0001)
        state = agent.check_xfer_state(req)
    agent.release_xfer_handle(req)
    return {"ok": state == "DONE", "err": state}


def notifs(c):
    got = agent.get_new_notifs()
    return {"notifs": [{"from": k, "msg": m.decode("latin1")} for k, v in got.items() for m in v]}


commands = {
    "hello": lambda c: {"name": name, "addr": addr, "blob": base64.b64encode(agent.get_agent_metadata()).decode()},
    "load": lambda c: {"name": (lambda n: n.decode() if isinstance(n, bytes) else n)(agent.add_remote_agent(base64.b64decode(c["blob"])))},
    "fill": lambda c: buf.__setitem__(slice(None), pattern(c["seed"])) or {},
    "check": lambda c: {"ok": bool((buf == pattern(c["seed"])).all())},
    "xfer": xfer,
    "notify": lambda c: agent.send_notif(c["peer"], c["msg"].encode()) or {},
    "notifs": notifs,
}
for line in sys.stdin:
    command = json.loads(line)
    if command["cmd"] == "exit":
        break
    try:
        answer = commands[command["cmd"]](command)
        answer.setdefault("ok", True)
    except Exception as e:  # the test reads it
        answer = {"ok": False, "err": repr(e)}
    out.write(json.dumps(answer) + "\n")
    out.flush()
os._exit(0)
