"""Headers."""

from .._http import Headers, HeadersLike, MultipleValuesError

__all__ = ["Headers", "HeadersLike", "MultipleValuesError"]
