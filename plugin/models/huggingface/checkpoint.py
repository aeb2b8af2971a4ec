"""A checkpoint as the configuration and the tensors of a forward pass."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial

from ...core.read_record import ReadRecord, TrackedItems
from ...core.strict_json import Json
from ...errors import Place, SubquantError
from ...layouts import InferenceTensor
from ..configuration import Configuration, check_tensors
from .architectures import TABLE
from .configuration import read_configuration
from .tensor_names import by_role, name_in_checkpoint


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
            has_post_norms=kind.post_norms,
            is_tied=kind.is_tied if is_tied is None else is_tied is True,
        )
        configuration = read_configuration(config, named, _config_location(location))
        tracked = TrackedItems(named)
        check_tensors(configuration, tracked, partial(name_in_checkpoint, kind))
        record = ReadRecord(location)
        unread = (named[name] for name in sorted(named.keys() - tracked.names_read))
        record.track("tensor", {tensor.name: tensor for tensor in unread})
        record.finish("use a model without, or a tool that knows it")
    except SubquantError as error:
        raise error.located(location) from None
    return configuration, named


def _config_location(location: Place) -> Place:
    """Return the location of the ``config.json`` of a folder, for errors."""
    folder = location.file or ""
    return Place(os.path.join(folder, "config.json")) if os.path.isdir(folder) else location
