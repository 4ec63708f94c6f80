#!/usr/bin/env python3
"""Compares measured DRAM bytes with the work record: ncu_bytes.py PREFIX... [-o FILE.csv]

For each prefix there are PREFIX.json (kvsim measure --check --json) and PREFIX.ncu.csv (ncu --csv
--page raw of the same command). A method's call is one launch of each of its kernels, and the first
call a process makes is the plain one, so the first launch of each kernel name is counted. Exit 1 if
reads are more than 3 % off the record.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import sys
from pathlib import Path

TOLERANCE = 0.03
SECTOR_BYTES = 32
UNITS = {"byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "sector": 1.0, "": 1.0}
READ, WRITE, SECTORS = (
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "lts__t_sectors_op_read.sum",
)


def first_launches(path: Path) -> dict[str, dict[str, float]]:
    """Bytes and sectors of the first launch of each kernel, by kernel name."""
    lines = [line for line in path.read_text().splitlines() if line.startswith('"')]
    rows = list(csv.DictReader(lines))
    units, launches = rows[0], rows[1:]
    found: dict[str, dict[str, float]] = {}
    for launch in launches:
        name = re.split(r"[<(]", launch["Kernel Name"].replace("<unnamed>::", ""))[0]
        name = re.split(r"[ :]", name)[-1]  # without return type and namespace
        values = {
            key: float(launch[key].replace(",", "")) * UNITS[units[key]]
            for key in (READ, WRITE, SECTORS)
        }
        found.setdefault(name, values)
    return found


def compare(prefix: str) -> dict[str, object]:
    row = json.loads(Path(prefix + ".json").read_text())["rows"][0]
    kernels = first_launches(Path(prefix + ".ncu.csv"))
    total = {key: sum(k[key] for k in kernels.values()) for key in (READ, WRITE, SECTORS)}
    predicted = row["predicted_dram_read_bytes"]
    return {
        "method": row["spec"],
        "context_tokens": row["contexts"][0],
        "kernels": "+".join(kernels),
        "floor_bytes": round(row["floor_bytes"]),
        "predicted_dram_read_bytes": round(predicted),
        "measured_dram_read_bytes": round(total[READ]),
        "measured_over_predicted": round(total[READ] / predicted, 4),
        "predicted_dram_write_bytes": round(row["predicted_dram_write_bytes"]),
        "measured_dram_write_bytes": round(total[WRITE]),
        "measured_l2_read_bytes": round(total[SECTORS] * SECTOR_BYTES),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("prefixes", nargs="+")
    parser.add_argument("-o", "--output")
    options = parser.parse_args()
    rows, off = [], 0
    for prefix in options.prefixes:
        try:
            rows.append(compare(prefix))
        except (OSError, KeyError, IndexError, ValueError) as error:
            print(f"{prefix}: {type(error).__name__}: {error}", file=sys.stderr)
            off += 1
    for row in rows:
        wrong = abs(row["measured_over_predicted"] - 1) > TOLERANCE
        off += wrong
        print(
            f"{row['method']:24} {row['context_tokens']:8} predicted "
            f"{row['predicted_dram_read_bytes']:12} measured {row['measured_dram_read_bytes']:12} "
            f"{row['measured_over_predicted']:7.4f}{'  OFF' if wrong else ''}"
        )
    if options.output and rows:
        with open(options.output, "w", newline="") as file:
            writer = csv.DictWriter(file, rows[0].keys())
            writer.writeheader()
            writer.writerows(rows)
    return 1 if off else 0


if __name__ == "__main__":
    sys.exit(main())
