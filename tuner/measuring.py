"""Measuring on the GPU that is present: a handle to the process that does it, and what is made of its answers and its deaths. Needs neither
torch nor CUDA itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from db.records import Measurement
from search_spaces.errors import MachineFault
from search_spaces.gpu_files import match_device, on_device
from search_spaces.hardware import Hardware
from search_spaces.problem import Problem
from search_spaces.schedule import Schedule
from tuner.comparing import DRIFT_SHARE, FinalsSamples
from tuner.device_lock import DeviceLock
from tuner.environment import DeviceInfo, device_present
from tuner.measure_child import Child, MeasureSettings, Standby, spawn
from tuner.measure_protocol import Hello, Lost, read_answer, read_finals, read_hello, read_library, read_rounds
from tuner.plausible import beyond_peak

__all__ = ["Lost", "MeasureSettings", "MeasuringProcess", "Standby"]


class MeasuringProcess:
    """Measures schedules of one problem. The process starts at once, or is the one that stood by, and gets ready while others compile; it
    is started anew after each death.

    Raises MachineFault, here and later, where no process can be had that measures: no schedule is to blame for that.
    """

    def __init__(
        self,
        problem: Problem,
        hardware: Hardware,
        settings: MeasureSettings,
        *,
        cache_dir: Path,
        wait: Callable[[str], None] | None = None,
        standby: Standby | None = None,
    ) -> None:
        self._problem, self._settings, self._cache_dir = problem, settings, cache_dir
        self._arguments = ["--problem", json.dumps(asdict(problem)), "--sms", str(int(hardware.need("sms")))]
        self._device = device_present()
        self._judged_by = _judged_by(hardware, self._device)
        self._anchors: list[float] = []
        self._odd_anchor = ""
        self._since_anchor = 0
        self._hello: Hello | None = None
        self._lock = DeviceLock(self._device.uuid if self._device else "none", wait or (lambda sentence: None))
        try:
            self._child: Child | None = standby.hand_over(self._arguments) if standby else self._start()
        except BaseException:
            self._lock.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _start(self) -> Child:
        return spawn(self._settings, self._cache_dir, self._arguments)

    @property
    def pid(self) -> int | None:
        return self._child.process.pid if self._child else None

    def wait_until_ready(self) -> None:
        """Its start takes seconds, most of them the import of torch; whoever counts time may want to begin after it."""
        self._ready()

    def measure(self, schedule: Schedule, best_us: float | None) -> Measurement:
        """Check and time one schedule. Whatever it does to the process is its result; the next one finds a fresh process.

        One that fails in a process that others used before it is tried again in a fresh one before it gets the blame, and so is one whose
        process failed for a reason of the moment's. Of a time that the machine cannot have taken nothing but the fault is kept.
        """
        request = {"op": "measure", "schedule": asdict(schedule), "best_us": best_us}
        for attempt in (1, 2):
            child = self._ready()
            try:
                answer = child.ask(request, self._settings.candidate_seconds + _check_seconds(child), read_answer)
            except Lost as lost:
                alone = self._end() == 0
                if attempt == 1 and lost.status != "timeout" and not (alone and lost.status in ("crashed", "faulted")):
                    continue
                return self._with_operands(Measurement(status=lost.status, message=lost.message), child)
            child.measured += 1
            if answer.fatal:
                self._end()
                if attempt == 1 and child.measured > 1:
                    continue
            self._keep_anchor()
            return self._with_operands(self._plausible(answer.measurement), child)
        raise AssertionError("the second attempt returns")

    def _plausible(self, measured: Measurement) -> Measurement:
        if measured.median_us is None:
            return measured
        fault = beyond_peak(min(*measured.samples_us, measured.median_us), self._problem, self._judged_by)
        return replace(measured, status="implausible", message=fault, samples_us=(), median_us=None) if fault else measured

    def _with_operands(self, measured: Measurement, child: Child) -> Measurement:
        hello = child.hello
        assert hello is not None, "it was ready"
        return replace(measured, operands=hello.operands, operand_sets=hello.sets, operands_over_l2=hello.operands_over_l2)

    def finals(self, schedules: Sequence[Schedule], seconds: float) -> FinalsSamples:
        """Time the leaders and the library in turn. A leader that cannot have been so fast is marked as wrong.

        Raises Lost where the process dies of it, or where the library cannot have been so fast.
        """
        samples = self._in_turn({"op": "finals", "seconds": seconds}, schedules, read_finals)
        fastest = np.minimum(samples.times_us.min(axis=0), np.minimum(samples.hot_l2_us, samples.eager_us))
        faults = [beyond_peak(float(us), self._problem, self._judged_by) for us in fastest]
        wrong = tuple(said or fault for said, fault in zip(samples.wrong, faults, strict=True))
        implausible = frozenset(i for i, fault in enumerate(faults) if fault and not samples.wrong[i])
        return replace(samples, wrong=wrong, implausible=implausible)

    def first_rounds(self, schedules: Sequence[Schedule], count: int) -> FinalsSamples:
        """So many rounds of contestants of which few go on to the finals; no more is known of them. Raises Lost as `finals`."""
        return self._in_turn({"op": "rounds", "rounds": count}, schedules, read_rounds)

    def _in_turn(
        self, request: dict[str, Any], schedules: Sequence[Schedule], read: Callable[[dict[str, Any], int], FinalsSamples]
    ) -> FinalsSamples:
        child = self._ready()
        try:
            request |= {"schedules": [asdict(schedule) for schedule in schedules]}
            limit = self._settings.finals_seconds + len(schedules) * _check_seconds(child)
            samples = child.ask(request, limit, lambda said: read(said, len(schedules)))
            if fault := beyond_peak(float(samples.library_us.min()), self._problem, self._judged_by):
                raise Lost("implausible", f"of the library, {fault}")
        except Lost:
            self._end()
            raise
        return samples

    @property
    def library_seconds(self) -> float | None:
        """The library's time when it was last taken."""
        return self._anchors[-1] * 1e-6 if self._anchors else None

    @property
    def sms(self) -> int | None:
        """SMs that the process may use, as CUDA tells it: under MPS they can be fewer than the card's. None until it is ready."""
        return self._hello.sms if self._hello else None

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about how the run went."""
        return tuple(filter(None, (self._sms_note(), self._l2_note(), self._odd_anchor, self._drift_note())))

    def _sms_note(self) -> str:
        if self._device is None or self.sms is None or self.sms == self._device.sms:
            return ""
        return f"measured on {self.sms} of the {self._device.sms} SMs of {self._device.name}: no more are given to this process"

    def _l2_note(self) -> str:
        share = self._hello.operands_over_l2 if self._hello else None
        if share is None or share >= 1:
            return ""
        return f"timed with operands that L2 may hold: all sets together touch {share:.2f} of it"

    @property
    def drift(self) -> float:
        """By what share the library's time moved during the run, as the clock did."""
        return max(self._anchors) / min(self._anchors) - 1 if self._anchors else 0.0

    def _drift_note(self) -> str:
        if self.drift <= DRIFT_SHARE:
            return ""
        return f"cuBLAS moved by {self.drift:.1%} between {min(self._anchors):.2f} and {max(self._anchors):.2f} us during the run"

    def _add_anchor(self, library_us: float) -> None:
        if fault := beyond_peak(library_us, self._problem, self._judged_by):
            self._odd_anchor = f"a time of cuBLAS was left out: {fault}"
        else:
            self._anchors.append(library_us)

    def _keep_anchor(self) -> None:
        self._since_anchor += 1
        if self._since_anchor < self._settings.anchor_every or self._child is None:
            return
        self._since_anchor = 0
        try:
            self._add_anchor(self._child.ask({"op": "library"}, self._settings.candidate_seconds, read_library))
        except Lost:
            self._end()

    def _ready(self) -> Child:
        """A process that has said hello. One that died before it was asked anything is started once more; then the machine is to blame."""
        for attempt in (1, 2):
            if self._child is None:
                self._child = self._start()
            child = self._child
            if child.hello is not None:
                return child
            try:
                child.hello = self._hello = child.read(self._settings.start_seconds, read_hello)
                self._add_anchor(child.hello.library_us)
                return child
            except Lost as lost:
                self._end()
                if attempt == 2:  # no schedule is to blame, so none is recorded as failed
                    raise MachineFault(f"cannot measure: {lost.message}; see `tuner doctor`, or leave it out with --no-measure") from None
        raise AssertionError("the second attempt returns or raises")

    def _end(self) -> int:
        """End the process; how many schedules it had measured."""
        child, self._child = self._child, None
        if child is None:
            return 0
        child.end()
        return child.measured

    def close(self) -> None:
        self._end()
        self._lock.close()


def _check_seconds(child: Child) -> float:
    """What checking one schedule's answers may add to a limit: twice what it takes on a quiet machine."""
    return 2 * child.hello.check_seconds if child.hello else 0.0


def _judged_by(hardware: Hardware, device: DeviceInfo | None) -> Hardware | None:
    """Whose peak the times have to keep to: that of the GPU which is present, though another one may have been named; None where that is
    not known."""
    if device is None:
        return hardware
    place = {"sms": device.sms, "memory_bytes": device.memory_bytes, "compute_capability": device.compute_capability}
    if on_device(hardware, device.name, **place):  # type: ignore[arg-type]
        return hardware
    return match_device(device.name, **place)  # type: ignore[arg-type]
