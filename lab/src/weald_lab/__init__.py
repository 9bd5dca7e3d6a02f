"""Judges benchmark records of file systems: validation, import of 2015, rankings."""
