"""Runs the command line: `python3 -m weald_bench`."""

import sys

from weald_bench.cli import main

sys.exit(main())
