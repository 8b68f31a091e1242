"""The types: mypy with a program's use of the API, and the stub of the native module against the module."""

import os
import pathlib
import subprocess
import sys

import pytest

import sinews

HERE = pathlib.Path(__file__).parent
PACKAGES = pathlib.Path(sinews.__file__).parents[1]

pytest.importorskip("mypy", reason="mypy is not installed")


def check(folder, *arguments):
    # mypy finds an installed package itself.
    env = os.environ if PACKAGES.name == "site-packages" else {**os.environ, "MYPYPATH": str(PACKAGES)}
    result = subprocess.run([sys.executable, "-m", *arguments], cwd=folder, env=env, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_programs_pass_the_type_checker(tmp_path):
    check(HERE, "mypy", "--strict", "--cache-dir", tmp_path, HERE / "types_use.py")


def test_stub_of_the_native_module_is_right(tmp_path):
    check(tmp_path, "mypy.stubtest", "sinews._native")
