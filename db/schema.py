"""The tables, in columns that a person can query. What brings an older file to them is in `migrations`; a test holds the two together."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Float, ForeignKey, Index, Integer, MetaData, String, Table

from search_spaces.schedule import AXES

METADATA = MetaData()


def _text(name: str, nullable: bool = False) -> Column[str]:
    return Column(name, String, nullable=nullable)


def _integer(name: str, nullable: bool = False) -> Column[int]:
    return Column(name, Integer, nullable=nullable)


def _bytes(name: str) -> Column[int]:
    return Column(name, BigInteger, nullable=True)


def _real(name: str, nullable: bool = True) -> Column[float]:
    return Column(name, Float, nullable=nullable)


RUN = Table(
    "run",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("environment_id", ForeignKey("environment.id"), nullable=False),
    _text("request"),  # JSON
    _text("status"),
    _text("started"),  # times are ISO 8601, UTC
    _text("finished", nullable=True),
    _text("host", nullable=True),
    _integer("pid", nullable=True),
    _real("process_started"),
)

ENVIRONMENT = Table(
    "environment",
    METADATA,
    Column("id", Integer, primary_key=True),
    *(_text(name) for name in ("gpu", "triton", "python", "code_version")),
    *(_text(name, nullable=True) for name in ("device_name", "device_uuid")),
    _integer("sms", nullable=True),
    _bytes("device_memory_bytes"),
    *(_text(name, nullable=True) for name in ("compute_capability", "driver", "cuda", "torch")),
    *(_real(name) for name in ("sm_clock_mhz", "memory_clock_mhz", "power_limit_w")),
    _text("gpu_figures", nullable=True),
)

TRIAL = Table(
    "trial",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("run_id", ForeignKey("run.id"), nullable=False),
    Column("environment_id", ForeignKey("environment.id"), nullable=False),
    *(_text(name) for name in ("recorded", "gpu", "kernel_hash", "protocol", "strategy", "model")),
    # the problem
    *(Column(name, BigInteger, nullable=False) for name in "mnk"),
    *(_text(name) for name in ("dtype", "out_dtype", "layout")),
    *(Column(name, BigInteger, nullable=False) for name in ("lda", "ldb", "ldc")),
    _integer("alignment_bytes"),
    # the schedule
    _text("family"),
    *(_integer(axis) for axis in AXES),
    *(_integer(f"{level}_{axis}") for level in ("warp", "mma") for axis in "mnk"),
    # the estimate
    _real("predicted_seconds", nullable=False),
    _text("predicted_limiter"),
    _integer("predicted_registers", nullable=True),
    _integer("predicted_shared_memory_bytes", nullable=True),
    _real("predicted_waves"),
    _text("predicted_terms"),  # JSON: name -> seconds
    # the measurement
    _text("status"),
    _text("message"),
    _text("samples_us"),  # JSON
    *(_real(name) for name in ("median_us", "relative_error", "error_bound")),
    *(_integer(name, nullable=True) for name in ("registers", "spill_slots", "shared_memory_bytes")),
    *(_text(name, nullable=True) for name in ("mma_instruction", "binary_hash")),
    *(_real(name) for name in ("compile_seconds", "sm_clock_mhz")),
    _text("throttle_reasons", nullable=True),
    _text("operands", nullable=True),
    _integer("operand_sets", nullable=True),
    _real("operands_over_l2"),
    _text("compile_log", nullable=True),
    Index("trial_problem", "m", "n", "k", "status"),
    Index("trial_run", "run_id"),
)

FINALIST = Table(
    "finalist",
    METADATA,
    Column("run_id", ForeignKey("run.id"), primary_key=True),
    Column("trial_id", ForeignKey("trial.id"), primary_key=True),
    _integer("rank"),
    *(_real(name, nullable=False) for name in ("ratio", "ratio_low", "ratio_high", "median_us", "library_us")),
    *(Column(name, Boolean, nullable=False) for name in ("tied", "winner")),
    *(_real(name) for name in ("hot_l2_us", "eager_us")),
)
