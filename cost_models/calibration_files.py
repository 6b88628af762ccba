"""Which constants stand for which GPU, and the YAML they are kept in: the user's own file before the package's, the GPU's before its
architecture's, and first guesses where there is neither. What a file must hold is `calibration`'s."""

from __future__ import annotations

import math
from dataclasses import replace
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

import yaml

from cost_models.calibration import FALLBACK, Calibration, constants, parse_calibration
from search_spaces.errors import UserError
from search_spaces.hardware import Hardware
from search_spaces.user_folder import user_folder

PACKAGED = "calibrations"  # the folder, in this package and in the user's


def user_file(gpu: str) -> Path:
    """Where this GPU's own constants are looked for first."""
    return user_folder() / PACKAGED / f"{gpu}.yaml"


def load_calibration(hardware: Hardware) -> Calibration:
    """The constants of this GPU, of its architecture, or first guesses."""
    for name in names(hardware):
        if user_file(name).is_file():
            return _read(name, user_file(name))
        if _packaged(name).is_file():
            return packaged_calibration(name)
    return packaged_calibration(FALLBACK)  # says that it is missing


def packaged_calibration(name: str) -> Calibration:
    """The package's own, whatever the user has."""
    if not _packaged(name).is_file():
        raise UserError(f"no calibration {name}.yaml in cost_models/{PACKAGED}; reinstall the package")
    text = _packaged(name).read_text(encoding="utf-8")
    content = yaml.safe_load(text)
    if "same_as" in content:  # an architecture is represented by one of its GPUs
        return replace(packaged_calibration(content["same_as"]), name=name)
    return parse_calibration(name, text)


def _packaged(name: str) -> Traversable:
    return resources.files("cost_models").joinpath(PACKAGED, f"{name}.yaml")


def names(hardware: Hardware) -> tuple[str, ...]:
    """Whose constants may stand for this GPU, the nearest first."""
    major, minor = hardware.compute_capability
    return (hardware.name, f"sm_{major}{minor}", FALLBACK)


def borrowed(hardware: Hardware, calibration: Calibration) -> str | None:
    """The sentence that says so, where the constants are not this GPU's own."""
    if calibration.name == hardware.name:
        return None
    whose = "first guesses" if calibration.name == FALLBACK else f"its architecture's, {calibration.name}"
    fits = f"`tuner calibrate --gpu {hardware.name}` fits one to measurements"
    return f"{hardware.name} has no calibration of its own: estimates use {whose}; {fits}"


def _read(name: str, file: Path) -> Calibration:
    again = f"fit it anew with `tuner calibrate --gpu {name}`, or remove it"
    try:
        found = parse_calibration(name, file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"cannot read the calibration {file} ({str(error).splitlines()[0]}); {again}") from None
    except UserError as error:
        raise UserError(f"{file}: {error}; {again}") from None
    for constant in constants():
        value = getattr(found, constant)
        if not isinstance(value, int | float) or not 0 < value < math.inf:
            raise UserError(f"{file}: {constant} is {value!r}, no number above 0; {again}")
    return found


def calibration_text(calibration: Calibration) -> str:
    """What `parse_calibration` reads; the name is the file's."""
    content = {"source": calibration.source} | {name: float(getattr(calibration, name)) for name in constants()}
    return str(yaml.safe_dump(content, sort_keys=False, width=120, allow_unicode=True))
