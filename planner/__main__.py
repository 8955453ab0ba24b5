"""`python -m planner` is `planner`."""

import sys

from planner.cli import main

sys.exit(main())
