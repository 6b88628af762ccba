"""Where a `Hardware` comes from: one YAML file a GPU, over one a compute capability; and which of them a name or a driver's report means.

A figure stands in its file bare (`sms: 132`) or with where it is from (`sms: {value: 132, tier: B, source: H100_WP, note: ...}`), the source being
a key of the file's `sources` or plain text. What no public source gives is left out. A file of the user's has the same form: README says how.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from search_spaces.errors import UserError
from search_spaces.hardware import FILE_UNITS, Hardware
from search_spaces.problem import DTYPE_BYTES

TIERS = {
    "A": "vendor document",
    "B": "vendor document, read through a transcription, a quotation or a table that cites it",
    "C": "third-party table only",
    "M": "third-party measurement or device query",
    "D": "arithmetic on other figures",
}
SLICE_SM_SHARE = 0.95  # an A100's widest MIG slice has 98 of its 108 SMs
SLICE_MEMORY_SHARE = 0.75  # a MIG slice has at most half of the memory or all of it, and ECC takes up to a tenth
_MIG_NAME = re.compile(r"(?P<card>.+) MIG (?:\d+c\.)?\d+g\.\d+gb\S*")
_SLICE_NAME = re.compile(r"(?P<card>.+)-mig-(?P<sms>[1-9]\d*)sm-(?P<gib>[1-9]\d*)gib")
_BRANDS = ("nvidia", "geforce", "tesla")
_ENTRY_KEYS = ("value", "source", "tier", "note")
_TEXT_KEYS = ("title", "aliases", "device_names", "compute_capability", "sources")


@dataclass(frozen=True, kw_only=True)
class _Figure:
    """One figure as `Hardware` and as a file name it."""

    field: str
    expected: str
    required: bool = False
    least: float = 0.0  # more than this, or at least this where it is allowed to be nothing
    may_be_zero: bool = False
    per_dtype: bool = False

    @property
    def key(self) -> str:
        return FILE_UNITS.get(self.field, (self.field, 1))[0]

    @property
    def factor(self) -> float:
        return FILE_UNITS.get(self.field, (self.field, 1))[1]
