# SPDX-License-Identifier: GPL-2.0-only
"""Reads the YAML files that people write into values. Every error names file, line, key and reason.

Each topology, case and kernel is a file that is found by its name: adding one is no edit of the package. Not
here: the rules that a value must meet, which its class has.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedBase
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.reader import ReaderError

from numalab.core import paths
from numalab.core.errors import InputError
from numalab.model.case import Case
from numalab.model.topology import Topology
from numalab.model.values import check_name, first_fault

M = TypeVar("M", bound=BaseModel)
MOST_LISTED, NEAREST = 20, 5
"""How many names an error lists at most, and of more than that how many that are like the wanted one."""


def names(folder: str, suffix: str = ".yml") -> list[str]:
    """The names of the files in a folder of paths.roots, sorted."""
    return sorted(
        {
            path.name.removesuffix(suffix)
            for root in paths.roots()
            for path in (root / folder).glob(f"*{suffix}")
        }
    )


def find(folder: str, name: str) -> Path:
    """The file of `name` in a folder of the checkout; or `name` itself when it is a path to a file."""
    if name.endswith(".yml") and "/" in name:
        path = Path(name)
    else:
        try:
            path = paths.find(f"{folder}/{check_name(name)}.yml")
        except ValueError as error:
            raise InputError(f"{folder}/: {error}") from error
    if not path.is_file():
        raise InputError(f"no {folder} file {path}: {there_are(names(folder), name)}")
    return path


def there_are(known: Sequence[str], wanted: str) -> str:
    """'there are …', for an error: all names, or of many those most like the wanted one."""
    if len(known) <= MOST_LISTED:
        return f"there are {', '.join(known) or 'none'}"
    near = difflib.get_close_matches(wanted, known, n=NEAREST, cutoff=0.4)
    return f"there are {len(known)} others" + (f", such as {', '.join(near)}" if near else " in that folder")


def load(kind: type[M], path: Path) -> M:
    """Parse and validate one YAML file. Raises InputError with file, line, key and reason."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: {error}") from error
    return cast(M, _parsed(kind, path, text))


@cache
def _parsed(kind: type[BaseModel], path: Path, text: str) -> BaseModel:
    """The value in a file's text. Kept, since many commands load a file more than once, and ruamel.yaml takes
    10 ms and more for one."""
    try:
        data = YAML().load(text)
    except MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise InputError(f"{path}:{line}: not YAML: {error.problem}") from error
    except ReaderError as error:
        raise InputError(
            f"{path}:{text[: error.position].count(chr(10)) + 1}: not YAML: {error.reason}"
        ) from error
    except (YAMLError, ValueError) as error:  # such as an impossible date
        raise InputError(f"{path}:1: not YAML: {str(error).splitlines()[0]}") from error
    if not isinstance(data, dict):
        raise InputError(f"{path}:1: must be a mapping of keys to values")
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        where, reason = first_fault(error)
        if not where and (key := reason.partition(":")[0]) in data:
            where, reason = [key], reason.partition(":")[2].strip()
        shown = ".".join(str(part) for part in where)
        raise InputError(f"{path}:{_line(data, where)}: {shown + ': ' if shown else ''}{reason}") from error


def _line(data: Any, where: Sequence[str | int]) -> int:
    """The line (from 1) of a key, or of its nearest parent in the file."""
    line = 1
    for part in where:
        if not isinstance(data, CommentedBase):
            break
        try:
            line = (data.lc.key(part) if isinstance(part, str) else data.lc.item(part))[0] + 1
            data = data[part]  # type: ignore[index]
        except (KeyError, IndexError, TypeError):
            break
    return int(line)


def topology(name: str) -> Topology:
    """topologies/NAME.yml, or a path to such a file."""
    return load(Topology, find("topologies", name))


def case(name: str) -> Case:
    """testcases/NAME.yml, or a path to such a file."""
    return load(Case, find("testcases", name))
