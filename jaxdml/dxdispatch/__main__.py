"""Runs a JSON model of DirectML's DxDispatch tool and prints the output of its print commands."""

import argparse
import io
import sys
from collections.abc import Sequence

from jaxdml._directml.feature_levels import FeatureLevel
from jaxdml.dxdispatch import DxDispatchError, load

LEVELS = {str(level): level for level in FeatureLevel}


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0, or 1 after printing an error to stderr."""
    parser = argparse.ArgumentParser(prog="python -m jaxdml.dxdispatch", description=__doc__)
    parser.add_argument("model", help="the JSON file")
    parser.add_argument(
        "--feature-level", metavar="LEVEL", choices=LEVELS, default=str(FeatureLevel.LATEST),
        help=f"check the operators at this level: {', '.join(LEVELS)} (default: {FeatureLevel.LATEST})",
    )  # fmt: skip
    parser.add_argument("--output-dir", metavar="DIR", help="where writeFile writes (default: the model's folder)")
    arguments = parser.parse_args(argv)
    try:
        load(arguments.model, feature_level=LEVELS[arguments.feature_level]).run(output_dir=arguments.output_dir)
    except DxDispatchError as error:
        print(f"{arguments.model}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    if isinstance(sys.stdout, io.TextIOWrapper):  # the encoding may not have all characters of a name
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.exit(main())
