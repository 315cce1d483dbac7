"""A judge that kills its process at one seed and hangs at another. Loads nothing, so that its processes start quickly."""

import os
import time


def judge(seed: int) -> dict[str, str]:
    """Return a record, or do not return."""
    if seed == 1:
        os._exit(3)
    if seed == 2:
        time.sleep(1000)
    return {"outcome": "exact"}
