"""The first schema."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    _environment()
    _run()
    _trial()
    _finalist()


def _environment() -> None:
    op.create_table(
        "environment",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("gpu", sa.String(), nullable=False),
        sa.Column("triton", sa.String(), nullable=False),
        sa.Column("python", sa.String(), nullable=False),
        sa.Column("code_version", sa.String(), nullable=False),
        sa.Column("device_name", sa.String(), nullable=True),
        sa.Column("device_uuid", sa.String(), nullable=True),
        sa.Column("sms", sa.Integer(), nullable=True),
        sa.Column("device_memory_bytes", sa.BigInteger(), nullable=True),
        sa.Column("compute_capability", sa.String(), nullable=True),
        sa.Column("driver", sa.String(), nullable=True),
        sa.Column("cuda", sa.String(), nullable=True),
        sa.Column("torch", sa.String(), nullable=True),
        sa.Column("sm_clock_mhz", sa.Float(), nullable=True),
        sa.Column("memory_clock_mhz", sa.Float(), nullable=True),
        sa.Column("power_limit_w", sa.Float(), nullable=True),
    )


def _run() -> None:
    op.create_table(
        "run",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("environment_id", sa.Integer(), sa.ForeignKey("environment.id"), nullable=False),
        sa.Column("request", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("started", sa.String(), nullable=False),
        sa.Column("finished", sa.String(), nullable=True),
    )


def _trial() -> None:
    op.create_table(
        "trial",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("run_id", sa.Integer(), sa.ForeignKey("run.id"), nullable=False),
        sa.Column("environment_id", sa.Integer(), sa.ForeignKey("environment.id"), nullable=False),
        sa.Column("recorded", sa.String(), nullable=False),
        sa.Column("gpu", sa.String(), nullable=False),
        sa.Column("kernel_hash", sa.String(), nullable=False),
        sa.Column("protocol", sa.String(), nullable=False),
        sa.Column("strategy", sa.String(), nullable=False),
        sa.Column("model", sa.String(), nullable=False),
        sa.Column("m", sa.BigInteger(), nullable=False),
        sa.Column("n", sa.BigInteger(), nullable=False),
        sa.Column("k", sa.BigInteger(), nullable=False),
        sa.Column("dtype", sa.String(), nullable=False),
        sa.Column("out_dtype", sa.String(), nullable=False),
        sa.Column("layout", sa.String(), nullable=False),
        sa.Column("lda", sa.BigInteger(), nullable=False),
        sa.Column("ldb", sa.BigInteger(), nullable=False),
        sa.Column("ldc", sa.BigInteger(), nullable=False),
        sa.Column("alignment_bytes", sa.Integer(), nullable=False),
        sa.Column("family", sa.String(), nullable=False),
        sa.Column("cta_m", sa.Integer(), nullable=False),
        sa.Column("cta_n", sa.Integer(), nullable=False),
        sa.Column("cta_k", sa.Integer(), nullable=False),
        sa.Column("warps", sa.Integer(), nullable=False),
        sa.Column("stages", sa.Integer(), nullable=False),
        sa.Column("split_k", sa.Integer(), nullable=False),
        sa.Column("group_m", sa.Integer(), nullable=False),
        sa.Column("persistent_ctas_per_sm", sa.Integer(), nullable=False),
        sa.Column("epilogue_subtile", sa.Integer(), nullable=False),
        sa.Column("flatten", sa.Integer(), nullable=False),
        sa.Column("warp_m", sa.Integer(), nullable=False),
        sa.Column("warp_n", sa.Integer(), nullable=False),
        sa.Column("warp_k", sa.Integer(), nullable=False),
        sa.Column("mma_m", sa.Integer(), nullable=False),
        sa.Column("mma_n", sa.Integer(), nullable=False),
        sa.Column("mma_k", sa.Integer(), nullable=False),
        sa.Column("predicted_seconds", sa.Float(), nullable=False),
        sa.Column("predicted_limiter", sa.String(), nullable=False),
        sa.Column("predicted_registers", sa.Integer(), nullable=True),
        sa.Column("predicted_shared_memory_bytes", sa.Integer(), nullable=True),
        sa.Column("predicted_waves", sa.Float(), nullable=True),
        sa.Column("predicted_terms", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("message", sa.String(), nullable=False),
        sa.Column("samples_us", sa.String(), nullable=False),
        sa.Column("median_us", sa.Float(), nullable=True),
        sa.Column("relative_error", sa.Float(), nullable=True),
        sa.Column("error_bound", sa.Float(), nullable=True),
        sa.Column("registers", sa.Integer(), nullable=True),
        sa.Column("spill_slots", sa.Integer(), nullable=True),
        sa.Column("shared_memory_bytes", sa.Integer(), nullable=True),
        sa.Column("mma_instruction", sa.String(), nullable=True),
        sa.Column("binary_hash", sa.String(), nullable=True),
        sa.Column("compile_seconds", sa.Float(), nullable=True),
        sa.Column("sm_clock_mhz", sa.Float(), nullable=True),
        sa.Column("throttle_reasons", sa.String(), nullable=True),
    )
    op.create_index("trial_problem", "trial", ["m", "n", "k", "status"])
    op.create_index("trial_run", "trial", ["run_id"])


def _finalist() -> None:
    op.create_table(
        "finalist",
        sa.Column("run_id", sa.Integer(), sa.ForeignKey("run.id"), primary_key=True),
        sa.Column("trial_id", sa.Integer(), sa.ForeignKey("trial.id"), primary_key=True),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("ratio", sa.Float(), nullable=False),
        sa.Column("ratio_low", sa.Float(), nullable=False),
        sa.Column("ratio_high", sa.Float(), nullable=False),
        sa.Column("median_us", sa.Float(), nullable=False),
        sa.Column("library_us", sa.Float(), nullable=False),
        sa.Column("tied", sa.Boolean(), nullable=False),
        sa.Column("winner", sa.Boolean(), nullable=False),
        sa.Column("hot_l2_us", sa.Float(), nullable=True),
        sa.Column("eager_us", sa.Float(), nullable=True),
    )
