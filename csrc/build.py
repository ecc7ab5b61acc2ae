#!/usr/bin/env python3
"""Compiles kernels.cu to kernels.ptx, with the hash of its source in the first line.

By nvcc where there is one, else by NVRTC, which a wheel of PyPI brings:
pip install nvidia-cuda-nvrtc-cu12==12.4.127. An older compiler makes PTX that
older drivers take: 12.4 asks for a driver of 550 or later.
"""

import ctypes
import glob
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig

ARCH = "compute_75"
HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.join(HERE, "kernels.cu")
TARGET = os.path.join(HERE, "kernels.ptx")


def by_nvcc(nvcc):
    return subprocess.run(
        [nvcc, "-ptx", "-arch=" + ARCH, "-std=c++17", "-O3", "-o", "/dev/stdout", SOURCE],
        check=True, stdout=subprocess.PIPE).stdout.decode()


def nvrtc():
    where = [sysconfig.get_paths()["purelib"]] + sys.path + os.environ.get("NVRTC_DIR", "").split(":")
    names = []
    for place in filter(None, where):
        for pattern in ("nvidia/*/lib/libnvrtc.so.1*", "libnvrtc.so.1*"):
            names += sorted(glob.glob(os.path.join(place, pattern)))
    for name in names + ["libnvrtc.so.12", "libnvrtc.so.13"]:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def by_nvrtc(lib):
    program = ctypes.c_void_p()
    text = open(SOURCE, "rb").read()

    def check(result, what):
        if result == 0:
            return
        size = ctypes.c_size_t()
        lib.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        lib.nvrtcGetProgramLog(program, log)
        sys.exit("%s failed: %d\n%s" % (what, result, log.value.decode()))

    check(lib.nvrtcCreateProgram(ctypes.byref(program), text, b"kernels.cu", 0, None, None), "nvrtcCreateProgram")
    options = [b"--gpu-architecture=" + ARCH.encode(), b"--std=c++17"]
    check(lib.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options)), "nvrtcCompileProgram")
    size = ctypes.c_size_t()
    check(lib.nvrtcGetPTXSize(program, ctypes.byref(size)), "nvrtcGetPTXSize")
    ptx = ctypes.create_string_buffer(size.value)
    check(lib.nvrtcGetPTX(program, ptx), "nvrtcGetPTX")
    return ptx.value.decode()


def main():
    nvcc = shutil.which("nvcc")
    lib = None if nvcc else nvrtc()
    if nvcc:
        ptx = by_nvcc(nvcc)
    elif lib:
        ptx = by_nvrtc(lib)
    else:
        sys.exit("no nvcc and no NVRTC: install the CUDA toolkit, or pip install nvidia-cuda-nvrtc-cu12==12.4.127")
    digest = hashlib.sha256(open(SOURCE, "rb").read()).hexdigest()
    # Paths and dates of the machine that compiled mean nothing to others.
    lines = [line.rstrip() for line in ptx.splitlines() if not line.startswith("//")]
    with open(TARGET, "w") as out:
        out.write("// source sha256 %s\n%s\n" % (digest, "\n".join(lines).strip()))
    print("%s: %d bytes" % (os.path.relpath(TARGET), os.path.getsize(TARGET)))


if __name__ == "__main__":
    main()
