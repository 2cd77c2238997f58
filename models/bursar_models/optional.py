"""Optional libraries, imported by the methods that need them."""

from __future__ import annotations

import importlib
from typing import Any

from bursar_models.errors import MissingDependencyError

_NAMES = {"sklearn": "scikit-learn"}
_EXTRAS = {"sklearn": "'./bursar[sklearn]'", "matplotlib": "'./bursar[plot]'", "anywidget": "'./bursar[notebook]'"}


def require(module: str) -> Any:
    """Return a module of an optional library.

    Raises:
        bursar.MissingDependencyError: it is not installed; the message has the command that installs it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.split(".")[0]
        text = f"{_NAMES.get(package, package)} is not installed: pip install {_EXTRAS.get(package, package)}"
        raise MissingDependencyError(text) from error
