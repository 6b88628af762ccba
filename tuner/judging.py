"""Is a schedule right every time? Its answers on several data, alone and back to back, against the reference and against each other. What
launches and replays is given, so that all of it is tested without a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tuner.checking import POISON, Guarded, Reference, Verdict, fingerprints
from tuner.operand_sets import Stack

RUNS = 4  # alone, going round the data: on three of them, and then on the first one again

Run = Callable[[int], None]  # launches the work on operand set i, on the current stream


class Room(NamedTuple):
    """Scratch on the device, between guard zones."""

    memory: Guarded
    zeroed: bool  # it is zero before each launch and after it


def clear(scratch: Mapping[str, Room]) -> None:
    """Partial sums start as NaN; counters, and sums that are added to, as zero."""
    for room in scratch.values():
        room.memory.poison(0 if room.zeroed else POISON)


def misused(scratch: Mapping[str, Room]) -> str:
    """What a launch did to its scratch that it must not; nothing where it did not."""
    for name, room in scratch.items():
        if room.memory.overwritten():
            return f"{room.memory.overwritten()} elements outside the scratch {name!r} were overwritten"
        if room.zeroed and bool(room.memory.matrix.any()):
            return f"{int(room.memory.matrix.count_nonzero())} elements of the scratch {name!r} were not left at zero"
    return ""


@dataclass(frozen=True)
class Judgement:
    """status: `wrong_answer`, `unstable`, or nothing where all is right. facts: of the worst answer. prints: of the right answer to each
    data, by the place of the data."""

    status: str = ""
    message: str = ""
    facts: Mapping[str, float] = field(default_factory=dict)
    prints: Mapping[int, int] = field(default_factory=dict)

    def as_answer(self) -> dict[str, Any]:
        return {"status": self.status, "message": self.message, **self.facts}


def _facts(verdict: Verdict) -> dict[str, float]:
    return {"relative_error": verdict.relative_error, "error_bound": verdict.error_bound}


@dataclass(frozen=True)
class Judge:
    """outputs: C in all its copies. references: of the first of them; copy i has the data, and so the right answer, of copy i modulo
    their number."""

    outputs: Stack
    references: Sequence[Reference]

    def _compared(self, index: int, *, in_full: bool = False) -> Verdict:
        place = index % len(self.references)
        return self.references[place].check(self.outputs.copies[index], sampled=not in_full)

    def _print(self, index: int) -> int:
        return fingerprints(self.outputs.matrices[index : index + 1])[0]

    def alone(self, run: Run, scratch: Mapping[str, Room], unordered: bool) -> Judgement:
        """Look at RUNS launches, one at a time, each on poisoned outputs: at the first in full, and at each further data so, too, where
        its reference is kept.

        Answers to the same data must agree bit for bit; those of unordered schedules, whose sums are added as they come, be right again.
        """
        prints: dict[int, int] = {}
        facts: dict[str, float] = {}
        for launch in range(RUNS):
            index = launch % len(self.references)
            self.outputs.copies[index].poison()
            clear(scratch)
            run(index)
            repeats = index in prints and not unordered
            if not repeats or self._print(index) != prints[index] or self.outputs.copies[index].overwritten():
                verdict = self._compared(index, in_full=launch == 0)
                facts = _facts(verdict) if verdict.relative_error >= facts.get("relative_error", 0.0) else facts
                if not verdict.right:
                    return Judgement("wrong_answer", _after(launch, verdict.message), _facts(verdict))
                if repeats:
                    return Judgement("unstable", "two runs on the same operands gave different bits", facts)
                prints[index] = self._print(index)
            if complaint := misused(scratch):
                return Judgement("wrong_answer", _after(launch, complaint), facts)
        return Judgement(facts=facts, prints=prints)

    def back_to_back(
        self, run: Run, replay: Callable[[], None], visited: int, scratch: Mapping[str, Room], prints: Mapping[int, int], unordered: bool
    ) -> Judgement:
        """Look at every answer of one replay of launches on the first `visited` operand sets; prints: of right answers, from `alone`.

        Data that the replay does not come to are launched on alone, so that each is looked at.
        """
        self.outputs.poison()
        replay()
        kinds = len(self.references)
        for index in range(visited, kinds):
            run(index)
        found = fingerprints(self.outputs.matrices[: max(visited, kinds)])
        differing = [] if unordered else [index for index, bits in enumerate(found) if bits != prints[index % kinds]]
        suspects = range(kinds) if unordered else [*differing[:kinds], *(i for i in range(kinds) if self.outputs.copies[i].overwritten())]
        for index in suspects:
            verdict = self._compared(index, in_full=not unordered)
            if not verdict.right:
                message = f"launches back to back gave a wrong answer, one alone did not: {verdict.message}"
                return Judgement("wrong_answer", message, _facts(verdict))
        if differing:
            return Judgement("unstable", "launches back to back gave other bits than one alone")
        complaint = misused(scratch)
        return Judgement("wrong_answer", f"{complaint} by launches back to back") if complaint else Judgement()


def _after(launch: int, complaint: str) -> str:
    return complaint if launch == 0 else f"{complaint} (launch {launch + 1}, after {launch} right ones)"
