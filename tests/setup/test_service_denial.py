"""Tests of the policy that denies service starts during package installation: it is installed and removed without
changing the user's own policy.
"""

import subprocess
from pathlib import Path

import pytest

from deploy.setup.service_denial import services_denied

USER_POLICY = "#!/bin/sh\nexit 0\n"


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    return tmp_path / "policy-rc.d"


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    return tmp_path / "lock"


def test_service_start_is_denied_with_code_101_during_package_installation(policy: Path, lock: Path) -> None:
    with services_denied(policy, lock):
        assert subprocess.run([policy, "redis-server", "start"], check=False).returncode == 101
    assert not policy.exists()


def test_service_policy_of_the_user_is_restored_after_an_interrupt(policy: Path, lock: Path) -> None:
    policy.write_text(USER_POLICY)
    with pytest.raises(KeyboardInterrupt), services_denied(policy, lock):
        raise KeyboardInterrupt
    assert policy.read_text() == USER_POLICY


def test_dangling_service_policy_link_of_the_user_is_restored(policy: Path, lock: Path) -> None:
    policy.symlink_to("nowhere")
    with services_denied(policy, lock):
        assert not policy.is_symlink()
    assert policy.is_symlink()


def test_service_policy_of_the_user_is_restored_by_the_next_set_up_after_a_crash(
    policy: Path, lock: Path
) -> None:
    policy.write_text(USER_POLICY)
    with services_denied(policy, lock):
        left = {path: path.read_text() for path in policy.parent.glob("policy-rc.d*")}
    for path, text in left.items():  # recreate the files as `kill -9` inside the block leaves them
        path.write_text(text)
    with services_denied(policy, lock):
        pass
    assert policy.read_text() == USER_POLICY
    assert list(policy.parent.glob("policy-rc.d?*")) == []
