#!/usr/bin/env python3
"""Measures what two servers cost as processes: ours and the real one, in turns.

Prints one JSON object a line for `loadgen --report`, whose values are all better when smaller. `peer.sh process` calls
it. Each round starts a server twice: once to start, idle, be filled and be told to end, and once for small objects.
"""

import argparse
import atexit
import http.client
import json
import os
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

OBJECTS = 100_000
CHUNKS = 250  # objects of a request; 4 KiB each
POOL_GB = 1


def free_ports(n):
    """Ports that nobody listens on."""
    socks = [socket.socket() for _ in range(n)]
    for s in socks:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in socks]
    for s in socks:
        s.close()
    return ports


class Server:
    """One server process, from exec to exit."""

    running = []

    def __init__(self, command, name):
        self.port, self.http_port, prometheus = free_ports(3)
        self.segment = f"process_{name}_{os.getpid()}"
        self.log = tempfile.TemporaryFile()
        words = [
            w.format(port=self.port, http_port=self.http_port, prometheus_port=prometheus, shm=self.segment, gb=POOL_GB)
            for w in shlex.split(command)
        ]
        env = dict(os.environ, LMCACHE_TRACK_USAGE="false", LMCACHE_DISABLE_BANNER="1", LMCACHE_LOG_LEVEL="WARNING")
        self.began = time.monotonic()
        self.process = subprocess.Popen(words, stdout=self.log, stderr=subprocess.STDOUT, env=env)
        self.running.append(self)
        while not self.healthy():
            if self.process.poll() is not None or time.monotonic() - self.began > 120:
                self.log.seek(0)
                sys.exit("process: the server did not come up:\n" + self.log.read().decode(errors="replace")[-2000:])
            time.sleep(0.002)
        self.start_ms = 1e3 * (time.monotonic() - self.began)

    def get(self, path):
        c = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=10)
        try:
            c.request("GET", path)
            r = c.getresponse()
            return r.status, r.read()
        finally:
            c.close()

    def healthy(self):
        try:
            return self.get("/healthcheck")[0] == 200
        except OSError:
            return False

    def cpu_seconds(self):
        with open(f"/proc/{self.process.pid}/stat") as f:
            fields = f.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory_mib(self, *names):
        with open(f"/proc/{self.process.pid}/status") as f:
            lines = dict(line.split(":", 1) for line in f)
        return sum(int(lines[n].split()[0]) for n in names) / 1024

    def end(self):
        """Seconds from SIGTERM to exit."""
        begin = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        took = time.monotonic() - begin
        self.running.remove(self)
        return took


def load(loadgen, server, *flags):
    """Runs the load generator, which says on stderr what went wrong."""
    url = f"tcp://127.0.0.1:{server.port}"
    subprocess.run([loadgen, "--json", "--url", url, *flags], stdout=subprocess.DEVNULL, timeout=300, check=True)


def whole_life(loadgen, command, name, idle):
    """Start, idle, a full pool, end."""
    s = Server(command, name)
    time.sleep(5)  # what a start leaves to be done
    before = s.cpu_seconds()
    time.sleep(idle)
    values = {
        "start to first answer, ms": s.start_ms,
        "idle CPU, %": 100 * (s.cpu_seconds() - before) / idle,
        "idle memory but the pool, MiB": s.memory_mib("RssAnon", "RssFile"),
    }
    load(loadgen, s, "--ops", "store", "--layout", "llama8b", "--seconds", "60", "--requests", str(POOL_GB * 8))
    values["SIGTERM to exit, ms"] = 1e3 * s.end()
    return values


def small_objects(loadgen, command, name):
    """Memory and /status with many of them."""
    s = Server(command, name)
    store = ["--ops", "store", "--layout", "micro", "--chunks", str(CHUNKS), "--no-copy", "--seconds", "120"]
    # What traffic of that kind takes once, whatever is stored: caches of prompts, buffers, garbage on its way.
    load(loadgen, s, "--ops", "lookup", "--tokens", str(256 * CHUNKS), "--layout", "micro", "--seconds", "120", "--requests", "400")
    load(loadgen, s, *store, "--requests", "4")
    before = s.memory_mib("RssAnon")
    load(loadgen, s, *store, "--requests", str(OBJECTS // CHUNKS))
    grown = s.memory_mib("RssAnon") - before
    count = json.loads(s.get("/status")[1])["storage_manager"]["l1_manager"]["total_object_count"]
    if count < OBJECTS:
        sys.exit(f"process: {count} objects in the pool instead of {OBJECTS}")
    took = []
    for _ in range(50):
        begin = time.monotonic()
        s.get("/status")
        took.append(1e3 * (time.monotonic() - begin))
    s.end()
    return {
        "memory an object of 100,000, bytes": grown * 2**20 / OBJECTS,
        "/status with 100,000 objects, p50 ms": statistics.median(took),
    }


def stop_all():
    for s in Server.running:
        s.process.kill()


def main():
    atexit.register(stop_all)
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--loadgen", required=True)
    p.add_argument("--real", required=True, help="command of the real server, with {port}, {http_port}, {prometheus_port}, {shm}, {gb}")
    p.add_argument("--ours", required=True, help="the same of ours")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--idle", type=float, default=20, help="seconds over which the idle CPU is measured")
    a = p.parse_args()
    for i in range(a.rounds):
        for name in ("real", "ours"):
            print(f"peer: process, round {i + 1} of {a.rounds}, {name}", file=sys.stderr)
            command = getattr(a, name)
            values = whole_life(a.loadgen, command, name, a.idle) | small_objects(a.loadgen, command, name)
            print(json.dumps({"label": f"process/{name}", "values": values}), flush=True)


if __name__ == "__main__":
    main()
