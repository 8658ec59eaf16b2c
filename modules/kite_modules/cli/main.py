"""The `kite` command."""


def main() -> int:
    """Start the program."""
    raise SystemExit("not built yet")
