"""The policy that keeps installed services from starting comes and goes without touching the user's own."""

import subprocess
from pathlib import Path

import pytest

from deploy.setup.service_denial import services_denied

USERS = "#!/bin/sh\nexit 0\n"


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    return tmp_path / "policy-rc.d"


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    return tmp_path / "lock"


def test_a_service_start_is_answered_with_101_inside(policy: Path, lock: Path) -> None:
    with services_denied(policy, lock):
        assert subprocess.run([policy, "redis-server", "start"], check=False).returncode == 101
    assert not policy.exists()


def test_the_users_policy_is_back_after_an_interruption(policy: Path, lock: Path) -> None:
    policy.write_text(USERS)
    with pytest.raises(KeyboardInterrupt), services_denied(policy, lock):
        raise KeyboardInterrupt
    assert policy.read_text() == USERS


def test_a_dangling_link_of_the_user_is_kept(policy: Path, lock: Path) -> None:
    policy.symlink_to("nowhere")
    with services_denied(policy, lock):
        assert not policy.is_symlink()
    assert policy.is_symlink()


def test_what_a_crash_left_is_undone_by_the_next_entry(policy: Path, lock: Path) -> None:
    policy.write_text(USERS)
    with services_denied(policy, lock):
        left = {path: path.read_text() for path in policy.parent.glob("policy-rc.d*")}
    for path, text in left.items():  # as `kill -9` in the middle leaves it
        path.write_text(text)
    with services_denied(policy, lock):
        pass
    assert policy.read_text() == USERS
    assert list(policy.parent.glob("policy-rc.d?*")) == []
