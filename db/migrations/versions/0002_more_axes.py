"""Axes that came with stream-K, the reduction in the same launch, exchanged operands, padding, and warp grids of one's own choice."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

# axis -> the value that means "not used", as every earlier schedule has it
AXES = {
    "stream_k": 0,
    "fused_reduction": 0,
    "swap_ab": 0,
    "pad": 0,
    "warps_n": 0,
    "instruction_n": 0,
    "consumers": 1,
    "producer_registers": 0,
    "swizzle_bytes": 0,
}


def upgrade() -> None:
    for axis, unused in AXES.items():
        op.add_column("trial", sa.Column(axis, sa.Integer(), nullable=False, server_default=str(unused)))
