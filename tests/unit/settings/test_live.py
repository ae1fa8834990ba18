"""A reload swaps what can be swapped, refuses what is wrong, and never leaves half of a change in force."""

from __future__ import annotations

from pathlib import Path

import pytest

from capstan.settings import LiveSettings, ReloadFailed, Settings, SettingsError

from .support import write

BEFORE = '[networks."base/mainnet"]\nupstreams = ["http://a.example"]\n'
AFTER = """
[server]
port = 9999
[storage]
pool_size = 20
[plans.free]
keys = 9
[units]
archive_factor = 4
[upstreams]
weight = 2
[networks."base/mainnet"]
finality_depth = 7
upstreams = ["http://a.example"]
[networks."base/sepolia"]
upstreams = ["http://b.example"]
"""


class Recorder:
    """A subscriber that keeps what it was told, and refuses on request."""

    def __init__(self, *, refuses_new: bool = False, refuses_old: bool = False) -> None:
        self.told: list[tuple[Settings, Settings]] = []
        self._refuses = (refuses_new, refuses_old)

    def __call__(self, old: Settings, new: Settings) -> None:
        if self._refuses[len(self.told) % 2]:
            raise RuntimeError("pool is busy")
        self.told.append((old, new))


def test_reload_swaps_networks_plans_units_and_upstreams(tmp_path: Path) -> None:
    live = LiveSettings(write(tmp_path, BEFORE))
    write(tmp_path, AFTER)
    report = live.reload()
    current = live.current
    assert set(current.served) == {"base/mainnet", "base/sepolia"}
    assert current.networks["base/mainnet"].finality_depth == 7
    assert current.networks["base/mainnet"].upstreams[0].weight == 2
    assert current.plans.free.keys == 9
    assert current.units.archive_factor == 4
    assert report.changed == (
        "plans.free.keys",
        "units.archive_factor",
        "upstreams.weight",
        'networks."base/mainnet".finality_depth',
        'networks."base/mainnet".upstreams',
        'networks."base/sepolia"',
    )


def test_reload_leaves_other_settings_and_says_they_need_a_restart(tmp_path: Path) -> None:
    live = LiveSettings(write(tmp_path, BEFORE))
    write(tmp_path, AFTER)
    assert live.reload().needs_restart == ("server.port", "storage.pool_size")
    assert live.current.server.port == 8080
    assert live.current.storage.pool_size == 10
    again = live.reload()
    assert again.changed == ()
    assert again.needs_restart == ("server.port", "storage.pool_size")


def test_report_holds_names_and_no_values(tmp_path: Path) -> None:
    live = LiveSettings(write(tmp_path, BEFORE))
    write(tmp_path, BEFORE.replace("a.example", "a.example/hunter2"))
    report = live.reload()
    assert report.changed == ('networks."base/mainnet".upstreams',)
    assert "hunter2" not in str(report)


@pytest.mark.parametrize("text", ["[server]\nprot = 1\n", "not toml", '[networks."base/mainnet"]\nupstreams = ["x"]\n'])
def test_wrong_settings_are_refused_and_the_old_ones_stay(tmp_path: Path, text: str) -> None:
    live = LiveSettings(write(tmp_path, BEFORE))
    before, recorder = live.current, Recorder()
    live.on_change(recorder)
    path = write(tmp_path, text)
    with pytest.raises(SettingsError, match=str(path)):
        live.reload()
    assert live.current is before
    assert recorder.told == []


def test_file_that_disappears_does_not_take_the_networks_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "capstan.toml").write_text(BEFORE, encoding="utf-8")
    live = LiveSettings()
    assert live.config_file == tmp_path / "capstan.toml"
    (tmp_path / "capstan.toml").unlink()
    with pytest.raises(SettingsError, match=r"capstan\.toml: cannot be read: No such file"):
        live.reload()
    assert "base/mainnet" in live.current.served


def test_file_that_appears_later_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    live = LiveSettings()
    assert live.config_file is None
    (tmp_path / "capstan.toml").write_text(BEFORE, encoding="utf-8")
    live.reload()
    assert "base/mainnet" in live.current.served


