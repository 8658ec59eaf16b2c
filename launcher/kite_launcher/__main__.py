"""`python -P -m kite_launcher`: the same as `kite-launch`."""

import sys

from kite_launcher.main import main

if __name__ == "__main__":
    sys.exit(main())
