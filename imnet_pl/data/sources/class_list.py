"""Class names that the user gives: a list, or a text file with one a line."""

from pathlib import Path

from imnet_pl.core.errors import UserError, some_of


def read_classes(classes: list[str] | str) -> list[str]:
    """Return class names from a list or a text file, one a line.

    Raises:
        UserError: The file is absent or not UTF-8, or a name is blank or occurs twice.
    """
    names = classes
    if isinstance(names, str):
        file = Path(names).expanduser()
        if not file.is_file():
            raise UserError(
                f"data.classes={names!r} is no file; give a text file, one class a line."
            )
        try:
            names = file.read_text(encoding="utf-8-sig").splitlines()
        except UnicodeDecodeError:
            raise UserError(
                f"data.classes={classes!r} is not UTF-8 text; save it as UTF-8."
            ) from None
        names = [name.strip() for name in names if name.strip()]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(
            f"data.classes names {some_of(twice)} more than once; class names are unique."
        )
    if not names:
        raise UserError("data.classes is empty; name one class a line.")
    if not all(name.strip() for name in names):
        raise UserError("data.classes has a blank name; name every class.")
    return names
