#!/usr/bin/env python3
"""Writes images.idx3.gz and labels.idx1.gz from scikit-learn's copy of the digits.

    python3 examples/mnist/digits/make.py SITE-PACKAGES/sklearn/datasets/data/digits.csv.gz

The images are (1797, 8, 8) bytes from 0 to 16, in MNIST's own IDX format, in scikit-learn's order.
"""
import gzip
import os
import struct
import sys

here = os.path.dirname(os.path.abspath(__file__))
rows = [[int(float(v)) for v in line.split(",")] for line in gzip.open(sys.argv[1], "rt")]
assert len(rows) == 1797 and all(len(r) == 65 for r in rows)


def write(name, magic, dims, values):
    # Without a name and a time in its header, the file is the same each time.
    with open(os.path.join(here, name), "wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as out:
        out.write(struct.pack(">I", magic) + b"".join(struct.pack(">I", d) for d in dims) + bytes(values))


write("images.idx3.gz", 0x803, [len(rows), 8, 8], [v for r in rows for v in r[:64]])
write("labels.idx1.gz", 0x801, [len(rows)], [r[64] for r in rows])
