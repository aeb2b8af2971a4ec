"""A model before it is compiled: configuration and tensors, from a GGUF file or a checkpoint."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.mapped_files import mappings_of, release_pages
from ..errors import InputError, Place, SubquantError, counted
from ..formats.tokenizer_files import PROPERTY, TokenizerFiles
from ..layouts import InferenceTensor, QuantizedTensor, StackedArrays, StackedTensor
from ..layouts.activations import summary
from ..layouts.reordered import ReorderedArray, ReorderedTensor
from ..weights.sources import open_weights
from ..weights.theta import Dataset, Theta
from .chat import ChatTemplate
from .configuration import Configuration, is_of_images
from .expert_tensors import with_stacked_experts
from .gguf_configuration import read_gguf_configuration
from .tokenizer import AnyTokenizer, Tokenizer

if TYPE_CHECKING:
    from ..formats.gguf import Lists

_LISTS = ("tokens", "scores", "token_type", "merges")
VOCABULARY_PROPERTIES = frozenset((PROPERTY, *(f"tokenizer.ggml.{name}" for name in _LISTS)))
"""Properties that a tokenizer is made of, and that take as much memory as it does."""


@dataclass
class ModelSource:
    """A model's configuration, and its tensors by the names of the forward pass.

    Attributes:
        dataset: the weights, under the names of the file.
        properties: the properties of a GGUF file by its keys; ``meta`` and ``hparams`` of a
            checkpoint.
        image_tensors: the names of tensors of images, which are not used.
    """

    path: Path
    configuration: Configuration
    tensors: Mapping[str, InferenceTensor]
    dataset: Dataset = field(repr=False)
    image_tensors: tuple[str, ...] = ()

    @property
    def properties(self) -> dict[str, Any]:
        """The properties of the dataset."""
        return self.dataset.properties

    def activations(self) -> dict[str, int]:
        """Return the number of layers by the activation quantization that the file asks for."""
        return summary(
            tensor.activations
            for tensor in self.tensors.values()
            if isinstance(tensor, QuantizedTensor)
        )

    @property
    def remarks(self) -> list[str]:
        """The parts of the file that are not used, as lines for people."""
        remarks = []
        if self.image_tensors:
            count, first = counted(len(self.image_tensors), "tensor"), self.image_tensors[0]
            remarks.append(f"{count} of images ({first}, ...) are not used: text only")
        if is_checkpoint(self.properties) and self._has_files:
            from .huggingface.generation_settings import unused_keys

            name = "generation_config.json"
            keys = unused_keys(self._files.load(name, "the configuration of generation"))
            if keys:
                remarks.append(f"keys of {name} that are not used: {', '.join(keys)}")
        return remarks

    def parameters(self) -> Dataset:
        """Return the data set of the program's parameters: stacked, reordered, none is unused."""
        tensors = self.tensors.values()
        derived = (StackedArrays, StackedTensor, ReorderedArray, ReorderedTensor)
        if not self.image_tensors and not any(isinstance(each, derived) for each in tensors):
            return self.dataset
        used = [each for each in tensors if each.name not in self.image_tensors]
        return Dataset(self.properties, Theta(used))

    def release_pages(self) -> None:
        """Return the pages of the files that were read to the system; see `release_pages`."""
        tensors = self.tensors.values()
        release_pages(mappings_of(array for each in tensors for array in each.stored_arrays))

    def tokenizer(self, *, keeps_vocabulary: bool = False) -> AnyTokenizer:
        """Make the tokenizer; errors as its class.

        Args:
            keeps_vocabulary: False drops the vocabulary from `properties`, to save memory.
        """
        if is_checkpoint(self.properties):
            from .huggingface.text_part import text_config
            from .huggingface.tokenizer import CheckpointTokenizer

            files = self._files
            if not keeps_vocabulary:
                self.properties.pop(PROPERTY, None)
            return CheckpointTokenizer(files, text_config(config_of(self.properties)))
        tokenizer = Tokenizer.from_properties(self.properties)
        if not keeps_vocabulary:
            for name in VOCABULARY_PROPERTIES:
                self.properties.pop(name, None)
        return tokenizer

    def chat(self, tokenizer: AnyTokenizer) -> ChatTemplate:
        """Make the chat template; errors as `ChatTemplate`."""
        if isinstance(tokenizer, Tokenizer):
            return ChatTemplate(self.properties, tokenizer)
        from .huggingface.tokenizer import CheckpointTokenizer

        assert isinstance(tokenizer, CheckpointTokenizer)  # `tokenizer` made it
        return tokenizer.chat_template()

    @property
    def _has_files(self) -> bool:
        """Return True where `_files` are found: archives may have no tokenizer."""
        return self.path.suffix != ".irpa" or PROPERTY in self.properties

    @functools.cached_property
    def _files(self) -> TokenizerFiles:
        """The files of a checkpoint that turn text into tokens."""
        if self.path.suffix != ".irpa":
            return TokenizerFiles(self.path if self.path.is_dir() else self.path.parent)
        texts = self.properties.get(PROPERTY)
        if not isinstance(texts, dict):
            raise InputError(
                f"'{self.path}' has the tensors of a checkpoint and no tokenizer; give the folder "
                "of the checkpoint as the model"
            )
        return TokenizerFiles.of_texts(self.path, texts)


def is_checkpoint(properties: Mapping[str, Any]) -> bool:
    """Return True for the properties of a checkpoint of Hugging Face."""
    return "hparams" in properties


def config_of(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``config.json`` that the properties of a checkpoint are made of."""
    return {**properties.get("meta", {}), **properties["hparams"]}


def open_model(path: str | os.PathLike[str], *, lists: Lists = True) -> ModelSource:
    """Open a GGUF file, an archive made of one, or a checkpoint, and read its configuration.

    Args:
        lists: as that of `open_weights`.

    Raises:
        UnsupportedError: the architecture, a tensor or a property is not supported.
        InputError: a file cannot be read, or is not valid.
    """
    dataset = open_weights(path, lists=lists)
    tensors: Mapping[str, InferenceTensor] = dataset.theta.flatten()
    location = Place(os.fspath(path))
    if is_checkpoint(dataset.properties):
        from .huggingface.checkpoint import read_checkpoint

        config = config_of(dataset.properties)
        configuration, tensors, images = read_checkpoint(config, tensors, location)
    else:
        images = tuple(filter(is_of_images, tensors))
        try:
            tensors = with_stacked_experts(tensors)
        except SubquantError as error:
            raise error.located(location) from None
        configuration = read_gguf_configuration(dataset.properties, tensors, location)
    return ModelSource(Path(path), configuration, tensors, dataset, images)
