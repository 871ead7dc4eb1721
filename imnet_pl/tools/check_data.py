"""The verb check-data: what is wrong with a data set, before a GPU spends a night on it."""

import csv
import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from imnet_pl.core.errors import UserError
from imnet_pl.core.files import ESCAPED
from imnet_pl.data.catalog import DecodedCatalog
from imnet_pl.data.findings import Finding, find_all, find_side_files
from imnet_pl.data.inspection import Inspection, inspect_index
from imnet_pl.data.shards import is_shard_set

_SPLITS = ("train", "val", "test")
_MOST_CLASSES = 20
_SEVERITIES = ("fix", "look", "note")


def run_check_data(
    data: DecodedCatalog,
    near: bool = True,
    json_file: str | None = None,
    csv_file: str | None = None,
    most: int = 5,
    num_processes: int | None = None,
) -> int:
    """Decode every picture and print what was found; the exit status is 1 when something must be fixed.

    Args:
        data: The set.
        near: Also look for nearly the same picture in two splits.
        json_file: Write classes, counts, sizes and findings to this file.
        csv_file: Write the findings to this file, one a row.
        most: Findings of each kind that are printed.
        num_processes: Processes that decode; default: one a core.

    Raises:
        UserError: There are no training pictures, or a file can not be written.
    """
    for name, value in (("json", json_file), ("csv", csv_file)):
        _require_writable(name, value)
    console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
    inspections, findings = _inspect(data, num_processes)
    findings += find_all(inspections, data.group, near)
    folder = data.root if data.root.is_dir() else data.root.parent
    if not is_shard_set(folder):
        findings += find_side_files(folder)
    _print_splits(console, data, inspections)
    _print_findings(console, findings, most)
    counts = Counter(finding.severity for finding in findings)
    if json_file is not None:
        _write_json(Path(json_file), data, inspections, findings)
    if csv_file is not None:
        _write_csv(Path(csv_file), findings)
    total = sum(len(seen.index) for seen in inspections.values())
    console.print(
        f"{total} pictures: {counts['fix']} findings to fix, {counts['look']} to look at, {counts['note']} notes."
    )
    return 1 if counts["fix"] else 0


def _inspect(
    data: DecodedCatalog, num_processes: int | None
) -> tuple[dict[str, Inspection], list[Finding]]:
    """Decode all splits; one that can not be read as a whole is a finding."""
    inspections: dict[str, Inspection] = {}
    findings: list[Finding] = []
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    console = Console(file=sys.stderr)
    with Progress(
        *columns, console=console, disable=not console.is_terminal
    ) as progress:
        for split in _SPLITS:
            if split != "train" and not data.has_split(split):
                continue
            try:
                index = data.index(split)
            except UserError as error:
                if split == "train":
                    raise
                findings.append(Finding("layout", "fix", str(error), split))
                continue
            task = progress.add_task(split, total=len(index))
            steps = inspect_index(index, num_processes, policy=data.policy)
            for step in steps:
                if isinstance(step, Inspection):
                    inspections[split] = step
                else:
                    progress.update(task, completed=step)
    return inspections, findings


def _print_splits(
    console: Console, data: DecodedCatalog, inspections: Mapping[str, Inspection]
) -> None:
    console.print(f"{data.root}: {len(data.classes)} classes")
    table = Table(
        "split",
        "pictures",
        "smallest class",
        "largest class",
        "px (5 %, median, 95 %)",
        box=None,
    )
    for split, seen in inspections.items():
        counts = seen.index.class_counts()
        least, most = int(counts.argmin()), int(counts.argmax())
        table.add_row(
            split,
            str(len(seen.index)),
            f"{data.classes[least]} {counts[least]}",
            f"{data.classes[most]} {counts[most]}",
            _describe_sizes(seen),
        )
    console.print(table)
    classes = Table("label", "class", *inspections, box=None)
    columns = [seen.index.class_counts() for seen in inspections.values()]
    for label, name in enumerate(data.classes[:_MOST_CLASSES]):
        classes.add_row(str(label), name, *(str(column[label]) for column in columns))
    console.print(classes)
    if len(data.classes) > _MOST_CLASSES:
        console.print(
            f"... and {len(data.classes) - _MOST_CLASSES} more classes (--json_file has all)"
        )


def _describe_sizes(seen: Inspection) -> str:
    is_read = seen.heights > 0
    if not is_read.any():
        return ""
    shares = (5, 50, 95)
    widths, heights = (
        np.percentile(side[is_read], shares, method="nearest").astype(int)
        for side in (seen.widths, seen.heights)
    )
    return ", ".join(f"{w}x{h}" for w, h in zip(widths, heights, strict=True))


def _print_findings(console: Console, findings: Iterable[Finding], most: int) -> None:
    by_kind: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        by_kind.setdefault((finding.severity, finding.kind), []).append(finding)
    for (severity, kind), found in sorted(
        by_kind.items(), key=lambda item: _SEVERITIES.index(item[0][0])
    ):
        console.print(f"{severity}: {kind.replace('_', ' ')}, {len(found)}")
        for finding in found[:most]:
            where = " = ".join(filter(None, (finding.path, finding.other_path)))
            console.print(
                f"  {where + ': ' if where else ''}{finding.text}", markup=False
            )
        if len(found) > most:
            console.print(f"  ... and {len(found) - most} more")


def _require_writable(name: str, file: str | None) -> None:
    """Raise before the work is done for a file that can not be written after it."""
    if file is None:
        return
    try:
        with Path(file).open("a", encoding="utf-8"):
            pass
    except OSError as error:
        raise UserError(
            f"--{name}_file={file!r} can not be written ({error}); choose another file."
        ) from error


def _write_json(
    file: Path,
    data: DecodedCatalog,
    inspections: Mapping[str, Inspection],
    findings: Iterable[Finding],
) -> None:
    facts: dict[str, Any] = {
        "root": str(data.root),
        "classes": list(data.classes),
        "splits": {
            split: {
                "num_samples": len(seen.index),
                "class_counts": seen.index.class_counts().tolist(),
                "num_unreadable": len(seen.errors),
                "sizes": _describe_sizes(seen),
            }
            for split, seen in inspections.items()
        },
        "findings": [asdict(finding) for finding in findings],
    }
    text = json.dumps(facts, indent=1, ensure_ascii=False)
    file.write_text(text, encoding="utf-8", errors=ESCAPED)


def _write_csv(file: Path, findings: Iterable[Finding]) -> None:
    names = [field.name for field in fields(Finding)]
    with file.open("w", newline="", encoding="utf-8", errors=ESCAPED) as out:
        writer = csv.DictWriter(out, names)
        writer.writeheader()
        writer.writerows(asdict(finding) for finding in findings)
