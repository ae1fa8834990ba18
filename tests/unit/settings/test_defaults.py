"""`defaults.toml` and the structs hold the same settings, each with a comment, and the reference page is current."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec
import pytest

from capstan import settings_docs
from capstan.settings import RELOADABLE, Settings, Upstream, load_settings
from capstan.settings.layers import defaults_text, leaf_paths, section_fields
from capstan.settings.model import NetworkSettings

REPOSITORY = Path(__file__).parents[3]
ENTRIES = list(settings_docs.read_entries(defaults_text()))
SETTINGS = {entry.path: entry for entry in ENTRIES if entry.default is not None}
SECTIONS = {entry.path: entry for entry in ENTRIES if entry.default is None}


def test_every_struct_field_is_in_the_defaults_file_and_vice_versa() -> None:
    assert set(SETTINGS) == set(leaf_paths())


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: ".".join(entry.path))
def test_every_setting_and_section_has_a_comment(entry: settings_docs.Entry) -> None:
    assert len(entry.comment) > 4


def test_the_line_reader_sees_what_toml_sees() -> None:
    document = tomllib.loads(defaults_text())
    for path, entry in SETTINGS.items():
        value = document
        for part in path:
            value = value[part]
        assert tomllib.loads(f"value = {entry.default}")["value"] == value


def test_structs_carry_no_defaults_for_what_the_file_holds() -> None:
    def check(section: type[msgspec.Struct]) -> None:
        for field in msgspec.structs.fields(section):
            if section is not Upstream or field.encode_name in section_fields(Settings)["upstreams"].__struct_fields__:
                assert field.required, f"{section.__name__}.{field.name}"
            if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
                check(field.type)

    check(Settings)
    check(Upstream)
    check(NetworkSettings)


def test_defaults_alone_are_valid_and_serve_no_network() -> None:
    settings = load_settings(None, {})
    assert settings.mode == "production"
    assert settings.server.port == 8080
    assert settings.server.body_limit_bytes == 5 * 1024 * 1024
    assert settings.server.batch_limit == 100
    assert settings.storage.url == "sqlite"
    assert settings.redis.url == ""
    assert settings.access.poll_seconds == 0.25
    assert settings.limits.anonymous_requests_per_second == 1000
    assert settings.units.archive_factor == 10
    assert settings.units.archive_depth == 128
    assert settings.networks == {}
    assert settings.catalogue().served == ()


@pytest.mark.parametrize(
    ("plan", "limits"),
    [
        ("free", (10, 100_000, 200, 1_000, 5, 1_000, 2, 5)),
        ("growth", (100, 5_000_000, 2_000, 100_000, 100, 100_000, 50, 50)),
        ("enterprise", (0, 0, 0, 0, 0, 0, 0, 0)),
    ],
)
def test_plans_have_the_published_limits(plan: str, limits: tuple[int, ...]) -> None:
    assert msgspec.structs.astuple(load_settings(None, {}).plans.get(plan)) == limits


def test_unknown_plan_is_named() -> None:
    with pytest.raises(KeyError, match='unknown plan "gold"; there are free, growth, enterprise'):
        load_settings(None, {}).plans.get("gold")


def test_default_prices_make_an_archive_storage_read_cost_twenty() -> None:
    assert load_settings(None, {}).units.table().cost("eth_getStorageAt", archive=True) == 20


def test_reloadable_names_are_settings() -> None:
    assert set(Settings.__struct_fields__) > RELOADABLE


def test_reference_page_is_current() -> None:
    page = (REPOSITORY / settings_docs.PAGE).read_text(encoding="utf-8")
    assert page == settings_docs.render(), "run python -m capstan.settings_docs"


def test_reference_page_names_every_setting_and_its_variable() -> None:
    page = settings_docs.render()
    for path, entry in SETTINGS.items():
        variable = "CAPSTAN_" + "__".join(path).upper()
        assert f"| `{path[-1]}` |" in page
        assert f"| `{variable}` |" in page
        assert entry.comment in page.replace("\\|", "|")
    for path in SECTIONS:
        assert f"## `{'.'.join(path)}`" in page
    for key in section_fields(NetworkSettings):
        assert f"| `{key}` |" in page


def test_check_fails_on_a_stale_page_and_leaves_it_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "reference" / "configuration.md"
    assert settings_docs.main(["--check", "--output", str(page)]) == 1
    assert "is not current" in capsys.readouterr().err
    assert not page.exists()
    assert settings_docs.main(["--output", str(page)]) == 0
    assert settings_docs.main(["--check", "--output", str(page)]) == 0
    page.write_text(page.read_text(encoding="utf-8") + "edited", encoding="utf-8")
    assert settings_docs.main(["--check", "--output", str(page)]) == 1
    assert page.read_text(encoding="utf-8").endswith("edited")


def test_a_default_spread_over_lines_is_refused_by_the_page_generator() -> None:
    with pytest.raises(ValueError, match="line 3: write one setting on one line"):
        list(settings_docs.read_entries("# A comment.\nhosts = [\n]\n"))
