"""The benchmarks of Weald: one harness for all figures.

`python3 -m weald_bench run` measures, `python3 -m weald_bench report` writes the document.

* `suites` has what is measured, one module for each suite, in parts.
* `rivals` has one module for each program that Weald is compared with.
* `corpora` has one module for each kind of tree that is packed.
* `runner` interleaves repetitions; `measure` takes time, memory and bytes from the kernel.
* `result` is what a run found, as JSON; `markdown` and `chart` show it; `report` joins runs.
"""
