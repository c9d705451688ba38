"""Without a valid signing key, the control plane does not start; its error names the setting or the key file."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from control_plane.api.server import serve
from control_plane.dispatcher.dispatcher_program import run_dispatcher
from control_plane.identity.sealing import NoSigningKey, order_keys
from control_plane.settings import Settings
from control_plane.wiring import Plane, plane
from deploy.embedded.signing_key import ensure_signing_key
from tasks.signing import Signer, new_private_key
from tests.servers.plane import settings_for
from tests.servers.postgres import Database


def settings(**keys: Path) -> Settings:
    return Settings.model_validate({"database_url": "postgresql://", "redis_url": "redis://", **keys})


@pytest.mark.parametrize("program", [serve, run_dispatcher])
async def test_program_without_a_signing_key_fails_to_start(
    database: Database, program: Callable[[Plane], Awaitable[None]]
) -> None:
    async with plane(settings_for(database, "redis://127.0.0.1:1", 0, 1)) as made:
        with pytest.raises(NoSigningKey, match="SLICEPLANE_SIGNING_KEY_FILE is not set"):
            await program(made)


def test_signing_key_that_the_control_plane_generates_is_created_once_and_readable_only_by_its_owner(
    tmp_path: Path,
) -> None:
    path = ensure_signing_key(tmp_path / "signing-key.pem")
    assert path.stat().st_mode & 0o777 == 0o600
    made = path.read_bytes()
    assert ensure_signing_key(path).read_bytes() == made
    keys = order_keys(settings(signing_key_file=path))
    assert keys.trusted == (keys.signer.public,)


def test_retired_signing_keys_are_trusted_in_addition_to_the_current_key(tmp_path: Path) -> None:
    path = ensure_signing_key(tmp_path / "signing-key.pem")
    (tmp_path / "retired").mkdir()
    old = Signer.of_pem(new_private_key())
    (tmp_path / "retired" / "old.pem").write_text(old.public)
    (tmp_path / "retired" / "read-me.txt").write_text("not a key")
    keys = order_keys(settings(signing_key_file=path, retired_keys=tmp_path / "retired"))
    assert keys.trusted == (keys.signer.public, old.public)


@pytest.mark.parametrize(
    "content", [b"", b"not a key", b"\xff", Signer.of_pem(new_private_key()).public.encode()]
)
def test_invalid_signing_key_file_is_refused_with_its_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "key.pem"
    path.write_bytes(content)
    with pytest.raises(NoSigningKey, match=r"key\.pem cannot be used"):
        order_keys(settings(signing_key_file=path))
    with pytest.raises(NoSigningKey, match="No such file"):
        order_keys(settings(signing_key_file=tmp_path / "nowhere"))


@pytest.mark.parametrize("content", [b"not a key", b"\xff", new_private_key()])
def test_invalid_retired_key_file_is_refused_with_its_name(tmp_path: Path, content: bytes) -> None:
    path = ensure_signing_key(tmp_path / "key.pem")
    (tmp_path / "retired").mkdir()
    (tmp_path / "retired" / "old.pem").write_bytes(content)
    with pytest.raises(NoSigningKey, match=r"old\.pem cannot be"):
        order_keys(settings(signing_key_file=path, retired_keys=tmp_path / "retired"))
    with pytest.raises(NoSigningKey, match=r"the folder of retired keys .* does not exist"):
        order_keys(settings(signing_key_file=path, retired_keys=tmp_path / "elsewhere"))


def test_nodes_get_all_public_keys_of_the_sealer_that_the_file_contains(tmp_path: Path) -> None:
    path, public = ensure_signing_key(tmp_path / "signing-key.pem"), tmp_path / "sealing.pub.pem"
    first, second = (Signer.of_pem(new_private_key()).public for _ in range(2))
    public.write_text(f"the present key\n{first}\nthe former key\n{second}")
    keys = order_keys(settings(signing_key_file=path, sealing_public_keys_file=public))
    assert keys.sealing == (first, second)
    assert order_keys(settings(signing_key_file=path)).sealing == ()


@pytest.mark.parametrize("content", [b"", b"not a key", b"\xff", new_private_key()])
def test_invalid_file_of_public_keys_of_the_sealer_is_refused_with_its_name(
    tmp_path: Path, content: bytes
) -> None:
    path = ensure_signing_key(tmp_path / "key.pem")
    public = tmp_path / "sealing.pub.pem"
    public.write_bytes(content)
    with pytest.raises(NoSigningKey, match=r"sealing\.pub\.pem cannot be"):
        order_keys(settings(signing_key_file=path, sealing_public_keys_file=public))
    with pytest.raises(NoSigningKey, match="No such file"):
        order_keys(settings(signing_key_file=path, sealing_public_keys_file=tmp_path / "nowhere"))
