"""Make the helpers of this folder importable: a package named `trace` would hide the standard library's."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
