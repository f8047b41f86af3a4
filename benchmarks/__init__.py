"""The measurements behind every figure in the documentation; each prints a table and writes JSON to out/bench/."""
