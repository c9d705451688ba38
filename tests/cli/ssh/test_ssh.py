"""`sliceplane ssh`: the command that it executes for lab nodes and for other nodes, and its error messages.

The programs ssh and nsenter in PATH only print their arguments; tests/up uses the real programs.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from control_plane.cli.failures import Failure
from control_plane.cli.ssh import Login, login_of, ssh_arguments
from control_plane.client.answers import Allocation, decode
from tests.cli.conftest import KEY, OWN_KEY
from tests.cli.control_plane import ScriptedPlane, document, problem
from tests.cli.examples import ALLOCATION, NODE, allocation
from tests.cli.outcome import Outcome

Run = Callable[..., Outcome]
PATH: Final = f"GET /v1/allocations/{ALLOCATION}"
PUBLIC: Final = {
    "id": "ing-01jd4z0000000000000000000b",
    "slot_id": "lab-a/0",
    "state": "published",
    "public_address": "203.0.113.7",
    "protocol": "tcp",
    "public_port": 20022,
    "port": 22,
}
OPTIONS: Final = (
    *("-o", "UserKnownHostsFile=/dev/null"),
    *("-o", "StrictHostKeyChecking=no"),
    *("-o", "LogLevel=ERROR"),
    *("-o", "ConnectTimeout=15"),
)
PRIVATELY: Final = ("ssh", *OPTIONS, "-p", "22", "--", "root@10.100.1.10")
PUBLICLY: Final = ("ssh", *OPTIONS, "-p", "20022", "--", "root@203.0.113.7")
TWO_SLOTS: Final[dict[str, Any]] = {
    "slots": [
        {"slot_id": "lab-a/0", "node_id": "lab-a", "private_ip": "10.100.1.10"},
        {"slot_id": "lab-a/1", "node_id": "lab-a", "private_ip": "10.100.1.11"},
    ],
    "endpoints": [
        {"kind": "ssh", "address": address, "port": 22, "node_id": "lab-a", "via": "node"}
        for address in ("10.100.1.10", "10.100.1.11")
    ],
}


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """Folder with fake programs `ssh` and `nsenter` that print their arguments and exit with code 23."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("ssh", "nsenter"):
        program = folder / name
        words = "[sys.argv[0].rpartition('/')[2], *sys.argv[1:]]"
        program.write_text(
            f"#!{sys.executable}\nimport json, sys\nprint(json.dumps({words}))\nsys.exit(23)\n"
        )
        program.chmod(0o755)
    return folder


