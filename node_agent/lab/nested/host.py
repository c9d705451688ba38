"""A nested lab host: a virtual machine with an emulated IOMMU. Its PCI functions can be given to the guests in it.

QEMU emulates a machine with two NUMA nodes, an Intel IOMMU and PCI functions that stand in for GPUs and fabric devices:
network cards (e1000e) and NVMe controllers. The machine runs the same first process as other lab nodes, and so Open
vSwitch, libvirt and the agent; VFIO and sysfs are those of its kernel. Its root file system is that of this machine,
read by 9p, with changes in memory; the folder of the host is writable.

The control pipe of the first process is a virtio serial port on the standard input and output of QEMU, so the machine
ends when its creator ends.
"""

import json
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from events.values import PciAddress, pci_address
from node_agent.lab.control import LinksAttached
from node_agent.lab.host import MANAGEMENT, UPLINK, HostConfig
from node_agent.lab.namespaces import IMPORT_ROOT, CommandFailed, HostFailed, LabHost
from node_agent.lab.nested.command_port import CommandResult, RunCommand
from node_agent.lab.nested.kernel import NestedKernel

MEMORY_MIB: Final = 3072
BOOT_SECONDS: Final = 120.0
READY_SECONDS: Final = 240.0
"""Timeout in seconds until the daemons of a nested host are ready: libvirt probes QEMU on an emulated processor."""
_CONTROL: Final = "control"
_COMMANDS: Final = "commands"
_PORTS: Final = Path("/dev/virtio-ports")
# On a busy machine, the kernel's test of the emulated timer fails and would stop the host.
_KERNEL_PARAMETERS: Final = (
    "console=ttyS0 earlyprintk=ttyS0 quiet no_timer_check intel_iommu=on mitigations=off panic=-1"
)
# Addresses of QEMU's user network: the host itself, and this machine.
_ADDRESS: Final = "10.0.2.15/24"
_THIS_MACHINE: Final = "10.0.2.2"


@dataclass(frozen=True, slots=True)
class EmulatedFunction:
    """A PCI function of a nested host. `device` is QEMU's device name with its options, and `numa_node` is 0 or 1.

    If `kept_by_host`, the host's driver is bound to the function, as to a function that the host itself uses. Otherwise
    no driver is bound, as on hosts that reserve their GPUs for guests. `neighbour` is the device of a second function
    in the same slot, which is in the same IOMMU group. `needs` are devices that QEMU creates before.
    """

    name: str
    device: str
    numa_node: int = 0
    kept_by_host: bool = False
    neighbour: str | None = None
    needs: tuple[str, ...] = ()


