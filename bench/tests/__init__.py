"""Tests of the harness: `PYTHONPATH=bench python3 -m unittest discover -s bench/tests -t bench`."""
