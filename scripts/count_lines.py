"""Count the lines of code below a folder, by its folders: blank lines, comments and docstrings apart."""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

_NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def code_lines(source: str) -> int:
    """Return how many lines of a module hold code; a text that stands alone as a statement is none."""
    texts = {
        line
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - texts)


def main() -> int:
    """Print the sum of each folder and of all; the deepest two levels are one."""
    root = Path(sys.argv[1] if len(sys.argv) > 1 else "src")
    by_folder: Counter[str] = Counter()
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts[:-1]
        by_folder["/".join(parts[:2]) or "."] += code_lines(path.read_text())
    for folder, count in by_folder.most_common():
        print(f"{count:7,} {folder}")
    print(f"{by_folder.total():7,} {root}")
    return 0 if by_folder else 4


if __name__ == "__main__":
    sys.exit(main())
