"""What compiled kernels say of shared memory: the layouts of their tiles in Triton's IR, and the addresses that a warp's lanes compute in
PTX, found by carrying out its integer arithmetic for 32 lanes. Loops are gone through once, and what comes from memory counts as 0."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from search_spaces.banks import Access
from search_spaces.problem import Problem
from search_spaces.schedule import parse_schedule
from tuner.kernels import family_module
from tuner.kernels.specialise import compile_call, cuda_target
from tuner.operands import outlines, scratch_outline

Tiles = set[tuple[int, int, str]]  # rows and columns as Triton has them, layout
STATEMENT = re.compile(r"\s*(?:@!?%p\d+\s+)?([a-z][\w.:]*)\s+(.*);")
SHARED = re.compile(r"(?:ld|st)\.shared\.|ldmatrix|stmatrix|cp\.async\.c[ag]")
LANES = range(32)


def compiled(text: str, capability: int, problem: Problem) -> Mapping[str, Any]:
    """The kernel that multiplies, as IR and PTX."""
    schedule, family, (a, b, c) = parse_schedule(text), family_module(text.split()[0]), outlines(problem)
    scratch = {name: scratch_outline(part) for name, part in family.scratch(a, b, c, schedule, 132).items()}
    asm: Mapping[str, Any] = compile_call(family.calls(a, b, c, schedule, 132, scratch)[0], cuda_target(capability)).asm
    return asm


def tiles_of(ttgir: str) -> Tiles:
    """Tiles that are allocated in shared memory, however many buffers each has."""
    names = dict(re.findall(r"^(#shared\d*) = #ttg\.(.+)$", ttgir, re.MULTILINE))
    allocated = re.findall(r"ttg\.local_alloc.*!ttg\.memdesc<(?:\d+x)?(\d+)x(\d+)x(?:bf16|f16|f32), (#shared\d*),", ttgir)
    return {(int(rows), int(columns), names[name]) for rows, columns, name in allocated}


def signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


OPERATIONS: Mapping[str, Callable[..., int]] = {
    "mov": lambda x: x,
    "cvt": lambda x: x,
    "neg": lambda x: -x,
    "not": lambda x: ~x,
    "and": lambda x, y: x & y,
    "or": lambda x, y: x | y,
    "xor": lambda x, y: x ^ y,
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "mad": lambda x, y, z: x * y + z,
    "shl": lambda x, y: x << y,
    "bfi": lambda new, old, at, length: old & ~(((1 << length) - 1) << at) | (new & ((1 << length) - 1)) << at,
    "selp": lambda x, y, chosen: x if chosen else y,
}
COMPARISONS: Mapping[str, Callable[[int, int], bool]] = {"eq": int.__eq__, "ne": int.__ne__, "lt": int.__lt__, "gt": int.__gt__}


KNOWN = {*OPERATIONS, "setp", "shr", "bfe"}


def carried_out(opcode: str, values: list[int]) -> int:
    kind, *rest = opcode.split(".")
    is_signed = rest[-1:] == ["s32"]
    if kind == "setp":
        return int(COMPARISONS[rest[0]](values[0], values[1])) if rest[0] in COMPARISONS else 0
    if kind == "shr":
        return (signed(values[0], 32) if is_signed else values[0] & 0xFFFFFFFF) >> values[1]
    if kind == "bfe":
        field = values[0] >> values[1] & ((1 << values[2]) - 1)
        return signed(field, values[2]) if is_signed else field
    return OPERATIONS[kind](*values)


def value_of(word: str, registers: Mapping[str, int], lane: int) -> int:
    if word == "%tid.x":
        return lane
    return int(word, 16 if "x" in word.lower() else 10) if re.fullmatch(r"-?(?:\d+|0[xX][0-9a-fA-F]+)", word) else registers.get(word, 0)


def accesses_of(ptx: str) -> Iterator[tuple[str, Access]]:
    """Every access to shared memory of the first warp: what kind, and where its lanes go."""
    registers: list[dict[str, int]] = [{} for _ in LANES]
    for line in ptx.splitlines():
        found = STATEMENT.match(line)
        if not found:
            continue
        opcode, words = found.groups()
        if SHARED.match(opcode):
            place = re.search(r"\[\s*(%\w+)\s*(?:\+\s*(\d+))?\s*\]", words)
            if place:
                lane_bytes, lanes = extent_of(opcode, words)
                here = (registers[lane].get(place[1], 0) + int(place[2] or 0) for lane in range(lanes))
                yield opcode, Access(lane_bytes, tuple(address & 0xFFFFFFFF for address in here))
            continue
        if "{" in words or opcode.split(".")[0] not in KNOWN or re.search(r"\.b?f\d", opcode):
            continue
        target, *operands = (word.strip() for word in words.split(","))
        for lane in LANES:
            if not target.startswith("%") or target in registers[lane]:
                continue
            value = carried_out(opcode, [value_of(word, registers[lane], lane) for word in operands])
            registers[lane][target] = value & 0xFFFFFFFF if "32" in opcode else value


def extent_of(opcode: str, words: str) -> tuple[int, int]:
    """Bytes of a lane, and how many lanes name an address."""
    if "matrix" in opcode:
        return 16, 8 * int(opcode.split(".x")[1][0])
    if opcode.startswith("cp"):
        copied = re.search(r"\],\s*(0x[0-9a-f]+|\d+)", words.split("[", 2)[2])
        assert copied is not None
        return int(copied[1], 0), 32
    bits, vector = int(opcode.rsplit(".", 1)[1][1:]), re.search(r"\.v(\d)", opcode)
    return bits // 8 * (int(vector[1]) if vector else 1), 32
