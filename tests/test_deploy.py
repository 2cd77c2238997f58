"""The files of deploy/: as strict as the page says, and naming what there is. Tools that are there are asked, too."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from bursar_server.__main__ import main
from bursar_server.config import PREFIX, Config, settings
from tests.dockerfile import stages

DEPLOY = Path(__file__).resolve().parents[1] / "deploy"
CHART = DEPLOY / "helm" / "bursar"
VARIABLES = {PREFIX + "__".join(path).upper() for path, _ in settings()} | {"BURSAR_STATE", "NUMBA_CACHE_DIR"}


def _unit() -> dict[str, list[str]]:
    lines = (DEPLOY / "bursar.service").read_text(encoding="utf-8").splitlines()
    found: dict[str, list[str]] = {}
    for name, _, value in (line.partition("=") for line in lines if "=" in line and not line.startswith("#")):
        found.setdefault(name, []).append(value)
    return found


PLACES = f"{PREFIX}CHECKPOINTS__PLACES"


def _second_place(places: str) -> Path:
    """Return the file of the second place of checkpoints, which the settings understand."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PLACES, places)
        first, second = Config.load(Path("none.toml")).checkpoints.places
    assert first == "file:checkpoints"
    return Path(second.removeprefix("file:"))


def _understood(words: list[str]) -> bool:
    """Return whether a command line of bursar-server names a command and options that exist."""
    command = main.commands[words[0]]
    options = {option for parameter in command.params for option in parameter.opts}
    return all(word in options for word in words[1:] if word.startswith("--"))


def test_the_unit_starts_and_reloads_what_there_is() -> None:
    """Commands, options and variables exist; SIGHUP reads certificates, and the end waits for fits."""
    unit = _unit()
    (line,) = unit["ExecStart"]
    assert line.startswith("/opt/bursar/bin/bursar-server ")
    assert _understood(line.split()[1:])
    assert "ExecStartPre" not in unit, "a check before the start verifies the whole ledger twice"
    assert unit["ExecReload"] == ["/bin/kill -HUP $MAINPID"]
    assert {pair.partition("=")[0] for pair in unit["Environment"][0].split()} <= VARIABLES
    assert (unit["KillSignal"], unit["TimeoutStopSec"]) == (["SIGTERM"], ["1h"])
    strict = {
        "LimitCORE": "0",
        "OOMPolicy": "continue",
        "MemorySwapMax": "0",
        "NoNewPrivileges": "yes",
        "ProtectSystem": "strict",
        "UMask": "0077",
    }
    assert {name: unit[name] for name in strict} == {name: [value] for name, value in strict.items()}
    assert unit["User"] != ["root"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not on this machine")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    """No unknown setting, and an exposure that systemd itself calls OK."""
    text = (DEPLOY / "bursar.service").read_text(encoding="utf-8")
    unit = tmp_path / "bursar.service"
    unit.write_text(text.replace("/opt/bursar/bin/bursar-server", "/bin/true"))  # it has to be there
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)  # noqa: S607
    said = [line for line in done.stderr.splitlines() if "bursar.service" in line]
    assert (done.returncode, said) == (0, [])
    unit.write_text(unit.read_text() + "\n[Service]\nProtectEverything=yes\n")
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)  # noqa: S607
    assert "ProtectEverything" in done.stderr, "an unknown setting is not found"
    unit.write_text(text)
    command = ["systemd-analyze", "security", "--offline=yes", "--threshold=20", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-300:]


def test_the_compose_file_is_strict() -> None:
    """Not root, nothing to write but the state, no capabilities, no swap; the image's own user and folders."""
    service = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))["services"]["bursar"]
    final = stages()[1]
    assert service["user"] == final["USER"][0]
    state, checkpoints = service["volumes"]
    assert state == f"state:{json.loads(final['VOLUME'][0])[0]}"
    assert _second_place(service["environment"][PLACES]).parent == Path(checkpoints.removeprefix("checkpoints:"))
    assert checkpoints.removeprefix("checkpoints:") in final["RUN"][0], "a new volume belongs to the server's user"
    assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["ulimits"]["core"] == 0
    assert service["mem_limit"] == service["memswap_limit"]
    assert any(mount.startswith("/var/cache/bursar:") for mount in service["tmpfs"])
    assert _understood(service["command"])
    assert set(service["environment"]) <= VARIABLES
    assert service["ports"] == [f"8443:{final['EXPOSE'][0]}"]


