"""Which process a run belongs to, which file the GPU was named by, how operands were made, and what the compiler said.

Until now one status stood for what a schedule does and for what befell the machine meanwhile. Failures that are the schedule's own have
names of their own from here on; of the earlier ones, which cannot be told apart, those that name a lack of device memory are renamed, and
none but wrong answers and too large shared memory is remembered.
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("run", sa.Column("host", sa.String(), nullable=True))
    op.add_column("run", sa.Column("pid", sa.Integer(), nullable=True))
    op.add_column("run", sa.Column("process_started", sa.Float(), nullable=True))
    op.add_column("environment", sa.Column("gpu_figures", sa.String(), nullable=True))
    op.add_column("trial", sa.Column("operands", sa.String(), nullable=True))
    op.add_column("trial", sa.Column("operand_sets", sa.Integer(), nullable=True))
    op.add_column("trial", sa.Column("operands_over_l2", sa.Float(), nullable=True))
    op.add_column("trial", sa.Column("compile_log", sa.String(), nullable=True))
    op.execute("UPDATE trial SET status = 'machine_fault' WHERE status = 'out_of_resources' AND message LIKE '%OutOfMemory%'")
