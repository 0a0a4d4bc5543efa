"""`python -m gpulayer` is the `gpulayer` command."""

import sys

from gpulayer.cli import main

sys.exit(main())
