"""Which processes the supervisor starts, and with what."""

from pathlib import Path

from capstan.cli.supervisor import members
from capstan.settings import Settings, load_settings


def settings(tmp_path: Path, **process: object) -> Settings:
    overrides = {
        "storage.url": "postgresql://capstan:x@db/capstan",
        "redis.url": "redis://cache:6379/0",
        "webhooks.secret_key": "the same everywhere",
        "server.metrics_port": 9100,
        **{f"process.{name}": value for name, value in process.items()},
    }
    return load_settings(None, {"CAPSTAN_CONFIG": ""}, {"data_dir": str(tmp_path), **overrides})


def test_the_other_roles_get_a_process_beside_the_workers(tmp_path: Path) -> None:
    team = members(settings(tmp_path, workers=2), ("--config", "x.toml"), 8080)
    assert [each.name for each in team] == ["api-1", "api-2", "background"]
    shared = ("--config", "x.toml", "--host", "127.0.0.1", "--port")
    assert team[0].arguments == team[1].arguments == (*shared, "8080", "--roles", "api", "--workers", "1")
    assert team[2].arguments == (*shared, "0", "--roles", "follower,deliverer,bundler", "--workers", "1")
    assert [each.environment["CAPSTAN_SERVER__METRICS_PORT"] for each in team] == ["9100", "9101", "9102"]


def test_workers_alone_where_no_other_role_is_asked_for(tmp_path: Path) -> None:
    team = members(settings(tmp_path, workers=3, roles=["api"]), (), 8080)
    assert [each.name for each in team] == ["api-1", "api-2", "api-3"]
