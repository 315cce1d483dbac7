"""`python -m gnewt`: the command line."""

from gnewt.cli import app

app(prog_name="gnewt")
