"""The files of examples/deploy, as far as they can be looked at without what runs them."""

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from waltap.cli.application import application
from waltap.config.layers import read_tables
from waltap.config.resolve import survey
from waltap.plugins.host import Host

DEPLOY = Path(__file__).parents[2] / "examples/deploy"
KUBERNETES = list(yaml.safe_load_all((DEPLOY / "kubernetes/waltap.yaml").read_text()))
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SECRETS = {
    "SHOP_HOST": "db",
    "SHOP_DATABASE": "shop",
    "SHOP_USER": "u",
    "SHOP_PASSWORD": "p",
    "KAFKA_SERVERS": "kafka:9092",
    "WALTAP_HTTP_TOKEN": "token-of-the-page",
}


def kind(name: str) -> dict[str, Any]:
    (found,) = [each for each in KUBERNETES if each["kind"] == name]
    return found


def profiles() -> dict[str, str]:
    return {
        "shop.toml": (DEPLOY / "shop.toml").read_text(),
        "ConfigMap": kind("ConfigMap")["data"]["shop.toml"],
    }


@pytest.mark.parametrize("place", ["shop.toml", "ConfigMap"])
def test_the_profiles_have_no_problem(place, tmp_path, monkeypatch):
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "secret").write_text("token-of-the-page")
    text = re.sub(r"\$\{file:[^}]+\}", f"${{file:{tmp_path / 'secret'}}}", profiles()[place])
    found = survey(read_tables(tomllib.loads(text), "shop.toml"), Host())
    assert [str(each) for each in found.problems] == []


def commands() -> list[list[str]]:
    service = (DEPLOY / "waltap.service").read_text()
    (start,) = re.findall(r"^ExecStart=\S+/waltap (.*)$", service, re.MULTILINE)
    (container,) = kind("StatefulSet")["spec"]["template"]["spec"]["containers"]
    found = [shlex.split(start), container["args"]]
    for name in ("Containerfile", "Containerfile.spark"):
        (words,) = re.findall(r"^CMD (\[.*\])$", (DEPLOY / name).read_text(), re.MULTILINE)
        found.append(yaml.safe_load(words))
    return found


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_the_commands_are_ours(words):
    root: Any = get_command(application)
    with root.make_context("waltap", ["plugins"]) as context:
        options = {
            each for option in root.get_command(context, words[0]).params for each in option.opts
        }
    assert {word for word in words if word.startswith("-")} <= options


def test_the_parts_of_the_statefulset_fit():
    stateful, service = kind("StatefulSet")["spec"], kind("Service")["spec"]
    pod = stateful["template"]
    (container,) = pod["spec"]["containers"]
    labels = pod["metadata"]["labels"]
    assert service["selector"].items() <= labels.items()
    assert stateful["selector"]["matchLabels"].items() <= labels.items()
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for profile in profiles().values():
        assert tomllib.loads(profile)["source"]["waltap.http"].endswith(f":{ports['http']}")
    paths = {container[f"{each}Probe"]["httpGet"]["path"] for each in ("startup", "liveness")}
    assert paths == {"/healthz"}
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    volumes = {each["name"] for each in pod["spec"]["volumes"]}
    volumes |= {each["metadata"]["name"] for each in stateful["volumeClaimTemplates"]}
    assert {each["name"] for each in container["volumeMounts"]} == volumes
    variables = set(re.findall(r"\$\{env:(\w+)\}", profiles()["ConfigMap"]))
    assert variables == {each["name"] for each in container["env"]}


def test_compose_gives_what_the_profile_asks_for():
    ours = COMPOSE["services"]["waltap"]
    assert set(re.findall(r"\$\{env:(\w+)\}", profiles()["shop.toml"])) == set(ours["environment"])
    assert set(ours["depends_on"]) <= set(COMPOSE["services"])
    assert ours["build"]["dockerfile"] == "Containerfile"
