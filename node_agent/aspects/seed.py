"""The NoCloud seed: a small disk image with the first-boot data of a guest, as cloud-init reads it ("NoCloud").

The seed is an ISO 9660 image labelled CIDATA. `meta-data` has the hostname and the authorized SSH keys, `user-data` is
that of the allocation, and `vendor-data` has the settings of Sliceplane, which user-data may replace. The image
contains only the arguments of `seed_image`, so that equal arguments give an equal guest. Each key is on a line of its
own, because the lab's guest reads this layout with a shell script.

cloud-init (22.4, `config/cc_ssh.py`) removes the options of the keys that it authorizes for root, such as
`cert-authority`, so that a certificate authority becomes an ordinary key. A script in `vendor-data`, which runs at the
end of the first boot, adds these keys with their options.
"""

import re
import shlex
from collections.abc import Sequence
from io import BytesIO
from typing import Final

import pycdlib

LABEL: Final = "CIDATA"
_NO_USER_DATA: Final = "#cloud-config\n{}\n"
_CLOUD_CONFIG: Final = "#cloud-config\ndisable_root: false\nssh_pwauth: false\n"
_KEY_TYPE: Final = re.compile(r"(?:ssh|ecdsa|sk)-\S+ ")
_OPTIONS: Final = re.compile(r'(?:[^\s"\\]|"(?:[^"\\]|\\.)*")+ +')
"""Pattern for the options before the key in a line of `authorized_keys` (sshd(8))."""
_SCRIPT: Final = """\
#!/bin/sh
set -eu
file=/root/.ssh/authorized_keys
# Adds a key with its options if cloud-init has authorized it without them.
add() {
    if grep -qxF -e "$1" "$file" && ! grep -qxF -e "$2" "$file"; then
        printf '%s\\n' "$2" >> "$file"
    fi
}
"""


def seed_image(
    hostname: str, authorized_keys: Sequence[str], instance_id: str, user_data: str | None = None
) -> bytes:
    """Return a guest's seed image. `hostname` is a DNS label, `authorized_keys` are OpenSSH public key lines,
    `user_data` is a cloud-config or a script.

    A new `instance_id` makes cloud-init run as on a first boot. Raises `ValueError` if a value except `user_data`
    contains a line break or another unprintable character.
    """
    for line in (hostname, instance_id, *authorized_keys):
        if not line.isprintable():
            raise ValueError(
                f"unprintable character in {line!r}; a seed image may contain printable text only"
            )
    iso = pycdlib.PyCdlib()
    iso.new(interchange_level=3, vol_ident=LABEL, joliet=3, rock_ridge="1.09")
    texts = {
        "user-data": _NO_USER_DATA if user_data is None else user_data,
        "meta-data": _meta_data(hostname, authorized_keys, instance_id),
        "vendor-data": _vendor_data(authorized_keys),
    }
    for name, text in texts.items():
        content = text.encode()
        short = f"/{name.replace('-', '').upper()[:8]}.;1"
        iso.add_fp(BytesIO(content), len(content), short, rr_name=name, joliet_path=f"/{name}")
    image = BytesIO()
    iso.write_fp(image)
    iso.close()
    return image.getvalue()


def _meta_data(hostname: str, authorized_keys: Sequence[str], instance_id: str) -> str:
    keys = "".join(f"  - {_quoted(key)}\n" for key in authorized_keys)
    listed = f"public-keys:\n{keys}" if keys else "public-keys: []\n"
    return f"instance-id: {instance_id}\nlocal-hostname: {hostname}\n{listed}"


def _vendor_data(authorized_keys: Sequence[str]) -> str:
    with_options = [each for each in authorized_keys if not _KEY_TYPE.match(each)]
    if not with_options:
        return _CLOUD_CONFIG
    calls = [
        f"add {shlex.quote(_OPTIONS.sub('', each, count=1))} {shlex.quote(each)}\n" for each in with_options
    ]
    parts = (("cloud-config", _CLOUD_CONFIG), ("x-shellscript", _SCRIPT + "".join(calls)))
    # A fixed boundary: equal arguments give an equal seed. No line of a part begins with it.
    boundary = "sliceplane-vendor-data"
    texts = "".join(
        f'--{boundary}\nContent-Type: text/{kind}; charset="utf-8"\n\n{text}\n' for kind, text in parts
    )
    return (
        f'Content-Type: multipart/mixed; boundary="{boundary}"\nMIME-Version: 1.0\n\n{texts}--{boundary}--\n'
    )


def _quoted(text: str) -> str:
    # Single-quoted YAML has only one escape; comments of keys may contain ':', '#', '\\' and quotes.
    return "'" + text.replace("'", "''") + "'"
