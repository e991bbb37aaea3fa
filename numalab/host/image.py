# SPDX-License-Identifier: GPL-2.0-only
"""Guest images: mmdebstrap makes a base disk, Packer boots it, Ansible provisions it.

An image is found by its inputs, so it is rebuilt when, and only when, one of them changes. Its id names one
build: another build of the same inputs has another id, and guests over the first one keep it. Not here:
overlays (disks), what a running guest needs (guest.provision).
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import re
import shutil
import tarfile
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from pydantic import Field

from numalab.core import paths, state
from numalab.core.errors import BootHung, CommandFailed, HostError, InputError
from numalab.core.log import moving, note, step
from numalab.core.process import Deadline, ends_with_us, need, run
from numalab.host import accelerator as host_accelerator
from numalab.host import base_guest, console, packer
from numalab.host.ansible import ansible, literals, tasks
from numalab.host.domain import CMDLINE, INIT, TCG_MODEL
from numalab.model.catalog import find, load
from numalab.model.units import GIB, MIB, Size
from numalab.model.values import Accel, Name, Stored, Value, first_line, jsonable

FORMAT = 4
"""Incremented when this module makes another image from the same files."""
_INIT_FILE = f"playbooks/roles/guest/files/root{INIT}"
TEMPLATE = "images/guest.pkr.hcl"
"""Packer's template, of all images."""
ROOT_START = 2 * MIB
"""Start of the root partition; before it are the GPT and a BIOS boot partition for GRUB."""
BLOCK = 4096
"""The block size of the root file system."""
PARTITION = "6e756d61-6c61-4b00-8000-000000000001"
"""The root partition's PARTUUID in every image: a kernel without an initrd finds its root by it."""
EXT4 = "^metadata_csum,^metadata_csum_seed,^orphan_file"
"""With these features, kernels before 3.17, 4.4 and 5.15 would not mount the root. With metadata_csum,
Debian's kernel gives the journal a feature (csum_v3) that 3.16 does not know; Debian 12's mke2fs leaves the
others out by default, later ones do not."""
FILES = ("disk.qcow2", "vmlinuz", "initrd.img", "host_key.pub")
"""The files that booting and reaching a guest of the image needs."""
BUILD_SECONDS = 40 * 60.0
MOST_HANGS = 1
"""How often a build whose guest hung under emulation is begun again."""


class ImageRecipe(Value):
    """images/NAME.yml: what differs between images."""

    description: str
    suite: Annotated[str, Field(pattern="^[a-z]+$")] | None = None
    """Debian's release, for mmdebstrap; None: the image is only made over a cloud image."""
    disk: Annotated[Size, Field(ge=2 * GIB)]
    """The size of the disk; a cloud image that is larger keeps its own."""
    playbook: str
    packages: tuple[Annotated[str, Field(pattern="^[a-z0-9][a-z0-9.+-]+$")], ...]


class Image(Stored):
    """A finished image; its folder holds disk.qcow2, vmlinuz, initrd.img, config, host_key.pub."""

    name: Name
    id: str
    """Identifies this build: 16 hexadecimal digits, recorded in every result that used the image."""
    directory: str
    root: str
    """The value for the kernel's root=."""
    disk_bytes: int
    inputs: dict[str, str]

    @property
    def has_init(self) -> bool:
        """Whether it has the lab's init; images of before 2026-11-23 have systemd alone."""
        return _INIT_FILE in self.inputs

    @property
    def received(self) -> bool:
        """Whether another lab made it (pool.travel). It is found by its inputs as one that was built here is,
        but for the key of its guests, which came with it."""
        return self.file(state.SSH_KEY).exists()

    def file(self, name: str) -> Path:
        """The path of one of the image's files."""
        return Path(self.directory) / name


def recipe(name: str) -> ImageRecipe:
    """Read and check images/NAME.yml."""
    image_recipe = load(ImageRecipe, find("images", name))
    if not (paths.ROOT / "playbooks" / image_recipe.playbook).is_file():
        raise InputError(f"images/{name}.yml: playbook: there is no playbooks/{image_recipe.playbook}")
    return image_recipe


