"""How large what is read may be: one place for the numbers, all of them far above what any job needs.

A reader or a check costs no more than the length of the text. So nothing is enumerated that a number in the text
stands for, before that number was found to be below a limit of this file.
"""

from __future__ import annotations

MOST_RANKS = 2**20
"""Of a job: eight times the 131,072 GPUs of the largest clusters that are written about."""
MOST_RANK_CLASSES = 4096
"""Each class is a trace of its own, of a second at least. The largest published layouts have some hundred: 16 stages of
a pipeline by 16 places in a ring of context parallelism are 256."""
MOST_GPU_BYTES = 2**42
"""4 TiB; the largest GPUs have less than a tenth. The sum over MOST_RANKS still fits into 63 bits, a column of the
history."""
MOST_HOST_BYTES = 2**50
"""1 PiB of a node's main memory; the largest machines have some tens of TiB."""

MOST_DEPTH = 100
"""Levels of a document. No job needs more, and every reader and writer of one must be able to follow."""
MOST_VALUES = 100_000
"""Values of a job's document: the config.json of a classifier with 21,843 labels has 44,000. Also bounds YAML's
aliases, which may name other aliases: a small text can stand for more than any machine holds."""
MOST_YAML_NODES = 10_000
"""Keys and values that are written in one YAML text. PyYAML takes some 50 microseconds for each; nobody writes more by
hand, and what a program writes can be JSON."""
LARGEST_YAML = 256 * 1024
"""Characters of a YAML text that somebody sent: PyYAML takes some microseconds for each."""
MOST_JSON_VALUES = 1_000_000
"""Values of any JSON text, as of 4,096 ranks that report at once: a list of empty lists takes 30 times its text."""
LONGEST_PATH = 200
"""Characters of a value's dotted key in messages. Every value carries its own: uncut, one long key above many values
would take the product of both."""
MOST_WHOLE = 2**128
"""The largest whole number, either way. Configs have 10**30 for "no limit" (transformers' VERY_LARGE_INTEGER), and
Python writes out no number of more than 4,300 digits (sys.set_int_max_str_digits)."""
LONGEST_NUMBER = 400
"""Characters of a number: the largest float has 309 digits before its point."""
LONGEST_NAME = 100
"""Characters of a name that is compared with known names, none of which is as long."""