# As much of Helm's templates as the chart has: values, printf, pipes to JSON, include, if, with and range.
_TAG = re.compile(r"\{\{-?\s*(.*?)\s*-?\}\}", re.DOTALL)


def render(text: str, scope: Mapping[str, Any], parts: Mapping[str, str]) -> str:
    """A template filled in."""
    out: list[str] = []
    position = 0
    while (tag := _TAG.search(text, position)) is not None:
        out.append(text[position : tag.start()])
        words = tag[1].split()
        position = tag.end()
        if words[0] in ("if", "with", "range"):
            yes, no, position = _block(text, position)
            out.append(_filled(words, yes, no, scope, parts))
        elif words[0] == "include":
            out.append(render(parts[words[1].strip('"')], scope, parts))
        else:
            out.append(_text(tag[1], scope))
    return "".join(out) + text[position:]


def _filled(words: list[str], yes: str, no: str, scope: Mapping[str, Any], parts: Mapping[str, str]) -> str:
    value = _value(words[-1], scope)
    if words[0] != "range":
        inner = {**scope, ".": value} if words[0] == "with" else scope
        return render(yes if value else no, inner, parts)
    if isinstance(value, Mapping):
        return "".join(render(yes, {**scope, "$name": k, "$value": v}, parts) for k, v in sorted(value.items()))
    return "".join(render(yes, {**scope, ".": one}, parts) for one in value)


def _block(text: str, position: int) -> tuple[str, str, int]:
    """Return what stands up to the end of a block, before and after its else, and where it ends."""
    depth, start, middle = 1, position, None
    for tag in _TAG.finditer(text, position):
        word = tag[1].split()[0]
        depth += (word in ("if", "with", "range")) - (word == "end")
        if word == "else" and depth == 1:
            middle = tag
        if depth == 0:
            first = text[start : middle.start() if middle else tag.start()]
            return first, text[middle.end() : tag.start()] if middle else "", tag.end()
    raise ValueError("a block of the template does not end")


def _value(path: str, scope: Mapping[str, Any]) -> Any:
    if path in scope:
        return scope[path]
    value: Any = scope
    for name in path.removeprefix(".").split("."):
        value = value[name]
    return value


def _text(expression: str, scope: Mapping[str, Any]) -> str:
    path, *pipes = (part.strip() for part in expression.split("|"))
    words = path.split()
    if words[0] == "printf":
        value: Any = words[1].strip('"') % tuple(_value(word, scope) for word in words[2:])
    else:
        value = _value(path, scope)
    for pipe in pipes:
        value = json.dumps(value) if pipe == "toJson" else str(value)
    return str(value)


def chart(**changes: Any) -> dict[str, Any]:
    """The chart's objects by kind, with changed values."""
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    scope = {"Values": values | changes, "Release": {"Name": "north", "Namespace": "hospital"}}
    defined = r'\{\{-?\s*define "([^"]+)"\s*-?\}\}(.*?)\{\{-?\s*end\s*-?\}\}\s*(?=\{\{-?\s*define|\Z)'
    source = (CHART / "templates" / "_parts.tpl").read_text(encoding="utf-8")
    parts = {name: body.strip() for name, body in re.findall(defined, source, re.DOTALL)}
    found = (
        yaml.safe_load(render(path.read_text(encoding="utf-8"), scope, parts))
        for path in sorted((CHART / "templates").glob("*.yaml"))
    )
    return {one["kind"]: one for one in found}


