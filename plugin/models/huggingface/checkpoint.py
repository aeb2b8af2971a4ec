"""A checkpoint as the configuration and the tensors of a forward pass."""

from __future__ import annotations

import os
from collections.abc import Mapping

from ...core.read_record import ReadRecord, TrackedItems
from ...core.strict_json import Json
from ...errors import Place, SubquantError
from ...layouts import InferenceTensor
from ..configuration import Configuration, check_tensors
from .architectures import TABLE
from .configuration import read_configuration
from .input_orders import fold_input_orders
from .tensor_names import by_role, name_in_checkpoint
from .text_part import PREFIX, text_part


def read_checkpoint(
    config: Mapping[str, Json], tensors: Mapping[str, InferenceTensor], location: Place
) -> tuple[Configuration, dict[str, InferenceTensor], tuple[str, ...]]:
    """Return the configuration, the tensors by the names of the forward pass, and unused names.

    The names are those of tensors of images, see `text_part`.

    Raises:
        UnsupportedError, InputError: as `read_configuration`, `text_part` and `by_role`.
    """
    try:
        part = text_part(config, tensors)
    except SubquantError as error:
        raise error.located(_config_location(location)) from None
    own = part.config
    kind = TABLE.get(str(own.get("model_type")), TABLE["llama"])
    is_tied = own.get("tie_word_embeddings")
    try:
        named = by_role(
            part.tensors,
            has_post_norms=kind.post_norms,
            is_tied=kind.is_tied if is_tied is None else is_tied is True,
        )
        configuration = read_configuration(
            own, named, _config_location(location), PREFIX if own != config else ""
        )
        tracked = TrackedItems(named)

        def name_in_file(name: str) -> str:
            return part.name_in_file(name_in_checkpoint(kind, name))

        check_tensors(configuration, tracked, name_in_file)
        record = ReadRecord(location)
        unread = (named[name] for name in sorted(named.keys() - tracked.names_read))
        record.track("tensor", {tensor.name: tensor for tensor in unread})
        record.finish("use a model without, or a tool that knows it")
    except SubquantError as error:
        raise error.located(location) from None
    return configuration, fold_input_orders(named), part.unused


def _config_location(location: Place) -> Place:
    """Return the location of the ``config.json`` of a folder, for errors."""
    folder = location.file or ""
    return Place(os.path.join(folder, "config.json")) if os.path.isdir(folder) else location
