"""Roles and workers that cannot work are refused, with what to do about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from .support import load, problem, problems

_SHARED = """
storage = { url = "postgresql://capstan:x@db/capstan" }
redis = { url = "redis://cache:6379/0" }
webhooks = { secret_key = "the same everywhere" }
"""


def test_one_process_with_every_role_needs_nothing(tmp_path: Path) -> None:
    process = load(tmp_path).process
    assert process.roles == ("api", "follower", "deliverer", "bundler")
    assert process.workers == 1


@pytest.mark.parametrize("text", ['roles = ["api"]\nworkers = 8', 'roles = ["follower", "deliverer"]', "workers = 2"])
def test_processes_that_share_everything_are_accepted(tmp_path: Path, text: str) -> None:
    load(tmp_path, _SHARED + "[process]\n" + text)


@pytest.mark.parametrize(
    ("text", "key"), [("workers = 2", "process.workers"), ('roles = ["api", "follower"]', "process.roles")]
)
def test_sqlite_is_for_one_process(tmp_path: Path, text: str, key: str) -> None:
    found = problems(tmp_path, "[process]\n" + text)
    assert {each.key for each in found} == {key}
    assert "need PostgreSQL: set storage.url, or run one process with all roles on SQLite" in found[0].reason


def test_several_workers_share_their_limits(tmp_path: Path) -> None:
    found = problem(tmp_path, _SHARED.replace("redis = ", "#") + "[process]\nworkers = 2")
    assert found.reason.endswith("set redis.url")


def test_parts_that_seal_and_sign_share_a_key(tmp_path: Path) -> None:
    text = _SHARED.replace("webhooks = ", "#") + "[process]\n"
    assert problem(tmp_path, text + 'roles = ["deliverer"]').reason.endswith("set webhooks.secret_key")
    load(tmp_path, text + 'roles = ["bundler"]')


@pytest.mark.parametrize("roles", ["[]", '["api", "api"]'])
def test_roles_are_named_once_each(tmp_path: Path, roles: str) -> None:
    assert "each once" in problem(tmp_path, f"{_SHARED}[process]\nroles = {roles}").reason


def test_workers_are_processes_of_the_api(tmp_path: Path) -> None:
    found = problem(tmp_path, _SHARED + '[process]\nroles = ["follower"]\nworkers = 2')
    assert found.key == "process.workers"


def test_pgbouncer_is_for_postgresql(tmp_path: Path) -> None:
    assert problem(tmp_path, "[storage]\npgbouncer = true").key == "storage.pgbouncer"
    load(tmp_path, '[storage]\nurl = "postgresql://a:b@db/c"\npgbouncer = true')
