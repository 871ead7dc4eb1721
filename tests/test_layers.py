"""The arrows of the design: which room may import which, also inside functions."""

import ast
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "imnet_pl"
FILES = sorted(PACKAGE.rglob("*.py"))
ROOMS = {
    "core": {"core"},
    "data": {"data", "core"},
    "model": {"model", "core"},
    "training": {"training", "core"},
    "tools": {"data", "model", "training", "core"},
    "": {
        "data",
        "model",
        "training",
        "core",
        "tools",
        "cli",
        "lightning_cli",
        "messages",
        "arguments",
        "run_parts",
        "tool_cli",
    },
}
CORE_MAY_USE = {*sys.stdlib_module_names, "numpy", "psutil", "platformdirs", "imnet_pl"}
# Inside data: a module imports only what stands on a lower level.
DATA_LEVELS = {
    "headers": -2,
    "pixel_budget": -2,
    "thumbnail": -2,
    "pillow_formats": -1,
    "members": -1,
    "index": 0,
    "decode": 0,
    "keys": 0,
    "process_pool": 0,
    "reading": 1,
    "shards": 1,
    "shared_memory": 0,
    "slots": 1,
    "stall_watch": 0,
    "worker_process": 0,
    "augment": 1,
    "activity": 1,
    "dataset": 2,
    "worker_pool": 3,
    "loader_report": 4,
    "loader": 5,
    "loader_plan": 5,
    "sampler": 2,
    "block_sampler": 3,
    "read_ahead": 1,
    "order": 4,
    "sources": 3,
    "splits": 3,
    "inspection": 2,
    "packing": 2,
    "unpacking": 3,
    "shard_writer": 3,
    "shard_damage": 2,
    "packer": 4,
    "duplicates": 3,
    "findings": 4,
    "index_cache": 4,
    "argument_checks": 4,
    "catalog": 5,
    "datamodule": 6,
}


def imported_modules(file: Path) -> list[str]:
    """Return every module that a file imports, wherever the import stands."""
    modules = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            modules += [f"{node.module}.{alias.name}" for alias in node.names]
    return modules


def room_of(file: Path) -> str:
    parts = file.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else ""


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.relative_to(PACKAGE).as_posix())
def test_rooms_import_only_what_lies_below(file):
    own = [m.split(".") for m in imported_modules(file) if m.startswith("imnet_pl.")]
    assert {parts[1] for parts in own} <= ROOMS[room_of(file)]


def test_core_uses_little():
    for file in (PACKAGE / "core").glob("*.py"):
        used = {module.split(".")[0] for module in imported_modules(file)}
        assert used <= CORE_MAY_USE, file


def test_data_modules_import_lower_levels_only():
    for file in (PACKAGE / "data").rglob("*.py"):
        parts = file.relative_to(PACKAGE / "data").with_suffix("").parts
        if parts == ("__init__",):
            continue
        level = DATA_LEVELS[parts[0]]
        for module in imported_modules(file):
            if module.startswith("imnet_pl.data."):
                target = module.split(".")[2]
                same_room = target == parts[0] == "sources"
                assert same_room or DATA_LEVELS[target] < level, f"{file}: {module}"


def test_init_files_are_empty():
    assert all(file.read_text() == "" for file in PACKAGE.rglob("__init__.py"))


def test_root_cli_imports_nothing_outside_its_main_guard():
    tree = ast.parse((PACKAGE.parent / "cli.py").read_text(encoding="utf-8"))
    assert not any(isinstance(node, ast.Import | ast.ImportFrom) for node in tree.body)
