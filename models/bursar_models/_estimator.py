"""Methods that scikit-learn expects of an estimator, for released models, which are fitted and frozen."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt

from bursar_models.optional import require

Task = Literal["clusterer", "density_estimator", "regressor"]
"""Names that scikit-learn has for kinds of estimators."""


class Estimator:
    """Fitted, frozen estimator: it may stand in a `Pipeline`, and `clone` returns it as it is.

    Attributes:
        columns: names of the features in their order; empty if they have none.
    """

    columns: tuple[str, ...]
    _task: ClassVar[Task]

    @property
    def n_features(self) -> int:
        """Number of features, d."""
        raise NotImplementedError

    @property
    def n_features_in_(self) -> int:
        """Number of features under scikit-learn's name."""
        return self.n_features

    @property
    def feature_names_in_(self) -> npt.NDArray[np.object_]:
        """Names of the features, shape (d,); as in scikit-learn an AttributeError if they have none."""
        if not self.columns:
            raise AttributeError("this model's features have no names")
        return np.array(self.columns, dtype=object)

    def fit(self, X: Any = None, y: Any = None) -> Self:
        """Return the model unchanged: the server fitted it. A `Pipeline` that is fitted calls this.

        Args:
            X: not used.
            y: not used.
        """
        del X, y
        return self

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return no parameters: a released model has none that could be searched.

        Args:
            deep: not used.
        """
        del deep
        return {}

    def set_params(self, **params: Any) -> Self:
        """Return the model; it takes no parameters.

        Raises:
            ValueError: a parameter was given.
        """
        if params:
            raise ValueError(f"{sorted(params)[0]}: a released model has no parameters to set; ask for another fit")
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_clone__(self) -> Self:
        return self

    def __sklearn_tags__(self) -> Any:
        utils = require("sklearn.utils")
        regresses = self._task == "regressor"
        return utils.Tags(
            estimator_type=self._task,
            target_tags=utils.TargetTags(required=False),
            transformer_tags=utils.TransformerTags() if hasattr(self, "transform") else None,
            regressor_tags=utils.RegressorTags() if regresses else None,
            input_tags=utils.InputTags(),
            requires_fit=False,
        )


def named_features(model: Any, columns: tuple[str, ...]) -> Any:
    """Return a fitted estimator of scikit-learn after giving it the names of its features, if there are any."""
    if columns:
        model.feature_names_in_ = np.array(columns, dtype=object)
    return model
