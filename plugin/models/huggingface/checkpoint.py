"""A checkpoint as the configuration and the tensors of a forward pass."""

from __future__ import annotations

from collections.abc import Mapping

from ...core.strict_json import Json
from ...errors import Place, SubquantError
from ...layouts import InferenceTensor
from ..configuration import Configuration
from .architectures import TABLE
from .configuration import read_configuration
from .tensor_names import by_role


def read_checkpoint(
    config: Mapping[str, Json], tensors: Mapping[str, InferenceTensor], location: Place
) -> tuple[Configuration, dict[str, InferenceTensor]]:
    """Return the configuration, and the tensors by the names of the forward pass.

    Raises:
        UnsupportedError, InputError: as `read_configuration` and `by_role`.
    """
    kind = TABLE.get(str(config.get("model_type")), TABLE["llama"])
    is_tied = config.get("tie_word_embeddings")
    try:
        named = by_role(
            tensors,
            has_post_norms=kind.has_post_norms,
            is_tied=kind.is_tied if is_tied is None else is_tied is True,
        )
    except SubquantError as error:
        raise error.located(location) from None
    return read_configuration(config, named, location), named
