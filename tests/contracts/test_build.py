"""The check of the committed contracts notices when they are not what the compiler gives.

That all of them are what it gives is looked at by `make check`, which every change has to pass as well.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def build() -> ModuleType:
    spec = importlib.util.spec_from_file_location("contracts_build", ROOT / "contracts" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_contract_is_compiled_and_has_its_source(build: ModuleType) -> None:
    sources = {path.stem for path in build.contract_sources()}
    compiled = {path.stem for path in build.TARGET.glob("*.json") if "abi" in json.loads(path.read_text())}
    assert sources == compiled
    assert "SampleERC20" in sources
    # A module that contracts import is not a contract.
    assert "verifying_paymaster" not in sources


def test_the_check_notices_a_stale_file_and_the_build_repairs_it(
    build: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(build.TARGET, tmp_path / "catalogue")
    monkeypatch.setattr(build, "TARGET", tmp_path / "catalogue")
    # One contract is enough, and compiling takes its time.
    monkeypatch.setattr(build, "contract_sources", lambda: [build.SOURCES / "SampleERC20.vy"])
    stale = tmp_path / "catalogue" / "SampleERC20.json"
    good = stale.read_text()
    stale.write_text(good.replace("0x", "0x00", 1))
    assert build.main(["--check"]) == 1
    assert "SampleERC20.json" in capsys.readouterr().err
    assert build.main([]) == 0
    assert stale.read_text() == good
    assert build.main(["--check"]) == 0


def test_another_compiler_version_is_refused(
    build: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build.vyper, "__version__", "0.3.10")
    assert build.main(["--check"]) == 1
    assert "0.4.3" in capsys.readouterr().err
