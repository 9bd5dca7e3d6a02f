"""Tests of the harness: `PYTHONPATH=bench python3 -m unittest discover -s bench/tests -t bench`.

They run only rivals that are there: the builds of crates take minutes.
"""

import os

os.environ["WEALD_BENCH_NO_BUILD"] = "1"
