"""Refuses wrong settings before anything is started: `python scripts/check_settings.py KEY=VALUE ...`.

The job checks them again; this saves the half minute that starting a Ray takes. Exit code 2, one sentence per fault.
"""

import sys

from trainer.compose import compose
from trainer.config.sentences import ConfigError
from trainer.preflight import check_files


def main() -> int:
    """What needs no cluster: keys, values, task files, the model's folder."""
    try:
        check_files(compose(sys.argv[1:]))
    except ConfigError as error:
        print(*error.sentences, sep="\n", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
