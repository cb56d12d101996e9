"""The archive for executors: tranlog and the libraries that it imports, in one file for `spark.archives`.

Owns its contents and its name. Spark unpacks it beside each executor, whose Python finds it by PYTHONPATH; Python
itself and PySpark are the worker's. The hard idea: it is made from what is installed here, and nothing is downloaded,
so it has the versions of this driver. Since libraries contain compiled code, it works for workers with the same minor
version of Python and the same kind of machine.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from tranlog.errors import ConfigError

PACKAGE_FOLDER: Final = "tranlog-package"
"""The folder beside an executor that Spark unpacks the file into."""
NOTE: Final = "tranlog-package.json"
REQUIRED: Final = ("librt", "msgspec", "mypy-extensions")
DRIVERS: Final = ("apsw", "psycopg", "psycopg-binary", "typing_extensions", "PyMySQL")
"""Libraries for targets; those that are installed here go in."""
_FIXED_TIME: Final = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageNote:
    """What a package says of itself; the libraries as `name version`."""

    tranlog: str
    python: str
    machine: str
    libraries: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenPackage:
    """A package that was written."""

    path: str
    size: int
    note: PackageNote


def _tranlog() -> str:
    return importlib.metadata.version("tranlog")


def _python() -> str:
    return f"{sys.implementation.name} {sys.version_info.major}.{sys.version_info.minor}"


def _machine() -> str:
    return f"{sys.platform} {platform.machine()}"


def write_package(path: str) -> WrittenPackage:
    """Write the package of this Python's tranlog; a file that is there is replaced at the end, whole.

    Shape: the same bytes for the same files. Raises ConfigError for a name that does not end by .zip.
    """
    if not path.endswith(".zip"):
        raise ConfigError(option="FILE", value=path, why="Spark tells archives by their names: end it by .zip")
    libraries: list[str] = []
    files: dict[str, Path] = dict(_own_files())
    for name in (*REQUIRED, *DRIVERS):
        try:
            found = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            assert name in DRIVERS, "we run, so what we require is here"
            continue
        libraries.append(f"{name} {found.version}")
        files |= dict(_library_files(found))
    note = PackageNote(tranlog=_tranlog(), python=_python(), machine=_machine(), libraries=tuple(libraries))
    half = f"{path}.part"
    try:
        with zipfile.ZipFile(half, "w", zipfile.ZIP_DEFLATED, compresslevel=3) as archive:
            archive.writestr(zipfile.ZipInfo(NOTE, _FIXED_TIME), msgspec.json.encode(note))
            for name, file in sorted(files.items()):
                entry = zipfile.ZipInfo(name, _FIXED_TIME)
                entry.compress_type = zipfile.ZIP_DEFLATED
                entry.external_attr = 0o644 << 16
                archive.writestr(entry, file.read_bytes())
        os.replace(half, path)
    except BaseException:
        Path(half).unlink(missing_ok=True)
        raise
    return WrittenPackage(path=path, size=os.path.getsize(path), note=note)


def _own_files() -> Iterator[tuple[str, Path]]:
    folder = Path(__file__).parents[2]
    for file in folder.rglob("*"):
        if file.is_file() and "__pycache__" not in file.parts:
            yield str(Path("tranlog") / file.relative_to(folder)), file
    finder = folder.parent / "pyspark_thl.py"
    yield finder.name, finder


def _library_files(found: importlib.metadata.Distribution) -> Iterator[tuple[str, Path]]:
    for file in found.files or ():
        if ".." not in file.parts and "__pycache__" not in file.parts and file.suffix not in (".pyi", ".h"):
            yield str(file), Path(str(found.locate_file(file)))


def check_package(path: str) -> str:
    """Return the absolute path of a package that fits this driver. Raises ConfigError."""
    again = "make it again: `tranlog spark-package FILE`"
    try:
        with zipfile.ZipFile(path) as archive:
            note = msgspec.json.decode(archive.read(NOTE), type=PackageNote)
    except OSError as exc:
        raise ConfigError(option="package", value=path, why=f"{exc.strerror or exc}; {again}") from exc
    except (zipfile.BadZipFile, KeyError, msgspec.DecodeError) as exc:
        raise ConfigError(option="package", value=path, why=f"it is not a whole package; {again}") from exc
    for what, theirs, ours in (("tranlog", note.tranlog, _tranlog()), ("Python", note.python, _python())):
        if theirs != ours:
            why = f"it was made for {what} {theirs}, and this is {ours}; {again}"
            raise ConfigError(option="package", value=path, why=why)
    return os.path.abspath(path)
