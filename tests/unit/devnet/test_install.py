"""Installing the Node packages of the development chain: with the real npm, on a tiny project without a registry."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from capstan.devnet import install
from capstan.devnet.errors import DevnetError
from capstan.devnet.install import NODE_SOURCE, ensure_node_project
from tests.clients.install import SOURCE as CLIENTS
from tests.support.devnet import wait_until


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A project with no dependencies: npm has nothing to fetch."""
    directory = tmp_path / "source"
    directory.mkdir()
    package = {"name": "tiny", "version": "1.0.0"}
    lock = {**package, "lockfileVersion": 3, "requires": True, "packages": {"": package}}
    (directory / "package.json").write_text(json.dumps(package))
    (directory / "package-lock.json").write_text(json.dumps(lock))
    return directory


@pytest.fixture
def broken_source(source: Path) -> Path:
    """A project that npm cannot read, so that it fails without asking anyone."""
    (source / "package.json").write_text("{ not JSON")
    return source


def leftovers(root: Path) -> list[Path]:
    return list(root.glob(".installing-*"))


def test_installs_into_a_directory_named_after_the_lock_file(source: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    project = ensure_node_project(lines.append, source=source, root=tmp_path / "root")
    assert project.directory.parent == tmp_path / "root"
    assert len(project.directory.name) == len("devnet-") + 12
    assert (project.directory / "package-lock.json").read_bytes() == (source / "package-lock.json").read_bytes()
    assert os.access(project.node, os.X_OK)
    assert lines
    assert leftovers(tmp_path / "root") == []


def test_a_second_call_does_nothing(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = ensure_node_project(print, source=source, root=tmp_path / "root")
    # No npm can run any more.
    monkeypatch.setattr(install, "NPM_ARGUMENTS", ("no-such-command",))
    lines: list[str] = []
    assert ensure_node_project(lines.append, source=source, root=tmp_path / "root") == first
    assert lines == []


def test_projects_of_two_names_stand_beside_each_other(source: Path, tmp_path: Path) -> None:
    root, lines = tmp_path / "root", list[str]()
    (root / ".installing-devnet-abc").mkdir(parents=True)
    project = ensure_node_project(lines.append, source=source, root=root, name="clients", what="the clients")
    assert project.directory.name.startswith("clients-")
    assert all("the clients" in line for line in lines)
    # What the other one is installing is left alone.
    assert [path.name for path in leftovers(root)] == [".installing-devnet-abc"]


def test_another_lock_file_gets_another_directory(source: Path, tmp_path: Path) -> None:
    first = ensure_node_project(print, source=source, root=tmp_path / "root")
    lock = source / "package-lock.json"
    lock.write_text(lock.read_text() + "\n")
    second = ensure_node_project(print, source=source, root=tmp_path / "root")
    assert first.directory != second.directory
    assert first.directory.is_dir()


def test_a_failing_npm_is_reported_with_its_last_lines_and_leaves_nothing(broken_source: Path, tmp_path: Path) -> None:
    with pytest.raises(DevnetError, match=r"(?s)npm failed with exit code 1.*EJSONPARSE"):
        ensure_node_project(print, source=broken_source, root=tmp_path / "root")
    assert sorted(path.name for path in (tmp_path / "root").iterdir()) == ["devnet.lock"]


def test_an_npm_that_takes_too_long_is_ended(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "INSTALL_TIMEOUT_SECONDS", 0.01)
    with pytest.raises(DevnetError, match=r"npm took over 0\.01 seconds"):
        ensure_node_project(print, source=source, root=tmp_path / "root")


def test_what_an_interrupted_run_left_is_removed(source: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / ".installing-devnet-abc" / "project" / "node_modules").mkdir(parents=True)
    ensure_node_project(print, source=source, root=root)
    assert leftovers(root) == []


def test_a_killed_run_can_be_repeated(source: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    code = """
        import sys
        from pathlib import Path
        from capstan.devnet import install
        # A project directory that npm never gets to: the run stays inside its locked part.
        install._run_npm = lambda *arguments: sys.stdin.read()
        install.ensure_node_project(print, source=Path(sys.argv[1]), root=Path(sys.argv[2]))
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), source, root], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    try:
        wait_until(lambda: leftovers(root) != [], 20, "the first run to begin")
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(10)
        assert process.stdin is not None
        process.stdin.close()
    assert not any(path.name.startswith("devnet-") for path in root.iterdir())
    assert ensure_node_project(print, source=source, root=root).directory.is_dir()
    assert leftovers(root) == []


def install_and_report(source: Path, root: Path, results: multiprocessing.Queue[list[str]]) -> None:
    lines: list[str] = []
    ensure_node_project(lines.append, source=source, root=root)
    results.put(lines)


def test_two_processes_at_once_install_once(source: Path, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    results: multiprocessing.Queue[list[str]] = context.Queue(maxsize=2)
    arguments = (source, tmp_path / "root", results)
    processes = [context.Process(target=install_and_report, args=arguments) for _ in range(2)]
    for process in processes:
        process.start()
    reports = [results.get(timeout=60) for _ in processes]
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    installed = [lines for lines in reports if any(line.startswith("installed") for line in lines)]
    assert len(installed) == 1


def test_a_missing_node_package_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DevnetError, match=r"pip install 'capstan\[dev\]'"):
        ensure_node_project(print, root=tmp_path)


def test_a_root_that_cannot_be_written_is_a_clear_error(source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(DevnetError, match="virtual environment"):
        ensure_node_project(print, source=source, root=tmp_path / "file" / "root")


@pytest.mark.parametrize("directory", [NODE_SOURCE, CLIENTS], ids=["chain", "clients"])
def test_the_lock_files_pin_every_package_and_name_no_registry(directory: Path) -> None:
    text = (directory / "package-lock.json").read_text()
    assert '"resolved"' not in text
    packages = {name: entry for name, entry in json.loads(text)["packages"].items() if name}
    assert all(entry["integrity"].startswith("sha512-") for entry in packages.values())


def test_the_lock_file_has_the_native_part_of_the_node_for_every_platform() -> None:
    packages = json.loads((NODE_SOURCE / "package-lock.json").read_text())["packages"]
    # Both architectures and both C libraries.
    for platform in ("linux-x64-gnu", "linux-arm64-gnu", "linux-x64-musl", "linux-arm64-musl", "darwin-arm64"):
        assert f"node_modules/@nomicfoundation/edr-{platform}" in packages


def test_the_direct_dependencies_are_exact() -> None:
    assert json.loads((NODE_SOURCE / "package.json").read_text())["dependencies"] == {
        "aa06": "npm:@account-abstraction/contracts@0.6.0",
        "aa07": "npm:@account-abstraction/contracts@0.7.0",
        "aa08": "npm:@account-abstraction/contracts@0.8.0",
        "hardhat": "2.28.0",
    }
