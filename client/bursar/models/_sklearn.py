"""The optional bridge to scikit-learn."""

from __future__ import annotations

import importlib
from types import ModuleType

from bursar._errors import MissingDependencyError


def require_sklearn(module: str) -> ModuleType:
    """The module `sklearn.<module>`.

    Raises:
        bursar.MissingDependencyError: scikit-learn is not installed; the message has the command that installs it.
    """
    try:
        return importlib.import_module(f"sklearn.{module}")
    except ImportError as error:
        raise MissingDependencyError("scikit-learn is not installed: pip install 'bursar[sklearn]'") from error
