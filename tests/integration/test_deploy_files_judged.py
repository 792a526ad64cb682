"""The files of examples/deploy before those who know their forms, and what these say of faulty ones.

No image is built and no cluster is asked: hadolint reads the Containerfiles, the compose file goes through a
parser that refuses what the specification does not know, manifests are held against the schemas of
Kubernetes' releases.
"""

import subprocess
from pathlib import Path

import pytest
from tests.harness.servers.linters import linter

import waltap

DEPLOY = Path(__file__).parents[2] / "examples/deploy"
READ_COMPOSE = """
import sys
from compose_spec import PyCompose
print(*PyCompose.from_yaml(open(sys.argv[1]).read()).service_names())
"""
KUBERNETES = ("1.29", "1.37")
"""Releases, the oldest to the newest, that the manifests are held against."""


def judged(*command: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("name", ["Containerfile", "Containerfile.spark"])
def test_hadolint_finds_nothing(name, tmp_path):
    done = judged(*linter("hadolint"), "--no-color", DEPLOY / name)
    assert (done.returncode, done.stdout) == (0, "")
    text = (DEPLOY / name).read_text()
    assert f"ARG VERSION={waltap.__version__}\n" in text, "the release that the image has"
    faulty = tmp_path / name
    faulty.write_text(text.replace("WORKDIR /etc/waltap", "WORKDIR etc/waltap"))
    assert "DL3000" in judged(*linter("hadolint"), faulty).stdout


def test_compose_s_specification_knows_all_of_the_file(tmp_path):
    done = judged(*linter("compose"), "-c", READ_COMPOSE, DEPLOY / "compose.yaml")
    assert (done.returncode, done.stderr) == (0, "")
    assert set(done.stdout.split()) == {"postgres", "kafka", "waltap"}
    faulty = tmp_path / "compose.yaml"
    faulty.write_text((DEPLOY / "compose.yaml").read_text().replace("depends_on:", "depends:"))
    assert "depends" in judged(*linter("compose"), "-c", READ_COMPOSE, faulty).stderr


@pytest.mark.parametrize("release", KUBERNETES)
def test_the_manifests_fit_the_schemas_of(release, tmp_path):
    manifest = DEPLOY / "kubernetes/waltap.yaml"
    command = [*linter("kubernetes"), "--strict", "-k", release]
    done = judged(*command, manifest)
    assert done.returncode == 0, done.stdout + done.stderr
    faulty = tmp_path / "waltap.yaml"
    faulty.write_text(manifest.read_text().replace("readinessProbe:", "readynessProbe:"))
    assert judged(*command, faulty).returncode != 0
