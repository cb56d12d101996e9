"""`python -m tranlog`: the command `tranlog`, for a Python whose scripts are not on the PATH."""

import sys

from tranlog.service.commands.cli import main

if __name__ == "__main__":
    sys.exit(main())
