"""`python bench`, which is `make bench`: run every program of this folder by itself, print one table at the end.

A program that breaks is a FAIL like a missed must: the others still run. Exit code 1 when anything failed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from frame import Row, arguments, rows_of, table_text

HERE = Path(__file__).parent


def main() -> int:
    """Run the programs that the command line names, else all."""
    parser = arguments("Run every program in bench/ and print one table.")
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help="names without .py; all when none is named")
    options = parser.parse_args()
    known = sorted(path.stem for path in HERE.glob("*.py") if "\nQUESTION = " in path.read_text())
    unknown = sorted(set(options.programs) - set(known))
    if unknown:
        parser.error(f"no program {', '.join(unknown)} in bench/; there are {', '.join(known)}")
    passed_on = ["--json", "--full", "--date", options.date]
    passed_on += ["--record"] if options.record else []
    passed_on += [] if options.rounds is None else ["--rounds", str(options.rounds)]
    rows: list[Row] = []
    answers: list[dict[str, object]] = []
    broken: list[str] = []
    for name in options.programs or known:
        done = subprocess.run([sys.executable, HERE / f"{name}.py", *passed_on], stdout=subprocess.PIPE, check=False)
        try:
            answer = json.loads(done.stdout)
        except ValueError:
            broken.append(f"{name} (exit code {done.returncode})")
            continue
        answers.append(answer)
        rows += rows_of(answer)
    print(json.dumps(answers) if options.json else table_text(rows))
    if broken:
        print(f"without a result: {', '.join(broken)}; the reason is above", file=sys.stderr)
    return 1 if broken or any(row.verdict == "FAIL" for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
