"""Let reads of the stores return nothing in processes that have this folder in PYTHONPATH; see `mutants.BLANK`."""

from tests.acceptance.mutants import from_environment

from_environment()