def started(programs: Path, *words: str) -> tuple[int, list[str], str]:
    """Run `sliceplane ssh`. Return its exit code, the arguments of the executed program, and its standard error."""
    done = subprocess.run(
        [sys.executable, "-m", "control_plane.cli", "ssh", *words],
        env={**os.environ, "PATH": str(programs)},
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, json.loads(done.stdout or "[]"), done.stderr


@pytest.fixture
def active(plane: ScriptedPlane, environment: None) -> ScriptedPlane:
    plane.script(PATH, document(allocation()))
    plane.script("GET /v1/nodes/lab-a", document(NODE))
    return plane


@pytest.fixture
def lab(home: Path, active: ScriptedPlane, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Configuration file like that of `./dev up`. PID 17 is the lab node, PID 18 the external host."""
    pids = {"node": home / "node.pid", "public": home / "site.pid"}
    pids["node"].write_text("17")
    pids["public"].write_text("18")
    file = home / "client.json"
    namespaces = {"lab-a": {via: str(path) for via, path in pids.items()}}
    file.write_text(json.dumps({"url": active.url, "api_key": KEY, "namespaces": namespaces}))
    file.chmod(0o600)
    monkeypatch.delenv("SLICEPLANE_URL")
    monkeypatch.delenv("SLICEPLANE_API_KEY")
    return file


def test_ssh_outside_a_lab_executes_plain_ssh_and_returns_its_exit_code(
    active: ScriptedPlane, programs: Path
) -> None:
    assert started(programs, ALLOCATION) == (23, [*PRIVATELY], "")


def test_ssh_passes_a_command_and_its_options_unchanged(active: ScriptedPlane, programs: Path) -> None:
    code, words, _ = started(programs, ALLOCATION, "--", "ls", "-l", "--", "-x")
    assert (code, words) == (23, [*PRIVATELY, "ls", "-l", "--", "-x"])


def test_ssh_places_given_options_before_its_own_options(active: ScriptedPlane, programs: Path) -> None:
    options = ("-i", "/keys/50%", "-o", "StrictHostKeyChecking=ask", "-o", "ForwardAgent=yes")
    _, words, _ = started(programs, ALLOCATION, *options)
    given = ("-o", "StrictHostKeyChecking=ask", "-o", "ForwardAgent=yes")
    keys = ("-i", "/keys/50%%")
    assert words == ["ssh", *given, *OPTIONS, *keys, "-p", "22", "--", "root@10.100.1.10"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can enter a network namespace")
@pytest.mark.parametrize(
    ("ingress", "options", "expected"),
    [
        ((), (), (17, PRIVATELY)),
        ((PUBLIC,), (), (18, PUBLICLY)),
        ((PUBLIC,), ("--via", "node"), (17, PRIVATELY)),
    ],
)
@pytest.mark.usefixtures("lab")
def test_ssh_to_a_lab_node_enters_the_network_namespace_that_reaches_it(
    plane: ScriptedPlane,
    programs: Path,
    ingress: tuple[dict[str, object], ...],
    options: tuple[str, ...],
    expected: tuple[int, tuple[str, ...]],
) -> None:
    plane._replies[PATH] = [document(allocation(ingress=ingress))]
    code, words, _ = started(programs, ALLOCATION, *options)
    pid, ssh = expected
    assert (code, words) == (23, ["nsenter", f"--target={pid}", "--net", "--", *ssh])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can enter a network namespace")
def test_ssh_with_a_context_of_the_control_plane_of_dev_up_enters_the_network_namespace(
    plane: ScriptedPlane, programs: Path, lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = {"url": plane.url, "credential": {"type": "api_key", "key": "sp_of-the-context"}}
    contexts = lab.parent / ".config/sliceplane/config.json"
    contexts.parent.mkdir(parents=True)
    contexts.write_text(json.dumps({"current": "lab", "contexts": {"lab": context}}))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(contexts.parent.parent))
    with_config = started(programs, ALLOCATION)
    monkeypatch.setenv("SLICEPLANE_URL", plane.url)
    monkeypatch.setenv("SLICEPLANE_API_KEY", "sp_other")
    assert started(programs, ALLOCATION) == with_config
    assert with_config == (23, ["nsenter", "--target=17", "--net", "--", *PRIVATELY], "")


def test_ssh_to_a_node_outside_the_lab_executes_plain_ssh(
    plane: ScriptedPlane, programs: Path, lab: Path
) -> None:
    slot = {"slot_id": "rack-1/0", "node_id": "rack-1", "private_ip": "10.100.3.10"}
    endpoint = {"kind": "ssh", "address": "10.100.3.10", "port": 22, "node_id": "rack-1", "via": "node"}
    plane._replies[PATH] = [document(allocation(slots=[slot], endpoints=[endpoint]))]
    plane.script("GET /v1/nodes/rack-1", document({**NODE, "id": "rack-1"}))
    _, words, _ = started(programs, ALLOCATION)
    assert words == [*PRIVATELY[:-1], "root@10.100.3.10"]


def test_ssh_to_a_lab_that_is_not_running_advises_to_start_it(lab: Path, unconfigured: Run) -> None:
    (lab.parent / "node.pid").unlink()
    outcome = unconfigured("ssh", ALLOCATION)
    assert (outcome.code, outcome.out) == (1, "")
    assert "lab node lab-a is not running on this machine" in outcome.err
    assert "./dev up" in outcome.err


def test_ssh_in_a_lab_offers_the_key_of_dev_up_and_the_key_of_the_user(
    active: ScriptedPlane, programs: Path, home: Path, lab: Path
) -> None:
    made, own = home / "up_key", home / ".ssh/id_ed25519"
    for key in (made, own):
        key.touch()
    lab.write_text(json.dumps({"url": active.url, "api_key": KEY, "identity": str(made)}))
    _, words, _ = started(programs, ALLOCATION)
    assert words == ["ssh", *OPTIONS, "-i", str(made), "-i", str(own), *PRIVATELY[-4:]]


def test_ssh_to_a_slice_on_a_simulated_node_is_refused(plane: ScriptedPlane, sliceplane: Run) -> None:
    plane.script(PATH, document(allocation()))
    plane.script("GET /v1/nodes/lab-a", document({**NODE, "simulated": True}))
    outcome = sliceplane("ssh", ALLOCATION)
    assert (outcome.code, outcome.out) == (1, "")
    assert "node lab-a is simulated, so its slices have no guest to log in to" in outcome.err


def test_ssh_to_an_unknown_allocation_advises_to_list_allocations(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    plane.script(PATH, problem(404, "unknown_allocation", f"there is no allocation {ALLOCATION}"))
    outcome = sliceplane("ssh", ALLOCATION)
    assert outcome.code == 1
    assert "sliceplane allocations list" in outcome.err


def test_ssh_without_the_program_ssh_names_what_to_install(active: ScriptedPlane, tmp_path: Path) -> None:
    code, _, err = started(tmp_path, ALLOCATION)
    assert code == 2
    assert "the program ssh is not installed on this machine" in err
    assert "openssh-client" in err


def found(state: str = "active", **changes: Any) -> Allocation:
    return decode(json.dumps(allocation(state, **changes)).encode(), Allocation)


@pytest.mark.parametrize(
    ("state", "advice"),
    [
        ("stopped", f"sliceplane allocations start {ALLOCATION}"),
        ("provisioning", f"sliceplane allocations watch {ALLOCATION}"),
        ("released", "sliceplane allocations list"),
    ],
)
def test_ssh_to_an_allocation_that_is_not_active_is_refused_with_reason_and_advice(
    state: str, advice: str
) -> None:
    with pytest.raises(Failure, match=f"is {state}, not active: the lease ended") as refused:
        login_of(found(state, reason={"code": "x", "message": "the lease ended"}), None, None)
    assert any(advice in each for each in refused.value.advice)


@pytest.mark.parametrize(
    "ingress",
    [
        [],
        [{**PUBLIC, "state": "reserved"}],
        [{**PUBLIC, "port": 443}],
        [{**PUBLIC, "protocol": "udp"}],
        [{**PUBLIC, "slot_id": "lab-a/1"}],
    ],
)
def test_login_without_a_published_ingress_rule_to_port_22_uses_the_private_address(
    ingress: list[dict[str, object]],
) -> None:
    assert login_of(found(ingress=ingress), None, None) == Login("lab-a", "node", "10.100.1.10", 22)


def test_login_through_a_whole_public_address_uses_port_22() -> None:
    whole = {name: PUBLIC[name] for name in ("id", "slot_id", "state", "public_address")}
    assert login_of(found(ingress=[whole]), None, None) == Login("lab-a", "public", "203.0.113.7", 22)


def test_ssh_to_an_allocation_with_several_slots_requires_a_valid_slot_number() -> None:
    several = found(**TWO_SLOTS)
    with pytest.raises(
        Failure,
        match=r"has 2 slots, and ssh connects to one of them: 0 is lab-a/0 \(10.100.1.10\), 1 is lab-a/1",
    ) as refused:
        login_of(several, None, None)
    assert refused.value.exit_code == 2
    assert login_of(several, 1, None).address == "10.100.1.11"
    with pytest.raises(Failure, match="has no slot 2"):
        login_of(several, 2, None)


@pytest.mark.parametrize(
    ("changes", "via", "advice"),
    [
        ({"endpoints": []}, None, "allocations show"),
        (
            {"endpoints": [], "network_mode": "public-nat"},
            None,
            f"allocations ingress add {ALLOCATION} tcp/22",
        ),
        ({}, "public", "--via node"),
        ({}, "gateway", "--via node"),
    ],
)
def test_ssh_to_a_slot_without_an_ssh_endpoint_is_refused_with_advice(
    changes: dict[str, Any], via: str | None, advice: str
) -> None:
    with pytest.raises(Failure, match="has no SSH endpoint") as refused:
        login_of(found(**changes), None, via)
    assert any(advice in each for each in refused.value.advice)


def test_ssh_command_that_begins_with_a_dash_is_not_parsed_as_an_option() -> None:
    words = ssh_arguments(Login("lab-a", "node", "10.100.1.10", 22), command=("-x",))
    assert words[-3:] == ("--", "root@10.100.1.10", "-x")


def test_show_of_an_allocation_with_several_slots_prints_a_login_command_for_each_slot(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    plane.script(PATH, document(allocation(**TWO_SLOTS)))
    plane.script("GET /v1/nodes/lab-a", document(NODE))
    out = sliceplane("allocations", "show", ALLOCATION).out
    for slot in (0, 1):
        assert f"sliceplane ssh {ALLOCATION} --slot {slot}" in out


def test_show_of_an_allocation_with_option_at_prints_no_login_command(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    plane.script(PATH, document(allocation()))
    plane.script("GET /v1/nodes/lab-a", document(NODE))
    out = sliceplane("allocations", "show", ALLOCATION, "--at", "2026-01-02T03:04:06Z").out
    assert "active" in out
    assert "sliceplane ssh" not in out


def test_create_without_any_ssh_key_generates_one_and_prints_its_path(
    plane: ScriptedPlane, sliceplane: Run, home: Path
) -> None:
    (home / ".ssh/id_ed25519.pub").unlink()
    (home / ".ssh").rmdir()
    plane.script("POST /v1/allocations", document(allocation("placed"), 202))
    plane.script("GET /v1/nodes/lab-a", document(NODE))
    create = ("allocations", "create", "--sku", "lab.small", "--no-wait")
    outcome = sliceplane(*create)
    assert outcome.code == 0
    key = home / ".ssh/id_ed25519"
    assert f"created the SSH key {key}, because ~/.ssh had none" in outcome.err
    assert (key.stat().st_mode & 0o777, key.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    public = key.with_name("id_ed25519.pub").read_text().strip()
    assert json.loads(plane.received[0].body)["ssh_authorized_keys"] == [public]
    derived = subprocess.run(["ssh-keygen", "-y", "-f", key], check=True, capture_output=True, text=True)
    assert derived.stdout.split()[:2] == public.split()[:2]
    assert sliceplane(*create).code == 0
    assert json.loads(plane.requests("POST /v1/allocations")[1].body)["ssh_authorized_keys"] == [public]


def test_create_with_a_private_key_without_public_key_is_refused_and_keeps_the_private_key(
    plane: ScriptedPlane, sliceplane: Run, home: Path
) -> None:
    (home / ".ssh/id_ed25519.pub").unlink()
    (home / ".ssh/id_rsa").write_text("precious")
    outcome = sliceplane("allocations", "create", "--sku", "lab.small", "--no-wait")
    assert outcome.code == 2
    assert f"ssh-keygen -y -f {home}/.ssh/id_rsa" in outcome.err
    assert not plane.received
    assert [each.name for each in (home / ".ssh").iterdir()] == ["id_rsa"]


def test_create_with_an_existing_ssh_key_generates_no_key(
    plane: ScriptedPlane, sliceplane: Run, home: Path
) -> None:
    plane.script("POST /v1/allocations", document(allocation("placed"), 202))
    plane.script("GET /v1/nodes/lab-a", document(NODE))
    outcome = sliceplane("allocations", "create", "--sku", "lab.small", "--no-wait")
    assert json.loads(plane.received[0].body)["ssh_authorized_keys"] == [OWN_KEY]
    assert "created the SSH key" not in outcome.err


GATEWAY: Final = f"{ALLOCATION}@gateway.example.com:2222"


def test_login_uses_the_ssh_gateway_unless_an_ingress_rule_leads_to_the_slice_or_its_node_is_local() -> None:
    through = Login("lab-a", "gateway", "slice-1", 22, GATEWAY)
    private = Login("lab-a", "node", "10.100.1.11", 22)
    several = found(**TWO_SLOTS, ssh_gateway={"address": "gateway.example.com:2222"})
    assert login_of(several, 1, None) == through
    assert login_of(several, 1, None, {"lab-b"}) == through
    assert login_of(several, 1, None, {"lab-a"}) == private
    assert login_of(several, 1, "node") == private
    assert login_of(several, 1, "gateway", {"lab-a"}) == through
    reachable = found(ingress=[PUBLIC], ssh_gateway={"address": "gateway.example.com:2222"})
    assert login_of(reachable, None, None).via == "public"


def test_ssh_through_the_gateway_offers_the_same_keys_to_the_gateway_and_to_the_slice() -> None:
    login = Login("lab-a", "gateway", "slice-0", 22, f"{ALLOCATION}@[::1]:2222")
    words = ssh_arguments(login, identities=[Path("/my keys/50%")])
    proxy = f"ProxyCommand=ssh -i '/my keys/50%%%%' -W slice-0:22 -p 2222 -l {ALLOCATION} -- ::1"
    assert words == (
        *("ssh", "-o", proxy, *OPTIONS, "-i", "/my keys/50%%", "-p", "22", "--", "root@slice-0"),
    )


def test_ssh_through_the_gateway_accepts_exactly_the_host_key_that_the_api_shows() -> None:
    login = Login("lab-a", "gateway", "slice-0", 22, GATEWAY, "ssh-ed25519 AAAA+/= comment")
    [proxy] = [word for word in ssh_arguments(login) if word.startswith("ProxyCommand=")]
    assert proxy == (
        "ProxyCommand=ssh -o 'KnownHostsCommand=/bin/echo * ssh-ed25519 AAAA+/=' -o UserKnownHostsFile=/dev/null"
        f" -o StrictHostKeyChecking=yes -W slice-0:22 -p 2222 -l {ALLOCATION} -- gateway.example.com"
    )
