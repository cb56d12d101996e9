"""What pyproject.toml cannot say: compile the hot modules with mypyc, where a C compiler is there.

    python setup.py -q build_ext --inplace     compile, or compile again, for a working copy

Where mypyc, the compiler or Python's headers are missing the installation goes on with the plain sources, which do the
same, and says so once. `tranlog.compiled` decides at import which form serves.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent
COMPILED = ROOT / "src" / "tranlog" / "compiled"
PACKAGE = "tranlog.compiled"
PLACEHOLDER = f"{PACKAGE}.placeholder"
"""Says that this package may hold compiled code; what it holds is known only once mypyc has run."""


def load_compiled() -> ModuleType:
    """Return `tranlog.compiled`, without importing the package around it."""
    spec = importlib.util.spec_from_file_location("tranlog_compiled", COMPILED / "__init__.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class CompileWherePossible(build_ext):
    """Compile what `tranlog.compiled` lists; no failure of it is one of the installation."""

    why_not: str | None = None

    def finalize_options(self) -> None:
        # Here, since what setuptools makes of each extension is settled here, too.
        try:
            self.distribution.ext_modules = self._translate()
        except (Exception, SystemExit) as exc:  # mypyc ends with SystemExit where mypy finds something
            self.distribution.ext_modules = []
            self._say(exc)
        super().finalize_options()

    def run(self) -> None:
        try:
            super().run()
        except (Exception, SystemExit) as exc:
            self.extensions = []
            self._say(exc)
            return
        for path in COMPILED.glob("*.so"):
            if self.of not in path.name:
                path.unlink()

    def _say(self, exc: BaseException) -> None:
        why = str(exc).strip().splitlines()
        print(
            "tranlog: its hot modules are not compiled; they run as plain Python, slower and the same "
            f"({type(exc).__name__}: {why[-1] if why else 'no reason given'})",
            file=sys.stderr,
        )

    def _translate(self) -> list[Any]:
        """Translate the modules to C; return what is to be compiled, named as `tranlog.compiled` looks for it."""
        from mypyc.build import mypycify

        compiled = load_compiled()
        self.of = compiled.digest()
        os.chdir(ROOT)
        os.environ["MYPYPATH"] = "src"
        extensions: list[Any] = mypycify(
            [
                "--config-file=",
                "--cache-dir=build/mypy",
                "--strict",
                "--disable-error-code=unused-ignore",
                # What an optional library returns is not known where it is not installed, as in pip's own build.
                "--disable-error-code=no-any-return",
                "--explicit-package-bases",
                "--follow-imports=silent",
                *[f"src/{module.replace('.', '/')}.py" for module in compiled.MODULES],
            ],
            opt_level="3",
            debug_level="0",
            target_dir="build/mypyc",
            group_name=f"{PACKAGE}.codec_{self.of}",
        )
        names = {module: f"{PACKAGE}.{compiled.module_stem(module, self.of)}" for module in compiled.MODULES}
        for extension in extensions:
            extension.name = names.get(extension.name, extension.name)
            # Calls within the library, of mypyc's own runtime among them, are then direct and can be inlined.
            extension.extra_compile_args += ["-fno-semantic-interposition", "-fvisibility=hidden", "-fno-plt"]
        return extensions


setup(ext_modules=[Extension(PLACEHOLDER, sources=[], optional=True)], cmdclass={"build_ext": CompileWherePossible})
