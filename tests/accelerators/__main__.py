"""make test-accelerators: compiles every operator for GPUs and TPUs without such devices, and checks the programs."""

import argparse
import sys
import time

from accelerators import costs, devices, report, verdict
from accelerators.cases import Case, of_operators
from accelerators.models import of_models
from accelerators.report import Row


def judged(case: Case, device: str) -> Row:
    """One case on one device."""
    function, structs = case.make()
    made = devices.compiled(device, function, structs)
    return report.row(case, device, made, verdict.complaints(made, device in devices.GPUS))


def main() -> int:
    parser = argparse.ArgumentParser(prog="make test-accelerators", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few cases of each kind")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose name contains TEXT")
    parser.add_argument("--device", action="append", choices=devices.DEVICES, help="may be given again; default: all")
    parser.add_argument("--costs", action="store_true", help="what contractions cost, by the compilers' own account")
    parser.add_argument("--publish", metavar="NAME", help="write NAME.md, and NAME.json, to benchmarks/results")
    arguments = parser.parse_args()
    wanted = tuple(arguments.device or devices.DEVICES)
    if arguments.costs:
        return report.tables(costs.tables(wanted), arguments.publish)
    cases = [case for case in (*of_operators(), *of_models()) if arguments.only in f"{case.operator}: {case.form}"]
    rows, start = [], time.monotonic()
    for case in cases:
        if case.is_quick or not arguments.quick:
            for device in wanted:
                try:
                    rows.append(judged(case, device))
                except Exception as error:  # the other cases run even if one does not compile
                    rows.append(report.failed(case, device, error))
                print(report.line(rows[-1]), flush=True)
    return report.finish(rows, time.monotonic() - start, arguments.publish)


if __name__ == "__main__":
    sys.exit(main())