class NestedHost(LabHost):
    """A nested lab host with the given PCI functions. `relayed_ports` are TCP ports of the loopback interface of this
    machine that the host reaches under the same address.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        kernel: NestedKernel,
        functions: Sequence[EmulatedFunction],
        relayed_ports: Sequence[int],
    ) -> None:
        self._kernel, self._functions = kernel, tuple(functions)
        self._relayed_ports = tuple(relayed_ports)
        config = HostConfig(
            name=name,
            folder=str(folder),
            management=_ADDRESS,
            uplink="198.51.100.10/24",
            gateway="198.51.100.1",
        )
        super().__init__(name, "node_agent.lab.host", folder, config)
        self._commands_socket = folder / "commands.sock"
        self._monitor_socket = folder / "monitor.sock"
        self._commands: socket.socket | None = None
        start = folder / "start"
        start.write_text(self._start_script())
        start.chmod(0o755)

    def address(self, name: str) -> PciAddress:
        """Return the PCI address that a function has in the nested host."""
        [function] = [each for each in self._functions if each.name == name]
        # The firmware numbers the buses of a NUMA node in the order of their root ports.
        same_node = [each.name for each in self._functions if each.numa_node == function.numa_node]
        return pci_address(f"0000:{_root_bus(function.numa_node) + 1 + same_node.index(name):02x}:00.0")

    def start(self) -> None:
        """Boot the host and wait until its daemons are ready. Raises `HostFailed`."""
        self._commands_socket.unlink(missing_ok=True)
        self.launch()
        self.await_event("born", BOOT_SECONDS)
        # The command port ends while nothing is connected to its other end.
        self._commands = socket.socket(socket.AF_UNIX)
        self._commands.connect(str(self._commands_socket))
        self.send(LinksAttached())
        ports = [str(port) for port in self._relayed_ports]
        self.start_daemon("relay", _python("node_agent.lab.nested.relay", _THIS_MACHINE, *ports))
        port = str(_PORTS / _COMMANDS)
        self.start_daemon("command-port", _python("node_agent.lab.nested.command_port", port))
        self.await_event("ready", READY_SECONDS)

    def stop(self) -> None:
        if self._commands is not None:
            self._commands.close()
            self._commands = None
        super().stop()

    def run(
        self,
        argv: Sequence[str],
        *,
        check: bool = True,
        stdin: str | None = None,
        seconds: float = 60.0,
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program in the host, like `LabHost.run`."""
        words = ("env", *(f"{name}={value}" for name, value in (environment or {}).items()), *argv)
        result = self._ask(RunCommand(words, stdin or "", seconds))
        done = subprocess.CompletedProcess(list(argv), result.code, result.stdout, result.stderr)
        if check and done.returncode:
            raise CommandFailed(self.name, argv, done)
        return done

    def unplug(self, name: str) -> None:
        """Remove a PCI function from the running host, as a broken device would vanish."""
        with socket.socket(socket.AF_UNIX) as monitor:
            monitor.connect(str(self._monitor_socket))
            lines = monitor.makefile("rw")
            for command in (
                {"execute": "qmp_capabilities"},
                {"execute": "device_del", "arguments": {"id": name}},
            ):
                lines.write(f"{json.dumps(command)}\n")
                lines.flush()
                answer: dict[str, Any] = {}
                while not answer.keys() & {"return", "error"}:
                    answer = json.loads(lines.readline())
                if "error" in answer:
                    raise ValueError(f"{name} cannot be removed: {answer['error']}")

    def _failure(self, problem: str) -> HostFailed:
        console = self.folder / "log" / "console.log"
        shown = console.read_text(errors="replace")[-1000:] if console.exists() else ""
        return HostFailed(self.name, f"{problem}; its console: {shown}", super()._failure(problem).log)

    def _ask(self, command: RunCommand) -> CommandResult:
        if self._commands is None:
            raise self._failure("is not running")
        self._commands.settimeout(command.seconds + 60)
        self._commands.sendall(msgspec.json.encode(command) + b"\n")
        received = b""
        while not received.endswith(b"\n"):
            received += self._commands.recv(65536)
        return msgspec.json.decode(received, type=CommandResult)

    def _command(self) -> list[str]:
        functions = [words for number, each in enumerate(self._functions) for words in _plugged(number, each)]
        return [
            "qemu-system-x86_64",
            *("-machine", "q35,kernel-irqchip=off", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2"),
            *("-m", str(MEMORY_MIB), "-nographic", "-nodefaults", "-no-reboot"),
            *_numa(MEMORY_MIB),
            *("-kernel", str(self._kernel.kernel), "-initrd", str(self._kernel.initrd)),
            *("-append", f"{_KERNEL_PARAMETERS} folder={self.folder} end"),
            *("-serial", f"file:{self.folder / 'log' / 'console.log'}"),
            *("-device", "intel-iommu,intremap=on"),
            *("-device", "virtio-serial-pci,bus=pcie.0"),
            *("-chardev", "stdio,id=control,signal=off"),
            *("-device", f"virtserialport,chardev=control,name={_CONTROL}"),
            *("-chardev", f"socket,id=commands,path={self._commands_socket},server=on,wait=off"),
            *("-device", f"virtserialport,chardev=commands,name={_COMMANDS}"),
            *("-qmp", f"unix:{self._monitor_socket},server=on,wait=off"),
            *("-device", "virtio-rng-pci,bus=pcie.0"),
            *(
                "-device",
                "virtio-net-pci,netdev=management,bus=pcie.0,romfile=",
                "-netdev",
                "user,id=management",
            ),
            *_shared("machine", Path("/"), ",readonly=on"),
            *_shared("folder", self.folder, ""),
            *functions,
        ]

    def _start_script(self) -> str:
        port = _PORTS / _CONTROL
        unbound = " ".join(self.address(each.name) for each in self._functions if not each.kept_by_host)
        first_process = shlex.join(_python("node_agent.lab.host", str(self.folder / "config.json")))
        return f"""\
#!/bin/sh
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8
mount -t sysfs sysfs /sys
mkdir -p {_PORTS}
for each in /sys/class/virtio-ports/*; do
    ln -s /dev/"$(basename "$each")" {_PORTS}/"$(cat "$each/name")"
done
for each in /sys/class/net/*; do
    case "$(readlink -f "$each/device/driver")" in */virtio_net) ip link set "$(basename "$each")" name {MANAGEMENT};; esac
done
ip link add {UPLINK} type dummy
for each in {unbound}; do
    driver=/sys/bus/pci/devices/$each/driver
    if [ -e "$driver" ]; then echo "$each" > "$driver/unbind"; fi
done
umount /sys
cd {IMPORT_ROOT}
exec {first_process} <> {port} >&0 2>> {self.folder}/log/host.log
"""


def _python(module: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", module, *arguments)


def _numa(memory_mib: int) -> list[str]:
    """Return QEMU's options for two NUMA nodes, each with a processor, half of the memory and a PCI root bus."""
    words: list[str] = []
    for node in (0, 1):
        words += ["-object", f"memory-backend-ram,size={memory_mib // 2}M,id=memory{node}"]
        words += ["-numa", f"node,nodeid={node},memdev=memory{node},cpus={node}"]
        words += ["-device", f"pxb-pcie,id=numa{node},bus=pcie.0,bus_nr={_root_bus(node)},numa_node={node}"]
    return words


def _root_bus(numa_node: int) -> int:
    """Return the number of the PCI root bus of a NUMA node."""
    return 64 * (numa_node + 1)


def _plugged(number: int, function: EmulatedFunction) -> list[str]:
    """Return QEMU's options for a PCI function in a slot of its own, below a root port."""
    port = f"port{number}"
    root = f"pcie-root-port,id={port},bus=numa{function.numa_node},chassis={number + 1},slot={number + 1}"
    own = f"{function.device},romfile=,id={function.name},bus={port}"
    devices = [root, *function.needs]
    if function.neighbour is None:
        devices.append(own)
    else:
        # QEMU plugs a slot when its function 0 is created.
        devices += [
            f"{function.neighbour},romfile=,bus={port},addr=00.1",
            f"{own},addr=00.0,multifunction=on",
        ]
    return [word for each in devices for word in ("-device", each)]


def _shared(tag: str, path: Path, options: str) -> list[str]:
    files = f"local,id={tag},path={path},security_model=none,multidevs=remap{options}"
    return ["-fsdev", files, "-device", f"virtio-9p-pci,bus=pcie.0,fsdev={tag},mount_tag={tag}"]