def test_the_chart_runs_one_locked_server() -> None:
    """One replica, not root, read-only, no capabilities, no token of the cluster, a volume that one pod can mount."""
    spec = chart()["StatefulSet"]["spec"]
    pod = spec["template"]["spec"]
    assert spec["replicas"] == 1
    claims = {claim["metadata"]["name"]: claim["spec"] for claim in spec["volumeClaimTemplates"]}
    assert claims.keys() == {"state", "checkpoints"}
    assert all(claim["accessModes"] == ["ReadWriteOncePod"] for claim in claims.values())
    assert pod["automountServiceAccountToken"] is False
    assert (pod["securityContext"]["runAsNonRoot"], pod["securityContext"]["runAsUser"]) == (True, 10001)
    for container in (*pod["initContainers"], *pod["containers"]):
        locked = container["securityContext"]
        assert container["resources"]["limits"].keys() == {"cpu", "memory"}, "a quota refuses a pod without them"
        assert locked["readOnlyRootFilesystem"] is True
        assert locked["allowPrivilegeEscalation"] is False
        assert locked["capabilities"] == {"drop": ["ALL"]}
        assert {mount["mountPath"] for mount in container["volumeMounts"]} == {
            "/var/lib/bursar",
            "/var/lib/bursar-checkpoints",
            "/var/cache/bursar",
            "/tmp",  # noqa: S108  a path in the container
        }
    assert {volume["emptyDir"]["medium"] for volume in pod["volumes"]} == {"Memory"}


def test_the_chart_calls_what_there_is() -> None:
    """Commands, options, variables and ports of the server, in container, probes and service."""
    objects = chart(names=["db.example.org"], settings={"BURSAR_SERVER_FIT_WORKERS": 3})
    pod = objects["StatefulSet"]["spec"]["template"]["spec"]
    (server,) = pod["containers"]
    assert _understood(server["args"])
    assert {"name": "BURSAR_SERVER_FIT_WORKERS", "value": "3"} in server["env"]
    assert {one["name"] for one in server["env"]} <= VARIABLES
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        command = server[probe]["exec"]["command"]
        assert command[0] == "bursar-server"
        assert _understood(command[1:])
        assert ("--live" in command) == (probe == "livenessProbe")
    (init,) = pod["initContainers"]
    assert init["env"] == server["env"], "what init makes is made with the server's settings"
    assert init["args"] == ["--name", "north.hospital.svc", "--name", "db.example.org"]
    (places,) = (one["value"] for one in server["env"] if one["name"] == PLACES)
    assert str(_second_place(places).parent) in {mount["mountPath"] for mount in server["volumeMounts"]}
    assert objects["Service"]["spec"]["ports"][0]["targetPort"] == server["ports"][0]["name"]
    assert objects["Service"]["spec"]["selector"] == objects["StatefulSet"]["spec"]["selector"]["matchLabels"]


