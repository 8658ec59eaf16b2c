"""`python -P -m kite_watchdog --state-dir DIR`."""

import sys

from kite_watchdog.main import main

sys.exit(main())
