"""Which constants stand for which GPU, and the YAML they are kept in: the user's own file before the package's, the GPU's before its
architecture's, and first guesses where there is neither. What a file must hold is `calibration`'s."""

from __future__ import annotations

import os
from dataclasses import replace
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

import yaml

from cost_models.calibration import FALLBACK, Calibration, constants, parse_calibration
from search_spaces.errors import UserError
from search_spaces.hardware import Hardware
from search_spaces.text_files import named, read_text_file
from search_spaces.user_folder import user_folder
from search_spaces.yaml_text import read_yaml

PACKAGED = "calibrations"  # the folder, in this package and in the user's


def user_file(gpu: str) -> Path:
    """Where this GPU's own constants are looked for first."""
    return user_folder() / PACKAGED / f"{gpu}.yaml"


def load_calibration(hardware: Hardware) -> Calibration:
    """The constants of this GPU, of its architecture, or first guesses."""
    for name in names(hardware):
        if os.path.lexists(user_file(name)):  # what is there but cannot be read is said, not passed over
            return _read(name, user_file(name))
        if _packaged(name).is_file():
            return packaged_calibration(name)
    return packaged_calibration(FALLBACK)  # says that it is missing


def packaged_calibration(name: str) -> Calibration:
    """The package's own, whatever the user has."""
    if not _packaged(name).is_file():
        raise UserError(f"no calibration {name}.yaml in cost_models/{PACKAGED}; reinstall the package")
    text = _packaged(name).read_text(encoding="utf-8")
    content = read_yaml(f"calibration {name}", text)
    if isinstance(content, dict) and "same_as" in content:  # an architecture is represented by one of its GPUs
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
    text = read_text_file(file, "the calibration", again)
    try:
        return parse_calibration(name, text)
    except UserError as error:
        raise UserError(f"{named(file)}: {error}; {again}") from None


def calibration_text(calibration: Calibration) -> str:
    """What `parse_calibration` reads; the name is the file's."""
    content = {"source": calibration.source} | {name: float(getattr(calibration, name)) for name in constants()}
    return str(yaml.safe_dump(content, sort_keys=False, width=120, allow_unicode=True))
