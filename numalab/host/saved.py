# SPDX-License-Identifier: GPL-2.0-only
"""The file that libvirt saves a domain to: a header, the domain's XML, then QEMU's migration stream.

libvirt restores a saved domain only under its own name and UUID: virDomainRestoreFlags and
virDomainSaveImageDefineXML refuse others ("Target domain name doesn't match source"). QEMU itself does not
ask for them. So the XML in the file is replaced here. The format is libvirt's src/qemu/qemu_saveimage.[ch],
version 2 since 2010: magic (16 bytes), version, length of the XML with all up to the stream, whether the
domain ran, compression, offset of the cookie (0: none), 14 unused words. libvirt leaves 64 KiB for a longer
XML.

Not here: which XML (domain.restored_xml), saving and restoring (hypervisor).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from numalab.core.errors import HostError

MAGIC, VERSION = b"LibvirtQemudSave", 2
HEADER = struct.Struct("=16s19I")
MOST_BYTES = 16 << 20
"""More than any XML has: a damaged length must not be read as one."""


@dataclass(frozen=True)
class _Front:
    """What is before the stream."""

    words: tuple[int, ...]
    """The header's, after the magic."""
    xml: bytes
    cookie: bytes
    """What libvirt needs beside the XML, such as the CPU's features; with its final NUL. b'' for none."""


def domain_xml(path: Path) -> str:
    """The XML in a file that libvirt saved. HostError when it is none."""
    return _front(path).xml.decode(errors="replace")


def replace_xml(path: Path, xml: str) -> None:
    """Put another XML into the file, whose length stays. HostError when it has no room for it.

    The file must not be in use. A write that is cut short damages what the next call writes anew, but for the
    header's 92 bytes, which come in one write.
    """
    front = _front(path)
    length = front.words[1]
    text = xml.encode() + b"\0"
    if len(text) + len(front.cookie) > length:
        raise HostError(f"{path}: no room for {len(text)} bytes of XML: libvirt left {length}")
    words = list(front.words)
    words[4] = len(text) if front.cookie else 0
    whole = HEADER.pack(MAGIC, *words) + (text + front.cookie).ljust(length, b"\0")
    try:
        with path.open("r+b") as handle:
            handle.write(whole)
    except OSError as error:
        raise HostError(f"{path}: cannot be written: {error.strerror}") from error


def _front(path: Path) -> _Front:
    try:
        with path.open("rb") as handle:
            magic, *words = HEADER.unpack(handle.read(HEADER.size))
            version, length, cookie_at = words[0], words[1], words[4]
            if magic != MAGIC or version != VERSION or not cookie_at <= length <= MOST_BYTES:
                raise HostError(f"{path}: not a domain that libvirt saved in format {VERSION}")
            text = handle.read(length)
    except OSError as error:
        raise HostError(f"{path}: cannot be read: {error.strerror}") from error
    except struct.error:
        raise HostError(f"{path}: shorter than the header of a saved domain") from None
    if len(text) < length:
        raise HostError(f"{path}: ends within its XML")
    cookie = text[cookie_at:].split(b"\0")[0] + b"\0" if cookie_at else b""
    return _Front(tuple(words), text.split(b"\0")[0], cookie)
