"""Writes cpu.json: the model of the CPU on which these scripts ran, and its vector instructions (internal/golden, SameCPU).

    python3 tests/golden/cpu.py
"""

import json
import os


def main():
    with open("/proc/cpuinfo") as f:
        fields = dict((part.strip() for part in line.split(":", 1)) for line in f.read().split("\n\n")[0].splitlines() if ":" in line)
    vectors = sorted(f for f in fields["flags"].split() if f.startswith(("avx", "amx")) or f == "fma")
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "cpu.json"), "w") as out:
        json.dump({"cpu": " ".join([fields["vendor_id"], fields["cpu family"], fields["model"], *vectors])}, out)
        out.write("\n")


main()