def test_working_directory_may_change_after_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, BEFORE)
    live = LiveSettings(Path("my-capstan.toml"))
    monkeypatch.chdir("/")
    write(tmp_path, AFTER)
    live.reload()
    assert "base/sepolia" in live.current.served


def test_reload_reads_environment_and_command_line_as_at_the_start(tmp_path: Path) -> None:
    environ = {"CAPSTAN_PLANS__FREE__KEYS": "50"}
    live = LiveSettings(write(tmp_path, BEFORE), environ, {"units.archive_factor": 3})
    environ.clear()
    write(tmp_path, AFTER)
    live.reload()
    assert live.current.plans.free.keys == 50
    assert live.current.units.archive_factor == 3


def test_subscribers_are_told_old_and_new_in_order(tmp_path: Path) -> None:
    live = LiveSettings(write(tmp_path, BEFORE))
    before, order = live.current, []
    live.on_change(lambda old, new: order.append(("first", old, new)))
    live.on_change(lambda old, new: order.append(("second", old, new)))
    write(tmp_path, AFTER)
    live.reload()
    assert order == [("first", before, live.current), ("second", before, live.current)]


def test_nobody_is_told_when_nothing_they_could_use_changed(tmp_path: Path) -> None:
    live = LiveSettings(write(tmp_path, BEFORE))
    recorder = Recorder()
    live.on_change(recorder)
    write(tmp_path, "[server]\nport = 1\n" + BEFORE)
    report = live.reload()
    assert (report.changed, report.needs_restart) == ((), ("server.port",))
    assert recorder.told == []


def test_unsubscribed_callback_is_not_told_and_may_be_removed_twice(tmp_path: Path) -> None:
    live = LiveSettings(write(tmp_path, BEFORE))
    recorder = Recorder()
    unsubscribe = live.on_change(recorder)
    unsubscribe()
    unsubscribe()
    write(tmp_path, AFTER)
    live.reload()
    assert recorder.told == []


def test_refusing_subscriber_rolls_the_others_back(tmp_path: Path) -> None:
    live = LiveSettings(write(tmp_path, BEFORE))
    before = live.current
    first, second, last = Recorder(), Recorder(refuses_new=True), Recorder()
    for subscriber in (first, second, last):
        live.on_change(subscriber)
    write(tmp_path, AFTER)
    with pytest.raises(ReloadFailed, match=r"^Recorder refused the new settings: pool is busy$"):
        live.reload()
    assert live.current is before
    (old, new), (undone, restored) = first.told
    assert (old, restored) == (before, before)
    assert undone is new
    assert second.told == last.told == []


def test_reload_works_again_after_a_refusal(tmp_path: Path) -> None:
    live = LiveSettings(write(tmp_path, BEFORE))
    unsubscribe = live.on_change(Recorder(refuses_new=True))
    write(tmp_path, AFTER)
    with pytest.raises(ReloadFailed):
        live.reload()
    unsubscribe()
    live.reload()
    assert "base/sepolia" in live.current.served


def test_subscriber_that_cannot_go_back_is_told_about(tmp_path: Path) -> None:
    live = LiveSettings(write(tmp_path, BEFORE))
    before = live.current
    first, stuck = Recorder(), Recorder(refuses_old=True)
    for subscriber in (first, stuck, Recorder(refuses_new=True)):
        live.on_change(subscriber)
    write(tmp_path, AFTER)
    with pytest.raises(ReloadFailed, match="Recorder could not go back to the old ones: restart the process"):
        live.reload()
    assert live.current is before
    assert len(first.told) == 2, "the others are still rolled back"


def test_reload_from_within_a_subscriber_is_refused(tmp_path: Path) -> None:
    live = LiveSettings(write(tmp_path, BEFORE))

    def reload_again(old: Settings, new: Settings) -> None:
        live.reload()

    live.on_change(reload_again)
    write(tmp_path, AFTER)
    with pytest.raises(ReloadFailed, match="a reload is already under way"):
        live.reload()
    assert set(live.current.served) == {"base/mainnet"}


def test_wrong_settings_at_the_start_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"server\.prot: unknown setting"):
        LiveSettings(write(tmp_path, "[server]\nprot = 1\n"))
