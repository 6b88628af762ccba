"""Starts the measuring process a second sooner: what it waits for, torch's import and the CUDA context, are had side by side. Where another
one still has the GPU, only the import is had, and the arguments come as the first line of stdin once the GPU is free. Where the import
fails, the first line of output says so."""

from __future__ import annotations

import ctypes
import gc
import json
import sys
import threading


def open_context() -> None:
    """Make the context that torch will find and use. Where there is no driver, torch has the words for it."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if cuda.cuInit(0) == 0 and cuda.cuDeviceGet(ctypes.byref(device), 0) == 0:
        cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)


def main() -> None:
    gc.disable()  # an import makes a million objects, none of them garbage: looking for some takes an eighth of the time
    waits = sys.argv[1:] == ["--wait"]
    opening = threading.Thread(target=open_context, daemon=True)
    if not waits:
        opening.start()
    try:
        from tuner.measure_process import main as measure
    except Exception as error:  # whatever is wrong with torch, Triton or what they load
        from tuner.launch_failures import message_of

        sys.stdout.write(json.dumps({"status": "machine_fault", "message": message_of(error)}) + "\n")
        sys.stdout.flush()
        raise SystemExit(1) from error
    gc.enable()
    if not waits:
        opening.join()
        measure(sys.argv[1:])
    elif line := sys.stdin.readline():  # none where nobody needs it any more
        measure(json.loads(line))


if __name__ == "__main__":
    main()
