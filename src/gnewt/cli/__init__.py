"""The command line: `gnewt demo`, `explain`, `solve`, `doctor`, `bench`.

Exit codes: 0 where all went well, 1 where a run did not converge or something failed, 2 for input that makes no sense.
"""

from gnewt.cli.commands import app

__all__ = ["app"]
