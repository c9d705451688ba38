"""The NoCloud seed: a small disk image that gives a guest its hostname and authorized SSH keys (cloud-init, "NoCloud").

The seed is an ISO 9660 image labelled CIDATA with `user-data` and `meta-data`, as real cloud images read it. It
contains only the arguments of `seed_image`, so that equal arguments give an equal guest. Each key is on a line of its
own, because the lab's guest reads this layout with a shell script.
"""

from collections.abc import Sequence
from io import BytesIO
from typing import Final

import pycdlib

LABEL: Final = "CIDATA"
_SHORT_NAMES: Final = {"user-data": "/USERDATA.;1", "meta-data": "/METADATA.;1"}


def seed_image(hostname: str, authorized_keys: Sequence[str], instance_id: str) -> bytes:
    """Return a guest's seed image. `hostname` is a DNS label, `authorized_keys` are OpenSSH public key lines.

    A new `instance_id` makes cloud-init run as on a first boot. Raises `ValueError` if a value contains a line break
    or another unprintable character.
    """
    for line in (hostname, instance_id, *authorized_keys):
        if not line.isprintable():
            raise ValueError(
                f"unprintable character in {line!r}; a seed image may contain printable text only"
            )
    iso = pycdlib.PyCdlib()
    iso.new(interchange_level=3, vol_ident=LABEL, joliet=3, rock_ridge="1.09")
    texts = {
        "user-data": _user_data(hostname, authorized_keys),
        "meta-data": f"instance-id: {instance_id}\nlocal-hostname: {hostname}\n",
    }
    for name, text in texts.items():
        content = text.encode()
        iso.add_fp(BytesIO(content), len(content), _SHORT_NAMES[name], rr_name=name, joliet_path=f"/{name}")
    image = BytesIO()
    iso.write_fp(image)
    iso.close()
    return image.getvalue()


def _user_data(hostname: str, authorized_keys: Sequence[str]) -> str:
    keys = "".join(f"  - {_quoted(key)}\n" for key in authorized_keys)
    listed = f"ssh_authorized_keys:\n{keys}" if keys else "ssh_authorized_keys: []\n"
    return f"#cloud-config\nhostname: {hostname}\ndisable_root: false\nssh_pwauth: false\n{listed}"


def _quoted(text: str) -> str:
    # Single-quoted YAML has only one escape; comments of keys may contain ':', '#', '\\' and quotes.
    return "'" + text.replace("'", "''") + "'"