def test_the_gateway_is_off_and_has_certificates_alone() -> None:
    """Both templates have nothing of it unless it is asked for; then no ledger and no table is mounted."""
    service = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))["services"]["gateway"]
    assert service["profiles"] == ["gateway"]
    assert _understood(service["command"])
    (mount,) = service["volumes"]
    assert (mount["read_only"], mount["volume"], mount["target"]) == (True, {"subpath": "tls"}, "/tls")
    assert (service["read_only"], service["cap_drop"], service["user"]) == (True, ["ALL"], "10001:10001")
    off = chart()
    assert len(off["StatefulSet"]["spec"]["template"]["spec"]["containers"]) == 1
    assert len(off["Service"]["spec"]["ports"]) == 1
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))["gateway"]
    on = chart(gateway=values | {"enabled": True})
    _, gateway = on["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    assert _understood(gateway["args"])
    (mount,) = gateway["volumeMounts"]
    assert (mount["subPath"], mount["readOnly"], mount["mountPath"]) == ("state/tls", True, "/tls")
    assert gateway["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert on["Service"]["spec"]["ports"][1]["targetPort"] == gateway["ports"][0]["name"]
    assert on["NetworkPolicy"]["spec"]["ingress"][0]["ports"] == [{"port": 8443}, {"port": 8444}]


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize(
    "name", ["db.example.org; touch broken", "$(touch broken)", '"; touch broken; "', "a'b", "a b"]
)
def test_no_value_is_a_command(tmp_path: Path, name: str, there: bool) -> None:
    """The first container's script, run by a shell: a name reaches `bursar-admin init` as one word, once."""
    (init,) = chart(names=[name])["StatefulSet"]["spec"]["template"]["spec"]["initContainers"]
    state, tools, told = tmp_path / "state", tmp_path / "bin", tmp_path / "told"
    for folder in (state, tools):
        folder.mkdir()
    if there:
        (state / "ledger.sqlite").touch()
    (tools / "bursar-admin").write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {told}\n')
    (tools / "bursar-admin").chmod(0o755)
    environment = {"PATH": f"{tools}:/usr/bin:/bin", "BURSAR_STATE": str(state)}
    subprocess.run([*init["command"], *init["args"]], env=environment, cwd=tmp_path, check=True)
    assert told.exists() is not there
    if not there:
        assert told.read_text().splitlines() == ["init", "--name", "north.hospital.svc", "--name", name]
    assert not list(tmp_path.rglob("broken"))
    assert state.stat().st_mode & 0o777 == 0o700


def test_every_start_may_take_as_long() -> None:
    """A long ledger is verified at the start: none of the three gives up before half an hour."""
    health = stages()[1]["HEALTHCHECK"][0]
    assert "--start-period=30m " in health
    assert _unit()["TimeoutStartSec"] == ["30min"]
    (server,) = chart()["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    assert server["startupProbe"]["periodSeconds"] * server["startupProbe"]["failureThreshold"] == 30 * 60


def test_the_unit_names_a_second_place_for_checkpoints() -> None:
    """The steps of its comment have it, and so do the folders that it may write."""
    text = (DEPLOY / "bursar.service").read_text(encoding="utf-8")
    (places,) = re.findall(r"places = (\[.*?\])", text)
    assert _unit()["ReadWritePaths"] == [f"-{_second_place(places).parent}"]
    assert "bursar-admin checkpoint write" in text


def test_the_charts_image_may_be_pinned_by_its_digest() -> None:
    """Then the tag says nothing."""
    image = {"repository": "r/bursar", "tag": "1", "digest": "sha256:abc", "pullPolicy": "Always"}
    pod = chart(image=image)["StatefulSet"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == "r/bursar@sha256:abc"


def test_the_charts_network_lets_nothing_out() -> None:
    """Calls come in on one port, from whom the values say."""
    policy = chart(allowFrom=[{"namespaceSelector": {}}])["NetworkPolicy"]["spec"]
    assert policy["egress"] == []
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"}
    assert policy["ingress"] == [{"ports": [{"port": 8443}], "from": [{"namespaceSelector": {}}]}]
    assert chart()["NetworkPolicy"]["spec"]["ingress"][0]["from"] == [{"podSelector": {}}]
    # For Kubernetes an empty "from" is everybody.
    assert chart(allowFrom=[])["NetworkPolicy"]["spec"]["ingress"] == []


@pytest.mark.skipif(
    shutil.which("helm") is None, reason="helm is not on this machine; the tests above render as it does"
)
def test_helm_renders_the_same() -> None:
    """Helm itself makes the same."""
    command = ["helm", "template", "north", str(CHART), "--namespace", "hospital"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert {one["kind"]: one for one in yaml.safe_load_all(done.stdout) if one} == chart()


def test_the_charts_version_is_the_projects() -> None:
    """So that an image of the same tag belongs to it."""
    text = (Path(__file__).resolve().parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    found = re.search(r'^version = "(.+)"', text, re.MULTILINE)
    assert found is not None
    told = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert told["appVersion"] == found[1]
    assert yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))["image"]["tag"] == found[1]
