"""`tranlog spark-package` makes an executor's environment."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

import msgspec
import pytest

from tranlog.errors import ConfigError
from tranlog.pipeline.spark.package import NOTE, check_package, write_package


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("package") / "tranlog-spark.zip"
    write_package(str(path))
    return path


@pytest.mark.long
def test_a_bare_python_runs_a_channel_with_it(package: Path, bare_python: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(package) as archive:
        archive.extractall(tmp_path / "unpacked")
    imports = "import tranlog.pipeline.applying.channel, tranlog.target.sqlite, tranlog.target.postgres, pyspark_thl"
    code = f"{imports.replace(', pyspark_thl', '')}; print(tranlog.__file__)"
    done = subprocess.run(
        [bare_python, "-c", code], env={"PYTHONPATH": str(tmp_path / "unpacked")}, capture_output=True, text=True
    )
    assert done.stdout.strip() == str(tmp_path / "unpacked" / "tranlog" / "__init__.py"), done.stderr
    assert (tmp_path / "unpacked" / "pyspark_thl.py").is_file()


@pytest.mark.long
def test_the_same_bytes_each_time(package: Path, tmp_path: Path) -> None:
    again = write_package(str(tmp_path / "again.zip"))
    assert Path(again.path).read_bytes() == package.read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["again.zip"]
    assert check_package(str(package)) == str(package)


def changed(package: Path, path: Path, **fields: str) -> str:
    with zipfile.ZipFile(package) as archive:
        note = msgspec.json.decode(archive.read(NOTE))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(NOTE, msgspec.json.encode({**note, **fields}))
    return str(path)


@pytest.mark.long
def test_a_package_that_does_not_fit_is_refused(package: Path, tmp_path: Path) -> None:
    wrong = changed(package, tmp_path / "old.zip", tranlog="0.0.9")
    with pytest.raises(ConfigError, match=r"made for tranlog 0\.0\.9, and this is .*make it again: `tranlog spark"):
        check_package(wrong)
    wrong = changed(package, tmp_path / "python.zip", python="cpython 3.9")
    with pytest.raises(ConfigError, match=r"made for Python cpython 3\.9"):
        check_package(wrong)
    torn = tmp_path / "torn.zip"
    torn.write_bytes(package.read_bytes()[:5000])
    with pytest.raises(ConfigError, match="it is not a whole package"):
        check_package(str(torn))
    with pytest.raises(ConfigError, match="No such file"):
        check_package(str(tmp_path / "none.zip"))
    with pytest.raises(ConfigError, match=r"end it by \.zip"):
        write_package(str(tmp_path / "x.tar"))