def inputs(name: str, base: Path | None, deadline: Deadline) -> dict[str, str]:
    """All inputs of the image -> their hashes."""
    files = [
        paths.find(f"images/{name}.yml"),
        paths.find(TEMPLATE),
        paths.ROOT / "playbooks" / recipe(name).playbook,
    ]
    files += sorted(path for path in (paths.ROOT / "playbooks/roles/guest").rglob("*") if path.is_file())
    hashes = {paths.label(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    hashes["ssh key"] = hashlib.sha256(state.ssh_key(deadline).with_suffix(".pub").read_bytes()).hexdigest()
    hashes["format"] = str(FORMAT)
    if base:
        try:
            with base.open("rb") as handle:
                hashes["base"] = hashlib.file_digest(handle, "sha256").hexdigest()
        except OSError as error:
            raise InputError(f"base {base}: {error.strerror}", field="base") from error
    return hashes


def existing(name: str, deadline: Deadline, base: Path | None = None) -> Image | None:
    """The newest image with just these inputs, or None. HostError when it is broken.

    Without `base`, images over any cloud image match; of several, the one that `build` last returned.
    """
    newest = next(iter(_matching(name, inputs(name, base, deadline), base)), None)
    return _whole(newest) if newest else None


def current(name: str, deadline: Deadline) -> set[str]:
    """The ids of images that `existing` may return: the newest one for each base."""
    newest: dict[str, str] = {}
    for image in _matching(name, inputs(name, None, deadline), None):
        newest.setdefault(image.inputs.get("base", ""), Path(image.directory).name)
    return set(newest.values())


def pinned(name: str, id: str) -> Image:
    """The image with this id, whatever the inputs are now. HostError when it is gone or broken."""
    place = state.folder("images", name) / id
    if not place.is_dir():
        raise HostError(f"image {name}: {place} is gone: lab.py image build {name}")
    return _whole(manifest(place))


def manifest(place: Path) -> Image:
    """The manifest in an image's folder. Raises HostError."""
    try:
        # The current folder: a state directory may be moved.
        return Image.from_json((place / "manifest.json").read_text()).model_copy(
            update={"directory": str(place)}
        )
    except (OSError, ValueError) as error:
        raise HostError(f"manifest.json cannot be read: {first_line(error)}") from error


def _matching(name: str, wanted: dict[str, str], base: Path | None) -> list[Image]:
    """Images with these inputs, over any base when none is given; the one last built or selected comes first.

    An image whose manifest cannot be read belongs to another checkout and does not match.
    """
    matches = []
    for place in state.folder("images", name).iterdir():
        with contextlib.suppress(HostError, OSError):
            image = manifest(place)
            passed = {*(() if base else ("base",)), *(("ssh key",) if image.received else ())}
            recorded, asked = (
                {key: value for key, value in inputs.items() if key not in passed}
                for inputs in (image.inputs, wanted)
            )
            if recorded == asked and not place.name.startswith("."):
                matches.append((image.file("manifest.json").stat().st_mtime_ns, image))
    return [image for _, image in sorted(matches, key=lambda match: match[0], reverse=True)]


def _whole(image: Image) -> Image:
    """The image, after checking its files. HostError when one is missing or truncated."""
    mend = (
        f"lab.py image build --force {image.name} (with the --base that it was made from, if any), then"
        " lab.py gc"
    )
    try:
        size = (
            min(image.file(needed).stat().st_size for needed in FILES)
            and image.file("disk.qcow2").stat().st_size
        )
    except OSError as error:
        raise HostError(f"image {image.name}: {image.directory} is broken ({error}): {mend}") from error
    if size != image.disk_bytes:
        raise HostError(
            f"image {image.name}: {image.directory}/disk.qcow2 has {size} bytes, not {image.disk_bytes}:"
            f" {mend}"
        )
    return image


def require(name: str, deadline: Deadline) -> Image:
    """The image for the current inputs. HostError says how to build it."""
    image = existing(name, deadline)
    if image is None:
        raise HostError(f"image {name} is not built, or its inputs changed: lab.py image build {name}")
    return image


def build(
    name: str,
    *,
    accelerator: str,
    deadline: Deadline,
    base: Path | None = None,
    force: bool = False,
    with_packer: bool = True,
) -> Image:
    """Build an image unless it exists. `base` is a bootable cloud image with cloud-init to start from.

    `force` builds another one; the existing one stays for its users, until gc. Without Packer, or where none
    can be had, the lab itself boots the same base and runs the same playbook.
    """
    with state.lock(f"image-{name}", deadline):
        if not force and (ready := existing(name, deadline, base)):
            ready.file("manifest.json").touch()  # `existing` returns this one from now on
            return ready
        hashes = inputs(name, base, deadline)
        place = state.folder("images", name) / uuid.uuid4().hex[:16]
        with state.making(place) as scratch:
            image_recipe = recipe(name)
            if base:
                which, extra = accelerator if accelerator != "auto" else "tcg", _cloud_init(scratch, deadline)
                disk = _resized(base, image_recipe.disk, scratch, deadline)
            elif image_recipe.suite is None:
                raise InputError(
                    f"base: images/{name}.yml has no suite, so the image is made from a cloud image:"
                    " name its file",
                    field="base",
                )
            else:
                start = _base(name, image_recipe, deadline)
                disk = start / "base.qcow2"
                which = host_accelerator.choose(accelerator, start / "vmlinuz", deadline).accel.value
                extra = [
                    ["-kernel", str(start / "vmlinuz")],
                    ["-initrd", str(start / "initrd.img")],
                    ["-append", f"root=PARTUUID={PARTITION} rw {CMDLINE}"],
                ]
            if with_packer and not (with_packer := bool(packer.program() or packer.fetchable())):
                note("no Packer can be had on this host: the lab boots the base itself")
            provision = _packer if with_packer else _by_itself
            for again in range(MOST_HANGS + 1):
                log = _log(f"console-{name}")
                boot = [*extra, ["-serial", f"file:{log}"]]
                watch = functools.partial(console.check_stuck, log) if which == Accel.TCG else None
                try:
                    provision(name, image_recipe, disk, scratch, which, boot, watch, deadline)
                    break
                except BootHung as hung:
                    what = f"image {name}: {hung} ({log.replace(log.with_name(f'hung-{log.name}'))})"
                    if again == MOST_HANGS:
                        raise BootHung(what) from hung
                    note(f"{what}; begun again")
            if base:
                disk.unlink()
            built = Image(
                name=name,
                id=place.name,
                directory=str(place),
                root=(scratch / "root").read_text().strip(),
                inputs=hashes,
                disk_bytes=(scratch / "disk.qcow2").stat().st_size,
            )
            (scratch / "manifest.json").write_text(json.dumps(jsonable(built), indent=1))
        return built


def _base(name: str, image_recipe: ImageRecipe, deadline: Deadline) -> Path:
    """The folder of the base disk, cached: a playbook changes more often than a package list."""
    key = state.ssh_key(deadline).with_suffix(".pub").read_text()
    content = json.dumps(
        [jsonable(image_recipe), FORMAT, key, *(f"{k}={v}" for k, v in _overlay_files(deadline).items())]
    )
    place = state.folder("bases") / f"{name}-{hashlib.sha256(content.encode()).hexdigest()[:16]}"
    if not place.is_dir():
        for old in place.parent.iterdir():
            # Not NAME-lean-…, which is another image's.
            if re.fullmatch(re.escape(name) + "-[0-9a-f]{16}", old.name):
                shutil.rmtree(old, ignore_errors=True)
        with state.making(place) as scratch:
            _base_disk(image_recipe, scratch, deadline)
    return place


def _resized(base: Path, size: int, scratch: Path, deadline: Deadline) -> Path:
    """A copy of a cloud image, whose disk has at least `size` bytes. cloud-init grows the root to fill it."""
    disk, qemu_img = scratch / "base.qcow2", need("qemu-img", "qemu-utils")
    run([qemu_img, "convert", "-O", "qcow2", base, disk], deadline=deadline)
    own = json.loads(run([qemu_img, "info", "--output=json", disk], deadline=deadline).stdout)["virtual-size"]
    if own < size:
        run([qemu_img, "resize", "-q", disk, str(size)], deadline=deadline)
    return disk


def _base_disk(image_recipe: ImageRecipe, scratch: Path, deadline: Deadline) -> None:
    """mmdebstrap -> tar -> ext4 in a GPT disk -> base.qcow2, with vmlinuz and initrd.img. Needs no root."""
    tar, tree, raw, disk = (
        scratch / "base.tar",
        scratch / "tree",
        scratch / "base.raw",
        scratch / "base.qcow2",
    )
    with step(f"base file system: mmdebstrap {image_recipe.suite}, {len(image_recipe.packages)} packages"):
        log = _log("mmdebstrap")
        run(
            _mmdebstrap(image_recipe, scratch, tar, deadline),
            deadline=deadline,
            log=log,
            watch=functools.partial(_tell_stage, log),
        )
    with step("base disk"):
        # fakeroot keeps owners and modes in a file, from which mke2fs reads them, without root.
        tree.mkdir(mode=0o755)
        fake: list[str | Path] = (
            []
            if os.geteuid() == 0
            else [need("fakeroot", "fakeroot"), "-i", scratch / "fakeroot", "-s", scratch / "fakeroot", "--"]
        )
        (scratch / "fakeroot").touch()
        run([*fake, "tar", "-C", tree, "--numeric-owner", "-xf", tar], deadline=deadline)
        # --skip=output/dev: its nodes need root, and the kernel mounts devtmpfs here. mmdebstrap 1.5 leaves
        # the folder itself in, 1.3 does not.
        (tree / "dev").mkdir(exist_ok=True)
        with raw.open("wb") as handle:
            handle.truncate(image_recipe.disk)
        table = (
            "label: gpt\nstart=1MiB, size=1MiB,"
            f" type=21686148-6449-6E6F-744E-656564454649\nstart={ROOT_START // MIB}MiB, uuid={PARTITION}\n"
        )
        run([need("sfdisk", "fdisk"), "-q", raw], deadline=deadline, input=table.encode())
        # No lazy initialization: it would write to the disk during the first measurements.
        blocks = (image_recipe.disk - ROOT_START - MIB) // BLOCK
        run(
            [
                *fake,
                need("mke2fs", "e2fsprogs"),
                "-q",
                "-F",
                "-t",
                "ext4",
                "-O",
                EXT4,
                "-L",
                "lab",
                "-d",
                tree,
                "-b",  # without it, mke2fs takes the size below for KiB
                str(BLOCK),
                "-i",
                "65536",
                "-E",
                f"offset={ROOT_START},lazy_itable_init=0,lazy_journal_init=0",
                raw,
                str(blocks),
            ],
            deadline=deadline,
        )
        run([need("qemu-img", "qemu-utils"), "convert", "-O", "qcow2", raw, disk], deadline=deadline)
        with tarfile.open(tar) as archive:
            for member in archive:
                kind = Path(member.name).name.split("-")[0]
                if (
                    member.isfile()
                    and Path(member.name).parent.name == "boot"
                    and kind in ("vmlinuz", "initrd.img")
                ):
                    source = archive.extractfile(member)
                    assert source is not None  # a regular file
                    (scratch / kind).write_bytes(source.read())
        shutil.rmtree(tree)
        shutil.rmtree(scratch / "overlay")
        for leftover in (tar, raw, scratch / "fakeroot"):
            leftover.unlink()


def _overlay_files(deadline: Deadline) -> dict[str, str]:
    """The files that the base needs to boot and to be reached, by path.

    The initrd holds only the modules that are needed (MODULES=list): under TCG a stock one takes longer to
    unpack than the rest of the boot.
    """
    return {
        "etc/initramfs-tools/conf.d/lab": "MODULES=list\nCOMPRESS=lz4\n",
        "etc/initramfs-tools/modules": "virtio_pci\nvirtio_blk\next4\n",
        "etc/fstab": f"PARTUUID={PARTITION} / ext4 errors=remount-ro,noatime 0 1\n",
        "etc/hostname": "lab\n",
        "etc/systemd/network/10-lab.network": (
            (paths.ROOT / "playbooks/roles/guest/files/root/etc/systemd/network/10-lab.network").read_text()
        ),
        "root/.ssh/authorized_keys": state.ssh_key(deadline).with_suffix(".pub").read_text(),
    }


def _mmdebstrap(image_recipe: ImageRecipe, scratch: Path, tar: Path, deadline: Deadline) -> list[str | Path]:
    assert image_recipe.suite is not None  # build
    overlay = scratch / "overlay"
    for name, text in _overlay_files(deadline).items():
        path = overlay / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    # Whatever the umask is: networkd, which is not root, reads its file too.
    for path in [overlay, *overlay.rglob("*")]:
        if path.is_dir():
            path.chmod(0o700 if path.name in ("root", ".ssh") else 0o755)
        else:
            path.chmod(0o644)
    # sshd trusts only files of root, whoever builds the image; sync-in keeps the ids of the files here.
    ours = sorted(
        {
            str(path)
            for name in _overlay_files(deadline)
            for path in (Path("/") / name, *(Path("/") / name).parents)
        }
    )
    return ends_with_us(
        [
            need("mmdebstrap", "mmdebstrap"),
            "--variant=minbase",
            "--format=tar",
            "--skip=output/dev",
            '--aptopt=Acquire::Languages "none"',
            "--dpkgopt=path-exclude=/usr/share/man/*",
            "--dpkgopt=path-exclude=/usr/share/doc/*",
            "--dpkgopt=path-exclude=/usr/share/locale/*",
            f"--include={','.join(image_recipe.packages)}",
            f"--essential-hook=sync-in {overlay} /",
            f"--essential-hook=chroot $1 chown -h root:root {' '.join(ours)}",
            "--customize-hook=systemctl --root=$1 enable systemd-networkd.service",
            image_recipe.suite,
            tar,
        ]
    )


def _log(name: str) -> Path:
    """The log of a build: it outlives the build's scratch folder, and the next build replaces it."""
    path = state.folder("logs") / f"{name}.log"
    path.unlink(missing_ok=True)
    return path


def _tell_stage(log: Path) -> None:
    """Tell what mmdebstrap does, by its log: without a terminal it counts nothing."""
    with contextlib.suppress(FileNotFoundError):
        if stages := re.findall(r"^I: (.+)\.\.\.$", log.read_text(errors="replace"), re.MULTILINE):
            moving(stages[-1])


def _telling_tasks(watch: Callable[[], None] | None, log: Path, playbook: str) -> Callable[[], None]:
    """`watch` that also tells which task of a playbook runs, by the log of Ansible or Packer."""
    total = tasks(playbook)

    def look() -> None:
        if watch:
            watch()
        with contextlib.suppress(FileNotFoundError):
            begun = re.findall(r"TASK \[(?:\S+ : )?(.+)\] \*", log.read_text(errors="replace"))
            if begun:
                of = f" of {total}" if len(begun) <= total else ""
                moving(f"task {len(begun)}{of}: {begun[-1]}")

    return look


def _cloud_init(scratch: Path, deadline: Deadline) -> list[list[str]]:
    """Make a cloud image's cloud-init (NoCloud over HTTP, from Packer) accept the lab's key for root."""
    seed = scratch / "seed"
    seed.mkdir()
    key = state.ssh_key(deadline).with_suffix(".pub").read_text().strip()
    (seed / "meta-data").write_text("instance-id: numalab\n")
    (seed / "user-data").write_text(
        "#cloud-config\ndisable_root: false\nusers:\n  - name: root\n    lock_passwd: false\n   "
        f" ssh_authorized_keys: ['{key}']\n"
    )
    return [["-smbios", "type=1,serial=ds=nocloud-net;s=http://{{ .HTTPIP }}:{{ .HTTPPort }}/"]]


def _guest_variables(image_recipe: ImageRecipe, scratch: Path) -> dict[str, object]:
    """The variables of the role that puts the guest in order."""
    return {
        "guest_packages": list(image_recipe.packages),
        "guest_out": str(scratch),
        "guest_update_cache": (scratch / "seed").exists(),
    }


def _by_itself(
    name: str,
    image_recipe: ImageRecipe,
    disk: Path,
    scratch: Path,
    which: str,
    boot: list[list[str]],
    watch: Callable[[], None] | None,
    deadline: Deadline,
) -> None:
    """What `_packer` does, without Packer."""
    with step(f"guest image: Ansible under {which}, without Packer"):
        log = _log(f"qemu-{name}")
        base_guest.provision(
            name=name,
            base=disk,
            disk=scratch / "disk.qcow2",
            boot=boot,
            accelerator=which,
            cpu="host" if which == Accel.KVM else TCG_MODEL,
            key=state.ssh_key(deadline),
            playbook=image_recipe.playbook,
            variables=_guest_variables(image_recipe, scratch),
            seed=scratch / "seed" if (scratch / "seed").exists() else None,
            scratch=scratch,
            log=log,
            deadline=deadline,
            watch=_telling_tasks(watch, _log(f"ansible-{log.stem}"), image_recipe.playbook),
        )


def _packer(
    name: str,
    image_recipe: ImageRecipe,
    disk: Path,
    scratch: Path,
    which: str,
    boot: list[list[str]],
    watch: Callable[[], None] | None,
    deadline: Deadline,
) -> None:
    """Boot the base under Packer, provision it, and keep the disk."""
    out, program = scratch / "packer", packer.fetch(deadline)
    shutil.rmtree(out, ignore_errors=True)  # of a boot that hung; Packer takes none that is there
    variables: dict[str, object] = {
        "base": str(disk),
        "out": str(out),
        "accelerator": which,
        "cpu": "host" if which == Accel.KVM else TCG_MODEL,
        "boot": boot,
        "http": str(scratch / "seed") if (scratch / "seed").exists() else "",
        "ssh_key": str(state.ssh_key(deadline)),
        "playbook": str(paths.ROOT / "playbooks" / image_recipe.playbook),
        "ansible": ansible("ansible-playbook"),
        "ansible_vars": f"@{scratch}/vars.yml",
        "timeout": "20m",
    }
    for path in (disk, scratch):
        if "{{" in str(path):
            raise InputError(
                f"{path}: has {{{{ in it, which Packer takes for a template: give the file or the folder"
                " another name"
            )
    (scratch / "vars.yml").write_text(literals(_guest_variables(image_recipe, scratch)))
    # Lists go into a JSON file: on the command line Packer 1.6.6 takes them for strings.
    (scratch / "vars.pkrvars.json").write_text(json.dumps(variables))
    with step(f"guest image: Packer and Ansible under {which}"):
        log = _log(f"packer-{name}")
        try:
            run(
                ends_with_us(
                    [
                        program,
                        "build",
                        "-color=false",
                        "-var-file",
                        scratch / "vars.pkrvars.json",
                        paths.find(TEMPLATE),
                    ]
                ),
                deadline=deadline,
                log=log,
                watch=_telling_tasks(watch, log, image_recipe.playbook),
                env={
                    "PACKER_CACHE_DIR": str(scratch / "cache"),
                    "CHECKPOINT_DISABLE": "1",
                    "PACKER_CONFIG_DIR": str(scratch / "config"),
                    # where `packer init` of later ones put the user's plugins
                    "PACKER_PLUGIN_PATH": os.environ.get("PACKER_PLUGIN_PATH")
                    or str(Path("~/.config/packer/plugins").expanduser()),
                },
            )
        except CommandFailed as error:
            # Packer's last line never has the reason; Ansible's and its own errors are before it.
            error_lines = re.findall(
                r"^.*(?:fatal:|failed:|Error:|error:).*$", log.read_text(errors="replace"), re.MULTILINE
            )
            raise CommandFailed(
                f"image {name}: {error_lines[0].strip()[:300] if error_lines else error} (all of it: {log})",
                evidence=error.evidence,
            ) from error
    (out / "disk.qcow2").rename(scratch / "disk.qcow2")
    for leftover in (out, scratch / "cache", scratch / "config"):
        shutil.rmtree(leftover, ignore_errors=True)
