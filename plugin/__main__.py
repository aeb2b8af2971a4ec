"""``python -m subquant``, and the command ``subquant``."""

import sys


def main() -> None:
    """Run the command line; Ctrl-C while it is imported ends it as it does later."""
    try:
        from .cli import main as command
    except KeyboardInterrupt:
        sys.stderr.write("\nAborted!\n")
        raise SystemExit(1) from None
    command()


if __name__ == "__main__":
    main()
